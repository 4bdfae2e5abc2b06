"""The timeline: the story of one request in order, for people and for programs.

It is derived from the events alone, so a log file gives the same timeline as the bus. Its form is the
documented JSON of `mesh request show --json`.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from protocol.domain import budget
from protocol.domain.carried import NOTHING, Carried, dropped
from protocol.domain.ledger import Ledger
from protocol.domain.turns import TurnState
from protocol.views.entries import fields_of
from protocol.views.spending import Cost, cost_of, unpriced_in
from protocol.views.tree import TreeNode, flat, trees
from protocol.wire import events
from protocol.wire.commands import ForkedFrom, Submit
from protocol.wire.event_parts import Withheld
from protocol.wire.events import AnyEvent
from protocol.wire.handoff import Fact
from protocol.wire.ids import HUMAN, TurnId
from protocol.wire.prices import Price, price_list
from protocol.wire.records import Cut
from protocol.wire.subjects import intent_inbox


class _Entry(msgspec.Struct, frozen=True, kw_only=True):
    """Base class: all fields are always written, so that readers of the JSON need not guess."""


class StepEntry(_Entry, frozen=True, kw_only=True):
    """One step of a turn's journal, without its result."""

    round: int
    n: int
    """Its position in the round, in the order of the code's calls."""
    kind: str
    """`model`, `call`, `effect`, `remark`, `now` or `random`; `intent` is an effect without a result."""
    name: str
    """The name of the model or tool."""
    at: int
    """UTC µs at which it was journaled, by the agent's clock."""
    after: int = 0
    """µs since the previous step of the round; for the first step, since the round was given out."""
    version: str
    """Version of the agent that journaled it."""
    error: str | None
    """The code of a recorded refusal or exception."""
    usage: Cost | None
    """Model replies: the cost."""
    arguments: Any = None
    """Tool calls: the arguments by name; None if none were recorded or they are cut."""
    secret: tuple[str, ...] = ()
    """Names of arguments that the tool keeps out of its record."""
    cut: Cut | None = None
    """Long arguments: their size in bytes and their beginning."""


class TurnEntry(_Entry, frozen=True, kw_only=True):
    """The current state of the turn that an entry is about."""

    id: str
    agent: str
    rounds: int
    steps: tuple[StepEntry, ...] = ()
    """Journaled steps of the rounds up to this entry that no earlier entry has. The turn's last entry has the
    remaining ones. Empty if only the log was read, since journals are not part of it."""
    usage: Cost
    version: str = ""
    """Version of the agent that ran the latest round, as reported; empty without a report."""
    build: str = ""
    """What that code was built from, as reported."""
    status: str
    """`working`, `failed`, `refused`, `suspended`, `doubted` or `ended`."""


def named(by: str, sender: str | None) -> str:
    """Return who gave an order: the name they gave, plus the owner of the credentials if that differs."""
    return by if sender in (None, "", by) else f"{by} ({sender})" if by else str(sender)


class TimelineEntry(_Entry, frozen=True, kw_only=True):
    """One thing that history."""

    seq: int
    """The event's number in its request."""
    id: str
    at: int
    """UTC µs."""
    move: str
    """A move's name, or another kind of entry: `submit`, `turn_failed`, `retry`, `reply`, `freeze` …"""
    from_: str = msgspec.field(name="from")
    to: str | None = None
    summary: str = ""
    verdict: str
    """`admitted`, `refused` or `deferred`; `recorded` if no verdict was needed."""
    rule: str | None = None
    detail: str | None = None
    hint: str | None = None
    facts: tuple[Fact, ...] = ()
    """New or changed facts."""
    remembered: tuple[str, ...] = ()
    """Submits: keys of facts from the conversation. Answers: keys that the conversation now remembers."""
    dropped: tuple[str, ...] = ()
    withheld: Withheld | None = None
    turn: TurnEntry | None = None
    sender: str | None = None
    """Control messages: the owner of the credentials, as the broker reports it. `from` is the name given."""


class Awaited(_Entry, frozen=True, kw_only=True):
    """What an open request waits for."""

    for_: str = msgspec.field(name="for")
    """An agent, `any-` and an intent, `human`, the client's name, or `thaw`."""
    since: int
    """UTC µs."""
    why: str
    served: bool | None = None
    """True if any instance serves the agent. None if that was not checked; the log alone does not tell."""


class Timeline(_Entry, frozen=True, kw_only=True):
    """A whole request."""

    request: str
    status: str
    """`open`, `completed`, `refused`, `failed`, `expired` or `cancelled`."""
    policy: str
    topology: str
    client: str
    conversation: str | None = None
    """The conversation that its submit named, which groups requests."""
    rerun_of: str | None = None
    """The request that this one repeats from where it failed."""
    forked_from: ForkedFrom | None = None
    """The request that this one continues."""
    forks: tuple[str, ...] = ()
    """Requests that continue this one, as far as the index of requests knows them."""
    entry: str | None
    path: tuple[str, ...]
    """The current stack of holders."""
    trail: tuple[str, ...]
    """All holders of the work in order, with repetitions."""
    depth: int
    answer: Any = None
    error: dict[str, str] | None = None
    cost: Cost
    """The sum of its turns' reports."""
    charged: Cost
    """What counts against its budget: `cost`, plus everything left (in limited dimensions) to each turn that
    began but was ended without ever reporting."""
    waiting: tuple[Awaited, ...] = ()
    moves: tuple[TimelineEntry, ...] = ()
    running: tuple[TurnEntry, ...] = ()
    """Open turns that have no entry yet."""
    tree: tuple[TreeNode, ...] = ()
    """The root turns that delegated, with their tasks and everything below them."""


def prices_in(history: Iterable[AnyEvent]) -> dict[str, Price]:
    """Return the prices that a request began with."""
    known = (event.prices for event in history if isinstance(event, events.RequestOpened))
    return price_list(next(known, {}))


def timeline(
    history: Sequence[AnyEvent], journals: Mapping[str, Sequence[StepEntry]] | None = None
) -> Timeline:
    """Return the timeline of one request from its events, which must be in order from the first.

    Args:
        journals: steps by the turn id of their journal.

    Raises ValueError without events, BrokenLog if some are missing.
    """
    if not history:
        raise ValueError("no events, no timeline")
    ledger = Ledger()
    entries: list[tuple[dict[str, Any], str | None]] = []
    trail: list[str] = []
    for event in history:
        giver = ledger.turns.get(_giver_of(event)) if event.opens_turn else None
        before = NOTHING if giver is None else giver.carried()
        ledger.apply(event)
        if not isinstance(event, events.FactsWithheld):
            entries.append((_entry_fields(ledger, event, before), _about(ledger, event)))
        if event.opens_turn and event.work is not None:
            trail.append(event.work.handoff.to_agent)
    prices = prices_in(history)
    settled = [TimelineEntry(**fields, turn=_turn(ledger, about, prices)) for fields, about in entries]
    running = [_turn(ledger, turn_id, prices) for turn_id in ledger.open]
    reported = [turn.report.usage for turn in ledger.turns.values()]
    unpriced = any(unpriced_in(usage, prices) for usage in reported)
    cost = cost_of(budget.total(reported), prices, unpriced=unpriced)
    if journals:
        settled, running = _with_steps(settled, running, history, journals)
    tree = trees(ledger, prices)
    shown = {move.turn.id for move in settled if move.turn is not None}
    segment = None if ledger.root is None else ledger.root.segment
    first = next((event for event in history if not isinstance(event, events.FactsWithheld)), None)
    submitted = first.submit if isinstance(first, events.RequestRefused) else first
    known = submitted if isinstance(submitted, events.RequestOpened | Submit) else None
    return Timeline(
        request=str(ledger.request),
        status=ledger.status,
        policy=ledger.policy.name,
        topology=ledger.policy.topology,
        client=str(ledger.client or ""),
        conversation=None if known is None else known.conversation,
        rerun_of=None if known is None else known.rerun_of,
        forked_from=_forked_from(known),
        entry=trail[0] if trail else None,
        path=() if segment is None else segment.names,
        trail=tuple(trail),
        depth=0 if segment is None else segment.depth,
        answer=ledger.ended.answer if isinstance(ledger.ended, events.RequestCompleted) else None,
        error=_error(ledger.ended),
        cost=cost,
        charged=cost_of(ledger.spent, prices, unpriced=unpriced),
        waiting=(*_waiting(ledger, history), *_unclaimed(tree)),
        moves=tuple(settled),
        running=tuple(turn for turn in running if turn is not None and turn.id not in shown),
        tree=tree,
    )


def _forked_from(known: events.RequestOpened | Submit | None) -> ForkedFrom | None:
    """Return where a fork leaves the request before it, without what only its agents need."""
    fork = None if known is None else known.forked_from
    return None if fork is None else replace(fork, summary="", text_labels=(), journals={})


def _giver_of(event: AnyEvent) -> TurnId:
    """Return the turn that gives its facts to the turn that an event opens."""
    return event.lead if isinstance(event, events.TaskOpened) else event.turn


def _error(ended: AnyEvent | None) -> dict[str, str] | None:
    match ended:
        case events.RequestRefused(refusal=refusal):
            return {"code": str(refusal.rule), "detail": refusal.detail}
        case events.RequestFailed(code=code, reason=reason):
            return {"code": code, "detail": reason}
        case events.RequestExpired() as expired:
            return {"code": "expired", "detail": expired.explanation}
        case events.RequestCancelled(by=by, sender=sender, reason=reason):
            who = named(by, sender)
            return {"code": "cancelled", "detail": f"by {who}: {reason}" if reason else f"by {who}"}
    return None


def _waiting(ledger: Ledger, history: Sequence[AnyEvent]) -> Iterable[Awaited]:
    if not ledger.is_open:
        return
    if ledger.frozen_at is not None:
        frozen = next(event for event in reversed(history) if isinstance(event, events.RequestFrozen))
        why = f"{named(frozen.by, frozen.sender)} froze it" + (f": {frozen.reason}" if frozen.reason else "")
        yield Awaited(for_="thaw", since=ledger.frozen_at, why=why)
    for turn in ledger.open.values():
        if turn.state == "delegated":
            continue  # each of its tasks is listed
        why = {
            "working": "a person has not resolved it" if turn.agent == HUMAN else _not_done(ledger, turn),
            "failed": "the turn failed and is tried again",
            "refused": "the turn has no round left",
            "suspended": "a question waits for its reply",
            "doubted": "an effect is in doubt",
        }.get(turn.state, turn.state)
        who = {"suspended": str(turn.asked), "doubted": HUMAN}.get(turn.state, turn.agent)
        since = turn.clock if turn.state == "working" else history[turn.since_n].at
        yield Awaited(for_=who, since=since, why=why)


def _unclaimed(tree: Iterable[TreeNode]) -> Iterable[Awaited]:
    """Yield unclaimed offers, which any agent with their intent may claim."""
    for node in flat(tree):
        if node.status == "offered":
            why = f"no agent has claimed task {node.name}"
            yield Awaited(for_=intent_inbox(node.intent), since=node.began, why=why)


def _not_done(ledger: Ledger, turn: TurnState) -> str:
    if turn.task is None:
        return "its turn is not done"
    return f"its task {turn.task.name} of {ledger.turns[turn.task.lead].agent} is not done"


def _entry_fields(ledger: Ledger, event: AnyEvent, before: Carried) -> dict[str, Any]:
    """Return the fields of an entry except its turn, whose usage and rounds are known only at the end."""
    opens = event.opens_turn
    after = ledger.turns[TurnId(event.id)].carried() if opens else before
    of_task = isinstance(event, events.TaskOpened)
    fields: dict[str, Any] = {
        "seq": event.n,
        "id": event.id,
        "at": event.at,
        "verdict": "recorded",
        "facts": tuple(after.facts[key] for key in _added(ledger, event)),
        "dropped": dropped(before, after) if of_task else event.dropped,
        "withheld": event.work and event.work.withheld,
        "sender": event.sender if event.control else None,
    }
    return fields | fields_of(ledger, event)


def _added(ledger: Ledger, event: AnyEvent) -> tuple[str, ...]:
    """Return the keys of the facts that an event adds."""
    match event:
        case events.RequestOpened():
            return tuple(ledger.turns[TurnId(event.id)].carried().facts)
        case events.TaskOpened(lead=lead, name=name):
            return tuple(fact.key for fact in ledger.turns[lead].tasks[name].planned.task.facts)
    return event.added


def _about(ledger: Ledger, event: AnyEvent) -> str | None:
    """Return the turn that an event is about: the one it names, opens, or ends from outside."""
    if isinstance(event, events.RequestCancelled | events.RequestExpired):
        return next((turn.id for turn in ledger.turns.values() if turn.end and turn.end.n == event.n), None)
    return event.turn or (None if event.work is None else event.work.turn)


def _turn(ledger: Ledger, turn_id: str | None, prices: Mapping[str, Price]) -> TurnEntry | None:
    turn = ledger.turns.get(turn_id) if turn_id else None  # type: ignore[call-overload]
    if turn is None:
        return None
    return TurnEntry(
        id=turn.id,
        agent=turn.agent,
        rounds=turn.round + 1,
        usage=cost_of(turn.report.usage, prices),
        version=turn.report.version,
        build=turn.report.build,
        status=turn.state,
    )


def _with_steps(
    entries: Sequence[TimelineEntry],
    running: Sequence[TurnEntry | None],
    history: Sequence[AnyEvent],
    journals: Mapping[str, Sequence[StepEntry]],
) -> tuple[list[TimelineEntry], list[TurnEntry | None]]:
    """Return entries and open turns, each with its steps."""
    by_seq = {event.n: event for event in history}
    left: dict[str, list[StepEntry]] = {}
    for event in history:
        work = event.work
        if work is not None:
            known = journals.get(work.journal_id, ())
            own = sorted((step for step in known if step.round == work.round), key=lambda step: step.n)
            before = [event.at, *(step.at for step in own)]
            left.setdefault(work.turn, []).extend(
                msgspec.structs.replace(step, after=max(0, step.at - at))
                for step, at in zip(own, before, strict=False)
            )
    last = {move.turn.id: move.seq for move in entries if move.turn is not None}
    found = []
    for move in entries:
        if move.turn is not None:
            is_last = last[move.turn.id] == move.seq
            through = None if is_last else by_seq[move.seq].round
            turn = _take_steps(through, move.turn, left)
            move = msgspec.structs.replace(move, turn=turn)
        found.append(move)
    return found, [turn and _take_steps(None, turn, left) for turn in running]


def _take_steps(round_: int | None, turn: TurnEntry, left: dict[str, list[StepEntry]]) -> TurnEntry:
    """Return a turn with its remaining steps up to a round (None: all), which are removed from `left`."""
    steps = left.pop(turn.id, [])
    left[turn.id] = [step for step in steps if round_ is not None and step.round > round_]
    own = tuple(step for step in steps if round_ is None or step.round <= round_)
    return msgspec.structs.replace(turn, steps=own)
