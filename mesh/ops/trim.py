"""Making room among the journals: steps of requests that are over, by the admin alone.

The events of a request, and the marks that end its turns, stay. A process that hung since before a request
ended finds no step of its own turn any more, so that only what ended a while ago is trimmed.
"""

import time
from collections.abc import AsyncIterator
from typing import Any, NamedTuple

from mesh.bus.connection import Bus
from mesh.bus.event_log import JetStreamLog
from mesh.bus.provision import standing_journals
from protocol.domain.submit import AHEAD_S
from protocol.wire import codec, subjects
from protocol.wire.errors import Malformed, UnknownEvent
from protocol.wire.events import Ended
from protocol.wire.ids import is_request_id, submitted_ms

LEAST_S = 3600.0
"""The least time for which steps stay after their request has ended: nothing that works hangs for so long."""
_STEPS = subjects.STEPS
_WILDCARDS = ("*", ">")
"""Tokens that the server lets an agent publish. To purge such a request would take out every journal."""
_API_S = 60.0


class Trimmed(NamedTuple):
    """One request's steps."""

    request: str
    steps: int


async def trim_steps(bus: Bus, *, older_than_s: float, dry_run: bool = False) -> AsyncIterator[Trimmed]:
    """Take the steps of ended requests out of the journals; yield what went, or with `dry_run` would go.

    Steps of requests that the log does not hold, no longer or never, go too.

    Args:
        bus: the admin's.
        older_than_s: for how long a request must be over; at least `LEAST_S`.

    Raises BusError.
    """
    before_ms = int((time.time() - max(older_than_s, LEAST_S)) * 1000)
    log = JetStreamLog(bus)
    for request, steps in (await _steps_by_request(bus)).items():
        if not await _is_over(log, request, before_ms):
            continue
        if not dry_run:
            asked = {"filter": f"mesh.step.*.{request}.*.*"}  # as it is stored: agents write any token
            purged = [await bus.api(f"STREAM.PURGE.{each}", asked, timeout_s=_API_S) for each in steps]
            yield Trimmed(request, sum(int(each["purged"]) for each in purged))
        else:
            yield Trimmed(request, sum(steps.values()))


async def _steps_by_request(bus: Bus) -> dict[str, dict[str, int]]:
    """Return how many steps lie in each stream of journals, by request."""
    found: dict[str, dict[str, int]] = {}
    for stream in await standing_journals(bus):
        async for request, count in _requests_in(bus, stream):
            steps = found.setdefault(request, {})
            steps[stream] = steps.get(stream, 0) + count
    return found


async def _requests_in(bus: Bus, stream: str) -> AsyncIterator[tuple[str, int]]:
    offset = 0
    while True:
        asked = {"subjects_filter": _STEPS, "offset": offset}
        page: dict[str, Any] = await bus.api(f"STREAM.INFO.{stream}", asked, timeout_s=_API_S)
        subjects: dict[str, int] = page["state"].get("subjects") or {}
        for subject, count in subjects.items():
            request = subject.split(".")[3]
            if request not in _WILDCARDS:
                yield request, count
        offset += len(subjects)
        if not subjects or offset >= int(page.get("total", 0)):
            return


async def bytes_in_journals(bus: Bus) -> int:
    """Return how many bytes all journals have. Raises BusError."""
    infos = [await bus.api(f"STREAM.INFO.{stream}") for stream in await standing_journals(bus)]
    return sum(int(info["state"]["bytes"]) for info in infos)


async def _is_over(log: JetStreamLog, request: str, before_ms: int) -> bool:
    """Return True if a request ended before a time, or if it is in no log and cannot begin any more."""
    if not is_request_id(request):
        return True  # an agent may write steps of anything
    head = await log.head(request)
    if head is None:
        return not before_ms < submitted_ms(request) <= (time.time() + AHEAD_S) * 1000
    try:
        event = codec.decode_event(head.body)
    except (Malformed, UnknownEvent):
        return False
    return isinstance(event, Ended) and event.at // 1000 < before_ms
