"""What requests cost: one line a turn, from its events alone, and sums of such lines.

A report is an agent's own word about its turn, summed up over its rounds; the newest one counts. A turn
that never reported has no line here, though the guard charges it its whole grant.
"""

from collections.abc import Callable, Iterable, Mapping

import msgspec

from protocol import budget
from protocol.events import AnyEvent, RequestOpened, Work
from protocol.ids import AgentName, RequestId, TurnId
from protocol.messages import Report, Usage
from protocol.prices import UNUSED, Metered, Tokens


class Spent(msgspec.Struct, frozen=True, kw_only=True):
    """What one turn cost."""

    request: RequestId
    client: AgentName
    turn: TurnId
    agent: AgentName
    giver: AgentName
    """Who gave it the work: with `agent`, the edge that the cost came over."""
    at: int
    """UTC µs of the newest report."""
    usage: Usage


class Spending:
    """What turns reported, taken in event by event; of as many requests at once as there are.

    Events of one request have to come in their order.
    """

    def __init__(self) -> None:
        self._clients: dict[RequestId, AgentName] = {}
        self._works: dict[TurnId, Work] = {}
        self._found: dict[TurnId, Spent] = {}

    def take(self, event: AnyEvent) -> None:
        if isinstance(event, RequestOpened):
            self._clients[event.request] = event.client
        report, turn = getattr(event, "report", None), getattr(event, "turn", None)
        if isinstance(report, Report) and turn in self._works and report.usage != budget.NOTHING:
            self._settle(event, turn, report)
        work = getattr(event, "work", None)
        if isinstance(work, Work):
            self._works.setdefault(work.turn, work)

    def _settle(self, event: AnyEvent, turn: TurnId, report: Report) -> None:
        handoff = self._works[turn].handoff
        before = self._found[turn].usage if turn in self._found else budget.NOTHING
        self._found[turn] = Spent(
            request=event.request,
            client=self._clients[event.request],
            turn=turn,
            agent=handoff.to_agent,
            giver=handoff.from_agent,
            at=event.at,
            usage=budget.larger(report.usage, before),
        )

    @property
    def lines(self) -> list[Spent]:
        """One for each turn that reported anything, in the order in which they were opened."""
        return [self._found[turn] for turn in self._works if turn in self._found]


def spending(events: Iterable[AnyEvent]) -> list[Spent]:
    """Return what each turn reported, in the order in which the turns were opened."""
    account = Spending()
    for event in events:
        account.take(event)
    return account.lines


BY: Mapping[str, Callable[[Spent], str]] = {
    "agent": lambda spent: spent.agent,
    "edge": lambda spent: f"{spent.giver} -> {spent.agent}",
    "client": lambda spent: spent.client,
    "request": lambda spent: spent.request,
}
"""What costs can be summed up by, besides models: those are within a turn."""


def summed(lines: Iterable[Spent], key: Callable[[Spent], str]) -> dict[str, Usage]:
    """Return the sum of each group, the dearest first."""
    sums: dict[str, Usage] = {}
    for line in lines:
        name = key(line)
        sums[name] = budget.plus(sums.get(name, budget.NOTHING), line.usage)
    return dict(sorted(sums.items(), key=lambda item: (-item[1].nano_dollars, -item[1].tokens, item[0])))


def by_model(lines: Iterable[Spent]) -> dict[str, Metered]:
    """Return what each model was used for, the dearest first."""
    sums: dict[str, Metered] = {}
    for line in lines:
        for model, used in line.usage.models.items():
            sums[model] = sums.get(model, UNUSED) + used
    return dict(sorted(sums.items(), key=lambda item: (-item[1].nano_dollars, -item[1].total, item[0])))


def cached_share(tokens: Tokens) -> float | None:
    """Return which part of what went into a model came from its vendor's cache; None if nothing went in."""
    return tokens.cache_read / tokens.prompt if tokens.prompt else None
