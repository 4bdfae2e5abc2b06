"""An agent's presence: the card that it shows, the pings that it answers, and the fleet that it knows.

The card is a running agent's own word; no verdict rests on it. An agent answers NATS micro
(`$SRV.PING|INFO|STATS`) in the shapes of NATS's service API (ADR-32, `io.nats.micro.v1.*`), so that `nats
micro ls` shows it. Guards ask the same way if anybody serves it: where no instance listens, the server says
so at once.

An agent reads the fleet when it starts and again when the broker says that it changed. So a new agent can be
handed to without a restart. A wake-up can be lost: everything is also read now and then, and whenever the
connection is back.
"""

import asyncio
import contextlib
import datetime as dt
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from typing import Any

import msgspec
from msgspec.structs import replace

from mesh.agent import _rate_limit as rate_limit
from mesh.agent.definition import Agent
from mesh.agent.tools import Tool
from mesh.bus.connection import Bus
from mesh.bus.nats_protocol import Incoming
from mesh.bus.reader import get
from mesh.bus.roles import TOLD_AGENTS
from mesh.bus.stores import NO_FLEET, UNREADABLE
from mesh.errors import PASSING, BusError, Denied
from mesh.service.logs import get_logger
from protocol.wire import codec, config, subjects
from protocol.wire.config import DocumentInvalid, Fleet
from protocol.wire.ids import AgentName
from protocol.wire.records import Card

_log = get_logger(__name__)

# --- what it shows --------------------------------------------------------------------------------


def card_of(agent: Agent, tools: Iterable[Tool], instance: str, model: str = "") -> Card:
    """Return the card of an agent with these tools: its own, unpacked."""
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
    )


async def publish_card(bus: Bus, shown: Card) -> None:
    """Store an agent's card. Raises BusError."""
    await bus.publish_durable(subjects.card(shown.name), msgspec.json.encode(shown))


class Presence:
    """One instance's answers. The executor counts `handled` and `failed`."""

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
        said: dict[str, Any] = {
            "type": f"io.nats.micro.v1.{verb}_response",
            "name": self._agent.name,
            "id": self._instance,
            "version": semantic(self._agent.version),
            "metadata": {"role": "agent", "agent-version": self._agent.version},
        }
        if verb == "ping":
            return said
        endpoint = {"name": "inbox", "subject": subjects.inbox(self._agent.name), "queue_group": ""}
        if verb == "info":
            return said | {
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
        return said | {"started": started, "endpoints": [endpoint | statistics]}


def semantic(version: str) -> str:
    """Return `version` as the service API demands it, MAJOR.MINOR.PATCH: missing parts are 0."""
    parts = version.split(".")
    if len(parts) <= 3 and all(part.isdigit() for part in parts):
        return ".".join([*parts, "0", "0"][:3])
    return "0.0.0"


# --- what it knows --------------------------------------------------------------------------------

REFRESH_S = 30.0
AGAIN_S = 1.0
"""Between two looks, however often somebody writes a card."""
DESCRIPTION_CHARS = 500
"""Of an agent's own words; the rest is not shown."""
OWN_WORDS = "says of itself, unchecked: "
"""Stands before an agent's own words, wherever they are shown: models are told who vouches for what."""


class FleetWatcher:
    """The mesh as one agent sees it.

    Args:
        name: the agent's.
    """

    def __init__(self, bus: Bus, name: AgentName) -> None:
        self._bus = bus
        self._name = name
        self.fleet = Fleet(name="", entry=name)
        """As it is now; an agent that the fleet file does not describe is described by its card."""
        self._silent: list[AgentName] = []
        """Agents that this one may hand to and the fleet file does not describe."""
        self._changed = asyncio.Event()
        self.on_look: Callable[[], Awaitable[None]] | None = None
        """Awaited after each later look: what follows from the fleet is brought up to it."""

    async def start(self) -> None:
        """Read everything; wait until there is a fleet, and for a bus that is away. Raises Denied."""
        self._bus.on_back(self._changed.set)
        for subject in TOLD_AGENTS:
            try:
                await self._bus.retry_unavailable(partial(self._bus.subscribe, subject, self._on_message))
            except Denied:  # a server whose accounts were written by an older version
                hint = "run `mesh setup`, and reload the server"
                _log.warning("changes_not_heard", subject=subject, hint=hint)
        found = await self._bus.retry_unavailable(self._look)
        while not found:
            await asyncio.sleep(AGAIN_S)
            found = await self._bus.retry_unavailable(self._look)
        self._bus.conditions.clear(NO_FLEET)

    async def keep_current(self) -> None:
        """Take over what changes, until cancelled."""
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(REFRESH_S):
                    await self._changed.wait()
            self._changed.clear()
            try:
                await self._look()
                if self.on_look is not None:
                    await self.on_look()
            except BusError as error:
                if not isinstance(error, PASSING):  # the connection says what passes by itself
                    _log.warning("surroundings_not_read", code=error.code, detail=str(error))
                self._changed.set()
            await asyncio.sleep(AGAIN_S)

    def _on_message(self, message: Incoming) -> None:
        changed = message.subject.removeprefix(f"{subjects.CONF_CHANGED}.")
        if changed == "fleet" or changed.removeprefix("card.") in self._silent:
            self._changed.set()

    async def _look(self) -> bool:
        """Read the fleet and the cards of its silent agents. False if there is no fleet; the last one holds.

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
            fleet = config.read_fleet(found.data)
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
        words = await asyncio.gather(*map(self._own_words, self._silent))
        described = {
            name: replace(fleet.agents[name], description=f"{OWN_WORDS}{said}")
            for name, said in zip(self._silent, words, strict=True)
            if said
        }
        self.fleet = replace(fleet, agents={**fleet.agents, **described}) if described else fleet
        return True

    async def _own_words(self, name: AgentName) -> str:
        """Return an agent's description of itself; a card that cannot be read says nothing."""
        found = await get(self._bus, "CARDS", subjects.card(name))
        card = None if found is None else codec.readable(found.data, Card)
        return "" if card is None else " ".join(card.description[:DESCRIPTION_CHARS].split())
