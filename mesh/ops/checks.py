"""What `mesh doctor` checks below the mesh: the nats-servers, the lane, clocks, and who fills the log.

A stream keeps a message on a number of servers (`num_replicas`), and a majority of them acknowledges it. Each
server's own `sync_interval` determines when it writes a message to its disk; only its monitoring shows that.
The word *durable* is used only for a server that was seen to fsync each message.
"""

import asyncio
import contextlib
import json
import time
import urllib.request
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple
from urllib.parse import urlsplit

import msgspec

from mesh.bus.connection import Bus
from mesh.bus.credentials import TlsFiles
from mesh.bus.lane import Clocks, ping, statistics
from mesh.bus.reader import StoredMessage, batch, bounds, listing, microseconds
from mesh.bus.roles import GUARD
from mesh.bus.streams import TIMERS, queue_consumer, stream_table
from mesh.errors import BusError, Denied, Impossible, NoResponders, UsageWrong
from mesh.fleet.handover import HandoverFailed, lacking_accounts
from mesh.guard.clock import MOST_US
from mesh.ops import conf
from mesh.ops.roster import fleet_of
from mesh.service.printable import when
from protocol.wire import codec, subjects
from protocol.wire.ids import submitter_of

_TIMEOUT_S = 5.0
_SHOWN = 3
SPANS = {"hour": 3600.0, "day": 86_400.0}

State = Literal["ok", "found", "unknown"]
"""`found`: something is wrong. `unknown`: these credentials or this server cannot tell."""
Results = AsyncIterator[tuple[State, str]]
"""What a check yields: `found` for each fault, or a single `ok` or `unknown`, each with its text."""
Varz = Mapping[str, Any]
"""A server's own report under `/varz`."""


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


async def varz_of(monitors: str | None) -> list[Varz]:
    """Return the report of each server whose monitoring answers, given URLs separated by commas.

    Raises UsageWrong for an invalid URL.
    """
    addresses = [url.strip().rstrip("/") for url in (monitors or "").split(",") if url.strip()]
    urls = [web_url(url, "--monitor") for url in addresses]
    answers = await asyncio.gather(*(asyncio.to_thread(_varz, url) for url in urls))
    return [answer for answer in answers if answer is not None]


def _varz(url: str) -> Varz | None:
    with (
        contextlib.suppress(OSError, ValueError),
        urllib.request.urlopen(f"{url}/varz", timeout=_TIMEOUT_S) as answer,
    ):
        return dict(json.load(answer))
    return None


async def durability(bus: Bus, seen: Sequence[Varz]) -> Results:
    """Find crashes that would lose messages.

    Args:
        seen: reports of the servers whose monitoring answered.
    """
    replicas, holders, behind, silent = dict[str, int](), dict[str, None](), set[str](), list[str]()
    streams = stream_table(await fleet_of(bus))
    listed = await listing(bus)
    for stream in streams:
        try:
            info = listed.info(stream)
        except NoResponders:
            silent.append(stream)
            continue
        replicas[stream] = int(info["config"]["num_replicas"])
        cluster = info.get("cluster", {})
        others = cluster.get("replicas", ())
        holders |= dict.fromkeys(filter(None, (cluster.get("leader"), *(each["name"] for each in others))))
        behind |= {each["name"] for each in others if each.get("offline") or not each["current"]}
    if silent:
        yield "found", f"nobody answers for {', '.join(silent)}: no server of theirs is up, or they elect"
    if not (log := replicas.get("LOG", 0)):
        return
    if fewer := [f"{stream} ({count})" for stream, count in replicas.items() if count < log]:
        yield "found", f"kept by fewer servers than the log ({log}): {', '.join(fewer)}; run `mesh setup`"
    if behind:
        yield "found", f"away, or without everything yet: {', '.join(sorted(behind))}"
    yield _synced(log, holders, {name_of(server): server for server in seen})


def _synced(replicas: int, holders: Iterable[str], seen: Mapping[str, Varz]) -> tuple[State, str]:
    by = f"the log is kept by {'one server' if replicas == 1 else f'{replicas} servers'}"
    if not seen:
        return "unknown", f"{by}; name the monitoring of each (--monitor URL,URL) to see sync_interval"
    holders = tuple(holders) or tuple(seen)
    configs = {name: config_of(seen[name]) for name in holders if name in seen}
    hidden = ", ".join(name for name in holders if name not in seen)
    unseen = f"; not seen: {hidden} (--monitor takes several URLs)" if hidden else ""
    lazy = [
        f"{name} ({int(config.get('sync_interval', 0)) / 1e9:g} s)"
        for name, config in configs.items()
        if not config.get("sync_always")
    ]
    if lazy:
        return "found", (
            f"not fsynced before it is acknowledged (sync_interval of {', '.join(lazy)}), {by}: "
            f"what was acknowledged last can be lost when {_loses(replicas)}{unseen}"
        )
    if hidden:
        return "unknown", f"{by}; sync_interval is always on {', '.join(configs) or 'none of them'}{unseen}"
    return "ok", f"durable: sync_interval always, {by}; {_survives(replicas)}"


def _loses(replicas: int) -> str:
    return "a machine stops" if replicas == 1 else "machines stop at once, or one before the others have it"


def _survives(replicas: int) -> str:
    """Describe how many disks may be lost: a majority has every acknowledged message."""
    spare = (replicas - 1) // 2
    if not spare:
        return "the loss of a disk is the loss of what is on it" if replicas == 1 else "no disk may be lost"
    return f"{'a disk' if spare == 1 else f'{spare} disks'} may be lost"


class KeyFile(NamedTuple):
    """The file with the members' keys, which each server includes."""

    path: str
    written_at: int
    """UTC µs."""


def key_file(path: Path, known: str) -> KeyFile | None:
    """Return the file with the members' keys; None if it is not here, or is another mesh's.

    Args:
        known: public key of a member of this mesh.
    """
    if not path.is_file() or known not in path.read_text():
        return None
    return KeyFile(str(path), path.stat().st_mtime_ns // 1000)


class SignedAccounts(NamedTuple):
    """Where the claims are that the servers should have, and how to ask the servers for theirs."""

    url: str
    directory: Path
    tls: TlsFiles


async def reloaded(seen: Sequence[Varz], keys: KeyFile | SignedAccounts | None) -> Results:
    """Find servers that do not have the members' keys as they were written here.

    Args:
        seen: reports of the servers whose monitoring answered.
    """
    if keys is None:
        return
    if isinstance(keys, SignedAccounts):
        async for each in _handed_over(keys):
            yield each
        return
    if not seen:
        yield (
            "unknown",
            f"name the monitoring of the servers (--monitor URL,URL) to see who has {keys.path}",
        )
    for server in seen:
        try:
            read_at = microseconds(str(server["config_load_time"]))
        except (KeyError, ValueError):
            yield "unknown", f"{name_of(server)} does not say when it read its configuration"
            continue
        if read_at < keys.written_at:
            file = f"{keys.path} of {when(keys.written_at)}"
            yield "found", f"{name_of(server)} has not read {file}, only what was there at {when(read_at)}"


async def _handed_over(signed: SignedAccounts) -> Results:
    """Find accounts whose claims the servers lack."""
    try:
        lacking = await lacking_accounts(*signed)
    except (Impossible, BusError) as unseen:
        yield "unknown", f"the servers' accounts cannot be compared: {unseen}"
    except HandoverFailed as older:
        yield "found", str(older)
    else:
        if lacking:
            yield "found", f"the servers lack the accounts of {some(lacking)}: run `mesh setup --out`"


def name_of(varz: Varz) -> str:
    """Return a server's name, or its id if it has none."""
    return str(varz.get("server_name") or varz.get("server_id") or "?")


def config_of(varz: Varz) -> Mapping[str, Any]:
    """Return how a server's JetStream is configured."""
    return dict((varz.get("jetstream") or {}).get("config") or {})


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
    for guard, state in states.items():
        if state == "denied":
            so = "the server's accounts are older, so that every message is stored first"
            yield (
                "found",
                f"guard {guard} may take no questions: {so}; run `mesh setup`, and reload the server",
            )
        elif state == "paused":
            yield "ok", f"guard {guard} takes no questions while the mesh is frozen"
        elif state != "open":
            yield "found", f"guard {guard} takes no questions ({state}): every message is stored first"
    if taking := [guard for guard, state in states.items() if state == "open"]:
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
