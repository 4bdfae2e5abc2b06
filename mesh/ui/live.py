"""What happens in a request at this moment, as server-sent events: notes of its running turn, and its log.

The names of the events: `note`, a live note (steps, and the model's text as it comes); `grown`, the number of
the newest event in the log; `ended`, how the request ended, and then the stream ends. Notes go to the client
whose request it is and to nobody else. So they are here only if that client's key is at hand.
"""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator

import msgspec
from starlette.responses import Response, StreamingResponse

from mesh.bus.event_log import JetStreamLog
from mesh.client import Client
from mesh.client.follow import Heard
from mesh.errors import PASSING, MeshError, NotFound
from mesh.ops import log
from mesh.ui.page import Page
from protocol.wire.ids import submitter_of

_LOOK_S = 0.5
_BEAT_S = 15.0
"""Silence after which a comment is sent, so that a connection that is gone is noticed."""
MOST_STREAMS = 50
"""Streams at once: each visitor's tab has one."""


async def live(page: Page, request: str) -> Response:
    """Return the stream of a request. Raises NotFound, UsageWrong, BusError."""
    name = log.checked_id(request)
    head = await JetStreamLog(page.bus, leader=False).head(name)
    if head is None:
        raise NotFound(await log.not_there(page.bus, name))
    if page.streams >= MOST_STREAMS:
        return Response("too many live views are open\n", 503, media_type="text/plain")
    client = None
    with contextlib.suppress(MeshError):  # then there are no notes, and all else is there
        client = await page.client_of(submitter_of(name))
    said = _counted(page, _said(page, name, client))
    return StreamingResponse(said, media_type="text/event-stream", headers={"x-accel-buffering": "no"})


async def _counted(page: Page, said: AsyncGenerator[bytes]) -> AsyncIterator[bytes]:
    page.streams += 1
    try:
        async with contextlib.aclosing(said):
            async for each in said:
                yield each
    finally:
        page.streams -= 1


async def _said(page: Page, request: str, client: Client | None) -> AsyncGenerator[bytes]:
    waiting = asyncio.Queue[bytes]()
    sources = [_growing(page, request, waiting)]
    if client is not None:
        sources.append(_noted(client, request, waiting))
    reading = [asyncio.create_task(each) for each in sources]
    stopping = asyncio.create_task(page.stopping.wait())
    try:
        while not stopping.done():
            taking = asyncio.create_task(waiting.get())
            await asyncio.wait({taking, stopping}, timeout=_BEAT_S, return_when=asyncio.FIRST_COMPLETED)
            if not taking.done():
                taking.cancel()
                yield b": here\n\n"
                continue
            yield taking.result()
            if taking.result().startswith(b"event: ended"):
                return
    finally:
        for task in (*reading, stopping):
            task.cancel()
        await asyncio.gather(*reading, stopping, return_exceptions=True)


async def _growing(page: Page, request: str, waiting: asyncio.Queue[bytes]) -> None:
    """Tell how far the log is, until the request ends."""
    events, known = JetStreamLog(page.bus, leader=False), -1
    while True:
        with contextlib.suppress(*PASSING):
            head = await events.head(request)
            seen = None if head is None else log.glance(head.body)
            if seen is not None and seen.n != known:
                known = seen.n
                waiting.put_nowait(_event("grown", {"n": known}))
            if seen is not None and seen.is_end:
                waiting.put_nowait(_event("ended", {"type": seen.type}))
                return
        await asyncio.sleep(_LOOK_S)


async def _noted(client: Client, request: str, waiting: asyncio.Queue[bytes]) -> None:
    """Pass on what the running turn shows of itself."""
    async with client.follow(request) as feed:
        async for item in feed:
            if isinstance(item, Heard):
                note = msgspec.to_builtins(item.note)
                waiting.put_nowait(_event("note", {"agent": item.agent, **note}))


def _event(name: str, said: object) -> bytes:
    return b"event: %s\ndata: %s\n\n" % (name.encode(), msgspec.json.encode(said))
