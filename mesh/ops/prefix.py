"""A request's id found from its beginning, as tables show it.

An id begins with its client's name and the millisecond in which it was made. So a prefix names a span of
time, and only that part of the log is read. No index of ids is kept.
"""

import re
import time
from datetime import UTC, datetime

from mesh.bus.connection import Bus
from mesh.bus.reader import batch, first_since
from mesh.errors import Denied, NotFound, UsageWrong
from mesh.ops.log import glance
from protocol.domain.submit import AHEAD_S
from protocol.wire import subjects
from protocol.wire.ids import RequestId, submitted_ms

_PREFIX = re.compile(r"[a-z0-9-]{1,24}_[0-7][0-9A-HJKMNP-TV-Z]{0,24}")
_TIME_CHARS = 10
"""Of a ULID's 26 characters: its milliseconds (https://github.com/ulid/spec)."""
_LATE_S = 3600
"""How long a submit may have waited in its queue before the search goes on without it, once one is found."""
_MOST = 200_000
"""Events that are looked through at most."""
_SHOWN = 5
"""Candidates that an error names."""


def is_prefix(text: str) -> bool:
    """Return True if `text` may begin a request's id: a client's name, `_`, a part of a ULID."""
    return _PREFIX.fullmatch(text) is not None


async def whole_id(bus: Bus, prefix: str) -> RequestId:
    """Return the one id in the log that begins with `prefix`.

    Raises NotFound if there is none, UsageWrong if there are several (it names them) or if the credentials
    may not look.
    """
    client, _, given = prefix.rpartition("_")
    first_ms, last_ms = (submitted_ms(f"{client}_{given[:_TIME_CHARS].ljust(26, pad)}") for pad in "0Z")
    found: dict[str, None] = {}
    try:
        from_seq = await _first_after(bus, first_ms / 1000 - AHEAD_S)
        looked = 0
        while from_seq and looked < _MOST and len(found) <= _SHOWN:
            part = await batch(bus, "LOG", None, from_seq)
            events = [event for each in part if (event := glance(each.data)) is not None]
            found |= dict.fromkeys(each.request for each in events if each.request.startswith(prefix))
            if not part or (found and part[-1].at > (last_ms / 1000 + _LATE_S) * 1e6):
                break
            from_seq, looked = part[-1].seq + 1, looked + len(part)
    except Denied:
        raise UsageWrong(f"the key of {bus.name} cannot look for {prefix!r}: give the whole id") from None
    if not found:
        raise NotFound(f"no request in the log begins with {prefix!r}")
    if len(found) > 1:
        shown = ", ".join([*list(found)[:_SHOWN], *(["…"] if len(found) > _SHOWN else [])])
        raise UsageWrong(f"{prefix!r} is the beginning of several ids: {shown}")
    return RequestId(next(iter(found)))


async def _first_after(bus: Bus, at_s: float) -> int:
    """Return the sequence of the first event stored at a time or later; 0 if there is none."""
    if at_s > time.time():
        return 0
    since = datetime.fromtimestamp(max(at_s, 0), UTC).isoformat().replace("+00:00", "Z")
    first = await first_since(bus, "LOG", subjects.EVENTS, since)
    return 0 if first is None else first.seq
