"""`mesh conf …`: the fleet and its policies over time."""

import click

from mesh import ops
from mesh.cli.options import READERS, Where, framed
from mesh.cli.output import DIGITS, At, as_json_text, emit, listing, note, report, say
from mesh.service.printable import one_line, short

app = click.Group(help="The fleet and its policies over time: log, show, diff, rollback.")


@app.command("log")
@framed
async def log(where: Where, *, as_json: bool) -> None:
    """List the revisions of fleet, policies and prices, newest first. The newest 64 of each are kept."""
    async with await where.connect(*READERS) as bus:
        found = await ops.conf.history(bus)
    listing(
        found,
        {
            "rev": lambda each: each.rev,
            "what": lambda each: each.what,
            "at": lambda each: At(each.at),
            "by": lambda each: each.by,
            "": lambda each: "stands" if each.current else "",
            "report": lambda each: each.report[:DIGITS],
        },
        as_json=as_json,
        spare=("report",),
    )


@app.command("show")
@click.argument("rev", type=click.IntRange(min=1), metavar="REV")
@framed
async def show(where: Where, *, rev: int, as_json: bool) -> None:
    """Print one revision as JSON. A verdict names the fleet's in its grounds."""
    async with await where.connect(*READERS) as bus:
        emit(ops.conf.document(await ops.conf.revision(bus, rev)))


@app.command("diff")
@click.argument("a", type=click.IntRange(min=1), metavar="A")
@click.argument("b", type=click.IntRange(min=1), metavar="B")
@framed
async def diff(where: Where, *, a: int, b: int, as_json: bool) -> None:
    """Show where two revisions of one document differ."""
    async with await where.connect(*READERS) as bus:
        found = await ops.conf.compared(bus, a, b)
    if as_json:
        emit([{"where": place, "before": before, "after": after} for place, before, after in found])
        return
    for place, before, after in found:
        say(f"{one_line(place)}: {short(as_json_text(before), 200)} → {short(as_json_text(after), 200)}")
    if not found:
        note("they are the same")


@app.command("rollback")
@click.argument("rev", type=click.IntRange(min=1), metavar="REV")
@framed
async def rollback(where: Where, *, rev: int, by: str, as_json: bool) -> None:
    """Write an earlier revision anew, as the one that stands. It takes the admin's credentials.

    Only the document changes. The fleet file still says otherwise, and the next `mesh setup` follows it; so
    do accounts and streams of members that came or went.
    """
    async with await where.connect("admin") as bus:
        done = await ops.conf.roll_back(bus, rev, by=by)
    report(done, f"{done.what} is as in revision {rev} again (revision {done.rev})", as_json=as_json)
