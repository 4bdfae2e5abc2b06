"""Work that waits for people: escalations, questions, effects in doubt. The log is the only list."""

import asyncio
import functools
import re
import time
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

import msgspec

from mesh.bus.connection import Bus
from mesh.bus.reader import batch
from mesh.errors import NotFound, UsageWrong
from mesh.ops.control import one_of
from mesh.ops.explain import explain, last_trouble, sentences
from mesh.ops.journals import step_at
from mesh.ops.log import decoded, patiently, read_each, request_bodies
from mesh.ops.roster import fleet_of
from mesh.service.printable import given
from protocol.domain import people
from protocol.domain.ledger import Ledger, fold
from protocol.domain.turns import TurnState
from protocol.views.timeline import Timeline, timeline
from protocol.wire import events
from protocol.wire.config import Fleet
from protocol.wire.events import AnyEvent
from protocol.wire.handoff import TEXT_FACT, Handoff
from protocol.wire.ids import HUMAN, NOBODY, TurnId
from protocol.wire.moves import Ask
from protocol.wire.records import Cut
from protocol.wire.subjects import inbox

_APPROVAL = re.compile(r".*? asks for approval: (?P<tool>\S+) (?P<arguments>\{.*\})", re.DOTALL)
"""The question of an approval, as `mesh.agent` writes it."""
What = Literal["escalation", "ask", "doubt"]


class Waiting(msgspec.Struct, frozen=True, kw_only=True):
    """Something that people have to decide."""

    request: str
    turn: str
    round: int
    n: int
    """Number of the event since which it waits."""
    what: What
    """`ask`: a question to people; `doubt`: an effect that may or may not have happened."""
    since: int
    """In UTC µs."""
    reason: str
    summary: str
    """The work that is wanted; for an ask the question, for a doubt the action."""
    from_agent: str
    """The agent whose turn it was, or is."""
    person: str = ""
    """The person it is assigned to, if any."""
    tier: int = 0
    """How often an escalation was raised."""
    tier_name: str = ""
    """The tier of the fleet's people that has it; empty if the fleet names none, or it was not determined."""
    client: str = ""
    text: str = ""
    """What the client wrote."""
    action: str = ""
    """The tool's name, for a doubt or an approval."""
    error: str = ""
    """What went wrong: why an effect is in doubt, or the last failure of the escalated turn."""
    attempts: int = 0
    """Number of rounds that its turn began."""
    step: str = ""
    """A doubt's step in the journal."""
    key: str = ""
    """The key of the effect in doubt."""
    schema: Any = None
    """The JSON Schema that the reply to an ask has to follow."""
    expires_at: int | None = None
    """When an ask ends without a reply (UTC µs)."""
    due: int = 0
    """When it is too late (UTC µs): the question or the request has then ended, or the doubt goes on."""
    urgent_at: int | None = None
    """From when on it is urgent (UTC µs): people have then used up most of the time that the policy gives
    them. None if it gives them none of their own."""
    urgent: bool = False
    """True if it was urgent when it was listed."""
    asked: str = ""
    """The target of an ask: `human` or the client."""
    arguments: Any = None
    """The arguments of `action` by name, if its step or the question for its approval has all of them."""
    secret: tuple[str, ...] = ()
    """Names of arguments that the tool keeps out of its step."""
    cut: Cut | None = None
    """The size in bytes and the beginning of longer arguments."""
    journal: str = ""
    """The turn under whose id the step of a doubt is stored."""

    @property
    def called(self) -> str:
        """The action with its arguments."""
        return f"{self.action} {given(self)}".rstrip()

    def is_urgent(self, now: int) -> bool:
        """Return True if people have used up most of their time at `now` (UTC µs)."""
        return self.urgent_at is not None and self.urgent_at <= now


class Queue(NamedTuple):
    """What waits for people, and which requests could not be read."""

    waiting: list[Waiting]
    unreadable: list[str]


async def queue(bus: Bus, what: What | None = None) -> Queue:
    """Return what waits for people, most urgent first, each with the tier that has it. Raises BusError.

    Args:
        what: return only this kind.
    """
    found = await _asked_people(bus)
    fleet = await people_of(bus)
    happened = await read_each(bus, found, skip_ended=True)
    now = time.time_ns() // 1000
    waiting = [
        msgspec.structs.replace(each, tier_name=fleet.tier_for(each.tier), urgent=each.is_urgent(now))
        for known in happened.values()
        for each in (waiting_in(known) if known else ())
        if what in (None, each.what)
    ]
    waiting = list(await asyncio.gather(*(_with_arguments(bus, each) for each in waiting)))
    waiting.sort(key=lambda each: (each.due, each.since))
    return Queue(waiting, sorted(request for request, known in happened.items() if known is None))


async def _asked_people(bus: Bus) -> set[str]:
    """Return every request that had something for people: events that wait for them are addressed to them."""
    found, from_seq = set[str](), 1
    while part := await patiently(bus, functools.partial(batch, bus, "LOG", inbox(HUMAN), from_seq)):
        found |= {kept.subject.rpartition(".")[2] for kept in part}
        from_seq = part[-1].seq + 1
    return found


async def _with_arguments(bus: Bus, waiting: Waiting) -> Waiting:
    """Return a doubt with the arguments from its step; anything else unchanged."""
    if waiting.what != "doubt":
        return waiting
    made = await step_at(bus, waiting.from_agent, waiting.request, waiting.journal, waiting.step)
    if made is None:
        return waiting
    arguments = waiting.arguments if made.arguments is None else made.arguments
    return msgspec.structs.replace(waiting, arguments=arguments, secret=made.secret, cut=made.cut)


async def people_of(bus: Bus) -> Fleet:
    """Return the fleet, for its tiers of people; an empty fleet if there is none yet."""
    try:
        return await patiently(bus, lambda: fleet_of(bus))
    except NotFound:
        return Fleet(name="", entry=NOBODY)


async def require_tier(bus: Bus, tier: str | None) -> None:
    """Raise UsageWrong for a tier of people that the fleet does not name."""
    if tier is not None and tier not in (tiers := (await people_of(bus)).tiers):
        named = ", ".join(tiers) or "none; say them in mesh.toml, [human] tiers"
        raise UsageWrong(f"the fleet has no tier {tier!r}; its tiers: {named}")


class WaitingAt(msgspec.Struct, frozen=True, kw_only=True):
    """What waits in one request, with everything that led to it."""

    waiting: Waiting
    handoff: Handoff
    timeline: Timeline
    others: tuple[Waiting, ...] = ()
    """Everything else that waits in the same request."""
    why: tuple[str, ...] = ()
    """The sentences of `mesh why` about the event since which it waits."""


async def waiting_at(bus: Bus, request: str, n: int | None = None) -> WaitingAt:
    """Return what waits in one request. Raises NotFound, which tells why nothing does, and Impossible.

    Args:
        n: number of the event since which it waits; None shows the oldest.
    """
    happened = decoded(await request_bodies(bus, request))
    ledger = fold(happened)
    waiting = sorted(waiting_in(happened, bus.name), key=lambda each: each.n)
    if not waiting:
        turn_in(ledger, "escalation", bus.name)  # it raises an error that tells why
    shown = waiting[0]
    if n is not None:
        shown = one_of(request, {each.n: (each, _in_words(each)) for each in waiting}, n)
    others = tuple(each for each in waiting if each is not shown)
    shown = await _with_arguments(bus, shown)
    turn = ledger.turns[TurnId(shown.turn)]
    return WaitingAt(
        waiting=shown,
        handoff=turn.work.handoff,
        timeline=timeline(happened),
        others=others,
        why=tuple(sentences(explain(happened, shown.n))),
    )


def _in_words(waiting: Waiting) -> str:
    return f"{waiting.from_agent}: {waiting.summary}"


def waiting_in(happened: Sequence[AnyEvent], own: str = "") -> list[Waiting]:
    """Return what waits for people in one request, given its events from the first on.

    Args:
        own: the name of the reader; a question to a client is only for that client.
    """
    ledger = fold(happened)
    return [
        _waiting(ledger, turn, what, happened) for turn in ledger.open.values() if (what := _what(turn, own))
    ]


def is_for_people(ledger: Ledger) -> bool:
    """Return True if people have to act on a request."""
    return any(_what(turn) for turn in ledger.open.values())


def _what(turn: TurnState, own: str = "") -> What | None:
    """Return what people, or `own` as a client, have to do about a turn; None if nothing."""
    if turn.agent == HUMAN:
        return "escalation"
    if turn.state == "suspended" and turn.asked in (HUMAN, own):
        return "ask"
    return "doubt" if turn.state == "doubted" else None


def _waiting(ledger: Ledger, turn: TurnState, what: What, happened: Sequence[AnyEvent]) -> Waiting:
    handoff, began, limit = turn.work.handoff, happened[turn.since_n], people.ends_at(ledger, turn)
    texts = (fact.value for fact in handoff.facts if fact.key == TEXT_FACT)
    waiting = Waiting(
        request=str(ledger.request),
        turn=turn.id,
        round=turn.round,
        n=began.n,
        what=what,
        since=began.at,
        reason="asked",
        summary=handoff.summary,
        from_agent=turn.agent,
        client=str(ledger.client or ""),
        due=people.expires_at(ledger) or 0,
        urgent_at=None if limit is None else people.urgent_at(turn, limit),
        text=str(next(texts, "")),
    )
    match began:
        case events.TurnSuspended(ask=ask, expires_at=expires_at):
            own = {"summary": ask.question, "schema": ask.schema, "expires_at": expires_at}
            own |= {"due": min(expires_at, waiting.due or expires_at)}
            own |= {"asked": ask.to_agent, "action": ask.action}
            own |= {"arguments": _arguments(ask)}
        case events.EffectDoubted(effect=effect):
            own = {
                "due": min(limit or waiting.due, waiting.due),
                "reason": "in doubt",
                "summary": f"{effect.action} may or may not have happened",
            }
            own |= {"action": effect.action, "step": effect.step, "key": effect.key}
            own |= {"journal": turn.work.journal_id}
            own |= {"error": effect.message, "attempts": turn.round + 1}
            asked = [event.ask for event in happened if isinstance(event, events.TurnSuspended)]
            own |= {"arguments": next((_arguments(ask) for ask in asked if ask.digest == effect.key), None)}
        case _:  # the turn that it ended may be another agent's, if it was raised again since
            ended = None if turn.instead_of is None else ledger.turns.get(turn.instead_of)
            own = {"tier": turn.tier, "person": turn.person}
            own |= {"from_agent": handoff.from_agent if ended is None else ended.agent}
            own |= {"reason": (ended.reason if ended is not None else "") or "asked"}
            if ended is not None:
                own |= {"error": last_trouble(ended, happened), "attempts": ended.round + 1}
    return msgspec.structs.replace(waiting, **own)


def _arguments(ask: Ask) -> Any:
    """Return the arguments of the effect that a question is about; None if it shows none, or not all."""
    asked = _APPROVAL.fullmatch(ask.question) if ask.action else None
    try:
        return None if asked is None else msgspec.json.decode(asked["arguments"])
    except (msgspec.DecodeError, RecursionError):
        return None


_DECISIONS: Mapping[What, tuple[str, str]] = {
    "escalation": ("no escalation in it waits for people", "mesh human resolve"),
    "ask": ("nothing in it waits for a person's reply", "mesh human reply"),
    "doubt": ("no effect in it is in doubt", "mesh doubt settle"),
}
"""By kind: the text if a request waits for something else, and the command that decides it."""


def turn_in(ledger: Ledger, what: What, own: str = "", n: int | None = None) -> TurnState:
    """Return the open turn that waits for this. Raises NotFound, which tells what it waits for.

    Args:
        own: the name of the reader, who may be the client that was asked.
        n: number of the event since which it waited when the reader looked. Raises Impossible if no turn
            waits since that event now: the decision may no longer fit. None means the only one; raises
            UsageWrong if there are several.
    """
    waiting = [(found, turn) for turn in ledger.open.values() if (found := _what(turn, own)) is not None]
    wanted = {
        turn.since_n: (turn, f"{turn.agent}: {turn.summary if turn.ask is None else turn.ask.question}")
        for found, turn in waiting
        if found == what
    }
    if wanted:
        return one_of(str(ledger.request), wanted, n)
    request, otherwise = ledger.request, _DECISIONS[what][0]
    if waiting:
        command = _DECISIONS[waiting[0][0]][1]
        raise NotFound(f"{request}: {otherwise}; it waits for this: {command} {request}")
    if client := client_asked(ledger):
        command = reply_command(str(request), options=f" --as {client}")
        raise NotFound(f"{request}: {otherwise}; it waits for a reply under {client}'s own key: {command}")
    if ledger.is_open:
        raise NotFound(f"{request} is open, but {otherwise}")
    raise NotFound(f"{request} has ended: {ledger.status}")


def client_asked(ledger: Ledger) -> str:
    """Return the client whose reply an open turn waits for; empty if there is none."""
    waits = (turn for turn in ledger.open.values() if turn.state == "suspended" and turn.asked != HUMAN)
    return next((str(turn.asked) for turn in waits), "")


def event_option(n: int | None) -> str:
    """Return the option that names the event since which a decision waits; empty for None."""
    return "" if n is None else f" --event {n}"


def reply_command(request: str, schema: Any = None, options: str = "", *, n: int | None = None) -> str:
    """Return the command that replies to a question: with text, unless its JSON Schema excludes text.

    For a yes or no, as an approval needs, it suggests a yes.

    Args:
        n: number of the event that asked, if other questions wait beside it.
    """
    kind = schema.get("type", "string") if isinstance(schema, Mapping) else "string"
    text = kind == "string" or (isinstance(kind, list) and "string" in kind)
    value = "true" if kind == "boolean" else "'…'"
    return f"mesh human reply {request} {value}{'' if text else ' --json-value'}{event_option(n)}{options}"
