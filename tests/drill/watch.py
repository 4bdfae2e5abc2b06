"""Watching the log as it grows: who hears of what, and which requests have come to rest."""

import asyncio
from collections.abc import Callable

from mesh.bus.log import JetStreamLog
from protocol import codec, events
from protocol.events import AnyEvent

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

    async def run(self) -> None:
        async for stored in self._log.follow():  # which waits for a server that is away
            self._take(codec.decode_event(stored.body))

    def _take(self, event: AnyEvent) -> None:
        self._last[event.request] = event
        self._hear(event)
        self._change(event.request).set()

    def rests(self, request: str) -> bool:
        """Say whether nothing more will come of a request unless somebody does something."""
        last = self._last.get(request)
        return last is not None and isinstance(last, self._rest)

    async def until(self, request: str, kind: type[AnyEvent] | None = None) -> AnyEvent:
        """Wait until a request rests, or until its last event is of a kind; return that event."""
        while True:
            last = self._last.get(request)
            if last is not None and (self.rests(request) if kind is None else isinstance(last, kind)):
                return last
            changed = self._change(request)
            changed.clear()
            await changed.wait()

    def _change(self, request: str) -> asyncio.Event:
        return self._changed.setdefault(request, asyncio.Event())


_PUT_TO_PEOPLE = (
    events.EscalationRaised | events.EscalationAssigned | events.TurnSuspended | events.EffectDoubted
)
