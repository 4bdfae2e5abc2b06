"""What a round does ahead: steps on their way to the store, and looks for the turn's end.

A loop with a model reads a value while its record is being stored, and computes what to do next. Nothing is
called, asked or returned before the record is stored and a look has found the turn open:

    the code      the reply ─┬─ choose a tool ─▶│ call it ─▶ the result ─┬─ next prompt ─▶│ ask the model
    its record               ├─ write the step ▶│ settled                ├─ write it ────▶│ settled
    the turn's end           └─ look ──────────▶│ is_over                └─ look ────────▶│ is_over

* A write begins when its value is had, if a model's loop alone reads it. The next step awaits it, and so does
  the move.
* A look begins with a conversation, with a reply that calls a tool, and as a tool is done. The next call
  awaits it.
* A round that begins needs no look: its event has just said that the turn is open.

What was begun and is not needed is given up with the round.
"""

import asyncio
import math
import time
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from mesh.tasks import eager

# --- steps on their way ----------------------------------------------------------------------------


class Writes:
    """Steps on their way to the store, in the order in which their values were had."""

    def __init__(self) -> None:
        self._under_way: deque[asyncio.Future[None]] = deque()

    def begin(self, write: Coroutine[Any, Any, None]) -> None:
        """Begin to store a step. What goes wrong is raised by `settled`."""
        self._under_way.append(eager(write))

    async def settled(self) -> None:
        """Wait until all of them are stored. Raises what prevents it, each time."""
        while self._under_way:
            await asyncio.shield(first := self._under_way[0])
            if self._under_way and self._under_way[0] is first:
                self._under_way.popleft()

    def close(self) -> None:
        """Give up what is not stored yet. Idempotent."""
        for write in self._under_way:
            write.cancel()


# --- the turn's end --------------------------------------------------------------------------------

LOOK_S = 0.005
"""How long the answer of a look that began ahead counts, from its beginning: some ten round trips on one
machine, one over a network. A look that is waited for may be as old when its answer comes."""
NEXT_LOOK_S = LOOK_S / 2
"""How long after its beginning a look is taken to be in time for the next call, too."""


class EndWatch:
    """Looks if a guard ended a turn. A look can be begun ahead, so that the calls it is for need not wait.

    Args:
        was_ended: returns True if a guard ended the turn.
        open_at: when it was open for certain (monotonic seconds): a look could have said so then.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        was_ended: Callable[[], Awaitable[bool]],
        *,
        open_at: float = -math.inf,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._was_ended, self._clock = was_ended, clock
        self._open_at = open_at
        """When the latest look began that was begun ahead and found no end."""
        self._is_awaited = False
        """True if `look_ahead` was called for the next call: any other call looks anew."""
        self._begun_at = 0.0
        self._ahead: asyncio.Future[bool] | None = None

    def look_ahead(self) -> None:
        """Begin a look for the next call, unless one is begun, or the latest will serve that call, too."""
        now = self._clock()
        self._is_awaited = True
        if self._ahead is None and now - self._open_at >= NEXT_LOOK_S:
            self._begun_at = now
            self._ahead = eager(self._look())

    async def is_over(self) -> bool:
        """Return True if the turn was ended.

        A look that was begun ahead counts up to LOOK_S after its beginning, the wait for its answer included.
        After that (the bus hung, the process stood still) it is looked anew. An end is for good.
        """
        begun, self._ahead = self._ahead, None
        is_awaited, self._is_awaited = self._is_awaited, False
        if begun is not None:
            if await begun:
                return True
            self._open_at = self._begun_at
        if is_awaited and self._clock() - self._open_at < LOOK_S:
            return False
        return await self._was_ended()

    async def _look(self) -> bool:
        return await self._was_ended()

    def close(self) -> None:
        """Give up a look that was begun ahead. Idempotent."""
        if self._ahead is not None:
            self._ahead.cancel()
            self._ahead = None
