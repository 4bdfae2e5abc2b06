"""What each turn of a request called, in full: prompts, replies, arguments, results, times, failures.

It comes from the journals, which only people's keys can read, and shows what they hold. They do not hold
arguments that a tool keeps secret. Of a model's prompt the fixed part is kept. Brief and transcript are known
by their digests, and `mesh agent prompt` rebuilds them from the agent's own code.
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
"""Kinds of steps that are calls; the others belong to the code itself."""
_MOST_CHARS = 2_000
"""Limit of one value on a terminal; JSON has all of it."""


class CallEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One call of a model or a tool."""

    place: str
    """`<round>-<n>`."""
    kind: str
    """`model`, `call`, `effect`; `intent`: an effect without a result."""
    name: str
    at: int
    """When its result was journaled (UTC µs)."""
    took: int
    """Time since its intent (µs); for all but effects, since the step before or the round's beginning."""
    attempt: int
    """How often the turn had called this with the same arguments, including this time."""
    arguments: Any = None
    secret: tuple[str, ...] = ()
    """Names of arguments that the tool keeps out of its record."""
    cut: Cut | None = None
    result: Any = None
    """A model's reply, or a tool's result; None while there is none."""
    error: Refused | None = None
    usage: Cost | None = None
    prompt: PromptParts | None = None
    fixed: Any = None
    """The fixed part of the prompt: instructions, tools, parameters; None if it was not kept.

    Instructions that the agent's code made for the round are from the journal.
    """


class RoundEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One round of a turn, with its calls."""

    agent: str
    turn: str
    round: int
    n: int
    """Number of the event that gave it."""
    at: int
    """Time of that event (UTC µs)."""
    version: str
    """Version of the agent that journaled its first call; empty if there is none."""
    summary: str
    """What it was asked to do."""
    calls: tuple[CallEntry, ...] = ()
    failure: Failure | None = None
    """Why it failed."""
    again_at: int | None = None
    """When it is tried again (UTC µs); None if it did not fail, or a person gets the work."""


async def calls_of(bus: Bus, happened: Sequence[AnyEvent]) -> tuple[RoundEntry, ...]:
    """Return the rounds of a request, given its events from the first on. Raises BusError."""
    owners = owners_of(happened)
    steps = await journaled(bus, happened[0].request, owners.values(), passed_over=set())
    genuine = [step for step in steps if step.agent == owners.get(step.journal)]
    wanted = {
        (step.agent, step.record.prompt.fixed)
        for step in genuine
        if step.record.prompt is not None and is_token(step.record.prompt.fixed)
    }
    fixed: dict[tuple[str, str], Any] = {}
    for agent, digest in sorted(wanted):
        stored = await get(bus, "PROMPTS", subjects.prompt(agent, digest))
        if stored is not None:
            fixed[agent, digest] = codec.readable(stored.data, dict[str, Any])
    return tuple(_rounds(happened, genuine, fixed))


def _rounds(
    happened: Sequence[AnyEvent], steps: Sequence[JournaledStep], fixed: dict[tuple[str, str], Any]
) -> Iterator[RoundEntry]:
    failed = {(event.turn, event.round): event for event in happened if isinstance(event, TurnFailed)}
    made: dict[str, str] = {}
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
            calls=tuple(_calls(own, event.at, prices, before, fixed, made)),
            failure=None if broke is None else broke.error,
            again_at=None if broke is None else broke.retry_at,
        )


def _calls(
    steps: Sequence[JournaledStep],
    began: int,
    prices: dict[str, Price],
    before: Counter[tuple[str, str, str]],
    fixed: dict[tuple[str, str], Any],
    made: dict[str, str],
) -> Iterator[CallEntry]:
    """Yield the calls of a round, each effect once.

    Args:
        made: gets and has, by journal, the newest instructions that code made.
    """
    records = {step.name: step.record for step in steps if step.record.kind != FENCE}
    for step in steps:
        record = step.record
        if step.name not in records or f"{step.name}{DONE}" in records:
            continue
        intent = records.get(step.name.removesuffix(DONE)) if step.name.endswith(DONE) else None
        since, began = (began if intent is None else intent.at), record.at
        if record.kind == "context" and isinstance(record.value, dict) and "instructions" in record.value:
            made[step.journal] = str(record.value["instructions"])
        if record.kind not in SHOWN:
            continue
        kept = None if record.prompt is None else fixed.get((step.agent, record.prompt.fixed))
        if kept is not None and "instructions" not in kept and step.journal in made:
            kept = {"instructions": made[step.journal], **kept}
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
            fixed=kept,
        )


# --- in words -------------------------------------------------------------------------------------


def in_words(request: str, rounds: Sequence[RoundEntry]) -> Iterator[Line]:
    """Yield the rounds of a request, one line each, with their calls below."""
    kept = set[tuple[str, str]]()
    """Fixed parts that were already shown: most calls of an agent have the same."""
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
            message = f": {one_line(each.failure.message)}" if each.failure.message else ""
            yield Line(("     failed ", "red"), f"{one_line(each.failure.code)}{message}; {then}")


def _call_in_words(call: CallEntry, agent: str, request: str, kept: set[tuple[str, str]]) -> Iterator[Line]:
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


def _prompt_in_words(call: CallEntry, agent: str, request: str, kept: set[tuple[str, str]]) -> Iterator[Line]:
    assert call.prompt is not None
    fixed = call.prompt.fixed
    same = (fixed, str((call.fixed or {}).get("instructions")))
    if same in kept:
        yield _value("prompt", f"the fixed part {short(fixed, 12)} as above")
    elif call.fixed is None:
        yield _value("prompt", f"its fixed part {short(fixed, 12)} was not kept")
    else:
        kept.add(same)
        yield _value("prompt", f"fixed part {short(fixed, 12)}: {as_json_text(call.fixed)}")
    whole = f"mesh agent prompt {agent} --request {request}"
    yield _value("brief", f"{short(call.prompt.brief, 12)}; with the transcript: {whole}")


def _reply_in_words(reply: Any) -> Iterator[Line]:
    """Yield a model's reply: its text, and its calls."""
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
    """Return a line below a call; foreign text stays within its line."""
    return Line((f"           {label}: ", "dim"), short(one_line(text), _MOST_CHARS))
