"""The memories of conversations: list them, show their facts, have them forgotten.

Viewers and operators see those of every client; a client sees only its own.
"""

import time
from typing import Any

import msgspec

from mesh.bus.connection import Bus
from mesh.bus.memory import is_obeyed, read_memory
from mesh.errors import Denied, NotFound, UsageWrong
from mesh.ops.control import order_id, order_mesh
from mesh.ops.roster import fleet_of
from protocol.domain.memory import MemoryEntry, current_records
from protocol.wire.commands import Forget
from protocol.wire.ids import AgentName
from protocol.wire.prices import LONGEST_S
from protocol.wire.records import MemoryRecord


class ConversationEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One conversation that remembers something."""

    client: str
    conversation: str
    keys: tuple[str, ...]
    at: int
    """Time of its newest fact (UTC µs)."""


class RememberedFact(msgspec.Struct, frozen=True, kw_only=True):
    """One fact that a conversation remembers."""

    client: str
    conversation: str
    key: str
    value: Any
    labels: tuple[str, ...]
    at: int
    """Time of the answer that it came with (UTC µs)."""
    request: str


class Forgotten(msgspec.Struct, frozen=True, kw_only=True):
    """What was forgotten."""

    client: str
    conversation: str
    keys: tuple[str, ...]


async def conversations(bus: Bus, client: str | None = None) -> list[ConversationEntry]:
    """Return the conversations that remember anything, newest fact first.

    Args:
        client: return only those of this client.

    Raises NotFound for an unknown client, Denied for another client's conversations, BusError.
    """
    found = []
    for name, current in (await _current(bus, client)).items():
        for conversation in {record.conversation for record in current}:
            own = [record for record in current if record.conversation == conversation]
            keys, at = tuple(sorted(record.key for record in own)), max(record.at for record in own)
            found.append(ConversationEntry(client=name, conversation=conversation, keys=keys, at=at))
    return sorted(found, key=lambda entry: (-entry.at, entry.client, entry.conversation))


async def facts(bus: Bus, conversation: str, client: str | None = None) -> list[RememberedFact]:
    """Return what a conversation remembers, by key. Raises as `conversations`, and UsageWrong as `forget`."""
    name, current = await _one(bus, conversation, client)
    return [
        RememberedFact(
            client=name,
            conversation=conversation,
            key=record.key,
            value=record.fact.value,
            labels=record.fact.labels,
            at=record.at,
            request=record.request,
        )
        for record in sorted(current, key=lambda record: record.key)
    ]


async def forget(
    bus: Bus,
    conversation: str,
    keys: tuple[str, ...] = (),
    client: str | None = None,
    *,
    by: str = "",
) -> Forgotten:
    """Have a conversation forget these facts, or all; return what it forgot. Requests keep their copies.

    Raises NotFound for a fact that is not remembered, UsageWrong if several clients have such a conversation
    and none is named, and as `order_mesh`.
    """
    name, current = await _one(bus, conversation, client)
    known = {record.key for record in current}
    if missing := sorted(set(keys) - known):
        raise NotFound(f"{conversation!r} of {name} does not remember {', '.join(missing)}")
    control = Forget(id=order_id(), by=by, client=AgentName(name), conversation=conversation, keys=keys)
    asked = keys or tuple(sorted(known))

    async def forgotten() -> Forgotten | None:
        if not await is_obeyed(bus, name, conversation, bus.name, control.id):
            return None
        return Forgotten(client=name, conversation=conversation, keys=asked)

    return await order_mesh(bus, control, forgotten)


async def _one(bus: Bus, conversation: str, client: str | None) -> tuple[str, list[MemoryRecord]]:
    """Return the client of a conversation, and its records. Raises NotFound, UsageWrong."""
    found = await _current(bus, client, conversation)
    if not found:
        aged = "it may have been forgotten, or be older than the fleet file lets facts be"
        raise NotFound(f"nothing is remembered under {conversation!r}: {aged}")
    if len(found) > 1:
        raise UsageWrong(f"{', '.join(sorted(found))} have a conversation {conversation!r}: say --client")
    return found.popitem()


async def _current(
    bus: Bus, client: str | None, conversation: str | None = None
) -> dict[str, list[MemoryRecord]]:
    """Return the current records by client; clients without any are left out."""
    names: tuple[str, ...]
    max_age_s = LONGEST_S
    try:
        fleet = await fleet_of(bus)
    except Denied:  # a client, which sees its own
        names = (client or bus.name,)
    else:
        names, max_age_s = (*fleet.clients, *fleet.operators), fleet.memory_max_age_s
        if client is not None and client not in names:
            raise NotFound(f"{client!r} is no client or operator of the fleet")
        names = names if client is None else (client,)
    found = {}
    for name in names:
        by_conversation: dict[str, list[MemoryEntry]] = {}
        for entry in (await read_memory(bus, name, conversation)).entries:
            by_conversation.setdefault(entry.conversation, []).append(entry)
        current = [
            each for known in by_conversation.values() for each in current_records(known, _now(), max_age_s)
        ]
        if current:
            found[name] = current
    return found


def _now() -> int:
    return time.time_ns() // 1000
