"""The request processor: reads the log, drives the decider, appends events, arms the timer.

The caller acknowledges a message only after `process` or `wake` returns. They return only when the verdict is
in the log, nothing else is due, and the timer is set to fire no later than the next due time. If a guard dies
before that, the next guard that takes a message of the request finishes its work.
"""

import asyncio
import contextlib
from collections import defaultdict
from collections.abc import Sequence
from random import uniform
from typing import assert_never

from mesh.bus import stores
from mesh.bus.connection import Bus
from mesh.bus.event_log import JetStreamLog
from mesh.bus.reader import StoredMessage
from mesh.errors import (
    LogUnreadable,
    Malformed,
    MeshError,
    OutcomeUnknown,
    SequenceConflict,
    UnknownEvent,
    Unreachable,
)
from mesh.guard import observer
from mesh.guard.anchors import Anchors
from mesh.guard.cache import Cache, CachedRequest, Timer
from mesh.guard.context import DecisionContext
from mesh.guard.messages import unheard
from mesh.guard.observer import VERDICT_S, UrgentAlarms, VerdictTooLong, VerdictWatchdog
from mesh.guard.shadow import AtWork, ShadowJudge
from mesh.guard.writer import EventWriter
from mesh.service.failpoints import failpoint
from mesh.service.logs import get_logger
from mesh.telemetry import tracing
from protocol.domain.admission import Late, Rejected
from protocol.domain.decider import OpenDecision
from protocol.domain.envelope import World
from protocol.domain.steps import (
    Append,
    Appended,
    Attendance,
    MeshFrozen,
    NeedAttendance,
    NeedCandidates,
    NeedPeers,
    NeedPermit,
    NeedReaders,
    NeedUndecided,
    NeedVerdictContext,
    Outcome,
    Settled,
    ShowQuestions,
    Step,
    TurnOver,
)
from protocol.domain.timers import guard_failed
from protocol.domain.turns import TurnState
from protocol.wire import codec, events, subjects
from protocol.wire.commands import Command, Submit, is_control
from protocol.wire.events import AnyEvent, FactsWithheld

_log = get_logger(__name__)

ATTEMPTS = 12
"""How often the log is read again after a lost race or an unknown outcome. Then the message is given back."""
MOST_EVENTS, MOST_STEPS = 20_000, 10_000
"""How many events one message may lead to, and how many steps may pass between two of them.

A thousand tasks (the most that a policy allows) that are due at once take about 4,000 events. An event that
ends a request notifies the agents of all ended turns: a thousand steps.
"""
_BACKOFF_S = 0.02
_BACKOFF_MAX_S = 1.0
_SEEN_AT_ONCE = 16
"""How many rounds' agents are probed concurrently."""
_CROWDED_MAX_S = 0.2
"""Longest wait after a lost race over a tree. All such waits together are shorter than a lease."""


class Contended(MeshError, code="guard.contended"):
    """Too many lost races over one request. The message must come again."""


class GuardFailed(MeshError, code="guard.failed"):
    """The decider itself failed on a message: it raised, or took too long. Its error is the cause.

    It would fail again. `ends_request` is False if only the message is at fault.
    """

    def __init__(self, request: str, *, ends_request: bool) -> None:
        super().__init__(f"the guard itself failed on {request}")
        self.ends_request = ends_request


class MeshIsFrozen(MeshError, code="guard.frozen"):
    """The whole mesh is frozen. The message must come again after the thaw."""


class RequestProcessor:
    """Processes commands: one at a time for each request, any number of requests concurrently.

    Args:
        verdict_s: CPU seconds that one step of a decision may take.
        most_events: how many events one message may bring about.
        shadow: gets what is in the log, to judge it by other policies.
    """

    def __init__(
        self,
        bus: Bus,
        log: JetStreamLog,
        context: DecisionContext,
        anchors: Anchors,
        verdict_s: float = VERDICT_S,
        most_events: int = MOST_EVENTS,
        shadow: ShadowJudge | None = None,
    ) -> None:
        self._bus = bus
        self._log = log
        self._most_events = most_events
        self._context = context
        self._writer = EventWriter(bus, log, context, anchors, shadow)
        self._cache = Cache()
        self._watchdog = VerdictWatchdog(verdict_s)
        self._alarms = UrgentAlarms()
        self._at_work = AtWork() if shadow is None else shadow.at_work
        self._in_hand = defaultdict[str, list[int]](list)
        """By request: the arrival times (UTC µs) of the messages that this guard is processing. Messages from
        the lane are in no queue."""
        self.conflicts = 0
        """How often another guard was first."""

    async def process(self, command: Command, *, queued: bool = True) -> Outcome:
        """Decide one message; return its outcome.

        Args:
            queued: True if the message is in a queue, and comes again unless it is acknowledged.

        Raises the errors of reading the log, Contended, MeshIsFrozen and BusError: then the message must not
        be acknowledged. Raises GuardFailed if trying again is useless.
        """
        in_hand = self._in_hand[command.request]
        in_hand.append(command.stored)
        try:
            async with self._cache.lock(command.request):
                failpoint("guard.heard")
                with self._at_work:
                    outcome = await self._until_settled(
                        command.request, command, command.stored, queued=queued
                    )
                assert outcome is not None
        finally:
            in_hand.remove(command.stored)
            if not in_hand:
                del self._in_hand[command.request]
        observer.count_outcome(command, outcome)
        return outcome

    async def wake(self, request: str, fired_us: int = 0) -> None:
        """Append what is due on a request whose timer fired at `fired_us` (UTC µs). Raises as `process`."""
        async with self._cache.lock(request):
            failpoint("guard.fired")
            self._cache.drop(request)  # an older copy might lack the wait that the timer was armed for
            with self._at_work:
                await self._until_settled(request, None, fired_us)

    async def give_up(self, request: str) -> None:
        """End a request on which this guard fails, without folding its events. Does nothing if it is over.

        Raises LogUnreadable and UnknownEvent if even its first event or its head cannot be read, Contended,
        and BusError.
        """
        async with self._cache.lock(request):
            self._cache.drop(request)
            for _ in range(ATTEMPTS):
                stored = await self._log.read(request)
                found = _ends_of(request, stored)
                if found is None or isinstance(found[1], events.Ended):
                    break
                opened, head = found
                moment = self._context.moment()
                world = World(now=moment.now, salt=moment.salt, trace=head.trace)
                event = guard_failed(opened, head, codec.body_digest(stored[-1].data), world)
                with contextlib.suppress(SequenceConflict):
                    seq = await self._writer.store(event, codec.encode(event), stored[-1].seq)
                    observer.log_event(event, seq)
                    break
            else:
                raise Contended(f"{request}: {ATTEMPTS} races lost")
        with contextlib.suppress(GuardFailed, MeshIsFrozen):
            await self.wake(request)  # notifies the agents whose turns ended

    async def _until_settled(
        self, request: str, command: Command | None, stored_us: int, *, queued: bool = True
    ) -> Outcome | None:
        certain = False
        what = None if command is None else command.what
        submits, controls = type(what) is Submit, what is not None and is_control(what)
        cached: CachedRequest | None = None
        for attempt in range(ATTEMPTS):
            try:
                known = self._cache.get(request)
                if known is not None:
                    cached = known
                else:  # a submit is assumed to be new: the compare-and-set checks that there is no event yet
                    fresh = submits and not certain
                    cached = CachedRequest(timer=Timer(0, None)) if fresh else await self._read(request)
                    self._cache.put(request, cached)
                outcome = await self._session(cached, request, command, stored_us, queued=queued)
                # Another guard may have written what this copy lacks, for example the ask that a reply
                # answers.
                unsure = isinstance(outcome, Rejected) or (controls and isinstance(outcome, Late))
                if not unsure or certain or not (known or submits):
                    self._cache.put(request, cached)  # it has grown by the appended events
                    return outcome
                self._cache.drop(request)
            except SequenceConflict:
                self.conflicts += 1
                crowded = cached is not None and len(cached.ledger.open) > 1
                self._cache.drop(request)
                if crowded:  # the other guard has more to append, and would conflict again
                    await asyncio.sleep(min(_BACKOFF_S * 2**attempt, _CROWDED_MAX_S) * uniform(0.5, 1.5))
            except (OutcomeUnknown, Unreachable):
                self._cache.drop(request)
                if attempt == ATTEMPTS - 1:
                    raise
                await asyncio.sleep(min(_BACKOFF_S * 2**attempt, _BACKOFF_MAX_S))
            except GuardFailed as failure:
                self._cache.drop(request)
                if known is None or isinstance(failure.__cause__, VerdictTooLong):
                    raise  # otherwise the copy may have been at fault
            except BaseException:
                self._cache.drop(request)  # half-done work: only the log has its state
                raise
            certain = True
        raise Contended(f"{request}: {ATTEMPTS} races lost")

    async def _read(self, request: str) -> CachedRequest:
        return self._folded(request, await self._log.read(request))

    def _folded(self, request: str, log: Sequence[StoredMessage]) -> CachedRequest:
        cached, seq = CachedRequest(), 0
        try:
            for stored in log:
                seq = stored.seq
                self._watchdog.begin()  # restarted for each event, since a long log takes a while
                event = codec.decode_event(stored.data)
                cached.ledger.apply(event, stored.data)
                cached.stored(event, stored.data, seq)
            self._watchdog.end()
        except UnknownEvent:
            raise
        except VerdictTooLong as late:
            raise GuardFailed(request, ends_request=True) from late
        except Exception as broken:
            # Not the message's fault: it waits until a person has checked the log.
            raise LogUnreadable(request, f"the event at {seq} cannot be folded") from broken
        finally:
            self._watchdog.end()
        return cached

    def _next(self, decision: OpenDecision | observer.TracedDecision, request: str) -> Step:
        """Return the decision's next step. Raises GuardFailed if the decision itself raises."""
        try:
            self._watchdog.begin()
            try:
                return decision.next()
            finally:
                self._watchdog.end()
        except Exception as error:
            raise GuardFailed(request, ends_request=not decision.admitting) from error

    async def _session(
        self, cached: CachedRequest, request: str, command: Command | None, stored_us: int, *, queued: bool
    ) -> Outcome | None:
        """Take all steps of one command, or of due consequences, on one copy of the request.

        Args:
            stored_us: UTC µs at which the bus stored the command or the fired timer.
        """
        context = self._context
        fleet, frozen, moment = context.fleet, context.frozen.is_set(), context.moment(stored_us)
        cached.ledger.mesh_thawed = context.spans
        if command is None:
            decision = cached.decider.wake(fleet, moment, mesh_frozen=frozen)
        else:
            decision = cached.decider.handle(command, fleet, moment, mesh_frozen=frozen)
        if tracing.traced():
            with observer.traced(decision, cached.ledger, command) as observed:
                settled = await self._steps(cached, observed, request, command, stored_us, queued=queued)
        else:
            settled = await self._steps(cached, decision, request, command, stored_us, queued=queued)
        if isinstance(settled.outcome, MeshFrozen):
            raise MeshIsFrozen("the mesh is frozen")
        if settled.wake_at is not None and not cached.wakes(settled.wake_at, context.now()):
            await self._writer.arm(cached, request, settled.wake_at)
        failpoint("guard.armed")
        if cached.ledger.policy.human_deadline_s is not None:
            self._alarms.log(cached.ledger, context.now())
        return settled.outcome

    async def _steps(
        self,
        cached: CachedRequest,
        decision: OpenDecision | observer.TracedDecision,
        request: str,
        command: Command | None,
        stored_us: int,
        *,
        queued: bool,
    ) -> Settled:
        """Take every step of a decision. Raises GuardFailed if it does not end."""
        context, breakers = self._context, self._context.breakers
        taken = stored = 0
        while taken < MOST_STEPS and stored < self._most_events:
            taken += 1
            # Compared by exact type, with the usual steps first, since every decision runs through here.
            step = self._next(decision, request)
            if type(step) is NeedVerdictContext:
                step.supply(context.known_context(step) or await context.verdict_context(step))
            elif type(step) is Append:
                step.supply(await self._writer.append(cached, step, stored_us))
                taken, stored = 0, stored + 1
            elif type(step) is Appended:
                for count in step.counts:
                    if breakers.is_touched(count):
                        await breakers.count(count)
                _mark(step)
                observer.count_event(step, command)
            elif type(step) is Settled:
                return step
            elif type(step) is NeedCandidates:
                step.supply(await context.readiness(step))
            elif type(step) is NeedPermit:
                step.supply(await breakers.ask(step.agent, step.command.cause))
            elif type(step) is NeedPeers:
                step.supply(breakers.not_open(step.agents))
            elif type(step) is NeedAttendance:
                step.supply(await self._attendance(cached, request, step))
            elif type(step) is NeedReaders:
                step.supply(await context.readers(step, cached.placed))
            elif type(step) is NeedUndecided:
                waits = self._waits(request, step, command)
                step.supply(
                    waits or await unheard(self._bus, request, step, command, context.fleet.partitions)
                )
            elif type(step) is TurnOver:
                if not queued:  # the sender may learn that its turn is over, and not ask again
                    await self._writer.arm_soon(cached, request)
                await self._writer.end(step.event, step.turn)
            elif type(step) is ShowQuestions:
                failpoint("guard.asks")
                await stores.show_questions(self._bus, step.reader, step.request, step.questions)
            else:
                assert_never(step)
        try:
            raise VerdictTooLong(f"it comes to no end: {type(step).__name__} again and again")
        except VerdictTooLong as endless:
            raise GuardFailed(request, ends_request=not decision.admitting) from endless

    def _waits(self, request: str, need: NeedUndecided, command: Command | None) -> bool:
        """Return True if a message about the request that came in time is waiting in this guard."""
        others = [*self._in_hand.get(request, ())]
        if command is not None:
            others.remove(command.stored)
        return any(came < need.before for came in others)

    async def _attendance(
        self, cached: CachedRequest, request: str, need: NeedAttendance
    ) -> tuple[Attendance, ...]:
        watch = self._context.attendance
        seen: list[Attendance] = []
        for start in range(0, len(need.turns), _SEEN_AT_ONCE):
            probes = [
                watch.look_at(turn.agent, cached.placed[turn.round_n], _first_step(request, turn))
                for turn in need.turns[start : start + _SEEN_AT_ONCE]
            ]
            seen += await asyncio.gather(*probes)
        return tuple(seen)


def _ends_of(request: str, stored: Sequence[StoredMessage]) -> tuple[events.RequestOpened, AnyEvent] | None:
    """Return a request's opening event and its newest event; None if it was never opened."""
    try:
        first = [codec.decode_event(each.data) for each in stored[:2]]  # a `facts.withheld` may come first
        opened = next((event for event in first if isinstance(event, events.RequestOpened)), None)
        return None if opened is None else (opened, codec.decode_event(stored[-1].data))
    except Malformed as broken:
        raise LogUnreadable(request, "its first event or its newest cannot be read") from broken


def _first_step(request: str, turn: TurnState) -> str:
    """Return the subject of the first step that a turn's round would journal."""
    return subjects.step(turn.agent, request, turn.work.journal_id, f"{turn.round}-0")


def _mark(step: Appended) -> None:
    """Mark the point after an event is in the log, for the fault drill."""
    if step.command is None:
        failpoint("guard.followed")
    else:
        failpoint("guard.withheld" if type(step.event) is FactsWithheld else "guard.decided")
