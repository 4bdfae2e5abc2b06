"""The table of streams and consumers that every mesh has on its server, with their subjects.

**Queues** hold messages from agents, clients and operators to guards. Each sender has its own stream and
limits. So a flood fills only its sender's queue, and the broker refuses the rest. Guards take from all
queues, so no sender waits behind another. Operators share one queue for control messages, so freezes and
thaws have one order and wait behind no one else. Each agent also has a stream for its journals.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Literal, NamedTuple

from protocol.wire.commands import MAX_MESSAGE_BYTES
from protocol.wire.config import PARTITIONS, Fleet
from protocol.wire.ids import ANYBODY
from protocol.wire.subjects import CONF_CHANGED, STORED_IN, inbox, intent_inbox

SCHEMA = 3
"""Version of this layout, kept in each stream's metadata."""

NS = 1_000_000_000
KIB, MIB = 1 << 10, 1 << 20

GUARD_GROUP = "guard"
IN_MEMORY = "mem_storage"
"""The field of a consumer's configuration that tells where its state is stored."""

_ENDS_BYTES = 256 * MIB
_ASKS_BYTES = 256 * MIB
_PROMPTS_BYTES = 256 * MIB
_ANCHORS_BYTES = 512 * MIB
_SHADOW_BYTES = 128 * MIB
_SHADOW_AGE = 14 * 86_400 * NS
_LOG_CONSUMERS = 100_000
"""Inboxes in LOG, one for each agent and each intent. Without a limit, nats-server 2.15 sets one of 1,000."""
REVISIONS = 64
"""Kept revisions of each document in CONF, since earlier verdicts refer to them."""
SCHEMA_KEY = "mesh.schema"
_PARTITIONS_KEY = "mesh.partitions"
MOST_LETTERS = 250
"""Dead letters in one list; the oldest are dropped."""
_SHORT_WINDOW = NS // 10  # the shortest possible: a stray `Nats-Msg-Id` then costs no memory
NEVER = {
    "allow_rollup_hdrs": False,
    "allow_msg_ttl": False,
    "allow_msg_counter": False,
    "allow_atomic": False,
}
"""Features that would let a writer erase or alter others' messages, or bypass the compare-and-set."""

LOG, ANCHORS, SHADOW = "LOG", "ANCHORS", "SHADOW"
PROPOSALS, CONTROLS, TIMERS = "PROP", "CTL", "TIMER"
_JOURNALS = "STEPS-"
MESSAGE_BYTES = MAX_MESSAGE_BYTES
"""Largest message that a queue takes, including subject and headers."""
_ADMIN = "admin"
"""The admin may publish under any name. This gives CTL a subject if a fleet has no operators."""
_CONTROLS_MESSAGES, _CONTROLS_BYTES = 10_000, 16 << 20

Kind = Literal["PROP", "CTL", "TIMER"]


class Limits(NamedTuple):
    """How much one sender may store. Beyond it the broker refuses (`err_code` 10077)."""

    messages: int = 10_000
    """Messages waiting for guards."""
    bytes: int = 64 << 20
    """Bytes of these messages."""
    steps: int = 250_000
    """Steps in an agent's journals. The server keeps the subject of each in memory."""
    step_bytes: int = 256 << 20
    """Bytes of these steps."""


class Storage(NamedTuple):
    """Storage settings of the operator of the servers. The fleet sets how long the log is kept."""

    replicas: int = 1
    log_max_bytes: int = -1
    """-1: as much as the store has. When it is full, appends are refused; nothing is dropped."""
    memory_bytes: int = 8 << 20
    """Most bytes that one client's conversations may remember; beyond that the oldest facts are dropped."""
    limits: Limits = Limits()
    """Default limits of a sender."""
    limits_of: Mapping[str, Limits] = {}
    """Limits of senders that have their own."""
    given: frozenset[str] = frozenset()
    """Streams whose size the operator gives, be it the usual one. Others may be smaller than usual."""

    def limits_for(self, sender: str) -> Limits:
        return self.limits_of.get(sender, self.limits)


DEFAULT_STORAGE = Storage()


class Consumer(NamedTuple):
    stream: str
    name: str
    config: Mapping[str, Any]


# --- queues and journals ----------------------------------------------------------------------------


def proposals_of(sender: str) -> str:
    """Return the stream of a sender's submits and proposals."""
    return f"{PROPOSALS}-{sender}"


def controls_of(client: str) -> str:
    """Return the stream of a client's control messages. Operators share CTL."""
    return f"{CONTROLS}-{client}"


def steps_of(agent: str) -> str:
    """Return the stream of an agent's journals."""
    return f"{_JOURNALS}{agent}"


def memory_of(client: str) -> str:
    """Return the stream of a client's memory records."""
    return f"MEM-{client}"


def is_journal_stream(stream: str) -> bool:
    """Return True if a stream holds the journals of an agent."""
    return stream.startswith(_JOURNALS)


def queue_consumer(partition: int) -> str:
    """Return the name of the guards' consumer of one partition, in every queue and in TIMER."""
    return f"g{partition}"


def queue_consumers(partitions: int) -> tuple[str, ...]:
    """Return the names of the guards' consumers in each queue and in TIMER, by partition."""
    return tuple(map(queue_consumer, range(partitions)))


def partitions_of(stream: Mapping[str, Any]) -> int:
    """Return the number of partitions in the configuration `stream` of a queue or of TIMER."""
    return int((stream.get("metadata") or {}).get(_PARTITIONS_KEY, PARTITIONS))


def kind_of(stream: str) -> Kind | None:
    """Return the kind of a queue; None if the stream is not a queue."""
    kind = stream.partition("-")[0]
    return kind if kind in (PROPOSALS, CONTROLS, TIMERS) else None  # type: ignore[return-value]


def _queues(fleet: Fleet, storage: Storage) -> dict[str, dict[str, Any]]:
    """Return the configuration of each queue, by name."""
    controls = Limits(_CONTROLS_MESSAGES, _CONTROLS_BYTES)
    ways = fleet.partitions
    table = {CONTROLS: _queue("ctl", (*fleet.operators, _ADMIN), controls, ways)}
    table |= {controls_of(name): _queue("ctl", (name,), controls, ways) for name in fleet.clients}
    for name in (*fleet.agents, *fleet.clients, *fleet.operators):
        table[proposals_of(name)] = _queue("prop", (name,), storage.limits_for(name), ways)
    return table


def _queue(kind: str, senders: Iterable[str], limits: Limits, partitions: int) -> dict[str, Any]:
    """Return a work queue that inserts the request's partition into the subject of each stored message."""
    return {
        "subjects": [f"mesh.{kind}.{sender}.*" for sender in senders],
        "retention": "workqueue",
        "discard": "new",
        "max_msgs": limits.messages,
        "max_bytes": limits.bytes,
        "max_msg_size": MESSAGE_BYTES,
        "subject_transform": {
            "src": f"mesh.{kind}.*.*",
            "dest": f"mesh.{kind}.{{{{partition({partitions},2)}}}}.{{{{wildcard(1)}}}}.{{{{wildcard(2)}}}}",
        },
    }


# --- the table --------------------------------------------------------------------------------------

_KEPT = {"allow_direct": True, "deny_delete": True, "deny_purge": True}
_ONCE = {"discard": "new", "discard_new_per_subject": True, "max_msgs_per_subject": 1}
"""Each subject is written only once."""


def stream_table(fleet: Fleet, storage: Storage = DEFAULT_STORAGE) -> dict[str, dict[str, Any]]:
    """Return every stream's configuration, as JetStream spells it, by name."""
    age = int(fleet.log_max_age_s * NS)
    table: dict[str, dict[str, Any]] = {
        **_queues(fleet, storage),
        **{steps_of(agent): _journals(agent, storage.limits_for(agent), age) for agent in fleet.agents},
        **{memory_of(name): _memory(name, fleet, storage) for name in (*fleet.clients, *fleet.operators)},
        "LOG": {
            **_KEPT,
            "discard": "new",
            "max_age": age,
            "max_bytes": storage.log_max_bytes,
            "max_consumers": _LOG_CONSUMERS,
            "republish": _wake_up("mesh.evt.*.*", "mesh.note.{{wildcard(1)}}.{{wildcard(2)}}"),
        },
        # Separate from journals, so that an agent with full journals cannot keep its turns from ending.
        "ENDS": {**_KEPT, **_ONCE, "max_bytes": _ENDS_BYTES, "max_age": age},
        # The oldest are dropped: a refused write would hold up the verdict that leads to it.
        "ASKS": {
            **_KEPT,
            "max_msgs_per_subject": 1,
            "max_bytes": _ASKS_BYTES,
            "max_age": age,
            "republish": _wake_up("mesh.ask.*.*", "mesh.note.{{wildcard(1)}}.{{wildcard(2)}}"),
        },
        # The server forbids `discard: new` with schedules, so this stream has no size limit. It holds one
        # schedule per open request, and only guards write it.
        TIMERS: {"retention": "workqueue", "allow_msg_schedules": True},
        "CONF": {
            "allow_direct": True,
            "deny_delete": True,
            "max_msgs_per_subject": REVISIONS,
            "max_msg_size": MIB // 2,
            "republish": _wake_up("mesh.conf.>", f"{CONF_CHANGED}.>"),
        },
        "CARDS": {
            **_KEPT,
            "max_msgs_per_subject": 1,
            "max_msg_size": 64 * KIB,
            "republish": _wake_up("mesh.card.*", f"{CONF_CHANGED}.card.{{{{wildcard(1)}}}}"),
        },
        # No turn needs a prompt that was not stored. What is stored stays as long as the log may name it.
        "PROMPTS": {**_KEPT, **_ONCE, "max_msg_size": MESSAGE_BYTES, "max_bytes": _PROMPTS_BYTES},
        # About 15 bytes per event. The oldest are dropped: guards never wait for an anchor to be stored.
        ANCHORS: {**_KEPT, "max_bytes": _ANCHORS_BYTES, "max_age": age},
        # The oldest make room here, too. What is judged again, and a later count, replaces the earlier one.
        SHADOW: {
            **_KEPT,
            "max_msgs_per_subject": 1,
            "max_msg_size": 64 * KIB,
            "max_bytes": _SHADOW_BYTES,
            "max_age": _SHADOW_AGE,
        },
        "DEAD": {
            "allow_direct": True,
            "max_msgs_per_subject": MOST_LETTERS,  # a sender takes 125 MiB and displaces only its own
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
            **({"subjects": list(STORED_IN[name])} if name in STORED_IN else {}),
            **(NEVER if name != TIMERS else {}),  # schedules need rollups there; only guards write it
            **config,
            "metadata": {
                SCHEMA_KEY: str(SCHEMA),
                **({} if kind_of(name) is None else {_PARTITIONS_KEY: str(fleet.partitions)}),
            },
        }
        for name, config in table.items()
    }


def _wake_up(source: str, destination: str) -> dict[str, Any]:
    """Return the setting that publishes a wake-up without a body for each stored message."""
    return {"src": source, "dest": destination, "headers_only": True}


def _journals(agent: str, limits: Limits, age: int) -> dict[str, Any]:
    """Return the configuration of the stream of an agent's journals."""
    return {
        "subjects": [f"mesh.step.{agent}.*.*.*"],
        "allow_direct": True,
        "deny_delete": True,  # purging is allowed, to the admin only: `mesh log trim-steps`
        **_ONCE,
        "max_msgs": limits.steps,
        "max_bytes": limits.step_bytes,
        "max_age": age,
    }


def _memory(client: str, fleet: Fleet, storage: Storage) -> dict[str, Any]:
    """Return the configuration of a client's memory stream. Each client fills only its own.

    The oldest facts are dropped. Refused writes would hold up the answers that they come with.
    """
    return {
        **_KEPT,
        "subjects": [f"mesh.mem.{client}.*.*"],
        "max_msgs_per_subject": 1,
        "max_msg_size": MESSAGE_BYTES,
        "max_bytes": storage.memory_bytes,
        "max_age": int(fleet.memory_max_age_s * NS),
    }


_STREAM_OF = {each.split(".")[1]: stream for stream, each_of in STORED_IN.items() for each in each_of}
_STREAM_OF["ctl"] = CONTROLS


def stream_of(subject: str) -> str:
    """Return the stream that stores a subject or that an API subject reads; empty for anything else."""
    match subject.split("."):
        case ["mesh", "prop", sender, *_]:
            return proposals_of(sender)
        case ["mesh", "step", agent, *_]:
            return steps_of(agent)
        case ["mesh", "mem", client, *_]:
            return memory_of(client)
        case ["mesh", kind, _, *_] if kind in _STREAM_OF:
            return _STREAM_OF[kind]
        case ["$JS", "API", "DIRECT", "GET", stream, *_] | ["$JS", "API", "STREAM", "MSG", "GET", stream]:
            return stream
        case ["mesh", "api", "STREAM", "MSG", "GET", stream]:
            return stream
    return ""


def inbox_consumer(name: str) -> str:
    """Return the name of the consumer of an inbox in LOG, an agent's or an intent's (`intent_inbox`)."""
    return f"in-{name}"


def is_offers_consumer(consumer: str) -> bool:
    """Return True if a consumer of LOG is of an intent's inbox, which all agents that list it share."""
    return consumer.startswith(inbox_consumer(ANYBODY))


def consumer_table(fleet: Fleet, storage: Storage = DEFAULT_STORAGE) -> Iterator[Consumer]:
    """Yield every consumer that `fleet` needs: guards' on each queue, and agents' on inboxes.

    With replicas, the state of guards' consumers is kept in memory, without fsync. If all servers stop at
    once it is lost, and unacknowledged messages, which are still in the queue, are delivered again. A single
    server would lose the consumer itself.
    """
    queues = _queues(fleet, DEFAULT_STORAGE)
    filters = {name: f"mesh.{name.partition('-')[0].lower()}.{{}}.>" for name in queues}
    filters[TIMERS] = "mesh.timer.fire.{}.*"
    guards = {
        "priority_policy": "prioritized",
        "priority_groups": [GUARD_GROUP],
        IN_MEMORY: storage.replicas > 1,
    }
    for partition, consumer in enumerate(queue_consumers(fleet.partitions)):
        for stream, subject in filters.items():
            leased = _leased(subject.format(partition), fleet.guard_lease_s, max_ack_pending=256)
            yield _consumer(stream, consumer, {**leased, **guards})
    offers = {intent_inbox(intent): None for intent in offered_intents(fleet)}
    for name in (*fleet.agents, *offers):
        yield _consumer(LOG, inbox_consumer(name), _leased(inbox(name), fleet.lease_s, 1000))


def offered_intents(fleet: Fleet) -> list[str]:
    """Return every intent that has an inbox of offers in `fleet`, each once."""
    return list(dict.fromkeys(intent for agent in fleet.agents for intent in offers_to(fleet, agent)))


def offers_to(fleet: Fleet, name: str) -> tuple[str, ...]:
    """Return the intents whose offers a member reads: in a mesh with swarms, those that it lists."""
    entry = fleet.agents.get(name)
    return entry.intents or () if fleet.swarms and entry is not None else ()


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
