"""The timeline: one request told in order, for people and for programs.

It is derived from the events alone: a log file tells the same story as the bus. Its form is the documented
JSON of `mesh request show --json`.
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
    """Base: every field is always written, so that readers of the JSON need not guess."""


class StepEntry(_Entry, frozen=True, kw_only=True):
    """One step of a turn's journal, without what came of it."""

    round: int
    n: int
    """Its place in the round, in the order of the code's calls."""
    kind: str
    """`model`, `call`, `effect`, `remark`, `now` or `random`; `intent`: an effect without a result."""
    name: str
    """Of the model or the tool."""
    at: int
    """UTC µs when it was journaled, by the agent's clock."""
    after: int = 0
    """µs since the step before it in its round; of the first, since the round was given."""
    version: str
    """The agent's that journaled it."""
    error: str | None
    """The code of a recorded no."""
    usage: Cost | None
    """Of a model's reply."""
    arguments: Any = None
    """Of a tool's call, by name; None where the step records none, or they are cut."""
    secret: tuple[str, ...] = ()
    """Names of arguments that the tool keeps out of its record."""
    cut: Cut | None = None
    """Of longer arguments: how many bytes they have, and their beginning."""


class TurnEntry(_Entry, frozen=True, kw_only=True):
    """The turn that an entry is about, as it stands now."""

    id: str
    agent: str
    rounds: int
    steps: tuple[StepEntry, ...] = ()
    """What its journal holds of the rounds that came to this entry and to none before it; the turn's last
    entry has what is left. Empty where only the log was read: journals are no part of it."""
    usage: Cost
    version: str = ""
    """The agent's that ran its latest round, as that reported; empty while none has."""
    build: str = ""
    """Of what that code was built, as it reported."""
    status: str
    """`working`, `failed`, `refused`, `suspended`, `doubted` or `ended`."""


def named(by: str, sender: str | None) -> str:
    """Return who gave an order: what they call themselves, and whose credentials they had if that differs."""
    return by if sender in (None, "", by) else f"{by} ({sender})" if by else str(sender)


class TimelineEntry(_Entry, frozen=True, kw_only=True):
    """One thing that happened."""

    seq: int
    """The event's number in its request."""
    id: str
    at: int
    """UTC µs."""
    move: str
    """A move's name, or what else it was: `submit`, `turn_failed`, `retry`, `reply`, `freeze` …"""
    from_: str = msgspec.field(name="from")
    to: str | None = None
    summary: str = ""
    verdict: str
    """`admitted`, `refused` or `deferred`; `recorded` for what needs no verdict."""
    rule: str | None = None
    detail: str | None = None
    hint: str | None = None
    facts: tuple[Fact, ...] = ()
    """New or changed ones."""
    remembered: tuple[str, ...] = ()
    """Of a submit: keys of facts that are its conversation's. Of an answer: keys that it remembers now."""
    dropped: tuple[str, ...] = ()
    withheld: Withheld | None = None
    turn: TurnEntry | None = None
    sender: str | None = None
    """Of a control message: whose credentials sent it, by the broker's word. `from` is the name they gave."""


class Awaited(_Entry, frozen=True, kw_only=True):
    """What an open request waits for."""

    for_: str = msgspec.field(name="for")
    """An agent, `any-` and an intent, `human`, the client's name, or `thaw`."""
    since: int
    """UTC µs."""
    why: str
    served: bool | None = None
    """True if anybody serves the agent. None: nobody has looked; the log alone does not tell."""


class Timeline(_Entry, frozen=True, kw_only=True):
    """A whole request."""

    request: str
    status: str
    """`open`, `completed`, `refused`, `failed`, `expired` or `cancelled`."""
    policy: str
    topology: str
    client: str
    conversation: str | None = None
    """What groups it with other requests, as its submit said."""
    rerun_of: str | None = None
    """The request that this one does again, from where it failed."""
    forked_from: ForkedFrom | None = None
    """The request that this one goes on from."""
    forks: tuple[str, ...] = ()
    """Requests that go on from this one, as far as the index of requests knows them."""
    entry: str | None
    path: tuple[str, ...]
    """The stack of holders as it stands."""
    trail: tuple[str, ...]
    """Everybody who held the work, in order, as often as they did."""
    depth: int
    answer: Any = None
    error: dict[str, str] | None = None
    cost: Cost
    """What its turns reported, summed up."""
    charged: Cost
    """What counts against its budget: `cost`, and all that was left to each turn that had begun and was
    ended without ever having reported, where that is a number."""
    waiting: tuple[Awaited, ...] = ()
    moves: tuple[TimelineEntry, ...] = ()
    running: tuple[TurnEntry, ...] = ()
    """Open turns that no entry is about yet."""
    tree: tuple[TreeNode, ...] = ()
    """The root turns that delegated, with their tasks and all below them."""


def prices_in(happened: Iterable[AnyEvent]) -> dict[str, Price]:
    """Return the prices that a request began with."""
    said = (event.prices for event in happened if isinstance(event, events.RequestOpened))
    return price_list(next(said, {}))


def timeline(
    happened: Sequence[AnyEvent], journals: Mapping[str, Sequence[StepEntry]] | None = None
) -> Timeline:
    """Return the story of one request from its events, in order from the first.

    Args:
        journals: steps by journal.

    Raises ValueError without events, BrokenLog where some are missing.
    """
    if not happened:
        raise ValueError("no events, no timeline")
    ledger = Ledger()
    told: list[tuple[dict[str, Any], str | None]] = []
    trail: list[str] = []
    for event in happened:
        giver = ledger.turns.get(_giver_of(event)) if event.opens_turn else None
        before = NOTHING if giver is None else giver.carried()
        ledger.apply(event)
        if not isinstance(event, events.FactsWithheld):
            told.append((_tell(ledger, event, before), _about(ledger, event)))
        if event.opens_turn and event.work is not None:
            trail.append(event.work.handoff.to_agent)
    prices = prices_in(happened)
    settled = [TimelineEntry(**fields, turn=_turn(ledger, about, prices)) for fields, about in told]
    running = [_turn(ledger, turn_id, prices) for turn_id in ledger.open]
    reported = [turn.report.usage for turn in ledger.turns.values()]
    unpriced = any(unpriced_in(usage, prices) for usage in reported)
    cost = cost_of(budget.total(reported), prices, unpriced=unpriced)
    if journals:
        settled, running = _with_steps(settled, running, happened, journals)
    tree = trees(ledger, prices)
    heard_of = {move.turn.id for move in settled if move.turn is not None}
    segment = None if ledger.root is None else ledger.root.segment
    first = next((event for event in happened if not isinstance(event, events.FactsWithheld)), None)
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
        waiting=(*_waiting(ledger, happened), *_unclaimed(tree)),
        moves=tuple(settled),
        running=tuple(turn for turn in running if turn is not None and turn.id not in heard_of),
        tree=tree,
    )


def _forked_from(known: events.RequestOpened | Submit | None) -> ForkedFrom | None:
    """Return where a fork leaves the request before it, without what only its agents need."""
    fork = None if known is None else known.forked_from
    return None if fork is None else replace(fork, summary="", text_labels=(), journals={})


def _giver_of(event: AnyEvent) -> TurnId:
    """Return the turn whose facts the turn that an event opens begins with."""
    return event.lead if isinstance(event, events.TaskOpened) else event.turn


def _error(ended: AnyEvent | None) -> dict[str, str] | None:
    match ended:
        case events.RequestRefused(refusal=refusal):
            return {"code": str(refusal.rule), "detail": refusal.detail}
        case events.RequestFailed(code=code, reason=reason):
            return {"code": code, "detail": reason}
        case events.RequestExpired():
            return {"code": "expired", "detail": "the request's deadline passed"}
        case events.RequestCancelled(by=by, sender=sender, reason=reason):
            who = named(by, sender)
            return {"code": "cancelled", "detail": f"by {who}: {reason}" if reason else f"by {who}"}
    return None


def _waiting(ledger: Ledger, happened: Sequence[AnyEvent]) -> Iterable[Awaited]:
    if not ledger.is_open:
        return
    if ledger.frozen_at is not None:
        frozen = next(event for event in reversed(happened) if isinstance(event, events.RequestFrozen))
        why = f"{named(frozen.by, frozen.sender)} froze it" + (f": {frozen.reason}" if frozen.reason else "")
        yield Awaited(for_="thaw", since=ledger.frozen_at, why=why)
    for turn in ledger.open.values():
        if turn.state == "delegated":
            continue  # its tasks are told, each by itself
        why = {
            "working": "a person has not resolved it" if turn.agent == HUMAN else _not_done(ledger, turn),
            "failed": "the turn failed and is tried again",
            "refused": "the turn has no round left",
            "suspended": "a question waits for its reply",
            "doubted": "an effect is in doubt",
        }.get(turn.state, turn.state)
        who = {"suspended": str(turn.asked), "doubted": HUMAN}.get(turn.state, turn.agent)
        since = turn.clock if turn.state == "working" else happened[turn.since_n].at
        yield Awaited(for_=who, since=since, why=why)


def _unclaimed(tree: Iterable[TreeNode]) -> Iterable[Awaited]:
    """Yield the offers that any agent with their intent may claim."""
    for node in flat(tree):
        if node.status == "offered":
            why = f"no agent has claimed task {node.name}"
            yield Awaited(for_=intent_inbox(node.intent), since=node.began, why=why)


def _not_done(ledger: Ledger, turn: TurnState) -> str:
    if turn.task is None:
        return "its turn is not done"
    return f"its task {turn.task.name} of {ledger.turns[turn.task.lead].agent} is not done"


def _tell(ledger: Ledger, event: AnyEvent, before: Carried) -> dict[str, Any]:
    """Return the fields of an entry, but for its turn: usage and rounds are known only afterwards."""
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
    """Return the keys of the facts that an event brings."""
    match event:
        case events.RequestOpened():
            return tuple(ledger.turns[TurnId(event.id)].carried().facts)
        case events.TaskOpened(lead=lead, name=name):
            return tuple(fact.key for fact in ledger.turns[lead].tasks[name].planned.task.facts)
    return event.added


def _about(ledger: Ledger, event: AnyEvent) -> str | None:
    """Return which turn an event is about: the one it names, or opens, or ends from outside."""
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
    told: Sequence[TimelineEntry],
    running: Sequence[TurnEntry | None],
    happened: Sequence[AnyEvent],
    journals: Mapping[str, Sequence[StepEntry]],
) -> tuple[list[TimelineEntry], list[TurnEntry | None]]:
    """Return entries and open turns, each with its steps."""
    by_seq = {event.n: event for event in happened}
    left: dict[str, list[StepEntry]] = {}
    for event in happened:
        work = event.work
        if work is not None:
            known = journals.get(work.journal_id, ())
            own = sorted((step for step in known if step.round == work.round), key=lambda step: step.n)
            before = [event.at, *(step.at for step in own)]
            left.setdefault(work.turn, []).extend(
                msgspec.structs.replace(step, after=max(0, step.at - at))
                for step, at in zip(own, before, strict=False)
            )
    last = {move.turn.id: move.seq for move in told if move.turn is not None}
    found = []
    for move in told:
        if move.turn is not None:
            is_last = last[move.turn.id] == move.seq
            through = None if is_last else by_seq[move.seq].round
            turn = _with_those_through(through, move.turn, left)
            move = msgspec.structs.replace(move, turn=turn)
        found.append(move)
    return found, [turn and _with_those_through(None, turn, left) for turn in running]


def _with_those_through(round_: int | None, turn: TurnEntry, left: dict[str, list[StepEntry]]) -> TurnEntry:
    """Return a turn with its steps up to a round, or all, that are left; they are not left afterwards."""
    steps = left.pop(turn.id, [])
    left[turn.id] = [step for step in steps if round_ is not None and step.round > round_]
    own = tuple(step for step in steps if round_ is None or step.round <= round_)
    return msgspec.structs.replace(turn, steps=own)
