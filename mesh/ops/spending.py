"""What model calls cost, as the agents' own reports say, and their journals where no report does.

What turns have reported counts, and on the bus, of those that run or were ended by somebody else (a cancel, a
deadline, a timeout), what their journals hold: so it is what has been spent until now.
"""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

import msgspec

from mesh.bus.connection import Bus
from mesh.bus.reader import every
from mesh.client.journals import journaled
from mesh.errors import MeshError
from mesh.ops.log import request_bodies
from mesh.replay.load import load
from mesh.service.printable import one_line
from protocol.views import spending
from protocol.views.spending import Spent
from protocol.wire import codec
from protocol.wire.commands import Usage
from protocol.wire.prices import UNUSED, Metered
from protocol.wire.subjects import EVENTS, evt_of

By = Literal["agent", "edge", "model", "client", "request", "turn"]
"""What costs are summed up by."""
_NO_MODEL = "(no model named)"


class Row(msgspec.Struct, frozen=True):
    """What one agent, model, request … cost."""

    name: str
    nano_dollars: int
    model_calls: int
    unpriced_calls: int
    """Calls of models that have no price: the dollars are too few by them."""
    tokens: int
    prompt_tokens: int
    input_tokens: int
    cache_read_tokens: int
    cache_write_tokens: int
    cached_share: float | None
    """How much of the prompts came from the vendor's cache; None without a prompt."""
    output_tokens: int
    thinking_tokens: int


class Report(msgspec.Struct, frozen=True):
    """What was spent, summed up."""

    by: By
    rows: list[Row]
    total: Row


class Reported(NamedTuple):
    """A report, and what has to be known to read it."""

    report: Report
    unpriced: list[str]
    """Models without a price."""
    missing: int
    """Turns of which no report tells, and no journal: a file has none."""
    passed_over: set[str]
    """Steps that cannot be read, or cannot be true."""
    unreadable: dict[str, str]
    """Requests that count up to their first event that cannot be read, and why it cannot."""


async def spent_on_bus(bus: Bus, request: str | None, *, by: By, since: int = 0) -> Reported:
    """Return what a request cost, or everything in the log.

    Args:
        since: leave out what was reported earlier (UTC µs); a turn counts whole, at its newest report.

    Raises NotFound, BusError.
    """
    account = _Account()
    subject = EVENTS if request is None else evt_of(request)
    seen = False
    async for kept in every(bus, "LOG", subject):  # as far as it is there: its beginning may have aged out
        account.take(kept.subject.rpartition(".")[2], kept.data)
        seen = True
    if request is not None and not seen:
        await request_bodies(bus, request)  # which says why there is nothing
    passed_over = await _add_journals(bus, account.spending)
    return account.reported(by, since, missing=0, passed_over=passed_over)


def spent_in_file(path: Path, *, by: By, since: int = 0) -> Reported:
    """Return what the requests in a file of exported events cost. Raises Malformed."""
    account = _Account()
    for request, bodies in load(path).items():
        for body in bodies:
            account.take(request, body)
    return account.reported(by, since, missing=len(account.spending.unreported), passed_over=set())


class _Account:
    """Costs of requests, each as far as its events can be read."""

    def __init__(self) -> None:
        self.spending = spending.Spending()
        self.unreadable: dict[str, str] = {}

    def take(self, request: str, body: bytes) -> None:
        if request in self.unreadable:
            return
        try:
            self.spending.take(codec.decode_event(body))
        except MeshError as broken:
            self.unreadable[request] = one_line(str(broken))

    def reported(self, by: By, since: int, *, missing: int, passed_over: set[str]) -> Reported:
        lines = [line for line in self.spending.lines if line.at >= since]
        rows = _by_model(lines) if by == "model" else _by_group(lines, by)
        report = Report(by, rows, _row_of("total", spending.total(lines), lines))
        unpriced = sorted({model for line in lines for model in line.unpriced})
        return Reported(report, unpriced, missing, passed_over, self.unreadable)


async def _add_journals(bus: Bus, account: spending.Spending) -> set[str]:
    """Count the steps whose rounds no report tells of; return those that were passed over."""
    passed_over = set[str]()
    for turn in account.unreported:
        found = await journaled(bus, turn.request, (turn.agent,), turn.journal, passed_over=passed_over)
        for step in found:
            if step.record.usage is not None and turn.first <= step.round <= turn.last:
                account.add(turn.turn, step.record.usage, step.record.at)
    return passed_over


def _by_group(lines: Sequence[Spent], by: By) -> list[Row]:
    groups = spending.grouped(lines, spending.BY[by])
    return [
        _row_of(name, usage, groups[name]) for name, usage in spending.summed(lines, spending.BY[by]).items()
    ]


def _by_model(lines: Sequence[Spent]) -> list[Row]:
    found = spending.by_model(lines)
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
    whole = spending.total(lines)
    rest = (
        whole.nano_dollars - sum(used.nano_dollars for used in found.values()),
        whole.model_calls - sum(used.calls for used in found.values()),
        whole.tokens - sum(used.total for used in found.values()),
    )
    return [*rows, _row(_NO_MODEL, UNUSED, *rest, 0)] if any(rest) else rows


def _row_of(name: str, usage: Usage, lines: Iterable[Spent]) -> Row:
    """Return a row of turns, summed up."""
    models = sum(usage.models.values(), UNUSED)
    unpriced = sum(line.unpriced_calls for line in lines)
    return _row(name, models, usage.nano_dollars, usage.model_calls, usage.tokens, unpriced)


def _row(
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
