"""`mesh restore`: a bus made from a backup.

Streams are filled from the folder. What derives from the log is made from it: marks of ended turns, consumers
that begin at the earliest open round, timers. CONF comes last: services wait for the fleet in it.

Agents may have done more than the backup has. So the lost time is stored beside each agent's journals, and
which turns of open requests the backup has: only these keep the keys of their effects for certain. Agents
treat an effect without a record accordingly (`mesh.agent._effects.begun_in_lost_time`).
"""

import asyncio
import contextlib
import secrets
import time
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from mesh.bus.connection import Bus
from mesh.bus.copying import WholeMessage, Writer, create_stream, delete_stream, update_stream
from mesh.bus.memory import set_back
from mesh.bus.nats_protocol import Incoming
from mesh.bus.reader import listing, microseconds
from mesh.bus.streams import (
    LOG,
    SHADOW,
    Storage,
    consumer_table,
    inbox_consumer,
    is_journal_stream,
    memory_of,
    stream_table,
)
from mesh.errors import ApiCode, ApiError, BackupUnusable, RestoreFailed, StreamFull
from mesh.ops.backup import MANIFEST, BackupStream, Manifest, Progress, messages_in, whole_manifest
from mesh.ops.log import header_of
from mesh.ops.requeue import STALE_S, OpenRequests, arm, create_consumer, mark_over, starts_of
from mesh.ops.restored_journals import RestoredJournals
from protocol.wire import codec, subjects
from protocol.wire.config import Fleet
from protocol.wire.documents import DocumentInvalid, read_fleet
from protocol.wire.ids import submitted_ms
from protocol.wire.records import LostTime
from protocol.wire.schedule import ScheduleTick

_GAP = "mesh.conf.gap"
"""Fills the gaps of sequences in CONF between two entries. It is never read, and is purged."""
_RESTORED = "mesh.restored"
"""Metadata of LOG: the backup that it was made from, and whether that was completed."""
_CONF = "CONF"
_ADDED = (SHADOW,)
"""Streams that backups of earlier versions lack. They begin empty; nothing depends on what they held."""
_API_S = 60.0
_UNDER_WAY = "mesh.restoring"
"""A restore asks here whether another one is running, and answers that it is."""
_ANSWER_S = 1.0
"""How long another restore may take to answer (s)."""
_OWN = "maximum "
"""In the server's words for a stream that reached a limit of its own: `maximum bytes exceeded`."""
_LEFT_OUT = ("first_seq",)
"""Of a stream's old configuration: computed anew."""


class Restored(msgspec.Struct, frozen=True, kw_only=True):
    """What a restore made."""

    mesh: str
    through: int
    """The log's last sequence."""
    at: str
    """When the last event was stored. Later ones are missing."""
    messages: int
    bytes: int
    open: int
    """Open requests."""
    turns: int
    """Rounds, and offers, that are delivered again."""
    lost: LostTime | None = None
    """The time in which agents may have done more than the backup has; None if nothing was lost."""
    unreadable: dict[str, str] = {}
    left_out: dict[str, int] = {}
    """By stream of journals: how many steps of requests that are not open had no room in it."""


async def restore(
    bus: Bus,
    folder: Path,
    *,
    since: float | None = None,
    replicas: int | None = None,
    progress: Progress = lambda *_: None,
) -> Restored:
    """Make the mesh of a backup on an empty bus; return what was made.

    The fleet is written last, and services wait for it. An interrupted restore begins again, on the same bus.
    Needs the admin's credentials.

    Args:
        since: UTC µs at which the lost time began; by default the time of the backup's last event.
            `math.inf` if nothing was done after the backup.
        replicas: of every stream; by default as many as it had.

    Raises BackupUnusable before anything is written; RestoreFailed, BusError.
    """
    manifest = whole_manifest(folder)
    fleet = _fleet_in(folder, manifest)
    manifest = _with_added(manifest, fleet)
    configs = {name: _config(each, replicas) for name, each in manifest.streams.items()}
    if missing := stream_table(fleet).keys() - configs.keys():
        raise BackupUnusable(f"{folder} lacks the streams {', '.join(sorted(missing))}: it is not whole")
    open_requests = OpenRequests()
    for message in messages_in(folder, manifest.streams[LOG]):
        open_requests.take(message.seq, message.subject, message.data)
    lost = _lost_time(manifest, open_requests, since)
    journals = {
        name: RestoredJournals(
            partial(messages_in, folder, stream), configs[name], open_requests, fleet, _most_of(stream)
        )
        for name, stream in manifest.streams.items()
        if name in configs and is_journal_stream(name)
    }
    async with alone(bus):
        with _explain_full(folder, manifest):
            await _make(bus, folder, manifest, fleet, open_requests, configs, journals, lost, progress)
    return Restored(
        mesh=manifest.mesh,
        through=manifest.through,
        at=manifest.at,
        messages=manifest.messages,
        bytes=manifest.bytes,
        open=len(open_requests.requests),
        turns=len(open_requests.waiting()),
        lost=lost,
        unreadable=open_requests.unreadable,
        left_out={name: each.left_out for name, each in journals.items() if each.left_out},
    )


def _lost_time(manifest: Manifest, open_requests: OpenRequests, since: float | None) -> LostTime | None:
    """Return the time whose steps are lost; None if it is empty.

    It ends now, but after the submit of each open request: a client's clock may be ahead of ours.

    Args:
        since: as for `restore`.
    """
    if since is None:
        since = microseconds(manifest.at) if manifest.at else 0
    submitted = ((submitted_ms(request) + 1) * 1000 for request in open_requests.requests)
    until = max([time.time_ns() // 1000, *submitted])
    return LostTime(since=int(since), until=until) if since < until else None


@contextlib.contextmanager
def _explain_full(folder: Path, manifest: Manifest) -> Iterator[None]:
    """Raise RestoreFailed with what to do if the server, or a stream, has no room for a backup."""
    try:
        yield
    except ApiError as error:
        if isinstance(error, StreamFull) and error.err_code == ApiCode.STORE_FAILED and _OWN in str(error):
            raise RestoreFailed(
                f"{error.stream} has no room for what this backup has of it: its own limit is reached "
                f"({error}). A larger store would not help: raise max_bytes or max_msgs under "
                f"streams.{error.stream}.config in {folder / MANIFEST}, and restore again"
            ) from error
        if not isinstance(error, StreamFull) and error.err_code != ApiCode.STORAGE_RESOURCES_EXCEEDED:
            raise
        raise RestoreFailed(
            f"the server's store has no room for this backup of {manifest.bytes} bytes, or for what its "
            f"streams may take ({error}): give it a larger one (max_file_store), and restore again"
        ) from error


@contextlib.asynccontextmanager
async def alone(bus: Bus) -> AsyncIterator[None]:
    """Keep other restores from a bus until this one ends or dies. Raises RestoreFailed, BusError.

    Two that begin at the same moment may both be refused.
    """
    own = secrets.token_bytes(8)

    def answer(asked: Incoming) -> None:
        if asked.data != own:
            bus.send(asked.reply, own)

    here, answers = await bus.subscribe(_UNDER_WAY, answer), bus.new_inbox()
    try:
        there = asyncio.Event()
        answers_seen = await bus.subscribe(answers, lambda _: there.set(), most=1)
        bus.send(_UNDER_WAY, own, reply=answers)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_ANSWER_S):
                await there.wait()
            raise RestoreFailed("another restore into this bus is under way: wait for its end")
        await answers_seen.close()
        yield
    finally:
        await here.close()


async def _make(
    bus: Bus,
    folder: Path,
    manifest: Manifest,
    fleet: Fleet,
    open_requests: OpenRequests,
    configs: Mapping[str, dict[str, Any]],
    journals: Mapping[str, RestoredJournals],
    lost: LostTime | None,
    progress: Progress,
) -> None:
    there = (await listing(bus)).streams
    if not _has_conf(there, manifest):  # otherwise services may have begun, and only the last step is missing
        await _clear(bus, there, manifest)
        for name in sorted(configs.keys() - {_CONF}, key=lambda name: name != LOG):
            stream, more = manifest.streams[name], dict[str, Any]()
            stored: Iterable[WholeMessage] = messages_in(folder, stream)
            if name == LOG:
                more = {"first_seq": _first(stream), **_marked(configs[LOG], manifest, "begun")}
            if name in journals:
                more, stored = journals[name].limits, journals[name].steps(lost)
            await create_stream(bus, {**configs[name], **more})
            await _fill(bus, name, stored, stream.messages, progress)
            if is_journal_stream(name):
                await update_stream(bus, configs[name])
        for client in (*fleet.clients, *fleet.operators):
            if memory_of(client) in configs:  # records may be newer than the log
                await set_back(bus, client, manifest.through)
        await _open_queues(bus, folder, manifest, fleet, open_requests, configs)
        ticks = _ticks(folder, manifest, open_requests)
        # A fired timer has a guard look at its schedule. It waits in its queue until there is one.
        await arm(bus, map(subjects.schedule_timer, ticks), fleet.partitions)
        await _fill_conf(bus, folder, manifest.streams[_CONF], configs[_CONF], ticks)
    await bus.api(f"STREAM.PURGE.{_CONF}", {"filter": _GAP}, timeout_s=_API_S)
    await update_stream(bus, {**configs[_CONF], "first_seq": _first(manifest.streams[_CONF])})
    await bus.publish(f"{subjects.CONF_CHANGED}.fleet")  # for services that wait for a fleet
    config = (await bus.api(f"STREAM.INFO.{LOG}"))["config"]
    await update_stream(bus, {**config, **_marked(config, manifest, "done")})


async def _open_queues(
    bus: Bus,
    folder: Path,
    manifest: Manifest,
    fleet: Fleet,
    open_requests: OpenRequests,
    configs: Mapping[str, Any],
) -> None:
    """Make what derives from the log: marks of ended turns, consumers, timers."""
    starts = starts_of(open_requests.waiting())
    await mark_over(bus, open_requests, starts, _events_in(folder, manifest.streams[LOG]))
    await asyncio.sleep(STALE_S)
    storage = Storage(replicas=int(configs[LOG].get("num_replicas", 1)))
    for consumer in consumer_table(fleet, storage):
        start = starts.get(consumer.name.removeprefix(inbox_consumer("")), manifest.through + 1)
        await create_consumer(bus, consumer, start if consumer.stream == LOG else None)
    await arm(bus, open_requests.requests, fleet.partitions)


def _has_conf(there: Mapping[str, Any], manifest: Manifest) -> bool:
    """Return True if a restore of this backup has written everything except its final mark."""
    conf = there.get(_CONF)
    is_whole = conf is not None and conf["state"]["last_seq"] >= manifest.streams[_CONF].through
    return is_whole and _mark(there) == f"{manifest.head} begun"


def _mark(there: Mapping[str, Any]) -> str:
    """Return the mark of the backup that the log's stream was made from; empty if it has none."""
    metadata = (there.get(LOG) or {}).get("config", {}).get("metadata") or {}
    return str(metadata.get(_RESTORED, ""))


def _first(stream: BackupStream) -> int:
    """Return the sequence with which a stream begins again."""
    return stream.files[0].first if stream.files else stream.through + 1


def _most_of(stream: BackupStream) -> tuple[int, int]:
    """Return how many messages a backup has of a stream, and more bytes than these take on a server."""
    return stream.messages, sum(file.bytes for file in stream.files)


def _marked(config: Mapping[str, Any], manifest: Manifest, how: str) -> dict[str, Any]:
    return {"metadata": {**config["metadata"], _RESTORED: f"{manifest.head} {how}"}}


async def _fill(bus: Bus, name: str, stored: Iterable[WholeMessage], total: int, progress: Progress) -> None:
    """Store a stream's messages."""
    writer = Writer(bus, name, exact=name == LOG)
    try:
        for done, message in enumerate(stored, start=1):
            await writer.store([message])
            progress(name, done, total)
        await writer.finish()
    finally:
        await writer.close()


def _fleet_in(folder: Path, manifest: Manifest) -> Fleet:
    """Return the newest fleet of a backup. Raises BackupUnusable."""
    found: Fleet | None = None
    for message in messages_in(folder, manifest.streams.get(_CONF) or BackupStream(config={})):
        if message.subject == subjects.FLEET:
            try:
                found = read_fleet(message.data)
            except DocumentInvalid:
                continue  # guards also use the last one that they can read
    if found is None:
        raise BackupUnusable(f"{folder} holds no fleet that can be read")
    return found


async def _clear(bus: Bus, there: Mapping[str, Any], manifest: Manifest) -> None:
    """Remove what an interrupted restore of the same backup left.

    Raises RestoreFailed if the bus has anything else.
    """
    if not there:
        return
    if _mark(there) != f"{manifest.head} begun":
        raise RestoreFailed(
            f"the bus is not empty: it has {', '.join(sorted(there)[:5])} and {max(0, len(there) - 5)} more "
            "streams; restore into a server with an empty store"
        )
    for name in sorted(there, key=lambda name: name == LOG):  # LOG last, because it has the mark
        await delete_stream(bus, name)


def _with_added(manifest: Manifest, fleet: Fleet) -> Manifest:
    """Return a manifest that also has the streams which a backup of an earlier version lacks."""
    if LOG not in manifest.streams:
        return manifest
    table = stream_table(fleet, Storage(replicas=int(manifest.streams[LOG].config.get("num_replicas", 1))))
    added = {name: BackupStream(config=table[name]) for name in _ADDED}
    return msgspec.structs.replace(manifest, streams={**added, **manifest.streams})


def _config(stream: BackupStream, replicas: int | None) -> dict[str, Any]:
    config = {name: value for name, value in stream.config.items() if name not in _LEFT_OUT}
    metadata = {name: value for name, value in (config.get("metadata") or {}).items() if name != _RESTORED}
    config["metadata"] = {name: value for name, value in metadata.items() if not name.startswith("_nats")}
    if replicas is not None:
        config["num_replicas"] = replicas
    return config


async def _events_in(folder: Path, log: BackupStream) -> AsyncIterator[tuple[int, str, bytes]]:
    for message in messages_in(folder, log):
        yield message.seq, message.subject, message.data


def _ticks(folder: Path, manifest: Manifest, open_requests: OpenRequests) -> dict[str, WholeMessage]:
    """Return, by schedule, the newest tick of each whose request the log may lack: as one that has begun.

    CONF is copied after the log. So it may say that a request was submitted which the log does not have. A
    guard that finds a tick begun submits the same request, unless the log has it. A request that is older
    than the log has aged out of it, and stays over. A refusal stands: nothing was lost by it.
    """
    first = next(messages_in(folder, manifest.streams[LOG]), None)
    header = None if first is None else header_of(first.data)
    since = 0 if header is None else header.at
    newest = {each.subject: each for each in messages_in(folder, manifest.streams[_CONF])}
    found = {}
    for subject, message in newest.items():
        name = subject.rpartition(".")[2]
        tick = codec.readable(message.data, ScheduleTick) if subject == subjects.tick(name) else None
        if tick is None:
            continue
        if tick.outcome == "submitted" and tick.at >= since and not open_requests.knows(tick.request):
            tick = msgspec.structs.replace(tick, outcome="begun", detail="")
            message = message._replace(data=msgspec.json.encode(tick))
        if tick.outcome == "begun":
            found[name] = message
    return found


async def _fill_conf(
    bus: Bus,
    folder: Path,
    stream: BackupStream,
    config: Mapping[str, Any],
    ticks: Mapping[str, WholeMessage],
) -> None:
    """Write CONF with its old sequences: events name the fleet by them.

    Services read the fleet by direct gets. Until CONF is whole it answers none, so they wait.

    Args:
        ticks: what to write instead of some schedules' newest ticks.
    """
    instead = {each.seq: each for each in ticks.values()}
    following = _first(stream)
    unread = {"allow_direct": False, "deny_delete": False, "republish": None}
    await create_stream(bus, {**config, "first_seq": following, **unread})
    writer = Writer(bus, _CONF, exact=True)
    try:
        for message in messages_in(folder, stream):
            await writer.store(WholeMessage(seq, _GAP, {}, b"") for seq in range(following, message.seq))
            await writer.finish()
            await bus.api(f"STREAM.PURGE.{_CONF}", {"filter": _GAP}, timeout_s=_API_S)
            await writer.store([instead.get(message.seq, message)])
            following = message.seq + 1
        # The last one may have been purged. Without its sequence, CONF would never count as whole.
        await writer.store(WholeMessage(seq, _GAP, {}, b"") for seq in range(following, stream.through + 1))
        await writer.finish()
    finally:
        await writer.close()
