"""The runtime: takes turns off an agent's inbox, runs its code, proposes what it asks for.

One order holds everywhere: the inbox event is acknowledged only after the proposal is stored. A
process that dies in between gets the event again, and its second proposal is known to the guard as
the first. While the code runs, the lease is extended every `HEARTBEAT_S`.
"""

import asyncio
import contextlib
import re
import secrets
import time
from dataclasses import dataclass
from typing import Any

import msgspec
import structlog

from mesh import notices
from mesh.agent.attempts import Attempts
from mesh.agent.card import card_of, publish_card
from mesh.agent.definition import Agent
from mesh.agent.failures import Superseded, failure_of
from mesh.agent.journal import Fenced, InDoubt, Journal
from mesh.agent.micro import Presence
from mesh.agent.turn import Turn
from mesh.agent.watchdog import Watchdog
from mesh.bus.connection import Bus
from mesh.bus.pull import Message, Puller
from mesh.bus.roles import GET
from mesh.bus.steps import JetStreamSteps
from mesh.bus.streams import INBOX_PULL_S, inbox_consumer
from mesh.bus.wire import Incoming
from mesh.errors import ApiError, BusError, Denied, Malformed, MeshError, TooLarge, UnknownEvent
from mesh.notices import Notice
from protocol import codec, subjects
from protocol.events import Work, type_of
from protocol.fleet import Fleet
from protocol.ids import TurnId, is_token
from protocol.messages import (
    Doubt,
    EffectDoubted,
    Failure,
    Move,
    MoveProposed,
    Proposal,
    Report,
    TurnFailed,
)

_log = structlog.get_logger(__name__)

HEARTBEAT_S = 2.0
"""A third of the inbox's lease, so that one lost heartbeat costs nothing."""
STORE_AGAIN_S = (0.05, 0.1, 0.2, 0.5, 1.0)
LATER_S = 5.0
VERSION_GRACE_S = 30.0
"""How long a turn that another version of this agent began is left to an instance of that version."""
VERSION_AGAIN_S = 1.0
AGAIN_S = 1.0
REFRESH_S = 30.0
UNKNOWN_S = 3600.0
"""How long an event of a newer version waits for a newer instance; a roll-out takes less."""
FRESH_S = 1.0
"""A delivery this young cannot have been ended by a guard without a notice that is on its way."""
MESSAGE_CHARS = 512
_STORED_TOO_LARGE = 10054  # JetStream: message size exceeds maximum allowed
_NOTICES = msgspec.json.Decoder(Notice)
_TRACE = re.compile(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")
_UNREADABLE = (msgspec.MsgspecError, RecursionError, UnicodeError, ValueError)
_UNSOUND = (MeshError, msgspec.MsgspecError, TypeError, ValueError, OverflowError, RecursionError)
"""What encoding a handler's move may raise, and reading it as the guard will."""


@dataclass(slots=True)
class _Running:
    """A round whose code runs."""

    request: str
    code: asyncio.Future[Any]
    over: bool = False
    """Whether it was stopped, because a guard ended the turn or a newer round of it began."""

    def stop(self) -> None:
        self.over = True
        self.code.cancel()


class Runtime:
    """One instance of an agent. `run` until cancelled; `drain` first to leave nothing half-done."""

    def __init__(
        self, bus: Bus, agent: Agent, *, model: str = "", version_grace_s: float = VERSION_GRACE_S
    ) -> None:
        self.version_grace_s = version_grace_s
        self._bus = bus
        self._agent = agent
        self._model = model
        self.instance = secrets.token_hex(8)
        self._presence = Presence(bus, agent, self.instance)
        self._fleet = Fleet(name="", entry=agent.name)  # type: ignore[arg-type]
        self._running: dict[tuple[str, int], _Running] = {}
        self._checks: set[asyncio.Task[None]] = set()
        self._steps = JetStreamSteps(bus, agent.name)
        self._foreign: dict[tuple[str, int], float] = {}
        """When this instance first saw a turn that another version began (monotonic seconds)."""
        self._puller: Puller | None = None
        self._leaving = False

    async def run(self) -> None:
        """Announce the agent, then take turns until cancelled (or until drained while it was still starting).

        Raises Denied for wrong credentials.
        """
        name = self._agent.name
        while not await self._read_fleet():  # what a turn may do is in there: without it, none begins
            _log.warning("fleet_missing", hint="run `mesh setup`")
            await asyncio.sleep(AGAIN_S)
        await self._bus.subscribe(f"mesh.note.{name}.*", self._on_note)
        await publish_card(self._bus, card_of(self._agent, self.instance, self._model))
        await self._presence.announce()
        puller = Puller(
            self._bus,
            "LOG",
            inbox_consumer(name),
            self._on_message,
            slots=self._agent.concurrency,
            expires_s=INBOX_PULL_S,
        )
        await puller.start()
        if self._leaving:
            await puller.close()
            return
        self._puller = puller
        _log.info("agent_ready", agent=name, version=self._agent.version, instance=self.instance)
        with Watchdog():
            while True:
                await asyncio.sleep(REFRESH_S)
                with contextlib.suppress(BusError):
                    await self._read_fleet()

    async def _read_fleet(self) -> bool:
        """Take over the fleet as it is now. False if there is none to read; then the last one holds."""
        found = await self._bus.request(f"{GET}CONF.{subjects.FLEET}")
        if found.status:
            return False
        try:
            self._fleet = msgspec.json.decode(found.data, type=Fleet)
        except _UNREADABLE:
            _log.error("conf_unreadable", entry=subjects.FLEET)
            return False
        return True

    async def drain(self, grace_s: float) -> None:
        """Take no more turns; finish those that run, and give back what takes longer than `grace_s`."""
        self._leaving = True
        if self._puller is None:
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(grace_s):
                await self._puller.drain()
        await self._puller.close()
        with contextlib.suppress(BusError):
            await self._bus.settle()  # what was given back has left before the connection does
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
        work = getattr(event, "work", None)
        lies_in = subjects.parse_evt(message.subject)
        if not isinstance(work, Work) or (event.to, event.request) != lies_in or not _has_a_place(work):
            await self._bury(message, Malformed(f"{type_of(event)} gives this agent nothing to work on"))
            return
        with structlog.contextvars.bound_contextvars(
            request=event.request, turn=work.turn, round=work.round, seq=message.stream_seq
        ):
            await self._work(message, event.request, work)

    async def _is_over(self, message: Message, request: str, work: Work) -> bool:
        """Say whether a guard ended the turn; only a delivery that has waited is worth asking about."""
        if message.delivered == 1 and time.time() - message.stored_us / 1e6 < FRESH_S:
            return False
        return await self._was_ended(request, work.turn)

    async def _was_ended(self, request: str, turn: str) -> bool:
        """Say whether a guard ended a turn, by the step that only guards can write."""
        step = subjects.step(self._agent.name, request, turn, "end")
        return not (await self._bus.request(f"{GET}STEPS.{step}")).status

    async def _work(self, message: Message, request: str, work: Work) -> None:
        """Run one round and store what it proposes; acknowledge only then."""
        heart = asyncio.create_task(self._beat(message))
        started = time.perf_counter()
        attempts = Attempts(self._steps, request=request, turn=_journaled(work), round_=work.round)
        try:
            if await self._is_over(message, request, work):
                _log.info("turn_over")
                message.ack()
                return
            journal = self._journal(message, request, work)
            if message.delivered > 1 and await self._is_anothers(journal, work):
                message.nak(VERSION_AGAIN_S)
                return
            if message.delivered > 1 and await attempts.is_crash_loop():
                proposal: Proposal | None = _crash_loop(work)
            else:
                proposal = await self._propose(request, work, journal)
            if proposal is not None:
                await self._store(request, sound(proposal), message.headers.get("traceparent", ""))
            message.ack()
        except Fenced as late:
            # Somebody else has the turn, and the lease: neither acknowledge it nor give it back.
            _log.warning("turn_fenced", detail=str(late))
        except asyncio.CancelledError:
            if message.delivered > 1:
                with contextlib.suppress(BusError):
                    await asyncio.shield(attempts.given_back())
            message.nak()  # draining: somebody else takes it
            raise
        finally:
            heart.cancel()
            self._presence.handled += 1
            self._presence.busy_s += time.perf_counter() - started

    def _journal(self, message: Message, request: str, work: Work) -> Journal:
        return Journal(
            self._steps,
            request=request,
            turn=_journaled(work),
            round_=work.round,
            nonce=f"{self.instance}-{message.stream_seq}-{message.delivered}",
            version=self._agent.version,
            fresh=message.delivered == 1,
            past=work.past,
        )

    async def _is_anothers(self, journal: Journal, work: Work) -> bool:
        """Say whether an instance of the version that began this round should have it back.

        For `version_grace_s` from when this one first saw it; then it replays what the other recorded.
        """
        await journal.load()
        if journal.version in (None, self._agent.version):
            return False
        first = self._foreign.setdefault((work.turn, work.round), time.monotonic())
        if time.monotonic() - first < self.version_grace_s:
            return True
        del self._foreign[work.turn, work.round]
        _log.warning("turn_of_another_version", began=journal.version, own=self._agent.version)
        return False

    async def _beat(self, message: Message) -> None:
        while True:
            await asyncio.sleep(HEARTBEAT_S)
            message.in_progress()

    async def _propose(self, request: str, work: Work, journal: Journal) -> Proposal | None:
        """Return what the agent's code asks for; None if the turn was ended while it ran. Raises Fenced."""
        turn = Turn(
            request,
            work,
            self._fleet,
            journal=journal,
            is_over=lambda: self._was_ended(request, work.turn),
        )
        for (other, round_), earlier in self._running.items():
            if other == work.turn and round_ < work.round:
                earlier.stop()  # its time ran out, and the guard opened this round instead
        code = asyncio.ensure_future(self._agent(turn))
        running = self._running[work.turn, work.round] = _Running(request, code)
        try:
            move = await code
            if journal.broken is not None:
                raise journal.broken  # the code caught it; it is not for the code to catch
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
        except Superseded:
            return None
        except Fenced:
            raise
        except InDoubt as doubt:
            effect = Doubt(step=doubt.step, action=doubt.action, key=doubt.key)
            _log.warning("effect_in_doubt", step=doubt.step, action=doubt.action)
            return EffectDoubted(turn=work.turn, round=work.round, effect=effect, report=turn.report)
        except Exception as error:
            return self._failed(turn, work, failure_of(error), exc_info=True)
        finally:
            if self._running.get((work.turn, work.round)) is running:
                del self._running[work.turn, work.round]
        return MoveProposed(turn=work.turn, round=work.round, move=move, report=turn.report)

    def _failed(self, turn: Turn, work: Work, failure: Failure, *, exc_info: bool = False) -> TurnFailed:
        self._presence.failed += 1
        self._presence.last_error = failure.code
        _log.warning("turn_failed", code=failure.code, exc_info=exc_info and failure.code == "bug")
        return TurnFailed(turn=work.turn, round=work.round, error=failure, report=turn.report)

    async def _store(self, request: str, proposal: Proposal, trace: str) -> None:
        """Store a proposal, for as long as it takes: the guard knows a second one for the first."""
        subject = subjects.prop(self._agent.name, request)
        headers = {"traceparent": trace} if _TRACE.fullmatch(trace) else None
        attempt = 0
        while True:
            try:
                await self._bus.publish_durable(subject, codec.encode(proposal), headers)
            except TooLarge:
                proposal = _too_large(proposal)
            except Denied:
                raise
            except ApiError as error:
                if error.err_code != _STORED_TOO_LARGE:
                    _log.warning("proposal_not_stored", code=error.code, err_code=error.err_code)
                    await asyncio.sleep(STORE_AGAIN_S[-1])
                else:
                    proposal = _too_large(proposal)
            except BusError as error:
                if attempt == 0:
                    _log.warning("proposal_not_stored", code=error.code)
                await asyncio.sleep(STORE_AGAIN_S[min(attempt, len(STORE_AGAIN_S) - 1)])
                attempt += 1
            else:
                return

    async def _bury(self, message: Message, error: MeshError) -> None:
        """Keep what cannot be read in this agent's own dead-letter list, and have done with it."""
        letter = notices.dead_letter(
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
            await self._bus.publish_durable(
                notices.dead_subject(self._agent.name), msgspec.json.encode(letter)
            )
        except BusError as failed:
            _log.warning("dead_letter_not_stored", code=failed.code)
            message.nak(LATER_S)
            return
        _log.error("dead_letter", code=error.code, subject=message.subject)
        message.term(error.code)

    # --- notes ------------------------------------------------------------------------------------

    def _on_note(self, message: Incoming) -> None:
        """Look whether a turn is over that a note says is: a note is a hint, which others can forge."""
        if not message.data:
            return
        try:
            notice = _NOTICES.decode(message.data)
        except _UNREADABLE:
            return
        if notice.error is not None:
            _log.error(
                "refused_by_guard", request=notice.request, code=notice.error.code, detail=notice.error.detail
            )
        if notice.ended is not None:
            for (turn, round_), running in self._running.items():
                if turn == notice.ended.turn:
                    check = asyncio.create_task(self._stop_if_over(turn, round_, running))
                    self._checks.add(check)
                    check.add_done_callback(self._checks.discard)

    async def _stop_if_over(self, turn: str, round_: int, running: "_Running") -> None:
        with contextlib.suppress(BusError):
            over = await self._was_ended(running.request, turn)
            if over and self._running.get((turn, round_)) is running:
                running.stop()


def _journaled(work: Work) -> str:
    """Return under whose id a turn's journal goes on."""
    return work.continues or work.turn


def _has_a_place(work: Work) -> bool:
    """Say whether a turn's id, and that of its journal, can stand in a subject."""
    return is_token(work.turn) and is_token(_journaled(work))


def _crash_loop(work: Work) -> TurnFailed:
    failure = Failure(code="crash_loop", message="the turn ended its process again and again", permanent=True)
    return TurnFailed(turn=work.turn, round=work.round, error=failure, report=work.reported)


def _is_cancelling() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def sound(proposal: Proposal) -> Proposal:
    """Return the proposal, or where the guard could not read it, the failure that says so.

    The guard would put it aside as a dead letter, and the turn would wait for its own time to end.
    """
    try:
        codec.parse_proposal(codec.encode(proposal))
    except _UNSOUND as error:
        reason = str(error) if isinstance(error, Malformed) else type(error).__name__
        _log.error("proposal_unsound", turn=proposal.turn, reason=reason)
        failure = Failure(code="bug", message=f"the handler's move cannot be read: {reason}"[:MESSAGE_CHARS])
        return TurnFailed(
            turn=proposal.turn, round=proposal.round, error=failure, report=_readable(proposal.report)
        )
    return proposal


def _readable(report: Report) -> Report:
    """Return the report if it can be read by itself, else an empty one."""
    try:
        alone = TurnFailed(turn=TurnId("turn"), round=0, error=Failure(code="bug"), report=report)
        codec.parse_proposal(codec.encode(alone))
    except _UNSOUND:
        return Report()
    return report


def _too_large(proposal: Proposal) -> TurnFailed:
    """Return the failure that stands in for a proposal which the bus cannot hold."""
    failure = Failure(
        code="proposal_too_large",
        message="too large for the bus; pass large things on as artifacts",
        permanent=True,
    )
    spent = Report(usage=proposal.report.usage)  # the rest may be what is too large
    return TurnFailed(turn=proposal.turn, round=proposal.round, error=failure, report=spent)
