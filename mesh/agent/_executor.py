"""Executes rounds: one delivery of one round, from its lease to its stored proposal.

The inbox event is acknowledged only after the proposal is stored. If the process dies in between, the event
comes again, and the guard recognises the second proposal. While the code runs, a heartbeat is sent every
third of the lease, so one may be lost without harm. The executor also looks up the end of the turn, since a
note of it may be lost. The code runs in the task of its delivery.
"""

import asyncio
import contextlib
import itertools
import math
import time
from collections.abc import Callable, Mapping
from functools import partial

from msgspec.structs import replace

from mesh.agent import _telemetry
from mesh.agent._attempts import Attempts
from mesh.agent._claims import Claims
from mesh.agent._execution import Execution
from mesh.agent._fork import record_before
from mesh.agent._instance import FleetWatcher, ForeignRounds, Presence, RunningRounds
from mesh.agent._journal import Journal
from mesh.agent._steps import WINDOW, RoundKey
from mesh.agent._telemetry import BEGAN_S, LiveOutput, SecondCount
from mesh.agent.definition import Agent
from mesh.agent.errors import Fenced, Superseded, TurnError, bug_behind
from mesh.agent.turn import Turn
from mesh.bus.connection import Bus
from mesh.bus.consumer import Message, spread
from mesh.bus.lane import Lane
from mesh.bus.reader import get
from mesh.bus.stores import JetStreamSteps, PromptStore
from mesh.errors import ApiCode, ApiError, Malformed, MeshError, TooLarge
from mesh.service.conditions import Kind
from mesh.service.failpoints import failpoint
from mesh.service.logs import get_logger
from mesh.settings import own_build
from mesh.tasks import Alarms
from mesh.telemetry import tracing
from protocol.wire import codec, subjects
from protocol.wire.commands import (
    MAX_PROMPT_CHARS,
    MAX_VERSION_CHARS,
    Failure,
    MoveProposed,
    Proposal,
    Report,
    ReportFailure,
    ReportInDoubt,
)
from protocol.wire.event_parts import Assignment
from protocol.wire.ids import TurnId
from protocol.wire.moves import Move
from protocol.wire.prices import LARGEST_AMOUNT

_log = get_logger(__name__)

VERSION_AGAIN_S = 1.0
UNJOURNALED_S = 5.0
"""Code that works for longer (s) and journals nothing is worth a warning: after a crash it does all again."""
FRESH_S = 1.0
"""A delivery younger than this (s) needs no lookup: a notice of its end has come, or is on its way."""


class Executor:
    """Executes the rounds of one instance of an agent.

    Args:
        around: the fleet as this agent sees it.
    """

    def __init__(self, bus: Bus, agent: Agent, instance: str, around: FleetWatcher) -> None:
        self._bus, self._agent, self._instance, self._around = bus, agent, instance, around
        self.presence = Presence(bus, agent, instance)
        self.claims = Claims(self._store, self._is_busy, lambda: around.fleet.heartbeat_s)
        self.running = RunningRounds(self._was_ended, self.claims.on_notice)
        self._steps = JetStreamSteps(bus, agent.name)
        self._prompts = PromptStore(bus, agent.name)
        self._lane = Lane(bus, agent.name)
        self._foreign = ForeignRounds(agent.version_grace_s)
        self._deliveries = itertools.count(1)
        self._heartbeats = Alarms(lambda: around.fleet.heartbeat_s)
        self._beginnings = Alarms(lambda: BEGAN_S)
        self._notes = SecondCount()
        self._empty_journals = EmptyJournals(agent.name)
        self._build = own_build()

    async def execute(self, message: Message, key: RoundKey, work: Assignment, trace: str) -> None:
        """Run one round and store its proposal; acknowledge only then.

        Args:
            trace: the event's `traceparent`, passed on if this process does not trace.
        """
        failpoint("turn.taken")
        heart = _Heart(message, self._heartbeats, partial(self.running.on_heartbeat, key))
        started = time.perf_counter()
        attempts = Attempts(self._steps, key)
        begun = message.delivered > 1
        live = LiveOutput(self._bus.send, key, of_all=self._notes)
        try:
            open_at = -math.inf
            if self._is_new(message, key):
                open_at = open_since(message)
            else:
                if await self._is_over(message, key):
                    _log.info("turn_over")
                    message.ack()
                    return
                begun = await self._was_begun(message, key)
            round_ = self._round(key, work, attempts, live, fresh=not begun, open_at=open_at)
            if begun and await self._is_foreign(round_):
                message.nak(spread(VERSION_AGAIN_S))
                return
            is_crash_loop = begun and await attempts.is_crash_loop()
            proposal = round_.crashed() if is_crash_loop else await self._propose(round_)
            if proposal is not None:
                failpoint("turn.journaled")
                proposal, body = encode_or_fail(_timed(proposal, work, time.perf_counter() - started))
                live.ended(proposal)  # before the proposal, and so before all that follows from it
                with _telemetry.proposal_span(key, proposal, self._around.fleet):
                    await self._propose_to(key.request, proposal, body, trace)
                _telemetry.proposed(key, self._agent.version, proposal, time.perf_counter() - started)
                failpoint("turn.proposed")
            message.ack()
        except Fenced as late:
            # Another instance has the turn and the lease: neither acknowledge nor give back. But this process
            # is alive, so it was no crash.
            if begun:
                await attempts.given_back()
            _log.warning("turn_fenced", detail=str(late))
        except asyncio.CancelledError:
            if begun:
                await asyncio.shield(attempts.given_back())
            message.nak()  # draining: another instance takes it
            raise
        finally:
            heart.stop()
            live.close()
            self.presence.handled += 1
            self.presence.busy_s += time.perf_counter() - started

    async def _store(self, request: str, proposal: Proposal) -> None:
        """Get a proposal that ends no round decided or stored."""
        await self._propose_to(request, proposal, codec.encode(proposal))

    async def _propose_to(self, request: str, proposal: Proposal, body: bytes, trace: str = "") -> None:
        """Return once the verdict on a proposal is in the log, or the proposal in its queue. Raises Denied.

        Args:
            trace: the event's `traceparent`; passed on if it is valid and this process does not trace.
        """
        headers = tracing.headers(otherwise=tracing.well_formed(trace)) or None
        if self._around.fleet.lane and await self._lane.is_decided(request, body, headers):
            return
        await store(self._bus, self._agent.name, request, proposal, body, headers)

    def _is_busy(self) -> bool:
        return len(self.running.rounds) >= self._agent.concurrency

    # --- may it run -------------------------------------------------------------------------------

    def _is_new(self, message: Message, key: RoundKey) -> bool:
        """Return True if no process can have ended or begun this round: the usual case, found without a
        request.

        Its event was delivered for the first time and stored just now, since this connection was made. (The
        server's count of deliveries is not enough: a killed server forgets the latest.)
        """
        fresh_since_s = max(self._bus.since_s, time.time() - FRESH_S)
        is_fresh = message.delivered == 1 and message.stored_us / 1e6 > fresh_since_s
        return is_fresh and key.turn not in self.running.noted_ends

    async def _is_over(self, message: Message, key: RoundKey) -> bool:
        """Return True if a guard ended the turn. A young delivery is looked up only on a notice."""
        is_young = message.delivered == 1 and time.time() - message.stored_us / 1e6 < FRESH_S
        if is_young and key.turn not in self.running.noted_ends:
            return False
        return await self._was_ended(key)

    async def _was_ended(self, key: RoundKey) -> bool:
        """Return True if a guard ended a turn, according to the message that only guards can write."""
        subject = subjects.end(key.agent, key.request, key.turn)
        return await self._bus.retry_unavailable(lambda: get(self._bus, "ENDS", subject)) is not None

    async def _was_begun(self, message: Message, key: RoundKey) -> bool:
        """Return True if another process may have worked on this round before.

        Acknowledged messages of a killed server come again as if for the first time.
        """
        if message.delivered > 1:
            return True
        # Concurrent steps are stored in any order: the first place may still be free.
        places = (f"{key.round}-{n}" for n in range(WINDOW))
        found = await asyncio.gather(*(self._steps.get(key.request, key.journal_id, name) for name in places))
        return any(body is not None for body in found)

    async def _is_foreign(self, round_: Execution) -> bool:
        """Return True if this round should go back to an instance of the version that began it.

        After the grace period this instance continues it, and replays what the other recorded.
        """
        await round_.journal.load()
        began = round_.journal.version
        if began in (None, self._agent.version):
            return False
        if self._foreign.leaves(round_.key):
            return True
        _log.warning("turn_of_another_version", began=began, own=self._agent.version)
        return False

    # --- running it -------------------------------------------------------------------------------

    def _round(
        self,
        key: RoundKey,
        work: Assignment,
        attempts: Attempts,
        live: LiveOutput,
        *,
        fresh: bool,
        open_at: float,
    ) -> Execution:
        fleet, is_over = self._around.fleet, partial(self._was_ended, key)
        journal = Journal(
            self._steps,
            key,
            nonce=f"{self._instance}-{next(self._deliveries)}",
            version=self._agent.version,
            fresh=fresh,
            past=work.past,
            lease_s=fleet.lease_s,
            is_overtaken=attempts.is_overtaken,
            is_over=is_over,
            before=record_before(self._steps, key.agent, work),
        )
        return Execution(
            key,
            work,
            fleet,
            journal,
            is_over=is_over,
            prompt_version=self._agent.prompt_version[:MAX_PROMPT_CHARS],
            version=self._agent.version[:MAX_VERSION_CHARS],
            build=self._build,
            live=live,
            send=partial(self._store, key.request),
            keep_prompt=self._prompts.keep,
            open_at=open_at,
        )

    async def _propose(self, round_: Execution) -> Proposal | None:
        """Return the proposal of the agent's code; None if the turn was ended while it ran. Raises Fenced."""
        if round_.journal.has_unreported:
            await round_.journal.load()  # the turn's cost is known before its code asks
        round_.live.began(self._beginnings)
        with contextlib.closing(round_), self.running.holding(round_.key) as running:
            try:
                return round_.moved(await self._run_to_end(round_), self._agent.handler)
            except asyncio.CancelledError:
                if running.stopped:
                    _log.info("turn_superseded")
                    return None
                if running.task.cancelling():
                    raise
                failure = Failure(code="bug", message="the handler cancelled itself")
                return self._ended(round_.failed(failure), None)
            except Exception as raised:
                error = round_.journal.broken or raised  # the first error counts, even if the code caught it
                if isinstance(error, Fenced):
                    raise error from None
                return None if isinstance(error, Superseded) else self._ended(round_.stopped(error), error)

    async def _run_to_end(self, round_: Execution) -> Move:
        """Run the agent's code, and wait for the effects that it left running. Raises its errors."""
        began = self._empty_journals.now()
        try:
            move = await self._agent(Turn(round_))
        except Exception:
            with contextlib.suppress(TurnError):
                await round_.journal.finish()
            raise
        await round_.journal.finish()
        self._empty_journals.watch(began, steps=round_.journal.tally.steps)
        return move

    def _ended(self, proposal: Proposal, error: Exception | None) -> Proposal:
        """Count and log a round that ended without a move of its code."""
        if isinstance(proposal, ReportFailure):
            code = proposal.error.code
            self.presence.failed += 1
            self.presence.last_error = code
            _log.warning("turn_failed", code=code, exc_info=bug_behind(error))
        elif isinstance(proposal, ReportInDoubt):
            doubt = proposal.effect
            _log.warning("effect_in_doubt", step=doubt.step, action=doubt.action, exc_info=bug_behind(error))
        return proposal


def open_since(message: Message) -> float:
    """Return when a turn was known to be open: when its round's event was stored (monotonic seconds).

    Returns -inf if the event is dated in the future (the server's clock is ahead).
    """
    age_s = time.time() - message.stored_us / 1e6
    return time.monotonic() - age_s if age_s >= 0 else -math.inf


class EmptyJournals:
    """Warns once of an agent whose code works for seconds and has no steps.

    Args:
        now: monotonic seconds.
    """

    def __init__(self, agent: str, now: Callable[[], float] = time.monotonic) -> None:
        self._agent, self.now = agent, now
        self._was_reported = False

    def watch(self, began: float, *, steps: int) -> None:
        """Warn if code that began then (monotonic s) made no steps until now."""
        took_s = self.now() - began
        if steps or took_s < UNJOURNALED_S or self._was_reported:
            return
        self._was_reported = True
        hint = (
            "after a crash all of it is done again: call tools with `turn.call` and models with "
            "`turn.model`, or wrap an agent of another SDK with `mesh.adapters`"
        )
        _log.warning("nothing_journaled", agent=self._agent, took_s=round(took_s, 1), hint=hint)


class _Heart:
    """Extends the lease of a delivery at each heartbeat, and calls `probe`, until it is stopped."""

    __slots__ = ("_alarm", "_heartbeats", "_message", "_probe")

    def __init__(self, message: Message, heartbeats: Alarms, probe: Callable[[], None]) -> None:
        self._message, self._heartbeats, self._probe = message, heartbeats, probe
        self._alarm = heartbeats.set(self._beat)

    def _beat(self) -> None:
        self._message.in_progress()
        self._probe()
        self._alarm = self._heartbeats.set(self._beat)

    def stop(self) -> None:
        self._alarm.cancel()


# --- proposals ------------------------------------------------------------------------------------

STORE_AGAIN_S = 1.0
NOT_STORED = Kind("proposal_not_stored", "proposal_stored", "proposals are not stored: {}")
MESSAGE_CHARS = 512
MAX_SUMMARY_BYTES = 64 << 10
"""Limit of a summarized move. No move's summary is larger, so beyond that the report is too large."""
_UNREADABLE = (MeshError, *codec.UNWRITABLE)
"""Errors of encoding a handler's move, and of reading it as the guard will."""


def _timed(proposal: Proposal, work: Assignment, took_s: float) -> Proposal:
    """Return the proposal with how long its turn was worked on: 1 ms at least, as 0 means unknown."""
    worked_ms = min(work.reported.worked_ms + max(1, round(took_s * 1e3)), LARGEST_AMOUNT)
    return replace(proposal, report=replace(proposal.report, worked_ms=worked_ms))


def encode_or_fail(proposal: Proposal) -> tuple[Proposal, bytes]:
    """Return a proposal and its bytes; if no guard could read it, the failure that names the mistake."""
    try:
        body = codec.encode_whole(proposal)
        codec.parse_proposal(body)
    except _UNREADABLE as error:
        reason = str(error) if isinstance(error, Malformed) else type(error).__name__
        _log.error("proposal_unsound", turn=proposal.turn, reason=reason)
        failure = Failure(code="bug", message=f"the handler's move cannot be read: {reason}"[:MESSAGE_CHARS])
        failed = ReportFailure(
            turn=proposal.turn, round=proposal.round, error=failure, report=_readable_report(proposal.report)
        )
        return failed, codec.encode(failed)
    return proposal, body


def _readable_report(report: Report) -> Report:
    """Return the report if it can be read by itself, else an empty one."""
    try:
        alone = ReportFailure(turn=TurnId("turn"), round=0, error=Failure(code="bug"), report=report)
        codec.parse_proposal(codec.encode(alone))
    except _UNREADABLE:
        return Report()
    return report


def _summarized(proposal: Proposal, body: bytes) -> bytes:
    """Return what replaces a proposal that is too large for the bus: its move summarized, to be refused.

    If even that is too large, or there is no move, return a failure of the turn.
    """
    if isinstance(proposal, MoveProposed) and len(body) > MAX_SUMMARY_BYTES:
        summarized = codec.encode(replace(proposal, move=proposal.move.summarize(), oversized=len(body)))
        if len(summarized) <= MAX_SUMMARY_BYTES:
            return summarized
    text = "too large for the bus; pass large things on as artifacts"
    failure = Failure(code="proposal_too_large", message=text, permanent=True)
    told = proposal.report
    spent = Report(usage=told.usage, worked_ms=told.worked_ms)  # the rest may be what is too large
    failed = ReportFailure(turn=proposal.turn, round=proposal.round, error=failure, report=spent)
    return codec.encode(failed)


async def store(
    bus: Bus, agent: str, request: str, proposal: Proposal, body: bytes, headers: Mapping[str, str] | None
) -> None:
    """Store a proposal, however long it takes: the guard recognises it if it is stored twice.

    Args:
        body: the proposal's bytes.

    Raises Denied.
    """
    subject = subjects.prop(agent, request)
    while True:
        try:
            await bus.retry_unavailable(partial(bus.publish_durable, subject, body, headers))
        except TooLarge:
            body = _summarized(proposal, body)
        except ApiError as error:
            if error.err_code != ApiCode.MESSAGE_EXCEEDS_MAXIMUM:
                bus.conditions.raise_(NOT_STORED, error.code, held=subject, err_code=error.err_code)
                await asyncio.sleep(STORE_AGAIN_S)
            else:
                body = _summarized(proposal, body)
        else:
            return
