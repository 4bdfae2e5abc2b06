"""Evals: requests go through a running fleet, and what comes of each is compared with what should.

A viewer reads outcome, agents, refusals, cost and answer from the log, as a rehearsal does. What a run found
is kept beside its file, for the next run to be compared with.
"""

import asyncio
import time
from collections import Counter
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec

from mesh.bus.connection import Bus
from mesh.client import Client
from mesh.errors import UsageWrong
from mesh.ops.eval_file import EvalCase, EvalExpected, is_part
from mesh.ops.log import decoded
from mesh.ops.rehearsal import UNFINISHED, brought_to_rest
from mesh.service.printable import as_text, short
from protocol.views.spending import Cost
from protocol.views.timeline import Timeline, timeline
from protocol.wire.events import AnyEvent, HandoffAdmitted
from protocol.wire.guardrails import compiled
from protocol.wire.ids import HUMAN

EvalVerdict = Literal["right", "wrong", "flaky", "unfinished"]
_ANSWER_CHARS = 200
NO_COST = Cost(nano_dollars=0, tokens=0, model_calls=0)


class EvalAttempt(msgspec.Struct, frozen=True, kw_only=True):
    """One request that was sent, and what came of it."""

    name: str
    request: str
    outcome: str
    wrong: tuple[str, ...]
    """Each difference from what was expected, with both values."""
    agents: tuple[str, ...] = ()
    """Those that held it or one of its tasks, by name."""
    refused: tuple[str, ...] = ()
    hops: int = 0
    cost: Cost = NO_COST
    took_s: float = 0.0
    """From its first event to its newest."""

    @property
    def verdict(self) -> EvalVerdict:
        if self.outcome == UNFINISHED:
            return "unfinished"
        return "wrong" if self.wrong else "right"


class EvalKept(msgspec.Struct, frozen=True, kw_only=True):
    """What is kept of one request of a run, summed up over its attempts."""

    verdict: EvalVerdict
    right: int
    attempts: int
    nano_dollars: int
    tokens: int
    model_calls: int


class EvalRun(msgspec.Struct, frozen=True, kw_only=True):
    """What is kept of a run, by the names of its requests."""

    at: int
    """UTC µs at which it ended."""
    requests: Mapping[str, EvalKept]

    @property
    def nano_dollars(self) -> int:
        return sum(each.nano_dollars for each in self.requests.values())

    @property
    def verdicts(self) -> Counter[EvalVerdict]:
        return Counter(each.verdict for each in self.requests.values())


# --- sending ------------------------------------------------------------------------------------------


async def attempts(
    client_bus: Bus,
    viewer_bus: Bus,
    cases: Sequence[EvalCase],
    *,
    repeat: int,
    jobs: int,
    within_s: float,
    broken: asyncio.Event,
) -> AsyncGenerator[EvalAttempt, None]:
    """Send each request so many times, and yield what came of each as soon as it is known.

    Args:
        jobs: requests that are under way at the same time.
        within_s: one that has not come to rest this long after its submit (s) is unfinished.
        broken: set when waiting is pointless.

    Raises BusError.
    """
    given_up = asyncio.create_task(broken.wait())
    room = asyncio.Semaphore(jobs)
    sender = await Client.on(client_bus, client_bus.name)

    async def one(case: EvalCase) -> EvalAttempt:
        async with room:
            request = await sender.submit_whole(case.submit)
            return judged(
                case,
                request,
                await brought_to_rest(viewer_bus, request, within_s=within_s, given_up=given_up),
            )

    sending = [asyncio.create_task(one(case)) for _ in range(repeat) for case in cases]
    try:
        for done in asyncio.as_completed(sending):
            yield await done
    finally:
        for task in (*sending, given_up):
            task.cancel()
        await asyncio.gather(*sending, given_up, return_exceptions=True)


# --- comparing ----------------------------------------------------------------------------------------


def judged(case: EvalCase, request: str, bodies: Sequence[bytes]) -> EvalAttempt:
    """Compare what came of a request with what should have.

    Args:
        bodies: its events; none if no guard decided it.
    """
    happened = decoded(bodies)
    if not happened:
        reason = "no guard decided it: see mesh doctor, and mesh dead ls"
        return EvalAttempt(name=case.name, request=request, outcome=UNFINISHED, wrong=(reason,))
    told = timeline(happened)
    opened = (str(event.to) for event in happened if event.opens_turn)
    attempt = EvalAttempt(
        name=case.name,
        request=request,
        outcome=_outcome(told),
        wrong=(),
        agents=tuple(sorted(set(opened) - {HUMAN})),
        refused=_refused(happened),
        hops=sum(isinstance(event, HandoffAdmitted) for event in happened),
        cost=told.cost,
        took_s=(happened[-1].at - happened[0].at) / 1e6,
    )
    return msgspec.structs.replace(attempt, wrong=tuple(_differences(case.expect, attempt, told)))


def _outcome(told: Timeline) -> str:
    if told.status != "open":
        return told.status
    waits = {waiting.for_ for waiting in told.waiting}
    return "escalated" if HUMAN in waits else "asked" if told.client in waits else UNFINISHED


def _refused(happened: Sequence[AnyEvent]) -> tuple[str, ...]:
    refusals = (event.refusal for event in happened)
    return tuple(str(refusal.rule) for refusal in refusals if refusal is not None)


def _differences(expect: EvalExpected, got: EvalAttempt, told: Timeline) -> Iterator[str]:
    if got.outcome != expect.status:
        why = "" if told.error is None else f" ({short(told.error['detail'], _ANSWER_CHARS)})"
        yield f"expected {expect.status}, came out {got.outcome}{why}"
    else:
        yield from _of_answer(expect, told.answer)
    if lacking := sorted({*expect.agents} - {*got.agents}):
        yield f"expected {', '.join(lacking)} to have it, was with {', '.join(got.agents) or 'nobody'}"
    if met := sorted({*expect.forbidden_agents} & {*got.agents}):
        yield f"expected it not to be with {', '.join(met)}"
    if lacking := sorted({*map(str, expect.refused)} - {*got.refused}):
        yield f"expected a refusal by {', '.join(lacking)}, had {', '.join(got.refused) or 'none'}"
    cost = got.cost
    if expect.max_dollars is not None and cost.unpriced:
        yield f"expected at most {expect.max_dollars:g} dollars, and a model has no price"
    limits = (
        (expect.max_dollars, cost.nano_dollars / 1e9, "dollars"),
        (expect.max_tokens, cost.tokens, "tokens"),
        (expect.max_model_calls, cost.model_calls, "model calls"),
        (expect.max_hops, got.hops, "hops"),
    )
    for most, was, what in limits:
        if most is not None and was > most:
            yield f"expected at most {most:g} {what}, took {was:g}"


def _of_answer(expect: EvalExpected, answer: Any) -> Iterator[str]:
    shown = short(as_text(answer), _ANSWER_CHARS)
    if expect.answer_matches is not None and not compiled(expect.answer_matches).found_in(as_text(answer)):
        yield f"expected an answer that matches {expect.answer_matches}, was {shown}"
    if expect.answer is not msgspec.UNSET and not is_part(expect.answer, answer):
        yield f"expected an answer with {short(as_text(expect.answer), _ANSWER_CHARS)}, was {shown}"


# --- summing up ---------------------------------------------------------------------------------------


def summed_up(tried: Sequence[EvalAttempt]) -> EvalKept:
    """Return what is kept of one request's attempts. It is right if all are, and flaky if only some are."""
    right = sum(each.verdict == "right" for each in tried)
    others = {each.verdict for each in tried}
    verdict: EvalVerdict = "right" if right == len(tried) else "flaky" if right else "wrong"
    return EvalKept(
        verdict="unfinished" if others == {"unfinished"} else verdict,
        right=right,
        attempts=len(tried),
        nano_dollars=sum(each.cost.nano_dollars for each in tried),
        tokens=sum(each.cost.tokens for each in tried),
        model_calls=sum(each.cost.model_calls for each in tried),
    )


def run_of(cases: Sequence[EvalCase], tried: Sequence[EvalAttempt]) -> EvalRun:
    """Return what is known of a run, in the file's order. Requests without an attempt are not in it."""
    by_name: dict[str, list[EvalAttempt]] = {case.name: [] for case in cases}
    for each in tried:
        by_name[each.name].append(each)
    kept = {name: summed_up(those) for name, those in by_name.items() if those}
    return EvalRun(at=time.time_ns() // 1_000, requests=kept)


def last_path(path: Path) -> Path:
    """Return where the last run of a file is kept."""
    return path.with_name(f"{path.name}.last.json")


def last_run(path: Path) -> EvalRun | None:
    """Return the last run of a file of requests; None if there was none. Raises UsageWrong."""
    kept = last_path(path)
    try:
        return msgspec.json.decode(kept.read_bytes(), type=EvalRun)
    except FileNotFoundError:
        return None
    except OSError as wrong:
        raise UsageWrong(f"{kept}: {wrong.strerror}") from wrong
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as wrong:
        raise UsageWrong(f"{kept} is not of a last run ({wrong}); move it away") from wrong


def keep_run(path: Path, run: EvalRun) -> None:
    """Keep a run as the last one of its file. Raises UsageWrong."""
    kept = last_path(path)
    fresh = kept.with_name(f"{kept.name}.new")
    try:
        fresh.write_bytes(msgspec.json.format(msgspec.json.encode(run)) + b"\n")
        fresh.replace(kept)
    except OSError as wrong:
        raise UsageWrong(f"{kept}: {wrong.strerror}") from wrong
