"""What `mesh doctor` checks below the mesh: what was changed, the lane, clocks, and who fills the log."""

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from typing import Literal, NamedTuple
from urllib.parse import urlsplit

import msgspec

from mesh.bus.connection import Bus
from mesh.bus.lane import Clocks, ping, statistics
from mesh.bus.reader import StoredMessage, batch, bounds, microseconds
from mesh.bus.roles import GUARD
from mesh.bus.streams import TIMERS, queue_consumer
from mesh.errors import Denied, UsageWrong
from mesh.guard.clock import MOST_US
from mesh.ops import conf
from mesh.ops.roster import fleet_of
from mesh.service.printable import when
from protocol.wire import codec, subjects
from protocol.wire.ids import submitter_of

_SHOWN = 3
SPANS = {"hour": 3600.0, "day": 86_400.0}

State = Literal["ok", "found", "unknown"]
"""`found`: something is wrong. `unknown`: these credentials or this server cannot tell."""
Results = AsyncIterator[tuple[State, str]]
"""What a check yields: `found` for each fault, or a single `ok` or `unknown`, each with its text."""


def web_url(url: str, option: str) -> str:
    """Return an HTTP URL without credentials. Raises UsageWrong for any other, without its text.

    The standard library takes `user:password@host` for a host's name and asks the resolver for it.
    """
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError:
        parts, host = urlsplit(""), None
    if "@" in parts.netloc:
        raise UsageWrong(
            f"{option} takes a URL without a user or password: they would be sent to the resolver"
        )
    if parts.scheme not in ("http", "https") or not host:
        raise UsageWrong(f"{option} takes a URL, http://… or https://…")
    return url


# --- what was changed -----------------------------------------------------------------------------

_LATELY_S = SPANS["day"]


def some(names: Sequence[str]) -> str:
    """Return the first of many names, and how many more there are."""
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return f"{', '.join(names[:_SHOWN])}{more}"


async def changed(bus: Bus) -> Results:
    """List recent changes: they are no faults, and often the cause of one."""
    for change in await conf.changes(bus, int((time.time() - _LATELY_S) * 1e6)):
        who = f" by {change.entry.by}" if change.entry.by else ""
        so = f"{change.entry.what} was changed at {when(change.entry.at)}{who} (revision {change.entry.rev})"
        yield "ok", f"{so}: {some(change.places) or 'nothing in it'}"


# --- guards, as they tell of themselves -----------------------------------------------------------


class _Endpoint(msgspec.Struct, frozen=True):
    data: Clocks


class _Guard(msgspec.Struct, frozen=True):
    """A guard's statistics."""

    id: str
    endpoints: tuple[_Endpoint, ...]
    metadata: Mapping[str, str] = {}


async def _guards(bus: Bus) -> list[_Guard]:
    """Return the guards that answer, by name. Raises Denied and Unreachable."""
    if await ping(bus, GUARD) is None:
        return []
    answers = [codec.readable(data, _Guard) for data in await statistics(bus, GUARD)]
    return sorted((each for each in answers if each is not None), key=lambda each: each.id)


async def guards_without(bus: Bus, what: str) -> list[str]:
    """Return the guards that do not say that they have something. Raises Denied and Unreachable."""
    return [each.id for each in await _guards(bus) if what not in each.metadata]


async def lane(bus: Bus) -> Results:
    """Yield whether guards take questions, or why every message is stored first."""
    if not (await fleet_of(bus)).lane:
        yield "ok", "off in the fleet file ([guard] lane): every message is stored first"
        return
    states = {each.id: each.metadata.get("lane", "unknown") for each in await _guards(bus)}
    taking = [guard for guard, state in states.items() if state == "open"]
    for guard, state in states.items():
        if state == "denied":
            so = "the server's accounts are older, so that every message is stored first"
            yield (
                "found",
                f"guard {guard} may take no questions: {so}; run `mesh setup`, and reload the server",
            )
        elif state == "paused":
            yield "ok", f"guard {guard} takes no questions while the mesh is frozen"
        elif state == "away" and taking:
            yield "ok", f"guard {guard} takes no questions: it ends, or lost its connection for them"
        elif state != "open":
            yield "found", f"guard {guard} takes no questions ({state}): every message is stored first"
    if taking:
        yield "ok", f"taken by {', '.join(taking)}"
    if not states:
        yield "unknown", "no guard tells"


# --- clocks ---------------------------------------------------------------------------------------
# A guard decides only by the server's clock. So a wrong clock on its machine harms no verdict, but it writes
# wrong times into logs and traces. Servers that disagree are worse, because all times depend on them.

SKEW_S = 1.0
"""How far this machine's clock may be from the server's."""


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
        there = await _guards(bus)
    except Denied:
        yield "unknown", f"{bus.name} may not ask guards what they measured: ask as an operator or the admin"
        return
    known = [(each.id, each.endpoints[0].data) for each in there if each.endpoints]
    for identity, measured in known:
        for found in _judged(identity, measured):
            yield found
    if not known:
        yield "unknown", "no guard says what it measured"


def _judged(identity: str, measured: Clocks) -> Iterator[tuple[State, str]]:
    ahead = measured.machine_ahead_us
    where = f"{abs(ahead) / 1e6:.3f} s {'behind' if ahead < 0 else 'ahead of'} the server's"
    reading = f"the clock of guard {identity} is {where} (measured to {measured.within_us / 1e6:.3f} s)"
    if abs(ahead) - measured.within_us > MOST_US:
        yield (
            "found",
            f"{reading}: run NTP on its machine; it decides by the server's clock, but logs by its own",
        )
    else:
        yield "ok", reading
    if measured.servers_apart_us > MOST_US:
        apart = (
            f"guard {identity} finds the clocks of the bus's servers {measured.servers_apart_us / 1e6:.1f} s"
        )
        yield "found", f"{apart} apart: run NTP on each of them"


# --- who fills the log ----------------------------------------------------------------------------
# Reading a whole day of a busy log takes minutes. A few hundred events, evenly spaced, estimate the shares to
# a few percent. The first event of a time span is found by bisection, since times in the log never decrease.

SAMPLE = 400
"""Events that are read in a span. If it has fewer, all are read."""
_SIDE_BY_SIDE = 50
_KIB, _MIB = 1 << 10, 1 << 20


class LogUse(NamedTuple):
    """The use of a span of the log: events, approximate bytes, and each sender's share (0 to 1)."""

    events: int
    bytes: int
    clients: Mapping[str, float]
    """By the client whose requests they belong to."""
    agents: Mapping[str, float]
    """By the agent whose proposal they answer. Messages of clients, people and guards are left out."""


class _Sender(msgspec.Struct):
    sender: str = ""


async def log_use(bus: Bus, span_s: float, sample: int = SAMPLE) -> LogUse:
    """Return the use of the last `span_s` of the log. Raises BusError."""
    oldest, last = await bounds(bus, "LOG")
    first = await _first_since(bus, int((time.time() - span_s) * 1e6), oldest, last)
    events = last - first + 1
    if not events:
        return LogUse(0, 0, {}, {})
    places = sorted({first + round(n * (events - 1) / max(1, sample - 1)) for n in range(sample)})
    turnstile = asyncio.Semaphore(_SIDE_BY_SIDE)

    async def one(seq: int) -> list[StoredMessage]:
        async with turnstile:
            return await batch(bus, "LOG", None, seq, 1)

    found = [message for part in await asyncio.gather(*map(one, places)) for message in part]
    clients, agents, read = Counter[str](), Counter[str](), 0
    for message in found:
        size, request = len(message.data), subjects.parse_evt(message.subject).request
        sender, client = codec.readable(message.data, _Sender), submitter_of(request)
        read += size
        clients[client] += size
        if sender is not None and sender.sender not in ("", client):
            agents[sender.sender] += size
    whole = max(1, read)
    return LogUse(
        events,
        round(read / max(1, len(found)) * events),
        {name: size / whole for name, size in clients.most_common()},
        {name: size / whole for name, size in agents.most_common()},
    )


async def _first_since(bus: Bus, since: int, first: int, last: int) -> int:
    """Return the place of the first event stored at `since` (UTC µs) or later; `last + 1` if none was."""
    low, high = first, last + 1
    while low < high:
        middle = (low + high) // 2
        found = await batch(bus, "LOG", None, middle, 1)
        if found and found[0].at < since:
            low = found[0].seq + 1
        else:
            high = middle
    return low


async def who_fills_it(bus: Bus) -> Results:
    """Yield a sentence on each span."""
    for name, span_s in SPANS.items():
        use = await log_use(bus, span_s)
        if use.events:
            total = f"in the last {name} {use.events} events, about {_size(use.bytes)}"
            yield "ok", f"{total}; by client: {_parts(use.clients)}; by agent: {_parts(use.agents)}"


def _parts(shares: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {share:.0%}" for name, share in list(shares.items())[:_SHOWN]) or "none"


def _size(bytes_: int) -> str:
    return f"{bytes_ / _MIB:.1f} MiB" if bytes_ >= _MIB else f"{bytes_ / _KIB:.1f} KiB"
