"""The server's clock, measured by a clock of one's own: what a round trip explains, and what nothing does."""

import datetime as dt
from typing import Any, cast

import pytest

from mesh.bus.connection import Bus
from mesh.guard.clock import MOST_US, ServerClock
from mesh.service.conditions import Conditions

EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
TRUE_US = 1_800_000_000_000_000


class Servers:
    """Servers that say what time they have, over a link that takes its time. It stands in for a `Bus`."""

    def __init__(self) -> None:
        self.conditions = Conditions()
        self.passed_us = 0
        self.ahead = {"n1": 0}
        self.asked = "n1"
        self.there_us = self.back_us = 1_000

    def own(self) -> int:
        """A clock of the guard's machine that began at 0 and that nobody sets."""
        return self.passed_us

    def now(self) -> int:
        return TRUE_US + self.passed_us + self.ahead[self.asked]

    async def api(self, verb: str, *, timeout_s: float) -> dict[str, Any]:
        self.passed_us += self.there_us
        stamp = (EPOCH + dt.timedelta(microseconds=self.now())).isoformat(timespec="microseconds")
        self.passed_us += self.back_us
        return {"ts": stamp.replace("+00:00", "Z"), "cluster": {"leader": self.asked}}

    def reasons(self) -> list[str]:
        return [reason.code for reason in self.conditions.reasons()]


@pytest.fixture
def servers() -> Servers:
    return Servers()


@pytest.fixture
def clock(servers: Servers) -> ServerClock:
    return ServerClock(cast(Bus, servers), servers.own)


async def test_it_is_the_servers_within_half_a_round_trip(servers: Servers, clock: ServerClock) -> None:
    servers.there_us, servers.back_us = 900_000, 100_000
    await clock.measure()
    assert abs(clock() - servers.now()) <= 500_000
    servers.there_us = servers.back_us = 1_000
    servers.passed_us += 5_000_000
    await clock.measure()  # the better answer counts
    assert abs(clock() - servers.now()) <= 1_000
    servers.there_us, servers.back_us = 0, 3_000_000
    servers.passed_us += 5_000_000
    await clock.measure()  # a late one takes nothing away
    assert abs(clock() - servers.now()) <= 10_000
    assert servers.reasons() == []


async def test_a_clock_that_is_set_is_followed_and_keeps_the_guard_from_being_ready(
    servers: Servers, clock: ServerClock
) -> None:
    await clock.measure()
    servers.ahead["n1"] += MOST_US // 2
    await clock.measure()
    assert servers.reasons() == []
    servers.ahead["n1"] -= 2 * MOST_US
    await clock.measure()
    assert servers.reasons() == ["clock_jumped"]
    assert abs(clock() - servers.now()) <= 2_000
    await clock.measure()
    assert servers.reasons() == []


async def test_of_servers_that_disagree_the_middle_one_counts_and_the_guard_is_not_ready(
    servers: Servers, clock: ServerClock
) -> None:
    servers.ahead = {"n1": 0, "n2": 300_000, "n3": 7_200_000_000}
    for server in ("n1", "n2"):
        servers.asked = server
        await clock.measure()
    assert servers.reasons() == []
    servers.asked = "n3"
    await clock.measure()
    assert servers.reasons() == ["clocks_disagree"]
    servers.asked = "n2"
    assert abs(clock() - servers.now()) <= 2_000
    servers.ahead["n3"], servers.asked = 0, "n3"
    await clock.measure()
    await clock.measure()
    assert servers.reasons() == []


async def test_a_server_that_left_has_no_say(servers: Servers, clock: ServerClock) -> None:
    servers.ahead = {"n1": 9_000_000, "n2": 0}
    await clock.measure()
    servers.asked = "n2"
    await clock.measure()
    assert servers.reasons() == ["clocks_disagree"]
    servers.passed_us += 61_000_000
    await clock.measure()
    assert servers.reasons() == []
    assert abs(clock() - servers.now()) <= 2_000
