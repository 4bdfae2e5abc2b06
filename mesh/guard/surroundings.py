"""What a verdict rests on besides the request's log, kept current from CONF and the clock.

A guard holds copies of the fleet, the policies, the prices and the breakers. Each write to CONF is
followed by a wake-up; since a wake-up can be lost, everything is read again now and then.

It fails closed on an entry that cannot be read. While that is the fleet or the prices, new requests are
refused, and those that are under way go on by the last good one; a policy, and requests under it are
refused; the freeze, and the mesh is taken for frozen; a breaker, and it is taken for open. A guard that
never read a fleet waits for one.
"""

import asyncio
import contextlib
import os
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import msgspec
import structlog

from mesh.bus.conditions import NO_FLEET, UNREADABLE
from mesh.bus.connection import Bus
from mesh.bus.roles import CONF_CHANGED
from mesh.bus.wire import Incoming
from mesh.errors import BusError
from mesh.guard import conf
from mesh.guard.attendance import Attendance, Attended
from mesh.guard.breakers import Breakers
from mesh.guard.conf import ConfUnreadable, T
from mesh.service.conditions import Kind
from protocol.control import resolves_to
from protocol.decide import target_of
from protocol.domain import rules
from protocol.domain.breaker import Use
from protocol.ledger import Ledger
from protocol.wire import documents, subjects
from protocol.wire.commands import HandBack, Hearing, MoveProposed, Resolve, Submit, Transfer
from protocol.wire.config import AgentEntry, Fleet, FreezeEntry, Policy
from protocol.wire.ids import HUMAN, AgentName, is_token
from protocol.world import Grounds, World

_log = structlog.get_logger(__name__)

UNREACHABLE = Kind("conf_unreachable", "conf_reachable", "CONF cannot be read")
REFRESH_S = 30.0
_AGAIN_S = 1.0
_TAKEN_FOR_FROZEN = FreezeEntry(frozen=True)


def wall_clock_us() -> int:
    """Return the time as events have it: UTC µs."""
    return time.time_ns() // 1000


class _Salts:
    """Random salts, asked of the system many at a time: a call for each costs more than the rest of it."""

    def __init__(self) -> None:
        self._left = ""

    def __call__(self) -> str:
        if not self._left:
            self._left = os.urandom(16 * 256).hex()
        salt, self._left = self._left[:32], self._left[32:]
        return salt


fresh_salt = _Salts()


class Surroundings:
    """The fleet, policies, prices and breakers as a guard knows them now.

    `start` must be awaited before anything else; it returns once a fleet was read.
    """

    def __init__(
        self, bus: Bus, *, clock: Callable[[], int] = wall_clock_us, salt: Callable[[], str] = fresh_salt
    ) -> None:
        self._bus = bus
        self._clock = clock
        self._salt = salt
        self._policies: dict[str, Policy | ConfUnreadable | None] = {}
        self._unreadable: dict[str, str] = {}
        """Entries that every new request rests on and that cannot be read, with the reason."""
        self._prices: dict[str, Any] | None = None
        self._stale = asyncio.Event()
        self._stale_breakers: set[str] | None = set()
        """The only entries to read again; None: all of CONF."""
        self.breakers = Breakers(bus, lambda agent: self.fleet.breaker_of(agent), clock)
        self.attendance = Attendance(bus, lambda: self.fleet.agents, clock)
        self.fleet = Fleet(name="", entry=HUMAN)
        self.frozen = asyncio.Event()
        """Set while the whole mesh is frozen."""
        self.thawed = asyncio.Event()
        """Set while it is not."""
        self.thawed.set()
        self.read_again = asyncio.Event()
        """Set whenever the fleet was read, changed or not."""

    async def start(self) -> None:
        await self._bus.patiently(lambda: self._bus.subscribe(f"{CONF_CHANGED}.>", self._on_change))
        while not await self._found():
            if not self._unreadable:
                self._bus.conditions.raise_(NO_FLEET, hint="run `mesh setup`")
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_AGAIN_S):
                    await self._stale.wait()
            self._stale.clear()
        self._bus.conditions.clear(NO_FLEET)

    async def _found(self) -> bool:
        try:
            found = await self._refresh()
        except BusError as error:  # there is no CONF yet, or nobody leads it
            self._bus.conditions.raise_(UNREACHABLE, code=error.code)
            return False
        self._bus.conditions.clear(UNREACHABLE)
        return found

    def _on_change(self, message: Incoming) -> None:
        """Note what has to be read again; of breakers, which change most, only the one that did."""
        _, _, breaker = message.subject.partition(f"{CONF_CHANGED}.breaker.")
        if not breaker:
            self._stale_breakers = None
        elif self.breakers.is_known(breaker, conf.sequence(message)):
            return
        elif self._stale_breakers is not None:
            self._stale_breakers.add(breaker)
        self._stale.set()

    async def keep_current(self) -> None:
        """Read CONF again at every change, and every `REFRESH_S`. Runs until cancelled."""
        while True:
            try:
                async with asyncio.timeout(REFRESH_S):
                    await self._stale.wait()
            except TimeoutError:
                pass
            changed = self._stale_breakers if self._stale.is_set() else None
            self._stale.clear()
            self._stale_breakers = set()
            try:
                if changed is None:
                    await self._refresh()
                else:
                    await asyncio.gather(*(self.breakers.read(name) for name in changed))
                self._bus.conditions.clear(UNREACHABLE)
            except BusError as error:
                self._bus.conditions.raise_(UNREACHABLE, code=error.code)
                await asyncio.sleep(_AGAIN_S)
                self._stale_breakers = None
                self._stale.set()

    async def _refresh(self) -> bool:
        found = await conf.read(self._bus, subjects.FLEET)
        fleet = self._parsed(subjects.FLEET, found, documents.read_fleet, None)
        if fleet is not None:
            self.fleet = msgspec.structs.replace(fleet, revision=conf.sequence(found))
        if not self.fleet.revision:
            return False
        self.read_again.set()
        self._policies.clear()
        prices = await conf.read(self._bus, subjects.PRICES)
        self._prices = self._parsed(subjects.PRICES, prices, documents.read_prices, self._prices)
        freeze = await conf.read(self._bus, subjects.FREEZE)
        entry = self._parsed(subjects.FREEZE, freeze, documents.read_freeze, _TAKEN_FOR_FROZEN)
        self._set_frozen(entry is not None and entry.frozen)
        await asyncio.gather(*(self.breakers.read(name) for name in self.fleet.agents))
        return True

    def _parsed(
        self, subject: str, found: Incoming | None, parse: Callable[[bytes], T], instead: T | None
    ) -> T | None:
        """Return an entry, None if there is none, and `instead` while it cannot be read."""
        try:
            said = None if found is None else conf.parsed(subject, found, parse)
        except ConfUnreadable as error:
            self._unreadable[subject] = error.reason
            self._bus.conditions.raise_(UNREADABLE, subject)
            return instead
        if self._unreadable.pop(subject, None) is not None:
            self._bus.conditions.clear(UNREADABLE, subject)
        return said

    def _set_frozen(self, frozen: bool) -> None:
        if frozen != self.frozen.is_set():
            _log.warning("mesh_frozen" if frozen else "mesh_thawed")
        now, before = (self.frozen, self.thawed) if frozen else (self.thawed, self.frozen)
        before.clear()
        now.set()

    # --- asking -----------------------------------------------------------------------------------

    def role_of(self, name: str) -> Any:
        """Return what the fleet file says `name` is."""
        fleet = self.fleet
        if name in fleet.agents:
            return "agent"
        if name in fleet.clients:
            return "client"
        if name in fleet.operators:
            return "operator"
        return "viewer" if name in fleet.viewers else "nobody"

    def now(self) -> int:
        return self._clock()

    async def policy(self, name: str) -> Policy | None:
        """Return the policy of that name; None if there is none. Raises BusError, ConfUnreadable."""
        if not is_token(name):
            return None
        if name not in self._policies:
            self._policies[name] = await self._read_policy(name)
        known = self._policies[name]
        if isinstance(known, ConfUnreadable):
            raise ConfUnreadable(known.entry, known.reason)
        return known

    async def _read_policy(self, name: str) -> Policy | ConfUnreadable | None:
        subject = subjects.policy(name)
        found = await conf.read(self._bus, subject)
        try:
            parse = partial(documents.read_policy, name=name)
            return None if found is None else conf.parsed(subject, found, parse)
        except ConfUnreadable as error:
            return error

    async def world_for(self, ledger: Ledger, hearing: Hearing, trace: str = "") -> World:
        """Return the world for judging one message.

        Args:
            trace: `traceparent` of whatever judges it.

        Raises BusError, and ConfUnreadable for a submit that rests on what cannot be read.
        """
        what = hearing.what
        if isinstance(what, Submit) and self._unreadable:
            raise ConfUnreadable(*next(iter(self._unreadable.items())))
        target: str | None
        if isinstance(what, Submit):
            target = what.to or self.fleet.entry
        elif isinstance(what, Resolve):
            target = resolves_to(ledger, what)
        else:
            target = target_of(ledger, hearing)
        policy = await self.policy(what.policy) if isinstance(what, Submit) else None
        use = await self._breaker_of(target, ledger, hearing)
        grounds = Grounds(
            fleet=self.fleet.revision,
            sender=self.fleet.agents.get(hearing.sender),
            target=self._entry(target),
            human=self.fleet.human,
            breaker=use.state,
            breaker_since=use.since,
            breaker_until=use.until,
            peers=self._peers(target, hearing) if use.state == "open" else (),
            longest_s=self.fleet.log_max_age_s / 2 if isinstance(what, Submit) else None,
        )
        prices = self._prices if isinstance(what, Submit) else None
        now = self._now_for(ledger)
        return World(now=now, salt=self._salt(), grounds=grounds, policy=policy, prices=prices, trace=trace)

    async def _breaker_of(self, target: str | None, ledger: Ledger, hearing: Hearing) -> Use:
        """Return what is used of the target's breaker. Only what would give it work may have the trial."""
        if target is None or target not in self.fleet.agents:
            return Use("closed")
        gives = isinstance(hearing.what, Submit) or isinstance(_move(hearing), Transfer | HandBack)
        if gives and ledger.frozen_at is None:
            return await self.breakers.ask(AgentName(target), hearing.cause)
        return Use(self.breakers.state(target))

    def _peers(self, target: str | None, hearing: Hearing) -> tuple[AgentName, ...]:
        """Return who else might take what an agent wants to hand over."""
        sender, move = self.fleet.agents.get(hearing.sender), _move(hearing)
        if sender is None or not isinstance(move, Transfer):
            return ()
        allowed = self.fleet.agents if sender.to is None else sender.to
        return self.breakers.not_open(
            entry.name
            for name, entry in sorted(self.fleet.agents.items())
            if name in allowed and name not in (target, hearing.sender) and rules.takes(entry, move.intent)
        )

    def _now_for(self, ledger: Ledger) -> int:
        """Return the time, never before the head's: clocks differ, a request's time does not run back."""
        now = self._clock()
        return now if ledger.head is None else max(now, ledger.head.at)

    def _entry(self, name: str | None) -> AgentEntry | None:
        return None if name is None else self.fleet.agents.get(name)

    def world_for_due(self, ledger: Ledger, seen: Attended | None = None) -> World:
        """Return the world for what comes by itself.

        Args:
            seen: what was found of the agent that is waited for.
        """
        grounds = Grounds(
            fleet=self.fleet.revision,
            human=self.fleet.human,
            served=None if seen is None else seen.served,
            served_since=None if seen is None else seen.since,
            unbegun=seen is not None and seen.unbegun,
        )
        return World(now=self._now_for(ledger), salt=self._salt(), grounds=grounds, trace=ledger.trace)


def _move(hearing: Hearing) -> object:
    return hearing.what.move if isinstance(hearing.what, MoveProposed) else None
