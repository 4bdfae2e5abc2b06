"""`mesh cost`: what model calls cost, as the agents' own reports say, and their journals where none does."""

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mesh.cli.counts import counted
from mesh.cli.options import AsJson, Output, Where, on_the_bus
from mesh.cli.output import Format, chosen, emit, one_line, remark, table

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from mesh.bus.connection import Bus
    from protocol.spending import Spending, Spent
    from protocol.wire.commands import Usage
    from protocol.wire.prices import Metered

_READERS = ("viewer", "operator", "admin")
_NANO = 1e9
_NO_MODEL = "(no model named)"
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


class By(StrEnum):
    """What costs are summed up by."""

    AGENT = "agent"
    EDGE = "edge"
    MODEL = "model"
    CLIENT = "client"
    REQUEST = "request"
    TURN = "turn"


Source = Annotated[
    str | None,
    typer.Argument(
        metavar="[ID|FILE]",
        help="A request, or a file of exported events; else the whole log.",
        show_default=False,
    ),
]
Since = Annotated[
    str | None,
    typer.Option(
        "--since",
        help="Only what was reported since: a time (ISO-8601), or 90s, 10m, 2h, 1d ago. A turn counts whole, "
        "at its newest report.",
        show_default=False,
    ),
]


@on_the_bus
async def cost(
    where: Where,
    source: Source = None,
    by: Annotated[By, typer.Option("--by", help="What to sum up by.")] = By.AGENT,
    since: Since = None,
    output: Output = Format.TABLE,
    as_json: AsJson = False,
) -> None:
    """Sum up what models cost: dollars, tokens, and how much of the prompts came from the vendor's cache.

    What turns have reported counts, and on the bus, of those that run or were ended by somebody else (a
    cancel, a deadline, a timeout), what their journals hold: so it is what has been spent until now. A
    file has no journals: how many turns are missing is said then.

    A mesh is one tenant: the total of the whole log is that tenant's. Dollars with a `?` are too few: some
    of the calls were a model's that has no price. A request of which an event cannot be read counts up to
    that event, and is named; the exit status is 1 then.
    """
    from mesh.cli.exits import Exit
    from mesh.cli.times import microseconds_at
    from protocol.spending import total

    begin = 0 if since is None else microseconds_at(since)
    account = _Account()
    await _fill(account, where, source)
    lines = [line for line in account.spending.lines if line.at >= begin]
    rows = _by_model(lines) if by is By.MODEL else _by_group(lines, by)
    whole = _row_of("total", total(lines), lines)
    if chosen(output, as_json) is Format.JSON:
        emit({"by": by.value, "rows": rows, "total": whole})
    else:
        table((by.value, *_COLUMNS), [_cells(row) for row in (*rows, whole)], whole=(by.value,))
    unpriced = sorted({model for line in lines for model in line.unpriced})
    if unpriced:
        calls, models = counted(whole["unpriced_calls"], "call"), ", ".join(map(one_line, unpriced))
        remark(
            f"mesh: {calls} at no known price: say [prices] of {models} in the fleet file and run "
            "`mesh setup`, for requests that begin from then on"
        )
    for request, why in account.unreadable.items():
        remark(f"mesh: {request} is not counted whole: {why}; look with mesh log verify {request}")
    if account.unreadable:
        raise typer.Exit(Exit.FAILED)


class _Account:
    """Costs of requests, each as far as its events can be read."""

    def __init__(self) -> None:
        from protocol import spending

        self.spending = spending.Spending()
        self.unreadable: dict[str, str] = {}
        """Why a request is left out, from the first of its events that cannot be read."""

    def take(self, request: str, body: bytes) -> None:
        from mesh.errors import MeshError
        from protocol.wire import codec

        if request in self.unreadable:
            return
        try:
            self.spending.take(codec.decode_event(body))
        except MeshError as broken:
            self.unreadable[request] = one_line(str(broken))


def _cells(row: dict[str, Any]) -> tuple[object, ...]:
    return (
        one_line(row["name"]),
        f"{row['nano_dollars'] / _NANO:.6f}" + ("?" if row["unpriced_calls"] else ""),
        row["model_calls"],
        row["tokens"],
        row["input_tokens"],
        row["cache_read_tokens"],
        row["cache_write_tokens"],
        row["output_tokens"],
        row["thinking_tokens"],
        "" if row["cached_share"] is None else f"{row['cached_share']:.0%}",
    )


async def _fill(account: _Account, where: Where, source: str | None) -> None:
    from mesh.bus.reader import every
    from mesh.ops.requests import is_file, request_bodies
    from mesh.replay.load import load
    from protocol.wire.subjects import EVENTS, evt_of

    if source is not None and is_file(source):
        for request, bodies in load(Path(source)).items():
            for body in bodies:
                account.take(request, body)
        if missing := len(account.spending.unreported):
            remark(f"mesh: the cost of {counted(missing, 'turn')} is missing or not whole: no report has it")
        return
    async with await where.connect(*_READERS) as bus:
        wanted = EVENTS if source is None else evt_of(source)
        seen = False
        async for kept in every(bus, "LOG", wanted):  # as far as it is there: its beginning may have aged out
            account.take(kept.subject.rpartition(".")[2], kept.data)
            seen = True
        if source is not None and not seen:
            await request_bodies(bus, source)  # which says why there is nothing
        await _add_journals(bus, account.spending)


async def _add_journals(bus: "Bus", account: "Spending") -> None:
    """Count what the steps cost whose rounds no report tells of."""
    from mesh.client.journals import journaled
    from mesh.ops.requests import remark_passed_over

    passed_over = set[str]()
    for turn in account.unreported:
        found = await journaled(bus, turn.request, (turn.agent,), turn.journal, passed_over=passed_over)
        for step in found:
            if step.record.usage is not None and turn.first <= step.round <= turn.last:
                account.add(turn.turn, step.record.usage, step.record.at)
    remark_passed_over(passed_over)


def _by_group(lines: "Sequence[Spent]", by: By) -> list[dict[str, Any]]:
    from protocol.spending import BY, grouped, summed

    groups = grouped(lines, BY[by.value])
    return [_row_of(name, usage, groups[name]) for name, usage in summed(lines, BY[by.value]).items()]


def _by_model(lines: "Sequence[Spent]") -> list[dict[str, Any]]:
    from protocol.spending import by_model, total
    from protocol.wire.prices import UNUSED

    found = by_model(lines)
    rows = [
        _row(
            name,
            used,
            used.nano_dollars,
            used.calls,
            used.total,
            sum(line.usage.models[name].calls for line in lines if name in line.unpriced),
        )
        for name, used in found.items()
    ]
    whole = total(lines)
    rest = (
        whole.nano_dollars - sum(used.nano_dollars for used in found.values()),
        whole.model_calls - sum(used.calls for used in found.values()),
        whole.tokens - sum(used.total for used in found.values()),
    )
    return [*rows, _row(_NO_MODEL, UNUSED, *rest, 0)] if any(rest) else rows


def _row_of(name: str, usage: "Usage", lines: "Iterable[Spent]") -> dict[str, Any]:
    """Return a row of turns, summed up."""
    from protocol.wire.prices import UNUSED

    models = sum(usage.models.values(), UNUSED)
    unpriced = sum(line.unpriced_calls for line in lines)
    return _row(name, models, usage.nano_dollars, usage.model_calls, usage.tokens, unpriced)


def _row(
    name: str, used: "Metered", nano_dollars: int, model_calls: int, tokens: int, unpriced_calls: int
) -> dict[str, Any]:
    from protocol.spending import cached_share

    return {
        "name": name,
        "nano_dollars": nano_dollars,
        "model_calls": model_calls,
        "unpriced_calls": unpriced_calls,
        "tokens": tokens,
        "prompt_tokens": used.prompt,
        "input_tokens": used.input,
        "cache_read_tokens": used.cache_read,
        "cache_write_tokens": used.cache_write + used.cache_write_1h,
        "cached_share": cached_share(used),
        "output_tokens": used.output,
        "thinking_tokens": used.thinking,
    }
