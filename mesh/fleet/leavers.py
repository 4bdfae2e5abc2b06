"""Agents that leave the fleet file, and the open requests whose rounds therefore end.

A guard ends the round of an agent that is not in the fleet when it next processes the request. So before a
fleet without the agent is written, its requests are found, and guards are woken for them soon after.
"""

import asyncio
import time
from collections.abc import Iterable
from typing import NamedTuple

from mesh.bus.connection import Bus
from mesh.bus.event_log import JetStreamLog
from mesh.bus.reader import every, last
from mesh.bus.stores import arm_schedule, current_schedule
from mesh.errors import ApiCode, ApiError, LogUnreadable, SequenceConflict
from protocol.domain.ledger import fold
from protocol.wire import codec, documents, subjects
from protocol.wire.config import Fleet
from protocol.wire.documents import DocumentInvalid
from protocol.wire.errors import ProtocolError
from protocol.wire.events import Ended

READ_S = 2.0
"""How long guards have to read a new fleet before they are woken."""
_AT_ONCE = 16
_ATTEMPTS = 8


class HeldRequest(NamedTuple):
    """An open request with a turn of a leaving agent."""

    agent: str
    request: str


async def held_by_leavers(bus: Bus, fleet: Fleet) -> list[HeldRequest]:
    """Return the open requests of agents that are in the bus's fleet but not in `fleet`. Raises BusError.

    Args:
        bus: the admin's connection. All events of such agents are read; if there are none, no event is read.
    """
    try:
        found = await last(bus, "CONF", subjects.FLEET, leader=True)
    except ApiError as error:
        if error.err_code != ApiCode.STREAM_NOT_FOUND:
            raise
        return []  # the first setup
    try:
        before = () if found is None else tuple(documents.read_fleet(found.data).agents)
    except DocumentInvalid:
        before = ()  # guards cannot read it either, and use the last good one
    return [
        HeldRequest(agent, request)
        for agent in before
        if agent not in fleet.agents
        for request in await _held(bus, agent)
    ]


async def _held(bus: Bus, agent: str) -> list[str]:
    stored = every(bus, "LOG", subjects.inbox(agent))
    requests = tuple(dict.fromkeys([subjects.parse_evt(each.subject).request async for each in stored]))
    room = asyncio.Semaphore(_AT_ONCE)
    log = JetStreamLog(bus)

    async def holds(request: str) -> bool:
        async with room:
            try:
                head = await log.head(request)
                if head is None or isinstance(codec.decode_event(head.data), Ended):
                    return False
                ledger = fold(codec.decode_event(each.data) for each in await log.read(request))
            except (LogUnreadable, ProtocolError):
                return False  # no guard can read it either
        return any(turn.agent == agent for turn in ledger.open.values())

    return [
        request
        for request, is_held in zip(requests, await asyncio.gather(*map(holds, requests)), strict=True)
        if is_held
    ]


async def look_soon(bus: Bus, requests: Iterable[str], partitions: int) -> None:
    """Have a guard wake each request once guards have read the fleet. Raises BusError."""
    at = time.time_ns() // 1000 + int(READ_S * 1e6)
    for request in dict.fromkeys(requests):
        for left in reversed(range(_ATTEMPTS)):
            stands = await current_schedule(bus, request)
            if stands is not None and stands[1] <= at:
                break
            try:
                await arm_schedule(bus, request, at, partitions, after=0 if stands is None else stands[0])
            except SequenceConflict:  # a guard has just armed it
                if not left:
                    raise
            else:
                break
