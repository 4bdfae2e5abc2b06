"""Figures: what was measured, over rounds, beside what it is compared with and aimed at; and as text."""

import statistics
from collections.abc import Iterable, Sequence
from typing import Literal

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
