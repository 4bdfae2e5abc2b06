"""What commands print: results on standard output, everything else on standard error.

On a terminal a table fits its width. It has one line per row, ages for times, prefixes for ids, long text cut
with `…`, and no columns for which there is no room. Elsewhere a row is one tab-separated line, and nothing is
wrapped or cut: ids are whole, times are UTC ISO-8601. Colour appears only on a terminal.

Every command writes through this file. Much of what is shown was written by strangers, so every text is made
`printable` here. JSON and stored bytes keep their value, and on a terminal escape what could steer it.
"""

import contextlib
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from io import BytesIO, StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, TextIO, TypeVar

import click

from mesh.errors import UsageWrong
from mesh.service.printable import Line as Line
from mesh.service.printable import as_json_text as as_json_text
from mesh.service.printable import as_program_reads, clock, one_line, printable, printable_json, when
from mesh.service.printable import as_text as as_text

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.text import Text

T = TypeVar("T")


def say(text: str, *, lines: bool = False) -> None:
    """Print a line of the result.

    Args:
        lines: True if the text has several lines; else a line feed in it is written out, so that no foreign
            text can look like a line of ours.
    """
    _write(sys.stdout, printable(text, lines=lines) + "\n")


def remark(text: str, *, lines: bool = False, end: str = "\n") -> None:
    """Print a line beside the result; `end` is empty if something follows on it."""
    _write(sys.stderr, printable(text, lines=lines) + end)


def prints_to_stderr() -> contextlib.AbstractContextManager[object]:
    """Lead what other code prints to standard error, where standard output is to be JSON."""
    return contextlib.redirect_stdout(sys.stderr)


def note(text: str) -> None:
    """Print a remark of the command itself, as one line."""
    remark(f"mesh: {text}")


def _write(stream: TextIO, text: str) -> None:
    try:
        stream.write(text)
    except UnicodeEncodeError:  # the terminal's encoding lacks a character
        encoding = stream.encoding or "ascii"
        stream.write(text.encode(encoding, "backslashreplace").decode(encoding))
    stream.flush()


def emit(value: Any) -> None:
    """Print a value as JSON with its times as ISO-8601: readable on a terminal, one line elsewhere."""
    emit_built(as_program_reads(value))


def emit_built(value: Any) -> None:
    """Print as JSON what is already made for programs: plain values, and stored JSON unchanged."""
    import msgspec

    emit_parts((msgspec.json.encode(value),))


def emit_parts(parts: Iterable[bytes]) -> None:
    """Print a value that is JSON in parts, of any length: readable on a terminal, one line elsewhere."""
    import msgspec

    if sys.stdout.isatty():
        emit_bytes(msgspec.json.format(b"".join(parts), indent=2))
        return
    for part in parts:
        emit_raw(part)
    emit_raw(b"\n")


def report(value: Any, text: str, *, as_json: bool, lines: bool = False) -> None:
    """Print the result of a command: the value for programs, the text for people."""
    if as_json:
        emit(value)
    else:
        say(text, lines=lines)


def emit_bytes(body: bytes) -> None:
    """Print a line of JSON exactly as it is stored; on a terminal, escaped where it could steer it."""
    if sys.stdout.isatty():
        _write(sys.stdout, printable_json(body.decode(errors="backslashreplace")) + "\n")
        return
    emit_raw(body + b"\n")


def write_page(path: Path, page: str) -> None:
    """Write a page of HTML to a file. Raises UsageWrong."""
    try:
        path.write_text(page, encoding="utf-8")
    except OSError as wrong:
        raise UsageWrong(f"{path}: {wrong.strerror}") from wrong


def emit_raw(body: bytes) -> None:
    """Print bytes exactly as they are; on a terminal as printable text."""
    if sys.stdout.isatty():
        _write(sys.stdout, printable(body.decode(errors="backslashreplace"), lines=True))
        return
    sys.stdout.flush()
    sys.stdout.buffer.write(body)
    sys.stdout.buffer.flush()


def raw_out() -> Iterator[BinaryIO]:
    """Yield where bytes of any length are written exactly; on a terminal they are shown as printable text."""
    if sys.stdout.isatty():
        shown = BytesIO()
        yield shown
        emit_raw(shown.getvalue())
    else:
        sys.stdout.flush()
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()


def show_lines(*lines: Line) -> None:
    """Print lines, on a terminal with their styles; elsewhere as plain text that is never wrapped."""
    if not sys.stdout.isatty():
        for line in lines:
            say(line.plain, lines=True)
        return
    for line in lines:
        _draw(_styled(line))


def _styled(line: Line) -> "Text":
    from rich.text import Text

    return Text.assemble(*((printable(text, lines=True), style) for text, style in line.parts))


def _draw(drawn: "RenderableType") -> None:
    _console().print(drawn)


def _console() -> "Console":
    from rich.console import Console

    return Console(file=sys.stdout, highlight=False, emoji=False, markup=False)


# --- what is read at length -------------------------------------------------------------------------

MOST_COLUMNS = 80
"""Columns at which words are wrapped: longer lines are hard to read."""
_HANG = 2


class _Page(StringIO):
    """A command's output, kept until it is known whether the terminal has room for it."""

    def __init__(self, terminal: TextIO) -> None:
        super().__init__()
        self._terminal = terminal

    @property
    def encoding(self) -> str:  # type: ignore[override] # the terminal's own
        return self._terminal.encoding

    def isatty(self) -> bool:
        return True


@contextlib.contextmanager
def paged() -> Iterator[None]:
    """Show what the block prints in a pager, as git does, if the terminal has too few lines for it.

    PAGER names the pager; if it is empty or missing, there is none. Elsewhere everything is written directly.
    """
    terminal = sys.stdout
    if not terminal.isatty():
        yield
        return
    page = _Page(terminal)
    sys.stdout = page
    try:
        yield
    finally:
        sys.stdout = terminal
        text = page.getvalue()
        if text.count("\n") < shutil.get_terminal_size().lines or os.environ.get("PAGER") == "":
            _write(terminal, text)
        else:
            os.environ.setdefault("LESS", "FRX")
            click.echo_via_pager(text.removesuffix("\n"))


def read_lines(*lines: Line | str) -> None:
    """Print lines for reading: on a terminal, words are wrapped at 80 columns, each line separately."""
    if not sys.stdout.isatty():
        show_lines(*(Line(line) if isinstance(line, str) else line for line in lines))
        return
    console, most = _console(), min(MOST_COLUMNS, screen_width())
    for line in lines:
        text = _styled(Line(line) if isinstance(line, str) else line)
        if text.cell_len <= most:
            console.print(text)
            continue
        hang = min(len(text.plain) - len(text.plain.lstrip()) + _HANG, most // 2)
        first, *rest = text.wrap(console, most - hang)
        console.print(first)
        for more in rest:
            more.pad_left(hang)
            console.print(more)


# --- tables ---------------------------------------------------------------------------------------

DIGITS = 12
"""Of a digest, as a table shows it."""


class At(int):
    """A cell that is a time (UTC µs): on a terminal how long ago it was."""

    __slots__ = ()


class Id(str):
    """A cell that is a request's id: on a terminal a prefix, which every command accepts for the id."""

    __slots__ = ()


_GAP = 2
_LEAST_TEXT = 12
"""A text is not cut to fewer columns than this, as long as another column can be left out."""
_LEAST_ULID = 12
"""Characters of a ULID in a prefix: the ten of its milliseconds, and ten bits of its entropy."""
_AGES = ((1, "s"), (60, "m"), (3600, "h"), (86_400, "d"))


def listing(
    found: Sequence[T],
    columns: Mapping[str, Callable[[T], object]],
    *,
    as_json: bool,
    spare: Sequence[str] = (),
) -> None:
    """Print what was found: as JSON, or as a table whose cells each column's function returns."""
    if as_json:
        emit(found)
    else:
        rows = [[cell(each) for cell in columns.values()] for each in found]
        table(tuple(columns), rows, spare=spare)


def table(columns: Sequence[str], rows: Iterable[Sequence[object]], *, spare: Sequence[str] = ()) -> None:
    """Print rows under their columns.

    Args:
        spare: columns that a narrow terminal leaves out, in that order.
    """
    if not sys.stdout.isatty():
        for row in (columns, *rows):
            say("\t".join(_plain(cell) for cell in row), lines=True)
        return
    from rich.table import Table

    cells = list(rows)
    shown = [(name, [row[at] for row in cells]) for at, name in enumerate(columns)]
    texts = {name: _as_column(column) for name, column in shown}
    whole = {name for name, column in shown if all(isinstance(cell, int | Id | None) for cell in column)}
    widths = _fitting({name: [name, *texts[name]] for name in columns}, whole | {columns[0]}, spare)
    drawn = Table(box=None, pad_edge=False, padding=(0, _GAP, 0, 0), collapse_padding=True)
    for name, column in shown:
        if name in widths:
            numbers = column and all(isinstance(cell, int) and not isinstance(cell, At) for cell in column)
            side: Any = "right" if numbers else "left"
            drawn.add_column(
                _plain(name), no_wrap=True, overflow="ellipsis", width=widths[name], justify=side
            )
    for at in range(len(cells)):
        drawn.add_row(*(texts[name][at] for name in widths))
    _draw(drawn)


def _fitting(texts: Mapping[str, list[str]], whole: set[str], spare: Sequence[str]) -> dict[str, int]:
    """Return the width of each column that a terminal has room for, in order.

    Args:
        texts: each column's texts, including its name.
        whole: columns that are not cut.
        spare: columns to leave out, in this order, if the others would get less than `_LEAST_TEXT` each.
    """
    from rich.cells import cell_len

    wanted = {name: max(map(cell_len, map(_plain, column))) for name, column in texts.items()}
    least = {name: width if name in whole else min(width, _LEAST_TEXT) for name, width in wanted.items()}
    left = list(spare)
    while sum(least.values()) + _GAP * (len(least) - 1) > screen_width() and left:
        least.pop(left.pop(0), None)
    room = screen_width() - sum(least.values()) - _GAP * (len(least) - 1)
    for name in sorted(least, key=lambda name: wanted[name] - least[name]):
        cut = [each for each in least if least[each] < wanted[each]]
        if name in cut and room > 0:
            more = min(wanted[name] - least[name], room // len(cut))
            least[name] += more
            room -= more
    return least


def _as_column(cells: Sequence[object]) -> list[str]:
    """Return a column's cells as a terminal shows them."""
    ids = {cell for cell in cells if isinstance(cell, Id)}
    return [
        _prefix(cell, ids) if isinstance(cell, Id) else age(cell) if isinstance(cell, At) else _plain(cell)
        for cell in cells
    ]


def _prefix(request: str, others: Iterable[str]) -> str:
    """Return the shortest prefix of an id that no other id in the table has."""
    submitter, _, tail = request.rpartition("_")
    for length in range(_LEAST_ULID, len(tail)):
        prefix = f"{submitter}_{tail[:length]}"
        if not any(each.startswith(prefix) for each in others if each != request):
            return _plain(prefix)
    return _plain(request)


def age(at_us: int) -> str:
    """Return how long ago a time was, in its largest unit: `7s`, `3m`, `2h`, `5d`; `now` for a future one."""
    seconds = int(time.time() - at_us / 1e6)
    size, unit = next((each for each in reversed(_AGES) if seconds >= each[0]), (1, ""))
    return f"{seconds // size}{unit} ago" if unit else "now"


def row(*cells: object) -> None:
    """Print one line of an ongoing listing: on a terminal at most as wide as it, elsewhere in full."""
    if not sys.stdout.isatty():
        say("  ".join(map(_plain, cells)), lines=True)
        return
    from rich.cells import cell_len, set_cell_size

    line = "  ".join(_in_passing(cell) for cell in cells)
    width = screen_width()
    say(line if cell_len(line) <= width else set_cell_size(line, width - 1).rstrip() + "…", lines=True)


def _in_passing(cell: object) -> str:
    if isinstance(cell, At):
        return clock(cell)
    return _prefix(cell, ()) if isinstance(cell, Id) else _plain(cell)


def screen_width() -> int:
    """Return how many characters a line of the terminal has."""
    from rich.console import Console

    return Console(file=sys.stdout).width


def _plain(cell: object) -> str:
    if isinstance(cell, At):
        return when(cell)
    return "" if cell is None else one_line(str(cell))
