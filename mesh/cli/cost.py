"""`mesh cost`: what model calls cost, as the agents' own reports say, and their journals where none does."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from mesh.cli.arguments import microseconds_at
from mesh.cli.exits import Exit, Leave
from mesh.cli.options import READERS, Where, is_file, on_the_bus, output_options, remark_passed_over
from mesh.cli.output import emit, remark, table
from mesh.service.printable import counted, one_line

if TYPE_CHECKING:
    from mesh.ops.spending import By, Row

_COLUMNS = (
    "dollars",
    "calls",
    "tokens",
    "input",
    "cache read",
    "cache write",
    "output",
    "thinking",
    "cached",
)


@click.command()
@click.argument(
    "source",
    required=False,
    metavar="[ID|FILE]",
    help="A request, or a file of exported events; else the whole log.",
)
@click.option(
    "--by",
    type=click.Choice(["agent", "edge", "model", "client", "request", "turn"]),
    default="agent",
    show_default=True,
    help="What to sum up by.",
)
@click.option(
    "--since",
    help="Only what was reported since: a time (ISO-8601), or 90s, 10m, 2h, 1d ago. A turn counts whole, "
    "at its newest report.",
)
@output_options
@on_the_bus
async def cost(where: Where, *, source: str | None, by: "By", since: str | None, as_json: bool) -> None:
    """Sum up what models cost: dollars, tokens, and how much of the prompts came from the vendor's cache.

    What turns have reported counts, and on the bus, of those that run or were ended by somebody else (a
    cancel, a deadline, a timeout), what their journals hold: so it is what has been spent until now. A
    file has no journals: how many turns are missing is said then.

    A mesh is one tenant: the total of the whole log is that tenant's. Dollars with a `?` are too few: some
    of the calls were a model's that has no price. A request of which an event cannot be read counts up to
    that event, and is named; the exit status is 1 then.
    """
    from mesh.ops.spending import spent_in_file, spent_on_bus

    begin = 0 if since is None else microseconds_at(since)
    if source is not None and is_file(source):
        found = spent_in_file(Path(source), by=by, since=begin)
    else:
        async with await where.connect(*READERS) as bus:
            found = await spent_on_bus(bus, source, by=by, since=begin)
    remark_passed_over(found.passed_over)
    if found.missing:
        turns = counted(found.missing, "turn")
        remark(f"mesh: the cost of {turns} is missing or not whole: no report has it")
    whole = found.report.total
    if as_json:
        emit(found.report)
    else:
        table((by, *_COLUMNS), [_cells(row) for row in (*found.report.rows, whole)], whole=(by,))
    if found.unpriced:
        calls, models = counted(whole.unpriced_calls, "call"), ", ".join(map(one_line, found.unpriced))
        remark(
            f"mesh: {calls} at no known price: say [prices] of {models} in the fleet file and run "
            "`mesh setup`, for requests that begin from then on"
        )
    for request, why in found.unreadable.items():
        remark(f"mesh: {request} is not counted whole: {why}; look with mesh log verify {request}")
    if found.unreadable:
        raise Leave(Exit.FAILED)


def _cells(row: "Row") -> tuple[object, ...]:
    return (
        one_line(row.name),
        f"{row.nano_dollars / 1e9:.6f}" + ("?" if row.unpriced_calls else ""),
        row.model_calls,
        row.tokens,
        row.input_tokens,
        row.cache_read_tokens,
        row.cache_write_tokens,
        row.output_tokens,
        row.thinking_tokens,
        "" if row.cached_share is None else f"{row.cached_share:.0%}",
    )
