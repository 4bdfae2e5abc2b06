"""`mesh setup` on the server: create and update streams and consumers according to the table.

`provision` creates what is missing and updates what may be updated. It deletes only consumers of intents that
no agent lists any more, whose waiting offers have no readers. A guards' consumer whose state has to move
between disk and memory is recreated. It refuses changes that would lose data or alter the meaning of stored
data. Nothing else in this software creates a stream or a consumer, and only the admin may.
"""

import contextlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Literal, NamedTuple

import msgspec

from mesh.bus import streams
from mesh.bus.connection import Bus
from mesh.bus.reader import last, listing
from mesh.bus.roles import members
from mesh.bus.room import Room
from mesh.bus.sizes import fitted, usual_sizes, with_stored_sizes
from mesh.bus.stores import write_revision
from mesh.errors import ApiCode, ApiError, NewerSchema, OtherPartitions, StoreTooSmall, UnsafeChange
from protocol.wire.config import Fleet
from protocol.wire.subjects import FLEET, PRICES

_API_S = 30.0
_NOT_FOUND = (ApiCode.STREAM_NOT_FOUND, ApiCode.CONSUMER_NOT_FOUND)
_STREAM_FREE = (
    *("num_replicas", "max_consumers", "republish", "allow_direct", "duplicate_window", "metadata"),
    *streams.NEVER,
)
_CONTROLS_FREE = ("subjects", "subject_transform")  # a member may become an operator, or a client again
_STREAM_GROWS = ("max_age", "max_bytes", "max_msgs", "max_msg_size")
_CONSUMER_FREE = ("ack_wait", "max_ack_pending", "max_deliver")
"""Fields that an update may change (`FREE`), and fields that it may only widen (`GROWS`). Others are
unsafe."""


class Change(NamedTuple):
    """One change that was made, or would be."""

    action: Literal["create", "update", "write", "delete"]
    what: str
    detail: tuple[str, ...] = ()


class _Step(NamedTuple):
    """A change and the call that makes it: an API verb with its body, or a write to CONF."""

    change: Change
    verb: str = ""
    body: Mapping[str, Any] = {}
    document: bytes = b""
    after: int = 0
    """Sequence of the document that this one replaces; 0 if there is none."""


async def provision(
    bus: Bus,
    fleet: Fleet,
    storage: streams.Storage = streams.DEFAULT_STORAGE,
    documents: Mapping[str, bytes] = {},
    *,
    by: str = "",
    dry_run: bool = False,
) -> list[Change]:
    """Make the server match the table, `fleet` and `documents`, and return the changes.

    Idempotent: a second call returns an empty list. All checks come before the first write. Sizes that nobody
    gives follow the store (`mesh.bus.sizes`); a dry run takes those that the streams have. `bus` is the
    admin's connection to a healthy server: a store that could not be decrypted would look empty.

    Args:
        by: who asks for it; stored with each entry.
        documents: other entries of CONF by subject. An empty price list is only written over another one.
        dry_run: only plan the changes.

    Raises UnsafeChange, OtherPartitions, NewerSchema, StoreTooSmall, and ApiError if the server refuses.
    """
    tuple(members(fleet))  # raises before anything is written if names clash
    table, usual = streams.stream_table(fleet, storage), usual_sizes(fleet, storage)
    there = await listing(bus)
    async with Room(bus) as room:
        if dry_run:
            table = with_stored_sizes(table, usual, there)
        else:
            table = await fitted(table, usual, there, room.fits)
        steps = [
            *await _plan_streams(bus, table),
            *await _plan_consumers(bus, streams.consumer_table(fleet, storage)),
            *await _plan_documents(bus, {FLEET: _document(fleet), **documents}),
            # After the new fleet is written, in which no agent reads these offers.
            *await _plan_left_offers(bus, streams.consumer_table(fleet)),
        ]
        if dry_run:
            return [step.change for step in steps]
        await _check_room(room, steps)
        for step in steps:
            if step.verb:
                await _make(bus, step)
            else:
                await write_revision(bus, step.change.what, step.document, by=by, after=step.after)
    return [step.change for step in steps]


async def _make(bus: Bus, step: _Step) -> None:
    with _explain_full(step.change.what, step.body.get("max_bytes", 0), step.body.get("max_bytes", 0)):
        await bus.api(step.verb, step.body, timeout_s=_API_S)


async def _check_room(room: Room, steps: Iterable[_Step]) -> None:
    """Raise StoreTooSmall, before any is created, if new streams would reserve more than the store has."""
    new = [step for step in steps if step.verb.startswith("STREAM.CREATE.")]
    sizes = {step.change.what: max(0, int(step.body.get("max_bytes", 0))) for step in new}
    if len(new) < 2:
        return
    largest, total = max(sizes, key=lambda what: sizes[what]), sum(sizes.values())
    with _explain_full(largest, sizes[largest], total):
        await room.check(total)


@contextlib.contextmanager
def _explain_full(what: str, its_bytes: int, total: int) -> Iterator[None]:
    """If the server has no room, raise StoreTooSmall with what reserves how much."""
    try:
        yield
    except ApiError as error:
        if error.err_code != ApiCode.STORAGE_RESOURCES_EXCEEDED:
            raise
        among = f" of {total} that the new streams reserve together" if total != its_bytes else ""
        raise StoreTooSmall(
            f"{what} may take {its_bytes} bytes{among}, and the server's store has no room "
            "left to promise them: give the server a larger store (max_file_store), or lower mib and "
            "steps_mib under [limits] in the fleet file"
        ) from None


async def _plan_streams(bus: Bus, table: Mapping[str, Mapping[str, Any]]) -> list[_Step]:
    steps = await _plan_retired(bus, table)
    for name, wanted in table.items():
        what = f"stream {name}"
        current = await _config(bus, f"STREAM.INFO.{name}")
        if current is None:
            steps.append(_Step(Change("create", what), f"STREAM.CREATE.{name}", wanted))
            continue
        metadata = current.get("metadata") or {}
        if (found := int(metadata.get(streams.SCHEMA_KEY, 0))) > streams.SCHEMA:
            raise NewerSchema(f"{what} has schema {found}, this version knows {streams.SCHEMA}")
        if 0 < found < streams.SCHEMA:
            raise UnsafeChange(what, streams.SCHEMA_KEY, found, streams.SCHEMA)
        if streams.kind_of(name) is not None:
            stored, asked = streams.partitions_of(current), streams.partitions_of(wanted)
            if stored != asked:
                raise OtherPartitions(stored, asked, "the fleet file")
        merged = {**wanted, "metadata": {**metadata, **wanted["metadata"]}}
        free = (*_STREAM_FREE, *(_CONTROLS_FREE if streams.kind_of(name) == streams.CONTROLS else ()))
        detail = _differences(what, current, merged, free, _STREAM_GROWS)
        if detail:
            steps.append(
                _Step(Change("update", what, detail), f"STREAM.UPDATE.{name}", {**current, **merged})
            )
    return steps


async def _plan_retired(bus: Bus, table: Mapping[str, Mapping[str, Any]]) -> list[_Step]:
    """Remove the subject from the control queue of a former client. Its messages stay.

    The client may be an operator now, and then its control messages go to CTL.
    """
    steps = []
    for name in await stored_queues(bus):
        current = await _config(bus, f"STREAM.INFO.{name}")
        retired = {"subjects": [f"mesh.retired.{name}"], "subject_transform": None}
        is_left = name not in table and name.startswith(streams.controls_of(""))
        if not is_left or current is None or current["subjects"] == retired["subjects"]:
            continue
        change = Change("update", f"stream {name}", ("it belongs to no client any more",))
        steps.append(_Step(change, f"STREAM.UPDATE.{name}", {**current, **retired}))
    return steps


async def _plan_consumers(bus: Bus, table: Iterable[streams.Consumer]) -> list[_Step]:
    steps = []
    existing: dict[str, dict[str, dict[str, Any]]] = {}
    for stream, name, wanted in table:
        if stream not in existing:
            existing[stream] = await _consumer_configs(bus, stream)
        what, verb = f"consumer {stream}/{name}", f"CONSUMER.CREATE.{stream}.{name}"
        current = existing[stream].get(name)
        if current is None:
            body = {"stream_name": stream, "config": wanted, "action": "create"}
            steps.append(_Step(Change("create", what), verb, body))
        elif bool(current.get(streams.IN_MEMORY)) != wanted.get(streams.IN_MEMORY, False):
            # It cannot be updated. Unacknowledged messages are delivered again.
            where = "in memory" if wanted.get(streams.IN_MEMORY) else "on disk"
            deleted = Change("delete", what, (f"its state is to be kept {where}",))
            steps.append(_Step(deleted, f"CONSUMER.DELETE.{stream}.{name}"))
            body = {"stream_name": stream, "config": wanted, "action": "create"}
            steps.append(_Step(Change("create", what), verb, body))
        elif detail := _differences(what, current, begun := _as_begun(wanted, current), _CONSUMER_FREE, ()):
            body = {"stream_name": stream, "config": {**current, **begun}, "action": "update"}
            steps.append(_Step(Change("update", what, detail), verb, body))
    return steps


def _as_begun(wanted: Mapping[str, Any], current: Mapping[str, Any]) -> dict[str, Any]:
    """Return a consumer's wanted configuration, but keep where it began, which a restore may have chosen."""
    return {**wanted, "deliver_policy": current.get("deliver_policy", wanted["deliver_policy"])}


async def _plan_left_offers(bus: Bus, table: Iterable[streams.Consumer]) -> list[_Step]:
    """Delete consumers of intents' inboxes that no agent reads any more."""
    wanted = {name for stream, name, _ in table if stream == streams.LOG}
    left = [
        name
        for name in await _consumer_configs(bus, streams.LOG)
        if streams.is_offers_consumer(name) and name not in wanted
    ]
    return [
        _Step(
            Change("delete", f"consumer {streams.LOG}/{name}", ("no agent lists its intent",)),
            f"CONSUMER.DELETE.{streams.LOG}.{name}",
        )
        for name in left
    ]


def _document(fleet: Fleet) -> bytes:
    return msgspec.json.encode(msgspec.structs.replace(fleet, revision=0))


async def _plan_documents(bus: Bus, documents: Mapping[str, bytes]) -> list[_Step]:
    steps = []
    for subject, document in documents.items():
        try:
            current = await last(bus, "CONF", subject, leader=True)
        except ApiError as error:
            if error.err_code not in _NOT_FOUND:
                raise
            current = None  # there is no CONF yet
        if current is None and subject == PRICES and document == b"{}":
            continue
        if current is None or current.data != document:
            after = 0 if current is None else current.seq
            steps.append(_Step(Change("write", subject), document=document, after=after))
    return steps


async def _config(bus: Bus, verb: str) -> dict[str, Any] | None:
    """Return the configuration of a stream or consumer; None if there is none."""
    try:
        config: dict[str, Any] = (await bus.api(verb))["config"]
    except ApiError as error:
        if error.err_code in _NOT_FOUND:
            return None
        raise
    return config


async def _consumer_configs(bus: Bus, stream: str) -> dict[str, dict[str, Any]]:
    try:
        found = await _listed(bus, f"CONSUMER.LIST.{stream}", "consumers")
    except ApiError as error:
        if error.err_code in _NOT_FOUND:
            return {}
        raise
    return {each["name"]: each["config"] for each in found}


async def _listed(bus: Bus, verb: str, what: str) -> list[Any]:
    """Return the items of all pages of a list."""
    found: list[Any] = []
    while True:
        page = await bus.api(verb, {"offset": len(found)})
        found += page[what] or ()
        if not page[what] or len(found) >= page["total"]:
            return found


def _differences(
    what: str,
    current: Mapping[str, Any],
    wanted: Mapping[str, Any],
    free: Iterable[str],
    grows: Iterable[str],
) -> tuple[str, ...]:
    """Return the changes, one line per field. Raises UnsafeChange for a field that must not change."""
    lines = []
    for field, value in wanted.items():
        old = current.get(field)
        if old == value or (not old and not value):
            continue
        if field not in free and not (field in grows and _grows(old, value)):
            raise UnsafeChange(what, field, old, value)
        lines.append(f"{field}: {old!r} → {value!r}")
    return tuple(lines)


def _grows(old: int | None, new: int) -> bool:
    """Return True if a limit becomes wider. None, 0 and -1 mean no limit."""
    if not old or old < 0:
        return False
    return new <= 0 or new > old


# --- what is on the server --------------------------------------------------------------------------


async def stored_partitions(bus: Bus) -> int:
    """Return how many partitions the mesh was created with. Raises BusError."""
    return streams.partitions_of((await bus.api(f"STREAM.INFO.{streams.TIMERS}"))["config"])


async def stored_journals(bus: Bus) -> list[str]:
    """Return all streams of journals, including those of agents that left the fleet. Raises BusError."""
    return sorted(filter(streams.is_journal_stream, await _listed(bus, "STREAM.NAMES", "streams")))


async def stored_queues(bus: Bus) -> list[str]:
    """Return all queues on the server, including those of members that left the fleet, and TIMER.

    Control queues come first, beginning with the operators'. Raises BusError.
    """
    found = await _listed(bus, "STREAM.NAMES", "streams")
    order = (streams.CONTROLS, streams.TIMERS, streams.PROPOSALS)
    queues = [(order.index(kind), name) for name in found if (kind := streams.kind_of(name)) is not None]
    return [name for _, name in sorted(queues)]
