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
            trouble = Trouble()
            async for item in feed:
                match item:
                    case Happened(event=event):
                        if said := trouble.in_words(event):
                            note(short(said, _CHARS))
                    case Heard(agent=agent, note=heard) if viewer is None and heard.failed:
                        note(short(f"{agent}'s turn broke: {heard.failed}", _CHARS))


class Trouble:
    """What a request's events mean to a submitter who waits."""

    def __init__(self) -> None:
        self._failure = ""
        """What the newest turn that failed said of itself."""
        self._holders: dict[str, str] = {}
        """By turn: a turn that ran out of time did not send the event that says so."""

    def in_words(self, event: "AnyEvent") -> str:
        """Return what the request's next event means; empty if nothing."""
        work = getattr(event, "work", None)
        if work is not None:
            self._holders[work.turn] = event.to
        match event:
            case events.TurnFailed(turn=turn, error=error, retry_at=retry_at):
                self._failure = error.message
                then = "it is not tried again" if retry_at is None else "it is tried again"
                holder = event.sender or self._holders.get(turn, "somebody")
                return f"{holder}'s turn broke: {error.message or error.code}; {then}"
            case events.EscalationRaised(reason=reason, work=work):
                why = work.handoff.summary if reason == "asked" else self._failure or reason
                return f"a person has it ({why}): mesh human show {event.request}"
            case events.TurnSuspended(ask=ask) if ask.to_agent == HUMAN:
                return f"a person was asked: {ask.question}"
            case events.EffectDoubted(effect=effect):
                return f"nobody knows if {effect.action} happened: mesh doubt ls"
        return ""
