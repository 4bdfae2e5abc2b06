"""Small stores on the bus: entries of CONF, schedules, the steps of a turn, dead letters, memory.

Each message stands under a subject of its own and is written under a condition: CONF and schedules by
compare-and-set, a step once and for all.
"""

import asyncio
import datetime as dt
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import msgspec

from mesh.bus.connection import TIMEOUT_S, Bus
from mesh.bus.reader import StoredMessage, every, get, last
from mesh.bus.streams import memory_of, steps_of
from mesh.errors import PASSING, BusError, MeshError, SequenceConflict, StreamFull, SubjectTaken
from mesh.service import telemetry, tracing
from mesh.service.conditions import Kind
from mesh.service.logs import get_logger
from protocol.domain.memory import supersedes
from protocol.wire import codec, subjects
from protocol.wire.config import DocumentInvalid
from protocol.wire.records import DeadLetter, MemoryRecord, dead_letter
from protocol.wire.subjects import step, timer_at, timer_fire

if TYPE_CHECKING:
    from mesh.bus.consumer import Message

_log = get_logger(__name__)

T = TypeVar("T")

# --- CONF -------------------------------------------------------------------------------------------

NO_FLEET = Kind("fleet_missing", "fleet_found", "there is no fleet yet: run `mesh setup`")
UNREADABLE = Kind("entry_unreadable", "entry_readable", "{} cannot be read: run `mesh doctor`", lasts=True)
CODES = frozenset({"policy_unreadable", "fleet_unreadable", "prices_unreadable"})
"""Codes of a refused submit that rests on an entry which cannot be read."""


class ConfUnreadable(MeshError, code="conf.unreadable"):
    """An entry of CONF is needed and cannot be read; an admin has to write it anew.

    `refusal` is the code, of `CODES`, under which a submit that needs it is refused.
    """

    def __init__(self, entry: str, reason: str) -> None:
        super().__init__(f"{entry} cannot be read: {reason}; an admin has to write it anew (`mesh setup`)")
        self.entry = entry
        self.reason = reason
        self.refusal = f"{entry.split('.')[2]}_unreadable"


def parse_conf(message: StoredMessage, parse: Callable[[bytes], T]) -> T:
    """Return the parsed entry. If `parse` finds it invalid, log it and raise ConfUnreadable."""
    try:
        return parse(message.data)
    except DocumentInvalid as invalid:
        _log.error("conf_unreadable", entry=message.subject, reason=str(invalid))
        raise ConfUnreadable(message.subject, str(invalid)) from invalid


async def write_conf(
    bus: Bus, subject: str, entry: msgspec.Struct, *, after: int, timeout_s: float = TIMEOUT_S
) -> int:
    """Write an entry if the one of sequence `after` still stands (0: none does); return its own sequence.

    Raises SequenceConflict if another one stands, and as `Bus.publish_durable`.
    """
    body = msgspec.json.encode(entry)
    return (await bus.publish_durable(subject, body, after=after, timeout_s=timeout_s)).seq


# --- schedules --------------------------------------------------------------------------------------


class _Alarm(msgspec.Struct, frozen=True):
    at: int


async def arm_schedule(bus: Bus, request: str, at_us: int, *, after: int | None = None) -> int:
    """Schedule the request's wake-up at `at_us` (UTC µs; at once if that is past); return its sequence.

    The server keeps the schedule and delivers it into the request's partition when it is due. A schedule that
    has fired is gone; the next one is armed after sequence 0 again. Arming twice is harmless.

    Args:
        after: sequence of the schedule that this one replaces, 0 if there is none; None replaces any.

    Raises SequenceConflict if another schedule stands (read `standing_schedule`, decide again), and as
    `Bus.publish_durable`.
    """
    headers = {
        "Nats-Expected-Stream": "TIMER",
        "Nats-Schedule": f"@at {rfc3339(at_us)}",
        "Nats-Schedule-Target": timer_fire(request),
    }
    body = msgspec.json.encode(_Alarm(at_us))
    return (await bus.publish_durable(timer_at(request), body, headers, after=after)).seq


async def standing_schedule(bus: Bus, request: str) -> tuple[int, int] | None:
    """Return sequence and due time (UTC µs) of the request's schedule; None if there is none."""
    found = await last(bus, "TIMER", timer_at(request), leader=True)
    return None if found is None else (found.seq, due_of(found.data))


def due_of(body: bytes) -> int:
    """Return the due time (UTC µs) in a schedule, or in the message it fired. Raises ValueError."""
    alarm = codec.readable(body, _Alarm)
    if alarm is None:
        raise ValueError("a schedule that says no time")
    return alarm.at


def rfc3339(at_us: int) -> str:
    """Return UTC µs in the format of the server's schedules."""
    moment = dt.datetime(1970, 1, 1, tzinfo=dt.UTC) + dt.timedelta(microseconds=at_us)
    return moment.isoformat(timespec="microseconds").replace("+00:00", "Z")


# --- steps ------------------------------------------------------------------------------------------


class StepTaken(MeshError, code="journal.step_taken"):
    """A step of this name exists already."""


class StepStore(Protocol):
    """The port: the steps of one agent's turns. Each is written once and never replaced.

    This fences an instance that lost its turn without noticing: its next step exists already.
    """

    async def get(self, request: str, turn: str, name: str) -> bytes | None:
        """Return the bytes of a step; None if there is none."""

    async def put(self, request: str, turn: str, name: str, body: bytes) -> None:
        """Write a step. Raises StepTaken if it exists, also from an earlier try of this call."""


class JetStreamSteps:
    """Steps in the agent's own stream, `STEPS-<agent>`.

    A call waits while the bus is unavailable or the stream is full. No turn fails because of that.
    """

    def __init__(self, bus: Bus, agent: str) -> None:
        self._bus = bus
        self._agent = agent

    async def get(self, request: str, turn: str, name: str) -> bytes | None:
        stream, subject = steps_of(self._agent), step(self._agent, request, turn, name)
        found = await self._bus.retry_unavailable(lambda: get(self._bus, stream, subject))
        return None if found is None else found.data

    async def put(self, request: str, turn: str, name: str, body: bytes) -> None:
        await self._bus.retry_unavailable(lambda: self._put(request, turn, name, body))

    async def _put(self, request: str, turn: str, name: str, body: bytes) -> None:
        try:
            await self._bus.publish_durable(step(self._agent, request, turn, name), body)
        except StreamFull:
            if await self.get(request, turn, name) is not None:
                raise StepTaken(name) from None  # the server has one code for both
            raise
        except SubjectTaken:
            raise StepTaken(name) from None


# --- dead letters -----------------------------------------------------------------------------------


async def store_dead_letter(
    bus: Bus, subject: str, message: "Message", *, at: int, by: str, code: str, detail: str, **known: Any
) -> DeadLetter | None:
    """Keep a message that came to nothing in a dead-letter list; None if it could not be kept.

    A message that comes again before it is acknowledged is kept again; readers show one of its letters.

    Args:
        at: UTC µs.
        known: further fields of the letter.
    """
    letter = dead_letter(
        at=at,
        by=by,
        code=code,
        detail=detail,
        subject=message.subject,
        data=message.data,
        headers=message.headers,
        delivered=message.delivered,
        stream_seq=message.stream_seq,
        stored_at=message.stored_us,
        **known,
    )
    try:
        await bus.publish_durable(subject, msgspec.json.encode(letter))
    except BusError as error:
        if not isinstance(error, PASSING):  # the connection says what passes by itself
            _log.warning("dead_letter_not_stored", code=error.code, subject=message.subject)
        return None
    telemetry.dead_letters.add(1, {tracing.CODE: code, tracing.BY: by})
    return letter


# --- what conversations remember -------------------------------------------------------------------
#
# A stream for each client, the newest record of a key. Guards write it; a client reads its own.

_ATTEMPTS = 8
_AGAIN_S = 0.02


async def read_memory(bus: Bus, client: str, conversation: str | None = None) -> list[MemoryRecord]:
    """Return all records of a client's conversation, or of all its conversations. Raises BusError.

    What cannot be read is left out: only guards write here.
    """
    stored = every(bus, memory_of(client), subjects.memories(client, conversation))
    found = [codec.readable(each.data, MemoryRecord) async for each in stored]
    return [record for record in found if record is not None and conversation in (None, record.conversation)]


async def write_memory(bus: Bus, client: str, records: Iterable[MemoryRecord]) -> None:
    """Write records, each if none that is newer stands. Twice is the same as once.

    Raises BusError; SequenceConflict if other guards were faster every time.
    """
    await asyncio.gather(*(_write(bus, client, record) for record in records))


async def _write(bus: Bus, client: str, record: MemoryRecord) -> None:
    subject, body = subjects.memory(client, record.conversation, record.key), msgspec.json.encode(record)
    for left in reversed(range(_ATTEMPTS)):
        found = await get(bus, memory_of(client), subject)
        stands = None if found is None else codec.readable(found.data, MemoryRecord)
        if not supersedes(record, stands):
            return
        try:
            await bus.publish_durable(subject, body, after=0 if found is None else found.seq)
        except SequenceConflict:
            if not left:
                raise
            await asyncio.sleep(_AGAIN_S)  # another guard was first, or this replica lags
        else:
            return
