"""When a calendar ticks, in each time zone, and which of the missed ticks is made up for."""

import datetime as dt

import pytest

from mesh.service.cron import Calendar, CronInvalid, Once, parse_calendar

HOUR_US = 3600 * 1_000_000


def us(text: str) -> int:
    moment = dt.datetime.fromisoformat(text)
    return int((moment if moment.tzinfo else moment.replace(tzinfo=dt.UTC)).timestamp()) * 1_000_000


def ticks(cron: str, after: str, count: int, zone: str = "UTC") -> list[str]:
    """Return the next ticks in UTC."""
    calendar, at, found = parse_calendar(cron, zone), us(after), list[str]()
    for _ in range(count):
        tick = calendar.after(at)
        assert tick is not None
        at = tick
        found.append(dt.datetime.fromtimestamp(at / 1e6, dt.UTC).strftime("%Y-%m-%d %H:%M:%S"))
    return found


@pytest.mark.parametrize(
    ("cron", "expected"),
    [
        ("30 3 * * *", ["2026-11-28 03:30:00", "2026-11-29 03:30:00"]),
        ("*/20 19 * * *", ["2026-11-27 19:20:00", "2026-11-27 19:40:00"]),
        ("5,10-11 20 * * *", ["2026-11-27 20:05:00", "2026-11-27 20:10:00", "2026-11-27 20:11:00"]),
        ("0 9 * * mon-fri", ["2026-11-30 09:00:00", "2026-12-01 09:00:00"]),
        ("0 0 * * 7", ["2026-11-29 00:00:00", "2026-12-06 00:00:00"]),
        ("0 0 29 feb *", ["2028-02-29 00:00:00", "2032-02-29 00:00:00"]),
        ("0 0 13 * fri", ["2026-12-04 00:00:00", "2026-12-11 00:00:00", "2026-12-13 00:00:00"]),
        ("@monthly", ["2026-12-01 00:00:00", "2027-01-01 00:00:00"]),
        ("@every 90s", ["2026-11-27 19:01:30", "2026-11-27 19:03:00"]),
        ("@every 1d", ["2026-11-28 00:00:00", "2026-11-29 00:00:00"]),
    ],
)
def test_a_calendar_ticks_when_cron_would(cron: str, expected: list[str]) -> None:
    assert ticks(cron, "2026-11-27 19:00:00", len(expected)) == expected


def test_a_calendar_ticks_by_the_clock_of_its_zone() -> None:
    spring = ticks("30 2 * * *", "2026-03-28 12:00", 2, "Europe/Berlin")  # clocks skip 02:00 to 03:00
    assert spring == ["2026-03-29 01:30:00", "2026-03-30 00:30:00"]
    autumn = ticks("30 2 * * *", "2026-10-24 12:00", 2, "Europe/Berlin")  # 02:00 to 03:00 comes twice
    assert autumn == ["2026-10-25 00:30:00", "2026-10-26 01:30:00"]
    hourly = ticks("0 * * * *", "2026-10-24 23:30", 4, "Europe/Berlin")
    assert hourly == [f"2026-10-25 0{hour}:00:00" for hour in range(4)]


@pytest.mark.parametrize("cron", ["0 * * * *", "@every 1h"])
def test_of_several_missed_ticks_the_newest_counts_if_it_is_not_too_old(cron: str) -> None:
    calendar, first = parse_calendar(cron), us("2026-11-27 19:00")
    assert calendar.newest(first, first, HOUR_US) == first
    later = us("2026-12-24 07:10")
    assert calendar.newest(first, later, HOUR_US) == us("2026-12-24 07:00")
    assert calendar.newest(first, later, HOUR_US // 60) is None


def test_a_tick_is_late_by_its_own_time_however_rare_it_is() -> None:
    calendar, tick = parse_calendar("@yearly"), us("2027-01-01 00:00")
    assert calendar.newest(tick, tick + HOUR_US, 2 * HOUR_US) == tick
    assert calendar.newest(tick, tick + 3 * HOUR_US, 2 * HOUR_US) is None


@pytest.mark.parametrize(
    "cron",
    [
        *("", "* * * *", "* * * * * *", "60 * * * *", "* 24 * * *", "* * 0 * *", "* * * 13 *", "* * * * 8"),
        *(
            "5-1 * * * *",
            "*/0 * * * *",
            "a * * * *",
            "1- * * * *",
            "*/ * * * *",
            "-1 * * * *",
            "1,,2 * * * *",
        ),
        *(
            "0 0 30 feb *",
            "@often",
            "@every",
            "@every 0s",
            "@every 3661d",
            "@every 999999d",
            "@every 1.5h",
            "@every -1s",
            "@every 5w",
            "٣ * * * *",
        ),
    ],
)
def test_what_is_no_calendar_is_refused(cron: str) -> None:
    with pytest.raises(CronInvalid, match="cron: "):
        parse_calendar(cron)


@pytest.mark.parametrize("zone", ["", "Mars/Olympus", "../etc/passwd", "/etc/passwd", "europe"])
def test_what_is_no_zone_is_refused(zone: str) -> None:
    with pytest.raises(CronInvalid, match="zone: "):
        parse_calendar("@daily", zone)


@pytest.mark.parametrize("cron", ["* * * * *", "7 */3 * * *", "@daily", "@every 7s", "@every 9h"])
@pytest.mark.parametrize("within_h", [1, 24])
def test_the_newest_of_many_missed_ticks_is_found_with_few_steps(
    cron: str, within_h: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A guard looks for it between two verdicts, so it may not take seconds."""
    calendar, now = parse_calendar(cron, "Europe/Berlin"), us("2026-12-24 22:00") + 30_000_000
    within = within_h * HOUR_US
    first = calendar.after(now - 72 * HOUR_US)
    assert first is not None
    oldest = calendar.after(now - within - 1)
    assert oldest is not None
    asked, after = list[int](), Calendar.after

    def counted(self: Calendar, at: int) -> int | None:
        asked.append(at)
        return after(self, at)

    monkeypatch.setattr(Calendar, "after", counted)
    newest = calendar.newest(first, now, within)
    assert len(asked) < 40
    assert (newest is None) == (oldest > now)
    if newest is not None:
        following = calendar.after(newest)
        assert calendar.after(newest - 1) == newest >= oldest
        assert following is not None
        assert following > now >= newest


def test_a_time_is_a_calendar_with_one_tick() -> None:
    once = Once(1_000)
    assert (once.after(0), once.after(999), once.after(1_000)) == (1_000, 1_000, None)
    assert once.newest(1_000, 999, 5_000) is None  # not yet
    assert once.newest(1_000, 1_000, 0) == once.newest(1_000, 1_500, 500) == 1_000
    assert once.newest(1_000, 1_501, 500) is None  # too late
