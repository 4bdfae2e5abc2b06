"""Schedules: requests that begin by the calendar, or once at a time. Guards submit them, in a client's name.

`mesh setup` writes what is to be submitted by the calendar, a person what is to be submitted once. A person
writes the pause, and guards write the ticks. To cancel a single request is to write its tick before a guard.
"""

from typing import Literal

import msgspec

from protocol.wire import codec
from protocol.wire.commands import Submit
from protocol.wire.documents import DocumentInvalid, read
from protocol.wire.errors import Malformed
from protocol.wire.ids import AgentName, RequestId, entropy_of, request_id
from protocol.wire.prices import DAY_S

CATCH_UP_S = 3600.0
SHORTEST_CATCH_UP_S, LONGEST_CATCH_UP_S = 10.0, float(DAY_S)
LATEST_AT = 7_258_118_400_000_000
"""UTC µs at which the year 2200 begins. The bus counts nanoseconds in 63 bits: a timer for a time after 2262
fires at once, again and again."""

Overlap = Literal["skip", "allow"]


class Schedule(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What is submitted, in whose name, and when."""

    client: AgentName
    cron: str = ""
    """Five fields, `@daily` and the like, or `@every 90s`."""
    at: int | None = None
    """Instead of `cron`: UTC µs of the only tick."""
    zone: str = "UTC"
    """The time zone of `cron`, by its name in the IANA database."""
    overlap: Overlap = "skip"
    """`skip`: no tick while the request of the tick before is open."""
    catch_up_s: float = CATCH_UP_S
    """How late a tick may be, in seconds. Of several missed ticks, only the newest is made up for."""
    submit: Submit


class ScheduleEntry(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What `mesh.conf.schedule.<name>` holds."""

    schedule: Schedule | None = None
    """None: it was removed from the fleet file."""


class SchedulePause(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What `mesh.conf.pause.<name>` holds. No entry: the schedule was never paused."""

    paused: bool = False


class ScheduleTick(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What `mesh.conf.tick.<name>` holds: the last tick of a schedule, and what came of it."""

    at: int
    """UTC µs at which it was due; if it was missed, when a guard noticed that."""
    outcome: Literal["begun", "submitted", "refused", "skipped", "missed", "cancelled"]
    """`begun`: a guard is about to submit. `refused`: a guard refused the request, as `detail` says.
    `cancelled`: a person did so before the only tick."""
    request: str = ""
    """The request of this tick, if it has one."""
    last: str = ""
    """The newest request of this schedule."""
    detail: str = ""


def read_schedule(body: bytes, name: str) -> ScheduleEntry:
    """Return the entry of the schedule `name`. Raises DocumentInvalid with every mistake."""
    entry = read(body, ScheduleEntry)
    if entry.schedule is not None and (mistakes := schedule_mistakes(entry.schedule)):
        raise DocumentInvalid(*mistakes)
    return entry


def schedule_mistakes(schedule: Schedule) -> list[str]:
    """Return what is wrong with a schedule, apart from its calendar."""
    wrong = []
    if (schedule.at is None) is not bool(schedule.cron):
        wrong.append("cron, at: one of them, and not both")
    if schedule.at is not None and schedule.at > LATEST_AT:
        wrong.append("at: before the year 2200")
    if not SHORTEST_CATCH_UP_S <= schedule.catch_up_s <= LONGEST_CATCH_UP_S:
        wrong.append(f"catch_up_s: {SHORTEST_CATCH_UP_S:g} to {LONGEST_CATCH_UP_S:g}")
    try:
        codec.parse_submit(codec.encode(schedule.submit))
    except Malformed as malformed:
        wrong.append(str(malformed).removeprefix("submit: "))
    return wrong


def tick_request(schedule: Schedule, name: str, at_us: int) -> RequestId:
    """Return the request of a tick (UTC µs). Submitted twice, it is one request."""
    return request_id(schedule.client, at_us // 1000, entropy_of("tick", name, at_us))
