"""The nats-servers beneath a mesh: their monitoring, and which messages a crash can lose.

A stream keeps a message on so many servers (`num_replicas`), and a majority of them acknowledges it. Each
server's own `sync_interval` says when it puts a message on its disk; only its monitoring shows that. The word
*durable* is used only of a server that was seen to fsync each message.
"""

import asyncio
import contextlib
import json
import urllib.request
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from typing import Any, Literal
from urllib.parse import urlsplit

from mesh.bus.connection import Bus
from mesh.bus.reader import listing
from mesh.bus.streams import stream_table
from mesh.errors import NoResponders, UsageWrong
from mesh.ops.roster import fleet_of

_TIMEOUT_S = 5.0

State = Literal["ok", "found", "unknown"]
"""`found`: something is wrong. `unknown`: these credentials or this server cannot tell."""
Results = AsyncIterator[tuple[State, str]]
"""What a check yields: `found` for each thing that is wrong, or one `ok` or `unknown`, and why."""
Varz = Mapping[str, Any]
"""What a server's monitoring says of it under `/varz`."""


def web_url(url: str, option: str) -> str:
    """Return an HTTP URL without credentials. Raises UsageWrong for any other, without its text.

    The standard library takes `user:password@host` for the name of a host and asks the resolver for it.
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
    """Return what each server says whose monitoring answers, of URLs separated by commas.

    Raises UsageWrong for what is no such URL.
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
    """Find crashes through which messages are lost.

    Args:
        seen: of the servers whose monitoring answered.
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
    """Return how many disks may be lost: a majority has every acknowledged message."""
    spare = (replicas - 1) // 2
    if not spare:
        return "the loss of a disk is the loss of what is on it" if replicas == 1 else "no disk may be lost"
    return f"{'a disk' if spare == 1 else f'{spare} disks'} may be lost"


def name_of(varz: Varz) -> str:
    """Return a server's name, or its id if it has none."""
    return str(varz.get("server_name") or varz.get("server_id") or "?")


def config_of(varz: Varz) -> Mapping[str, Any]:
    """Return how a server's JetStream is configured."""
    return dict((varz.get("jetstream") or {}).get("config") or {})
