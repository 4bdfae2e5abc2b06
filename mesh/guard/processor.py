"""The request processor: read, let the decider decide, append, arm the timer.

A message is acknowledged by the caller only after `process` or `wake` returns. They return only when the
verdict is in the log, nothing else is due, and the request's timer stands no later than its next due time.
If a guard dies before that, the next one that takes a message of the request finishes its work.
"""

import asyncio
import contextlib

import msgspec

from mesh.bus.connection import Bus
from mesh.bus.dead_letters import note_subject
from mesh.bus.event_log import EventLog
from mesh.errors import (
    LogUnreadable,
    MeshError,
    OutcomeUnknown,
    SequenceConflict,
    SubjectTaken,
    TooLarge,
    UnknownEvent,
    Unreachable,
)
from mesh.guard import alarm, observer
from mesh.guard.cache import Cache, CachedRequest, Timer
from mesh.guard.context import DecisionContext
from mesh.service import tracing
from mesh.service.failpoints import failpoint
from mesh.service.logger import get_logger
from protocol.domain.admission import Late, Rejected
from protocol.domain.decider import (
    Append,
    Appended,
    MeshFrozen,
    NeedAttendance,
    NeedMoment,
    NeedPeers,
    NeedVerdictContext,
    Outcome,
    Step,
    Steps,
    Stored,
    TurnOver,
    WakeAt,
)
from protocol.domain.turns import TurnState
from protocol.wire import codec, events, subjects
from protocol.wire.commands import Command, Control, Submit
from protocol.wire.events import AnyEvent, FactsWithheld, type_of
from protocol.wire.notices import Ended, Notice

_log = get_logger(__name__)

ATTEMPTS = 12
"""How often a lost race or an unknown outcome is met by reading again; then the message comes back."""
_BACKOFF_S = 0.02
_BACKOFF_MAX_S = 1.0


class Contended(MeshError):
    """Too many lost races over one request; the message is to come again."""

    code = "guard.contended"


class Frozen(MeshError):
    """The whole mesh is frozen; the message is to come again after the thaw."""

    code = "guard.frozen"


class RequestProcessor:
    """Processes commands: those of one request one after the other, any number of requests at once."""

    def __init__(self, bus: Bus, log: EventLog, context: DecisionContext, cache: Cache | None = None) -> None:
        self._bus = bus
        self._log = log
        self._context = context
        self._cache = cache or Cache()
        self.conflicts = 0
        """How often another guard had been first."""

    async def process(self, hearing: Command) -> Outcome:
        """Decide one message, or say why it is not decided.

        Raises what reading the log raises, Contended, Frozen, and BusError: then nothing may be acknowledged.
        """
        async with self._cache.lock(hearing.request):
            failpoint("guard.heard")
            outcome = await self._until_settled(hearing.request, hearing)
            assert outcome is not None
        observer.counted(hearing, outcome)
        return outcome

    async def wake(self, request: str) -> None:
        """Append what is due on a request whose timer fired. Raises as `hear`."""
        async with self._cache.lock(request):
            failpoint("guard.fired")
            self._cache.drop(request)  # an older copy might miss the very wait that the timer was armed for
            await self._until_settled(request, None)

    async def _until_settled(self, request: str, hearing: Command | None) -> Outcome | None:
        certain = False
        what = None if hearing is None else hearing.what
        is_submit, is_control = isinstance(what, Submit), isinstance(what, Control)
        for attempt in range(ATTEMPTS):
            try:
                known = self._cache.get(request)
                cached = known or await self._cached_request(request, fresh=is_submit and not certain)
                outcome = await self._session(cached, request, hearing)
                # What a copy does not know, another guard may have written: the ask that is replied to, say.
                unsure = isinstance(outcome, Rejected) or (is_control and isinstance(outcome, Late))
                if not unsure or certain or not (known or is_submit):
                    self._cache.put(request, cached)  # what was appended made it larger
                    return outcome
                self._cache.drop(request)
            except SequenceConflict:
                self.conflicts += 1
                self._cache.drop(request)
            except (OutcomeUnknown, Unreachable):
                self._cache.drop(request)
                if attempt == ATTEMPTS - 1:
                    raise
                await asyncio.sleep(min(_BACKOFF_S * 2**attempt, _BACKOFF_MAX_S))
            except BaseException:
                self._cache.drop(request)  # half-done work: the log alone says how far it came
                raise
            certain = True
        raise Contended(f"{request}: {ATTEMPTS} races lost")

    async def _cached_request(self, request: str, *, fresh: bool) -> CachedRequest:
        """Return the request as it is cached, read from the log unless it is `fresh`.

        A submit that is not in the cache is taken for new without looking: if it is not, the
        compare-and-set with "no event yet" fails, and the second attempt reads.
        """
        cached = CachedRequest(timer=Timer(0, None)) if fresh else await self._read(request)
        self._cache.put(request, cached)
        return cached

    async def _read(self, request: str) -> CachedRequest:
        cached = CachedRequest()
        for stored in await self._log.read(request):
            try:
                cached.ledger.apply(codec.decode_event(stored.body), stored.body)
            except UnknownEvent:
                raise
            except Exception as broken:
                # Not the fault of the message: it waits until somebody has looked at the log.
                raise LogUnreadable(request, f"the event at {stored.seq} cannot be folded") from broken
            cached.stored(stored.body, stored.seq)
        return cached

    async def _session(self, cached: CachedRequest, request: str, hearing: Command | None) -> Outcome | None:
        """Take all steps of one command, or of what is due, on one copy of the request."""
        fleet, frozen = self._context.fleet, self._context.frozen.is_set()
        steps: Steps[Outcome | None]
        if hearing is None:
            steps = cached.decider.wake(fleet, mesh_frozen=frozen)
        else:
            steps = cached.decider.handle(hearing, fleet, mesh_frozen=frozen)
        steps = observer.observed(steps, cached.ledger, hearing)
        said: object = None
        while True:
            try:
                step = steps.send(said)
            except StopIteration as done:
                outcome: Outcome | None = done.value
                break
            try:
                said = await self._answer(step, cached, request)
            except BaseException as error:
                steps.throw(error)
                raise
        if isinstance(outcome, MeshFrozen):
            raise Frozen("the mesh is frozen")
        failpoint("guard.armed")
        return outcome

    async def _answer(self, step: Step, cached: CachedRequest, request: str) -> object:
        match step:
            case NeedMoment():
                return self._context.moment()
            case NeedVerdictContext():
                return await self._context.verdict_context(step)
            case NeedPeers(agents):
                return self._context.breakers.not_open(agents)
            case NeedAttendance(turn):
                journal = turn.work.continues or turn.id
                first = subjects.step(turn.agent, request, journal, f"{turn.round}-0")
                return await self._context.attendance.of(turn.agent, cached.placed[turn.round_n], first)
            case Append():
                return await self._append(cached, step)
            case Appended(event, counts, command):
                for count in counts:
                    await self._context.breakers.count(count)
                if command is None:
                    failpoint("guard.followed")
                else:
                    failpoint("guard.withheld" if isinstance(event, FactsWithheld) else "guard.decided")
            case TurnOver(event, turn):
                await self._end(event, turn)
            case WakeAt(at):
                await alarm.arm_timer(self._bus, cached, request, at, self._context.now())
        return None

    async def _append(self, cached: CachedRequest, step: Append) -> Stored | None:
        event = step.event
        if step.command is None:
            failpoint("guard.due")
        body = codec.encode(event)
        headers = {"Mesh-Type": type_of(event), "Mesh-Id": event.id}
        if event.trace:
            headers[tracing.HEADER] = event.trace
        try:
            seq = await self._log.append(event.to, event.request, body, after=cached.seq, headers=headers)
        except TooLarge as refused:
            if step.command is None:
                said = {"type": type_of(event), "size": refused.size, "limit": refused.limit}
                _log.error("event_too_large", request=event.request, **said)
            return None
        cached.stored(body, seq)
        _say(event, seq)
        return Stored(event, body)

    async def _end(self, event: AnyEvent, turn: TurnState) -> None:
        """Tell an agent that its turn is over.

        The message lies where the agent looks before it does anything that counts; the notice makes it quick.
        """
        failpoint("guard.ended")
        ended = Ended(why=type_of(event), turn=turn.id, round=turn.round)
        end = subjects.end(turn.agent, event.request, turn.id)
        with contextlib.suppress(SubjectTaken):  # it is there already
            await self._bus.publish_durable(end, msgspec.json.encode(ended))
        notice = Notice(request=event.request, ended=ended)
        await self._bus.publish(note_subject(turn.agent, event.request), msgspec.json.encode(notice))


_ROUTINE = (
    events.RequestOpened,
    events.HandoffAdmitted,
    events.FactsWithheld,
    events.RequestCompleted,
    events.TurnRetried,
)
"""What goes as it should: the log of events tells it; the guard's own lines need not."""


def _say(event: AnyEvent, seq: int) -> None:
    """Log an event: ids and codes, nothing that a person or a model wrote."""
    said: dict[str, object] = {"request": event.request, "n": event.n, "to": event.to, "seq": seq}
    refusal, error = getattr(event, "refusal", None), getattr(event, "error", None)
    if refusal is not None:
        said["rule"] = str(refusal.rule)
    if error is not None:
        said["error"] = error.code
    name = type_of(event).replace(".", "_")
    if isinstance(event, _ROUTINE):
        _log.debug(name, **said)
    else:
        _log.info(name, **said)
