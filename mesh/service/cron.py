"""When a calendar ticks: cron's five fields in a time zone, or a fixed interval. Pure functions of a time.

The fields are minute, hour, day of the month, month and day of the week (0 and 7 are Sunday). Each is `*`, a
number, `a-b`, one of these with `/n`, or a list of them; months and days also go by their English names. If
both days are restricted, either one is enough, as in every cron.

Clocks that are set back tick an hourly calendar through the hour twice, and any other one in its first run.
A time that clocks skip ticks as much later.
"""

import datetime as dt
import re
from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_MACROS = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
}
_EVERY = re.compile(r"@every (\d{1,6})([smhd])")
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
_LONGEST_S = 3_660 * 86_400
"""Of an interval: the bus has no timers for times that are centuries away."""
_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_DAYS = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")
_FIELDS = (("minute", 0, 59), ("hour", 0, 23), ("day", 1, 31), ("month", 1, 12), ("weekday", 0, 7))
_MINUTE_US = 60_000_000
_DAYS_AHEAD = 8 * 366 + 1
"""29 February may be eight years ahead."""


class CronInvalid(ValueError):
    """The calendar or its time zone cannot be read. The text says which part."""


class _Fields(NamedTuple):
    minutes: tuple[int, ...]
    hours: tuple[int, ...]
    days: frozenset[int]
    months: frozenset[int]
    weekdays: frozenset[int]
    either: bool
    """True if the day of the month or of the week is enough."""


class Calendar(NamedTuple):
    """A calendar in its time zone. `parse_calendar` makes it."""

    zone: dt.tzinfo
    every_us: int
    """0 for one of fields."""
    fields: _Fields | None

    def after(self, at_us: int) -> int | None:
        """Return the first tick after a time (both UTC µs); None if there never is one."""
        if self.every_us:
            return (at_us // self.every_us + 1) * self.every_us
        assert self.fields is not None
        local = (_EPOCH + dt.timedelta(microseconds=at_us)).astimezone(self.zone)
        for ahead in range(_DAYS_AHEAD):
            day = local.date() + dt.timedelta(days=ahead)
            if _is_on(self.fields, day) and (found := self._on(day, at_us)) is not None:
                return found
        return None

    def _on(self, day: dt.date, at_us: int) -> int | None:
        """Return the first tick of a day after a time."""
        assert self.fields is not None
        for hour in self.fields.hours:
            folds = (0, 1) if len(self.fields.hours) == 24 else (0,)
            ticks = (
                _us(dt.datetime.combine(day, dt.time(hour, minute, tzinfo=self.zone, fold=fold)))
                for minute in self.fields.minutes
                for fold in folds
            )
            if (found := min((tick for tick in ticks if tick > at_us), default=None)) is not None:
                return found
        return None

    def newest(self, first_us: int, now_us: int, within_us: int) -> int | None:
        """Return the newest tick from `first_us` (a tick) until now, if it is not older than `within_us`."""
        begin, span = max(first_us, now_us - within_us), _MINUTE_US
        while True:  # from now backwards: a day may have 1440 ticks, and a guard does nothing else meanwhile
            tick = self.after(max(begin, now_us - span) - 1)
            if tick is not None and tick <= now_us:
                break
            if now_us - span <= begin:
                return None
            span *= 2
        while tick is not None and tick <= now_us:
            newest, tick = tick, self.after(tick)
        return newest


class Once(NamedTuple):
    """A calendar with one tick, at a time (UTC µs)."""

    at: int

    def after(self, at_us: int) -> int | None:
        """Return the tick if it comes after a time (UTC µs)."""
        return self.at if self.at > at_us else None

    def newest(self, first_us: int, now_us: int, within_us: int) -> int | None:
        """Return the tick if it has come, and is not older than `within_us`."""
        return self.at if now_us - within_us <= self.at <= now_us else None


@lru_cache(maxsize=1024)
def parse_calendar(cron: str, zone: str = "UTC") -> Calendar:
    """Return a calendar. Raises CronInvalid."""
    known = _zone(zone)
    if cron.startswith("@every"):
        said = _EVERY.fullmatch(cron)
        if said is None or not 0 < int(said[1]) * _UNITS[said[2]] <= _LONGEST_S:
            raise CronInvalid(f"cron: {cron!r} is no interval, as in @every 90s (s, m, h or d)")
        return Calendar(known, int(said[1]) * _UNITS[said[2]] * 1_000_000, None)
    parts = _MACROS.get(cron, cron).split()
    if len(parts) != len(_FIELDS):
        macros = ", ".join(_MACROS)
        raise CronInvalid(f"cron: {cron!r} has not five fields, and is none of {macros}, @every 90s")
    minutes, hours, days, months, weekdays = (
        _values(part, *field) for part, field in zip(parts, _FIELDS, strict=True)
    )
    fields = _Fields(
        tuple(sorted(minutes)),
        tuple(sorted(hours)),
        frozenset(days),
        frozenset(months),
        frozenset(day % 7 for day in weekdays),
        either=not (parts[2].startswith("*") or parts[4].startswith("*")),
    )
    calendar = Calendar(known, 0, fields)
    if calendar.after(0) is None:
        raise CronInvalid(f"cron: {cron!r} names a day that never comes")
    return calendar


def _zone(name: str) -> dt.tzinfo:
    if name == "UTC":
        return dt.UTC
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise CronInvalid(f"zone: this machine knows no time zone {name!r}") from None


def _values(part: str, field: str, low: int, high: int) -> set[int]:
    found = set[int]()
    for each in part.lower().split(","):
        found.update(_span(each, field, low, high, part))
    return found


def _span(each: str, field: str, low: int, high: int, part: str) -> Iterator[int]:
    wrong = CronInvalid(
        f"cron: {field} {part!r} is not made of *, {low} to {high}, a-b, /n and lists of them"
    )
    span, _, step = each.partition("/")
    first, dash, last = span.partition("-")
    if span == "*":
        begin, end = low, high
    else:
        begin = _number(first, field)
        end = _number(last, field) if dash else (high if step else begin)
    if "/" in each and not (step.isascii() and step.isdigit() and int(step)):
        raise wrong
    if not low <= begin <= end <= high:
        raise wrong
    return iter(range(begin, end + 1, int(step) if step else 1))


def _number(text: str, field: str) -> int:
    """Return a number of a field or of a name in it; -1 for anything else."""
    names = {"month": _MONTHS, "weekday": _DAYS}.get(field, ())
    if text in names:
        return names.index(text) + (1 if field == "month" else 0)
    return int(text) if text.isascii() and text.isdigit() and len(text) < 3 else -1


def _is_on(fields: _Fields, day: dt.date) -> bool:
    if day.month not in fields.months:
        return False
    in_month, in_week = day.day in fields.days, day.isoweekday() % 7 in fields.weekdays
    return in_month or in_week if fields.either else in_month and in_week


def _us(moment: dt.datetime) -> int:
    return (moment.astimezone(dt.UTC) - _EPOCH) // dt.timedelta(microseconds=1)
