"""A mesh looked over: server, streams, durability, limits, guards, dead letters, clocks, and its fleet.

A check never guesses: what these credentials or this server cannot tell is `unknown`, and the word
*durable* is used only of a server that was seen to fsync each message. A stream keeps a message on so many
servers (`num_replicas`), and a majority of them acknowledges it. Each server's own `sync_interval` says when
it puts a message on its disk; only its monitoring shows that.
"""

import asyncio
import json
import time
import urllib.request
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from mesh.bus.connection import Bus
from mesh.bus.reader import microseconds
from mesh.bus.roles import ADMIN
from mesh.bus.streams import CONTROLS, QUEUE_CONSUMERS, TIMERS, is_journal_stream, kind_of, stream_names
from mesh.errors import ApiError, BusError, Denied, MeshError, NotFound, ProtocolError
from mesh.fleet.file import FleetFile
from mesh.fleet.setup import apply
from mesh.ops import fleet_health
from mesh.ops.fleet_health import Finding, found, ok, unknown
from mesh.ops.roster import fleet_of
from mesh.settings import Access

OLDEST_SERVER = (2, 12)
FULL = 0.8
"""Share of a limit from which on it is worth a word."""
MOST_TIMER_BYTES = 256 << 20
"""Of schedules: about half a million open requests. The server takes no limit for a stream of schedules."""
LEAST_FOR_LOG = 1 << 30
"""Bytes of a store that no other stream's limit should claim: the log has what the others leave."""
SKEW_S = 1.0
_TIMEOUT_S = 5.0
_DURABILITY = "durability"
_TELLING = {"streams", "guards", "dead letters"}
"""Checks that every viewer can make."""

Varz = Mapping[str, Any]
"""What a server's monitoring says of it under `/varz`."""


async def examine(access: Access, fleet: FleetFile | None, monitor: str | None) -> list[Finding]:
    """Return the results of all checks, in order; fewer when there is no way on the bus.

    Args:
        fleet: the fleet file to compare the server with, as the admin.
        monitor: URLs of the servers' monitoring, separated by commas, as far as they are known.

    Raises Unreachable, AuthenticationFailed, NoCredentials.
    """
    findings = [await _server(access.url)]
    async with await access.connect() as bus:
        findings.append(ok("connection", f"{access.url} as {access.name}"))
        varz = await varz_of(monitor)
        looks: tuple[tuple[str, Callable[[], AsyncIterator[Finding]]], ...] = (
            ("streams", lambda: _streams(bus, access.name, fleet)),
            ("documents", lambda: fleet_health.readable(bus)),
            ("durability", lambda: _durability(bus, varz)),
            ("limits", lambda: _limits(bus, varz)),
            ("guards", lambda: _guards(bus)),
            ("agents", lambda: fleet_health.agents(bus)),
            ("rules", lambda: fleet_health.rules(bus)),
            ("breakers", lambda: fleet_health.breakers(bus)),
            ("freeze", lambda: fleet_health.frozen(bus)),
            ("dead letters", lambda: _dead(bus)),
            ("prices", lambda: fleet_health.prices(bus)),
            ("clock", lambda: _clock(bus)),
        )
        for check, look in looks:
            try:
                findings += [finding async for finding in look()]
            except Denied as denied:
                findings.append(unknown(check, f"{access.name} may not ask: {denied}"))
            except ApiError as error:
                findings.append(found(check, f"{error.description} ({error.err_code}); run `mesh setup`"))
            except (NotFound, BusError, ProtocolError) as error:
                findings.append(found(check, str(error)))
    return findings


def cannot_look(findings: Iterable[Finding]) -> bool:
    """Say whether nothing was told of what makes a mesh work: that nothing is found then means nothing."""
    states = {finding.check: finding.state for finding in findings if finding.check in _TELLING}
    return set(states) == _TELLING and set(states.values()) == {"unknown"}


async def _server(url: str) -> Finding:
    """Read the greeting that a server sends before it asks who one is."""
    address = urlsplit(url.partition(",")[0] if "://" in url else f"nats://{url.partition(',')[0]}")
    try:
        async with asyncio.timeout(_TIMEOUT_S):
            reader, writer = await asyncio.open_connection(
                address.hostname, address.port or 4222, limit=1 << 20
            )
            greeting = await reader.readline()
            writer.close()
            await writer.wait_closed()
        said = json.loads(greeting.partition(b" ")[2])
        version = str(said["version"])
        numbers = tuple(int(part) for part in version.split("-")[0].split(".")[:2])
    except (OSError, TimeoutError, ValueError, LookupError, TypeError):
        return unknown("server", f"{url} did not greet as a NATS server does")
    if numbers < OLDEST_SERVER:
        return found(
            "server", f"nats-server {version}; this needs {'.'.join(map(str, OLDEST_SERVER))} or newer"
        )
    if not said.get("jetstream"):
        return found("server", f"nats-server {version} runs without JetStream")
    return ok("server", f"nats-server {version} with JetStream")


async def _streams(bus: Bus, name: str, fleet: FleetFile | None) -> AsyncIterator[Finding]:
    if name == ADMIN and fleet is not None:
        try:
            changes = await apply(bus, fleet, dry_run=True)
        except BusError:
            raise
        except MeshError as unsafe:
            yield found("streams", f"{unsafe} [{unsafe.code}]")
            return
        for change in changes:
            yield found("streams", f"`mesh setup` would {change.action} {change.what}")
        if not changes:
            yield ok("streams", "streams, consumers, fleet and policies are as the fleet file wants them")
        return
    fleet_there = await fleet_of(bus)
    missing = [stream for stream in stream_names(fleet_there) if await _info(bus, stream) is None]
    if missing:
        yield found("streams", f"missing: {', '.join(missing)}; run `mesh setup`")
    else:
        yield ok("streams", "all there; whether they are right only the admin can tell, with the fleet file")


async def _info(bus: Bus, stream: str) -> dict[str, Any] | None:
    try:
        return await bus.api(f"STREAM.INFO.{stream}")
    except ApiError:
        return None


async def _durability(bus: Bus, varz: Sequence[Varz]) -> AsyncIterator[Finding]:
    async for finding in durability(bus, stream_names(await fleet_of(bus)), varz):
        yield finding


async def _limits(bus: Bus, varz: Sequence[Varz]) -> AsyncIterator[Finding]:
    near = []
    is_log_limited = False
    for stream in stream_names(await fleet_of(bus)):
        info = await bus.api(f"STREAM.INFO.{stream}")
        config, state = info["config"], info["state"]
        for limit, used in (("max_bytes", state["bytes"]), ("max_msgs", state["messages"])):
            most = int(config.get(limit, -1))
            if most > 0 and used >= FULL * most:
                room = ": mesh log trim-steps" if is_journal_stream(stream) else ""
                near.append(f"{stream} has {used} of {limit} {most} ({used / most:.0%}){room}")
        if stream == "LOG":
            is_log_limited = int(config.get("max_bytes", -1)) > 0
        if stream == TIMERS and state["bytes"] > MOST_TIMER_BYTES:
            near.append(f"{TIMERS}, which can have no limit, has {state['bytes']} bytes")
    for server in varz:
        jetstream = server.get("jetstream") or {}
        most = int((jetstream.get("config") or {}).get("max_storage", 0))
        stats = jetstream.get("stats") or {}
        used, promised = int(stats.get("storage", 0)), int(stats.get("reserved_storage", 0))
        store = f"the store of {name_of(server)}"
        if most > 0 and used >= FULL * most:
            near.append(f"{store} has {used} of {most} bytes ({used / most:.0%})")
        if most > 0 and not is_log_limited and most - promised < LEAST_FOR_LOG:
            near.append(
                f"{store} has {most} bytes, and {promised} are promised to others than LOG: give it a larger "
                "store (max_file_store), or LOG room of its own (max_bytes under [log] in the fleet file)"
            )
    for line in near:
        yield found("limits", line)
    if not near:
        yield ok("limits", f"every stream is below {FULL:.0%} of its limits")


async def _guards(bus: Bus) -> AsyncIterator[Finding]:
    # While the mesh is frozen, control messages alone are taken.
    queues = [name for name in stream_names(await fleet_of(bus)) if kind_of(name) == CONTROLS]
    without = [name for name in queues if not await _is_served(bus, name)]
    if without:
        yield found("guards", f"no guard takes from {', '.join(without)}; run `mesh guard run`")
    else:
        yield ok("guards", "every queue is served")


async def _is_served(bus: Bus, queue: str) -> bool:
    asked = [f"CONSUMER.INFO.{queue}.{consumer}" for consumer in QUEUE_CONSUMERS]
    return all([int((await bus.api(verb))["num_waiting"]) for verb in asked])


async def _dead(bus: Bus) -> AsyncIterator[Finding]:
    count = int((await bus.api("STREAM.INFO.DEAD"))["state"]["messages"])
    if count:
        letters = "is 1 dead letter" if count == 1 else f"are {count} dead letters"
        yield found("dead letters", f"there {letters}: mesh dead ls")
    else:
        yield ok("dead letters", "none")


async def _clock(bus: Bus) -> AsyncIterator[Finding]:
    before = time.time()
    said = (await bus.api("STREAM.INFO.LOG")).get("ts")
    after = time.time()
    if not said:
        yield unknown("clock", "the server does not say what time it has")
        return
    theirs = microseconds(said) / 1e6
    skew = max(before - theirs, theirs - after, 0.0)
    if skew > SKEW_S:
        yield found("clock", f"the server's clock and this machine's are {skew:.1f} s apart")
    else:
        yield ok("clock", f"the server's clock and this machine's agree within {SKEW_S:g} s")


# --- what outlives a crash ------------------------------------------------------------------------


async def varz_of(monitors: str | None) -> list[Varz]:
    """Return what each server says whose monitoring answers, of URLs separated by commas."""
    urls = [url.strip().rstrip("/") for url in (monitors or "").split(",") if url.strip()]
    answers = await asyncio.gather(*(asyncio.to_thread(_varz, url) for url in urls))
    return [answer for answer in answers if answer is not None]


def _varz(url: str) -> Varz | None:
    try:
        with urllib.request.urlopen(f"{url}/varz", timeout=_TIMEOUT_S) as answer:
            return dict(json.load(answer))
    except (OSError, ValueError):
        return None


class Place(NamedTuple):
    """Where a stream lies."""

    stream: str
    replicas: int
    servers: tuple[str, ...]
    """Names of those that have it; none where the server does not say."""
    behind: tuple[str, ...]
    """Of these, who is away or has not everything yet."""


async def place_of(bus: Bus, stream: str) -> Place:
    """Return where a stream lies. Raises BusError."""
    info = await bus.api(f"STREAM.INFO.{stream}")
    cluster = info.get("cluster") or {}
    others = cluster.get("replicas") or ()
    names = [cluster.get("leader") or "", *(str(other.get("name", "")) for other in others)]
    behind = (str(other.get("name", "")) for other in others if other.get("offline") or not other["current"])
    return Place(
        stream, int(info["config"]["num_replicas"]), tuple(filter(None, names)), tuple(sorted(behind))
    )


async def durability(bus: Bus, streams: Sequence[str], varz: Sequence[Varz]) -> AsyncIterator[Finding]:
    """Say what is kept through which crash. Raises BusError.

    Args:
        streams: those whose messages are acknowledged; the log is among them.
        varz: of the servers whose monitoring answered.
    """
    places = [await place_of(bus, stream) for stream in streams]
    log = next(place for place in places if place.stream == "LOG")
    fewer = [f"{place.stream} ({place.replicas})" for place in places if place.replicas < log.replicas]
    if fewer:
        yield found(
            _DURABILITY,
            f"kept by fewer servers than the log ({log.replicas}): {', '.join(fewer)}; run `mesh setup`",
        )
    behind = sorted({name for place in places for name in place.behind})
    if behind:
        yield found(_DURABILITY, f"away, or without everything yet: {', '.join(behind)}")
    holders = dict.fromkeys(name for place in (log, *places) for name in place.servers)
    yield _synced(log.replicas, tuple(holders), {name_of(server): server for server in varz})


def _synced(replicas: int, holders: Sequence[str], seen: Mapping[str, Varz]) -> Finding:
    by = f"the log is kept by {_servers(replicas)}"
    if not seen:
        return unknown(
            _DURABILITY, f"{by}; name the monitoring of each (--monitor URL,URL) to see sync_interval"
        )
    holders = holders or tuple(seen)
    lazy = [
        f"{name} ({_interval(seen[name])})" for name in holders if name in seen and not _always(seen[name])
    ]
    hidden = [name for name in holders if name not in seen]
    if lazy:
        return found(
            _DURABILITY,
            f"not fsynced before it is acknowledged (sync_interval of {', '.join(lazy)}), {by}: "
            f"what was acknowledged last can be lost when {_loses(replicas)}{_unseen(hidden)}",
        )
    if hidden:
        shown = ", ".join(name for name in holders if name in seen) or "none of them"
        return unknown(_DURABILITY, f"{by}; sync_interval is always on {shown}{_unseen(hidden)}")
    return ok(_DURABILITY, f"durable: sync_interval always, {by}; {_survives(replicas)}")


def _loses(replicas: int) -> str:
    if replicas == 1:
        return "a machine stops"
    return f"machines stop at the same time, or one stops before the other {replicas - 1} have it all"


def _survives(replicas: int) -> str:
    """Return how many disks may be lost: a majority has every acknowledged message."""
    spare = (replicas - 1) // 2
    if not spare:
        return "the loss of a disk is the loss of what is on it" if replicas == 1 else "no disk may be lost"
    return f"{'a disk' if spare == 1 else f'{spare} disks'} may be lost"


def _unseen(hidden: Iterable[str]) -> str:
    names = ", ".join(hidden)
    return f"; not seen: {names} (--monitor takes several URLs)" if names else ""


def _servers(count: int) -> str:
    return "one server" if count == 1 else f"{count} servers"


def name_of(varz: Varz) -> str:
    """Return what a server is called."""
    return str(varz.get("server_name") or varz.get("server_id") or "?")


def _config(varz: Varz) -> Mapping[str, Any]:
    return dict((varz.get("jetstream") or {}).get("config") or {})


def _always(varz: Varz) -> bool:
    return bool(_config(varz).get("sync_always"))


def _interval(varz: Varz) -> str:
    return f"{int(_config(varz).get('sync_interval', 0)) / 1e9:g} s"
