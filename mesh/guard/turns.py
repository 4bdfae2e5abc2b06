"""Turns: senders are served one after the other, however much each of them has waiting.

A guard works on a few messages at once, so that it is busy while its appends are on their way. More would
only make each of them slower: they share one processor. Whoever has to wait is served after one message of
each other sender that waits.
"""

import asyncio
import contextlib
from collections import OrderedDict, deque
from collections.abc import AsyncIterator


class Turns:
    """Gives so many turns at once. Used on one event loop."""

    def __init__(self, at_once: int) -> None:
        self._free = at_once
        self._waiting: OrderedDict[str, deque[asyncio.Future[None]]] = OrderedDict()
        """By sender, in the order in which they are served next."""

    @contextlib.asynccontextmanager
    async def of(self, sender: str) -> AsyncIterator[None]:
        """Hold one of the turns of `sender`."""
        if self._free:
            self._free -= 1
        else:
            await self._wait(sender)
        try:
            yield
        finally:
            self._next()

    async def _wait(self, sender: str) -> None:
        turn = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(sender, deque()).append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self._next()  # it was given at the same moment
            raise

    def _next(self) -> None:
        """Give a turn that got free to the sender who is next, or keep it."""
        while self._waiting:
            sender, waiting = self._waiting.popitem(last=False)
            turn = waiting.popleft()
            if waiting:
                self._waiting[sender] = waiting  # behind all others
            if not turn.done():
                turn.set_result(None)
                return
        self._free += 1
