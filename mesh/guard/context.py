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

from mesh.bus.connection import Bus
from mesh.bus.nats_protocol import Incoming
from mesh.bus.reader import StoredMessage
from mesh.bus.stores import NO_FLEET, UNREADABLE, ConfUnreadable, T, parse_conf, read_conf
from mesh.errors import BusError
from mesh.guard.attendance import AttendanceWatch
from mesh.guard.breakers import Breakers
from mesh.service.conditions import Kind
from mesh.service.logs import get_logger
from protocol.domain.breaker import Use
from protocol.domain.decider import Moment, NeedVerdictContext, VerdictContext
from protocol.wire import config, subjects
from protocol.wire.commands import Submit
from protocol.wire.config import Fleet, FreezeEntry, Policy
from protocol.wire.ids import HUMAN, is_token
from protocol.wire.subjects import CONF_CHANGED

_log = get_logger(__name__)

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


class DecisionContext:
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
        self.attendance = AttendanceWatch(bus, lambda: self.fleet.agents, clock)
        self.fleet = Fleet(name="", entry=HUMAN)
        self.frozen = asyncio.Event()
        """Set while the whole mesh is frozen."""
        self.thawed = asyncio.Event()
        """Set while it is not."""
        self.thawed.set()
        self.read_again = asyncio.Event()
        """Set whenever the fleet was read, changed or not."""

    async def start(self) -> None:
        await self._bus.retry_unavailable(lambda: self._bus.subscribe(f"{CONF_CHANGED}.>", self._on_change))
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
        elif self.breakers.is_known(breaker, int(message.headers["Nats-Sequence"])):
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
        found = await read_conf(self._bus, subjects.FLEET)
        fleet = self._parsed(subjects.FLEET, found, config.read_fleet, None)
        if found is not None and fleet is not None:
            self.fleet = msgspec.structs.replace(fleet, revision=found.seq)
        if not self.fleet.revision:
            return False
        self.read_again.set()
        self._policies.clear()
        prices = await read_conf(self._bus, subjects.PRICES)
        self._prices = self._parsed(subjects.PRICES, prices, config.read_prices, self._prices)
        freeze = await read_conf(self._bus, subjects.FREEZE)
        entry = self._parsed(subjects.FREEZE, freeze, config.read_freeze, _TAKEN_FOR_FROZEN)
        self._set_frozen(entry is not None and entry.frozen)
        await asyncio.gather(*(self.breakers.read(name) for name in self.fleet.agents))
        return True

    def _parsed(
        self, subject: str, found: StoredMessage | None, parse: Callable[[bytes], T], instead: T | None
    ) -> T | None:
        """Return an entry, None if there is none, and `instead` while it cannot be read."""
        try:
            said = None if found is None else parse_conf(found, parse)
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
        found = await read_conf(self._bus, subject)
        try:
            parse = partial(config.read_policy, name=name)
            return None if found is None else parse_conf(found, parse)
        except ConfUnreadable as error:
            return error

    def moment(self) -> Moment:
        return Moment(self._clock(), self._salt())

    async def verdict_context(self, need: NeedVerdictContext) -> VerdictContext:
        """Return what a verdict needs.

        Raises BusError, and ConfUnreadable for a submit that rests on what cannot be read.
        """
        command, target = need.command, need.target
        policy, prices = None, None
        if isinstance(command.what, Submit):
            if self._unreadable:
                raise ConfUnreadable(*next(iter(self._unreadable.items())))
            policy, prices = await self.policy(command.what.policy), self._prices
        if target is None:
            return VerdictContext(policy=policy, prices=prices)
        if need.may_try:
            return VerdictContext(await self.breakers.ask(target, command.cause), policy, prices)
        return VerdictContext(Use(self.breakers.state(target)), policy, prices)
