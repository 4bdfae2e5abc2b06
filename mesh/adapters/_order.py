"""The order of a round's calls: an SDK begins those of one reply together, and a journal needs an order."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class CallOrder:
    """Lets calls begin in the order in which they come: reads together, anything else alone.

    An effect looks at the bus before its step has a place. A read that came later could take that place, and
    would not when the round runs again.
    """

    def __init__(self) -> None:
        self._reads: list[asyncio.Future[None]] = []
        """Reads since the last call that was alone."""
        self._alone: asyncio.Future[None] | None = None
        """The last call that was alone."""

    @asynccontextmanager
    async def place(self, *, alone: bool) -> AsyncIterator[None]:
        """Wait for the calls that came before: a read for effects only."""
        ended = asyncio.get_running_loop().create_future()
        before = [] if self._alone is None else [self._alone]
        if alone:
            before += self._reads
            self._reads, self._alone = [], ended
        else:
            self._reads.append(ended)
        try:
            for each in before:
                await asyncio.shield(each)
            yield
        finally:
            ended.set_result(None)
