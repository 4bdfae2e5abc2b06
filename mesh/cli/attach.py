"""`mesh attach`: one turn of a log, run again in this process by the code on this disk."""

import contextlib
from pathlib import Path
from typing import Any

import click

from mesh import ops
from mesh.agent.definition import load
from mesh.artifacts.store import store_at
from mesh.cli.exits import Exit, Leave
from mesh.cli.options import READERS, Where, file_at, framed, source_argument
from mesh.cli.output import emit, note, prints_to_stderr, say
from mesh.cli.replay_code import allowed_in, artifacts, line_of
from mesh.errors import UsageWrong
from mesh.replay import export
from mesh.replay.attached import forget_credentials, replay_here, rounds_in
from mesh.replay.code import Recording, Replayed
from mesh.service.printable import counted


@click.command()
@source_argument
@click.argument("code", metavar="MODULE:AGENT")
@click.option(
    "--turn",
    required=True,
    metavar="T",
    help="The number of an event that a round of the turn came to; or the turn's id, or its beginning.",
)
@click.option(
    "--pdb",
    "with_debugger",
    is_flag=True,
    help="Stop at the handler's first line, and where an exception left the code.",
)
@click.option(
    "--allow",
    metavar="KIND,…",
    default="",
    help="What the code may read besides its record: clock, random, files, sockets, processes.",
)
@framed
async def attach(
    where: Where,
    *,
    source: str | Path,
    code: str,
    turn: str,
    with_debugger: bool,
    allow: str,
    as_json: bool,
) -> None:
    """Run one turn's code again in this process, where a debugger stops.

    It is `mesh replay --agent` for one turn. Calls are answered by the journal: no tool runs, no model is
    asked, nothing is written. Breakpoints stop at this terminal. The connection is closed before the code is
    loaded, and the environment has neither credentials of the bus nor keys of vendors. With an event's number
    it runs the round that came to that event, with an id all rounds of the turn. A file has to be exported
    with --with-steps. Exit status 1 on any difference, 5 if no round could be replayed.
    """
    allowed = allowed_in([f"code={allow}"])["code"] if allow else ()
    recording, bodies = await recorded_request(where, source)
    store = store_at(named) if (named := artifacts()) else None
    forget_credentials()
    came = list[Replayed]()
    printed: contextlib.AbstractContextManager[object] = contextlib.nullcontext()
    if as_json:
        printed = prints_to_stderr()  # what the code prints is not JSON
    with printed:
        agent = load(code)
        for recorded in rounds_in(ops.log.decoded(bodies), bodies, turn):
            each = await replay_here(
                agent, recorded, recording, allowed=allowed, store=store, with_debugger=with_debugger
            )
            came.append(each)
            if not as_json:
                _print(each)
    if as_json:
        emit(
            [each._asdict() | {"difference": each.difference and each.difference._asdict()} for each in came]
        )
    if any(each.result == "different" for each in came):
        raise Leave(Exit.FAILED)
    if all(each.result == "not replayable" for each in came):
        raise Leave(Exit.NOTHING_JUDGED)


async def recorded_request(where: Where, source: str | Path) -> tuple[Recording, list[bytes]]:
    """Return what a source holds of its only request. Raises UsageWrong for several."""
    if isinstance(source, Path):
        path = file_at(source)
        return _in_file(path)
    with ops.recording.recorded_file() as path:
        async with await where.connect(*READERS) as bus:
            agents = (await ops.roster.fleet_of(bus)).agents
            with path.open("wb") as file:
                async for line in ops.recording.recorded_lines(bus, (source,), agents):
                    file.write(line + b"\n")
        return _in_file(path)


def _in_file(path: Path) -> tuple[Recording, list[bytes]]:
    found = export.load(path)
    if len(found) != 1:
        raise UsageWrong(f"{path} holds {counted(len(found), 'request')}; this command takes one")
    (bodies,) = found.values()
    return Recording().take(export.steps_in(path)), bodies


def _as_program_reads(each: Replayed) -> dict[str, Any]:
    difference = None if each.difference is None else each.difference._asdict()
    return each._asdict() | {"difference": difference}


def _print(each: Replayed) -> None:
    of = f"{each.request}  event {'none' if each.n is None else each.n}  {each.agent} round {each.round}"
    if each.result == "not replayable":
        note(f"{of} is not replayable: {each.why}")
    elif each.difference is None:
        say(f"{of}  same")
    else:
        say(line_of(each))
        for line in each.difference.diff.splitlines():
            say(f"    {line}")
