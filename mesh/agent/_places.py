"""Places: where in a round's journal each of its steps is, in the order of the calls.

A round that runs again makes the same calls in the same order, and so meets its records at the same places.
"""

import asyncio
from collections.abc import Callable
from typing import NamedTuple

from mesh.agent._steps import MAX_STEPS, WINDOW, Call
from mesh.agent.errors import Fenced, JournalFull, JournalMismatch
from protocol.wire.records import DONE, FENCE, Record, place_of


class Place(NamedTuple):
    """Where a step is, and what is already stored there."""

    n: int
    name: str
    record: Record | None
    intent: Record | None


class Places:
    """The places of one round."""

    def __init__(self, round_: int) -> None:
        self._round = round_
        self.stored: dict[str, Record] = {}
        """What earlier deliveries of the round recorded, by name."""
        self._next = 0
        self._highest = -1
        """The highest place at which a step is stored."""
        self._free: set[int] = set()
        """Places that were taken and hold no step: theirs are running, or broke."""
        self._running = 0
        self._moved = asyncio.Condition()
        self._order = asyncio.Lock()

    def fill(self, stored: dict[str, Record]) -> None:
        """Load what earlier deliveries of the round recorded, by name."""
        self.stored = stored
        self._highest = max(map(place_of, stored), default=-1)

    def note_stored(self, name: str) -> None:
        """Note that a step was stored just now."""
        self._free.discard(place_of(name))
        self._highest = max(self._highest, place_of(name))

    def holds(self, call: Call) -> bool:
        """Return True if an equal step is recorded that the code has not reached again."""
        ahead = (record for name, record in self.stored.items() if place_of(name) >= self._next)
        return any((record.kind, record.name, record.digest) == call for record in ahead)

    @property
    def has_more(self) -> bool:
        """True if a step is recorded that the code has not reached again."""
        return any(place_of(name) >= self._next for name in self.stored)

    def require_effects_reached(self) -> None:
        """Raise JournalMismatch if an effect is recorded that the code did not reach again."""
        for name, record in self.stored.items():
            if record.kind == "intent" and place_of(name) >= self._next:
                raise JournalMismatch(name, f"effect {record.name}", "nothing more", with_effect=True)

    def free_below(self, n: int) -> list[str]:
        """Return the names of the places below `n` that were taken and hold no step."""
        return [f"{self._round}-{free}" for free in sorted(self._free) if free < n]

    async def take(self, call: Call, *, with_effect: bool) -> Place:
        """Return the next place, in the order of the calls. If it holds nothing, a step runs there until
        `ended`.

        The number of free places below a stored one is limited, so that reading never takes a gap for the
        end.

        Args:
            with_effect: True if the turn's journal has an effect: a mismatch then ends all retries.

        Raises JournalMismatch, JournalFull, Fenced.
        """
        async with self._order, self._moved:
            await self._moved.wait_for(lambda: self._next - self._highest <= WINDOW or not self._running)
            if self._next - self._highest > WINDOW:
                raise JournalFull(f"{WINDOW} steps in a row broke and have no result")
            place = self._placed(call, with_effect)
            if place.record is None:
                self._running += 1
            return place

    def keep_open(self) -> None:
        """Note that a step is not finished when its run ends: `ended` is called once more for it."""
        self._running += 1

    async def ended(self) -> None:
        """Note that a step which ran at its place has ended, in whatever way."""
        self._running -= 1
        async with self._moved:
            self._moved.notify_all()

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait until a condition holds. It is checked whenever a step ends."""
        async with self._moved:
            await self._moved.wait_for(condition)

    def _placed(self, call: Call, with_effect: bool) -> Place:
        if self._next >= MAX_STEPS:
            raise JournalFull(f"a turn journals {MAX_STEPS} steps at most")
        n, self._next = self._next, self._next + 1
        name = f"{self._round}-{n}"
        found = self.stored.get(name)
        if found is None:
            self._free.add(n)
            return Place(n, name, None, None)
        if found.kind == FENCE:
            raise Fenced(f"a later round has fenced this one at step {name}")
        kind = "effect" if found.kind == "intent" else found.kind
        if (kind, found.name, found.digest) != call:
            recorded, called = (f"{what[0]} {what[1]}".strip() for what in ((kind, found.name), call))
            raise JournalMismatch(name, recorded, called, with_effect=with_effect)
        if found.kind == "intent":
            return Place(n, name, self.stored.get(f"{name}{DONE}"), found)
        return Place(n, name, found, None)
