"""Message schedules: one for each request, at its earliest due time.

The server keeps the schedule, and delivers it into the request's partition when it is due. A schedule that
has fired is gone; the next one is armed after sequence 0 again.
"""

import base64
import datetime as dt

import msgspec

from mesh.bus.connection import Bus
from mesh.bus.jetstream import Code
from mesh.errors import ApiError, SequenceConflict, WrongLastSequence
from protocol.wire import codec
from protocol.wire.subjects import timer_at, timer_fire


class _Alarm(msgspec.Struct, frozen=True):
    at: int


async def arm(bus: Bus, request: str, at_us: int, *, after: int | None = None) -> int:
    """Schedule the request's wake-up at `at_us` (UTC µs; at once if that is past).

    Args:
        after: sequence of the schedule that this one replaces, 0 if there is none; None replaces any.

    Return the new schedule's sequence. Raises SequenceConflict if the present schedule is another one (read
    `standing`, decide again), and as `Bus.publish_durable`. Arming twice is harmless.
    """
    headers = {
        "Nats-Expected-Stream": "TIMER",
        "Nats-Schedule": f"@at {rfc3339(at_us)}",
        "Nats-Schedule-Target": timer_fire(request),
    }
    if after is not None:
        headers["Nats-Expected-Last-Subject-Sequence"] = str(after)
    body = msgspec.json.encode(_Alarm(at_us))
    try:
        return (await bus.publish_durable(timer_at(request), body, headers)).seq
    except WrongLastSequence:
        if after is None:
            raise
        raise SequenceConflict(request, after) from None


async def standing(bus: Bus, request: str) -> tuple[int, int] | None:
    """Return sequence and due time (UTC µs) of the request's schedule; None if there is none."""
    try:
        got = await bus.api("STREAM.MSG.GET.TIMER", {"last_by_subj": timer_at(request)})
    except ApiError as error:
        if error.err_code == Code.NO_MESSAGE_FOUND:
            return None
        raise
    message = got["message"]
    return message["seq"], due_of(base64.b64decode(message["data"]))


def due_of(body: bytes) -> int:
    """Return the due time (UTC µs) in a schedule, or in the message it fired. Raises ValueError."""
    alarm = codec.readable(body, _Alarm)
    if alarm is None:
        raise ValueError("a schedule that says no time")
    return alarm.at


def rfc3339(at_us: int) -> str:
    """Return UTC µs in the format of the server's schedules."""
    moment = dt.datetime(1970, 1, 1, tzinfo=dt.UTC) + dt.timedelta(microseconds=at_us)
    return moment.isoformat(timespec="microseconds").replace("+00:00", "Z")
