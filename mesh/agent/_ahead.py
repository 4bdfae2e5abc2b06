"""What a round does ahead: steps on their way to the store, and probes for the turn's end.

A loop with a model reads a value while its record is being stored, and computes what to do next. Nothing is
called, asked or returned before the record is stored and a probe has found the turn open:

    the code      the reply ─┬─ choose a tool ─▶│ call it ─▶ the result ─┬─ next prompt ─▶│ ask the model
    its record               ├─ write the step ▶│ settled                ├─ write it ────▶│ settled
    the turn's end           └─ probe ─────────▶│ is_over                └─ probe ───────▶│ is_over

* A write begins as soon as its value is known, if only a model's loop reads it. The next step awaits it, and
  so does the move.
* A probe begins with a conversation, with a reply that calls a tool, and when a tool is done. The next call
  awaits it.
* A round that has just begun needs no probe: its event shows that the turn is open.

Whatever was begun and is not needed is cancelled when the round ends.
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
    """Steps on their way to the store, in the order in which their values became known."""

    def __init__(self) -> None:
        self._under_way: deque[asyncio.Future[None]] = deque()

    def begin(self, write: Coroutine[Any, Any, None]) -> None:
        """Begin to store a step. Its errors are raised by `settled`."""
        self._under_way.append(eager(write))

    async def settled(self) -> None:
        """Wait until all of them are stored. Raises what prevents it, on each call."""
        while self._under_way:
            await asyncio.shield(first := self._under_way[0])
            if self._under_way and self._under_way[0] is first:
                self._under_way.popleft()

    def close(self) -> None:
        """Cancel the writes that are not stored yet. Idempotent."""
        for write in self._under_way:
            write.cancel()


# --- the turn's end --------------------------------------------------------------------------------

PROBE_S = 0.005
"""How long an answer counts if its probe began ahead, measured from the start of the probe: some ten round
trips on one machine, one over a network. A probe made on demand may be as old when its answer arrives."""
NEXT_PROBE_S = PROBE_S / 2
"""How young a probe has to be to serve the next call as well (seconds since it began)."""


class EndWatch:
    """Checks whether a guard has ended a turn. A probe can begin ahead, so that the next call need not wait.

    Args:
        was_ended: returns True if a guard ended the turn.
        open_at: when the turn was known to be open (monotonic seconds), as if a probe had found it so.
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
        """Start of the latest probe that was begun ahead and found the turn open."""
        self._is_awaited = False
        """True if `probe_ahead` was called for the next call: any other call probes anew."""
        self._begun_at = 0.0
        self._ahead: asyncio.Future[bool] | None = None

    def probe_ahead(self) -> None:
        """Begin a probe for the next call, unless one is running or the latest is young enough."""
        now = self._clock()
        self._is_awaited = True
        if self._ahead is None and now - self._open_at >= NEXT_PROBE_S:
            self._begun_at = now
            self._ahead = eager(self._probe())

    async def is_over(self) -> bool:
        """Return True if the turn was ended.

        A probe that was begun ahead counts up to PROBE_S after its start, including the wait for its answer.
        After that (the bus hung, the process was suspended) a new one is made. An end is final.
        """
        begun, self._ahead = self._ahead, None
        is_awaited, self._is_awaited = self._is_awaited, False
        if begun is not None:
            if await begun:
                return True
            self._open_at = self._begun_at
        if is_awaited and self._clock() - self._open_at < PROBE_S:
            return False
        return await self._was_ended()

    async def _probe(self) -> bool:
        return await self._was_ended()

    def close(self) -> None:
        """Cancel a probe that was begun ahead. Idempotent."""
        if self._ahead is not None:
            self._ahead.cancel()
            self._ahead = None
