"""Small stores on the bus: entries of CONF, schedules, steps of turns, dead letters, questions.

Each message has its own subject and is written under a condition: CONF and schedules by compare-and-set, a
step only once.
"""

import contextlib
import datetime as dt
import re
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar

import msgspec

from mesh.bus.connection import TIMEOUT_S, Bus
from mesh.bus.reader import BATCH, MOST_BYTES, StoredMessage, every, get, last, stored_message
from mesh.bus.roles import GET
from mesh.bus.streams import steps_of
from mesh.errors import PASSING, BusError, MeshError, SequenceConflict, StreamFull, SubjectTaken
from mesh.service.conditions import Kind
from mesh.service.logs import get_logger
from mesh.telemetry import tracing
from protocol.wire import codec, subjects
from protocol.wire.documents import DocumentInvalid
from protocol.wire.records import Questions, Record, dead_letter, place_of
from protocol.wire.subjects import step, timer_at, timer_fire

if TYPE_CHECKING:
    from mesh.bus.consumer import Message

_log = get_logger(__name__)

T = TypeVar("T")

# --- CONF -------------------------------------------------------------------------------------------

NO_FLEET = Kind("fleet_missing", "fleet_found", "there is no fleet yet: run `mesh setup`")
UNREADABLE = Kind("entry_unreadable", "entry_readable", "{} cannot be read: run `mesh doctor`", lasts=True)
CODES = frozenset({"policy_unreadable", "fleet_unreadable", "prices_unreadable"})
"""Codes of submits that are refused because an entry cannot be read."""


class ConfUnreadable(MeshError, code="conf.unreadable"):
    """A needed entry of CONF cannot be read. An admin has to write it again.

    `refusal` is the code (one of `CODES`) with which submits that need it are refused.
    """

    def __init__(self, entry: str, reason: str) -> None:
        super().__init__(f"{entry} cannot be read: {reason}; an admin has to write it anew (`mesh setup`)")
        self.entry = entry
        self.reason = reason
        self.refusal = f"{entry.split('.')[2]}_unreadable"


def parse_conf(message: StoredMessage, parse: Callable[[bytes], T]) -> T:
    """Return the parsed entry. If it is invalid, log that and raise ConfUnreadable."""
    try:
        return parse(message.data)
    except DocumentInvalid as invalid:
        _log.error("conf_unreadable", entry=message.subject, reason=str(invalid))
        raise ConfUnreadable(message.subject, str(invalid)) from invalid


async def write_conf(
    bus: Bus, subject: str, entry: msgspec.Struct, *, after: int, timeout_s: float = TIMEOUT_S
) -> int:
    """Write an entry if the current one has the sequence `after` (0: if there is none); return its sequence.

    Raises SequenceConflict if another entry is current, and as `Bus.publish_durable`.
    """
    body = msgspec.json.encode(entry)
    return (await bus.publish_durable(subject, body, after=after, timeout_s=timeout_s)).seq


BY = "Mesh-By"
"""Header of an entry: who claims to have written it."""
REPORT = "Mesh-Report"
"""Header of a policy that was a shadow before: the digest of the report by which it was promoted."""


class Revision(NamedTuple):
    """One revision of an entry of CONF, as it is stored."""

    seq: int
    subject: str
    data: bytes
    at: int
    """UTC µs."""
    by: str
    report: str = ""
    """The digest of the report by which a policy was promoted."""


async def revisions(bus: Bus, subject: str) -> list[Revision]:
    """Return the kept revisions of entries, the oldest first. Raises BusError.

    Args:
        subject: subject of the entries; may have wildcards.
    """
    found, from_seq = list[Revision](), 1
    while True:
        asked = {"seq": from_seq, "batch": BATCH, "max_bytes": MOST_BYTES, "next_by_subj": subject}
        answers = await bus.collect(f"{GET}CONF", msgspec.json.encode(asked), timeout_s=TIMEOUT_S)
        for answer in answers:
            kept = stored_message(answer)
            said = answer.header(BY), answer.header(REPORT)
            found.append(Revision(kept.seq, kept.subject, kept.data, kept.at, *said))
        if not answers:
            return found
        from_seq = found[-1].seq + 1


def differences(before: Any, after: Any, where: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Yield the differences of two documents: the path, and the values before and after (None: missing)."""
    if isinstance(before, dict) and isinstance(after, dict):
        for key in dict.fromkeys((*before, *after)):
            yield from differences(before.get(key), after.get(key), f"{where}.{key}" if where else str(key))
    elif before != after:
        yield where, before, after


async def writer_of(bus: Bus, subject: str) -> str:
    """Return who claims to have written the current entry; empty if unknown. Raises BusError."""
    return (await bus.request(f"{GET}CONF.{subject}", timeout_s=TIMEOUT_S)).header(BY)


async def write_revision(
    bus: Bus, subject: str, body: bytes, *, by: str, after: int, report: str = ""
) -> int:
    """Write an encoded entry, as `write_conf` does.

    Args:
        by: who writes it.
        report: the digest of the report because of which.
    """
    headers = {BY: " ".join(by.split())[:80]} if by else {}
    if report:
        headers[REPORT] = report
    return (await bus.publish_durable(subject, body, headers, after=after)).seq


# --- schedules --------------------------------------------------------------------------------------


class _Alarm(msgspec.Struct, frozen=True):
    at: int


async def arm_schedule(
    bus: Bus, request: str, at_us: int, partitions: int, *, after: int | None = None
) -> int:
    """Schedule the request's wake-up at `at_us` (UTC µs; at once if in the past); return its sequence.

    The server keeps the schedule and delivers it into the request's partition when it is due. A fired
    schedule is gone; the next one is armed after sequence 0 again. Arming twice is harmless.

    Args:
        partitions: how many the mesh has.
        after: sequence of the schedule that this one replaces, 0 if there is none; None replaces any.

    Raises SequenceConflict if another schedule is current (read `current_schedule`, decide again), and as
    `Bus.publish_durable`.
    """
    headers = {
        "Nats-Expected-Stream": "TIMER",
        "Nats-Schedule": f"@at {rfc3339(at_us)}",
        "Nats-Schedule-Target": timer_fire(request, partitions),
    }
    body = msgspec.json.encode(_Alarm(at_us))
    return (await bus.publish_durable(timer_at(request), body, headers, after=after)).seq


async def current_schedule(bus: Bus, request: str) -> tuple[int, int] | None:
    """Return sequence and due time (UTC µs) of the request's schedule; None if there is none."""
    found = await last(bus, "TIMER", timer_at(request), leader=True)
    return None if found is None else (found.seq, due_of(found.data))


def due_of(body: bytes) -> int:
    """Return the due time (UTC µs) in a schedule, or in the message that it fired. Raises ValueError."""
    alarm = codec.readable(body, _Alarm)
    if alarm is None:
        raise ValueError("a schedule without a time")
    return alarm.at


def rfc3339(at_us: int) -> str:
    """Return UTC µs in the format of the server's schedules."""
    moment = dt.datetime(1970, 1, 1, tzinfo=dt.UTC) + dt.timedelta(microseconds=at_us)
    return moment.isoformat(timespec="microseconds").replace("+00:00", "Z")


# --- steps ------------------------------------------------------------------------------------------


class StepTaken(MeshError, code="journal.step_taken"):
    """A step with this name already exists."""


class StepStore(Protocol):
    """The port for the steps of one agent's turns. Each step is written once and never replaced.

    That fences an instance which lost its turn without noticing, because its next step already exists.
    """

    async def get(self, request: str, turn: str, name: str) -> bytes | None:
        """Return the bytes of a step; None if there is none."""

    async def put(self, request: str, turn: str, name: str, body: bytes) -> None:
        """Write a step. Raises StepTaken if it exists, even from an earlier attempt of this call."""


class JetStreamSteps:
    """Steps in the agent's own stream, `STEPS-<agent>`.

    Calls wait while the bus is unavailable or the stream is full. No turn fails because of that.
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


PROMPT_S = 2.0
"""How long a model's call waits for its prompt to be stored."""
_PROMPTS_KNOWN = 1_000


class PromptStore:
    """The fixed parts of an agent's prompts. Each is stored once, before it is first sent to a model.

    If a part cannot be stored, that is logged and the model is called anyway.
    """

    def __init__(self, bus: Bus, agent: str) -> None:
        self._bus, self._agent = bus, agent
        self._known: dict[str, None] = {}
        """Digests of parts that this process has stored, or tried to."""

    async def keep(self, digest: str, body: bytes) -> None:
        """Store a part, unless this process already has."""
        if digest in self._known:
            return
        self._known[digest] = None
        if len(self._known) > _PROMPTS_KNOWN:
            del self._known[next(iter(self._known))]
        subject = subjects.prompt(self._agent, digest)
        try:
            await self._bus.publish_durable(subject, body, timeout_s=PROMPT_S)
        except SubjectTaken:
            return
        except MeshError as error:
            if isinstance(error, StreamFull) and await self._is_there(subject):
                return  # the server has one code for both
            _log.warning("prompt_not_kept", agent=self._agent, digest=digest, code=error.code)

    async def _is_there(self, subject: str) -> bool:
        with contextlib.suppress(BusError):
            return await get(self._bus, "PROMPTS", subject) is not None
        return False


# --- journals, as viewers and operators read them ---------------------------------------------------
# Each agent's journals are in its own stream, and an agent may write anything there. Steps have the names
# that `mesh.agent._journal` gives them: `<round>-<n>`, and `<round>-<n>d` for an effect's result. Messages
# with other names (the mark of an attempt) are not steps.

_STEP_SUBJECT = re.compile(r"mesh\.step\.(?P<agent>[^.]+)\.[^.]+\.(?P<turn>[^.]+)\.(?P<name>[^.]+)")
_STEP_NAME = re.compile(r"(?P<round>\d{1,9})-\d{1,9}d?")
_LATEST_AT = 253_402_300_799_999_000
"""The end of the year 9999 (UTC µs), the last millisecond that can be written as a date."""


class JournaledStep(NamedTuple):
    """One step, as it is stored."""

    agent: str
    journal: str
    """The turn id under which it is stored. A continued turn's steps are under the first turn's id."""
    round: int
    name: str
    record: Record
    body: bytes


async def stored_steps(
    bus: Bus, request: str | None, agents: Iterable[str], journal: str | None = None
) -> AsyncIterator[StoredMessage]:
    """Yield what these agents stored as steps of a request (None: of all), optionally of one journal only.

    Raises BusError.
    """
    for agent in sorted(set(agents)):
        async for stored in every(bus, steps_of(agent), subjects.journals(request, agent, journal)):
            yield stored


async def journaled(
    bus: Bus,
    request: str,
    agents: Iterable[str],
    journal: str | None = None,
    *,
    passed_over: set[str] | None = None,
) -> list[JournaledStep]:
    """Return the steps of these agents in a request, optionally of one journal only, ordered by time.

    Args:
        passed_over: collects the subjects of steps that are unreadable or impossible.

    Raises BusError.
    """
    stored = stored_steps(bus, request, agents, journal)
    return read_steps([(each.subject, each.data) async for each in stored], passed_over)


def read_steps(
    stored: Iterable[tuple[str, bytes]], passed_over: set[str] | None = None
) -> list[JournaledStep]:
    """Return stored steps, given as (subject, data), ordered by time.

    Args:
        passed_over: collects the subjects of steps that are unreadable or impossible.
    """
    found: list[JournaledStep] = []
    for subject, data in stored:
        address = _STEP_SUBJECT.fullmatch(subject)
        fits = None if address is None else _STEP_NAME.fullmatch(address["name"])
        if address is None or fits is None:
            continue
        record = codec.readable(data, Record)
        if record is not None and 0 <= record.at <= _LATEST_AT:
            made = JournaledStep(
                address["agent"], address["turn"], int(fits["round"]), address["name"], record, data
            )
            found.append(made)
        elif passed_over is not None:
            passed_over.add(subject)
    return sorted(found, key=lambda step: (step.record.at, place_of(step.name)))


# --- dead letters -----------------------------------------------------------------------------------


async def store_dead_letter(
    bus: Bus,
    subject: str,
    message: "Message",
    *,
    at: int,
    by: str,
    code: str,
    detail: str,
    after: int | None = None,
    **known: Any,
) -> int | None:
    """Store a message in a dead-letter list and return its sequence; None if it was not stored.

    Args:
        at: UTC µs.
        after: sequence of the list's last letter, 0 if it is empty; None for no condition. Without a
            condition, a message that comes again before its acknowledgement is stored twice, and readers show
            only one.
        known: further fields of the letter.

    Raises SequenceConflict if the list's last letter is not `after`.
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
        ack = await bus.publish_durable(subject, msgspec.json.encode(letter), after=after)
    except SequenceConflict:
        raise
    except BusError as error:
        if not isinstance(error, PASSING):  # the connection reports transient errors
            _log.warning("dead_letter_not_stored", code=error.code, subject=message.subject)
        return None
    from mesh.telemetry import export as telemetry  # read-only commands need no OpenTelemetry

    telemetry.dead_letters.add(1, {tracing.CODE: code, tracing.BY: by})
    return ack.seq


# --- what clients are asked --------------------------------------------------------------------------


async def show_questions(bus: Bus, reader: str, request: str, wanted: Questions) -> None:
    """Write a request's list of questions to a client, unless the stored list is at least as recent.

    Raises BusError.
    """
    subject, body = subjects.questions(reader, request), msgspec.json.encode(wanted)
    while True:
        found = await last(bus, "ASKS", subject, leader=True)
        current = None if found is None else codec.readable(found.data, Questions)
        if current is not None and current.n >= wanted.n:
            return
        with contextlib.suppress(SequenceConflict):  # another guard was first
            await bus.publish_durable(subject, body, after=0 if found is None else found.seq)
            return


async def read_questions(bus: Bus, reader: str, request: str) -> Questions | None:
    """Return a request's list of questions to a client; None if there never was one. Raises BusError."""
    found = await get(bus, "ASKS", subjects.questions(reader, request))
    return None if found is None else codec.readable(found.data, Questions)
