"""What `mesh doctor` checks of the nats-servers: what a crash would lose, what a disk has lost, known keys.

A stream keeps a message on a number of servers (`num_replicas`), and a majority of them acknowledges it. Each
server's own `sync_interval` determines when it writes a message to its disk; only its monitoring shows that.
The word *durable* is used only for a server that was seen to fsync each message.
"""

import asyncio
import contextlib
import json
import urllib.request
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from mesh.bus.connection import Bus
from mesh.bus.credentials import TlsFiles
from mesh.bus.reader import Listing, listing, microseconds
from mesh.bus.streams import LOG, stream_table
from mesh.errors import BusError, Impossible, NoResponders
from mesh.fleet.handover import HandoverFailed, lacking_accounts
from mesh.ops.checks import Results, State, some, web_url
from mesh.ops.roster import fleet_of
from mesh.service.printable import when

_TIMEOUT_S = 5.0
_AGAIN_S = 1.0
"""Pause before a server that lacks something is looked at again."""
_REPLACED = "start it again with an empty store, and it takes everything from the others"
_RESTORED = "restore a backup into an empty store"

Page = Mapping[str, Any]
"""What a server's monitoring answers."""
Varz = Page
"""A server's own report under `/varz`."""
Jsz = Page
"""A server's own report under `/jsz`, with the state of each stream that it keeps."""


async def varz_of(monitors: str | None) -> list[Varz]:
    """Return the report of each server whose monitoring answers, given URLs separated by commas.

    Raises UsageWrong for an invalid URL.
    """
    return await _pages(monitors, "varz")


async def jsz_of(monitors: str | None) -> list[Jsz]:
    """Return what each server has of every stream, if its monitoring answers; as `varz_of`."""
    return await _pages(monitors, "jsz?streams=true")


async def _pages(monitors: str | None, path: str) -> list[Page]:
    addresses = [url.strip().rstrip("/") for url in (monitors or "").split(",") if url.strip()]
    urls = [f"{web_url(url, '--monitor')}/{path}" for url in addresses]
    answers = await asyncio.gather(*(asyncio.to_thread(_page, url) for url in urls))
    return [answer for answer in answers if answer is not None]


def _page(url: str) -> Page | None:
    with (
        contextlib.suppress(OSError, ValueError),
        urllib.request.urlopen(url, timeout=_TIMEOUT_S) as answer,
    ):
        return dict(json.load(answer))
    return None


def name_of(varz: Varz) -> str:
    """Return a server's name, or its id if it has none."""
    return str(varz.get("server_name") or varz.get("server_id") or "?")


def config_of(varz: Varz) -> Mapping[str, Any]:
    """Return how a server's JetStream is configured."""
    return dict((varz.get("jetstream") or {}).get("config") or {})


# --- what is kept ---------------------------------------------------------------------------------


async def durability(bus: Bus, seen: Sequence[Varz], stores: Sequence[Jsz]) -> Results:
    """Find crashes that would lose messages, and servers that have lost some.

    Args:
        seen, stores: reports of the servers whose monitoring answered.
    """
    replicas, holders, silent = dict[str, int](), dict[str, None](), list[str]()
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
    behind = behind_in(listed, listed, streams)
    if behind:
        await asyncio.sleep(_AGAIN_S)
        behind = behind_in(listed, await listing(bus), streams)
    if silent:
        yield "found", f"nobody answers for {', '.join(silent)}: no server of theirs is up, or they elect"
    if not (log := replicas.get(LOG, 0)):
        return
    if fewer := [f"{stream} ({count})" for stream, count in replicas.items() if count < log]:
        yield "found", f"kept by fewer servers than the log ({log}): {', '.join(fewer)}; run `mesh setup`"
    if behind:
        yield "found", f"away, or without everything yet: {', '.join(sorted(behind))}"
    named = {str(server.get("server_id")): name_of(server) for server in seen}
    for server, lost in _holes(stores, microseconds(listed.info(LOG)["created"])):
        lacks = f"{named.get(server, server)} lacks {lost} events of the log"
        yield "found", f"{lacks}: its disk was damaged; {_REPLACED if log > 1 else _RESTORED}"
    yield _synced(log, holders, {name_of(server): server for server in seen})


def behind_in(before: Listing, now: Listing, streams: Iterable[str]) -> set[str]:
    """Return the servers that are away, or lack more of a stream than changed in it between two looks.

    Two of three servers acknowledge a message. The third lacks it for a moment, on a busy mesh always some.
    """
    found = set[str]()
    for stream in (each for each in streams if each in before.streams and each in now.streams):
        then, info = before.info(stream), now.info(stream)
        changed = _changes(info["state"]) - _changes(then["state"])
        for each in info.get("cluster", {}).get("replicas", ()):
            if each.get("offline") or (not each["current"] and each.get("lag", 1) > changed):
                found.add(each["name"])
    return found


def _changes(state: Mapping[str, Any]) -> int:
    """Return how many messages were stored in a stream, and how many went: its replicas agree on both."""
    return int(2 * state["last_seq"] - state["messages"])


def _holes(stores: Sequence[Jsz], created: int) -> Iterator[tuple[str, int]]:
    """Yield the id of each server whose log has holes, and how many events they took.

    Nobody deletes an event of the log: old ones go from its beginning. A server that cannot read a part of
    its disk counts what was there as deleted, and says that it has everything.

    Args:
        created: of this mesh's log (UTC µs); a server may keep other meshes' logs, in accounts of their own.
    """
    for store in stores:
        for account in store.get("account_details") or ():
            for stream in account.get("stream_detail") or ():
                lost = int(stream.get("state", {}).get("num_deleted", 0))
                if stream.get("name") == LOG and lost and microseconds(str(stream["created"])) == created:
                    yield str(store.get("server_id")), lost


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


# --- whose keys they know -------------------------------------------------------------------------


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
