"""What repeats in a request's story, folded: `1-40 front ⇄ billing ×20`."""

from collections.abc import Sequence
from typing import NamedTuple

from protocol.views.timeline import TimelineEntry, named

LEAST = 3
"""Times that something has to be there before it is folded."""
_LONGEST = 6
"""Entries of the longest thing that can repeat."""


class Repeat(NamedTuple):
    """Entries that follow each other, the first few of which come again and again."""

    entries: tuple[TimelineEntry, ...]
    period: int
    """How many entries make up one time."""

    @property
    def times(self) -> int:
        return len(self.entries) // self.period

    @property
    def words(self) -> str:
        """Return who did it, in one line: `front ⇄ billing`, or each entry of one time."""
        once = self.entries[: self.period]
        if self.period == 2 and (once[0].from_, once[0].to) == (once[1].to, once[1].from_):
            return f"{once[0].from_} ⇄ {once[0].to}"
        return ", ".join(between(entry) for entry in once)

    @property
    def moves(self) -> str:
        """Return what it was: each move and verdict once."""
        said = dict.fromkeys(
            f"{entry.move} {entry.verdict}" + (f" by rule {entry.rule}" if entry.rule else "")
            for entry in self.entries[: self.period]
        )
        return ", ".join(said)


def between(entry: TimelineEntry) -> str:
    """Return who gave an entry's work to whom."""
    giver = named(entry.from_, entry.sender)
    arrow = "✗" if entry.verdict == "refused" else "→"
    return giver if entry.to is None else f"{giver} {arrow} {entry.to}"


def folded(entries: Sequence[TimelineEntry]) -> list[Repeat]:
    """Return the same entries in order, those that repeat in one `Repeat`, and each other one by itself."""
    alike = [(each.from_, each.to, each.sender, each.move, each.verdict, each.rule) for each in entries]
    found, at = list[Repeat](), 0
    while at < len(entries):
        period, times = max(
            ((period, _times(alike, at, period)) for period in range(1, _LONGEST + 1)),
            key=lambda each: (each[1] >= LEAST, each[0] * each[1], -each[0]),
        )
        end = at + (period * times if times >= LEAST else 1)
        found.append(Repeat(tuple(entries[at:end]), period if times >= LEAST else 1))
        at = end
    return found


def _times(alike: Sequence[tuple[object, ...]], at: int, period: int) -> int:
    """Return how often the next `period` entries are there one time after the other."""
    once, times = alike[at : at + period], 1
    while alike[at + period * times : at + period * (times + 1)] == once:
        times += 1
    return times
