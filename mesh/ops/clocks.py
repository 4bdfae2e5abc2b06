"""Clocks that disagree: this machine's, each guard's machine's, and those of the bus's servers.

A guard decides by the server's clock alone. So a machine whose clock is wrong harms no verdict, but what it
writes into logs and traces has wrong times. Servers that disagree are worse: all times go by them.
"""

import time
from collections.abc import Iterator

import msgspec

from mesh.bus.connection import Bus
from mesh.bus.presence import Clocks, ping, statistics
from mesh.bus.reader import microseconds
from mesh.bus.roles import GUARD
from mesh.bus.streams import TIMERS, queue_consumer
from mesh.errors import Denied
from mesh.guard.clock import MOST_US
from mesh.ops.servers import Results, State
from protocol.wire import codec

SKEW_S = 1.0
"""How far this machine's clock may be from the server's."""


class _Endpoint(msgspec.Struct, frozen=True):
    data: Clocks


class _Guard(msgspec.Struct, frozen=True):
    """A guard's statistics, as far as they are about clocks."""

    id: str
    endpoints: tuple[_Endpoint, ...]


async def clocks(bus: Bus) -> Results:
    """Yield what is known of each clock."""
    before = time.time()
    stamp = (await bus.api(f"CONSUMER.INFO.{TIMERS}.{queue_consumer(0)}")).get("ts")
    after = time.time()
    if not stamp:
        yield "unknown", "the server does not say what time it has"
        return
    theirs = microseconds(stamp) / 1e6
    skew = max(before - theirs, theirs - after, 0.0)
    if skew > SKEW_S:
        yield "found", f"the server's clock and this machine's are {skew:.1f} s apart: run NTP on both"
    else:
        yield "ok", f"the server's clock and this machine's agree within {SKEW_S:g} s"
    try:
        there = await ping(bus, GUARD) is not None
    except Denied:
        yield "unknown", f"{bus.name} may not ask guards what they measured: ask as an operator or the admin"
        return
    guards = [codec.readable(data, _Guard) for data in await statistics(bus, GUARD)] if there else []
    known = sorted(
        (each.id, each.endpoints[0].data) for each in guards if each is not None and each.endpoints
    )
    for identity, measured in known:
        for found in _judged(identity, measured):
            yield found
    if not known:
        yield "unknown", "no guard says what it measured"


def _judged(identity: str, measured: Clocks) -> Iterator[tuple[State, str]]:
    ahead = measured.machine_ahead_us
    where = f"{abs(ahead) / 1e6:.3f} s {'behind' if ahead < 0 else 'ahead of'} the server's"
    told = f"the clock of guard {identity} is {where} (measured to {measured.within_us / 1e6:.3f} s)"
    if abs(ahead) - measured.within_us > MOST_US:
        yield (
            "found",
            f"{told}: run NTP on its machine; it decides by the server's clock, but logs by its own",
        )
    else:
        yield "ok", told
    if measured.servers_apart_us > MOST_US:
        apart = (
            f"guard {identity} finds the clocks of the bus's servers {measured.servers_apart_us / 1e6:.1f} s"
        )
        yield "found", f"{apart} apart: run NTP on each of them"
