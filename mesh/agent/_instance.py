"""One instance of an agent: the card that it shows, the pings that it answers, the fleet that it knows, and
the rounds that it runs.

The card is a running agent's description of itself; no verdict depends on it. An agent answers NATS micro
(`$SRV.PING|INFO|STATS`) in the shapes of NATS's service API (ADR-32, `io.nats.micro.v1.*`), so `nats micro
ls` shows it. Guards use the same requests to see if an agent is served: where no instance listens, the server
reports that at once.

An agent reads the fleet when it starts and again when the broker announces a change. So a new agent can get
work without a restart. An announcement can be lost: everything is also read now and then, and after each
reconnection.
"""

import asyncio
import contextlib
import datetime as dt
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import msgspec
from msgspec.structs import replace

from mesh.agent import _rate_limit as rate_limit
from mesh.agent._steps import RoundKey
from mesh.agent.definition import Agent
from mesh.agent.tools import Tool
from mesh.bus.connection import Bus
from mesh.bus.nats_protocol import Incoming
from mesh.bus.reader import get
from mesh.bus.roles import AGENT_WAKE_UPS
from mesh.bus.stores import NO_FLEET, UNREADABLE
from mesh.errors import PASSING, BusError, Denied
from mesh.service.logs import get_logger
from protocol.wire import codec, documents, subjects
from protocol.wire.config import Fleet
from protocol.wire.documents import DocumentInvalid
from protocol.wire.ids import AgentName
from protocol.wire.records import Card, Notice

_log = get_logger(__name__)

# --- what it shows --------------------------------------------------------------------------------


def card_of(agent: Agent, tools: Iterable[Tool], instance: str, model: str = "") -> Card:
    """Return the card of an agent with these tools, including those of opened boxes."""
    return Card(
        name=agent.name,
        version=agent.version,
        description=agent.description,
        prompt_version=agent.prompt_version,
        tools=tuple(
            {"name": tool.name, "description": tool.description, "effect": tool.effect or "none"}
            for tool in tools
        ),
        instance=instance,
        model=model,
        no_rules=bool(agent.model) and agent.script is None,
        forks=True,
    )


async def publish_card(bus: Bus, shown: Card) -> None:
    """Store an agent's card. Raises BusError."""
    await bus.publish_durable(subjects.card(shown.name), msgspec.json.encode(shown))


class Presence:
    """The answers of one instance. The executor counts `handled` and `failed`."""

    def __init__(self, bus: Bus, agent: Agent, instance: str) -> None:
        self._bus = bus
        self._agent = agent
        self._started = dt.datetime.now(dt.UTC)
        self._instance = instance
        self.handled = 0
        self.failed = 0
        self.last_error = ""
        self.busy_s = 0.0

    async def announce(self) -> None:
        """Begin to answer. Raises Denied."""
        for verb in ("PING", "INFO", "STATS"):
            for tail in ("", f".{self._agent.name}", f".{self._agent.name}.{self._instance}"):
                listen = partial(self._bus.subscribe, f"$SRV.{verb}{tail}", self._answer)
                await self._bus.retry_unavailable(listen)

    def _answer(self, message: Incoming) -> None:
        if message.reply:
            verb = message.subject.split(".")[1]
            self._bus.send(message.reply, msgspec.json.encode(self.answer(verb.lower())))

    def answer(self, verb: str) -> dict[str, Any]:
        """Return the answer to `ping`, `info` or `stats`."""
        answer: dict[str, Any] = {
            "type": f"io.nats.micro.v1.{verb}_response",
            "name": self._agent.name,
            "id": self._instance,
            "version": semantic(self._agent.version),
            "metadata": {"role": "agent", "agent-version": self._agent.version},
        }
        if verb == "ping":
            return answer
        endpoint = {"name": "inbox", "subject": subjects.inbox(self._agent.name), "queue_group": ""}
        if verb == "info":
            return answer | {
                "description": self._agent.description,
                "endpoints": [endpoint | {"metadata": {}}],
            }
        statistics = {
            "num_requests": self.handled,
            "num_errors": self.failed,
            "last_error": self.last_error,
            "processing_time": int(self.busy_s * 1e9),
            "average_processing_time": int(self.busy_s * 1e9 / self.handled) if self.handled else 0,
        }
        started = self._started.isoformat(timespec="milliseconds").replace("+00:00", "Z")
        return answer | {"started": started, "endpoints": [endpoint | statistics]}


def semantic(version: str) -> str:
    """Return `version` as the service API demands it, MAJOR.MINOR.PATCH. Missing parts are 0."""
    parts = version.split(".")
    if len(parts) <= 3 and all(part.isdigit() for part in parts):
        return ".".join([*parts, "0", "0"][:3])
    return "0.0.0"


# --- what it knows --------------------------------------------------------------------------------

REFRESH_S = 30.0
AGAIN_S = 1.0
"""Pause between two reads of the fleet (s), however often cards change."""
DESCRIPTION_CHARS = 500
"""Limit of an agent's own description; the rest is not shown."""
OWN_WORDS = "says of itself, unchecked: "
"""Prefix of an agent's own description, wherever it is shown: a model has to see who vouches for it."""


class FleetWatcher:
    """The mesh as one agent sees it.

    Args:
        name: name of the agent.
    """

    def __init__(self, bus: Bus, name: AgentName) -> None:
        self._bus = bus
        self._name = name
        self.fleet = Fleet(name="", entry=name)
        """The fleet as it is now; an agent without a description in the fleet file has that of its card."""
        self._silent: list[AgentName] = []
        """Agents that this one may hand work to and that have no description in the fleet file."""
        self._changed = asyncio.Event()
        self.on_refresh: Callable[[], Awaitable[None]] | None = None
        """Awaited after each later read: brings up to date what depends on the fleet."""

    async def start(self) -> None:
        """Read everything. Waits until there is a fleet, and for a bus that is away. Raises Denied."""
        self._bus.on_back(self._changed.set)
        for subject in AGENT_WAKE_UPS:
            try:
                await self._bus.retry_unavailable(partial(self._bus.subscribe, subject, self._on_message))
            except Denied:  # the server's accounts were written by an older version
                hint = "run `mesh setup`, and reload the server"
                _log.warning("changes_not_heard", subject=subject, hint=hint)
        found = await self._bus.retry_unavailable(self._refresh)
        while not found:
            await asyncio.sleep(AGAIN_S)
            found = await self._bus.retry_unavailable(self._refresh)
        self._bus.conditions.clear(NO_FLEET)

    async def keep_current(self) -> None:
        """Take over changes until cancelled."""
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(REFRESH_S):
                    await self._changed.wait()
            self._changed.clear()
            try:
                await self._refresh()
                if self.on_refresh is not None:
                    await self.on_refresh()
            except BusError as error:
                if not isinstance(error, PASSING):  # the connection reports what passes by itself
                    _log.warning("surroundings_not_read", code=error.code, detail=str(error))
                self._changed.set()
            await asyncio.sleep(AGAIN_S)

    def _on_message(self, message: Incoming) -> None:
        changed = message.subject.removeprefix(f"{subjects.CONF_CHANGED}.")
        if changed == "fleet" or changed.removeprefix("card.") in self._silent:
            self._changed.set()

    async def _refresh(self) -> bool:
        """Read the fleet, and the cards of agents without a description. Return False if there is no fleet;
        then the last one stays in use.

        Raises BusError.
        """
        found = await get(self._bus, "CONF", subjects.FLEET)
        if found is None:
            if self.fleet.agents:
                _log.warning("fleet_gone", hint="run `mesh setup`; until then the last one holds")
            else:
                self._bus.conditions.raise_(NO_FLEET, hint="run `mesh setup`")
            return False
        try:
            fleet = documents.read_fleet(found.data)
        except DocumentInvalid as invalid:
            self._bus.conditions.raise_(UNREADABLE, subjects.FLEET, reason=str(invalid))
            return False
        self._bus.conditions.clear(UNREADABLE, subjects.FLEET)
        rate_limit.configure(fleet.models)
        own = fleet.agents.get(self._name)
        self._silent = [
            AgentName(name)
            for name, entry in fleet.agents.items()
            if not entry.description
            and name != self._name
            and (own is None or own.to is None or name in own.to)
        ]
        own_texts = await asyncio.gather(*map(self._own_description, self._silent))
        described = {
            name: replace(fleet.agents[name], description=f"{OWN_WORDS}{text}")
            for name, text in zip(self._silent, own_texts, strict=True)
            if text
        }
        self.fleet = replace(fleet, agents={**fleet.agents, **described}) if described else fleet
        return True

    async def _own_description(self, name: AgentName) -> str:
        """Return an agent's description of itself; empty if its card cannot be read."""
        found = await get(self._bus, "CARDS", subjects.card(name))
        card = None if found is None else codec.readable(found.data, Card)
        return "" if card is None else " ".join(card.description[:DESCRIPTION_CHARS].split())


# --- what it runs ---------------------------------------------------------------------------------

_REMEMBERED = 1_000


@dataclass(slots=True)
class Running:
    """A round whose code is running, in the task of its delivery."""

    task: asyncio.Task[Any]
    stopped: bool = False
    """True if it was stopped: a guard ended the turn, or a newer round of it began."""
    probes: set[asyncio.Task[None]] = field(default_factory=set)
    """Running probes for the turn's end."""

    def stop(self) -> None:
        """Cancel the code. A thread of it runs to its end, and its result is discarded."""
        if not self.stopped:
            self.stopped = True
            self.task.cancel()


class RunningRounds:
    """The rounds of this process, by turn and round.

    Args:
        was_ended: returns True if a guard ended a turn, according to the message that only guards can write.
        on_notice: also gets each notice.
    """

    def __init__(
        self,
        was_ended: Callable[[RoundKey], Awaitable[bool]],
        on_notice: Callable[[Notice], None] = lambda notice: None,
    ) -> None:
        self._was_ended, self._on_notice = was_ended, on_notice
        self.rounds: dict[RoundKey, Running] = {}
        self.noted_ends: dict[str, None] = {}
        """Turns that a note reported as ended while no round of theirs ran here, newest last."""

    @contextlib.contextmanager
    def holding(self, key: RoundKey) -> Iterator[Running]:
        """Hold this task's round within the block, and stop an older round of its turn: its time is up."""
        if key.round:
            for other, earlier in self.rounds.items():
                if other.turn == key.turn and other.round < key.round:
                    earlier.stop()
        task = asyncio.current_task()
        assert task is not None
        running = self.rounds[key] = Running(task)
        try:
            yield running
        finally:
            if self.rounds.get(key) is running:
                del self.rounds[key]
            if running.stopped:
                task.uncancel()  # only the code had to end

    def on_note(self, message: Incoming) -> None:
        """Look up a turn that a note reports as ended: a note is only a hint, which others can forge."""
        notice = codec.readable(message.data, Notice) if message.data else None
        if notice is None:  # usually a wake-up, and the event itself comes too
            return
        self._on_notice(notice)
        if notice.error is not None:
            _log.error(
                "refused_by_guard", request=notice.request, code=notice.error.code, detail=notice.error.detail
            )
        if notice.ended is not None:
            held = [key for key in self.rounds if key.turn == notice.ended.turn]
            for key in held:
                self._look_up(key, self.rounds[key])
            if not held:
                self.noted_ends[notice.ended.turn] = None
                if len(self.noted_ends) > _REMEMBERED:
                    del self.noted_ends[next(iter(self.noted_ends))]

    def on_heartbeat(self, key: RoundKey) -> None:
        """Look up the turn's end in case no note came: notes are lost on reconnecting, or come too early."""
        running = self.rounds.get(key)
        if running is not None and not running.probes:
            self._look_up(key, running)

    def _look_up(self, key: RoundKey, running: Running) -> None:
        probe = asyncio.create_task(self._stop_if_over(key, running))
        running.probes.add(probe)
        probe.add_done_callback(running.probes.discard)

    async def _stop_if_over(self, key: RoundKey, running: Running) -> None:
        try:
            is_over = await self._was_ended(key)
        except BusError as error:
            _log.warning("end_not_looked_up", request=key.request, code=error.code, detail=str(error))
            return
        if is_over and self.rounds.get(key) is running:
            running.stop()


LOST_S = 60.0
"""How long after its grace period a round that never came back here is remembered (s)."""


class ForeignRounds:
    """Rounds that another version began. Usually an instance of that version takes them.

    Args:
        grace_s: how long each is left to that version.
        clock: monotonic seconds.
    """

    def __init__(self, grace_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._grace_s, self._clock = grace_s, clock
        self._first: dict[RoundKey, float] = {}
        """When this instance first saw each round (monotonic seconds)."""

    def __len__(self) -> int:
        return len(self._first)

    def leaves(self, key: RoundKey) -> bool:
        """Return True while a round is left to its own version: for the grace period after it first came."""
        now = self._clock()
        kept_s = self._grace_s + LOST_S
        self._first = {each: at for each, at in self._first.items() if now - at < kept_s}
        if now - self._first.setdefault(key, now) < self._grace_s:
            return True
        del self._first[key]
        return False
