"""`mesh stats`: counts of requests."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import click

from mesh import ops
from mesh.cli.filters import index_options, remark_indexing, with_filters
from mesh.cli.options import READERS, Where, framed
from mesh.cli.output import At, emit, note, paged, say, table
from mesh.service.printable import counted, one_line
from mesh.settings import index_folder

if TYPE_CHECKING:  # SQLite
    from mesh.ops.index import RequestIndex
    from mesh.ops.statistics import Statistics
    from mesh.ops.where import Filter


@click.command()
@with_filters
@index_options("How many edges and days are shown; --json has them all.")
@framed
async def stats(where: Where, *, wanted: "Filter", limit: int, whole: bool, as_json: bool) -> None:
    """Count requests: edges, depths, refusals, ping-pong, times, costs, days, and who has what is open.

    Times are from the event that gave the work to the one that ended the turn. Ping-pong is a hop that goes
    to and fro again: a → b, b → a, and then a → b. Quiet is an open request in which nothing happened for 15
    minutes.
    """

    def look(index: "RequestIndex") -> "tuple[Statistics, bool]":
        return ops.statistics.statistics(index, wanted), index.is_whole

    async with await where.connect(*READERS) as bus:
        found, is_whole = await ops.requests.from_index(
            bus, look, folder=index_folder(Path.cwd()), whole=whole, on_work=remark_indexing
        )
    if as_json:
        emit(found)
    else:
        with paged():
            _show(found, limit)
    if not is_whole:
        note("only the newest part of the log is indexed; --all indexes the rest, once")


def _show(found: "Statistics", limit: int) -> None:
    say(f"{counted(found.requests, 'request')}, {counted(found.events, 'event')}: {_shares(found.statuses)}")
    if not found.requests:
        return
    say(
        f"${_dollars(found.nano_dollars)}, {counted(found.hops, 'hop')}, {counted(found.refusals, 'refusal')}"
    )
    to_and_fro = f"{found.ping_pong_share:.1%} of hops went to and fro again"
    say(f"ping-pong: {to_and_fro}, in {counted(found.ping_pong_requests, 'request')}")
    say(f"depth: {_shares({str(depth): count for depth, count in found.depths.items()})}")
    say(f"people must act in {found.human}, frozen {found.frozen}")
    _edges(found, limit)
    if found.rules:
        say("")
        table(
            ("rule", "refused", "in requests"),
            [(each.rule, each.refused, each.requests) for each in found.rules],
        )
    if found.stuck:
        say("")
        table(
            ("open with", "requests", "quiet", "since"),
            [(each.holder, each.open, each.quiet, At(each.since)) for each in found.stuck],
        )
    say("")
    rows = [
        (
            each.day,
            each.requests,
            each.hops,
            each.refusals,
            _dollars(each.nano_dollars),
            _shares(each.statuses),
        )
        for each in found.days[-limit:]
    ]
    table(("day", "requests", "hops", "refusals", "dollars", "status"), rows, spare=("refusals", "hops"))


def _edges(found: "Statistics", limit: int) -> None:
    if not found.edges:
        return
    say("")
    rows = [
        (
            f"{one_line(each.giver)} → {one_line(each.taker)}",
            each.passed,
            each.refused,
            each.open,
            _seconds(each.p50_s),
            _seconds(each.p95_s),
            _seconds(each.waited_s),
            _seconds(each.queued_s),
            _dollars(each.nano_dollars),
        )
        for each in found.edges[:limit]
    ]
    columns = ("edge", "hops", "refused", "open", "median", "95%", "waited", "queued", "dollars")
    table(columns, rows, spare=("open", "queued", "waited", "refused"))
    if len(found.edges) > limit:
        say(f"and {len(found.edges) - limit} more edges")


def _shares(counts: Mapping[str, int]) -> str:
    whole = sum(counts.values())
    return ", ".join(f"{name} {count} ({count / whole:.0%})" for name, count in counts.items())


def _dollars(nano_dollars: int) -> str:
    return f"{nano_dollars / 1e9:.4f}"


def _seconds(seconds: float | None) -> str:
    return "" if seconds is None else f"{seconds:.1f} s" if seconds < 100 else f"{seconds / 60:.0f} min"
