"""Watching the log as it grows: who hears of what, and which requests have come to rest."""

import asyncio
import contextlib
from collections.abc import Callable

from mesh.bus.event_log import JetStreamLog
from protocol.wire import codec, events
from protocol.wire.errors import MeshError
from protocol.wire.events import AnyEvent

Hear = Callable[[AnyEvent], None]


class Watch:
    """Follows the log. `run` never ends by itself.

    Args:
        hear: told of every event, in the log's order.
        decided: whether somebody decides what is put to people; then a request rests only when it has ended.
    """

    def __init__(self, log: JetStreamLog, hear: Hear, *, decided: bool) -> None:
        self._log = log
        self._hear = hear
        self._rest = events.Ended if decided else events.Ended | _PUT_TO_PEOPLE
        self._last: dict[str, AnyEvent] = {}
        self._changed: dict[str, asyncio.Event] = {}
        self._given_up: set[str] = set()

    async def run(self) -> None:
        async for stored in self._log.follow():  # which waits for a server that is away
            with contextlib.suppress(MeshError):  # no event: the checks say so, and nobody need wait for it
                self._take(codec.decode_event(stored.data))

    def _take(self, event: AnyEvent) -> None:
        self._last[event.request] = event
        self._hear(event)
        self._change(event.request).set()

    def rests(self, request: str) -> bool:
        """Say whether nothing more will come of a request unless somebody does something."""
        last = self._last.get(request)
        return last is not None and isinstance(last, self._rest)

    def last(self, request: str) -> str:
        """Return the type of a request's newest event; empty if it has none."""
        last = self._last.get(request)
        return "" if last is None else events.type_of(last)

    def give_up(self, request: str) -> None:
        """Wait for a request no longer: nothing can come of it."""
        self._given_up.add(request)
        self._change(request).set()

    async def until(self, request: str, kind: type[AnyEvent] | None = None) -> AnyEvent:
        """Wait until a request rests, or until its last event is of a kind; return its last event.

        One that was given up is waited for no longer.
        """
        while True:
            last = self._last.get(request)
            came = self.rests(request) if kind is None else isinstance(last, kind)
            if last is not None and (came or request in self._given_up):
                return last
            changed = self._change(request)
            changed.clear()
            await changed.wait()

    def _change(self, request: str) -> asyncio.Event:
        return self._changed.setdefault(request, asyncio.Event())


_PUT_TO_PEOPLE = (
    events.EscalationRaised | events.EscalationAssigned | events.TurnSuspended | events.EffectDoubted
)
