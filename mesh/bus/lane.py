"""Asking a guard for a verdict, by a sender that stores its message only if that fails.

The question is the very message that the sender would store in its queue. A guard that has it twice decides
it once. So whatever becomes of a question, to store the message afterwards is always right.
"""

import time
from collections.abc import Mapping

from mesh.bus.connection import Bus
from mesh.bus.streams import MESSAGE_BYTES
from mesh.errors import BusError, Denied, NoResponders, TimedOut
from mesh.service.failpoints import failpoint
from mesh.service.logs import get_logger
from protocol.wire import codec, subjects
from protocol.wire.records import LaneAnswer

_log = get_logger(__name__)

ASK_S = 2.0
"""How long an answer is waited for."""
_ABSENT_S, _ABSENT_MOST_S = 0.001, 1.0
"""How long nobody is asked after nobody was there; it doubles each time, up to the second."""
_SILENT_S = 1.0
"""The same after a guard that did not answer: it may be frozen, and others may have its place soon."""
_DENIED_S = 60.0
"""The same after a refusal by the server, whose configuration does not know of the lane yet."""

_MOST_BYTES = MESSAGE_BYTES - 4096
"""A larger message may be more than its queue takes, which then says so."""


class Lane:
    """One sender's way to ask guards."""

    def __init__(self, bus: Bus, sender: str) -> None:
        self._bus = bus
        self._sender = sender
        self._closed_until = 0.0
        self._absent_s = _ABSENT_S

    async def is_decided(self, request: str, body: bytes, headers: Mapping[str, str] | None = None) -> bool:
        """Return True once the verdict on a message is in the log; False if the message has to be stored.

        Args:
            body: the message's bytes, as its queue would have them.

        An answer that is late, or to another message, counts as none. Errors of the bus are not raised: the
        message is to be stored, which raises them.
        """
        began = time.monotonic()
        if began < self._closed_until or len(body) > _MOST_BYTES:
            return False
        subject = subjects.lane(self._sender, request)
        try:
            said = await self._bus.request(subject, body, headers, timeout_s=ASK_S)
        except NoResponders:
            if began >= self._closed_until:  # else others met the same absence, side by side
                self._close(self._absent_s)
                self._absent_s = min(2 * self._absent_s, _ABSENT_MOST_S)
        except TimedOut:
            _log.info("lane_silent", request=request)
            self._close(_SILENT_S)
        except Denied:
            self._close(_DENIED_S)
        except BusError as error:
            _log.debug("lane_broken", code=error.code)
        else:
            self._absent_s = _ABSENT_S
            answer = codec.readable(said.data, LaneAnswer)
            if answer is not None and answer.decided and answer.digest == codec.body_digest(body):
                return True
        failpoint("lane.undecided")
        return False

    def _close(self, for_s: float) -> None:
        self._closed_until = time.monotonic() + for_s
