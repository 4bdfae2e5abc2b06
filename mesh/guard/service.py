"""The guard as a service: takes proposals, controls and fired timers off their queues, one courtroom for all.

Each message ends in exactly one of three ways. *Decided* (or late): acknowledged once everything
that follows is in the log. *Objected to or unreadable*: a dead letter is stored, a notice sent, then
acknowledged. *Not now* (the bus is in trouble, an event is newer than this build): given back, to
come again. Fail closed: nothing is decided on a log that cannot be read.
"""

import asyncio
import contextlib
import hashlib
import re
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import structlog

from mesh import notices
from mesh.bus.connection import Bus
from mesh.bus.log import JetStreamLog
from mesh.bus.pull import Message, Puller
from mesh.bus.roles import GUARD
from mesh.bus.streams import GUARD_GROUP, QUEUE_PULL_S, queue_consumer
from mesh.errors import BusError, LogUnreadable, Malformed, MeshError, UnknownEvent
from mesh.guard.courtroom import Contended, Courtroom, Frozen, Ruling
from mesh.guard.mesh_wide import MeshWide
from mesh.guard.surroundings import ConfUnreadable, Surroundings
from protocol import codec, subjects
from protocol.ids import (
    MAX_ID_CHARS,
    AgentName,
    Cause,
    control_cause,
    is_request_id,
    submitted_ms,
    submitter_of,
)
from protocol.messages import Hearing, Submit, id_of, submit_id
from protocol.standing import UNKNOWN_REQUEST, Late, Objection

_log = structlog.get_logger(__name__)

SLOTS = 64
"""Messages of one partition that a guard has in hand at most."""
OVERTAKEN_S = 30.0
"""How long a control message for an unknown request is kept trying: it may have overtaken its submit."""
AHEAD_MS = 5 * 60_000
"""How far in the future a submitter's clock may be."""
GIVE_UP_AFTER = 20
"""Deliveries after which a message that makes the guard itself fail becomes a dead letter."""
_AGAIN_S = 1.0
_TRACE = re.compile(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")
"""W3C `traceparent`; whatever else a sender calls so does not go on into the log."""


class Guard:
    """One guard process's work. `run` until cancelled; `drain` first to leave nothing half-done."""

    def __init__(self, bus: Bus, *, identity: str, surroundings: Surroundings | None = None) -> None:
        self._bus = bus
        self._identity = identity
        self._around = surroundings or Surroundings(bus)
        self._courtroom = Courtroom(bus, JetStreamLog(bus), self._around)
        self._mesh_wide = MeshWide(bus)
        self._pullers: dict[str, list[Puller]] = {}
        self._starting: asyncio.Event | None = None
        """Set once no further puller starts; None before the first one does."""
        self._leaving = False
        self.decided = 0
        self.dead = 0

    async def run(self) -> None:
        """Read the fleet, then take work until cancelled (or until drained while it was still starting)."""
        await self._around.start()
        self._starting = asyncio.Event()
        try:
            await self._begin()
        finally:
            self._starting.set()
        if self._leaving:
            return
        _log.info("guard_ready", identity=self._identity, fleet=self._around.fleet.name)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._around.keep_current())
            tasks.create_task(self._follow_freeze())

    async def _begin(self) -> None:
        handlers: dict[str, Callable[[Message], Awaitable[None]]] = {
            "CTL": self._on_control,
            "PROP": self._on_proposal,
            "TIMER": self._on_fire,
        }
        for stream, handler in handlers.items():
            self._pullers[stream] = [
                Puller(
                    self._bus,
                    stream,
                    queue_consumer(partition),
                    self._guarded(handler),
                    slots=SLOTS,
                    expires_s=QUEUE_PULL_S,
                    group=GUARD_GROUP,
                    priority=self._priority(partition),
                )
                for partition in range(subjects.PARTITIONS)
            ]
            for puller in self._pullers[stream]:
                if self._leaving:
                    return
                await puller.start()

    def _priority(self, partition: int) -> int:
        """Return 0 to 9: where this guard stands in line for a partition. No list of members is needed."""
        digest = hashlib.sha256(f"{self._identity}/{partition}".encode()).digest()
        return digest[0] % 10

    async def _follow_freeze(self) -> None:
        """Stop taking proposals and timers while the mesh is frozen; control messages go on."""
        while True:
            await self._around.frozen.wait()
            for stream in ("PROP", "TIMER"):
                for puller in self._pullers[stream]:
                    puller.pause()
            await self._around.thawed.wait()
            for stream in ("PROP", "TIMER"):
                for puller in self._pullers[stream]:
                    puller.resume()

    async def drain(self, grace_s: float) -> None:
        """Take nothing more and finish what is in hand; what takes longer than `grace_s` comes again."""
        self._leaving = True
        if self._starting is not None:
            await self._starting.wait()
        pullers = [puller for listed in self._pullers.values() for puller in listed]
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(grace_s):
                await asyncio.gather(*(puller.drain() for puller in pullers))
        await asyncio.gather(*(puller.close() for puller in pullers))
        with contextlib.suppress(BusError):
            await self._bus.settle()  # what was given back has left before the connection does
        _log.info("guard_drained", decided=self.decided, dead=self.dead)

    # --- messages ---------------------------------------------------------------------------------

    def _guarded(self, handler: Callable[[Message], Awaitable[None]]) -> Callable[[Message], Awaitable[None]]:
        """Wrap a handler so that its message always ends in one of the three ways."""

        async def handle(message: Message) -> None:
            try:
                await handler(message)
            except asyncio.CancelledError:
                message.nak()  # this guard is going; another one need not wait for the lease to end
                raise
            except (UnknownEvent, LogUnreadable) as error:
                _log.error("log_unreadable", code=error.code, detail=str(error), subject=message.subject)
                message.nak(5 * _AGAIN_S)
            except Malformed as error:
                await self._bury(message, Objection(error.code, str(error)))
            except Frozen:
                message.nak(_AGAIN_S)
            except (BusError, Contended, ConfUnreadable) as error:
                _log.warning("not_now", code=error.code, subject=message.subject)
                message.nak(_AGAIN_S)
            except Exception:
                _log.exception("guard_failed", subject=message.subject, delivered=message.delivered)
                if message.delivered >= GIVE_UP_AFTER:
                    await self._bury(
                        message, Objection("guard.failed", "the guard itself failed on this message")
                    )
                else:
                    message.nak(_AGAIN_S)

        return handle

    async def _on_proposal(self, message: Message) -> None:
        sender, request = subjects.parse_queued(message.subject)
        objection = self._unusable(request)
        if objection is None:
            hearing = self._proposal_hearing(message, sender, request)
            objection = self._stale(hearing)
            if objection is None:
                await self._hear(message, hearing)
                return
        await self._bury(message, objection)

    def _proposal_hearing(self, message: Message, sender: str, request: str) -> Hearing:
        """Return what a message in PROP says: a submit if it has no `kind`. Raises Malformed."""
        role = self._around.role_of(sender)
        if is_submit(message.data):
            submit = codec.parse_submit(message.data)
            digest = codec.body_digest(message.data)
            return Hearing(request, AgentName(sender), submit, Cause(submit_id(request)), role, digest)
        proposal = codec.parse_proposal(message.data)
        return Hearing(request, AgentName(sender), proposal, Cause(id_of(request, proposal)), role)

    async def _on_control(self, message: Message) -> None:
        sender, request = subjects.parse_queued(message.subject)
        control = codec.parse_control(message.data)
        if request == subjects.MESH_WIDE:
            objection = await self._mesh_wide.obey(control, sender, self._around.role_of(sender))
            if objection is not None:
                await self._bury(message, objection)
            else:
                message.ack()
            return
        objection = self._unusable(request)
        if objection is not None:
            await self._bury(message, objection)
            return
        cause = control_cause(request, sender, control.id)
        await self._hear(
            message, Hearing(request, AgentName(sender), control, cause, self._around.role_of(sender))
        )

    async def _on_fire(self, message: Message) -> None:
        request = subjects.parse_fire(message.subject)
        objection = self._unusable(request)
        if objection is not None:
            await self._bury(message, objection)
            return
        await self._courtroom.look(request)
        message.ack()

    async def _hear(self, message: Message, hearing: Hearing) -> None:
        trace = message.headers.get("traceparent", "")
        headers = {"traceparent": trace} if _TRACE.fullmatch(trace) else None
        ruling: Ruling = await self._courtroom.hear(hearing, headers)
        if isinstance(ruling, Objection):
            if self._may_have_overtaken(message, hearing, ruling):
                message.nak(_AGAIN_S)
            else:
                await self._bury(message, ruling)
            return
        if isinstance(ruling, Late):
            await self._tell_late(hearing, ruling)
        self.decided += 1
        message.ack()

    def _may_have_overtaken(self, message: Message, hearing: Hearing, ruling: Objection) -> bool:
        is_control = not hasattr(hearing.what, "report") and not isinstance(hearing.what, Submit)
        waited_s = (self._around.now() - message.stored_us) / 1e6
        return ruling.code == UNKNOWN_REQUEST and is_control and waited_s < OVERTAKEN_S

    # --- checks before anything is read -----------------------------------------------------------

    @staticmethod
    def _unusable(request: str) -> Objection | None:
        if len(request) > MAX_ID_CHARS or not is_request_id(request):
            return Objection("unusable_id", "a request id is `<submitter>_<ULID>`, the ULID in upper case")
        return None

    def _stale(self, hearing: Hearing) -> Objection | None:
        """Refuse a submit whose id is not the sender's, too old to be sure about, or from the future."""
        if not isinstance(hearing.what, Submit):
            return None
        if submitter_of(hearing.request) != hearing.sender:
            return Objection("unusable_id", f"a request of {hearing.sender} has an id that begins with it")
        now_ms = self._around.now() // 1000
        oldest_ms = now_ms - int(self._around.fleet.log_max_age_s * 1000 / 4)
        if not oldest_ms <= submitted_ms(hearing.request) <= now_ms + AHEAD_MS:
            return Objection("stale_id", "the ULID's time is too old or too far ahead; make a new id")
        return None

    # --- telling ----------------------------------------------------------------------------------

    async def _bury(self, message: Message, objection: Objection) -> None:
        """Keep a message that came to nothing, tell its sender, and only then acknowledge it."""
        sender, request = _address(message.subject)
        letter = notices.dead_letter(
            at=self._around.now(),
            by=GUARD,
            code=objection.code,
            detail=objection.detail,
            subject=message.subject,
            data=message.data,
            headers=message.headers,
            sender=sender,
            request=request,
            delivered=message.delivered,
        )
        try:
            await self._bus.publish_durable(notices.dead_subject(GUARD), msgspec.json.encode(letter))
        except MeshError as error:
            _log.warning("dead_letter_not_stored", code=error.code, subject=message.subject)
            message.nak(_AGAIN_S)
            return
        self.dead += 1
        _log.warning("dead_letter", code=objection.code, sender=sender, request=request)
        reason = notices.NoticeError(code=objection.code, detail=letter.detail)
        if sender:
            await self._notify(sender, request, error=reason, digest=codec.body_digest(message.data))
        message.ack()

    async def _tell_late(self, hearing: Hearing, late: Late) -> None:
        ended = notices.Ended(why=late.ended, turn=late.turn, round=late.round)
        await self._notify(hearing.sender, hearing.request, ended=ended)

    async def _notify(self, to: str, request: str, **said: Any) -> None:
        notice = notices.Notice(request=request, **said)
        await self._bus.publish(notices.note_subject(to, request), msgspec.json.encode(notice))


def _address(subject: str) -> subjects.Addressed:
    """Return sender and request as far as a subject names them; a timer has no sender."""
    try:
        return subjects.parse_queued(subject)
    except ValueError:
        return subjects.Addressed("", subject.rpartition(".")[2])


class _Kind(msgspec.Struct, frozen=True):
    kind: Any = None


_KIND = msgspec.json.Decoder(_Kind)


def is_submit(body: bytes) -> bool:
    """Say whether a message in PROP is a submit: it has no `kind`. What cannot be read is one too."""
    try:
        return _KIND.decode(body).kind is None
    except (msgspec.DecodeError, RecursionError, UnicodeError, ValueError):
        return True
