"""Streams and consumers: one table, and the one command that brings a server to it.

`provision` creates what lacks and updates what may be updated; it never deletes, and it refuses what
would lose data or change what stored data means. Nothing else in this software creates a stream or a
consumer, and only the admin may.
"""

import base64
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Literal, NamedTuple

import msgspec

from mesh.bus.connection import Bus
from mesh.bus.queues import (
    CONTROLS,
    PROPOSALS,
    TIMERS,
    Limits,
    controls_of,
    is_journal_stream,
    kind_of,
    queue_filters,
    queue_table,
    steps_of,
)
from mesh.bus.roles import CONF_CHANGED, members
from mesh.errors import ApiError, NewerSchema, StoreTooSmall, UnsafeChange
from protocol.wire.config import Fleet
from protocol.wire.subjects import FLEET, inbox

SCHEMA = 3
"""Version of this layout, kept in each stream's metadata."""

NS = 1_000_000_000
KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30

GUARD_GROUP = "guard"

_ENDS_BYTES = 256 * MIB
_API_S = 30.0
_NOT_FOUND = (10059, 10014)  # stream, consumer
_NO_MESSAGE = 10037
_NO_ROOM = 10047
_SCHEMA_KEY = "mesh.schema"
_SHORT_WINDOW = NS // 10  # the least there is: a stray `Nats-Msg-Id` then costs no memory
_NEVER = {
    "allow_rollup_hdrs": False,
    "allow_msg_ttl": False,
    "allow_msg_counter": False,
    "allow_atomic": False,
}
"""What would let a writer erase or alter what others wrote, or write around the compare-and-set."""

_STREAM_FREE = ("num_replicas", "republish", "allow_direct", "duplicate_window", "metadata", *_NEVER)
_CONTROLS_FREE = ("subjects", "subject_transform")  # a member may become an operator, or a client again
_STREAM_GROWS = ("max_age", "max_bytes", "max_msgs", "max_msg_size")
_CONSUMER_FREE = ("ack_wait", "max_ack_pending", "max_deliver")
"""What an update may change, and what it may only widen. Everything else is unsafe."""


class Storage(NamedTuple):
    """What the operator of the servers decides. How long the log is kept is in the fleet."""

    replicas: int = 1
    log_max_bytes: int = -1
    """-1: as much as the store takes. When it is full, appends are refused; nothing is dropped."""
    limits: Limits = Limits()
    """Of each sender."""
    limits_of: Mapping[str, Limits] = {}
    """The same for senders with limits of their own."""


DEFAULT_STORAGE = Storage()


class Change(NamedTuple):
    """One thing that was done, or would be."""

    action: Literal["create", "update", "write"]
    what: str
    detail: tuple[str, ...] = ()


class Consumer(NamedTuple):
    stream: str
    name: str
    config: Mapping[str, Any]


# --- the table ------------------------------------------------------------------------------------


def stream_table(fleet: Fleet, storage: Storage = DEFAULT_STORAGE) -> dict[str, dict[str, Any]]:
    """Return every stream's configuration, as JetStream spells it, by name."""
    age = int(fleet.log_max_age_s * NS)
    table: dict[str, dict[str, Any]] = {
        **queue_table(fleet, storage.limits, storage.limits_of),
        **{
            steps_of(agent): _journals(agent, storage.limits_of.get(agent, storage.limits), age)
            for agent in fleet.agents
        },
        "LOG": {
            "subjects": ["mesh.evt.*.*"],
            "allow_direct": True,
            "deny_delete": True,
            "deny_purge": True,
            "discard": "new",
            "max_age": age,
            "max_bytes": storage.log_max_bytes,
            "republish": {
                "src": "mesh.evt.*.*",
                "dest": "mesh.note.{{wildcard(1)}}.{{wildcard(2)}}",
                "headers_only": True,
            },
        },
        # Guards alone write it, so that an agent whose journals are full cannot keep its turns from ending.
        "ENDS": {
            "subjects": ["mesh.end.*.*.*"],
            "allow_direct": True,
            "deny_delete": True,
            "deny_purge": True,
            "discard": "new",
            "discard_new_per_subject": True,
            "max_msgs_per_subject": 1,
            "max_bytes": _ENDS_BYTES,
            "max_age": age,
        },
        # The server forbids `discard: new` beside schedules, so that this stream has no size limit: it holds
        # one schedule for each open request, and guards alone write it.
        "TIMER": {
            "subjects": ["mesh.timer.at.*", "mesh.timer.fire.*.*"],
            "retention": "workqueue",
            "allow_msg_schedules": True,
        },
        "CONF": {
            "subjects": ["mesh.conf.>"],
            "allow_direct": True,
            "deny_delete": True,
            "max_msgs_per_subject": 1,
            "max_msg_size": MIB // 2,
            "republish": {"src": "mesh.conf.>", "dest": f"{CONF_CHANGED}.>", "headers_only": True},
        },
        "CARDS": {
            "subjects": ["mesh.card.*"],
            "allow_direct": True,
            "deny_delete": True,
            "deny_purge": True,
            "max_msgs_per_subject": 1,
            "max_msg_size": 64 * KIB,
            "republish": {
                "src": "mesh.card.*",
                "dest": f"{CONF_CHANGED}.card.{{{{wildcard(1)}}}}",
                "headers_only": True,
            },
        },
        # Not in CONF: agents write it, and must neither fill the room a freeze needs nor wake the guards.
        # In a file: a stream in memory is gone after a restart of a server that runs alone.
        "RATES": {
            "subjects": ["mesh.rate.*"],
            "allow_direct": True,
            "deny_delete": True,
            "deny_purge": True,
            "max_msgs_per_subject": 1,
            "max_bytes": 4 * MIB,
            "max_msg_size": 64 * KIB,
        },
        "DEAD": {
            "subjects": ["mesh.dead.*", "mesh.dead.guard.*"],
            "allow_direct": True,
            "max_msgs_per_subject": 250,  # so that a sender takes 125 MiB at most, and nobody else's place
            "max_msg_size": 512 * KIB,
            "max_age": age,
        },
    }
    common = {
        "storage": "file",
        "retention": "limits",
        "discard": "old",
        "num_replicas": storage.replicas,
        "duplicate_window": _SHORT_WINDOW,
    }
    return {
        name: {
            "name": name,
            **common,
            **(_NEVER if name != "TIMER" else {}),  # schedules need rollups there; guards alone write it
            **config,
            "metadata": {_SCHEMA_KEY: str(SCHEMA)},
        }
        for name, config in table.items()
    }


def _journals(agent: str, limits: Limits, age: int) -> dict[str, Any]:
    """Return the configuration of the stream of an agent's journals. A step is written once, by the first."""
    return {
        "subjects": [f"mesh.step.{agent}.*.*.*"],
        "allow_direct": True,
        "deny_delete": True,  # not purging, which is the admin's alone: `mesh log trim-steps`
        "discard": "new",
        "discard_new_per_subject": True,
        "max_msgs_per_subject": 1,
        "max_msgs": limits.steps,
        "max_bytes": limits.step_bytes,
        "max_age": age,
    }


def stream_names(fleet: Fleet) -> list[str]:
    """Return the name of each stream that `fleet` needs."""
    return list(stream_table(fleet))


async def _standing(bus: Bus) -> list[str]:
    """Return every stream that the server has. Raises BusError."""
    found: list[str] = []
    while True:
        page = await bus.api("STREAM.NAMES", {"offset": len(found)})
        found += page["streams"] or ()
        if not page["streams"] or len(found) >= page["total"]:
            return found


async def standing_journals(bus: Bus) -> list[str]:
    """Return every stream of journals, of agents who left the fleet, too. Raises BusError."""
    return sorted(filter(is_journal_stream, await _standing(bus)))


async def standing_queues(bus: Bus) -> list[str]:
    """Return every queue that the server has, of members who left the fleet, too, and TIMER.

    Controls come first, those of operators before all. Raises BusError.
    """
    found = await _standing(bus)
    order = (CONTROLS, TIMERS, PROPOSALS)
    queues = [(order.index(kind), name) for name in found if (kind := kind_of(name)) is not None]
    return [name for _, name in sorted(queues)]


def inbox_consumer(agent: str) -> str:
    """Name of an agent's consumer of its inbox in LOG."""
    return f"in-{agent}"


def consumer_table(fleet: Fleet) -> Iterator[Consumer]:
    """Yield every consumer that `fleet` needs."""
    guards = {"priority_policy": "prioritized", "priority_groups": [GUARD_GROUP]}
    for stream, consumer, subject in queue_filters(fleet):
        leased = _leased(subject, fleet.guard_lease_s, max_ack_pending=256)
        yield _consumer(stream, consumer, {**leased, **guards})
    for agent in fleet.agents:
        yield _consumer("LOG", inbox_consumer(agent), _leased(inbox(agent), fleet.lease_s, 1000))


def _leased(subject: str, ack_wait_s: float, max_ack_pending: int) -> dict[str, Any]:
    return {
        "filter_subject": subject,
        "ack_policy": "explicit",
        "ack_wait": int(ack_wait_s * NS),
        "max_deliver": -1,
        "max_ack_pending": max_ack_pending,
    }


def _consumer(stream: str, name: str, config: Mapping[str, Any]) -> Consumer:
    return Consumer(stream, name, {"name": name, "durable_name": name, "deliver_policy": "all", **config})


# --- the command ----------------------------------------------------------------------------------


class _Step(NamedTuple):
    """A change and the call that makes it: an API verb with its body, or a write of the fleet."""

    change: Change
    verb: str = ""
    body: Mapping[str, Any] = {}
    document: bytes = b""
    after: int = 0


async def provision(
    bus: Bus, fleet: Fleet, storage: Storage = DEFAULT_STORAGE, *, dry_run: bool = False
) -> list[Change]:
    """Bring the server to the table and to `fleet`; return what was done, or with `dry_run` would be.

    Idempotent: a second call returns an empty list. All checks come before the first write. `bus` is
    the admin's, on a server that is healthy: a store that could not be decrypted looks empty.

    Raises UnsafeChange, NewerSchema, StoreTooSmall, and ApiError when the server refuses.
    """
    tuple(members(fleet))  # raises before anything is written when names clash
    steps = [
        *await _plan_streams(bus, stream_table(fleet, storage)),
        *await _plan_consumers(bus, consumer_table(fleet)),
        *await _plan_fleet(bus, fleet),
    ]
    if not dry_run:
        for step in steps:
            if step.verb:
                await _make(bus, step)
            else:
                expected = {"Nats-Expected-Last-Subject-Sequence": str(step.after)}
                await bus.publish_durable(FLEET, step.document, expected)
    return [step.change for step in steps]


async def _make(bus: Bus, step: _Step) -> None:
    try:
        await bus.api(step.verb, step.body, timeout_s=_API_S)
    except ApiError as error:
        if error.err_code != _NO_ROOM:
            raise
        raise StoreTooSmall(step.change.what, step.body["max_bytes"]) from None


async def _plan_streams(bus: Bus, table: Mapping[str, Mapping[str, Any]]) -> list[_Step]:
    steps = await _plan_retired(bus, table)
    for name, wanted in table.items():
        what = f"stream {name}"
        stands = await _config(bus, f"STREAM.INFO.{name}")
        if stands is None:
            steps.append(_Step(Change("create", what), f"STREAM.CREATE.{name}", wanted))
            continue
        metadata = stands.get("metadata") or {}
        if (found := int(metadata.get(_SCHEMA_KEY, 0))) > SCHEMA:
            raise NewerSchema(what, found, SCHEMA)
        if 0 < found < SCHEMA:
            raise UnsafeChange(what, _SCHEMA_KEY, found, SCHEMA)
        merged = {**wanted, "metadata": {**metadata, **wanted["metadata"]}}
        free = (*_STREAM_FREE, *(_CONTROLS_FREE if kind_of(name) == CONTROLS else ()))
        detail = _differences(what, stands, merged, free, _STREAM_GROWS)
        if detail:
            steps.append(_Step(Change("update", what, detail), f"STREAM.UPDATE.{name}", {**stands, **merged}))
    return steps


async def _plan_retired(bus: Bus, table: Mapping[str, Mapping[str, Any]]) -> list[_Step]:
    """Take its subject from the control queue of a client who is one no longer; what is in it stays.

    It might be an operator now, whose control messages go to CTL.
    """
    steps = []
    for name in await standing_queues(bus):
        stands = await _config(bus, f"STREAM.INFO.{name}")
        retired = {"subjects": [f"mesh.retired.{name}"], "subject_transform": None}
        is_left = name not in table and name.startswith(controls_of(""))
        if not is_left or stands is None or stands["subjects"] == retired["subjects"]:
            continue
        change = Change("update", f"stream {name}", ("it belongs to no client any more",))
        steps.append(_Step(change, f"STREAM.UPDATE.{name}", {**stands, **retired}))
    return steps


async def _plan_consumers(bus: Bus, table: Iterable[Consumer]) -> list[_Step]:
    steps = []
    standing: dict[str, dict[str, dict[str, Any]]] = {}
    for stream, name, wanted in table:
        if stream not in standing:
            standing[stream] = await _consumer_configs(bus, stream)
        what, verb = f"consumer {stream}/{name}", f"CONSUMER.CREATE.{stream}.{name}"
        stands = standing[stream].get(name)
        if stands is None:
            body = {"stream_name": stream, "config": wanted, "action": "create"}
            steps.append(_Step(Change("create", what), verb, body))
        elif detail := _differences(what, stands, wanted, _CONSUMER_FREE, ()):
            body = {"stream_name": stream, "config": {**stands, **wanted}, "action": "update"}
            steps.append(_Step(Change("update", what, detail), verb, body))
    return steps


async def _plan_fleet(bus: Bus, fleet: Fleet) -> list[_Step]:
    document = msgspec.json.encode(msgspec.structs.replace(fleet, revision=0))
    try:
        last = (await bus.api("STREAM.MSG.GET.CONF", {"last_by_subj": FLEET}))["message"]
    except ApiError as error:
        if error.err_code not in (*_NOT_FOUND, _NO_MESSAGE):
            raise
        return [_Step(Change("write", FLEET), document=document)]
    if base64.b64decode(last.get("data", "")) == document:
        return []
    return [_Step(Change("write", FLEET), document=document, after=last["seq"])]


async def _config(bus: Bus, verb: str) -> dict[str, Any] | None:
    """Return the configuration of a stream or consumer, None when there is none."""
    try:
        config: dict[str, Any] = (await bus.api(verb))["config"]
    except ApiError as error:
        if error.err_code in _NOT_FOUND:
            return None
        raise
    return config


async def _consumer_configs(bus: Bus, stream: str) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    while True:
        try:
            page = await bus.api(f"CONSUMER.LIST.{stream}", {"offset": len(found)})
        except ApiError as error:
            if error.err_code in _NOT_FOUND:
                return {}
            raise
        found |= {each["name"]: each["config"] for each in page["consumers"] or ()}
        if not page["consumers"] or len(found) >= page["total"]:
            return found


def _differences(
    what: str,
    stands: Mapping[str, Any],
    wanted: Mapping[str, Any],
    free: Iterable[str],
    grows: Iterable[str],
) -> tuple[str, ...]:
    """Return what would change, one line a field. Raises UnsafeChange at a field that must not."""
    lines = []
    for field, value in wanted.items():
        old = stands.get(field)
        if old == value or (not old and not value):
            continue
        if field not in free and not (field in grows and _grows(old, value)):
            raise UnsafeChange(what, field, old, value)
        lines.append(f"{field}: {old!r} → {value!r}")
    return tuple(lines)


def _grows(old: int | None, new: int) -> bool:
    """Say whether a limit becomes wider. None, 0 and -1 are no limit."""
    if not old or old < 0:
        return False
    return new <= 0 or new > old
