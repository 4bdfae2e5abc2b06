"""Events as a table, for DuckDB, polars and pandas: a Parquet file with one row an event.

    with EventFrames(file) as frames:
        for body in bodies:
            frames.add(body)

It takes the extra `frames` (pyarrow). Rows are written by the ten thousand: a long log needs no memory.
"""

from types import TracebackType
from typing import Any, BinaryIO, Self

from mesh.errors import MeshError, UsageWrong
from mesh.ops.log import header_of
from protocol.wire import codec
from protocol.wire.events import AnyEvent
from protocol.wire.ids import submitter_of

COLUMNS = {
    "request": "string",
    "n": "int32",
    "at": "timestamp",
    "type": "string",
    "to": "string",
    "client": "string",
    "turn": "string",
    "round": "int32",
    "giver": "string",
    "taker": "string",
    "move": "string",
    "rule": "string",
    "code": "string",
    "depth": "int32",
    "version": "string",
    "nano_dollars": "int64",
    "tokens": "int64",
    "model_calls": "int64",
    "body": "string",
}
"""Columns in order, with types. What an event does not have is null; `body` is the whole event as JSON."""
_AT_ONCE = 10_000


class EventFrames:
    """Writes events to a Parquet file. Raises UsageWrong where the extra is not installed."""

    def __init__(self, file: BinaryIO) -> None:
        try:
            import pyarrow
            from pyarrow import parquet
        except ImportError:
            raise UsageWrong("Parquet takes the extra `frames`: pip install 'handoff-mesh[frames]'") from None
        types = {
            "string": pyarrow.string(),
            "int32": pyarrow.int32(),
            "int64": pyarrow.int64(),
            "timestamp": pyarrow.timestamp("us", tz="UTC"),
        }
        self._schema = pyarrow.schema([(name, types[kind]) for name, kind in COLUMNS.items()])
        self._batch = pyarrow.RecordBatch.from_pylist
        self._writer = parquet.ParquetWriter(file, self._schema, compression="zstd")
        self._rows: list[dict[str, Any]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self._write()
        self._writer.close()

    def add(self, body: bytes) -> None:
        """Add a stored event. One that this version cannot read has its envelope and its body."""
        self._rows.append(row_of(body))
        if len(self._rows) >= _AT_ONCE:
            self._write()

    def _write(self) -> None:
        if self._rows:
            self._writer.write_batch(self._batch(self._rows, schema=self._schema))
            self._rows = []


def row_of(body: bytes) -> dict[str, Any]:
    """Return the columns of one stored event, by name."""
    row: dict[str, Any] = {"body": body.decode(errors="replace")}
    seen = header_of(body)
    if seen is None:
        return row
    row |= {"request": seen.request, "n": seen.n, "at": seen.at, "type": seen.type, "to": seen.to}
    row["client"] = submitter_of(seen.request)
    try:
        event = codec.decode_event(body)
    except MeshError:
        return row
    return row | _fields(event)


def _fields(event: AnyEvent) -> dict[str, Any]:
    found: dict[str, Any] = {"turn": event.turn or None}
    if event.round >= 0:
        found["round"] = event.round
    if event.work is not None:
        handoff = event.work.handoff
        found |= {"turn": event.work.turn, "round": event.work.round, "depth": event.work.depth}
        found |= {"giver": handoff.from_agent, "taker": handoff.to_agent, "move": handoff.move}
    if event.refusal is not None:
        found["rule"] = str(event.refusal.rule)
        if (move := getattr(event, "move", None)) is not None:
            found |= {"move": move.name, "taker": move.to_agent}
            found["giver"] = getattr(event.grounds and event.grounds.sender, "name", None)
    error = getattr(event, "error", None)
    found["code"] = getattr(event, "code", None) or getattr(error, "code", None)
    if event.report is not None:
        usage = event.report.usage
        found |= {"nano_dollars": usage.nano_dollars, "tokens": usage.tokens}
        found |= {"model_calls": usage.model_calls, "version": event.report.version or None}
    return found
