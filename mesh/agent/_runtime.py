"""The runtime: takes rounds off an agent's inbox, and has them executed."""

import asyncio
import contextlib
import secrets
import sys
import threading
import time
import traceback
from typing import Self

from mesh.agent import _telemetry
from mesh.agent._attempts import LEAVE_S
from mesh.agent._claims import OfferPullers
from mesh.agent._executor import Executor
from mesh.agent._instance import FleetWatcher, card_of, publish_card
from mesh.agent._steps import key_of
from mesh.agent.definition import Agent, close_toolboxes, prepared, unpacked_in_time
from mesh.bus.connection import Bus
from mesh.bus.consumer import Message, Puller, spread
from mesh.bus.stores import store_dead_letter
from mesh.bus.streams import inbox_consumer, offers_to
from mesh.errors import BusError, Malformed, MeshError, UnknownEvent
from mesh.service.logs import bind, get_logger
from mesh.telemetry import tracing
from protocol.wire import codec, subjects
from protocol.wire.event_parts import Assignment
from protocol.wire.events import TaskOffered, type_of
from protocol.wire.ids import AgentName, is_token

_log = get_logger(__name__)

LATER_S = 5.0
UNKNOWN_S = 3600.0
"""How long an event of a newer version waits for a newer instance (s). A roll-out takes less."""


class Runtime:
    """One instance of an agent. `run` it until cancelled; `drain` it first to leave nothing half-done."""

    def __init__(self, bus: Bus, agent: Agent, *, model: str = "") -> None:
        self._bus = bus
        self._agent = agent
        self._model = model
        self.instance = secrets.token_hex(8)
        self._around = FleetWatcher(bus, AgentName(agent.name))
        self._executor = Executor(bus, agent, self.instance, self._around)
        self._offers = OfferPullers(
            bus, self._on_offer, slots=agent.concurrency, expires_s=lambda: self._around.fleet.pull_s
        )
        self._puller: Puller | None = None
        self._leaving = False

    @property
    def ready(self) -> bool:
        """True if it takes turns."""
        return self._puller is not None and self._puller.running and not self._leaving

    async def run(self) -> None:
        """Announce the agent, then take turns until cancelled (or until drained while it was still starting).

        Waits for a bus that goes away meanwhile. Raises Denied for wrong credentials, ToolsUnusable.
        """
        bus, agent = self._bus, self._agent
        on_note = self._executor.running.on_note
        tracing.probe()
        await self._around.start()  # a turn's permissions are in the fleet: no turn begins without it
        await bus.retry_unavailable(lambda: bus.subscribe(subjects.notes_to(agent.name), on_note))
        tools = await unpacked_in_time(agent.tools, bus.conditions)
        card = card_of(agent, tools, self.instance, self._model)
        await bus.retry_unavailable(lambda: publish_card(bus, card))
        await self._executor.presence.announce()
        await prepared(agent)
        self._puller = puller = Puller(
            bus,
            "LOG",
            inbox_consumer(agent.name),
            self._on_message,
            slots=agent.concurrency,
            expires_s=self._around.fleet.pull_s,
        )
        if self._leaving:
            return
        await bus.retry_unavailable(puller.start)
        if self._leaving:
            return
        await self._follow_offers()
        self._around.on_refresh = self._follow_offers
        _log.info("agent_ready", agent=agent.name, version=agent.version, instance=self.instance)
        with Watchdog():
            await self._around.keep_current()

    async def _follow_offers(self) -> None:
        """Pull the offers that the fleet lets this agent take. In a mesh without swarms there are none."""
        if not self._leaving:
            await self._offers.follow(offers_to(self._around.fleet, self._agent.name))

    async def drain(self, grace_s: float) -> None:
        """Take no more turns. Finish those that run, and give back those that take longer than `grace_s`."""
        self._leaving = True
        if self._puller is None:
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(grace_s):
                await asyncio.gather(self._puller.drain(), self._offers.drain())
        await self._offers.close()
        await self._puller.close()
        with contextlib.suppress(BusError):
            await self._bus.flush(LEAVE_S)  # send what was given back before the connection closes
        await close_toolboxes(self._agent.tools)
        _log.info("agent_drained", agent=self._agent.name, handled=self._executor.presence.handled)

    # --- one delivery -----------------------------------------------------------------------------

    async def _on_message(self, message: Message) -> None:
        try:
            event = codec.decode_event(message.data)
            work = event.work
            lies_in = subjects.parse_evt(message.subject)
            is_mine = lies_in == (self._agent.name, event.request) and event.to == self._agent.name
            if is_mine and isinstance(event, TaskOffered):
                await self._executor.claims.on_offer(message)
                return
            if not is_mine or work is None or not _fits_subject(work):
                raise Malformed(f"{type_of(event)} gives this agent nothing to work on")
        except UnknownEvent as error:
            _log.error("event_unknown", code=error.code, subject=message.subject)
            if time.time() - message.stored_us / 1e6 < UNKNOWN_S:
                message.nak(spread(LATER_S))  # a newer instance of this agent may know it
            else:
                await self._dead_letter(message, error)
            return
        except Malformed as error:
            await self._dead_letter(message, error)
            return
        key = key_of(self._agent.name, event.request, work)
        bind(  # in the task of this delivery
            request=key.request, turn=key.turn, round=key.round, seq=message.stream_seq, agent=key.agent
        )
        trace = tracing.well_formed(message.header(tracing.HEADER)) or tracing.well_formed(event.trace)
        with _telemetry.round_span(key, message, version=self._agent.version, depth=work.depth, trace=trace):
            await self._executor.execute(message, key, work, trace)

    async def _on_offer(self, message: Message) -> None:
        try:
            await self._executor.claims.on_offer(message)
        except UnknownEvent as error:
            _log.error("event_unknown", code=error.code, subject=message.subject)
            message.nak(spread(LATER_S))  # another agent may know it
        except Malformed as error:
            await self._dead_letter(message, error)

    async def _dead_letter(self, message: Message, error: MeshError) -> None:
        """Keep an unreadable message in this agent's dead-letter list, and acknowledge it."""
        kept = await store_dead_letter(
            self._bus,
            subjects.dead(self._agent.name),
            message,
            at=time.time_ns() // 1000,
            by=self._agent.name,
            code=error.code,
            detail=str(error),
            request=message.subject.rpartition(".")[2],
        )
        if kept is None:
            message.nak(LATER_S)
            return
        _log.error("dead_letter", code=error.code, subject=message.subject)
        message.term(error.code)


def _fits_subject(work: Assignment) -> bool:
    """Return True if the ids of a turn and of its journal can be part of a subject."""
    return is_token(work.turn) and is_token(work.journal_id)


# --- a loop that is blocked -----------------------------------------------------------------------

BLOCKED_S = 1.0
"""Half of the heartbeat's period: early enough to be noticed before a lease is lost."""


class Watchdog:
    """`with Watchdog():` in a running loop. Logs `loop_blocked` each time the loop is blocked."""

    def __init__(self, blocked_s: float = BLOCKED_S) -> None:
        self._blocked_s = blocked_s
        self._stop = threading.Event()
        self._loop, self._watched = asyncio.get_running_loop(), threading.get_ident()
        self._thread = threading.Thread(target=self._watch, name="loop-watchdog", daemon=True)
        self.found = 0
        """How often the loop was blocked."""

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stop.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._stop.is_set():
            answered = threading.Event()
            try:
                self._loop.call_soon_threadsafe(answered.set)
            except RuntimeError:
                return  # the loop is closed
            if not answered.wait(self._blocked_s) and not self._stop.is_set():
                self.found += 1
                frame = sys._current_frames().get(self._watched)
                stack = traceback.format_stack(frame)[-4:] if frame is not None else []
                _log.error("loop_blocked", for_s=self._blocked_s, stack="".join(stack))
                while not answered.wait(0.1) and not self._stop.is_set():
                    pass
            self._stop.wait(self._blocked_s)
