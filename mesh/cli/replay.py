"""`mesh replay`: run the live code over a log."""

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
from mesh.cli.arguments import microseconds_at, since_option
from mesh.cli.exits import Exit, Leave, ended_by_signals
from mesh.cli.filters import where_option
from mesh.cli.options import A_PATH, READERS, Command, Where, file_at, framed, source_argument_for
from mesh.cli.options import together as options_together
from mesh.cli.output import as_json_text, emit, note, say, write_page
from mesh.errors import UsageWrong
from mesh.replay.export import Requests, of_shares
from mesh.replay.rejudge import Rejudged, rejudge
from mesh.replay.whatif import Wanted, compared, together
from mesh.service.printable import counted
from mesh.ui import require_installed

if TYPE_CHECKING:
    from mesh.ops.where import Filter

_CODE_OPTIONS = ("since", "allow", "limit", "live_model", "yes", "junit")
_QUIET_S = 5.0
"""How long it reports no progress (s)."""


def with_code_options(command: Command) -> Command:
    """Give a command the options of a replay of agents' code; it gets `agents`, and the others as `code`."""

    @options_together(
        click.option(
            "--agent",
            "agents",
            multiple=True,
            metavar="NAME=MODULE:AGENT",
            help="Run this code again in the rounds of the agent NAME. May be repeated.",
        ),
        since_option(microseconds_at, "With --agent: only requests submitted since"),
        click.option(
            "--allow",
            multiple=True,
            metavar="NAME=KIND,…",
            help="With --agent: what this agent's code may read besides its record: clock, random, files, "
            "sockets, processes.",
        ),
        click.option(
            "--limit",
            type=click.FloatRange(min=0.1),
            help="With --agent: seconds for one round; by default 10.",
        ),
        click.option(
            "--live-model",
            type=click.IntRange(min=1),
            metavar="N",
            help="With --agent: ask the model anew in N turns at most, where it is asked otherwise. It says "
            "first what that may cost.",
        ),
        click.option("--yes", "-y", is_flag=True, help="With --live-model: do not ask."),
        click.option("--junit", type=A_PATH, help="With --agent: also write the rounds as a JUnit report."),
    )
    @functools.wraps(command)
    def run(**options: Any) -> Any:
        code = {name: options.pop(name) for name in _CODE_OPTIONS}
        return command(code=code, **options)

    return run


@click.command()
@source_argument_for(
    "A request's id, its beginning, a file of exported events, or of an archive URL/ID or URL/DAY; or --all.",
    required=False,
)
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
@click.option(
    "--html",
    type=A_PATH,
    help="Also write a page with what was found, the first difference of each request side by side.",
)
@click.option("--jobs", type=click.IntRange(min=1), help="Processes at most; by default one a core.")
@with_code_options
@framed
async def replay(
    where: Where,
    *,
    source: str | Path | None,
    whole: bool,
    wanted: "Filter | None",
    policies: tuple[Path, ...],
    fleet: Path | None,
    html: Path | None,
    jobs: int | None,
    agents: tuple[str, ...],
    code: dict[str, Any],
    as_json: bool,
) -> None:
    """Judge a log again and compare the verdicts.

    With --policy or --fleet, print one line for each request that would have gone another way: its first
    verdict that would have differed. What agents would have done then is unknown. Exit status 1 on
    any difference.

    With --agent, run the code on this disk again in the rounds that the log has of these agents. Calls are
    answered by the journal: no tool runs, no model is asked, nothing is written, and the code gets no
    credential of the bus. The first difference of each request is told, with what the guard would make of
    another move. A file has to be exported with --with-steps. Exit status 1 on any difference, 5 if no round
    could be replayed. Only with --live-model are models asked, with your keys, after an estimate and a yes.
    """
    if html is not None:
        require_installed("jinja2")
    if agents:
        if policies or fleet is not None:
            raise UsageWrong("either --agent or --policy and --fleet")
        from mesh.cli import replay_code  # loads agents' runtime, which verdicts do without

        async with ended_by_signals():
            await replay_code.replay_code(
                where,
                source,
                agents,
                everything=whole,
                wanted=wanted,
                jobs=jobs,
                html=html,
                as_json=as_json,
                **code,
            )
        return
    if said := [name for name, value in code.items() if value]:
        raise UsageWrong(
            f"--{said[0].replace('_', '-')} is for a replay of code: say --agent NAME=MODULE:AGENT"
        )
    if (source is None) is not whole:
        raise UsageWrong("say which: a request's id, a file, or --all")
    tried = whatif.tried_from(policies, fleet)
    keep = None if wanted is None else functools.partial(ops.where.is_wanted, wanted)
    async with ended_by_signals(), _file_of(where, source) as file:
        if tried:
            with tempfile.TemporaryDirectory(prefix="mesh-replay-") as kept:
                others = [each.other for each in tried]
                work = functools.partial(compared, others=others, folder=Path(kept), wanted=keep)
                try:
                    shares = await of_shares(file, work, jobs=jobs, on_progress=_progress())
                except OSError as full:
                    why = f"{full.strerror or full}; what differs is kept in {kept} meanwhile, under TMPDIR"
                    raise UsageWrong(f"cannot compare: {why}") from full
                whatif.tell(tried, together(shares), as_json=as_json, html=html)
            return
        judge = functools.partial(_judged, wanted=keep)
        parts = await of_shares(file, judge, jobs=jobs, on_progress=_progress())
    judged = sorted((each for part in parts for each in part), key=lambda each: each[0])
    _report([result for _, result in judged], as_json=as_json, html=html)


def _judged(requests: Requests, wanted: Wanted | None) -> list[tuple[int, Rejudged]]:
    return [(place, rejudge(bodies)) for place, bodies in requests if wanted is None or wanted(bodies)]


def _report(results: Sequence[Rejudged], *, as_json: bool, html: Path | None) -> None:
    if as_json:
        emit([_as_program_reads(result) for result in results])
    else:
        for result in results:
            _print(result)
        events = sum(result.events for result in results)
        differing = sum(not result.same for result in results)
        judged = f"{counted(len(results), 'request')}, {counted(events, 'event')} judged again"
        say(f"{judged}; {differing} {'differs' if differing == 1 else 'differ'}")
    if html is not None:
        from mesh.ui.replayed import rejudged_as_html

        write_page(html, rejudged_as_html(results))
    if not all(result.same for result in results):
        raise Leave(Exit.FAILED)


def _progress() -> Callable[[int], None]:
    """Return a function that remarks now and then how many events were processed."""
    reported = time.monotonic()

    def remark_on(events: int) -> None:
        nonlocal reported
        if time.monotonic() > reported + _QUIET_S:
            reported = time.monotonic()
            note(f"{counted(events, 'event')} so far")

    return remark_on


@contextlib.asynccontextmanager
async def _file_of(where: Where, source: str | Path | None) -> AsyncIterator[Path]:
    """Yield a file with the events of a source: the file itself, or a temporary one from the bus."""
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


def _print(result: Rejudged) -> None:
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
