"""`mesh replay`: what live code makes of a log."""

import contextlib
import functools
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from mesh import ops
from mesh.cli import whatif
from mesh.cli.exits import Exit, Leave
from mesh.cli.filters import where_option
from mesh.cli.options import A_PATH, READERS, Where, file_at, framed, source_argument_for
from mesh.cli.output import as_json_text, emit, note, say
from mesh.errors import MeshError, UsageWrong
from mesh.replay.export import Requests, of_shares
from mesh.replay.rejudge import Rejudged, rejudge
from mesh.replay.whatif import Wanted, compared, together
from mesh.service.printable import counted

if TYPE_CHECKING:
    from mesh.ops.where import Filter

_QUIET_S = 5.0
"""How long it says nothing of its progress."""


@click.command()
@source_argument_for("A request's id, its beginning, or a file of exported events; or --all.", required=False)
@click.option("--all", "whole", is_flag=True, help="Every request of the log.")
@where_option()
@click.option(
    "--policy",
    "policies",
    type=A_PATH,
    multiple=True,
    help="Say what this policy (TOML) would have done; several are tried side by side.",
)
@click.option("--fleet", type=A_PATH, help="Say what this fleet file would have done, with its policies.")
@click.option("--jobs", type=click.IntRange(min=1), help="Processes at most; by default one a core.")
@framed
async def replay(
    where: Where,
    *,
    source: str | Path | None,
    whole: bool,
    wanted: "Filter | None",
    policies: tuple[Path, ...],
    fleet: Path | None,
    jobs: int | None,
    as_json: bool,
) -> None:
    """Judge a log again and compare the verdicts.

    With --policy or --fleet, print one line for each request that would have gone another way: its first
    verdict that would have been another. What agents would have done then nobody knows. Exit status 1 on
    any difference.
    """
    if (source is None) is not whole:
        raise UsageWrong("say which: a request's id, a file, or --all")
    tried = whatif.tried_from(policies, fleet)
    keep = None if wanted is None else functools.partial(_is_wanted, wanted)
    async with _file_of(where, source) as file:
        if tried:
            work = functools.partial(compared, others=[each.other for each in tried], wanted=keep)
            shares = await of_shares(file, work, jobs=jobs, on_progress=_progress())
            whatif.tell(tried, together(shares), as_json=as_json)
            return
        judge = functools.partial(_judged, wanted=keep)
        parts = await of_shares(file, judge, jobs=jobs, on_progress=_progress())
    judged = sorted((each for part in parts for each in part), key=lambda each: each[0])
    _report([result for _, result in judged], as_json=as_json)


def _judged(requests: Requests, wanted: Wanted | None) -> list[tuple[int, Rejudged]]:
    return [(place, rejudge(bodies)) for place, bodies in requests if wanted is None or wanted(bodies)]


def _report(results: Sequence[Rejudged], *, as_json: bool) -> None:
    if as_json:
        emit([_as_program_reads(result) for result in results])
    else:
        for result in results:
            _tell(result)
        events = sum(result.events for result in results)
        differing = sum(not result.same for result in results)
        judged = f"{counted(len(results), 'request')}, {counted(events, 'event')} judged again"
        say(f"{judged}; {differing} {'differs' if differing == 1 else 'differ'}")
    if not all(result.same for result in results):
        raise Leave(Exit.FAILED)


def _is_wanted(wanted: "Filter", bodies: Sequence[bytes]) -> bool:
    """Return True for a request that is wanted, and for one of which nobody can tell."""
    try:
        folded = ops.rows.folded_from(ops.log.decoded(bodies))
    except MeshError:
        return True
    return folded is None or ops.where.matches(wanted, folded.row(0))


def _progress() -> Callable[[int], None]:
    """Return what remarks now and then how many events were worked on."""
    told = time.monotonic()

    def remark_on(events: int) -> None:
        nonlocal told
        if time.monotonic() > told + _QUIET_S:
            told = time.monotonic()
            note(f"{counted(events, 'event')} so far")

    return remark_on


@contextlib.asynccontextmanager
async def _file_of(where: Where, source: str | Path | None) -> AsyncIterator[Path]:
    """Give a file of the events of a source: itself, or one that has what the bus has of it, for a while."""
    if isinstance(source, Path):
        yield file_at(source)
        return
    with tempfile.TemporaryDirectory(prefix="mesh-replay-") as folder:
        file = Path(folder) / "log.jsonl"
        async with await where.connect(*READERS) as bus:
            with file.open("wb") as lines:
                async for body in ops.log.stored_bodies(bus, () if source is None else (source,)):
                    lines.write(body + b"\n")
        yield file


def _tell(result: Rejudged) -> None:
    for difference in result.differences:
        say(f"{result.request} event {difference.n} ({difference.type}) does not come out as recorded:")
        say(f"  recorded:  {as_json_text(difference.recorded)}")
        say(f"  judged now: {as_json_text(difference.rederived)}")
    for broken in result.breaks:
        say(f"{result.request} event {broken.n}: the hash chain is broken: {broken.what}")
    if result.unreadable:
        say(f"{result.request or 'a request'} cannot be read: {result.unreadable}")


def _as_program_reads(result: Rejudged) -> dict[str, Any]:
    return {
        "request": result.request,
        "events": result.events,
        "same": result.same,
        "differences": [each._asdict() for each in result.differences],
        "breaks": [each._asdict() for each in result.breaks],
        "unreadable": result.unreadable or None,
    }
