"""The places of a round's journal: what stands where, and which step takes the next place.

Places are given out in the order of the calls. One at which a step stands already belongs to the same call
as then; another order is a `JournalMismatch`, never a guess.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from mesh.agent.record import DONE, Call, Record, place_of
from mesh.agent.stops import Fenced, JournalFull, JournalMismatch
from mesh.agent.stored import FENCE, MAX_STEPS, WINDOW


@dataclass(frozen=True, slots=True)
class Place:
    """Where a step is, and what is there already."""

    n: int
    nth: int
    """Which of the round's calls it is, those that were taken over from earlier rounds counted too."""
    record: Record | None
    intent: Record | None


class Places:
    """The places of one round."""

    def __init__(self, round_: int) -> None:
        self._round = round_
        self._stored: dict[str, Record] = {}
        self._next = 0
        self._highest = -1
        """The highest place at which a step is stored."""
        self._free: set[int] = set()
        """Places that were taken and hold nothing: their steps run, or broke."""
        self._running = 0
        self._moved = asyncio.Condition()
        self._order = asyncio.Lock()

    def name(self, n: int) -> str:
        """Return the name of the step at a place."""
        return f"{self._round}-{n}"

    # --- what stands ------------------------------------------------------------------------------

    def fill(self, stored: dict[str, Record]) -> None:
        """Take in what earlier deliveries of the round recorded, by name."""
        self._stored = stored
        self._highest = max(map(place_of, stored), default=-1)

    def stands(self, name: str) -> None:
        """Take note of a step that was stored just now."""
        self._free.discard(place_of(name))
        self._highest = max(self._highest, place_of(name))

    @property
    def version(self) -> str | None:
        """The agent's version that recorded the first step; None if there was none to begin with."""
        first = self._stored.get(self.name(0))
        return None if first is None else first.version

    def holds(self, call: Call) -> bool:
        """Say whether an equal step is recorded that the code has not come to again."""
        ahead = (record for name, record in self._stored.items() if place_of(name) >= self._next)
        return any((record.kind, record.name, record.digest) == call for record in ahead)

    def require_effects_come_to(self) -> None:
        """Raise JournalMismatch where an effect is recorded that the code did not come to again."""
        for name, record in self._stored.items():
            if record.kind == "intent" and place_of(name) >= self._next:
                raise JournalMismatch(name, f"effect {record.name}", "nothing more", with_effect=True)

    def free_beneath(self, n: int) -> list[str]:
        """Return the names of the places below `n` that were taken and hold nothing."""
        return [self.name(free) for free in sorted(self._free) if free < n]

    # --- taking -----------------------------------------------------------------------------------

    async def take(self, call: Call, nth: int, *, with_effect: bool) -> Place:
        """Return the next place, in the order of the calls. Where nothing stands, a step runs until `ended`.

        So many places may be free beneath a stored one that reading does not take the gap for the end.

        Args:
            with_effect: whether the turn's journal has an effect: then a mismatch is no try's end alone.

        Raises JournalMismatch, JournalFull, Fenced.
        """
        async with self._order:
            while self._next - self._highest > WINDOW:
                if self._running == 0:
                    raise JournalFull(f"{WINDOW} steps in a row broke: nothing came of them")
                async with self._moved:
                    await self._moved.wait()
            place = self._placed(call, nth, with_effect)
            if place.record is None:
                self._running += 1
            return place

    async def ended(self) -> None:
        """A step that ran at its place has come to its end, whatever that was."""
        self._running -= 1
        async with self._moved:
            self._moved.notify_all()

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait until a condition holds, which is looked at whenever a step ends."""
        async with self._moved:
            await self._moved.wait_for(condition)

    def _placed(self, call: Call, nth: int, with_effect: bool) -> Place:
        if self._next >= MAX_STEPS:
            raise JournalFull(f"a turn journals {MAX_STEPS} steps at most")
        n, self._next = self._next, self._next + 1
        name = self.name(n)
        found = self._stored.get(name)
        if found is None:
            self._free.add(n)
            return Place(n, nth, None, None)
        if found.kind == FENCE:
            raise Fenced(f"a later round has fenced this one at step {name}")
        kind = "effect" if found.kind == "intent" else found.kind
        if (kind, found.name, found.digest) != call:
            recorded, called = (f"{what[0]} {what[1]}".strip() for what in ((kind, found.name), call))
            raise JournalMismatch(name, recorded, called, with_effect=with_effect)
        if found.kind == "intent":
            return Place(n, nth, self._stored.get(f"{name}{DONE}"), found)
        return Place(n, nth, found, None)
