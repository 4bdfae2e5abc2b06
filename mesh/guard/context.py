"""The inputs of a verdict besides the request's log, kept current from CONF and the clock.

A guard holds copies of the fleet, the policies, the prices and the breakers. Each write to CONF is
followed by a wake-up; since a wake-up can be lost, everything is read again now and then.

It fails closed on an entry that cannot be read. Without the fleet or the prices it refuses new requests, and
decides those under way by the last good entry. Without a policy it refuses the requests under it. Without the
freeze it takes the mesh for frozen, and without a breaker's entry the breaker for open. A guard that never
read a fleet waits for one.
"""

import asyncio
import os
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any
from weakref import WeakValueDictionary

import msgspec

from mesh.bus.connection import Bus
from mesh.bus.nats_protocol import Incoming
from mesh.bus.reader import StoredMessage, get
from mesh.bus.stores import (
    NO_FLEET,
    UNREADABLE,
    ConfUnreadable,
    T,
    parse_conf,
    read_memory,
    write_conf,
    write_memory,
)
from mesh.errors import BusError, SequenceConflict
from mesh.guard.availability import AttendanceWatch, Breakers
from mesh.service.conditions import Kind
from mesh.service.logs import get_logger
from protocol.domain.admission import Rejected
from protocol.domain.breaker import Use
from protocol.domain.memory import recalled
from protocol.domain.steps import (
    AgentStanding,
    Moment,
    NeedCandidates,
    NeedVerdictContext,
    Remember,
    VerdictContext,
)
from protocol.wire import config, subjects
from protocol.wire.commands import Control, Forget, Freeze, Submit, Thaw
from protocol.wire.config import Fleet, FreezeEntry, Policy
from protocol.wire.handoff import Fact
from protocol.wire.ids import HUMAN, is_token
from protocol.wire.records import MemoryRecord
from protocol.wire.subjects import CONF_CHANGED

_log = get_logger(__name__)

UNREACHABLE = Kind("conf_unreachable", "conf_reachable", "CONF cannot be read")
REFRESH_S = 30.0
_AGAIN_S = 1.0
_ATTEMPTS = 8
"""How often a lost race over the freeze is met by reading it again."""
SKEW_US = 60_000_000
"""How far apart the clocks of two servers may be that stored messages one after the other."""
_TAKEN_FOR_FROZEN = FreezeEntry(frozen=True)


def wall_clock_us() -> int:
    """Return the time as events have it: UTC µs."""
    return time.time_ns() // 1000


def _salts() -> Iterator[str]:
    """Yield random salts, asked of the system many at a time: a call for each costs more than all else."""
    while True:
        many = os.urandom(16 * 256).hex()
        yield from (many[at : at + 32] for at in range(0, len(many), 32))


class DecisionContext:
    """The fleet, policies, prices and breakers as a guard knows them now.

    `start` must be awaited before anything else; it returns once a fleet was read.
    """

    def __init__(
        self,
        bus: Bus,
        *,
        clock: Callable[[], int] = wall_clock_us,
        salt: Callable[[], str] | None = None,
    ) -> None:
        self._bus = bus
        self._clock = clock
        self._salt = salt or partial(next, _salts())
        self._policies: dict[str, Policy | ConfUnreadable | None] = {}
        self._unreadable: dict[str, str] = {}
        """Entries that every new request rests on and that cannot be read, with the reason."""
        self._prices: dict[str, Any] | None = None
        self._stale = asyncio.Event()
        self._stale_breakers: set[str] | None = None
        """The only entries to read again; None: all of CONF."""
        self.breakers = Breakers(bus, lambda agent: self.fleet.breaker_of(agent), clock)
        self.attendance = AttendanceWatch(bus, lambda: self.fleet.agents, clock)
        self.memory = ConversationMemory(bus, lambda: self.fleet, clock)
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
        while not (await self._look() and self.fleet.revision):
            if not self._unreadable:
                self._bus.conditions.raise_(NO_FLEET, hint="run `mesh setup`")
            await self._changed(_AGAIN_S)
        self._bus.conditions.clear(NO_FLEET)

    async def keep_current(self) -> None:
        """Read CONF again at every change, and every `REFRESH_S`. Runs until cancelled."""
        while True:
            await self._changed(REFRESH_S)
            if not await self._look():
                await asyncio.sleep(_AGAIN_S)
                self._stale.set()

    def _on_change(self, message: Incoming) -> None:
        """Note what has to be read again. Breakers change most: of them only the one that changed."""
        _, _, breaker = message.subject.partition(f"{CONF_CHANGED}.breaker.")
        if not breaker:
            self._stale_breakers = None
        elif self.breakers.is_known(breaker, int(message.headers["Nats-Sequence"])):
            return
        elif self._stale_breakers is not None:
            self._stale_breakers.add(breaker)
        self._stale.set()

    async def _changed(self, most_s: float) -> None:
        """Wait for a change. After `most_s` a wake-up may have been lost: everything counts as changed."""
        try:
            async with asyncio.timeout(most_s):
                await self._stale.wait()
        except TimeoutError:
            self._stale_breakers = None

    async def _look(self) -> bool:
        """Read what changed. Return False for a bus in trouble: then everything is read the next time."""
        changed, self._stale_breakers = self._stale_breakers, set()
        self._stale.clear()
        try:
            await (self._read_all() if changed is None else self._read_breakers(changed))
        except BusError as error:  # there may be no CONF yet, or no leader of it
            self._bus.conditions.raise_(UNREACHABLE, code=error.code)
            self._stale_breakers = None
            return False
        self._bus.conditions.clear(UNREACHABLE)
        return True

    async def _read_all(self) -> None:
        """Read the fleet and, once there has been one, all that stands beside it."""
        found = await get(self._bus, "CONF", subjects.FLEET)
        fleet = self._parsed(subjects.FLEET, found, config.read_fleet, None)
        if found is not None and fleet is not None:
            self.fleet = msgspec.structs.replace(fleet, revision=found.seq)
        if not self.fleet.revision:
            return
        self.read_again.set()
        self._policies.clear()
        prices = await get(self._bus, "CONF", subjects.PRICES)
        self._prices = self._parsed(subjects.PRICES, prices, config.read_prices, self._prices)
        freeze = await get(self._bus, "CONF", subjects.FREEZE)
        entry = self._parsed(subjects.FREEZE, freeze, config.read_freeze, _TAKEN_FOR_FROZEN)
        self._set_frozen(entry is not None and entry.frozen)
        await self._read_breakers(self.fleet.agents)

    async def _read_breakers(self, agents: Iterable[str]) -> None:
        await asyncio.gather(*(self.breakers.read(name) for name in agents))

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
            found = await get(self._bus, "CONF", subjects.policy(name))
            try:
                parse = partial(config.read_policy, name=name)
                self._policies[name] = None if found is None else parse_conf(found, parse)
            except ConfUnreadable as error:
                self._policies[name] = error
        known = self._policies[name]
        if isinstance(known, ConfUnreadable):
            raise ConfUnreadable(known.entry, known.reason)
        return known

    def moment(self) -> Moment:
        return Moment(self._clock(), self._salt())

    def known_context(self, need: NeedVerdictContext) -> VerdictContext | None:
        """Return what a verdict needs if no entry has to be read or written for it; else None."""
        policy, prices, what = None, None, need.command.what
        if type(what) is Submit:
            known = self._policies.get(what.policy)
            if self._unreadable or what.conversation is not None or not isinstance(known, Policy):
                return None
            policy, prices = known, self._prices
        state = "closed" if need.target is None else self.breakers.state(need.target)
        return VerdictContext(policy=policy, prices=prices) if state == "closed" else None

    async def verdict_context(self, need: NeedVerdictContext) -> VerdictContext:
        """Return what a verdict needs.

        Raises BusError, and ConfUnreadable for a submit that rests on what cannot be read.
        """
        command, target = need.command, need.target
        known = VerdictContext()
        if type(command.what) is Submit:
            if self._unreadable:
                raise ConfUnreadable(*next(iter(self._unreadable.items())))
            policy = await self.policy(command.what.policy)
            memory: tuple[Fact, ...] = ()
            if command.what.conversation is not None and policy is not None:
                memory = await self.memory.recall(command.sender, command.what.conversation)
            known = VerdictContext(policy=policy, prices=self._prices, memory=memory)
        if target is None:
            return known
        if need.may_try:
            return known._replace(breaker=await self.breakers.ask(target, command.cause))
        return known._replace(breaker=Use(self.breakers.state(target)))

    async def standings(self, need: NeedCandidates) -> tuple[AgentStanding, ...]:
        """Return how each agent that a plan asks for stands for new work. Raises BusError."""
        served = await self.attendance.served(need.agents)
        uses = [
            Use("closed")
            if self.breakers.state(name) == "closed"
            else await self.breakers.ask(name, need.trial)
            for name in need.agents
        ]
        return tuple(map(AgentStanding, uses, served))


# --- the freeze of the whole mesh -----------------------------------------------------------------


async def freeze_or_thaw(
    bus: Bus, control: Control, sender: str, role: str, seq: int, stored_us: int
) -> Rejected | None:
    """Do what `control` says to the whole mesh; return why not, if it may not be done. Idempotent.

    A control message may come again long after it was obeyed, when the guard that obeyed it died before it
    acknowledged. So the entry names its message, and only a newer message replaces it. An old freeze must not
    undo the thaw after it.

    Args:
        seq: the message's place in CTL.
        stored_us: when it was stored, UTC µs.

    Raises BusError; SequenceConflict if other guards were faster every time: then it has to come again.
    """
    if role != "operator":
        return Rejected("not_allowed", "only operators speak to the whole mesh")
    if not isinstance(control, Freeze | Thaw):
        return Rejected("not_allowed", "the whole mesh can only be frozen and thawed")
    frozen = isinstance(control, Freeze)
    for left in reversed(range(_ATTEMPTS)):
        found = await get(bus, "CONF", subjects.FREEZE)
        try:
            stands = FreezeEntry() if found is None else parse_conf(found, config.read_freeze)
        except ConfUnreadable:
            stands = FreezeEntry()  # this order takes its place
        # Places show which is newer. A queue that was made again begins with 1: then the times show it.
        if seq <= stands.seq and stored_us <= stands.at + SKEW_US:
            return None
        entry = FreezeEntry(
            frozen=frozen,
            by=control.by or sender,
            sender=sender,
            reason=control.reason,
            since=stands.since if stands.since and stands.frozen == frozen else stored_us,
            at=stored_us,
            seq=seq,
        )
        try:
            await write_conf(bus, subjects.FREEZE, entry, after=0 if found is None else found.seq)
        except SequenceConflict:
            if not left:
                raise
        else:
            break
    return None


# --- what conversations remember ------------------------------------------------------------------
#
# A fact is written after the answer that it came with. A guard that dies in between leaves the write to the
# next guard that takes up the request, as it leaves the rest. So a request that is submitted at once, to
# another guard, may begin before that; within one guard it waits.


class ConversationMemory:
    """A guard's part in the memory of every client's conversations: it recalls, remembers and forgets.

    Args:
        fleet: returns the fleet as it is now.
        now: returns UTC µs.
    """

    def __init__(self, bus: Bus, fleet: Callable[[], Fleet], now: Callable[[], int]) -> None:
        self._bus = bus
        self._fleet = fleet
        self._now = now
        self._locks: WeakValueDictionary[tuple[str, str], asyncio.Lock] = WeakValueDictionary()

    def _lock(self, client: str, conversation: str) -> asyncio.Lock:
        lock = self._locks.get((client, conversation))
        if lock is None:
            lock = self._locks[client, conversation] = asyncio.Lock()
        return lock

    async def recall(self, client: str, conversation: str) -> tuple[Fact, ...]:
        """Return what a request of the conversation begins with. Raises BusError."""
        async with self._lock(client, conversation):
            records = await read_memory(self._bus, client, conversation)
        return recalled(records, self._now(), self._fleet().memory_max_age_s)

    async def remember(self, step: Remember) -> None:
        """Write what a request ended with. Twice is the same as once. Raises as `write_memory`."""
        client = str(step.event.to)
        async with self._lock(client, step.conversation):
            await write_memory(self._bus, client, step.records)

    async def forget(self, control: Forget, sender: str, role: str, stored_us: int) -> Rejected | None:
        """Obey an order to forget; return why not, if it may not be obeyed. Twice is the same as once.

        Args:
            stored_us: when the order was stored, UTC µs: what is remembered later stays.

        Raises as `write_memory`.
        """
        client, fleet = str(control.client or sender), self._fleet()
        if role != "operator" and (role != "client" or client != sender):
            return Rejected("not_allowed", "a client has its own conversations forgotten only")
        if client not in (*fleet.clients, *fleet.operators):
            return Rejected("unknown_client", f"{client} is no client or operator of the fleet")
        conversation, by = control.conversation, control.by or sender
        all_ = MemoryRecord(conversation=conversation, at=stored_us, by=by, control=control.id)
        async with self._lock(client, conversation):
            keys = control.keys
            if not keys:  # first that everything is forgotten: it holds even if this guard dies here
                await write_memory(self._bus, client, [all_])
                standing = await read_memory(self._bus, client, conversation)
                keys = tuple(record.key for record in standing if record.fact is not None)
            await write_memory(self._bus, client, [msgspec.structs.replace(all_, key=key) for key in keys])
        return None
