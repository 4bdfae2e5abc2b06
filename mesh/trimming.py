"""Making room among the journals: steps of requests that are over, by the admin alone.

The events of a request, and the marks that end its turns, stay. A process that hung since before a request
ended finds no step of its own turn any more, so that only what ended a while ago is trimmed.
"""

import time
from collections.abc import AsyncIterator
from typing import Any, NamedTuple

from mesh.bus.connection import Bus
from mesh.bus.log import JetStreamLog
from protocol.submit import AHEAD_S
from protocol.wire import codec
from protocol.wire.errors import Malformed, UnknownEvent
from protocol.wire.events import Ended
from protocol.wire.ids import is_request_id, submitted_ms

LEAST_S = 3600.0
"""The least time for which steps stay after their request has ended: nothing that works hangs for so long."""
_STEPS = "mesh.step.*.*.*.*"
_API_S = 60.0


class Trimmed(NamedTuple):
    """One request's steps."""

    request: str
    steps: int


async def trim_steps(bus: Bus, *, older_than_s: float, dry_run: bool = False) -> AsyncIterator[Trimmed]:
    """Take the steps of ended requests out of STEPS, and yield what went; with `dry_run`, what would go.

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
            asked = {"filter": f"mesh.step.*.{request}.*.*"}
            steps = int((await bus.api("STREAM.PURGE.STEPS", asked, timeout_s=_API_S))["purged"])
        yield Trimmed(request, steps)


async def _steps_by_request(bus: Bus) -> dict[str, int]:
    found: dict[str, int] = {}
    offset = 0
    while True:
        asked = {"subjects_filter": _STEPS, "offset": offset}
        page: dict[str, Any] = await bus.api("STREAM.INFO.STEPS", asked, timeout_s=_API_S)
        subjects: dict[str, int] = page["state"].get("subjects") or {}
        for subject, count in subjects.items():
            request = subject.split(".")[3]
            found[request] = found.get(request, 0) + count
        offset += len(subjects)
        if not subjects or offset >= int(page.get("total", 0)):
            return found


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
