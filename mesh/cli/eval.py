"""`mesh eval`: requests with what should come of each, sent through a fleet."""

import asyncio
import contextlib
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from mesh import ops
from mesh.bus.connection import Bus
from mesh.cli.dev import model_option
from mesh.cli.exits import Exit, Leave, ended_by_signals
from mesh.cli.junit import JunitReport
from mesh.cli.options import A_PATH, READERS, Where, framed
from mesh.cli.output import emit, note, paged, say, table
from mesh.errors import UsageWrong
from mesh.local.fleet import LocalFleet
from mesh.local.project import data_environment, find_fleet, model_environment, with_client
from mesh.service.printable import counted, one_line, when

if TYPE_CHECKING:
    from mesh.ops.eval_file import EvalCase
    from mesh.ops.evals import EvalAttempt, EvalRun

_QUIET_S = 5.0
"""Between two remarks on how far it is (s)."""


class _Fleet(NamedTuple):
    """The fleet that requests are sent through."""

    client: Bus
    viewer: Bus
    broken: asyncio.Event


@click.command("eval")
@click.argument("file", type=A_PATH)
@click.option(
    "--fleet",
    help="Run this fleet on this machine for it: a fleet file, or a reference fleet's name. Otherwise the "
    "requests go to a running mesh.",
)
@model_option
@click.option(
    "--repeat",
    type=click.IntRange(min=1, max=1000),
    default=1,
    show_default=True,
    help="How often each request is sent.",
)
@click.option(
    "--jobs",
    type=click.IntRange(min=1, max=1000),
    default=8,
    show_default=True,
    help="Requests under way at the same time.",
)
@click.option(
    "--timeout",
    "within_s",
    type=click.FloatRange(min=0.1),
    default=120.0,
    show_default=True,
    help="Seconds for each request.",
)
@click.option("--junit", type=A_PATH, help="Also write the requests as a JUnit report.")
@framed
async def evaluate(
    where: Where,
    *,
    file: Path,
    fleet: str | None,
    model: str,
    repeat: int,
    jobs: int,
    within_s: float,
    junit: Path | None,
    as_json: bool,
) -> None:
    """Send the requests in FILE, and compare what comes of them with what should.

    FILE has one JSON object a line, or is TOML with [[requests]]. Each has a name, a text and what to expect.
    The run is kept in FILE.last.json, and the next run is shown beside it.

    Exit status 1 if anything is not right, 2 for a mistake in FILE, 5 if no request came to rest.
    """
    cases = ops.eval_file.read_cases(file)
    last = ops.evals.last_run(file)
    tried: list[EvalAttempt] = []
    interrupted = False
    progress = _Progress(len(cases) * repeat)
    async with ended_by_signals():
        try:
            async with _running(where, fleet, model) as mesh:
                found = ops.evals.attempts(
                    mesh.client,
                    mesh.viewer,
                    cases,
                    repeat=repeat,
                    jobs=jobs,
                    within_s=within_s,
                    broken=mesh.broken,
                )
                async with contextlib.aclosing(found):
                    async for attempt in found:
                        tried.append(attempt)
                        progress.after(len(tried))
        except asyncio.CancelledError:
            interrupted = True  # what is known is told first
    run = ops.evals.run_of(cases, tried)
    if junit is not None:
        _write_junit(junit, file, tried)
    if as_json:
        emit(_as_program_reads(file, cases, tried, run, last, interrupted=interrupted))
    else:
        _print(tried, run, last)
    if interrupted:
        under_way = "" if fleet is not None else "; what was sent goes on"
        note(f"interrupted after {len(tried)} of {counted(len(cases) * repeat, 'request')}{under_way}")
        raise Leave(Exit.INTERRUPTED)
    ops.evals.keep_run(file, run)
    if all(each.verdict == "unfinished" for each in tried):
        note("no request came to rest")
        raise Leave(Exit.NOTHING_JUDGED)
    if run.verdicts["right"] < len(cases):
        raise Leave(Exit.FAILED)


@contextlib.asynccontextmanager
async def _running(where: Where, fleet: str | None, model: str) -> AsyncIterator[_Fleet]:
    """Yield the fleet: the running one, or one that is started for it and then thrown away."""
    if fleet is None:
        async with (
            await where.connect("client", "operator") as client,
            await where.named(None).connect(*READERS) as viewer,
        ):
            yield _Fleet(client, viewer, asyncio.Event())
        return
    named, search = find_fleet((fleet,))
    file = with_client(named)
    readers = (*file.viewers, *file.operators)
    if not readers:
        raise UsageWrong("the fleet has no viewer, who reads what came of the requests: add [viewers.audit]")
    sender = where.flags.name or next(iter(file.clients))
    if sender not in {**file.clients, **file.operators}:
        raise UsageWrong(f"--as names a client of the fleet that runs: {', '.join(file.clients)}")
    with tempfile.TemporaryDirectory(prefix="mesh-eval-", ignore_cleanup_errors=True) as folder:
        mesh = LocalFleet(
            file,
            Path(folder),
            sync_always=False,
            environment=data_environment(Path(folder)),
            agent_environment=model_environment(model),
            search=search,
            on_trouble=note,
        )
        async with (
            mesh,
            await mesh.connect_as(sender) as client,
            await mesh.connect_as(readers[0]) as viewer,
        ):
            yield _Fleet(client, viewer, mesh.died)


class _Progress:
    """Remarks on the first request that came to rest, and then now and then on how many have."""

    def __init__(self, total: int) -> None:
        self._total, self._reported = total, 0.0

    def after(self, done: int) -> None:
        if done < self._total and time.monotonic() > self._reported + _QUIET_S:
            self._reported = time.monotonic()
            note(f"{done} of {counted(self._total, 'request')} so far")


# --- for people -----------------------------------------------------------------------------------------


def _print(tried: "Sequence[EvalAttempt]", run: "EvalRun", last: "EvalRun | None") -> None:
    before = {} if last is None else last.requests
    rows = []
    for name, kept in run.requests.items():
        was = before.get(name)
        own = [each for each in tried if each.name == name]
        rows.append(
            (
                name,
                _verdict(kept.verdict, kept.right, kept.attempts),
                "" if was is None else _verdict(was.verdict, was.right, was.attempts),
                _dollars(kept.nano_dollars),
                "" if was is None else _dollars(was.nano_dollars),
                max(each.hops for each in own),
                f"{max(each.took_s for each in own):.1f}",
            )
        )
    with paged():
        table(("request", "came out", "last time", "dollars", "last", "hops", "s"), rows, spare=("s", "hops"))
        for each in tried:
            if each.verdict != "right":
                differs = "; ".join(each.wrong) or f"has not come to rest: mesh request show {each.request}"
                say(f"{each.name}: {each.request}: {one_line(differs)}")
        say(_sum(run) + ("" if last is None else f"; last time, {when(last.at)}: {_sum(last)}"))


def _verdict(verdict: str, right: int, attempts: int) -> str:
    return verdict if attempts == 1 else f"{verdict} {right}/{attempts}"


def _sum(run: "EvalRun") -> str:
    counts = run.verdicts
    parts = [f"{counts[name]} {name}" for name in ("right", "flaky", "wrong", "unfinished") if counts[name]]
    total = counted(len(run.requests), "request")
    return f"{total}: {', '.join(parts) or 'none'}, {_dollars(run.nano_dollars)} dollars"


def _dollars(nano: int) -> str:
    return f"{nano / 1e9:.4f}"


# --- for programs ---------------------------------------------------------------------------------------


def _as_program_reads(
    file: Path,
    cases: "Sequence[EvalCase]",
    tried: "Sequence[EvalAttempt]",
    run: "EvalRun",
    last: "EvalRun | None",
    *,
    interrupted: bool,
) -> dict[str, Any]:
    return {
        "file": str(file),
        "interrupted": interrupted,
        "summary": {
            "requests": len(cases),
            **{name: run.verdicts[name] for name in ("right", "flaky", "wrong", "unfinished")},
            "nano_dollars": run.nano_dollars,
        },
        "requests": [
            {
                "name": name,
                "verdict": kept.verdict,
                "right": kept.right,
                "nano_dollars": kept.nano_dollars,
                "tokens": kept.tokens,
                "model_calls": kept.model_calls,
                "last": None if last is None else last.requests.get(name),
                "attempts": [each for each in tried if each.name == name],
            }
            for name, kept in run.requests.items()
        ],
        "last": last,
    }


def _write_junit(path: Path, file: Path, tried: "Sequence[EvalAttempt]") -> None:
    report, seen = JunitReport(), dict[str, int]()
    for each in tried:
        seen[each.name] = seen.get(each.name, 0) + 1
        name = each.name if seen[each.name] == 1 else f"{each.name} #{seen[each.name]}"
        if each.verdict == "right":
            report.passed(file.name, name)
        else:
            message = "; ".join(each.wrong) or "it has not come to rest"
            report.failed(file.name, name, kind=each.verdict, message=message, text=each.request)
    report.write(path)
