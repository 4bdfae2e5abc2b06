"""Figures: what was measured, over rounds, beside what it is to be compared with and what we aim at."""

import statistics
from collections.abc import Sequence
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
        """Whether the target is met; None without one."""
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
