"""A recorded terminal as an animated SVG: each line appears when it was written, and all stay.

Colours are read from the terminal's own escapes by rich. Where motion is not wanted, everything is shown.
"""

from collections.abc import Iterator, Sequence
from html import escape
from typing import NamedTuple

from rich.color import ColorParseError
from rich.console import Console
from rich.style import Style
from rich.terminal_theme import MONOKAI
from rich.text import Text

COLUMNS = 104
_WIDTH, _HEIGHT, _MARGIN, _HEAD = 8.43, 19, 14, 34
LONGEST_PAUSE_S = 1.5


class Chunk(NamedTuple):
    """What was written at once."""

    at_s: float
    data: bytes


class TimedLine(NamedTuple):
    """A line of the terminal, and how long after the beginning it was whole."""

    at_s: float
    text: str


def lines_of(chunks: Sequence[Chunk]) -> list[TimedLine]:
    """Return the lines that were written, long pauses cut."""
    found, rest, now, before = [], "", 0.0, chunks[0].at_s
    for chunk in chunks:
        now += min(chunk.at_s - before, LONGEST_PAUSE_S)
        before = chunk.at_s
        *whole, rest = (rest + chunk.data.decode(errors="replace")).replace("\r", "").split("\n")
        found += [TimedLine(now, line) for line in whole]
    return found


def drawn(chunks: Sequence[Chunk], title: str) -> str:
    """Return the picture of what was written on a terminal of `COLUMNS` columns."""
    console = Console(width=COLUMNS, color_system="truecolor")
    rows = [
        (line.at_s, row)
        for line in lines_of(chunks)
        for row in Text.from_ansi(line.text).wrap(console, COLUMNS, no_wrap=False) or [Text()]
    ]
    width, height = COLUMNS * _WIDTH + 2 * _MARGIN, len(rows) * _HEIGHT + _HEAD + _MARGIN
    body = "\n".join(_row(number, at_s, row) for number, (at_s, row) in enumerate(rows))
    return f"""<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height}" role="img">
<title>{escape(title)}</title>
<style>
text {{ font: 14px ui-monospace, "DejaVu Sans Mono", Menlo, Consolas, monospace }}
text {{ white-space: pre; fill: #d9d9d9 }}
.row {{ opacity: 0; animation: come 1ms forwards }}
@keyframes come {{ to {{ opacity: 1 }} }}
@media (prefers-reduced-motion: reduce) {{ .row {{ opacity: 1; animation: none }} }}
</style>
<rect width="100%" height="100%" rx="8" fill="#16181d"/>
<circle cx="18" cy="17" r="5" fill="#ff5f57"/><circle cx="36" cy="17" r="5" fill="#febc2e"/>
<circle cx="54" cy="17" r="5" fill="#28c840"/>
{body}
</svg>
"""


def _row(number: int, at_s: float, row: Text) -> str:
    y = _HEAD + number * _HEIGHT + _HEIGHT - 5
    spans = "".join(_spans(row))
    delay = f"animation-delay:{at_s:.2f}s"
    return f'<g class="row" style="{delay}"><text x="{_MARGIN}" y="{y}">{spans}</text></g>'


def _spans(row: Text) -> Iterator[str]:
    console = Console(color_system="truecolor")
    for segment in row.render(console):
        text = escape(segment.text.rstrip("\n"))
        if text:
            attributes = _attributes(segment.style or Style())
            yield f"<tspan{attributes}>{text}</tspan>" if attributes else text


def _attributes(style: Style) -> str:
    found = ""
    if style.color is not None and not style.color.is_default:
        try:
            found += f' fill="{style.color.get_truecolor(MONOKAI).hex}"'
        except ColorParseError:
            found = ""
    if style.bold:
        found += ' font-weight="bold"'
    if style.dim:
        found += ' opacity="0.6"'
    return found
