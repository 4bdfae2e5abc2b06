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
    steps_of,
    stream_table,
)
from mesh.errors import ApiCode, ApiError, BackupUnusable, RestoreFailed, StreamFull
from mesh.ops.backup import BackupStream, Manifest, Progress, messages_in, whole_manifest
from mesh.ops.requeue import STALE_S, OpenRequests, arm, create_consumer, mark_over, starts_of
from protocol.wire import codec, subjects
from protocol.wire.config import Fleet
from protocol.wire.documents import DocumentInvalid, read_fleet
from protocol.wire.ids import is_request_id, submitted_ms
from protocol.wire.records import FENCE, LostTime, Record

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
_MARK_BYTES = 512
"""What a lost time, or a turn that was there before it, takes at most in a stream of journals."""
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
    async with alone(bus):
        with _explain_full(manifest):
            await _make(bus, folder, manifest, fleet, open_requests, configs, lost, progress)
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
def _explain_full(manifest: Manifest) -> Iterator[None]:
    """Raise RestoreFailed with what to do if the server has no room for a backup."""
    try:
        yield
    except ApiError as error:
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
    lost: LostTime | None,
    progress: Progress,
) -> None:
    there = (await listing(bus)).streams
    if not _has_conf(there, manifest):  # otherwise services may have begun, and only the last step is missing
        await _clear(bus, there, manifest)
        for name in sorted(configs.keys() - {_CONF}, key=lambda name: name != LOG):
            first = _first(manifest.streams[name])
            more = {"first_seq": first, **_marked(configs[LOG], manifest, "begun")} if name == LOG else {}
            stream, stored = manifest.streams[name], messages_in(folder, manifest.streams[name])
            if is_journal_stream(name):
                agent = name.removeprefix(steps_of(""))
                more = _room(configs[name], open_requests.turns(agent))
                stored = _as_of_the_log(stored, open_requests, fleet)
                stored = _with_lost_time(stored, agent, open_requests.turns(agent), lost)
            await create_stream(bus, {**configs[name], **more})
            await _fill(bus, name, stored, stream.messages, progress)
            if is_journal_stream(name):
                await update_stream(bus, configs[name])
        for client in (*fleet.clients, *fleet.operators):
            if memory_of(client) in configs:  # records may be newer than the log
                await set_back(bus, client, manifest.through)
        await _open_queues(bus, folder, manifest, fleet, open_requests, configs)
        await _fill_conf(bus, folder, manifest.streams[_CONF], configs[_CONF])
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


def _marked(config: Mapping[str, Any], manifest: Manifest, how: str) -> dict[str, Any]:
    return {"metadata": {**config["metadata"], _RESTORED: f"{manifest.head} {how}"}}


def _room(journals: Mapping[str, Any], turns: set[tuple[str, str]]) -> dict[str, int]:
    """Return limits of a stream of journals with room for what a restore adds, even if it was full."""
    added = {"max_msgs": 1 + len(turns), "max_bytes": (1 + len(turns)) * _MARK_BYTES}
    limits = {name: int(journals.get(name, -1)) for name in added}
    return {name: limit + added[name] if limit > 0 else limit for name, limit in limits.items()}


def _as_of_the_log(
    stored: Iterable[WholeMessage], open_requests: OpenRequests, fleet: Fleet
) -> Iterator[WholeMessage]:
    """Yield the steps of an agent, without what only later rounds than the log's could have written.

    Journals are copied after the log. A fence by a round that the log does not have would stop the round that
    comes again, and steps of such a round would be taken for those of the one that now gets its number. This
    also holds for requests that the log does not have, if they are young enough to be submitted again.
    """
    oldest_ms = (time.time() - fleet.log_max_age_s / 4) * 1000

    def comes_again(request: str) -> bool:
        if request in open_requests:
            return True
        is_gone = request in open_requests.ended or request in open_requests.unreadable
        return not is_gone and is_request_id(request) and submitted_ms(request) >= oldest_ms

    for message in stored:
        *_, request, turn, name = message.subject.split(".")
        round_ = name.partition("-")[0]
        if round_.isdecimal() and comes_again(request):
            newest = open_requests.newest_round(request, turn)
            if int(round_) > newest or (int(round_) == newest and _is_fence(message.data)):
                continue
        yield message


def _is_fence(body: bytes) -> bool:
    record = codec.readable(body, Record)
    return record is not None and record.kind == FENCE


def _with_lost_time(
    stored: Iterable[WholeMessage], agent: str, turns: set[tuple[str, str]], lost: LostTime | None
) -> Iterator[WholeMessage]:
    """Yield an agent's steps, then the lost time, and which of its turns were there before.

    The lost time covers that of earlier restores. A turn that began after one of these was not there before
    it, so no turn of an older request is added then: those that were are among the steps.

    Args:
        turns: request and turn of each turn in the backup's open requests.
    """
    subject, older_than = subjects.lost_time(agent), 0
    for message in stored:
        if message.subject != subject:
            yield message
        elif (before := codec.readable(message.data, LostTime)) is not None:
            older_than = before.until
            until = before.until if lost is None else max(before.until, lost.until)
            since = before.since if lost is None else min(before.since, lost.since)
            lost = LostTime(since=since, until=until)
    if lost is None:
        return
    yield WholeMessage(0, subject, {}, msgspec.json.encode(lost))
    for request, turn in sorted(turns):
        if submitted_ms(request) * 1000 >= older_than:
            yield WholeMessage(0, subjects.step(agent, request, turn, subjects.KNOWN), {}, b"{}")


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


async def _fill_conf(bus: Bus, folder: Path, stream: BackupStream, config: Mapping[str, Any]) -> None:
    """Write CONF with its old sequences: events name the fleet by them."""
    following = _first(stream)
    await create_stream(bus, {**config, "first_seq": following, "deny_delete": False, "republish": None})
    writer = Writer(bus, _CONF, exact=True)
    try:
        for message in messages_in(folder, stream):
            await writer.store(WholeMessage(seq, _GAP, {}, b"") for seq in range(following, message.seq))
            await writer.finish()
            await bus.api(f"STREAM.PURGE.{_CONF}", {"filter": _GAP}, timeout_s=_API_S)
            await writer.store([message])
            following = message.seq + 1
        await writer.finish()
    finally:
        await writer.close()
