"""The courtroom: read, decide, append, finish what is due, arm the timer.

Whatever is heard is acknowledged by the caller only after `hear` or `look` returns, and these return
only when the verdict is in the log, nothing else is due, and the request's timer stands no later
than its next due time. A guard that dies anywhere in between is finished by whoever hears next.
"""

import asyncio
from typing import NamedTuple

import msgspec
import structlog
from msgspec.structs import replace

from mesh.bus.connection import Bus
from mesh.bus.dead_letters import note_subject
from mesh.bus.log import EventLog
from mesh.errors import (
    LogUnreadable,
    MeshError,
    OutcomeUnknown,
    PublishRefused,
    SequenceConflict,
    StreamFull,
    TooLarge,
    UnknownEvent,
    Unreachable,
)
from mesh.guard import alarm, telling
from mesh.guard.attendance import Attended
from mesh.guard.cache import Cache, Docket, Timer
from mesh.guard.surroundings import Surroundings
from mesh.service import tracing
from mesh.service.failpoints import failpoint
from protocol.control import objection_to
from protocol.decide import decide
from protocol.domain.held import Turn
from protocol.domain.labelling import labelled
from protocol.due import EVENT_TOO_LARGE, NOT_LOOKED, by_the_clock, due, too_large
from protocol.ledger import Ledger
from protocol.standing import Fit, Late, Objection, standing
from protocol.wire import codec, events, subjects
from protocol.wire.commands import Control, Hearing, MoveProposed, Proposal, Submit
from protocol.wire.config import Policy
from protocol.wire.events import AnyEvent, FactsWithheld, type_of
from protocol.wire.ids import HUMAN, proposal_id
from protocol.wire.notices import Ended, Notice
from protocol.world import Grounds

_log = structlog.get_logger(__name__)

ATTEMPTS = 12
"""How often a lost race or an unknown outcome is met by reading again; then the message comes back."""
_BACKOFF_S = 0.02
_BACKOFF_MAX_S = 1.0


class Decided(NamedTuple):
    """The event that decided a message."""

    event: AnyEvent


Ruling = Decided | Late | Objection


class Contended(MeshError):
    """Too many lost races over one request; the message is to come again."""

    code = "guard.contended"


class Frozen(MeshError):
    """The whole mesh is frozen; the message is to come again after the thaw."""

    code = "guard.frozen"


class Courtroom:
    """Judges requests, one at a time each, any number at once."""

    def __init__(
        self, bus: Bus, log: EventLog, surroundings: Surroundings, cache: Cache | None = None
    ) -> None:
        self._bus = bus
        self._log = log
        self._around = surroundings
        self._cache = cache or Cache()
        self.conflicts = 0
        """How often another guard had been first."""

    async def hear(self, hearing: Hearing, trace: str = "") -> Ruling:
        """Decide one message, or say why it is not decided.

        Args:
            trace: the `traceparent` that the message brought; well-formed or empty.

        Raises what reading the log raises, Contended, Frozen, and BusError: then nothing may be acknowledged.
        """
        hearing = labelled(hearing, self._around.fleet.labels)
        async with self._cache.lock(hearing.request):
            failpoint("guard.heard")
            return await self._until_settled(hearing.request, hearing, trace)

    async def look(self, request: str) -> None:
        """Append what is due on a request whose timer fired. Raises as `hear`."""
        async with self._cache.lock(request):
            failpoint("guard.fired")
            self._cache.drop(request)  # an older copy might miss the very wait that the timer was armed for
            await self._until_settled(request, None)

    async def _until_settled(self, request: str, hearing: Hearing | None, trace: str = "") -> Ruling:
        certain = False
        is_submit, is_control = isinstance(_what(hearing), Submit), isinstance(_what(hearing), Control)
        for attempt in range(ATTEMPTS):
            try:
                known = self._cache.get(request)
                docket = known or await self._docket(request, fresh=is_submit and not certain)
                ruling = await self._session(docket, request, hearing, trace)
                # What a copy does not know, another guard may have written: the ask that is replied to, say.
                unsure = isinstance(ruling, Objection) or (is_control and isinstance(ruling, Late))
                if not unsure or certain or not (known or is_submit):
                    self._cache.put(request, docket)  # what was appended made it larger
                    return ruling
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

    async def _docket(self, request: str, *, fresh: bool) -> Docket:
        """Return the docket, read from the log unless it is `fresh`.

        A submit that is not in the cache is taken for new without looking: if it is not, the
        compare-and-set with "no event yet" fails, and the second attempt reads.
        """
        docket = Docket(timer=Timer(0, None)) if fresh else await self._read(request)
        self._cache.put(request, docket)
        return docket

    async def _read(self, request: str) -> Docket:
        docket = Docket()
        for stored in await self._log.read(request):
            try:
                docket.apply(codec.decode_event(stored.body), stored.body, stored.seq)
            except UnknownEvent:
                raise
            except Exception as broken:
                # Not the fault of the message: it waits until somebody has looked at the log.
                raise LogUnreadable(request, f"the event at {stored.seq} cannot be folded") from broken
        return docket

    async def _session(self, docket: Docket, request: str, hearing: Hearing | None, trace: str) -> Ruling:
        ruling: Ruling = Late("", 0, docket.ledger.status)
        what = _what(hearing)
        if self._around.frozen.is_set():
            # Control messages append their own event and nothing else; what is due is for the timers,
            # which wait in their queue until the thaw. Everything else was in hand as the freeze came.
            if hearing is None or not isinstance(what, Control):
                raise Frozen("the mesh is frozen")
            ruling = await self._rule(docket, hearing, trace)
            await alarm.see_to(self._bus, docket, request, self._around.now())
            return ruling
        deciding = (what.turn, what.round) if isinstance(what, Proposal) else None
        found = await self._finish(docket, deciding)
        if hearing is not None:
            ruling = await self._rule(docket, hearing, trace)
            if isinstance(ruling, Decided):
                found = await self._finish(docket, None)
        if isinstance(ruling, Late) and not isinstance(what, MoveProposed):
            await self._end_again(docket)
        await alarm.see_to(self._bus, docket, request, self._around.now(), found)
        failpoint("guard.armed")
        return ruling

    async def _rule(self, docket: Docket, hearing: Hearing, came: str) -> Ruling:
        """Give the verdict, as a span of the request's own trace."""
        trace = tracing.within(docket.ledger.trace, came)
        with telling.verdict(hearing, trace, came) as span:
            ruling = await self._judge(docket, hearing, tracing.current(trace))
            telling.ruled(span, hearing, ruling.event if isinstance(ruling, Decided) else ruling)
        return ruling

    async def _judge(self, docket: Docket, hearing: Hearing, trace: str) -> Ruling:
        found = standing(docket.ledger, hearing)
        if not isinstance(found, Fit):
            return found
        while True:
            world = await self._around.world_for(docket.ledger, hearing, trace)
            objection = objection_to(docket.ledger, hearing, world)
            if objection is not None:
                return objection
            event = decide(docket.ledger, hearing, _policy(docket.ledger, hearing, world.policy), world)
            try:
                await self._append(docket, event)
            except TooLarge:
                return Objection("event_too_large", "what would be recorded of it is more than the bus takes")
            if not isinstance(event, FactsWithheld):
                failpoint("guard.decided")
                return Decided(event)
            failpoint("guard.withheld")

    async def _finish(self, docket: Docket, deciding: tuple[str, int] | None) -> Grounds:
        """Append every consequence that is due, one at a time.

        Returns what the last look in vain rested on.
        """
        ledger = docket.ledger
        while (at := docket.quiet_until()) is not None and at <= self._around.now():
            seen = await self._seen(docket, deciding)
            world = self._around.world_for_due(ledger, seen)
            follows = due(ledger, None, world, deciding)
            if follows is None:
                return world.grounds
            failpoint("guard.due")
            with telling.consequence(ledger, follows):
                trace = tracing.current(ledger.trace)
                if not await self._follow(docket, follows, trace):
                    world = replace(self._around.world_for_due(ledger, seen), trace=trace)
                    await self._append(docket, too_large(ledger, world, follows))
            failpoint("guard.followed")
        return NOT_LOOKED

    async def _seen(self, docket: Docket, deciding: tuple[str, int] | None) -> Attended | None:
        """Return what is seen of the agent whose round may have to end by the clock; None if none has."""
        turn = by_the_clock(docket.ledger, None, self._around.now(), deciding)
        if turn is None:
            return None
        journal = turn.work.continues or turn.id
        step = subjects.step(turn.agent, str(docket.ledger.request), journal, f"{turn.round}-0")
        return await self._around.attendance.of(turn.agent, docket.placed[turn.round_n], step)

    async def _follow(self, docket: Docket, follows: AnyEvent | Hearing, trace: str) -> bool:
        """Append one consequence; False if it is more than the bus takes."""
        if isinstance(follows, Hearing):
            ruling = await self._rule(docket, follows, "")
            if isinstance(ruling, Objection) and ruling.code == EVENT_TOO_LARGE:
                return False
            if not isinstance(ruling, Decided):
                raise LogUnreadable(str(docket.ledger.request), "a deferred proposal cannot be decided")
            telling.counted(follows, ruling.event)
            return True
        try:
            await self._append(docket, follows if follows.trace == trace else replace(follows, trace=trace))
        except TooLarge as refused:
            size, limit = refused.size, refused.limit
            _log.error(
                "event_too_large", request=follows.request, type=type_of(follows), size=size, limit=limit
            )
            return False
        return True

    async def _append(self, docket: Docket, event: AnyEvent) -> None:
        body = codec.encode(event)
        type_ = type_of(event)
        headers = {"Mesh-Type": type_, "Mesh-Id": event.id}
        if event.trace:
            headers[tracing.HEADER] = event.trace
        seq = await self._log.append(event.to, event.request, body, after=docket.seq, headers=headers)
        open_before = tuple(docket.ledger.open.values())
        docket.apply(event, body, seq)
        _say(event, seq)
        telling.appended(event)
        ended = [turn for turn in open_before if turn.state == "ended"]
        for turn in ended:
            if turn.agent != HUMAN:
                await self._end(event, turn)
        await self._around.breakers.note(docket.ledger, event, ended)

    async def _end(self, event: AnyEvent, turn: Turn) -> None:
        """Tell an agent that its turn is over, unless its own proposal ended it.

        The message lies where the agent looks before it does anything that counts; the notice makes it quick.
        """
        if str(event.cause) == proposal_id(event.request, turn.id, turn.round):
            return
        failpoint("guard.ended")
        ended = Ended(why=type_of(event), turn=turn.id, round=turn.round)
        end = subjects.end(turn.agent, event.request, turn.id)
        try:
            await self._bus.publish_durable(end, msgspec.json.encode(ended))
        except StreamFull:
            raise  # whoever is heard next tries again
        except PublishRefused:
            pass  # 10077: it is there already
        notice = Notice(request=event.request, ended=ended)
        await self._bus.publish(note_subject(turn.agent, event.request), msgspec.json.encode(notice))

    async def _end_again(self, docket: Docket) -> None:
        """Say once more that the last turn is over: whoever ended it may have died before it could."""
        over = (turn for turn in reversed(docket.ledger.turns.values()) if turn.state == "ended")
        last = next((turn for turn in over if turn.agent != HUMAN), None)
        if last is not None and last.ended_by is not None:
            await self._end(last.ended_by, last)


def _what(hearing: Hearing | None) -> object:
    return None if hearing is None else hearing.what


def _policy(ledger: Ledger, hearing: Hearing, named: Policy | None) -> Policy | None:
    return named if isinstance(hearing.what, Submit) else ledger.policy


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
