"""Looking back at a log: `mesh why` a verdict, and `mesh cost`."""

from contextlib import suppress
from pathlib import Path

import click

from mesh import ops
from mesh.cli.arguments import microseconds_at, since_option
from mesh.cli.exits import Exit, Leave
from mesh.cli.options import (
    PEOPLE,
    READERS,
    Where,
    file_at,
    framed,
    one_of,
    remark_freeze,
    remark_passed_over,
    source_argument_for,
)
from mesh.cli.output import emit, note, paged, read_lines, table
from mesh.errors import MeshError
from mesh.ops.words import awaited, ending, heading
from mesh.service.printable import counted, one_line
from mesh.settings import index_folder
from protocol.views.timeline import timeline

# --- why ------------------------------------------------------------------------------------------


@click.command()
@source_argument_for(
    "A request, or a file of exported events; else the newest that is stuck.", required=False
)
@click.argument(
    "n",
    type=int,
    required=False,
    metavar="[N]",
    help="The event's number; by default the last refusal or failed task, else the last verdict.",
)
@framed
async def why(where: Where, *, source: str | Path | None, n: int | None, as_json: bool) -> None:
    """Explain a verdict, and name what would be allowed.

    It begins with what an open request waits for now.

    Without an id it explains the newest request that is stuck: it waits for a person, its client, a thaw, or
    an agent that is not served. If none is, it explains the newest one that was refused or that failed.
    """
    stuck = None
    if source is None:
        async with await where.connect(*PEOPLE) as bus:
            await remark_freeze(bus)
            stuck = await ops.requests.newest_stuck(bus, index_folder(Path.cwd()))
        if stuck is None:
            if as_json:
                emit(None)
            note("nothing is stuck, and nothing was refused or failed lately")
            return
        source = stuck.request
    happened = ops.log.decoded(await one_of(where, source))
    found = ops.explain.explain(happened, n)
    if as_json:
        emit(found)
        return
    shown = stuck or timeline(happened)
    if stuck is None and shown.waiting and not isinstance(source, Path):
        with suppress(MeshError):  # the rest is shown without it
            async with await where.connect(*PEOPLE) as bus:
                await remark_freeze(bus)
                shown = await ops.roster.with_served(bus, shown)
    with paged():
        if stuck is not None:
            read_lines(heading(stuck), *ending(stuck))
        else:
            read_lines(*awaited(shown))
        read_lines(*ops.explain.sentences(found))


# --- cost -----------------------------------------------------------------------------------------


@click.command()
@source_argument_for("A request, or a file of exported events; else the whole log.", required=False)
@click.option(
    "--by",
    "kind",
    type=click.Choice(["agent", "edge", "model", "client", "request", "turn", "lead", "worker"]),
    default="agent",
    show_default=True,
    help="The kind of row to sum up by.",
)
@since_option(microseconds_at, "Only turns whose newest report came since")
@framed
async def cost(
    where: Where, *, source: str | Path | None, kind: "ops.spending.By", since: int | None, as_json: bool
) -> None:
    """Sum up the cost of models: dollars, tokens, and the share of prompts that the vendor had cached.

    It counts the reports of turns. For turns without a report (they run, or a cancel, a deadline or a
    timeout ended them) it counts their journals, which only the bus has; for a file it names how many turns
    are missing.

    `--by lead` counts what each lead's turn and all tasks below it cost: a task below two leads counts
    for both; `--by worker` what each agent's tasks cost by themselves.

    Dollars with a `?` are too few: a model without a price was called. If an event of a request cannot be
    read, the request counts up to that event and is named, and the exit status is 1.
    """
    if isinstance(source, Path):
        found = ops.spending.spent_in_file(file_at(source), by=kind, since=since or 0)
    else:
        async with await where.connect(*READERS) as bus:
            found = await ops.spending.spent_on_bus(bus, source, by=kind, since=since or 0)
    remark_passed_over(found.passed_over)
    if found.missing:
        note(f"the cost of {counted(found.missing, 'turn')} is missing or not whole: no report has it")
    whole = found.report.total
    if as_json:
        emit(found.report)
    else:
        kinds = "calls", "tokens", "input", "cache read", "cache write", "output", "thinking", "cached"
        rows = [_cells(row) for row in (*found.report.rows, whole)]
        table((kind, "dollars", *kinds), rows, spare=_SPARE_KINDS)
    if found.unpriced:
        calls, models = counted(whole.unpriced_calls, "call"), ", ".join(map(one_line, found.unpriced))
        note(
            f"{calls} at no known price: say [prices] of {models} in the fleet file and run "
            "`mesh setup`, for requests that begin from then on"
        )
    for request, why in found.unreadable.items():
        note(f"{request} is not counted whole: {why}; look with mesh log verify {request}")
    if found.unreadable:
        raise Leave(Exit.FAILED)


_SPARE_KINDS = ("thinking", "cache write", "cache read", "output", "input")


def _cells(row: "ops.spending.Row") -> tuple[object, ...]:
    return (
        row.name,
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
