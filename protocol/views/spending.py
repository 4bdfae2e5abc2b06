"""The cost of requests: one line per turn, computed from events alone, and sums of such lines.

A report is an agent's own account of its turn, summed up over its rounds. The newest one counts. Later costs
of the turn are only in its journal, which is not part of the log: `Spending.unreported` lists where to look,
and `Spending.add` adds what was found there.
"""

from collections.abc import Callable, Iterable, Mapping

import msgspec

from protocol.domain import budget
from protocol.wire import events
from protocol.wire.commands import Report, Usage
from protocol.wire.event_parts import Assignment
from protocol.wire.events import AnyEvent
from protocol.wire.ids import HUMAN, AgentName, RequestId, TurnId, submitter_of
from protocol.wire.prices import UNUSED, Metered, Price, Tokens, price_list, price_of

UNKNOWN = AgentName("?")
"""Takes the place of a name from an event that the log no longer has."""


class Cost(msgspec.Struct, frozen=True, kw_only=True):
    """What was spent, according to the agents' own reports."""

    nano_dollars: int
    tokens: int
    model_calls: int
    unpriced: bool = False
    """True if the dollars are too low, because some calls were to a model without a price."""


class Spent(msgspec.Struct, frozen=True, kw_only=True):
    """What one turn cost."""

    request: RequestId
    client: AgentName
    turn: TurnId
    agent: AgentName
    giver: AgentName
    """The name that gave it the work. Together with `agent`, it is the edge that caused the cost."""
    at: int
    """UTC µs of the newest report or counted step."""
    usage: Usage
    unpriced: tuple[str, ...] = ()
    """Used models without a price, whose calls count as 0 dollars."""
    task: str = ""
    """The name of its task, if it does one."""
    leads: tuple[AgentName, ...] = ()
    """The leads above it in its lineage, and its own agent if it delegated."""

    @property
    def unpriced_calls(self) -> int:
        return sum(self.usage.models[model].calls for model in self.unpriced)


class Unreported(msgspec.Struct, frozen=True, kw_only=True):
    """Rounds of a turn whose cost no report contains: not yet, or never."""

    request: RequestId
    turn: TurnId
    agent: AgentName
    journal: TurnId
    """The turn id under which its steps are journaled."""
    first: int
    last: int
    """First and last of these rounds, inclusive."""


class _Turn:
    """What is known of one turn."""

    def __init__(self, request: RequestId, agent: AgentName, giver: AgentName, round_: int) -> None:
        self.request, self.agent, self.giver = request, agent, giver
        self.journal: TurnId | None = None
        self.opened = self.reported = round_ - 1
        """The newest round that was opened, and the newest whose cost was reported."""
        self.at = 0
        self.task = ""
        self.lineage: tuple[AgentName, ...] = ()
        """Tasks: the leads, from the root on."""
        self.delegated = False
        self.reports: Usage = budget.NOTHING
        """What its reports come to."""
        self.journaled: Usage = budget.NOTHING
        """What steps of unreported rounds come to."""


class Spending:
    """What turns reported, collected event by event, for any number of requests at once.

    Pass the events of each request in order. The log may have lost a request's beginning.
    """

    def __init__(self) -> None:
        self._turns: dict[TurnId, _Turn] = {}
        self._prices: dict[RequestId, Mapping[str, Price]] = {}
        self._kept: dict[RequestId, events.FactsWithheld] = {}
        """By request: what is withheld from a reader, until a turn is opened or the request ends."""

    def take(self, event: AnyEvent) -> None:
        """Add the next event."""
        if isinstance(event, events.RequestOpened) and event.prices:
            self._prices[event.request] = price_list(event.prices)
        kept = self._kept.get(event.request)
        if isinstance(event, events.FactsWithheld):
            self._kept[event.request] = event
        elif event.opens_turn or isinstance(event, events.Ended):
            self._kept.pop(event.request, None)
        if kept is not None and kept.cause != event.cause:
            kept = None
        report = _report(event, kept)
        if report is not None:
            self._settle(event, report, kept)
        if event.work is not None and event.work.handoff.to_agent != HUMAN:
            self._open(event.request, event.work)

    def _open(self, request: RequestId, work: Assignment) -> None:
        handoff = work.handoff
        turn = self._turns.setdefault(
            work.turn, _Turn(request, handoff.to_agent, handoff.from_agent, work.round)
        )
        turn.agent, turn.giver = handoff.to_agent, handoff.from_agent
        if work.task:
            turn.task, turn.lineage = work.task, work.path[:-1]
        turn.journal, turn.opened = work.journal_id, max(turn.opened, work.round)
        turn.reports = budget.larger(turn.reports, work.reported.usage)
        if work.prices and request not in self._prices:
            self._prices[request] = price_list(work.prices)

    def _settle(self, event: AnyEvent, report: Report, kept: events.FactsWithheld | None) -> None:
        unknown = _Turn(event.request, _reporter(event, kept), UNKNOWN, event.round)
        turn = self._turns.setdefault(event.turn, unknown)
        turn.delegated |= isinstance(event, events.TurnDelegated)
        turn.at, turn.reports = event.at, budget.larger(turn.reports, report.usage)
        turn.reported = max(turn.reported, event.round)

    @property
    def unreported(self) -> list[Unreported]:
        """Turns with unreported rounds: these are still running, or were ended by a guard or a person."""
        return [
            Unreported(
                request=turn.request,
                turn=turn_id,
                agent=turn.agent,
                journal=turn.journal,
                first=turn.reported + 1,
                last=turn.opened,
            )
            for turn_id, turn in self._turns.items()
            if turn.journal is not None and turn.reported < turn.opened
        ]

    def add(self, turn: TurnId, usage: Usage, at: int) -> None:
        """Add the cost of a journaled step of an unreported round.

        Args:
            at: UTC µs at which it was journaled.
        """
        known = self._turns[turn]
        known.journaled, known.at = budget.plus(known.journaled, usage), max(known.at, at)

    @property
    def lines(self) -> list[Spent]:
        """One line for each turn with a known cost, in the order in which the turns were opened."""
        return [
            Spent(
                request=turn.request,
                client=submitter_of(turn.request),
                turn=turn_id,
                agent=turn.agent,
                giver=turn.giver,
                at=turn.at,
                usage=usage,
                unpriced=unpriced_in(usage, self._prices.get(turn.request, {})),
                task=turn.task,
                leads=turn.lineage + ((turn.agent,) if turn.delegated else ()),
            )
            for turn_id, turn in self._turns.items()
            if (usage := budget.plus(turn.reports, turn.journaled)) != budget.NOTHING
        ]


def _report(event: AnyEvent, kept: events.FactsWithheld | None) -> Report | None:
    """Return the holder's report in an event, or in the `facts.withheld` before it; None if there is none."""
    match event:
        case events.MoveDeferred(proposal=proposal):
            return proposal.report
        case events.FactsWithheld():
            return None
        case (
            events.TurnFailed(sender=None)
            | events.TaskFailed(sender=None)
            | events.RequestFailed(sender=None)
        ):
            return None
        case events.TurnSuspended() | events.RequestFailed() | events.RequestCompleted():
            return None if kept is None else kept.report
        case events.EscalationRaised() if event.reason != "asked" and event.report == Report():
            return None
    return event.report


def _reporter(event: AnyEvent, kept: events.FactsWithheld | None) -> AgentName:
    """Return the agent that reports in an event if the log has lost the opening of its turn."""
    grounds = event.grounds if kept is None else kept.grounds
    entry = None if grounds is None else grounds.sender
    return event.sender or (UNKNOWN if entry is None else entry.name)


def unpriced_in(usage: Usage, prices: Mapping[str, Price]) -> tuple[str, ...]:
    """Return used models without a price, whose calls count as 0 dollars."""
    return tuple(
        model
        for model, used in usage.models.items()
        if used.total and not used.nano_dollars and price_of(model, prices) is None
    )


def cost_of(usage: Usage, prices: Mapping[str, Price], *, unpriced: bool = False) -> Cost:
    """Return a usage as a cost, which is `unpriced` if the argument is or if a model has no price."""
    return Cost(
        nano_dollars=usage.nano_dollars,
        tokens=usage.tokens,
        model_calls=usage.model_calls,
        unpriced=unpriced or bool(unpriced_in(usage, prices)),
    )


def spending(history: Iterable[AnyEvent]) -> list[Spent]:
    """Return what each turn reported, in the order in which the turns were opened."""
    account = Spending()
    for event in history:
        account.take(event)
    return account.lines


BY: Mapping[str, Callable[[Spent], Iterable[str]]] = {
    "agent": lambda spent: (spent.agent,),
    "edge": lambda spent: (f"{spent.giver} -> {spent.agent}",),
    "client": lambda spent: (spent.client,),
    "request": lambda spent: (spent.request,),
    "turn": lambda spent: (f"{spent.agent} {spent.turn}",),
    "lead": lambda spent: spent.leads,
    "worker": lambda spent: (spent.agent,) if spent.task else (),
}
"""How costs can be grouped, besides by model, which is finer than a turn. A turn may be in several groups:
one three levels down counts for each lead above it. It may also be in none: only tasks count for workers."""


def grouped(lines: Iterable[Spent], key: Callable[[Spent], Iterable[str]]) -> dict[str, list[Spent]]:
    """Return the lines of each group."""
    groups: dict[str, list[Spent]] = {}
    for line in lines:
        for name in key(line):
            groups.setdefault(name, []).append(line)
    return groups


def total(lines: Iterable[Spent]) -> Usage:
    """Return the sum of lines."""
    return budget.total(line.usage for line in lines)


def summed(lines: Iterable[Spent], key: Callable[[Spent], Iterable[str]]) -> dict[str, Usage]:
    """Return the sum of each group, the most expensive first."""
    sums = {name: total(group) for name, group in grouped(lines, key).items()}
    return dict(sorted(sums.items(), key=lambda item: (-item[1].nano_dollars, -item[1].tokens, item[0])))


def by_model(lines: Iterable[Spent]) -> dict[str, Metered]:
    """Return the use of each model, the most expensive first."""
    sums: dict[str, Metered] = {}
    for line in lines:
        for model, used in line.usage.models.items():
            sums[model] = sums.get(model, UNUSED) + used
    return dict(sorted(sums.items(), key=lambda item: (-item[1].nano_dollars, -item[1].total, item[0])))


def cached_share(tokens: Tokens) -> float | None:
    """Return the share of a model's input that came from the vendor's cache; None without any input."""
    return tokens.cache_read / tokens.prompt if tokens.prompt else None
