"""Queues: what agents, clients and operators want of guards, in a stream of each sender's own.

A sender's queue has limits of its own: what it floods fills its own queue, and the broker refuses the rest.
Guards take from all of them, so that nobody waits behind another. Operators share one queue for what they
control: freeze and thaw have one order, and nobody else is in front of them.

An agent's journals have a stream of their own for the same reason.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Literal, NamedTuple

from protocol.wire.config import Fleet
from protocol.wire.subjects import PARTITIONS

PROPOSALS, CONTROLS, TIMERS = "PROP", "CTL", "TIMER"
_JOURNALS = "STEPS-"
MESSAGE_BYTES = 256 << 10
"""The largest message that a queue takes, with subject and headers."""
_ADMIN = "admin"
"""Who may publish in everybody's name; CTL has to have a subject where a fleet has no operators."""
_CONTROLS_MESSAGES, _CONTROLS_BYTES = 10_000, 16 << 20

Kind = Literal["PROP", "CTL", "TIMER"]


class Limits(NamedTuple):
    """How much one sender may store. Beyond it the broker refuses (`err_code` 10077)."""

    messages: int = 10_000
    """Messages that wait for guards."""
    bytes: int = 64 << 20
    """Bytes of these messages."""
    steps: int = 250_000
    """Steps in an agent's journals. The server keeps each one's subject in memory."""
    step_bytes: int = 256 << 20
    """Bytes of these steps."""


def proposals_of(sender: str) -> str:
    """Return the stream of a sender's submits and proposals."""
    return f"{PROPOSALS}-{sender}"


def controls_of(client: str) -> str:
    """Return the stream of a client's control messages; those of operators are in CTL."""
    return f"{CONTROLS}-{client}"


def steps_of(agent: str) -> str:
    """Return the stream of an agent's journals."""
    return f"{_JOURNALS}{agent}"


def is_journal_stream(stream: str) -> bool:
    """Return True if a stream holds the journals of an agent."""
    return stream.startswith(_JOURNALS)


def queue_consumer(partition: int) -> str:
    """Name of the guards' consumer of one partition, the same in every queue and in TIMER."""
    return f"g{partition}"


QUEUE_CONSUMERS = tuple(queue_consumer(partition) for partition in range(PARTITIONS))


def kind_of(stream: str) -> Kind | None:
    """Return what a stream holds for guards; None if it is no queue."""
    kind = stream.partition("-")[0]
    return kind if kind in (PROPOSALS, CONTROLS, TIMERS) else None  # type: ignore[return-value]


def queue_names(fleet: Fleet) -> list[str]:
    """Return the queues of a fleet in the order in which guards begin to take from them."""
    return list(queue_table(fleet, Limits(), {}))


def queue_table(fleet: Fleet, limits: Limits, of: Mapping[str, Limits]) -> dict[str, dict[str, Any]]:
    """Return the configuration of each queue, by name.

    Args:
        limits: of each sender's queue, those of senders in `of` excepted.
    """
    told = Limits(_CONTROLS_MESSAGES, _CONTROLS_BYTES)
    table = {CONTROLS: _queue("ctl", (*fleet.operators, _ADMIN), told)}
    table |= {controls_of(name): _queue("ctl", (name,), told) for name in fleet.clients}
    for name in (*fleet.agents, *fleet.clients, *fleet.operators):
        table[proposals_of(name)] = _queue("prop", (name,), of.get(name, limits))
    return table


def _queue(kind: str, senders: Iterable[str], limits: Limits) -> dict[str, Any]:
    """A work queue whose subjects get the request's partition put in when a message is stored."""
    return {
        "subjects": [f"mesh.{kind}.{sender}.*" for sender in senders],
        "retention": "workqueue",
        "discard": "new",
        "max_msgs": limits.messages,
        "max_bytes": limits.bytes,
        "max_msg_size": MESSAGE_BYTES,
        "subject_transform": {
            "src": f"mesh.{kind}.*.*",
            "dest": f"mesh.{kind}.{{{{partition({PARTITIONS},2)}}}}.{{{{wildcard(1)}}}}.{{{{wildcard(2)}}}}",
        },
    }


def queue_filters(fleet: Fleet) -> Iterator[tuple[str, str, str]]:
    """Yield stream, consumer and filter of everything that guards take from."""
    for partition, consumer in enumerate(QUEUE_CONSUMERS):
        for stream in queue_names(fleet):
            yield stream, consumer, f"mesh.{stream.partition('-')[0].lower()}.{partition}.>"
        yield TIMERS, consumer, f"mesh.timer.fire.{partition}.*"
