"""The memories of conversations: list them, show their facts, have them forgotten.

Viewers and operators see those of every client; a client sees only its own.
"""

import time
from typing import Any, NamedTuple

import msgspec

from mesh.bus.connection import Bus
from mesh.bus.memory import is_obeyed, read_memory, speakers
from mesh.errors import Denied, NotFound, UsageWrong
from mesh.ops.control import order_id, order_mesh
from mesh.ops.roster import fleet_of
from protocol.domain.memory import MemoryEntry, current_records, last_speaker
from protocol.wire.commands import Forget
from protocol.wire.ids import AgentName
from protocol.wire.prices import LONGEST_S
from protocol.wire.records import MemoryRecord, MemorySpeaker


class ConversationEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One conversation that remembers something."""

    client: str
    conversation: str
    keys: tuple[str, ...]
    at: int
    """Time of its newest fact, or of when somebody spoke last (UTC µs)."""
    last: str = ""
    """The agent that spoke last in it, if it remembers that."""


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
    last: str = ""
    """The agent that spoke last, if that was forgotten, too."""


class _Current(NamedTuple):
    """What a client's conversations remember now."""

    records: list[MemoryRecord]
    spoken: list[MemorySpeaker]
    """Who spoke last, by conversation."""


async def conversations(bus: Bus, client: str | None = None) -> list[ConversationEntry]:
    """Return the conversations that remember anything, newest fact first.

    Args:
        client: return only those of this client.

    Raises NotFound for an unknown client, Denied for another client's conversations, BusError.
    """
    found = []
    for name, current in (await _current(bus, client)).items():
        last = {each.conversation: each for each in current.spoken}
        for conversation in {record.conversation for record in current.records} | last.keys():
            own = [record for record in current.records if record.conversation == conversation]
            spoke = last.get(conversation)
            found.append(
                ConversationEntry(
                    client=name,
                    conversation=conversation,
                    keys=tuple(sorted(record.key for record in own)),
                    at=max([record.at for record in own] + ([] if spoke is None else [spoke.at])),
                    last="" if spoke is None else spoke.agent,
                )
            )
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
        for record in sorted(current.records, key=lambda record: record.key)
    ]


async def forget(
    bus: Bus,
    conversation: str,
    keys: tuple[str, ...] = (),
    client: str | None = None,
    *,
    by: str = "",
) -> Forgotten:
    """Have a conversation forget these facts, or all and who spoke last. Requests keep their copies.

    Raises NotFound for a fact that is not remembered, UsageWrong if several clients have such a conversation
    and none is named, and as `order_mesh`.
    """
    name, current = await _one(bus, conversation, client)
    known = {record.key for record in current.records}
    last = "" if keys else "".join(each.agent for each in current.spoken)
    if missing := sorted(set(keys) - known):
        raise NotFound(f"{conversation!r} of {name} does not remember {', '.join(missing)}")
    control = Forget(id=order_id(), by=by, client=AgentName(name), conversation=conversation, keys=keys)
    asked = keys or tuple(sorted(known))

    async def forgotten() -> Forgotten | None:
        if not await is_obeyed(bus, name, conversation, bus.name, control.id):
            return None
        return Forgotten(client=name, conversation=conversation, keys=asked, last=last)

    return await order_mesh(bus, control, forgotten)


async def _one(bus: Bus, conversation: str, client: str | None) -> tuple[str, _Current]:
    """Return the client of a conversation, and what it remembers. Raises NotFound, UsageWrong."""
    found = await _current(bus, client, conversation)
    if not found:
        aged = "it may have been forgotten, or be older than the fleet file lets facts be"
        raise NotFound(f"nothing is remembered under {conversation!r}: {aged}")
    if len(found) > 1:
        raise UsageWrong(f"{', '.join(sorted(found))} have a conversation {conversation!r}: say --client")
    return found.popitem()


async def _current(bus: Bus, client: str | None, conversation: str | None = None) -> dict[str, _Current]:
    """Return what is remembered now, by client; clients without anything are left out."""
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
        memory, now = await read_memory(bus, name, conversation), _now()
        for entry in memory.entries:
            by_conversation.setdefault(entry.conversation, []).append(entry)
        current = [
            each for known in by_conversation.values() for each in current_records(known, now, max_age_s)
        ]
        spoken = [
            each
            for each in ([] if memory.closed else await speakers(bus, name, conversation))
            if last_speaker([each], by_conversation.get(each.conversation, ()), now, max_age_s) is not None
        ]
        if current or spoken:
            found[name] = _Current(current, spoken)
    return found


def _now() -> int:
    return time.time_ns() // 1000
