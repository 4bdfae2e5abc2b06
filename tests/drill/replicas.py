"""What each server of a cluster holds in the end, read from each alone; and whether it is the same.

An acknowledged message is on a majority, and any server that keeps the stream answers readers. What one of
them lost, or has otherwise, is not seen by a reader that another one answers.
"""

import asyncio
import base64
import hashlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any

from mesh.bus.connection import Bus
from mesh.bus.streams import LOG, is_journal_stream
from mesh.errors import ApiError, BusError
from tests.drill.cluster import Cluster
from tests.drill.evidence import Held
from tests.drill.findings import Breach
from tests.drill.reading import Reading

_AT_ONCE = 64
_TRIES = 40
_AGAIN_S = 0.5
_MOST_RANGES = 5
_NO_MESSAGE = 10037


class NotLed(BusError, code="drill.not_led"):
    """A server does not become the leader of a stream."""


async def read_held(cluster: Cluster, bus: Bus) -> list[Held]:
    """Return what each server holds: of the log message by message, of what else is kept the numbers.

    Only a stream's leader answers `STREAM.MSG.GET`, from its own store: each server leads in turn.
    """
    held = []
    states = await cluster.states()
    last = max(int(each[LOG].get("last_seq", 0)) for each in states.values() if LOG in each)
    for server, streams in states.items():
        digests = await _digests(bus, server, last)
        for stream, state in sorted(streams.items()):
            if stream == LOG or stream in ("DEAD", "ENDS") or is_journal_stream(stream):
                held.append(_held(server, stream, state, digests if stream == LOG else None))
        if LOG not in streams:
            held.append(_held(server, LOG, {}, digests))
    return held


def _held(server: str, stream: str, state: Mapping[str, Any], digests: Sequence[str] | None) -> Held:
    return Held(
        server=server,
        stream=stream,
        messages=int(state.get("messages", 0)),
        first=int(state.get("first_seq", 0)),
        last=int(state.get("last_seq", 0)),
        deleted=int(state.get("num_deleted", 0)),
        digests=digests,
    )


async def _digests(bus: Bus, server: str, last: int) -> list[str]:
    """Return the digest of each message of the log, as a server has it that leads."""
    await _lead(bus, server)
    gate = asyncio.Semaphore(_AT_ONCE)

    async def digest(seq: int) -> str:
        async with gate:
            return await bus.retry_unavailable(lambda: _digest(bus, seq))

    found = await asyncio.gather(*(digest(seq) for seq in range(1, last + 1)))
    if await _leader(bus) != server:
        raise NotLed(f"{server} led {LOG} for a moment only")
    return found


async def _digest(bus: Bus, seq: int) -> str:
    try:
        message = (await bus.api(f"STREAM.MSG.GET.{LOG}", {"seq": seq}))["message"]
    except ApiError as error:
        if error.err_code == _NO_MESSAGE:
            return ""
        raise
    body = message["subject"].encode() + b"\0" + base64.b64decode(message.get("data", ""))
    return hashlib.sha256(body).hexdigest()[:16]


async def _lead(bus: Bus, server: str) -> None:
    for _ in range(_TRIES):
        if await _leader(bus) == server:
            return
        try:
            preferred = {"placement": {"preferred": server}}
            await bus.api(f"STREAM.LEADER.STEPDOWN.{LOG}", preferred)
        except (ApiError, BusError):
            pass  # they elect already
        await asyncio.sleep(_AGAIN_S)
    raise NotLed(f"{server} does not become the leader of {LOG}")


async def _leader(bus: Bus) -> str:
    try:
        return str((await bus.api(f"STREAM.INFO.{LOG}"))["cluster"].get("leader", ""))
    except (ApiError, BusError):
        return ""


def replicas_agree(reading: Reading) -> Iterator[Breach]:
    """Every server has each message of the log, and as many as the others of what else is kept."""
    held = reading.evidence.held
    for stream in dict.fromkeys(each.stream for each in held):
        replicas = [each for each in held if each.stream == stream]
        numbers = Counter((each.messages, each.first, each.last, each.deleted) for each in replicas)
        [(usual, _)] = numbers.most_common(1)
        for each in replicas:
            has = (each.messages, each.first, each.last, each.deleted)
            if has != usual:
                detail = f"{each.server} counts {_numbers(has)} of {stream}, and the others {_numbers(usual)}"
                yield Breach(promise="replicas_agree", request="", detail=detail)
        yield from _message_by_message(replicas)


def _message_by_message(replicas: Sequence[Held]) -> Iterator[Breach]:
    read = {each.server: each.digests for each in replicas if each.digests is not None}
    last = max(map(len, read.values()), default=0)
    columns = [
        [digests[seq] if seq < len(digests) else "" for digests in read.values()] for seq in range(last)
    ]
    right = [Counter(filter(None, column)).most_common(1) for column in columns]
    for server, digests in read.items():
        lacks, otherwise = list[int](), list[int]()
        for seq, usual in enumerate(right):
            mine = digests[seq] if seq < len(digests) else ""
            if usual and mine != usual[0][0]:
                (otherwise if mine else lacks).append(seq + 1)
        for what, where in (("lacks", lacks), ("has another event at", otherwise)):
            if where:
                detail = f"{server} {what} {len(where)} of {last} in {LOG}: {_ranges(where)}"
                yield Breach(promise="replicas_agree", request="", detail=detail)


def _numbers(has: tuple[int, int, int, int]) -> str:
    messages, first, last, deleted = has
    return f"{messages} messages from {first} to {last}, {deleted} deleted"


def _ranges(numbers: Sequence[int]) -> str:
    """Return numbers as ranges, `3-7, 9`."""
    found = []
    for _, run in groupby(enumerate(numbers), lambda pair: pair[1] - pair[0]):
        listed = [number for _, number in run]
        found.append(str(listed[0]) if len(listed) == 1 else f"{listed[0]}-{listed[-1]}")
    more = f" and {len(found) - _MOST_RANGES} more" if len(found) > _MOST_RANGES else ""
    return ", ".join(found[:_MOST_RANGES]) + more
