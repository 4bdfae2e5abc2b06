"""The inputs of a verdict besides the request's log, kept current from CONF and the clock.

A guard keeps copies of the fleet, the policies, the prices and the breakers. Each write to CONF is followed
by a wake-up; since wake-ups can be lost, everything is also read again from time to time.

It fails closed on an unreadable entry. Without the fleet or the prices it refuses new requests, and decides
open ones by the last good entry. Without a policy it refuses requests under that policy. Without the freeze
it assumes that the mesh is frozen, and without a breaker's entry that the breaker is open. A guard that has
never read a fleet waits for one.
"""

import asyncio
import contextlib
import os
from base64 import urlsafe_b64encode
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import msgspec

from mesh.bus.connection import Bus
from mesh.bus.nats_protocol import Incoming
from mesh.bus.provision import stored_partitions
from mesh.bus.reader import StoredMessage, get, newest
from mesh.bus.stores import (
    NO_FLEET,
    UNREADABLE,
    ConfUnreadable,
    T,
    differences,
    parse_conf,
    write_conf,
    writer_of,
)
from mesh.errors import BusError, OtherPartitions, SequenceConflict
from mesh.guard.availability import AttendanceWatch, Breakers
from mesh.guard.clock import MOST_US, ServerClock, steady_clock_us, wall_clock_us
from mesh.guard.memory import STRIDE, ConversationMemory, Recalled
from mesh.guard.quotas import ClientQuotas
from mesh.guard.shadow import Shadow, Shadows
from mesh.service.conditions import Kind
from mesh.service.logs import get_logger
from protocol.domain.admission import Rejected
from protocol.domain.breaker import Permit
from protocol.domain.memory import goes_to_last
from protocol.domain.steps import (
    AgentReadiness,
    Moment,
    NeedCandidates,
    NeedReaders,
    NeedVerdictContext,
    OfferedTask,
    Reader,
    ReadersSeen,
    VerdictContext,
)
from protocol.domain.swarm import readers_seen
from protocol.wire import documents, subjects
from protocol.wire.commands import Control, Freeze, Submit, Thaw
from protocol.wire.config import Fleet, Policy
from protocol.wire.freeze import MOST_SPANS, FreezeEntry, Span, read_freeze
from protocol.wire.ids import HUMAN, is_token
from protocol.wire.shadow import read_shadow
from protocol.wire.subjects import CONF_CHANGED

_log = get_logger(__name__)

UNREACHABLE = Kind("conf_unreachable", "conf_reachable", "CONF cannot be read")
REFRESH_S = 30.0
_ATTEMPTS = 8
"""How often the freeze is read again after a lost race."""
_OF_SCHEDULES = tuple(f"{CONF_CHANGED}.{what}." for what in ("schedule", "pause", "tick"))
"""Wake-ups of what `mesh.guard.schedules` reads by itself, when it is needed."""
_MOST_PLACES = 20
"""Most changed places of a fleet that one log line names."""
SKEW_US = 60_000_000
"""How far apart the clocks of two servers may be that stored successive messages."""
_TAKEN_FOR_FROZEN = FreezeEntry(frozen=True)


def _salts() -> Iterator[str]:
    """Yield salts, 96 random bits in 16 characters each.

    They are generated in batches, since a system call for each would cost more than everything else.
    """
    while True:
        many = urlsafe_b64encode(os.urandom(12 * 256)).decode()
        yield from (many[at : at + 16] for at in range(0, len(many), 16))


class Waits(NamedTuple):
    """How long a guard waits, in seconds."""

    again_s: float = 1.0
    """Until an undecidable message comes again, or unreadable CONF is read again."""
    full_most_s: float = 10.0
    """Longest wait for room in a full stream; the first waits are shorter."""
    overtaken_s: float = 30.0
    """For the submit of a new request, which a control message may have overtaken."""
    answer_s: float = 1.0
    """For an answer of the bus about an agent or its breaker, while a request is being processed."""


class DecisionContext:
    """The fleet, policies, prices and breakers as a guard currently knows them.

    Await `start` before anything else; it returns once a fleet and the server's clock have been read.

    Args:
        clock: returns µs of this machine's clock, against which the server's is measured.
        wall: returns this machine's time (UTC µs), which `mesh doctor` shows.
        now: returns UTC µs; replaces the server's clock.
        waits: the guard's waiting times.
        stride: as for `ConversationMemory`.
    """

    def __init__(
        self,
        bus: Bus,
        *,
        clock: Callable[[], int] = steady_clock_us,
        wall: Callable[[], int] = wall_clock_us,
        now: Callable[[], int] | None = None,
        salt: Callable[[], str] | None = None,
        waits: Waits = Waits(),  # noqa: B008 - it is immutable
        stride: int = STRIDE,
    ) -> None:
        self._bus = bus
        self.waits = waits
        self.clock = ServerClock(bus, clock, wall)
        self.now = now or self.clock
        """Returns the time to decide by (UTC µs)."""
        self._salt = salt or partial(next, _salts())
        self._policies: dict[str, Policy | ConfUnreadable | None] = {}
        self._unreadable: dict[str, str] = {}
        """Unreadable entries that every new request needs, each with the reason."""
        self._prices: dict[str, Any] | None = None
        self._stale = asyncio.Event()
        self._stale_breakers: set[str] | None = None
        """The only entries to read again; None: all of CONF."""
        self.breakers = Breakers(bus, lambda agent: self.fleet.breaker_of(agent), self.now, waits.answer_s)
        self.attendance = AttendanceWatch(
            bus, lambda: self.fleet.agents, self.now, self.clock.api, waits.answer_s
        )
        self.memory = ConversationMemory(bus, lambda: self.fleet, self.now, stride)
        self.quotas = ClientQuotas(bus, lambda: self.fleet)
        self.fleet = Fleet(name="", entry=HUMAN)
        self.shadows: Shadows = {}
        """By the name of the policy that they are of. None decides anything."""
        self.spans: tuple[Span, ...] = ()
        """Earlier freezes of the whole mesh."""
        self.frozen = asyncio.Event()
        """Set while the whole mesh is frozen."""
        self.thawed = asyncio.Event()
        """Set while it is not."""
        self.thawed.set()
        self.read_again = asyncio.Event()
        """Set whenever the fleet was read, whether it changed or not."""

    async def start(self) -> None:
        """Read everything once. Raises OtherPartitions if the fleet's number differs from the mesh's."""
        await self._bus.retry_unavailable(lambda: self._bus.subscribe(f"{CONF_CHANGED}.>", self._on_change))
        while not (await self._look() and self.fleet.revision):
            if not self._unreadable:
                self._bus.conditions.raise_(NO_FLEET, hint="run `mesh setup`")
            await self._changed(self.waits.again_s)
        self._bus.conditions.clear(NO_FLEET)
        stored = await self._bus.retry_unavailable(lambda: stored_partitions(self._bus))
        if self.fleet.partitions != stored:
            raise OtherPartitions(stored, self.fleet.partitions, "the fleet in CONF")
        await self.clock.start()

    async def keep_current(self) -> None:
        """Read CONF again after every change, and every `REFRESH_S`. Runs until cancelled.

        Raises OtherPartitions if the number changes, since this guard would decide in the wrong partitions.
        """
        while True:
            await self._changed(REFRESH_S)
            if not await self._look():
                await asyncio.sleep(self.waits.again_s)
                self._stale.set()

    def _on_change(self, message: Incoming) -> None:
        """Note what to read again. Breakers change most often, so only the changed one is read."""
        if message.subject.startswith(_OF_SCHEDULES):
            return
        _, _, breaker = message.subject.partition(f"{CONF_CHANGED}.breaker.")
        if not breaker:
            self._stale_breakers = None
        elif self.breakers.is_known(breaker, int(message.headers["Nats-Sequence"])):
            return
        elif self._stale_breakers is not None:
            self._stale_breakers.add(breaker)
        self._stale.set()

    async def _changed(self, most_s: float) -> None:
        """Wait for a change. After `most_s` everything counts as changed, since wake-ups may be lost."""
        try:
            async with asyncio.timeout(most_s):
                await self._stale.wait()
        except TimeoutError:
            self._stale_breakers = None

    async def _look(self) -> bool:
        """Read what changed. Return False if the bus fails; then everything is read the next time."""
        changed, self._stale_breakers = self._stale_breakers, set()
        self._stale.clear()
        try:
            await (self._read_all() if changed is None else self._read_breakers(changed))
        except BusError as error:  # CONF may not exist yet, or may have no leader
            self._bus.conditions.raise_(UNREACHABLE, code=error.code)
            self._stale_breakers = None
            return False
        self._bus.conditions.clear(UNREACHABLE)
        return True

    async def _read_all(self) -> None:
        """Read the fleet and, once there has been one, everything else in CONF."""
        found = await get(self._bus, "CONF", subjects.FLEET)
        fleet = self._parsed(subjects.FLEET, found, documents.read_fleet, None)
        if found is not None and fleet is not None:
            if self.fleet.revision and fleet.partitions != self.fleet.partitions:
                raise OtherPartitions(self.fleet.partitions, fleet.partitions, "the fleet in CONF")
            before, self.fleet = self.fleet, msgspec.structs.replace(fleet, revision=found.seq)
            if before.revision not in (0, found.seq):
                await self._log_change(before)
        if not self.fleet.revision:
            return
        self.read_again.set()
        self._policies.clear()
        prices = await get(self._bus, "CONF", subjects.PRICES)
        self._prices = self._parsed(subjects.PRICES, prices, documents.read_prices, self._prices)
        freeze = await get(self._bus, "CONF", subjects.FREEZE)
        entry = self._parsed(subjects.FREEZE, freeze, read_freeze, _TAKEN_FOR_FROZEN)
        self.spans = () if entry is None else entry.spans
        self._set_frozen(entry is not None and entry.frozen)
        await self._read_breakers(self.fleet.agents)
        await self._read_shadows()

    async def _read_shadows(self) -> None:
        """Read the shadows of policies. One that cannot be read judges nothing."""
        found: dict[str, Shadow] = {}
        for kept in await newest(self._bus, "CONF", subjects.SHADOWS):
            name = kept.subject.rpartition(".")[2]
            with contextlib.suppress(ConfUnreadable):
                entry = parse_conf(kept, partial(read_shadow, name=name))
                if entry.policy is not None:
                    found[name] = Shadow(kept.seq, entry.policy)
        self.shadows = found

    async def _log_change(self, before: Fleet) -> None:
        """Log who changed the fleet, and where, but no values: these may be private."""
        after = msgspec.structs.replace(self.fleet, revision=before.revision)
        places = [place for place, _, _ in differences(*map(msgspec.to_builtins, (before, after)))]
        by = await writer_of(self._bus, subjects.FLEET)
        more = {"more": len(places) - _MOST_PLACES} if len(places) > _MOST_PLACES else {}
        diff = places[:_MOST_PLACES]
        _log.info("fleet_changed", revision=self.fleet.revision, by=by, diff=diff, **more)

    async def _read_breakers(self, agents: Iterable[str]) -> None:
        await asyncio.gather(*(self.breakers.read(name) for name in agents))

    def _parsed(
        self, subject: str, found: StoredMessage | None, parse: Callable[[bytes], T], instead: T | None
    ) -> T | None:
        """Return an entry; None if there is none, and `instead` while it is unreadable."""
        try:
            parsed = None if found is None else parse_conf(found, parse)
        except ConfUnreadable as error:
            self._unreadable[subject] = error.reason
            self._bus.conditions.raise_(UNREADABLE, subject)
            return instead
        if self._unreadable.pop(subject, None) is not None:
            self._bus.conditions.clear(UNREADABLE, subject)
        return parsed

    def _set_frozen(self, frozen: bool) -> None:
        if frozen != self.frozen.is_set():
            _log.warning("mesh_frozen" if frozen else "mesh_thawed")
        now, before = (self.frozen, self.thawed) if frozen else (self.thawed, self.frozen)
        before.clear()
        now.set()

    # --- answers for decisions --------------------------------------------------------------------

    async def policy(self, name: str) -> Policy | None:
        """Return the policy with this name; None if there is none. Raises BusError, ConfUnreadable."""
        if not is_token(name):
            return None
        if name not in self._policies:
            found = await get(self._bus, "CONF", subjects.policy(name))
            try:
                parse = partial(documents.read_policy, name=name)
                self._policies[name] = None if found is None else parse_conf(found, parse)
            except ConfUnreadable as error:
                self._policies[name] = error
        known = self._policies[name]
        if isinstance(known, ConfUnreadable):
            raise ConfUnreadable(known.entry, known.reason)
        return known

    def moment(self, stored_us: int = 0) -> Moment:
        """Return time and salt of an event that follows from a message stored at `stored_us`."""
        return Moment(max(self.now(), self.believed(stored_us)), self._salt())

    def believed(self, stored_us: int) -> int:
        """Return when a delivered message was stored; now, if its stamp is impossibly late.

        No message is stored in the future, but clocks may be slightly apart.
        """
        now = self.now()
        if stored_us - now <= MOST_US:
            return stored_us
        self.clock.doubt()
        return now

    def known_context(self, need: NeedVerdictContext) -> VerdictContext | None:
        """Return what a verdict needs if that takes no read or write; otherwise None."""
        policy, prices, use, what = None, None, None, need.command.what
        if type(what) is Submit:
            known = self._policies.get(what.policy)
            if self._unreadable or what.conversation is not None or not isinstance(known, Policy):
                return None
            policy, prices, use = known, self._prices, self.quotas.known(need.command.sender)
            if use is None:
                return None
        state = "closed" if need.target is None else self.breakers.state(need.target)
        return VerdictContext(policy=policy, prices=prices, use=use) if state == "closed" else None

    async def verdict_context(self, need: NeedVerdictContext) -> VerdictContext:
        """Return what a verdict needs.

        Raises BusError, and ConfUnreadable for a submit that needs an unreadable entry.
        """
        command, target = need.command, need.target
        known = VerdictContext()
        if type(command.what) is Submit:
            if self._unreadable:
                raise ConfUnreadable(*next(iter(self._unreadable.items())))
            policy = await self.policy(command.what.policy)
            memory = Recalled()
            if command.what.conversation is not None and policy is not None:
                memory = await self.memory.recall(
                    command.sender,
                    command.what.conversation,
                    speaker=goes_to_last(command.what, policy),
                )
            use = await self.quotas.counted(command.sender)
            known = VerdictContext(
                policy=policy, prices=self._prices, memory=memory.facts, use=use, last=memory.last
            )
        if target is None:
            return known
        if need.may_try:
            return known._replace(breaker=await self.breakers.ask(target, command.cause))
        return known._replace(breaker=Permit(self.breakers.state(target)))

    async def readiness(self, need: NeedCandidates) -> tuple[AgentReadiness, ...]:
        """Return the readiness of each agent that a plan asks for. Raises BusError."""
        served = await self.attendance.served(need.agents)
        uses = [
            Permit("closed")
            if self.breakers.state(name) == "closed"
            else await self.breakers.ask(name, need.trial)
            for name in need.agents
        ]
        return tuple(map(AgentReadiness, uses, served))

    async def readers(self, need: NeedReaders, placed: Sequence[int]) -> tuple[ReadersSeen, ...]:
        """Probe the agents that may claim each offer. Raises BusError.

        Args:
            placed: log sequence of each event of the request, by number.
        """
        return tuple([readers_seen(offer, await self._readers(offer, placed)) for offer in need.offers])

    async def _readers(self, offer: OfferedTask, placed: Sequence[int]) -> list[Reader]:
        names = [entry.name for entry in offer.entries]
        copies = {name: placed[n] for name, n in offer.task.copies.items()}
        seen = await self.attendance.readers({name: copies.get(name) for name in names})
        states = map(self.breakers.state, names)
        return [reader._replace(breaker=state) for reader, state in zip(seen, states, strict=True)]


# --- the freeze of the whole mesh -----------------------------------------------------------------


async def freeze_or_thaw(
    bus: Bus, control: Control, sender: str, role: str, seq: int, stored_us: int
) -> Rejected | None:
    """Freeze or thaw the whole mesh; return the rejection if that is not allowed. Idempotent.

    A control message may come again long after it was carried out, if that guard died before acknowledging
    it. So the entry names its message, and only a newer message replaces it: an old freeze must not undo the
    thaw after it.

    Args:
        seq: the message's sequence in CTL.
        stored_us: UTC µs at which it was stored.

    Raises BusError, and SequenceConflict if other guards were faster every time; then it must come again.
    """
    if role != "operator":
        return Rejected("not_allowed", "only operators speak to the whole mesh")
    if not isinstance(control, Freeze | Thaw):
        return Rejected("not_allowed", "the whole mesh can only be frozen and thawed")
    frozen = isinstance(control, Freeze)
    for left in reversed(range(_ATTEMPTS)):
        found = await get(bus, "CONF", subjects.FREEZE)
        try:
            current = FreezeEntry() if found is None else parse_conf(found, read_freeze)
        except ConfUnreadable:
            current = FreezeEntry()  # this order replaces it
        # Sequences tell which is newer. A recreated queue begins with 1 again; then the times tell.
        if seq <= current.seq and stored_us <= current.at + SKEW_US:
            return None
        spans = current.spans
        if current.frozen and not frozen:
            spans = (*spans, Span(since=current.since, until=stored_us))[-MOST_SPANS:]
        entry = FreezeEntry(
            frozen=frozen,
            by=control.by or sender,
            sender=sender,
            reason=control.reason,
            since=current.since if current.since and current.frozen == frozen else stored_us,
            at=stored_us,
            seq=seq,
            spans=spans,
        )
        try:
            await write_conf(bus, subjects.FREEZE, entry, after=0 if found is None else found.seq)
        except SequenceConflict:
            if not left:
                raise
        else:
            break
    return None
