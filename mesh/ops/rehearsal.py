"""A rehearsal: sample requests go through a running fleet, and each result is compared with its sample.

A viewer reads outcome, path, refusals and answer from the log. Agents are not asked about them.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec

from mesh.bus.connection import Bus
from mesh.client import Client
from mesh.errors import UsageWrong
from mesh.ops.decisions import resolve
from mesh.ops.journals import journals_of
from mesh.ops.log import decoded, documented
from mesh.ops.requests import story_so_far
from mesh.service.printable import as_text
from protocol.views.timeline import StepEntry, Timeline, timeline
from protocol.wire import codec, events
from protocol.wire.handoff import Fact
from protocol.wire.ids import HUMAN

OnMore = Callable[[Sequence[bytes]], None]

AT_ONCE = 8
"""Requests that are under way at the same time."""


class Expected(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The expected result of a request."""

    status: Literal["completed", "escalated", "failed"]
    path: tuple[str, ...] = ()
    """Agents that held it, in order, hand-backs included."""
    answer_has: tuple[str, ...] = ()
    """Texts that the answer contains, in any case."""
    refused: tuple[str, ...] = ()
    """Rules that refused something on the way."""


class Decision(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A person's answer to a request that came to them."""

    by: str
    answer: str


class Sample(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One line of a file of sample requests."""

    id_hint: str
    text: str
    kind: str
    """`ruled`: a rule was written for it. Others show what happens without a rule."""
    expect: Expected
    about: str = ""
    facts: tuple[Fact, ...] = ()
    story: str = ""
    """A title, if the request is worth showing event by event."""
    decision: Decision | None = None
    """A person's decision in a rehearsed story."""


RULED = "ruled"


class Played(msgspec.Struct, frozen=True, kw_only=True):
    """One sample and its result."""

    sample: Sample
    told: Timeline | None
    """None if it was not even accepted."""
    bodies: tuple[bytes, ...]
    outcome: str
    """`completed`, `failed` …; `escalated`: open in the human queue; `unfinished`."""
    path: tuple[str, ...]
    refused: tuple[str, ...]
    wrong: tuple[str, ...]
    """Each difference from what was expected, with both values; empty if there is none."""

    @property
    def verdict(self) -> str:
        if self.outcome == UNFINISHED:
            return "unfinished"
        return "wrong" if self.wrong else "right"


UNFINISHED = "unfinished"


def read_samples(path: Path) -> list[Sample]:
    """Return the samples in a file, one per line. Raises UsageWrong with the line's number."""
    samples = []
    try:
        for number, line in enumerate(path.read_bytes().splitlines(), start=1):  # noqa: B007 - for the error
            if line.strip():
                samples.append(msgspec.json.decode(line, type=Sample))
    except OSError as missing:
        raise UsageWrong(f"{path}: {missing.strerror}") from missing
    except msgspec.MsgspecError as wrong:
        raise UsageWrong(f"{path}, line {number}: {wrong}") from wrong
    return samples


async def play(
    client_bus: Bus,
    viewer_bus: Bus,
    samples: Sequence[Sample],
    *,
    within_s: float,
    broken: asyncio.Event,
    on_more: OnMore = lambda bodies: None,
) -> AsyncIterator[Played]:
    """Submit the samples, a few at a time, and yield each result in the samples' order.

    Args:
        within_s: a request that has not come to rest this long after its submit (s) is unfinished.
        broken: set when waiting is pointless: then requests that have not come to rest are unfinished, too.
        on_more: called with all events of a request so far, whenever there are more.
    """
    given_up = asyncio.create_task(broken.wait())
    room = asyncio.Semaphore(AT_ONCE)
    sender = await Client.on(client_bus, client_bus.name)

    async def one(sample: Sample) -> Played:
        async with room:
            request = await sender.submit(sample.text, facts=sample.facts)
            bodies = await brought_to_rest(
                viewer_bus, request, within_s=within_s, given_up=given_up, on_more=on_more
            )
            happened = decoded(bodies)
            return judged(sample, bodies, (await journals_of(viewer_bus, happened)).steps if happened else {})

    playing = [asyncio.create_task(one(sample)) for sample in samples]
    try:
        for task in playing:
            yield await task
    finally:
        for pending in (*playing, given_up):
            pending.cancel()
        await asyncio.gather(*playing, given_up, return_exceptions=True)


async def decide(
    operator_bus: Bus, viewer_bus: Bus, request: str, decision: Decision, on_more: OnMore
) -> None:
    """Let a person answer a request that came to them, and report its events until it has ended."""
    await resolve(operator_bus, request, by=decision.by, answer=decision.answer)
    async for known in story_so_far(viewer_bus, request):
        on_more(known)


async def brought_to_rest(
    bus: Bus,
    request: str,
    *,
    within_s: float,
    given_up: asyncio.Task[Any],
    on_more: OnMore = lambda bodies: None,
) -> list[bytes]:
    """Return a request's events once nothing moves any more, or as far as they came by then.

    Args:
        within_s: how long to wait (s).
        given_up: ends when waiting is pointless.
        on_more: as for `play`.

    Raises Impossible, BusError.
    """
    bodies: list[bytes] = []
    resting = asyncio.create_task(_at_rest(bus, request, bodies, on_more))
    try:
        await asyncio.wait((resting, given_up), timeout=within_s, return_when=asyncio.FIRST_COMPLETED)
        if resting.done():
            resting.result()
    finally:
        resting.cancel()
    return bodies


async def _at_rest(bus: Bus, request: str, bodies: list[bytes], on_more: OnMore) -> None:
    """Collect a request's events in `bodies` as they come, until nothing moves any more."""
    async for known in story_so_far(bus, request):
        bodies[:] = known
        on_more(known)
        if isinstance(codec.decode_event(bodies[-1]), events.EscalationRaised | events.TurnSuspended):
            return  # until a person does something


def judged(
    sample: Sample, bodies: Sequence[bytes], journals: Mapping[str, Sequence[StepEntry]] | None = None
) -> Played:
    """Compare the result of a sample with what was expected.

    Args:
        journals: steps by journal, which are shown with it.
    """
    happened = decoded(bodies)
    told = timeline(happened, journals) if happened else None
    outcome, answer, path, refused = UNFINISHED, "", tuple[str, ...](), tuple[str, ...]()
    if told is not None:
        for_people = any(waiting.for_ == HUMAN for waiting in told.waiting)
        outcome = told.status if told.status != "open" else "escalated" if for_people else UNFINISHED
        path = tuple(name for name in told.trail if name != HUMAN)
        refused = tuple(move.rule for move in told.moves if move.rule is not None)
        answer = "" if told.answer is None else as_text(told.answer)
    wrong, expect = [], sample.expect
    if outcome != expect.status:
        wrong.append(f"expected {expect.status}, came out {outcome}")
    if expect.path and path != expect.path:
        wrong.append(f"expected path {' → '.join(expect.path)}, was {' → '.join(path) or 'empty'}")
    if lacking := sorted(set(expect.refused) - set(refused)):
        wrong.append(f"expected a refusal by {', '.join(lacking)}, had {', '.join(refused) or 'none'}")
    missing = [text for text in expect.answer_has if text.casefold() not in answer.casefold()]
    if missing and outcome == expect.status:
        wrong.append(f"expected an answer with {', '.join(map(repr, missing))}, was {answer!r}")
    return Played(
        sample=sample,
        told=told,
        bodies=tuple(bodies),
        outcome=outcome,
        path=path,
        refused=refused,
        wrong=tuple(wrong),
    )


# --- all of them ----------------------------------------------------------------------------------


def as_program_reads(played: Played) -> dict[str, Any]:
    """Return one request of `mesh demo --json`: the documented form of a request, and the sample's."""
    told = {} if played.told is None else documented(played.told, played.bodies)
    return told | {
        "id_hint": played.sample.id_hint,
        "kind": played.sample.kind,
        "about": played.sample.about,
        "expect": msgspec.to_builtins(played.sample.expect),
        "outcome": played.outcome,
        "verdict": played.verdict,
        "wrong": list(played.wrong),
    }


def summary(all_played: Sequence[Played]) -> dict[str, Any]:
    """Return the counts: by kind, by outcome, refusals by rule, handoffs, tasks."""
    kinds: dict[str, Counter[str]] = {}
    for played in all_played:
        kinds.setdefault(played.sample.kind, Counter()).update([played.verdict, "requests"])
    verdicts = Counter(played.verdict for played in all_played)
    moves = [move for played in all_played if played.told is not None for move in played.told.moves]
    return {
        "requests": len(all_played),
        "right": verdicts["right"],
        "wrong": verdicts["wrong"],
        "unfinished": verdicts["unfinished"],
        "handoffs": sum(
            move.verdict == "admitted" and move.move in ("transfer", "hand_back") for move in moves
        ),
        "tasks": sum(move.move == "task" for move in moves),
        "by_kind": {
            kind: {name: count[name] for name in ("requests", "right", "wrong", "unfinished")}
            for kind, count in kinds.items()
        },
        "by_outcome": dict(Counter(played.outcome for played in all_played)),
        "refusals": dict(Counter(rule for played in all_played for rule in played.refused)),
    }


def is_sound(all_played: Sequence[Played]) -> bool:
    """Return True if everything came to rest, and every sample with a rule came out right."""
    return all(
        played.outcome != UNFINISHED and (played.sample.kind != RULED or not played.wrong)
        for played in all_played
    )
