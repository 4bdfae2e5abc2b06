"""What a verdict rests on besides the request's log, kept current from CONF and the clock.

A guard holds copies of the fleet, the policies, the prices and the breakers. Each write to CONF is
followed by a wake-up; since a wake-up can be lost, everything is read again now and then. An entry
that cannot be read changes nothing: the last good one holds, and where there was none, the guard waits.
"""

import asyncio
import contextlib
import os
import time
from collections.abc import Callable
from typing import Any, ClassVar, TypeVar

import msgspec
import structlog

from mesh.bus.connection import Bus
from mesh.bus.roles import CONF_CHANGED, GET
from mesh.bus.wire import Incoming
from mesh.errors import BusError, MeshError, NoResponders, OutcomeUnknown
from protocol import subjects
from protocol.codec import LONGEST_S
from protocol.control import resolves_to
from protocol.decide import target_of
from protocol.fleet import AgentEntry, Fleet
from protocol.ids import HUMAN, is_name, is_token
from protocol.ledger import Ledger
from protocol.messages import Hearing, Resolve, Submit
from protocol.policy import Policy
from protocol.world import Breaker, Grounds, World

_log = structlog.get_logger(__name__)

REFRESH_S = 30.0
PING_S = 1.0
_AGAIN_S = 1.0
_UNREADABLE = (msgspec.MsgspecError, RecursionError, UnicodeError, ValueError)
T = TypeVar("T")


class ConfUnreadable(MeshError):
    """An entry of CONF is needed, cannot be read, and never could be; an admin has to write it anew."""

    code: ClassVar[str] = "conf.unreadable"


class _BreakerEntry(msgspec.Struct, frozen=True):
    state: Breaker = "closed"


class _FreezeEntry(msgspec.Struct, frozen=True):
    frozen: bool = False


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
        self._policies: dict[str, Policy | None] = {}
        self._good_policies: dict[str, Policy] = {}
        self._breakers: dict[str, Breaker] = {}
        self._prices: dict[str, Any] | None = None
        self._stale = asyncio.Event()
        self.fleet = Fleet(name="", entry=HUMAN)
        self.frozen = asyncio.Event()
        """Set while the whole mesh is frozen."""
        self.thawed = asyncio.Event()
        """Set while it is not."""
        self.thawed.set()

    async def start(self) -> None:
        await self._bus.subscribe(f"{CONF_CHANGED}.>", self._on_change)
        while not await self._found():
            _log.warning("fleet_missing", hint="run `mesh setup`")
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_AGAIN_S):
                    await self._stale.wait()
            self._stale.clear()

    async def _found(self) -> bool:
        try:
            return await self._refresh()
        except BusError as error:  # there is no CONF yet, or nobody leads it
            _log.warning("conf_unreachable", code=error.code)
            return False

    def _on_change(self, message: Incoming) -> None:
        self._stale.set()

    async def keep_current(self) -> None:
        """Read CONF again at every change, and every `REFRESH_S`. Runs until cancelled."""
        while True:
            try:
                async with asyncio.timeout(REFRESH_S):
                    await self._stale.wait()
            except TimeoutError:
                pass
            self._stale.clear()
            try:
                await self._refresh()
            except BusError as error:
                _log.warning("conf_unreachable", code=error.code)
                await asyncio.sleep(_AGAIN_S)
                self._stale.set()

    async def _refresh(self) -> bool:
        found = await self._get(subjects.FLEET)
        fleet = None if found is None else _decoded(subjects.FLEET, found, Fleet)
        if found is not None and fleet is not None and _can_be(fleet):
            self.fleet = msgspec.structs.replace(fleet, revision=int(found.headers["Nats-Sequence"]))
        if not self.fleet.revision:
            return False
        self._policies.clear()
        prices = await self._get(subjects.PRICES)
        if prices is None:
            self._prices = None
        else:
            self._prices = _decoded(subjects.PRICES, prices, dict[str, Any]) or self._prices
        freeze = await self._get(subjects.FREEZE)
        entry = _FreezeEntry() if freeze is None else _decoded(subjects.FREEZE, freeze, _FreezeEntry)
        if entry is not None:
            self._set_frozen(entry.frozen)
        await asyncio.gather(*(self._read_breaker(name) for name in self.fleet.agents))
        return True

    def _set_frozen(self, frozen: bool) -> None:
        if frozen != self.frozen.is_set():
            _log.warning("mesh_frozen" if frozen else "mesh_thawed")
        now, before = (self.frozen, self.thawed) if frozen else (self.thawed, self.frozen)
        before.clear()
        now.set()

    async def _read_breaker(self, name: str) -> None:
        subject = subjects.breaker(name)
        found = await self._get(subject)
        entry = _BreakerEntry() if found is None else _decoded(subject, found, _BreakerEntry)
        if entry is not None:
            self._breakers[name] = entry.state

    async def _get(self, subject: str) -> Incoming | None:
        message = await self._bus.request(f"{GET}CONF.{subject}")
        if message.status == 404:
            return None
        if message.status:
            raise NoResponders(f"CONF does not answer: {message.status}")
        return message

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
            subject = subjects.policy(name)
            found = await self._get(subject)
            policy = None if found is None else _decoded(subject, found, Policy)
            if policy is not None and _can_rule(policy):
                self._good_policies[name] = policy
            elif found is not None:
                policy = self._good_policies.get(name)
                if policy is None:
                    raise ConfUnreadable(f"the policy {name!r} cannot be read")
            self._policies[name] = policy
        return self._policies[name]

    async def world_for(self, ledger: Ledger, hearing: Hearing) -> World:
        """Return the world for judging one message."""
        what = hearing.what
        target: str | None
        if isinstance(what, Submit):
            target = what.to or self.fleet.entry
        elif isinstance(what, Resolve):
            target = resolves_to(ledger, what)
        else:
            target = target_of(ledger, hearing)
        policy = await self.policy(what.policy) if isinstance(what, Submit) else None
        grounds = Grounds(
            fleet=self.fleet.revision,
            sender=self.fleet.agents.get(hearing.sender),
            target=self._entry(target),
            human=self.fleet.human,
            breaker=self._breakers.get(target, "closed") if target is not None else "closed",
            longest_s=self.fleet.log_max_age_s / 2 if isinstance(what, Submit) else None,
        )
        prices = self._prices if isinstance(what, Submit) else None
        now = self._now_for(ledger)
        return World(now=now, salt=self._salt(), grounds=grounds, policy=policy, prices=prices)

    def _now_for(self, ledger: Ledger) -> int:
        """Return the time, never before the head's: clocks differ, a request's time does not run back."""
        now = self._clock()
        return now if ledger.head is None else max(now, ledger.head.at)

    def _entry(self, name: str | None) -> AgentEntry | None:
        return None if name is None else self.fleet.agents.get(name)

    def world_for_due(self, ledger: Ledger, served: bool | None) -> World:
        """Return the world for what comes by itself."""
        grounds = Grounds(fleet=self.fleet.revision, human=self.fleet.human, served=served)
        return World(now=self._now_for(ledger), salt=self._salt(), grounds=grounds)

    async def is_served(self, agent: str) -> bool:
        """Say whether any instance of `agent` runs.

        Nobody listening is known at once. Somebody who listens and is silent counts as there: what
        they hold is for the turn's own time to end.
        """
        try:
            await self._bus.request(f"$SRV.PING.{agent}", timeout_s=PING_S)
        except NoResponders:
            return False
        except OutcomeUnknown:
            return True
        return True


def _decoded(subject: str, message: Incoming, type_: type[T]) -> T | None:
    """Return what an entry says; None, and a line in the log, where it cannot be read."""
    try:
        return msgspec.json.decode(message.data, type=type_)
    except _UNREADABLE:
        _log.error("conf_unreadable", entry=subject)
        return None


def _can_be(fleet: Fleet) -> bool:
    """Say whether guards can work with a fleet: names that subjects can hold, a time that ends."""
    good = all(map(is_name, fleet.agents)) and 0 < fleet.log_max_age_s <= LONGEST_S
    if not good:
        _log.error("conf_unreadable", entry=subjects.FLEET)
    return good


def _can_rule(policy: Policy) -> bool:
    """Say whether every time in a policy is one that clocks can hold."""
    spans = [getattr(policy, name) for name in policy.__struct_fields__ if name.endswith(("_s", "_max_s"))]
    good = all(0 <= span <= LONGEST_S for span in spans if span is not None)
    if not good:
        _log.error("conf_unreadable", entry=subjects.policy(policy.name))
    return good
