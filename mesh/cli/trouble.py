"""What holds a request up, told to its submitter at once: a turn that broke, a person who has it."""

import asyncio
import contextlib
from typing import TYPE_CHECKING

from mesh.cli.output import note
from mesh.errors import MeshError
from mesh.service.printable import short
from protocol.wire import events
from protocol.wire.ids import HUMAN

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from mesh.bus.connection import Bus
    from mesh.client import Client
    from protocol.wire.events import AnyEvent
    from protocol.wire.ids import RequestId

UNDISTURBED_S = 0.25
"""A request that ends within this time is not looked at."""
_CHARS = 200


async def tell_trouble(
    client: "Client", request: "RequestId", find_viewer: "Callable[[], Awaitable[Bus | None]]"
) -> None:
    """Write a line on standard error for whatever holds a request up, until it ends or this is cancelled.

    Args:
        find_viewer: returns a connection that may read the log. Without one, only rounds that stopped are
            known, by the live notes to the client.
    """
    from mesh.client.follow import Happened, Heard

    await asyncio.sleep(UNDISTURBED_S)
    with contextlib.suppress(MeshError):  # waiting for the answer goes on without this
        async with contextlib.AsyncExitStack() as stack:
            viewer = await find_viewer()
            if viewer is not None:
                await stack.enter_async_context(viewer)
            feed = await stack.enter_async_context(client.follow(request, viewer=viewer))
            failure = ""
            async for item in feed:
                match item:
                    case Happened(event=event):
                        if isinstance(event, events.TurnFailed):
                            failure = event.error.message
                        if said := _in_words(event, failure):
                            note(short(said, _CHARS))
                    case Heard(agent=agent, note=heard) if viewer is None and heard.failed:
                        note(short(f"{agent}'s turn broke: {heard.failed}", _CHARS))


def _in_words(event: "AnyEvent", failure: str) -> str:
    """Return what an event means to a submitter who waits; empty if nothing.

    Args:
        failure: what the newest turn that failed said of itself.
    """
    match event:
        case events.TurnFailed(error=error, retry_at=retry_at):
            then = "it is not tried again" if retry_at is None else "it is tried again"
            return f"{event.sender or 'a'}'s turn broke: {error.message or error.code}; {then}"
        case events.EscalationRaised(reason=reason, work=work):
            why = work.handoff.summary if reason == "asked" else failure or reason
            return f"a person has it ({why}): mesh human show {event.request}"
        case events.TurnSuspended(ask=ask) if ask.to_agent == HUMAN:
            return f"a person was asked: {ask.question}"
        case events.EffectDoubted(effect=effect):
            return f"nobody knows if {effect.action} happened: mesh doubt ls"
    return ""
