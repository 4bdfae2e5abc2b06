"""What one guard shows of the whole mesh to a metrics scraper: the same facts that `mesh doctor` checks.

All guards could probe, and all would see the same, each at the same cost to the bus. So only the guard that
has partition 0 does. While that partition changes hands two guards may, which changes no maximum. A failed
probe shows nothing: an old value would hide that there are no new ones.

Requests are counted from the log. Each event is read once, and only the envelope of its body. What waits for
people is folded only in open requests in which something was addressed to them. It takes minutes to count an
old log for the first time. Agents are looked at meanwhile: what waits for them wakes those scaled to zero.
"""

import asyncio
import time
from array import array
from collections import Counter
from collections.abc import Callable, Iterable

from mesh.bus.connection import Bus
from mesh.bus.reader import StoredMessage, batch, listing
from mesh.bus.streams import LOG, stream_table
from mesh.errors import Denied, MeshError
from mesh.ops.log import EventHeader, header_of, read_each
from mesh.ops.queue import Waiting, waiting_in
from mesh.ops.roster import Instance, breakers, fleet_of, inbox_state, instances, mesh_freeze
from mesh.service.logs import get_logger
from mesh.telemetry import gauges, tracing
from protocol.wire.config import Fleet
from protocol.wire.events import Ended, RequestFrozen, RequestThawed, type_of
from protocol.wire.ids import HUMAN
from protocol.wire.subjects import inbox

_log = get_logger(__name__)

PROBE_S = 15.0
"""How often agents, people and the log are probed (s)."""
_ELECTION_S = 1.0
"""How often a guard that does not probe checks whether it has become the one that does (s)."""
_SELDOM = 4
"""Probes from one that asks for instances to the next."""
_IDLE = 4
"""After reading a part of the log, nothing is read for this many times as long: an old log takes a fifth of a
core."""
MOST_VERSIONS = 16
"""Versions of an agent that a process shows; further ones are `other`. An agent may report any."""
_VERSION_CHARS = 64
_OTHER = "other"
_AT_ONCE = 32
_BREAKER = {"closed": 0.0, "half_open": 0.5, "open": 1.0}
_STATUSES = ("open", *(type_of(kind).partition(".")[2] for kind in Ended.__args__))
_FROZEN, _THAWED = type_of(RequestFrozen), type_of(RequestThawed)


class LogTally:
    """Requests of a log by status, kept up to date event by event.

    A request that ended is only a number: where its end is in the log, and how it ended. So it is known when
    the log no longer has it.
    """

    def __init__(self) -> None:
        self.last = 0
        """The newest event that was added."""
        self.open: dict[str, int] = {}
        """Open requests, with the sequence of the newest event."""
        self.frozen: set[str] = set()
        self.asked: set[str] = set()
        """Open requests in which something was addressed to people."""
        self._ends = array("Q")
        self._gone = 0
        """How many of these the log no longer has."""
        self._ended = Counter[int]()

    def take(self, stored: StoredMessage, seen: EventHeader | None) -> None:
        """Add the next event; None if it cannot be read, which changes nothing."""
        self.last = stored.seq
        if seen is None:
            return
        if seen.is_end:
            self._forget(seen.request)
            status = _STATUSES.index(seen.type.partition(".")[2])
            self._ends.append(stored.seq * len(_STATUSES) + status)
            self._ended[status] += 1
            return
        self.open[seen.request] = stored.seq
        if seen.to == HUMAN:
            self.asked.add(seen.request)
        if seen.type == _FROZEN:
            self.frozen.add(seen.request)
        elif seen.type == _THAWED:
            self.frozen.discard(seen.request)

    def trim(self, first: int) -> None:
        """Remove what the log, which now begins at `first`, no longer has."""
        while self._gone < len(self._ends) and self._ends[self._gone] // len(_STATUSES) < first:
            self._ended[self._ends[self._gone] % len(_STATUSES)] -= 1
            self._gone += 1
        if self._gone > len(self._ends) // 2:
            del self._ends[: self._gone]
            self._gone = 0
        for request in [name for name, seq in self.open.items() if seq < first]:
            self._forget(request)

    def _forget(self, request: str) -> None:
        self.open.pop(request, None)
        self.frozen.discard(request)
        self.asked.discard(request)

    def by_status(self) -> dict[str, int]:
        """Return the number of requests with each status, including zeros."""
        return {
            status: len(self.open) if status == "open" else self._ended[number]
            for number, status in enumerate(_STATUSES)
        }


class MeshGauges:
    """Probes a mesh and shows its state, while `is_elected` returns True.

    Args:
        bus: a guard's connection, or the admin's.
        every_s: from the beginning of a probe to the next.
    """

    def __init__(self, bus: Bus, is_elected: Callable[[], bool], every_s: float = PROBE_S) -> None:
        self._bus, self._is_elected, self._every_s = bus, is_elected, every_s
        self._tally: LogTally | None = None
        self._counting: asyncio.Task[None] | None = None
        self._waiting: dict[str, tuple[int, list[Waiting]]] = {}
        """By request: the event up to which it was read, and what waited then."""
        self._versions: dict[str, set[str]] = {}
        self._probes = 0
        self._trouble = ""

    async def keep(self) -> None:
        """Probe repeatedly until cancelled. Any error is logged once, and stops nothing."""
        try:
            while True:
                began = time.monotonic()
                every_s = self._every_s if await self.probe_if_elected() else _ELECTION_S
                await asyncio.sleep(max(0.0, began + every_s - time.monotonic()))
        finally:
            self._stop()

    async def probe_if_elected(self) -> bool:
        """Probe once if this guard is elected; otherwise show nothing. Return True if it probed."""
        if not self._is_elected():
            self._stop()
            self._tally = None
            return False
        try:
            await self.probe()
        except Exception as error:  # any error: a guard decides, and the gauges are a by-product
            self._stop()
            code = error.code if isinstance(error, MeshError) else type(error).__name__
            if code != self._trouble:
                hint = {"hint": "run `mesh setup`, and reload the server"} if type(error) is Denied else {}
                _log.warning("gauges_not_shown", code=code, detail=str(error), **hint)
            self._trouble = code
        else:
            if self._trouble:
                _log.info("gauges_shown")
            self._trouble = ""
        return True

    def _stop(self) -> None:
        """Show nothing, and begin anew with the next probe."""
        if self._counting is not None:
            self._counting.cancel()
        self._counting, self._probes = None, 0
        for table in gauges.OF_MESH:
            table.clear()

    async def probe(self) -> None:
        """Probe everything, and show it; what comes from the log later, if there is much to read.

        Raises BusError, NotFound, DocumentInvalid.
        """
        fleet = await fleet_of(self._bus)
        gauges.revision.show([({}, fleet.revision)])
        await self._probe_inboxes(fleet)
        current = await mesh_freeze(self._bus)
        gauges.frozen.show([({}, float(current.frozen))])
        open_ = {each.agent: _BREAKER[each.state] for each in await breakers(self._bus)}
        gauges.breaker_open.show((_of(name), open_.get(name, 0.0)) for name in fleet.agents)
        if self._probes % _SELDOM == 0:
            await self._probe_instances(fleet)
            await self._probe_streams(fleet)
        self._probes += 1
        if self._counting is None:
            self._counting = asyncio.create_task(self._probe_log(fleet))
        counted, _ = await asyncio.wait({self._counting}, timeout=self._every_s)
        if counted:
            self._counting = None
            await counted.pop()

    # --- agents -----------------------------------------------------------------------------------

    async def _probe_inboxes(self, fleet: Fleet) -> None:
        room = asyncio.Semaphore(_AT_ONCE)

        async def one(agent: str) -> tuple[int, float]:
            async with room:
                count, from_seq = await inbox_state(self._bus, agent)
                oldest = await batch(self._bus, LOG, inbox(agent), from_seq, 1) if count else []
            return count, max(0.0, time.time() - oldest[0].at / 1e6) if oldest else 0.0

        found = await asyncio.gather(*map(one, fleet.agents))
        states = list(zip(map(_of, fleet.agents), found, strict=True))
        gauges.agent_waiting.show((labels, count) for labels, (count, _) in states)
        gauges.agent_oldest.show((labels, age) for labels, (_, age) in states)

    async def _probe_instances(self, fleet: Fleet) -> None:
        found = await instances(self._bus, fleet.agents)
        if found is None:
            raise Denied("ask", "which agents are served")
        counts = {(agent, ""): 0 for agent in fleet.agents if not found[agent]}
        counts |= Counter((name, self._version(name, each)) for name in found for each in found[name])
        gauges.agent_instances.show(
            ({**_of(agent), gauges.VERSION: version}, count) for (agent, version), count in counts.items()
        )

    def _version(self, agent: str, instance: Instance) -> str:
        """Return the version that an instance reports, unless too many others were reported before."""
        version, known = instance.version[:_VERSION_CHARS], self._versions.setdefault(agent, set())
        if version.isprintable() and len(known) < MOST_VERSIONS:
            known.add(version)
        return version if version in known else _OTHER

    async def _probe_streams(self, fleet: Fleet) -> None:
        """Show the fullest stream of each kind: members have streams of their own, too many to show."""
        there, fullest = await listing(self._bus), dict[str, float]()
        for stream in there.streams.keys() & stream_table(fleet).keys():
            kind = stream.partition("-")[0]
            for each in there.used(stream):
                fullest[kind] = max(fullest.get(kind, 0.0), each.share)
        gauges.stream_used.show(({gauges.STREAM: kind}, share) for kind, share in fullest.items())

    # --- requests and people ----------------------------------------------------------------------

    async def _probe_log(self, fleet: Fleet) -> None:
        tally = self._tally or LogTally()
        self._tally = None  # until it is complete again
        await self._read(tally)
        self._tally = tally
        statuses = tally.by_status()
        gauges.requests.show(({tracing.STATUS: status}, count) for status, count in statuses.items())
        gauges.frozen_requests.show([({}, len(tally.frozen))])
        await self._probe_people(fleet, tally)

    async def _read(self, tally: LogTally) -> None:
        """Read what is new in the log, with pauses. Raises BusError."""
        began = time.process_time()
        while part := await batch(self._bus, LOG, None, tally.last + 1):
            for each in part:
                tally.take(each, header_of(each.data))
            await asyncio.sleep(_IDLE * (time.process_time() - began))
            began = time.process_time()
        first = await batch(self._bus, LOG, None, 1, 1)
        tally.trim(first[0].seq if first else tally.last + 1)

    async def _probe_people(self, fleet: Fleet, tally: LogTally) -> None:
        asked = {request: tally.open[request] for request in tally.asked}
        changed = [name for name, seq in asked.items() if self._waiting.get(name, (0,))[0] != seq]
        for request, happened in (await read_each(self._bus, changed)).items():
            self._waiting[request] = (asked[request], waiting_in(happened) if happened else [])
        self._waiting = {name: kept for name, kept in self._waiting.items() if name in asked}
        kinds = dict.fromkeys(((kind, tier) for kind, tier in _kinds(fleet)), (0, 0, 0))
        now = time.time_ns() // 1000
        for each in (one for _, found in self._waiting.values() for one in found):
            key = (each.what, fleet.tier_for(each.tier))
            count, oldest, urgent = kinds.get(key, (0, 0, 0))
            kinds[key] = (count + 1, max(oldest, now - each.since), urgent + each.is_urgent(now))
        labelled = [({tracing.KIND: kind, gauges.TIER: tier}, found) for (kind, tier), found in kinds.items()]
        gauges.people_waiting.show((labels, count) for labels, (count, _, _) in labelled)
        gauges.people_oldest.show((labels, oldest / 1e6) for labels, (_, oldest, _) in labelled)
        gauges.people_urgent.show((labels, urgent) for labels, (_, _, urgent) in labelled)


def _of(agent: str) -> dict[str, str]:
    return {tracing.AGENT: agent}


def _kinds(fleet: Fleet) -> Iterable[tuple[str, str]]:
    """Yield each kind of decision with each tier that may have it, so that no series is missing."""
    for tier in fleet.tiers or ("",):
        yield "escalation", tier
    for kind in ("ask", "doubt"):
        yield kind, fleet.tier_for(0)
