"""Direct questions over the bus: to a guard for a verdict, and to an agent's instances for their presence.

A sender asks a guard, and stores its message only if that fails. The question is the same message that the
sender would store in its queue, and a guard that gets it twice decides it once. So whatever happens to the
question, storing the message afterwards is always correct.
"""

import asyncio
import time
from collections.abc import Mapping

import msgspec

from mesh.bus.connection import Bus
from mesh.bus.streams import MESSAGE_BYTES
from mesh.errors import BusError, Denied, NoResponders, OutcomeUnknown, TimedOut
from mesh.service.failpoints import failpoint
from mesh.service.logs import get_logger
from mesh.telemetry import tracing
from protocol.wire import codec, subjects
from protocol.wire.records import LaneAnswer

_log = get_logger(__name__)

ASK_S, _LEAST_ASK_S = 2.0, 0.25
"""Longest and shortest wait for an answer."""
_ABSENT_S, _ABSENT_MOST_S = 0.001, 1.0
"""Pause after no guard was there. It doubles each time, up to the second value."""
_SILENT_S, _SILENT_MOST_S = 1.0, 8.0
"""The same after a guard did not answer. It may be frozen, while the server still routes questions to it."""
_DENIED_S = 60.0
"""Pause after the server denied it, whose configuration does not have the lane yet."""

_GAIN, _VARIANCE_GAIN, _DEVIATIONS = 1 / 8, 1 / 4, 4
"""How response times are averaged, and how many deviations to wait (RFC 6298, section 2)."""

_DECIDED = "decided"

_MOST_BYTES = MESSAGE_BYTES - 4096
"""A larger message may exceed its queue's limit. It goes to the queue, which then reports that."""


class Lane:
    """Asks guards on behalf of one sender."""

    def __init__(self, bus: Bus, sender: str) -> None:
        self._bus = bus
        self._sender = sender
        self._closed_until = 0.0
        self._absent_s = _ABSENT_S
        self._silent_s = _SILENT_S
        self._usual_s: float | None = None
        """Smoothed response time; None before the first answer."""
        self._varies_s = 0.0

    @property
    def patience_s(self) -> float:
        """How long to wait for the next answer, given how long recent answers took.

        It should be short: a request passes many senders, and each of them may ask a frozen guard.
        """
        if self._usual_s is None:
            return ASK_S
        return min(max(self._usual_s + _DEVIATIONS * self._varies_s, _LEAST_ASK_S), ASK_S)

    async def is_decided(self, request: str, body: bytes, headers: Mapping[str, str] | None = None) -> bool:
        """Return True once the verdict on a message is in the log; False if the message must be stored.

        Args:
            body: the message's bytes, as its queue would have them.

        A late answer, or one to another message, counts as none. Errors of the bus are not raised here, since
        storing the message will raise them.
        """
        from mesh.telemetry import export as telemetry  # read-only commands need no OpenTelemetry

        if time.monotonic() < self._closed_until or len(body) > _MOST_BYTES:
            return False
        outcome = await self._ask(request, body, headers)
        telemetry.questions.add(1, {tracing.BY: self._sender, tracing.CODE: outcome})
        if outcome == _DECIDED:
            return True
        failpoint("lane.undecided")
        return False

    async def _ask(self, request: str, body: bytes, headers: Mapping[str, str] | None) -> str:
        """Return the outcome of a question: `decided`, `undecided`, or the code of an error."""
        began = time.monotonic()
        try:
            reply = await self._bus.request(
                subjects.lane(self._sender, request), body, headers, timeout_s=self.patience_s
            )
        except BusError as error:
            if isinstance(error, TimedOut):
                _log.info("lane_silent", request=request)
                self._close(self._silent_s)
                self._silent_s = min(2 * self._silent_s, _SILENT_MOST_S)
            elif isinstance(error, Denied):
                self._close(_DENIED_S)
            elif not isinstance(error, NoResponders):
                _log.debug("lane_broken", code=error.code)
            elif began >= self._closed_until:  # otherwise concurrent calls found the same absence
                self._close(self._absent_s)
                self._absent_s = min(2 * self._absent_s, _ABSENT_MOST_S)
            return error.code
        self._absent_s, self._silent_s = _ABSENT_S, _SILENT_S
        self._measure(time.monotonic() - began)
        answer = codec.readable(reply.data, LaneAnswer)
        if answer is not None and answer.decided and answer.digest == codec.body_digest(body):
            return _DECIDED
        return "undecided"

    def _measure(self, took_s: float) -> None:
        if self._usual_s is None:
            self._usual_s, self._varies_s = took_s, took_s / 2
            return
        self._varies_s += _VARIANCE_GAIN * (abs(self._usual_s - took_s) - self._varies_s)
        self._usual_s += _GAIN * (took_s - self._usual_s)

    def _close(self, for_s: float) -> None:
        self._closed_until = time.monotonic() + for_s


# --- which instances serve an agent ---------------------------------------------------------------
# Only the account of that name can answer. Guards answer, too. The server passes on the first answer to a
# ping and usually drops the rest. Each instance sends its own statistics; a caller takes at most
# `MOST_INSTANCES` of them.

PING_S = 1.0
GATHER_S = 0.4
"""How long to wait for instances to answer, since their number is unknown."""
MOST_INSTANCES = 32
"""This many answers of any size fit into a server's buffer for a slow connection (64 MiB)."""


FORKS = "forks"
"""In what a guard says of itself: that it knows forks, and rejects those that are no operator's."""


class Clocks(msgspec.Struct, frozen=True, kw_only=True):
    """What a guard has measured of clocks. Its statistics contain this as the endpoint's `data`."""

    machine_ahead_us: int
    """How far its machine's clock is ahead of the server's; negative if it is behind."""
    within_us: int
    """Error bound of `machine_ahead_us`: half a round trip."""
    servers_apart_us: int
    """How far apart the clocks of the bus's servers are, beyond what round trips explain."""


async def ping(bus: Bus, agent: str) -> bytes | None:
    """Return the answer of one instance of `agent`; empty if it listens but is silent, None if there is none.

    Raises Denied, Unreachable.
    """
    try:
        return (await bus.request(f"$SRV.PING.{agent}", timeout_s=PING_S)).data
    except NoResponders:
        return None
    except OutcomeUnknown:
        return b""


async def is_served(bus: Bus, agent: str) -> bool:
    """Return True if any instance of `agent` is running. Raises Denied, Unreachable.

    A silent instance counts: the time limit of its turns ends the work that it holds.
    """
    return await ping(bus, agent) is not None


async def statistics(bus: Bus, agent: str) -> list[bytes]:
    """Return the statistics of each instance of `agent`, or of each guard.

    Raises Denied, Unreachable, Disconnected.
    """
    answers: list[bytes] = []
    subscription = await bus.subscribe(
        bus.new_inbox(), lambda message: answers.append(message.data), most=MOST_INSTANCES
    )
    bus.send(f"$SRV.STATS.{agent}", reply=subscription.subject)
    await asyncio.sleep(GATHER_S)
    await subscription.close()
    return answers
