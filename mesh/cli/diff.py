"""`mesh diff`: two requests side by side, and where they part."""

import re
from pathlib import Path
from typing import NamedTuple

import click
from msgspec.structs import replace

from mesh import ops
from mesh.cli.exits import Exit, Leave
from mesh.cli.options import READERS, Option, Where, framed, one_of
from mesh.cli.output import emit, note, paged, say, show_lines, table
from mesh.errors import BusError, MeshError, UsageWrong
from mesh.ops.diff import CourseEntry, RequestDiff, change_in_words, entry_in_words
from mesh.ops.words import heading
from mesh.service.printable import counted
from protocol.views.timeline import Timeline, timeline
from protocol.wire.ids import is_request_id


class Side(NamedTuple):
    """One side of a comparison: a request's id, its beginning or a file, and which events of it."""

    name: str
    after: int | None = None
    through: int | None = None


_SIDE = re.compile(r"(?P<name>.+)@(?:(?P<after>\d+)\.\.)?(?P<through>\d+)?")


def _side(context: click.Context, argument: click.Parameter, typed: str) -> Side:
    """Return what `ID` or `FILE` names, or either with `@N`, `@N..` or `@N..M`."""
    read = _SIDE.fullmatch(typed)
    if read is None or Path(typed).is_file() or not (read["after"] or read["through"]):
        return Side(typed)
    after, through = (None if each is None else int(each) for each in (read["after"], read["through"]))
    return Side(read["name"], after, through)


def _side_argument(name: str) -> Option:
    help = (
        "A request's id, its beginning, or a file of one exported request; with @N up to its event N, with "
        "@N.. what came after that."
    )
    return click.argument(name, metavar=name.upper(), callback=_side, help=help)


@click.command()
@_side_argument("a")
@_side_argument("b")
@click.option("--texts", is_flag=True, help="Also compare what agents and people wrote.")
@framed
async def diff(where: Where, *, a: Side, b: Side, texts: bool, as_json: bool) -> None:
    """Compare two requests: the first divergence, then both side by side.

    Compared are each event's move, giver, target, verdict, rule, code, facts, dropped facts and the answer.
    Ids, times and costs are not; the client counts as `client`, so that a rerun can be the same. Tasks that
    run at the same time may come in another order, which is a difference.

    Exit status 0 if they are the same, 1 if they differ, 2 if one of them cannot be read.
    """
    one, other = await _timeline(where, a), await _timeline(where, b)
    found = ops.diff.compared(
        one, other, texts=texts, through=(a.through, b.through), after=(a.after, b.after)
    )
    if as_json:
        emit(found)
    else:
        if (a.after, b.after) == (None, None):
            _remark_fork(found, one, other)
        with paged():
            _show(found, one, other)
    if not found.same:
        raise Leave(Exit.FAILED)


def _remark_fork(found: RequestDiff, one: Timeline, other: Timeline) -> None:
    """Say how to compare what came after a fork."""
    after = ops.diff.after_fork(one, other)
    if after != (None, None):
        a, b = (replace(side, after=n).written for side, n in zip((found.a, found.b), after, strict=True))
        note(f"one was forked from the other; what came after that: mesh diff {a} {b}")


async def _timeline(where: Where, side: Side) -> Timeline:
    """Return the timeline of one side. Raises UsageWrong if it cannot be read, and BusError."""
    name, after, through = side
    try:
        bodies = await one_of(where, await _source(where, name))
        for n in (after, through):
            if n is not None and n >= len(bodies):
                raise UsageWrong(f"{name} has no event {n}; the last one is {len(bodies) - 1}")
        return timeline(ops.log.decoded(bodies if through is None else bodies[: through + 1]))
    except BusError:
        raise
    except MeshError as wrong:
        raise UsageWrong(str(wrong)) from wrong


def _is_path(name: str) -> bool:
    return Path(name).is_file() or not ops.log.is_prefix(name)


async def _source(where: Where, name: str) -> str | Path:
    if is_request_id(name):
        return name
    if _is_path(name):
        return Path(name)
    async with await where.connect(*READERS) as bus:
        return await ops.log.whole_id(bus, name)


# --- in words -------------------------------------------------------------------------------------


def _show(found: RequestDiff, one: Timeline, other: Timeline) -> None:
    if found.first is None:
        say(f"the same: {counted(len(found.rows), 'entry', 'entries')}")
        return
    for name, told in (("A", one), ("B", other)):
        line = heading(told)
        show_lines(type(line)((f"{name}  ", "bold"), *line.parts))
    say(f"first divergence: {change_in_words(found.first)}")
    for change in found.fields[1:]:
        say(f"  then {change_in_words(change)}")
    table(("A", "", "B"), [(_words(row.a), row.mark, _words(row.b)) for row in found.rows])


def _words(each: CourseEntry | None) -> str:
    return "" if each is None else f"{each.n} {entry_in_words(each)}"
