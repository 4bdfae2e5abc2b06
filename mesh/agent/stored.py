"""Stored steps: one turn's journal in the stream, read by round, written once, closed by a fence.

A fence takes the next free place of an earlier round, and every place that was left free below it, so
that whoever still runs that round finds taken whatever it wants to write next.
"""

import asyncio
import time

import msgspec

from mesh.agent.record import DONE, Record, decode, place_of
from mesh.bus.step_store import StepStore, StepTaken

WINDOW = 16
"""Steps read at once, and the most that may run at once: a gap longer than this ends a round's journal."""
MAX_STEPS = 1_000
FENCE = "fence"


class StoredSteps:
    """The steps of one turn."""

    def __init__(self, store: StepStore, *, request: str, turn: str, nonce: str, version: str) -> None:
        self._store = store
        self._request, self._turn = request, turn
        self._nonce, self._version = nonce, version

    async def read(self, round_: int, first: int = 0) -> dict[str, Record]:
        """Return a round's steps by name, from place `first` on. Raises BusError."""
        found: dict[str, Record] = {}
        for n in range(first, MAX_STEPS + WINDOW, WINDOW):
            names = [f"{round_}-{at}{tail}" for at in range(n, n + WINDOW) for tail in ("", DONE)]
            reads = (self._store.get(self._request, self._turn, name) for name in names)
            bodies = await asyncio.gather(*reads)
            part = {name: decode(body) for name, body in zip(names, bodies, strict=True) if body}
            if not part:
                break
            found |= part
        return found

    async def close(self, round_: int) -> dict[str, Record]:
        """Fence an earlier round, and return the steps that it had come to by then. Raises BusError.

        What is read after the fence stood is all there is: an effect whose intent came later is not
        begun, since its writer looks at the free places below it first.
        """
        found = await self.read(round_)
        while not _is_closed(found):
            end = max(map(place_of, found), default=-1) + 1
            free = [n for n in range(end) if f"{round_}-{n}" not in found]
            for n in (*free, end):
                await self.put(f"{round_}-{n}", self._fence())
            found |= await self.read(round_, first=min((*free, end)))
        return found

    def _fence(self) -> bytes:
        at = time.time_ns() // 1000
        fence = Record(kind=FENCE, name=FENCE, version=self._version, nonce=self._nonce, at=at)
        return msgspec.json.encode(fence)

    async def put(self, name: str, body: bytes) -> bool:
        """Store a step; say whether the one that stands there is ours."""
        try:
            await self._store.put(self._request, self._turn, name, body)
        except StepTaken:
            standing = await self.get(name)
            return standing is not None and standing.nonce == self._nonce
        return True

    async def get(self, name: str) -> Record | None:
        """Return one step; None if it was not written."""
        body = await self._store.get(self._request, self._turn, name)
        return None if body is None else decode(body)


def _is_closed(found: dict[str, Record]) -> bool:
    """Say whether a round's last place is a fence, and no place below it is free."""
    places = {place_of(name) for name in found}
    last = max(places, default=-1)
    highest = [record for name, record in found.items() if place_of(name) == last]
    return any(record.kind == FENCE for record in highest) and len(places) == last + 1
