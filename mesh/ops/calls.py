"""What each turn of a request called, whole: prompts, replies, arguments, results, times, failures.

It comes from the journals, which only people's keys can read, and shows what they hold. Arguments that a tool
keeps secret are not in them. Of a model's prompt the fixed part was kept; brief and transcript are known by
their digests, and `mesh agent prompt` makes them again from the agent's own code.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from mesh.bus.connection import Bus
from mesh.bus.reader import get
from mesh.bus.stores import JournaledStep, journaled
from mesh.ops.journals import owners_of
from mesh.service.printable import Line, as_json_text, as_text, clock, counted, given, one_line, short
from protocol.views.spending import Cost, cost_of
from protocol.views.timeline import prices_in
from protocol.wire import codec, subjects
from protocol.wire.commands import Failure
from protocol.wire.events import AnyEvent, TurnFailed
from protocol.wire.ids import HUMAN, is_token
from protocol.wire.prices import Price
from protocol.wire.records import DONE, FENCE, Cut, PromptParts, Refused, place_of

SHOWN = ("model", "call", "effect", "intent")
"""Kinds of steps that are calls; the others are of the code itself."""
_MOST_CHARS = 2_000
"""Of one value on a terminal; JSON has the whole."""


class CallEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One call of a model or a tool."""

    place: str
    """`<round>-<n>`."""
    kind: str
    """`model`, `call`, `effect`; `intent`: an effect without a result."""
    name: str
    at: int
    """UTC µs when its result was journaled."""
    took: int
    """µs since its intent; of all but effects, since the step before it or the beginning of the round."""
    attempt: int
    """How often the turn had called this with the same arguments, this time included."""
    arguments: Any = None
    secret: tuple[str, ...] = ()
    """Names of arguments that the tool keeps out of its record."""
    cut: Cut | None = None
    result: Any = None
    """Of a model its reply; None while there is none."""
    error: Refused | None = None
    usage: Cost | None = None
    prompt: PromptParts | None = None
    fixed: Any = None
    """The fixed part of the prompt: instructions, tools, parameters; None if it was not kept."""


class RoundEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One round of a turn, with what it called."""

    agent: str
    turn: str
    round: int
    n: int
    """Number of the event that gave it."""
    at: int
    """UTC µs of that event."""
    version: str
    """The agent's that journaled its first call; empty if there is none."""
    summary: str
    """What it was asked for."""
    calls: tuple[CallEntry, ...] = ()
    failure: Failure | None = None
    """Why it broke."""
    again_at: int | None = None
    """UTC µs of its next try; None: it did not break, or a person gets the work."""


async def calls_of(bus: Bus, happened: Sequence[AnyEvent]) -> tuple[RoundEntry, ...]:
    """Return the rounds of the request whose events these are, from the first on. Raises BusError."""
    whose = owners_of(happened)
    steps = await journaled(bus, happened[0].request, whose.values(), passed_over=set())
    sound = [step for step in steps if step.agent == whose.get(step.journal)]
    wanted = {
        (step.agent, step.record.prompt.fixed)
        for step in sound
        if step.record.prompt is not None and is_token(step.record.prompt.fixed)
    }
    fixed: dict[tuple[str, str], Any] = {}
    for agent, digest in sorted(wanted):
        stored = await get(bus, "PROMPTS", subjects.prompt(agent, digest))
        if stored is not None:
            fixed[agent, digest] = codec.readable(stored.data, dict[str, Any])
    return tuple(_rounds(happened, sound, fixed))


def _rounds(
    happened: Sequence[AnyEvent], steps: Sequence[JournaledStep], fixed: dict[tuple[str, str], Any]
) -> Iterator[RoundEntry]:
    failed = {(event.turn, event.round): event for event in happened if isinstance(event, TurnFailed)}
    prices, before = prices_in(happened), Counter[tuple[str, str, str]]()
    for event in happened:
        work = event.work
        if work is None or event.to == HUMAN or event.to != work.handoff.to_agent:
            continue
        own = [step for step in steps if step.journal == work.journal_id and step.round == work.round]
        broke = failed.get((work.turn, work.round))
        yield RoundEntry(
            agent=event.to,
            turn=work.turn,
            round=work.round,
            n=event.n,
            at=event.at,
            version=next((step.record.version for step in own), ""),
            summary=work.handoff.summary,
            calls=tuple(_calls(own, event.at, prices, before, fixed)),
            failure=None if broke is None else broke.error,
            again_at=None if broke is None else broke.retry_at,
        )


def _calls(
    steps: Sequence[JournaledStep],
    began: int,
    prices: dict[str, Price],
    before: Counter[tuple[str, str, str]],
    fixed: dict[tuple[str, str], Any],
) -> Iterator[CallEntry]:
    """Yield the calls of a round, an effect once."""
    records = {step.name: step.record for step in steps if step.record.kind != FENCE}
    for step in steps:
        record = step.record
        if step.name not in records or f"{step.name}{DONE}" in records:
            continue
        intent = records.get(step.name.removesuffix(DONE)) if step.name.endswith(DONE) else None
        since, began = (began if intent is None else intent.at), record.at
        if record.kind not in SHOWN:
            continue
        same = (step.journal, record.name, record.digest)
        before[same] += record.kind != "model"
        yield CallEntry(
            place=f"{step.round}-{place_of(step.name)}",
            kind=record.kind,
            name=record.name,
            at=record.at,
            took=max(0, record.at - since),
            attempt=max(1, before[same]),
            arguments=record.arguments,
            secret=record.secret,
            cut=record.cut,
            result=record.value,
            error=record.error,
            usage=None if record.usage is None else cost_of(record.usage, prices),
            prompt=record.prompt,
            fixed=None if record.prompt is None else fixed.get((step.agent, record.prompt.fixed)),
        )


# --- in words -------------------------------------------------------------------------------------


def in_words(request: str, rounds: Sequence[RoundEntry]) -> Iterator[Line]:
    """Yield the rounds of a request, a line each and what they called beneath."""
    kept = set[str]()
    """Fixed parts that are shown already: most calls of an agent have the same."""
    for each in rounds:
        code = f", version {one_line(each.version)}" if each.version not in ("", "0") else ""
        yield Line(
            (f"{each.n:>3}  {clock(each.at)}  ", "dim"),
            (one_line(each.agent), "bold"),
            f"  round {each.round}{code}: {short(each.summary, 160)}",
        )
        for call in each.calls:
            yield from _call_in_words(call, each.agent, request, kept)
        if each.failure is not None:
            then = (
                "a person gets the work"
                if each.again_at is None
                else f"tried again at {clock(each.again_at)}"
            )
            said = f": {one_line(each.failure.message)}" if each.failure.message else ""
            yield Line(("     failed ", "red"), f"{one_line(each.failure.code)}{said}; {then}")


def _call_in_words(call: CallEntry, agent: str, request: str, kept: set[str]) -> Iterator[Line]:
    kind = "effect" if call.kind == "intent" else call.kind
    again = f"  attempt {call.attempt}" if call.attempt > 1 else ""
    spent = "" if call.usage is None else f"  {counted(call.usage.tokens, 'token')}"
    head = f"     {call.place:<5} {clock(call.at)}  {call.took / 1e6:>8.3f} s  "
    yield Line((head, "dim"), (f"{kind} {one_line(call.name)}", "cyan"), f"{again}{spent}")
    if call.prompt is not None:
        yield from _prompt_in_words(call, agent, request, kept)
    if called_with := given(call):
        yield _value("arguments", called_with)
    if call.error is not None:
        yield _value("error", f"{call.error.type or call.error.code}: {call.error.message}")
    elif call.kind == "intent":
        yield _value("result", "none yet: it runs, or it is in doubt")
    elif call.kind == "model":
        yield from _reply_in_words(call.result)
    else:
        yield _value("result", as_text(call.result))


def _prompt_in_words(call: CallEntry, agent: str, request: str, kept: set[str]) -> Iterator[Line]:
    assert call.prompt is not None
    fixed = call.prompt.fixed
    if fixed in kept:
        yield _value("prompt", f"the fixed part {short(fixed, 12)} as above")
    elif call.fixed is None:
        yield _value("prompt", f"its fixed part {short(fixed, 12)} was not kept")
    else:
        kept.add(fixed)
        yield _value("prompt", f"fixed part {short(fixed, 12)}: {as_json_text(call.fixed)}")
    whole = f"mesh agent prompt {agent} --request {request}"
    yield _value("brief", f"{short(call.prompt.brief, 12)}; with the transcript: {whole}")


def _reply_in_words(reply: Any) -> Iterator[Line]:
    """Yield what a model replied: its text, and what it called."""
    if not isinstance(reply, dict):
        yield _value("reply", as_text(reply))
        return
    if reply.get("text"):
        yield _value("reply", str(reply["text"]))
    for call in reply.get("calls") or ():
        if isinstance(call, dict):
            yield _value("calls", f"{call.get('name', '?')} {as_json_text(call.get('arguments'))}")
    if reply.get("id"):
        yield _value("vendor's id", str(reply["id"]))


def _value(label: str, text: str) -> Line:
    """Return a line beneath a call; what strangers wrote stays within its line."""
    return Line((f"           {label}: ", "dim"), short(one_line(text), _MOST_CHARS))
