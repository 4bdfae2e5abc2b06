"""What an agent knows of the mesh around it: the fleet, and what others say of themselves.

It is read when the agent starts and again when the broker says that it changed, so that who joins can be
handed to without a restart. A wake-up can be lost: everything is also read now and then, and whenever the
connection is back.
"""

import asyncio
import contextlib

from msgspec.structs import replace

from mesh.bus import rate_limit
from mesh.bus.connection import Bus
from mesh.bus.nats_protocol import Incoming
from mesh.bus.roles import GET, TOLD_AGENTS
from mesh.bus.stores import NO_FLEET, UNREADABLE
from mesh.errors import PASSING, BusError, Denied
from mesh.service.logs import get_logger
from protocol.wire import codec, config, subjects
from protocol.wire.config import AgentEntry, DocumentInvalid, Fleet
from protocol.wire.ids import AgentName
from protocol.wire.notices import Card
from protocol.wire.subjects import CONF_CHANGED

_log = get_logger(__name__)

REFRESH_S = 30.0
AGAIN_S = 1.0
"""Between two looks, however often somebody writes a card."""
DESCRIPTION_CHARS = 500
"""Of what an agent says of itself; the rest is not shown."""
OWN_WORDS = "says of itself, unchecked: "
"""Stands before what an agent says of itself, wherever it is shown: models are told who vouches for what."""
_EVERYTHING = ""


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
        self._document = self.fleet
        self._unreadable = False
        """Whether there is a fleet that cannot be read."""
        self._said: dict[AgentName, str] = {}
        """What agents say of themselves."""
        self._changed = asyncio.Event()
        self._stale: set[str] = set()
        """What has to be read again: `fleet`, `card.<agent>`, or everything."""

    async def start(self) -> None:
        """Read everything; wait until there is a fleet, and for a bus that is away. Raises Denied."""
        self._bus.on_back(lambda: self._on_change(_EVERYTHING))
        for subject in TOLD_AGENTS:
            await self._listen(subject)
        while not await self._bus.retry_unavailable(self._look):
            if not self._unreadable:
                self._bus.conditions.raise_(NO_FLEET, hint="run `mesh setup`")
            await asyncio.sleep(AGAIN_S)
        self._bus.conditions.clear(NO_FLEET)

    async def keep_current(self) -> None:
        """Take over what changes, until cancelled."""
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(REFRESH_S):
                    await self._changed.wait()
            self._changed.clear()
            stale, self._stale = self._stale or {_EVERYTHING}, set()
            try:
                if not await self._look(stale):
                    _log.warning("fleet_gone", hint="run `mesh setup`; until then the last one holds")
            except BusError as error:
                if not isinstance(error, PASSING):  # the connection says what passes by itself
                    _log.warning("surroundings_not_read", code=error.code, detail=str(error))
                self._stale |= stale
                self._changed.set()
            await asyncio.sleep(AGAIN_S)

    async def _listen(self, subject: str) -> None:
        try:
            await self._bus.retry_unavailable(lambda: self._bus.subscribe(subject, self._on_message))
        except Denied:  # a server whose accounts were written by an older version
            _log.warning("changes_not_heard", subject=subject, hint="run `mesh setup`, and reload the server")

    def _on_message(self, message: Incoming) -> None:
        self._on_change(message.subject.removeprefix(f"{CONF_CHANGED}."))

    def _on_change(self, what: str) -> None:
        self._stale.add(what)
        self._changed.set()

    # --- looking ----------------------------------------------------------------------------------

    async def _look(self, stale: set[str] | None = None) -> bool:
        """Read again what is stale, everything by default. False if there is no fleet; the last one holds.

        Raises BusError.
        """
        stale = stale or {_EVERYTHING}
        if stale & {_EVERYTHING, "fleet"} and not await self._read_fleet():
            return False
        silent = self._silent()
        again = stale & {_EVERYTHING, "fleet"}
        await asyncio.gather(*(self._read_card(name) for name in silent if again or f"card.{name}" in stale))
        self.fleet = self._described(silent)
        return True

    def _silent(self) -> list[AgentName]:
        """Return whom this agent may hand to and the fleet file does not describe."""
        own = self._document.agents.get(self._name)
        return [
            AgentName(name)
            for name, entry in self._document.agents.items()
            if not entry.description
            and name != self._name
            and (own is None or own.to is None or name in own.to)
        ]

    def _described(self, silent: list[AgentName]) -> Fleet:
        if not any(self._said.get(name) for name in silent):
            return self._document
        said: dict[AgentName, AgentEntry] = {
            name: replace(self._document.agents[name], description=f"{OWN_WORDS}{words}")
            for name in silent
            if (words := self._said.get(name))
        }
        return replace(self._document, agents={**self._document.agents, **said})

    async def _read_fleet(self) -> bool:
        found = await self._bus.request(f"{GET}CONF.{subjects.FLEET}")
        if found.status:
            return False
        try:
            self._document = config.read_fleet(found.data)
        except DocumentInvalid as invalid:
            self._unreadable = True
            self._bus.conditions.raise_(UNREADABLE, subjects.FLEET, reason=str(invalid))
            return False
        self._unreadable = False
        self._bus.conditions.clear(UNREADABLE, subjects.FLEET)
        rate_limit.configure(self._document.models, self._bus)
        return True

    async def _read_card(self, name: AgentName) -> None:
        """Take over what an agent says of itself; a card that cannot be read says nothing."""
        found = await self._bus.request(f"{GET}CARDS.{subjects.card(name)}")
        shown = None if found.status else codec.readable(found.data, Card)
        said = "" if shown is None else shown.description
        self._said[name] = " ".join(said[:DESCRIPTION_CHARS].split())
