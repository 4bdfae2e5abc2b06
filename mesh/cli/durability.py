"""What of an acknowledged message outlives a crash, as far as the servers show it.

A stream keeps a message on so many servers (`num_replicas`), and a majority of them acknowledges it.
When each of them puts it on its disk, its own `sync_interval` says, which only its monitoring shows. What
was not seen is said to be unseen, and nothing is concluded from it.
"""

import asyncio
import json
import urllib.request
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from mesh.bus.connection import Bus
from mesh.ops.findings import Finding, found, ok, unknown

CHECK = "durability"
_TIMEOUT_S = 5.0

Varz = Mapping[str, Any]
"""What a server's monitoring says of it under `/varz`."""


async def seen(monitors: str | None) -> list[Varz]:
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


class Placement(NamedTuple):
    """Where a stream lies."""

    stream: str
    replicas: int
    servers: tuple[str, ...]
    """Names of those that have it; none where the server does not say."""
    behind: tuple[str, ...]
    """Of these, who is away or has not everything yet."""


async def kept(bus: Bus, stream: str) -> Placement:
    """Return where a stream lies. Raises BusError."""
    info = await bus.api(f"STREAM.INFO.{stream}")
    cluster = info.get("cluster") or {}
    others = cluster.get("replicas") or ()
    names = [cluster.get("leader") or "", *(str(other.get("name", "")) for other in others)]
    behind = (str(other.get("name", "")) for other in others if other.get("offline") or not other["current"])
    return Placement(
        stream, int(info["config"]["num_replicas"]), tuple(filter(None, names)), tuple(sorted(behind))
    )


async def durability(bus: Bus, streams: Sequence[str], varz: Sequence[Varz]) -> AsyncIterator[Finding]:
    """Say what is kept through which crash. Raises BusError.

    Args:
        streams: those whose messages are acknowledged; the log is among them.
        varz: of the servers whose monitoring answered.
    """
    places = [await kept(bus, stream) for stream in streams]
    log = next(place for place in places if place.stream == "LOG")
    fewer = [f"{place.stream} ({place.replicas})" for place in places if place.replicas < log.replicas]
    if fewer:
        yield found(
            CHECK,
            f"kept by fewer servers than the log ({log.replicas}): {', '.join(fewer)}; run `mesh setup`",
        )
    behind = sorted({name for place in places for name in place.behind})
    if behind:
        yield found(CHECK, f"away, or without everything yet: {', '.join(behind)}")
    holders = dict.fromkeys(name for place in (log, *places) for name in place.servers)
    yield _synced(log.replicas, tuple(holders), {name_of(server): server for server in varz})


def _synced(replicas: int, holders: Sequence[str], seen: Mapping[str, Varz]) -> Finding:
    by = f"the log is kept by {_servers(replicas)}"
    if not seen:
        return unknown(CHECK, f"{by}; name the monitoring of each (--monitor URL,URL) to see sync_interval")
    holders = holders or tuple(seen)
    lazy = [
        f"{name} ({_interval(seen[name])})" for name in holders if name in seen and not _always(seen[name])
    ]
    hidden = [name for name in holders if name not in seen]
    if lazy:
        return found(
            CHECK,
            f"not fsynced before it is acknowledged (sync_interval of {', '.join(lazy)}), {by}: "
            f"what was acknowledged last can be lost when {_loses(replicas)}{_unseen(hidden)}",
        )
    if hidden:
        shown = ", ".join(name for name in holders if name in seen) or "none of them"
        return unknown(CHECK, f"{by}; sync_interval is always on {shown}{_unseen(hidden)}")
    return ok(CHECK, f"durable: sync_interval always, {by}; {_survives(replicas)}")


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
