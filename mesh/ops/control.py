"""Control messages, and what came of them: the event that one brought about, or why there is none.

What was stored is not yet obeyed. So whoever gives an order waits until the log shows it, or until the
guard says that it will not.
"""

import asyncio
from types import TracebackType
from typing import Any, Self

from mesh.bus.connection import Bus, Subscription
from mesh.bus.event_log import JetStreamLog
from mesh.bus.nats_protocol import Incoming
from mesh.bus.reader import get
from mesh.client import Client
from mesh.errors import Denied
from mesh.ops.errors import ControlRefused
from protocol.wire import codec, subjects
from protocol.wire.commands import Control
from protocol.wire.events import AnyEvent, FactsWithheld, type_of
from protocol.wire.ids import control_cause
from protocol.wire.notices import Notice

_LOOK_S = 0.1


async def carry_out(
    bus: Bus, name: str, request: str, control: Control, *, within_s: float = 30.0
) -> AnyEvent:
    """Send a control message and return the event that it brought about.

    Args:
        bus: an operator's connection, or that of the client whose request it is.

    Raises ControlRefused when the guard does not obey or there is nothing left to do, TimeoutError
    when no guard has said anything within `within_s`.
    """
    cause = control_cause(request, name, control.id)
    reader = Reader(bus, name, request)
    async with await Ears.open(bus, name, request) as ears:
        await Client(bus, name).control(request, control)
        try:
            async with asyncio.timeout(within_s):
                while True:
                    event = await reader.caused_by(cause)
                    if event is not None:
                        return event
                    ears.raise_what_was_said()
                    await asyncio.sleep(_LOOK_S)
        except TimeoutError:
            raise TimeoutError(
                f"no guard has taken up what was asked of {request} within {within_s:g} s"
            ) from None


def obeyed(event: AnyEvent) -> dict[str, Any]:
    """Return for programs what obeyed an order: the request, and its event."""
    return {
        "request": event.request,
        "event": event.n,
        "type": type_of(event),
        "to": event.to,
        "at": event.at,
    }


class Ears:
    """Hears the notices that a sender gets about one request. Made by `open`; `async with` ends it."""

    def __init__(self, request: str) -> None:
        self._request = request
        self._said: asyncio.Queue[Notice] = asyncio.Queue()
        self._heard: Subscription | None = None

    @classmethod
    async def open(cls, bus: Bus, name: str, request: str) -> Self:
        """Listen to what `name` is told about `request`. Raises BusError."""
        ears = cls(request)
        ears._heard = await bus.subscribe(subjects.note(name, request), ears._hear)
        return ears

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._heard is not None:
            await self._heard.close()

    def _hear(self, message: Incoming) -> None:
        notice = codec.readable(message.data, Notice)
        if notice is not None:
            self._said.put_nowait(notice)

    def next_notice(self) -> Notice | None:
        """Return the next notice that came, None if none has."""
        return None if self._said.empty() else self._said.get_nowait()

    def raise_what_was_said(self) -> None:
        """Raise ControlRefused if there is a notice."""
        notice = self.next_notice()
        if notice is not None and notice.error is not None:
            raise ControlRefused(self._request, notice.error.code, notice.error.detail)
        if notice is not None and notice.ended is not None:
            raise ControlRefused(self._request, notice.ended.why, "it was over before this came")


class Reader:
    """Reads a request as far as its credentials go: all of it, or what is addressed to a client."""

    def __init__(self, bus: Bus, name: str, request: str) -> None:
        self._bus, self._name, self._request = bus, name, request
        self._reads_all = True

    async def caused_by(self, cause: str) -> AnyEvent | None:
        """Return the event of that cause, None if it is not there yet."""
        found = [codec.decode_event(body) for body in await self._bodies()]
        caused = (event for event in found if event.cause == cause)
        return next((event for event in caused if not isinstance(event, FactsWithheld)), None)

    async def _bodies(self) -> list[bytes]:
        if self._reads_all:
            try:
                return [stored.body for stored in await JetStreamLog(self._bus).read(self._request)]
            except Denied:
                self._reads_all = False
        kept = await get(self._bus, "LOG", subjects.evt(self._name, self._request))
        return [] if kept is None else [kept.data]
