"""The cost of model calls, from the agents' reports, and from their journals where a report is missing.

The reports of turns count. A running turn has not reported everything, nor has one that was ended by a
cancel, a deadline or a timeout. On the bus its journal adds the rest, so the sum is what has been spent until
now.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Literal, NamedTuple

import msgspec

from mesh.bus.connection import Bus
from mesh.bus.reader import every
from mesh.bus.stores import journaled
from mesh.errors import MeshError, OldForm
from mesh.ops.log import request_bodies
from mesh.replay.export import load
from mesh.service.printable import one_line
from protocol.views import spending
from protocol.views.spending import Spending, Spent
from protocol.wire import codec
from protocol.wire.prices import UNUSED, Metered
from protocol.wire.subjects import EVENTS, evt_of

By = Literal["agent", "edge", "model", "client", "request", "turn", "lead", "worker"]
"""The keys by which costs can be summed."""
_NO_MODEL = "(no model named)"


class Row(msgspec.Struct, frozen=True):
    """The cost of one agent, model, request …"""

    name: str
    nano_dollars: int
    model_calls: int
    unpriced_calls: int
    """Calls of models without a price, which the dollars leave out."""
    tokens: int
    prompt_tokens: int
    input_tokens: int
    cache_read_tokens: int
    cache_write_tokens: int
    cached_share: float | None
    """The share of the prompts that came from the vendor's cache; None without a prompt."""
    output_tokens: int
    thinking_tokens: int


class SpendingReport(msgspec.Struct, frozen=True):
    """The spending, summed."""

    by: By
    rows: list[Row]
    total: Row


class Reported(NamedTuple):
    """A report, and what is needed to read it."""

    report: SpendingReport
    unpriced: list[str]
    """Models without a price."""
    missing: int
    """Turns in no report and no journal: a file has no journals."""
    passed_over: set[str]
    """Steps that cannot be read, or cannot be true."""
    unreadable: dict[str, str]
    """Requests that count up to their first unreadable event, with the reason."""


async def spent_on_bus(bus: Bus, request: str | None, *, by: By, since: int = 0) -> Reported:
    """Return the cost of a request, or of everything in the log.

    Args:
        since: leave out what was reported earlier (UTC µs); a turn counts as a whole, at its newest report.

    Raises NotFound, BusError.
    """
    account, unreadable, passed_over = Spending(), dict[str, str](), set[str]()
    kept = None
    async for kept in every(bus, "LOG", EVENTS if request is None else evt_of(request)):
        _take(account, kept.subject.rpartition(".")[2], kept.data, unreadable)
    if request is not None and kept is None:
        await request_bodies(bus, request)  # which reports why there is nothing
    for turn in account.unreported:
        found = await journaled(bus, turn.request, (turn.agent,), turn.journal, passed_over=passed_over)
        for step in found:
            if step.record.usage is not None and turn.first <= step.round <= turn.last:
                account.add(turn.turn, step.record.usage, step.record.at)
    return _reported(account, by, since, missing=0, passed_over=passed_over, unreadable=unreadable)


def spent_in_file(path: Path, *, by: By, since: int = 0) -> Reported:
    """Return what the requests in a file of exported events cost. Raises Malformed."""
    account, unreadable = Spending(), dict[str, str]()
    for request, bodies in load(path).items():
        for body in bodies:
            _take(account, request, body, unreadable)
    missing = len(account.unreported)
    return _reported(account, by, since, missing=missing, passed_over=set(), unreadable=unreadable)


def _take(account: Spending, request: str, body: bytes, unreadable: dict[str, str]) -> None:
    """Count an event; in each request, up to its first unreadable event."""
    if request not in unreadable:
        try:
            account.take(codec.decode_event(body))
        except OldForm:
            raise
        except MeshError as broken:
            unreadable[request] = one_line(str(broken))


def _reported(
    account: Spending,
    by: By,
    since: int,
    *,
    missing: int,
    passed_over: set[str],
    unreadable: dict[str, str],
) -> Reported:
    lines = [line for line in account.lines if line.at >= since]
    if by == "model":
        rows = _by_model(lines)
    else:
        groups = spending.grouped(lines, spending.BY[by])
        rows = [_row(name, groups[name]) for name in spending.summed(lines, spending.BY[by])]
    report = SpendingReport(by, rows, _row("total", lines))
    unpriced = sorted({model for line in lines for model in line.unpriced})
    return Reported(report, unpriced, missing, passed_over, unreadable)


def _by_model(lines: Sequence[Spent]) -> list[Row]:
    """Return a row for each model, and one for usage without a model."""
    found = spending.by_model(lines)
    rows = []
    for name, used in found.items():
        calls = sum(line.usage.models[name].calls for line in lines if name in line.unpriced)
        rows.append(_metered(name, used, used.nano_dollars, used.calls, used.total, calls))
    whole, named = spending.total(lines), sum(found.values(), UNUSED)
    rest = (
        whole.nano_dollars - named.nano_dollars,
        whole.model_calls - named.calls,
        whole.tokens - named.total,
    )
    return [*rows, _metered(_NO_MODEL, UNUSED, *rest, 0)] if any(rest) else rows


def _row(name: str, lines: Sequence[Spent]) -> Row:
    """Return the total cost of turns."""
    usage, unpriced = spending.total(lines), sum(line.unpriced_calls for line in lines)
    models = sum(usage.models.values(), UNUSED)
    return _metered(name, models, usage.nano_dollars, usage.model_calls, usage.tokens, unpriced)


def _metered(
    name: str, used: Metered, nano_dollars: int, model_calls: int, tokens: int, unpriced_calls: int
) -> Row:
    return Row(
        name=name,
        nano_dollars=nano_dollars,
        model_calls=model_calls,
        unpriced_calls=unpriced_calls,
        tokens=tokens,
        prompt_tokens=used.prompt,
        input_tokens=used.input,
        cache_read_tokens=used.cache_read,
        cache_write_tokens=used.cache_write + used.cache_write_1h,
        cached_share=spending.cached_share(used),
        output_tokens=used.output,
        thinking_tokens=used.thinking,
    )
