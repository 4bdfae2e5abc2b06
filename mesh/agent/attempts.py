"""Attempts at a round: how a turn that kills its process is told from one that was merely moved.

From the second delivery on, `<round>-a<k>` is written before the handler runs and `<round>-b<k>` when the
turn is given back in good order. The server's count of deliveries would count drains and frozen pulls too.
An instance that was held up finds in the same steps that another one has taken the round over meanwhile.
"""

from mesh.bus.step_store import StepStore, StepTaken

CRASHES = 5
"""More attempts than were given back: the turn kills whoever runs it."""
_MOST = 1_000


class Attempts:
    """The attempts at one round of a turn."""

    def __init__(self, store: StepStore, *, request: str, turn: str, round_: int) -> None:
        self._store = store
        self._request, self._turn, self._round = request, turn, round_
        self._own = -1
        """The number of this attempt; the first one is not counted."""

    async def is_crash_loop(self) -> bool:
        """Count this attempt in; say whether so many before it never came back. Raises BusError."""
        begun = self._own = await self._write_next("a")
        returned = await self._count("b")
        return begun - returned >= CRASHES

    async def is_overtaken(self) -> bool:
        """Say whether a later attempt has begun. Raises BusError."""
        later = f"{self._round}-a{self._own + 1}"
        return await self._store.get(self._request, self._turn, later) is not None

    async def given_back(self) -> None:
        """Note that this attempt ended in good order. Raises BusError."""
        await self._write_next("b")

    async def _write_next(self, kind: str) -> int:
        """Write the next step of a kind; return how many there were before."""
        k = await self._count(kind)
        while True:
            try:
                await self._store.put(self._request, self._turn, f"{self._round}-{kind}{k}", b"{}")
            except StepTaken:
                k += 1
            else:
                return k

    async def _count(self, kind: str) -> int:
        for k in range(_MOST):
            if await self._store.get(self._request, self._turn, f"{self._round}-{kind}{k}") is None:
                return k
        return _MOST
