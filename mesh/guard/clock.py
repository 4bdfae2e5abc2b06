"""The server's clock as a guard measures it, and the answers with which a guard shows that.

Every guard decides by the server's clock, whatever its own machine's clock shows. JetStream stamps each
stored message, fires each schedule, and puts its time into each answer to an API call. A guard measures the
offset from its own monotonic clock; the round trip bounds the error. In a cluster each server has a clock:
the median counts, and a difference that no round trip explains keeps the guard from being ready until a
person has fixed it.
"""

import asyncio
import contextlib
import datetime as dt
import time
from collections.abc import Callable
from functools import partial
from statistics import median_low
from typing import Any, NamedTuple

import msgspec

from mesh.bus.connection import TIMEOUT_S, Bus
from mesh.bus.lane import FORKS, Clocks
from mesh.bus.nats_protocol import Incoming
from mesh.bus.reader import microseconds
from mesh.bus.roles import GUARD, GUARD_ANSWERS
from mesh.bus.streams import TIMERS, queue_consumer
from mesh.errors import BusError, Denied
from mesh.service.conditions import Kind
from mesh.service.logs import get_logger

MEASURE_S = 5.0
MOST_US = 2_000_000
"""How far apart clocks may be, beyond what a round trip explains."""
_AGAIN_S = 1.0
_FORGET_US = 60_000_000
"""A server that has not answered for this long no longer counts: it may have left."""
_DRIFT = 500e-6
"""How fast two free-running clocks may drift apart. NTP slews a clock no faster."""
UNREAD = Kind("clock_unread", "clock_read", "the server's clock cannot be read")
DISAGREE = Kind(
    "clocks_disagree",
    "clocks_agree",
    "the clocks of the bus's servers are more than 2 s apart: run NTP on each of them (`mesh doctor`)",
    lasts=True,
)
JUMPED = Kind(
    "clock_jumped",
    "clock_steady",
    "a server's clock was set by more than 2 s: run NTP on each server of the bus (`mesh doctor`)",
)


def steady_clock_us() -> int:
    """Return µs of a clock that is never set and keeps running while the machine sleeps."""
    if hasattr(time, "CLOCK_BOOTTIME"):
        return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1000
    return time.monotonic_ns() // 1000


def wall_clock_us() -> int:
    """Return this machine's time (UTC µs). No decision uses it."""
    return time.time_ns() // 1000


class _Bounds(NamedTuple):
    """Bounds of how far one server's clock is ahead of ours (µs), and when that was measured (own µs)."""

    low: int
    high: int
    at: int

    def aged(self, now: int) -> "_Bounds":
        """Return the bounds at a later time, widened by the possible drift."""
        more = int(max(0, now - self.at) * _DRIFT)
        return self._replace(low=self.low - more, high=self.high + more)

    @property
    def middle(self) -> int:
        return (self.low + self.high) // 2

    def gap(self, other: "_Bounds") -> int:
        """Return the distance between two intervals; 0 or less if they overlap."""
        return max(self.low - other.high, other.low - self.high)


class ServerClock:
    """Calling it returns the server's time in UTC µs. It must not be used before the first measurement.

    Args:
        own: returns µs of a clock of this machine.
        wall: returns this machine's time (UTC µs), which is only reported.
    """

    def __init__(
        self,
        bus: Bus,
        own: Callable[[], int] = steady_clock_us,
        wall: Callable[[], int] = wall_clock_us,
    ) -> None:
        self._bus = bus
        self._own = own
        self._wall = wall
        self._servers: dict[str, _Bounds] = {}
        self._offset = 0
        self._again = asyncio.Event()

    def __call__(self) -> int:
        return self._own() + self._offset

    @property
    def apart_us(self) -> int:
        """How far apart the servers' clocks are, beyond what round trips explain."""
        known = [each.aged(self._own()) for each in self._servers.values()]
        return max([each.gap(other) for each in known for other in known], default=0)

    @property
    def measured(self) -> Clocks:
        """The newest measurement, for the people who run the machines."""
        known = [each.aged(self._own()) for each in self._servers.values()]
        within = max([(each.high - each.low + 1) // 2 for each in known], default=0)
        return Clocks(
            machine_ahead_us=self._wall() - self(), within_us=within, servers_apart_us=self.apart_us
        )

    async def start(self) -> None:
        """Measure for the first time, as soon as the bus answers."""
        while not await self._measured():
            await self._doubted(_AGAIN_S)

    async def keep(self) -> None:
        """Measure every `MEASURE_S`, and at once after an impossible time stamp. Runs until cancelled."""
        while True:
            await self._doubted(MEASURE_S)
            await self._measured()

    async def _doubted(self, most_s: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(most_s):
                await self._again.wait()
        self._again.clear()

    async def _measured(self) -> bool:
        try:
            await self.measure()
        except BusError as error:
            self._bus.conditions.raise_(UNREAD, code=error.code)
            return False
        self._bus.conditions.clear(UNREAD)
        return True

    async def measure(self) -> None:
        """Ask the server that keeps the timers for its time. Raises BusError."""
        await self.api(f"CONSUMER.INFO.{TIMERS}.{queue_consumer(0)}")

    async def api(self, verb: str, *, timeout_s: float = TIMEOUT_S) -> dict[str, Any]:
        """Return JetStream's answer, like `Bus.api`, and measure the clock by its time stamp."""
        before = self._own()
        answer = await self._bus.api(verb, timeout_s=timeout_s)
        stamp = answer.get("ts")
        if isinstance(stamp, str):
            server = str((answer.get("cluster") or {}).get("leader", ""))
            self._learn(server, microseconds(stamp), before, self._own())
        return answer

    def doubt(self) -> None:
        """Have the clocks measured again at once, because something contradicts the measurement."""
        self._again.set()

    def _learn(self, server: str, theirs: int, before: int, after: int) -> None:
        """Record that a server's clock was at `theirs` between two of our times (all in µs)."""
        found, known, jump = _Bounds(theirs - after, theirs - before, after), self._servers.get(server), 0
        if known is not None:
            known = known.aged(after)
            jump = found.gap(known)
            if jump <= 0:
                found = _Bounds(max(found.low, known.low), min(found.high, known.high), after)
        self._servers[server] = found
        self._servers = {name: each for name, each in self._servers.items() if after - each.at < _FORGET_US}
        self._offset = median_low([each.middle for each in self._servers.values()])
        self._report(JUMPED, jump, server=server)
        self._report(DISAGREE, self.apart_us)

    def _report(self, kind: Kind, apart_us: int, **known: str) -> None:
        if apart_us > MOST_US:
            self._bus.conditions.raise_(kind, apart_s=round(apart_us / 1e6, 1), **known)
        else:
            self._bus.conditions.clear(kind)


# --- what a guard answers -------------------------------------------------------------------------
# A guard answers `$SRV.PING.guard` and `$SRV.STATS.guard` in the format of NATS's ADR-32. No one else can: no
# other role may listen there, and no member may be named `guard`. So there is no stored entry to protect and
# clean up.

_log = get_logger(__name__)


class GuardPresence:
    """One guard's answers.

    Args:
        identity: the guard's identity.
        lane: returns the state of its lane.
    """

    def __init__(self, bus: Bus, identity: str, clock: ServerClock, lane: Callable[[], str]) -> None:
        self._bus = bus
        self._identity = identity
        self._clock = clock
        self._lane = lane
        self._started = dt.datetime.now(dt.UTC)

    async def announce(self) -> None:
        """Begin to answer. Waits while the bus is away."""
        for subject in GUARD_ANSWERS:
            try:
                await self._bus.retry_unavailable(partial(self._bus.subscribe, subject, self._answer))
            except Denied:  # a server whose accounts were written by an older version
                hint = "run `mesh setup`, and reload the server"
                _log.warning("clocks_not_shown", subject=subject, hint=hint)

    def _answer(self, message: Incoming) -> None:
        if message.reply:
            verb = message.subject.split(".")[1].lower()
            self._bus.send(message.reply, msgspec.json.encode(self._body(verb)))

    def _body(self, verb: str) -> dict[str, Any]:
        body = {
            "type": f"io.nats.micro.v1.{verb}_response",
            "name": GUARD,
            "id": self._identity,
            "version": "0.0.0",
            "metadata": {"role": GUARD, "lane": self._lane(), FORKS: "yes"},
        }
        if verb == "ping":
            return body
        started = self._started.isoformat(timespec="milliseconds").replace("+00:00", "Z")
        endpoint = {"name": "clocks", "subject": GUARD_ANSWERS[-1], "data": self._clock.measured}
        return body | {"started": started, "endpoints": [endpoint]}
