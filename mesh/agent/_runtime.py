"""The runtime: takes turns off an agent's inbox, runs its code, proposes what it asks for.

One order holds everywhere: the inbox event is acknowledged only after the proposal is stored. A
process that dies in between gets the event again, and its second proposal is known to the guard as
the first. While the code runs, the lease is extended every third of it, so that one lost heartbeat costs
nothing.
"""

import asyncio
import contextlib
import itertools
import secrets
import time

import msgspec
import structlog

from mesh.agent import _telemetry as telling
from mesh.agent._execution import Execution
from mesh.agent._executor import Attempts, ForeignRounds, RunningRounds, Watchdog, sound, store
from mesh.agent._fleet_watch import FleetWatcher
from mesh.agent._journal import Journal
from mesh.agent._presence import Presence, card_of, publish_card
from mesh.agent._step_store import WINDOW
from mesh.agent._telemetry import SILENT, LiveOutput
from mesh.agent.definition import Agent, put_away, unpacked_in_time
from mesh.agent.errors import (
    ApprovalNeeded,
    Fenced,
    InDoubt,
    Superseded,
    ToolsUnusable,
    TurnError,
    failure_of,
)
from mesh.agent.turn import Turn
from mesh.bus import rate_limit
from mesh.bus.connection import Bus
from mesh.bus.consumer import Message, Puller
from mesh.bus.roles import GET
from mesh.bus.stores import JetStreamSteps
from mesh.bus.streams import inbox_consumer
from mesh.errors import PASSING, BusError, Malformed, MeshError, UnknownEvent
from mesh.service import telemetry, tracing
from mesh.service.failpoints import failpoint
from mesh.service.logs import get_logger
from protocol.wire import codec, subjects
from protocol.wire.codec import MAX_PROMPT_CHARS
from protocol.wire.commands import (
    Doubt,
    Failure,
    Move,
    MoveProposed,
    Proposal,
    Report,
    ReportFailure,
    ReportInDoubt,
)
from protocol.wire.events import Assignment, type_of
from protocol.wire.ids import AgentName, is_token
from protocol.wire.notices import dead_letter

_log = get_logger(__name__)

LATER_S = 5.0
VERSION_AGAIN_S = 1.0
LEAVE_S = 2.0
"""How long a server that does not answer may keep an agent from leaving."""
UNKNOWN_S = 3600.0
"""How long an event of a newer version waits for a newer instance; a roll-out takes less."""
FRESH_S = 1.0
"""A delivery this young cannot have been ended by a guard without a notice that is on its way."""


class Runtime:
    """One instance of an agent. `run` until cancelled; `drain` first to leave nothing half-done."""

    def __init__(
        self, bus: Bus, agent: Agent, *, model: str = "", version_grace_s: float | None = None
    ) -> None:
        """`version_grace_s`: the agent's own by default."""
        self.version_grace_s = agent.version_grace_s if version_grace_s is None else version_grace_s
        self._bus = bus
        self._agent = agent
        self._model = model
        self.instance = secrets.token_hex(8)
        self._presence = Presence(bus, agent, self.instance)
        self._around = FleetWatcher(bus, AgentName(agent.name))
        self._running = RunningRounds(self._was_ended)
        self._steps = JetStreamSteps(bus, agent.name)
        self._foreign = ForeignRounds()
        self._puller: Puller | None = None
        self._deliveries = itertools.count(1)
        self._leaving = False

    @property
    def ready(self) -> bool:
        """Whether it takes turns."""
        return self._puller is not None and self._puller.running and not self._leaving

    async def run(self) -> None:
        """Announce the agent, then take turns until cancelled (or until drained while it was still starting).

        A bus that goes away meanwhile is waited for. Raises Denied for wrong credentials, ToolsUnusable.
        """
        name, retry_unavailable = self._agent.name, self._bus.retry_unavailable
        tracing.look()
        await self._around.start()  # what a turn may do is in the fleet; without it none begins
        await retry_unavailable(lambda: self._bus.subscribe(subjects.notes_to(name), self._running.on_note))
        tools = await unpacked_in_time(self._agent.tools, self._bus.conditions)
        card = card_of(self._agent, tools, self.instance, self._model)
        await retry_unavailable(lambda: publish_card(self._bus, card))
        await self._presence.announce()
        await _prepared(self._agent)
        puller = Puller(
            self._bus,
            "LOG",
            inbox_consumer(name),
            self._on_message,
            slots=self._agent.concurrency,
            expires_s=self._around.fleet.pull_s,
        )
        self._puller = puller
        if self._leaving:
            return
        await retry_unavailable(puller.start)
        if self._leaving:
            return
        _log.info("agent_ready", agent=name, version=self._agent.version, instance=self.instance)
        with Watchdog():
            await self._around.keep_current()

    async def drain(self, grace_s: float) -> None:
        """Take no more turns; finish those that run, and give back what takes longer than `grace_s`."""
        self._leaving = True
        if self._puller is None:
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(grace_s):
                await self._puller.drain()
        await self._puller.close()
        await rate_limit.give_back(self._bus)
        with contextlib.suppress(BusError):
            await self._bus.flush(LEAVE_S)  # what was given back has left before the connection does
        await put_away(self._agent.tools)
        _log.info("agent_drained", agent=self._agent.name, handled=self._presence.handled)

    # --- one delivery -----------------------------------------------------------------------------

    async def _on_message(self, message: Message) -> None:
        try:
            event = codec.decode_event(message.data)
        except UnknownEvent as error:
            _log.error("event_unknown", code=error.code, subject=message.subject)
            if time.time() - message.stored_us / 1e6 < UNKNOWN_S:
                message.nak(LATER_S)  # a newer instance of this agent may know it
            else:
                await self._bury(message, error)
            return
        except Malformed as error:
            await self._bury(message, error)
            return
        work = event.work
        lies_in = subjects.parse_evt(message.subject)
        is_mine = lies_in == (self._agent.name, event.request) and event.to == self._agent.name
        if not is_mine or work is None or not _has_a_place(work):
            await self._bury(message, Malformed(f"{type_of(event)} gives this agent nothing to work on"))
            return
        with structlog.contextvars.bound_contextvars(
            request=event.request,
            turn=work.turn,
            round=work.round,
            seq=message.stream_seq,
            agent=self._agent.name,
        ):
            trace = tracing.brought(message.headers) or tracing.sound(event.trace)
            with telling.round_span(self._agent, message, event.request, work, trace):
                await self._work(message, event.request, work, trace)

    async def _is_over(self, message: Message, request: str, work: Assignment) -> bool:
        """Say whether a guard ended the turn; only a delivery that has waited is worth asking about."""
        if message.delivered == 1 and time.time() - message.stored_us / 1e6 < FRESH_S:
            return False
        return await self._was_ended(request, work.turn)

    async def _was_ended(self, request: str, turn: str) -> bool:
        """Say whether a guard ended a turn, by the message that only guards can write."""
        subject = f"{GET}ENDS.{subjects.end(self._agent.name, request, turn)}"
        return not (await self._bus.retry_unavailable(lambda: self._bus.request(subject))).status

    async def _work(self, message: Message, request: str, work: Assignment, trace: str) -> None:
        """Run one round and store what it proposes; acknowledge only then.

        Args:
            trace: the event's `traceparent`, passed on where this process does not trace.
        """
        failpoint("turn.taken")
        heart = asyncio.create_task(self._beat(message))
        started = time.perf_counter()
        attempts = Attempts(self._steps, request=request, turn=_journaled(work), round_=work.round)
        begun = message.delivered > 1
        live = LiveOutput(
            self._bus.send, request=request, agent=self._agent.name, turn=work.turn, round_=work.round
        )
        try:
            if await self._is_over(message, request, work):
                _log.info("turn_over")
                self._foreign.forget(work.turn, work.round)
                message.ack()
                return
            begun = await self._was_begun(message, request, work)
            journal = self._journal(request, work, attempts, fresh=not begun)
            if begun and await self._is_anothers(journal, work):
                message.nak(VERSION_AGAIN_S)
                return
            if begun and await attempts.is_crash_loop():
                proposal: Proposal | None = _crash_loop(work, self._execution(request, work, journal).report)
            else:
                proposal = await self._propose(request, work, journal, live)
            if proposal is not None:
                failpoint("turn.journaled")
                proposal = sound(proposal)
                live.ended(proposal)  # before the proposal: nothing that follows from it comes earlier
                with telling.proposal_span(self._agent, request, proposal, self._around.fleet):
                    await store(self._bus, self._agent.name, request, proposal, trace)
                telling.proposed(self._agent, proposal, time.perf_counter() - started)
                failpoint("turn.proposed")
            message.ack()
        except Fenced as late:
            # Somebody else has the turn, and the lease: neither acknowledge it nor give it back. But the
            # process lives: it was no crash.
            if begun:
                await _note_return(attempts)
            _log.warning("turn_fenced", detail=str(late))
        except asyncio.CancelledError:
            if begun:
                await asyncio.shield(_note_return(attempts))
            message.nak()  # draining: somebody else takes it
            raise
        finally:
            heart.cancel()
            live.flush()
            self._presence.handled += 1
            self._presence.busy_s += time.perf_counter() - started

    async def _was_begun(self, message: Message, request: str, work: Assignment) -> bool:
        """Say whether anybody may have worked on this round before.

        The server's count of deliveries does not say so alone: one that was killed forgets the latest, and
        what was acknowledged comes again as if for the first time. Only an event that was stored just now,
        and since this connection stands, needs no look.
        """
        if message.delivered > 1:
            return True
        if message.stored_us / 1e6 > max(self._bus.since_s, time.time() - FRESH_S):
            return False
        # Steps that run side by side are stored in any order: the first place may still be free.
        places = (f"{work.round}-{n}" for n in range(WINDOW))
        found = await asyncio.gather(*(self._steps.get(request, _journaled(work), name) for name in places))
        return any(body is not None for body in found)

    def _journal(self, request: str, work: Assignment, attempts: Attempts, *, fresh: bool) -> Journal:
        return Journal(
            self._steps,
            request=request,
            turn=_journaled(work),
            round_=work.round,
            nonce=f"{self.instance}-{next(self._deliveries)}",
            version=self._agent.version,
            fresh=fresh,
            past=work.past,
            lease_s=self._around.fleet.lease_s,
            is_overtaken=attempts.is_overtaken,
        )

    async def _is_anothers(self, journal: Journal, work: Assignment) -> bool:
        """Say whether an instance of the version that began this round should have it back.

        For `version_grace_s` from when this one first saw it; then it replays what the other recorded.
        """
        await journal.load()
        if journal.version in (None, self._agent.version):
            return False
        if self._foreign.leaves(work.turn, work.round, self.version_grace_s):
            return True
        _log.warning("turn_of_another_version", began=journal.version, own=self._agent.version)
        return False

    async def _beat(self, message: Message) -> None:
        while True:
            await asyncio.sleep(self._around.fleet.heartbeat_s)
            message.in_progress()

    def _execution(
        self, request: str, work: Assignment, journal: Journal, live: LiveOutput = SILENT
    ) -> Execution:
        return Execution(
            request,
            work,
            self._around.fleet,
            journal,
            is_over=lambda: self._was_ended(request, work.turn),
            prompt_version=self._agent.prompt_version[:MAX_PROMPT_CHARS],
            live=live,
        )

    async def _propose(
        self, request: str, work: Assignment, journal: Journal, live: LiveOutput
    ) -> Proposal | None:
        """Return what the agent's code asks for; None if the turn was ended while it ran. Raises Fenced."""
        if journal.owes:
            await journal.load()  # what the turn has cost is known before its code asks
        turn = self._execution(request, work, journal, live)
        live.began()
        code = asyncio.ensure_future(self._to_its_end(Turn(turn), journal))
        running = self._running.begin(request, work, code)
        try:
            move = await code
            if not isinstance(move, Move):
                raise TypeError("an agent returns a move: turn.transfer, hand_back, complete, …")
        except asyncio.CancelledError:
            if _is_cancelling():
                code.cancel()
                raise
            if running.over:
                _log.info("turn_superseded")
                return None
            return self._failed(turn, work, Failure(code="bug", message="the handler cancelled itself"))
        except Exception as error:
            # What stopped the journal counts, whatever the code made of it: it is not for the code to catch.
            return self._stopped(turn, work, journal.broken or error)
        finally:
            self._running.end(work, running)
        return MoveProposed(turn=work.turn, round=work.round, move=move, report=turn.report)

    async def _to_its_end(self, turn: Turn, journal: Journal) -> Move:
        """Run the agent's code, and wait for the effects that it left running. Raises what it raises."""
        try:
            move = await self._agent(turn)
        except Exception:
            with contextlib.suppress(TurnError):
                await journal.finish()
            raise
        await journal.finish()
        return move

    def _stopped(self, turn: Execution, work: Assignment, error: Exception) -> Proposal | None:
        """Return what to propose for a round whose code came to no move; None for nothing. Raises Fenced."""
        match error:
            case Fenced():
                raise error
            case Superseded():
                return None
            case ApprovalNeeded(ask=ask):
                return MoveProposed(turn=work.turn, round=work.round, move=ask, report=turn.report)
            case InDoubt():
                effect = Doubt(step=error.step, action=error.action, key=error.key)
                _log.warning("effect_in_doubt", step=error.step, action=error.action)
                return ReportInDoubt(turn=work.turn, round=work.round, effect=effect, report=turn.report)
        return self._failed(turn, work, failure_of(error), bug=error)

    def _failed(
        self, turn: Execution, work: Assignment, failure: Failure, *, bug: BaseException | None = None
    ) -> ReportFailure:
        self._presence.failed += 1
        self._presence.last_error = failure.code
        _log.warning("turn_failed", code=failure.code, exc_info=bug if failure.code == "bug" else None)
        return ReportFailure(turn=work.turn, round=work.round, error=failure, report=turn.report)

    async def _bury(self, message: Message, error: MeshError) -> None:
        """Keep what cannot be read in this agent's own dead-letter list, and have done with it."""
        letter = dead_letter(
            at=time.time_ns() // 1000,
            by=self._agent.name,
            code=error.code,
            detail=str(error),
            subject=message.subject,
            data=message.data,
            headers=message.headers,
            request=message.subject.rpartition(".")[2],
            delivered=message.delivered,
        )
        try:
            await self._bus.publish_durable(subjects.dead(self._agent.name), msgspec.json.encode(letter))
        except BusError as failed:
            if not isinstance(failed, PASSING):
                _log.warning("dead_letter_not_stored", code=failed.code)
            message.nak(LATER_S)
            return
        telemetry.dead_letters.add(1, {tracing.CODE: error.code, tracing.BY: self._agent.name})
        _log.error("dead_letter", code=error.code, subject=message.subject)
        message.term(error.code)


async def _prepared(agent: Agent) -> None:
    """Let an agent load what its turns need. What fails of that, the first turn says in its own way.

    Raises ToolsUnusable: with these tools no turn could do anything.
    """
    if agent.prepare is None:
        return
    try:
        await agent.prepare()
    except ToolsUnusable:
        raise
    except Exception as error:
        code = failure_of(error).code
        _log.warning("agent_not_prepared", agent=agent.name, code=code, error=type(error).__name__)


async def _note_return(attempts: Attempts) -> None:
    """Note that an attempt ended in good order, if the bus lets us while we leave."""
    with contextlib.suppress(BusError, TimeoutError):
        async with asyncio.timeout(LEAVE_S):
            await attempts.given_back()


def _journaled(work: Assignment) -> str:
    """Return under whose id a turn's journal goes on."""
    return work.journal_id


def _has_a_place(work: Assignment) -> bool:
    """Say whether a turn's id, and that of its journal, can stand in a subject."""
    return is_token(work.turn) and is_token(_journaled(work))


def _crash_loop(work: Assignment, report: Report) -> ReportFailure:
    failure = Failure(code="crash_loop", message="the turn ended its process again and again", permanent=True)
    return ReportFailure(turn=work.turn, round=work.round, error=failure, report=report)


def _is_cancelling() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
