"""The attempts at one round of a turn: which of them came back, and whether a later one has begun."""

import asyncio
import contextlib
import itertools

from mesh.agent._steps import RoundKey
from mesh.bus.stores import StepStore, StepTaken
from mesh.errors import BusError

LEAVE_S = 2.0
"""How long a server that does not answer may delay an agent that is leaving."""
CRASHES = 5
"""So many attempts that began and were never given back: the turn kills each process that runs it."""
_MOST = 1_000


class Attempts:
    """The attempts at one round of a turn, as marks beside its steps.

    From the second delivery on, `<round>-a<k>` is written before the handler runs, and `<round>-b<k>` when
    the turn is given back in good order. This tells a turn that kills its process from one that was merely
    moved; the server's count of deliveries counts drains and frozen pulls too. An instance that was held up
    finds in the same marks that another one has taken over.
    """

    def __init__(self, store: StepStore, key: RoundKey) -> None:
        self._store = store
        self._request, self._turn, self._round = key.request, key.journal_id, key.round
        self._own = -1
        """The number of this attempt; the first one is not counted."""

    async def is_crash_loop(self) -> bool:
        """Count this attempt; return True if too many before it never came back. Raises BusError."""
        begun = self._own = await self._write_next("a")
        return begun - await self._count("b") >= CRASHES

    async def is_overtaken(self) -> bool:
        """Return True if a later attempt has begun. Raises BusError."""
        return await self._exists("a", self._own + 1)

    async def given_back(self) -> None:
        """Record that this attempt ended in good order, if the bus still answers while we leave."""
        with contextlib.suppress(BusError, TimeoutError):
            async with asyncio.timeout(LEAVE_S):
                await self._write_next("b")

    async def _write_next(self, kind: str) -> int:
        """Write the next step of a kind; return how many there were before."""
        for k in itertools.count(await self._count(kind)):
            with contextlib.suppress(StepTaken):
                await self._store.put(self._request, self._turn, f"{self._round}-{kind}{k}", b"{}")
                return k
        raise AssertionError("the numbers are endless")

    async def _count(self, kind: str) -> int:
        for k in range(_MOST):
            if not await self._exists(kind, k):
                return k
        return _MOST

    async def _exists(self, kind: str, k: int) -> bool:
        return await self._store.get(self._request, self._turn, f"{self._round}-{kind}{k}") is not None
