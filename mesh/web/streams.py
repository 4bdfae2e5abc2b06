"""Streams of server-sent events: their form, their beat, and how many there may be."""

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any, TypeVar

import msgspec
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

T = TypeVar("T")

BEAT = b": here\n\n"
"""A comment that shows whether the reader is still there."""


def server_sent(name: str, data: object, *, id_: int | None = None) -> bytes:
    """Return one event of a stream. A reader that comes back names the newest `id_` that it has seen."""
    lines = b"event: %s\ndata: %s\n\n" % (name.encode(), msgspec.json.encode(data))
    return lines if id_ is None else b"id: %d\n" % id_ + lines


class CountedStream(StreamingResponse):
    """A stream that is counted while it is sent, and refused if there are too many.

    Args:
        items: what is sent. It is closed in the end.
        open_now: number of open streams by reader.
        most: how many streams there may be, of all readers and of this one.
        full: the answer in place of one stream too many.
    """

    def __init__(
        self,
        items: AsyncGenerator[bytes],
        open_now: Counter[str],
        reader: str,
        *,
        most: tuple[int, int],
        full: Response,
    ) -> None:
        super().__init__(items, media_type="text/event-stream", headers={"x-accel-buffering": "no"})
        self._items, self._open_now, self._reader = items, open_now, reader
        self._most, self._full = most, full

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        open_now, of_one = self._open_now, self._reader
        if open_now.total() >= self._most[0] or open_now[of_one] >= self._most[1]:
            await self._full(scope, receive, send)
            return
        open_now[of_one] += 1  # nothing is awaited between the check and the count
        try:
            async with contextlib.aclosing(self._items):
                await super().__call__(scope, receive, send)
        finally:
            open_now[of_one] -= 1
            if not open_now[of_one]:
                del open_now[of_one]


async def with_beats(
    take: Callable[[], Awaitable[T]], stopping: asyncio.Event, beat_s: float
) -> AsyncGenerator[T | None]:
    """Yield what `take` returns, one after the other, and None after each `beat_s` without anything.

    It ends when `stopping` is set, and raises what `take` raises.
    """
    ending = asyncio.ensure_future(stopping.wait())
    taking: asyncio.Future[T] | None = None
    try:
        while not ending.done():
            taking = taking or asyncio.ensure_future(take())
            both: set[asyncio.Future[Any]] = {taking, ending}
            await asyncio.wait(both, timeout=beat_s, return_when=asyncio.FIRST_COMPLETED)
            if taking.done():
                item, taking = taking.result(), None
                yield item
            elif not ending.done():
                yield None
    finally:
        left: list[asyncio.Future[Any]] = [ending, *([] if taking is None else [taking])]
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)
