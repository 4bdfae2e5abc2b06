"""Watching the log as it grows: who hears of what, and which requests have come to rest."""

import asyncio
from collections.abc import Callable

from mesh.bus.log import JetStreamLog
from mesh.errors import BusError, Denied
from protocol import codec, events
from protocol.events import AnyEvent

_AGAIN_S = 0.1
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
        following = 1
        while True:
            try:
                async for stored in self._log.follow(following):
                    following = stored.seq + 1
                    self._take(codec.decode_event(stored.body))
            except Denied:
                raise
            except BusError:  # the server went while the reader was being opened
                await asyncio.sleep(_AGAIN_S)

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
