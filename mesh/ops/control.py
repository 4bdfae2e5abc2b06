"""Control messages, and the event that each one caused, or why there is none.

A stored order is not yet obeyed. So each order here waits until the log (for the whole mesh: CONF) shows it,
or until the guard reports that it will not obey.
"""

import asyncio
import contextlib
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import TypeVar

import msgspec

from mesh.bus.connection import Bus
from mesh.bus.event_log import JetStreamLog
from mesh.bus.nats_protocol import Incoming
from mesh.bus.reader import get
from mesh.client import Client
from mesh.client.follow import Question, outcome_of
from mesh.errors import ControlRefused, Denied, Impossible, NotFound, UsageWrong
from mesh.ops.log import checked_id
from mesh.ops.roster import MeshFreeze, mesh_freeze
from mesh.service.printable import short
from protocol.wire import codec, subjects
from protocol.wire.commands import Cancel, Control, Freeze, ReplyToAsk, Thaw
from protocol.wire.events import AnyEvent, Ended, FactsWithheld, type_of
from protocol.wire.ids import RequestId, control_cause
from protocol.wire.records import Notice
from protocol.wire.subjects import MESH_WIDE

T = TypeVar("T")
LOOK_S = 0.1
_PROBES = 5
"""How often a client checks before it sends its reply again."""
_WITHIN_S = 30.0


class Obeyed(msgspec.Struct, frozen=True, kw_only=True):
    """The event that obeyed an order, and its request."""

    request: str
    event: int
    type: str
    to: str
    at: int
    """UTC µs."""


def obeyed(event: AnyEvent) -> Obeyed:
    """Return the event that obeyed an order, in a form for programs."""
    return Obeyed(
        request=event.request, event=event.n, type=type_of(event), to=str(event.to), at=int(event.at)
    )


def order_id() -> str:
    """Return a new id for a control message."""
    return secrets.token_hex(8)


async def carry_out(bus: Bus, request: str, control: Control, *, within_s: float = _WITHIN_S) -> AnyEvent:
    """Send a control message and return the event that it caused.

    Args:
        bus: a connection of an operator, or of the client that submitted the request.

    Raises UsageWrong for an invalid request id, ControlRefused if the guard does not obey or nothing is left
    to do, TimeoutError if no guard answers within `within_s`.
    """
    request = checked_id(request)  # `_` is the whole mesh, which must not be ordered by mistake
    cause = control_cause(request, bus.name, control.id)
    reader = RequestReader(bus, bus.name, request)
    late = f"no guard has taken up what was asked of {request} within {within_s:g} s"
    return await _ordered(bus, request, control, lambda: reader.caused_by(cause), within_s, late)


async def order_mesh(
    bus: Bus, control: Control, probe: Callable[[], Awaitable[T | None]], within_s: float = _WITHIN_S
) -> T:
    """Send a control message about the whole mesh; return what `probe` finds once it is obeyed.

    Raises ControlRefused if a guard does not obey. Raises TimeoutError if no guard has obeyed within
    `within_s`. The order is still stored, and the first guard that runs obeys it.
    """
    late = f"no guard has obeyed within {within_s:g} s; the order is kept, and obeyed once one runs"
    return await _ordered(bus, MESH_WIDE, control, probe, within_s, late)


async def _ordered(
    bus: Bus,
    request: str,
    control: Control,
    probe: Callable[[], Awaitable[T | None]],
    within_s: float,
    late: str,
) -> T:
    """Send a control message, probe until there is a result, and return it.

    Raises ControlRefused if a guard refuses, TimeoutError with the text `late`.
    """
    async with noticed(bus, bus.name, request, within_s, late) as notices:
        await Client(bus, bus.name).control(request, control)
        while (found := await probe()) is None:
            notices.raise_refusal()
            await asyncio.sleep(LOOK_S)
        return found


async def cancel(bus: Bus, request: str, *, by: str, reason: str = "") -> AnyEvent:
    """End a request: as an operator any, as a client its own. Raises as `carry_out`."""
    return await carry_out(bus, request, Cancel(id=order_id(), by=by, reason=reason))


async def freeze(bus: Bus, request: str, *, by: str, reason: str = "") -> AnyEvent:
    """Freeze a request. Raises as `carry_out`."""
    return await carry_out(bus, request, Freeze(id=order_id(), by=by, reason=reason))


async def thaw(bus: Bus, request: str, *, by: str, reason: str = "") -> AnyEvent:
    """Let a frozen request continue. Raises as `carry_out`."""
    return await carry_out(bus, request, Thaw(id=order_id(), by=by, reason=reason))


class Notices:
    """The notices about one request, in order of arrival."""

    def __init__(self, request: str) -> None:
        self._request = request
        self._came: asyncio.Queue[Notice] = asyncio.Queue()

    def take(self, message: Incoming) -> None:
        notice = codec.readable(message.data, Notice)
        if notice is not None:
            self._came.put_nowait(notice)

    def next(self) -> Notice | None:
        """Return the next notice that arrived; None if there is none."""
        return None if self._came.empty() else self._came.get_nowait()

    def raise_refusal(self) -> None:
        """Raise ControlRefused if there is a notice."""
        notice = self.next()
        if notice is not None and notice.error is not None:
            raise ControlRefused(self._request, notice.error.code, notice.error.detail)
        if notice is not None and notice.ended is not None:
            raise ControlRefused(self._request, notice.ended.why, "it had ended before this came")


@contextlib.asynccontextmanager
async def noticed(bus: Bus, name: str, request: str, within_s: float, late: str) -> AsyncIterator[Notices]:
    """Yield the notices that `name` gets about `request` meanwhile.

    Raises BusError, and TimeoutError with the text `late` unless the block ends in time.
    """
    notices = Notices(request)
    subscription = await bus.subscribe(subjects.note(name, request), notices.take)
    try:
        async with asyncio.timeout(within_s):
            yield notices
    except TimeoutError:
        raise TimeoutError(late) from None
    finally:
        await subscription.close()


class RequestReader:
    """Reads what its credentials may read of a request: all of it, or a client's own events."""

    def __init__(self, bus: Bus, name: str, request: str) -> None:
        self._bus, self._name, self._request = bus, name, request
        self._reads_all = True

    async def caused_by(self, cause: str) -> AnyEvent | None:
        """Return the event with that cause; None if there is none yet."""
        found = [codec.decode_event(body) for body in await self._bodies()]
        caused = (event for event in found if event.cause == cause)
        return next((event for event in caused if not isinstance(event, FactsWithheld)), None)

    async def _bodies(self) -> list[bytes]:
        if self._reads_all:
            try:
                return [stored.data for stored in await JetStreamLog(self._bus).read(self._request)]
            except Denied:
                self._reads_all = False
        kept = await get(self._bus, "LOG", subjects.evt(self._name, self._request))
        return [] if kept is None else [kept.data]


# --- a client's reply: it sees only events addressed to it -----------------------------------------


class Replied(msgspec.Struct, frozen=True, kw_only=True):
    """A client's reply that was accepted."""

    request: str
    event: None = None
    """The event that obeyed it is addressed to the agent: a client may not read it."""
    ended: str | None
    """How the request has ended since; None if its client sees no end."""


async def reply_as_client(
    bus: Bus,
    request: str,
    order_for: Callable[[Question], ReplyToAsk],
    *,
    n: int | None = None,
    within_s: float = _WITHIN_S,
) -> Replied:
    """Reply to a question to the client that this connection belongs to.

    Args:
        n: number of the event that asked; None if only one question waits.

    Raises NotFound if there is no question to it, Impossible, UsageWrong, and ReplyInvalid, ControlRefused,
    TimeoutError.
    """
    client = Client(bus, bus.name)
    newest = await client.latest(RequestId(request))
    if isinstance(newest, Ended):
        raise NotFound(f"{request} has ended: {outcome_of(newest).status}")
    asked = await client.questions(RequestId(request))
    if not asked:
        raise NotFound(f"nothing that {bus.name} may see in {request} waits for its reply")
    question = one_of(request, {each.n: (each, f"{each.agent}: {each.question}") for each in asked}, n)
    order = order_for(question)
    late = f"no guard has taken up the reply to {request} within {within_s:g} s"
    async with noticed(bus, bus.name, request, within_s, late) as notices:
        since = await _until_decided(client, notices, question, order)
    return Replied(request=request, ended=outcome_of(since).status if isinstance(since, Ended) else None)


_SHOWN_CHARS = 60


def one_of(request: str, waiting: Mapping[int, tuple[T, str]], n: int | None) -> T:
    """Return which of the waiting decisions is meant.

    Args:
        waiting: by number of the event since which each waits, with a text that distinguishes it.
        n: the number that was named or shown; None stands for the only one.

    Raises UsageWrong if several wait and none is named, Impossible if the named one no longer waits.
    """
    if n is None and len(waiting) == 1:
        return next(iter(waiting.values()))[0]
    if n is not None and n in waiting:
        return waiting[n][0]
    listed = "; ".join(f"--event {at} ({short(words, _SHOWN_CHARS)})" for at, (_, words) in waiting.items())
    if n is None:
        raise UsageWrong(f"{request} waits for {len(waiting)} decisions; say which: {listed}")
    raise Impossible(f"{request}: what waited since event {n} is decided; look again: it waits for {listed}")


async def _until_decided(
    client: Client, notices: Notices, asked: Question, order: ReplyToAsk
) -> AnyEvent | None:
    """Send a reply until a guard has decided it; return the end of the request, if the client sees one.

    The turn continues in its agent's name, where a client cannot look. But a client that sends the same reply
    again is notified that it was decided. Raises ControlRefused if that was decided earlier.
    """
    digest, again = codec.body_digest(codec.encode(order)), False
    while True:
        await client.control(asked.request, order)
        for _ in range(_PROBES):
            newest = await client.latest(asked.request)
            if isinstance(newest, Ended):
                return newest
            while (notice := notices.next()) is not None:
                if notice.error is not None and notice.digest == digest:
                    raise ControlRefused(asked.request, notice.error.code, notice.error.detail)
                if notice.ended is None or (notice.ended.turn, notice.ended.round) != (
                    order.turn,
                    order.round,
                ):
                    continue  # about another message
                if again:
                    return None
                over = "another reply was first, or the time for it was up"
                raise ControlRefused(asked.request, notice.ended.why, over)
            await asyncio.sleep(LOOK_S)
        again = True


# --- the whole mesh -------------------------------------------------------------------------------


async def set_mesh_freeze(
    bus: Bus, frozen: bool, *, by: str, reason: str = "", within_s: float = _WITHIN_S
) -> MeshFreeze:
    """Freeze or thaw the mesh, and return what CONF holds once it is in force. Raises as `order_mesh`."""
    order = (Freeze if frozen else Thaw)(id=order_id(), by=by, reason=reason)

    async def obeyed_by_now() -> MeshFreeze | None:
        current = await mesh_freeze(bus)
        return current if current.frozen is frozen else None

    return await order_mesh(bus, order, obeyed_by_now, within_s)
