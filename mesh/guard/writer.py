"""The guard's writer: stores a request's events, arms its timer, tells agents that their turns are over.

Nobody else writes to the log (its permissions make that so). An event is stored only behind the head that its
verdict was found on.
"""

import asyncio
import contextlib

import msgspec

from mesh.bus.connection import Bus
from mesh.bus.event_log import JetStreamLog
from mesh.errors import SubjectTaken, TooLarge
from mesh.guard import observer
from mesh.guard.anchors import Anchors
from mesh.guard.cache import CachedRequest, arm_timer
from mesh.guard.context import DecisionContext
from mesh.guard.shadow import ShadowJudge
from mesh.service.failpoints import failpoint
from mesh.service.logs import get_logger
from mesh.telemetry import tracing
from protocol.domain.ledger import Ledger
from protocol.domain.steps import NOT_STORED, Append, NotStored, Stored
from protocol.domain.turns import TurnState
from protocol.domain.waits import first_wait
from protocol.wire import codec, subjects
from protocol.wire.events import AnyEvent, type_of
from protocol.wire.records import Ended, Notice

_log = get_logger(__name__)


class EventWriter:
    """Writes what the processor decides.

    Args:
        shadow: gets what is in the log, to judge it by other policies.
    """

    def __init__(
        self,
        bus: Bus,
        log: JetStreamLog,
        context: DecisionContext,
        anchors: Anchors,
        shadow: ShadowJudge | None,
    ) -> None:
        self._bus, self._log, self._context = bus, log, context
        self._anchors, self._shadow = anchors, shadow

    async def append(self, cached: CachedRequest, step: Append, stored_us: int) -> Stored | NotStored:
        """Store a step's event, and tell whoever counts or judges what is stored. Raises as `store`."""
        event = step.event
        if step.command is None:
            failpoint("guard.due")
        body = codec.encode(event)
        try:
            first = not cached.placed
            seq = await (self._open(cached, event, body) if first else self.store(event, body, cached.seq))
        except TooLarge as refused:
            if step.command is None:
                sizes = {"type": type_of(event), "size": refused.size, "limit": refused.limit}
                _log.error("event_too_large", request=event.request, **sizes)
            return NOT_STORED
        cached.stored(event, body, seq)
        self._context.memory.stored(event, seq)
        self._context.quotas.stored(event, len(body))
        if self._shadow is not None:
            self._shadow.stored(event, body, cached.ledger, step.command)
        observer.log_event(event, seq)
        return Stored(event, body, self._context.moment(stored_us))

    async def store(self, event: AnyEvent, body: bytes, after: int) -> int:
        """Store an event behind a sequence; return its own. Raises as `JetStreamLog.append`."""
        headers = {"Mesh-Type": type_of(event), "Mesh-Id": event.id}
        if event.trace:
            headers[tracing.HEADER] = event.trace
        seq = await self._log.append(event.to, event.request, body, after=after, headers=headers)
        self._anchors.stored(event.request, event.n, body, seq)
        return seq

    async def _open(self, cached: CachedRequest, event: AnyEvent, body: bytes) -> int:
        """Store a request's first event and arm its timer at the same time, the timer's publish first.

        Client and guard may both die now. Without a timer the request would wait until its agent proposes.
        """
        opened = Ledger()
        opened.mesh_thawed = self._context.spans
        opened.apply(event, body)
        at = first_wait(opened) or self._soon()  # the first wait may be added later
        arming = self.arm(cached, event.request, at)
        armed, stored = await asyncio.gather(arming, self.store(event, body, 0), return_exceptions=True)
        if isinstance(stored, BaseException):
            raise stored
        if armed is not None:
            raise armed
        return stored

    async def arm(self, cached: CachedRequest, request: str, at: int) -> None:
        """Arm the request's timer (UTC µs)."""
        context = self._context
        await arm_timer(self._bus, cached, request, at, context.now(), context.fleet.partitions)

    async def arm_soon(self, cached: CachedRequest, request: str) -> None:
        """Arm the timer soon, in case this guard dies before everything that follows is in the log."""
        await self.arm(cached, request, self._soon())

    def _soon(self) -> int:
        return self._context.now() + round(self._context.fleet.guard_lease_s * 1e6)

    async def end(self, event: AnyEvent, turn: TurnState) -> None:
        """Tell an agent that its turn is over.

        The agent checks the stored message before it does anything that counts; the notice only makes it
        faster.
        """
        failpoint("guard.ended")
        ended = Ended(why=type_of(event), turn=turn.id, round=turn.round)
        end = subjects.end(turn.agent, event.request, turn.id)
        with contextlib.suppress(SubjectTaken):  # it is there already
            await self._bus.publish_durable(end, msgspec.json.encode(ended))
        notice = Notice(request=event.request, ended=ended)
        await self._bus.publish(subjects.note(turn.agent, event.request), msgspec.json.encode(notice))
