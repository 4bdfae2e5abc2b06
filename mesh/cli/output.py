"""What commands print: results on standard output, everything else on standard error.

Tables and colour appear on a terminal only. Elsewhere a table is one tab-separated line a row, and
nothing is wrapped or cut. Ids are printed whole, times as UTC ISO-8601.

No command writes by another way than this file. Strangers wrote much of what is shown, so every text is made
`printable` here; JSON and stored bytes keep their value, and on a terminal escape what could steer it.
"""

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from io import BytesIO
from typing import TYPE_CHECKING, Any, BinaryIO, TypeVar

from mesh.service.printable import one_line, printable, printable_json

if TYPE_CHECKING:
    from typing import TextIO

    from rich.console import RenderableType

T = TypeVar("T")


def say(text: str, *, lines: bool = False) -> None:
    """Print a line of the result.

    Args:
        lines: the text has several lines; else a line feed in it is written out, so that no stranger's text
            can look like a line of ours.
    """
    _write(sys.stdout, printable(text, lines=lines) + "\n")


def remark(text: str, *, lines: bool = False, end: str = "\n") -> None:
    """Print a line beside the result; `end` is empty where something follows on it."""
    _write(sys.stderr, printable(text, lines=lines) + end)


def note(text: str) -> None:
    """Print a remark of the command's own, as one line."""
    remark(f"mesh: {text}")


def _write(stream: "TextIO", text: str) -> None:
    try:
        stream.write(text)
    except UnicodeEncodeError:  # a terminal whose encoding lacks a character
        encoding = stream.encoding or "ascii"
        stream.write(text.encode(encoding, "backslashreplace").decode(encoding))
    stream.flush()


def emit(value: Any) -> None:
    """Print a value as JSON: readable on a terminal, one line elsewhere."""
    import msgspec

    encoded = msgspec.json.encode(value)
    if sys.stdout.isatty():
        encoded = msgspec.json.format(encoded, indent=2)
    emit_bytes(encoded)


def as_json_text(value: Any) -> str:
    """Return a value as JSON in one line."""
    import msgspec

    return msgspec.json.encode(value).decode()


def as_text(value: Any) -> str:
    """Return a value as people read it: text as it is, everything else as JSON."""
    return value if isinstance(value, str) else as_json_text(value)


def report(value: Any, text: str, *, as_json: bool, lines: bool = False) -> None:
    """Print what one command did: the value for programs, the text for people."""
    if as_json:
        emit(value)
    else:
        say(text, lines=lines)


def emit_bytes(body: bytes) -> None:
    """Print a line of JSON exactly as it is stored; on a terminal, escaped where it would steer it."""
    if sys.stdout.isatty():
        _write(sys.stdout, printable_json(body.decode(errors="backslashreplace")) + "\n")
        return
    emit_raw(body + b"\n")


def emit_raw(body: bytes) -> None:
    """Print bytes exactly as they are; on a terminal as printable text."""
    if sys.stdout.isatty():
        _write(sys.stdout, printable(body.decode(errors="backslashreplace"), lines=True))
        return
    sys.stdout.flush()
    sys.stdout.buffer.write(body)
    sys.stdout.buffer.flush()


def raw_out() -> "Iterator[BinaryIO]":
    """Yield where bytes of any length are written exactly; on a terminal they are shown as printable text."""
    if sys.stdout.isatty():
        shown = BytesIO()
        yield shown
        emit_raw(shown.getvalue())
    else:
        sys.stdout.flush()
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()


class Line:
    """A line of the result with its styles: parts of text, each plain or with a style of rich's."""

    def __init__(self, *parts: str | tuple[str, str]) -> None:
        self.parts = [(part, "") if isinstance(part, str) else part for part in parts]

    def append(self, text: str, style: str = "") -> None:
        self.parts.append((text, style))

    @property
    def plain(self) -> str:
        return "".join(text for text, _ in self.parts)


def show_lines(*lines: Line) -> None:
    """Print lines, on a terminal with their styles; elsewhere they are plain text and never wrapped."""
    if not sys.stdout.isatty():
        for line in lines:
            say(line.plain, lines=True)
        return
    from rich.text import Text

    for line in lines:
        _draw(Text.assemble(*((printable(text, lines=True), style) for text, style in line.parts)))


def _draw(drawn: "RenderableType") -> None:
    from rich.console import Console

    Console(file=sys.stdout, highlight=False, emoji=False, markup=False).print(drawn)


def listing(found: Sequence[T], columns: Mapping[str, Callable[[T], object]], *, as_json: bool) -> None:
    """Print what was found: as JSON, or as a table with a cell by each column's function."""
    if as_json:
        emit(found)
    else:
        table(tuple(columns), [[cell(each) for cell in columns.values()] for each in found])


def table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print rows under their columns; the first column, ids and times are never broken over lines."""
    if not sys.stdout.isatty():
        for row in (columns, *rows):
            say("\t".join(_plain(cell) for cell in row), lines=True)
        return
    from rich import box
    from rich.table import Table

    drawn = Table(box=box.SIMPLE, pad_edge=False)
    for column in columns:
        whole = column in (columns[0], "request", "at", "since")
        drawn.add_column(_plain(column), no_wrap=whole, overflow="fold")
    for row in rows:
        drawn.add_row(*(_plain(cell) for cell in row))
    _draw(drawn)


def _plain(cell: object) -> str:
    return "" if cell is None else one_line(str(cell))
