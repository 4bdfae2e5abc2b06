"""Figures: what was measured, over rounds, beside what it is compared with and aimed at; as text, as a plot.

The plot is SVG: a panel for each axis, cost relative to the smallest size, each point with the spread of its
rounds. It brings its own background and takes the dark colours where the system of its reader is dark, so
that it can be read on any page. Members differ in dash and mark, too.
"""

import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from typing import Literal
from xml.sax.saxutils import escape

import msgspec


class Spread(msgspec.Struct, frozen=True):
    """The median of several rounds, and how far they lay apart."""

    median: float
    low: float
    high: float


def spread(values: Sequence[float]) -> Spread:
    return Spread(statistics.median(values), min(values), max(values))


def ratio(ours: Sequence[float], theirs: Sequence[float]) -> Spread:
    """Return how ours compares with theirs, round by round: rounds that lie together share their weather."""
    return spread([one / other for one, other in zip(ours, theirs, strict=True)])


def percentile(values: Sequence[float], share: float) -> float:
    """Return the value below which `share` (0 to 1) of the values lie."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


class Target(msgspec.Struct, frozen=True):
    """What we aim at."""

    bound: Literal["at most", "at least"]
    value: float

    def is_met(self, value: float) -> bool:
        return value <= self.value if self.bound == "at most" else value >= self.value


class Figure(msgspec.Struct, frozen=True, omit_defaults=True):
    """One line of the report. A target is about the ratio where there is one, else about the figure."""

    name: str
    unit: str
    value: Spread
    yardstick: Spread | None = None
    ratio: Spread | None = None
    target: Target | None = None

    @property
    def met(self) -> bool | None:
        """True if the target is met; None without one."""
        judged = self.ratio or self.value
        return None if self.target is None else self.target.is_met(judged.median)


class Use(msgspec.Struct, frozen=True):
    """What one process used per request, the median of the rounds."""

    side: str
    member: str
    cpu_ms: float
    wakeups: float


class Point(msgspec.Struct, frozen=True):
    """What was measured at one size."""

    size: int
    value: Spread


class Curve(msgspec.Struct, frozen=True):
    """What one member's cost does along one axis, relative to the smallest size."""

    axis: str
    member: str
    points: list[Point]


class Report(msgspec.Struct, frozen=True):
    """All of a run."""

    machine: dict[str, str]
    figures: list[Figure]
    use: list[Use]
    notes: list[str]
    curves: list[Curve] = []


# --- a report as text ------------------------------------------------------------------------------


def as_text(report: Report) -> str:
    """Return the report for a terminal: plain text, no colour."""
    parts = [[f"{name}: {value}" for name, value in report.machine.items()]]
    groups = (_figures(report.figures), _use(report.use))
    parts += [_table(group) for group in groups if len(group) > 1]
    if report.notes:
        parts.append(report.notes)
    return "\n\n".join("\n".join(part) for part in parts)


def _figures(figures: Iterable[Figure]) -> list[list[str]]:
    rows = [["measured", "", "median (min-max)", "beside", "ratio (min-max)", "target", ""]]
    for figure in figures:
        target = figure.target
        rows.append(
            [
                figure.name,
                figure.unit,
                _spread(figure.value),
                _spread(figure.yardstick),
                _spread(figure.ratio, 2),
                "" if target is None else f"{target.bound} {_number(target.value)}",
                {True: "met", False: "MISSED", None: ""}[figure.met],
            ]
        )
    return rows


def _use(used: Iterable[Use]) -> list[list[str]]:
    rows = [["per request, 64 at a time", "side", "CPU ms", "wake-ups"]]
    rows += [[use.member, use.side, f"{use.cpu_ms:.3f}", f"{use.wakeups:.1f}"] for use in used]
    return rows


def _spread(spread: Spread | None, digits: int | None = None) -> str:
    if spread is None:
        return ""
    median, low, high = (_number(value, digits) for value in (spread.median, spread.low, spread.high))
    return f"{median} ({low}-{high})"


def _number(value: float, digits: int | None = None) -> str:
    if digits is None:
        digits = 0 if value >= 100 else 2
    return f"{value:,.{digits}f}"


def _table(rows: list[list[str]]) -> list[str]:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    ]


# --- as a plot -------------------------------------------------------------------------------------

_WIDTH, _HEIGHT, _COLUMNS = 360, 250, 2
_LEFT, _RIGHT, _TOP, _BOTTOM = 46, 20, 40, 44
_LIMIT = 1.2
_DASHES = {"guard": "", "server": ' stroke-dasharray="6 4"'}
_STYLE = """
.page { fill: #ffffff } text { fill: #24292f; font: 12px sans-serif } .title { font-weight: bold }
.axis, .grid { stroke: #d0d7de; fill: none } .limit { stroke: #8c2d04; stroke-dasharray: 2 3; fill: none }
.guard { stroke: #0550ae; fill: #0550ae } .server { stroke: #bc4c00; fill: #bc4c00 }
.line { fill: none; stroke-width: 2 }
@media (prefers-color-scheme: dark) {
.page { fill: #0d1117 } text { fill: #e6edf3 } .axis, .grid { stroke: #3d444d } .limit { stroke: #ffa28b }
.guard { stroke: #79c0ff; fill: #79c0ff } .server { stroke: #ffa657; fill: #ffa657 } .line { fill: none }
}
"""


def as_svg(curves: Sequence[Curve]) -> str:
    """Return the plot of `curves`, those of one axis in one panel."""
    axes = list(dict.fromkeys(curve.axis for curve in curves))
    top = max([1.5, *(point.value.high for curve in curves for point in curve.points)]) * 1.05
    rows = -(-len(axes) // _COLUMNS)
    width, height = _COLUMNS * _WIDTH, rows * _HEIGHT
    panels = [
        f'<g transform="translate({at % _COLUMNS * _WIDTH} {at // _COLUMNS * _HEIGHT})">{panel}</g>'
        for at, axis in enumerate(axes)
        for panel in ["".join(_panel(axis, [curve for curve in curves if curve.axis == axis], top))]
    ]
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}"'
        f' height="{height}" role="img" aria-labelledby="name">\n'
        '<title id="name">CPU of guard and server per event, relative to the smallest size</title>\n'
        f"<style>{_STYLE}</style>\n"
        f'<rect class="page" width="{width}" height="{height}"/>\n' + "\n".join(panels) + "\n</svg>\n"
    )


def _panel(axis: str, curves: Sequence[Curve], top: float) -> Iterable[str]:
    sizes = sorted({point.size for curve in curves for point in curve.points})
    least, most = math.log(sizes[0]), math.log(sizes[-1])

    def x(size: float) -> float:
        share = (math.log(size) - least) / ((most - least) or 1)
        return _LEFT + share * (_WIDTH - _LEFT - _RIGHT)

    def y(value: float) -> float:
        return _HEIGHT - _BOTTOM - value / top * (_HEIGHT - _TOP - _BOTTOM)

    yield f'<text class="title" x="{_LEFT}" y="16">{escape(axis)}</text>'
    for value in range(int(top) + 1):
        yield f'<path class="grid" d="M{_LEFT} {y(value):.1f}H{_WIDTH - _RIGHT}"/>'
        yield f'<text x="{_LEFT - 6}" y="{y(value) + 4:.1f}" text-anchor="end">{value}</text>'
    yield f'<path class="limit" d="M{_LEFT} {y(_LIMIT):.1f}H{_WIDTH - _RIGHT}"/>'
    for size in sizes:
        yield (f'<text x="{x(size):.1f}" y="{_HEIGHT - _BOTTOM + 18}" text-anchor="middle">{size:,}</text>')
    for at, curve in enumerate(curves):
        kind, dash = curve.member, _DASHES[curve.member]
        points = sorted(curve.points, key=lambda point: point.size)
        line = " ".join(f"{x(point.size):.1f},{y(point.value.median):.1f}" for point in points)
        yield f'<polyline class="line {kind}" points="{line}"{dash}/>'
        yield from (_mark(kind, x(point.size), point, y) for point in points)
        left = _LEFT + at * 90
        yield f'<path class="line {kind}" d="M{left} {_HEIGHT - 12}h24"{dash}/>'
        yield f'<text x="{left + 30}" y="{_HEIGHT - 8}">{escape(curve.member)}</text>'


def _mark(kind: str, x: float, point: Point, y: Callable[[float], float]) -> str:
    """Return a point with the spread of its rounds."""
    spread, at = point.value, y(point.value.median)
    bar = f'<path class="{kind}" d="M{x:.1f} {y(spread.low):.1f}V{y(spread.high):.1f}"/>'
    if kind == "guard":
        return f'{bar}<circle class="{kind}" cx="{x:.1f}" cy="{at:.1f}" r="4"/>'
    return f'{bar}<rect class="{kind}" x="{x - 3.5:.1f}" y="{at - 3.5:.1f}" width="7" height="7"/>'
