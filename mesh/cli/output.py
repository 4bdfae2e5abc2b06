"""What commands print: results on standard output, everything else on standard error.

Tables and colour appear on a terminal only. Elsewhere a table is one tab-separated line a row, and
nothing is wrapped or cut. Ids are printed whole, times as UTC ISO-8601.
"""

import sys
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console, RenderableType


class Format(StrEnum):
    """How results are shown."""

    TABLE = "table"
    JSON = "json"


def chosen(output: Format, as_json: bool) -> Format:
    """Return the format that `-o` and `--json` ask for."""
    return Format.JSON if as_json else output


def say(text: str) -> None:
    """Print a line of the result."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def remark(text: str) -> None:
    """Print a line beside the result."""
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


def emit(value: Any) -> None:
    """Print a value as JSON: readable on a terminal, one line elsewhere."""
    import msgspec

    encoded = msgspec.json.encode(value)
    if sys.stdout.isatty():
        encoded = msgspec.json.format(encoded, indent=2)
    say(encoded.decode())


def emit_bytes(body: bytes) -> None:
    """Print a line exactly as it is stored."""
    sys.stdout.buffer.write(body + b"\n")
    sys.stdout.flush()


def console() -> "Console":
    """Return where styled text is printed; off a terminal it prints plain text and never wraps."""
    from rich.console import Console

    return Console(
        file=sys.stdout, highlight=False, soft_wrap=not sys.stdout.isatty(), emoji=False, markup=False
    )


def show(*parts: "RenderableType") -> None:
    """Print styled text, a part a line."""
    out = console()
    for part in parts:
        out.print(part)


def table(columns: Sequence[str], rows: Iterable[Sequence[object]], *, whole: Iterable[str] = ()) -> None:
    """Print rows under their columns.

    Args:
        whole: columns that are never broken over lines, such as those of ids.
    """
    if not sys.stdout.isatty():
        for row in (columns, *rows):
            say("\t".join(_plain(cell) for cell in row))
        return
    from rich import box
    from rich.table import Table

    drawn = Table(box=box.SIMPLE, pad_edge=False)
    for column in columns:
        drawn.add_column(column, no_wrap=column in whole, overflow="fold")
    for row in rows:
        drawn.add_row(*(_plain(cell) for cell in row))
    show(drawn)


def _plain(cell: object) -> str:
    text = "" if cell is None else str(cell)
    return short(text, len(text))


def when(at_us: int) -> str:
    """Return a time of events (UTC µs) as ISO-8601 with milliseconds."""
    at = datetime.fromtimestamp(at_us / 1e6, UTC)
    return at.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def without_controls(text: str) -> str:
    """Return text of several lines; on a terminal without what would steer it."""
    if not sys.stdout.isatty():
        return text
    return "".join(char if char.isprintable() or char in "\n\t" else "\ufffd" for char in text)


def short(text: str, most: int) -> str:
    """Return one line of at most `most` characters, without what would steer a terminal."""
    line = "".join(char if char.isprintable() else "\ufffd" for char in " ".join(text.split()))
    return line if len(line) <= most else f"{line[: most - 1]}…"
