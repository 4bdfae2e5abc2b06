"""Processes share a model's limits over a real bus: each has a connection and a limiter of its own."""

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator

import msgspec
import pytest
import pytest_asyncio

from mesh.bus import rate_limit
from mesh.bus.connection import Bus
from mesh.bus.rate_limit import HeldBack, RateLimiter
from mesh.bus.reader import get
from mesh.bus.roles import GET
from mesh.errors import Denied
from mesh.testing import LocalBus
from protocol.domain.rate_limit import LEASE_US, ModelUse, renew
from protocol.wire import config, subjects
from protocol.wire.config import ModelLimits, RateLimitEntry
from tests.servers import PATIENCE_S, ConnectAs, child, eventually, fresh, until

RENEW_S = 0.2


@pytest.fixture
def model() -> str:
    """Return a model of this test's own."""
    return f"model.{fresh()}"


class Crew:
    """Some limiters and the calls that are under way."""

    def __init__(self, model: str) -> None:
        self.model = model
        self.limits = ModelLimits()
        self.limiters: list[RateLimiter] = []
        self.under_way: Counter[int] = Counter()
        self.done: Counter[int] = Counter()
        self.most = 0
        self.go_on = True
        self.tasks: list[asyncio.Task[None]] = []

    def add(self, bus: Bus) -> RateLimiter:
        self.limiters.append(RateLimiter(self.model, self.limits, bus, renew_s=RENEW_S))
        return self.limiters[-1]

    def work(self, *numbers: int, callers: int = 3) -> None:
        for number in numbers:
            self.tasks += [asyncio.create_task(self._ask(number)) for _ in range(callers)]

    async def _ask(self, number: int) -> None:
        while self.go_on:
            async with self.limiters[number].room(PATIENCE_S):
                self.under_way[number] += 1
                self.most = max(self.most, self.under_way.total())
                await asyncio.sleep(0.01)
                self.under_way[number] -= 1
                self.done[number] += 1

    async def end(self) -> None:
        self.go_on = False
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)
        for each in self.limiters:
            await each.stop()


@pytest_asyncio.fixture
async def crew(model: str) -> AsyncIterator[Crew]:
    crew = Crew(model)
    yield crew
    await crew.end()


async def entry_of(bus: Bus, model: str) -> RateLimitEntry:
    found = await get(bus, "RATES", subjects.rate(model))
    return RateLimitEntry() if found is None else config.read_rate_limit(found.data)


async def test_four_ask_three_at_once_and_all_come_forward(crew: Crew, connect_as: ConnectAs) -> None:
    crew.limits = ModelLimits(concurrency=3)
    for name in ("a", "b", "a", "b"):
        crew.add(await connect_as(name))
    crew.work(0, 1, 2, 3)
    await until(lambda: all(crew.done[number] >= 10 for number in range(4)))
    assert crew.most == 3
    shares = (await entry_of(await connect_as("a"), crew.model)).shares
    assert len(shares) == 4
    assert sum(share.concurrency.has for share in shares.values()) <= 3


async def test_a_newcomer_gets_its_part_of_what_one_had(crew: Crew, connect_as: ConnectAs) -> None:
    crew.limits = ModelLimits(concurrency=4)
    crew.add(await connect_as("a"))
    crew.work(0, callers=8)
    await until(lambda: crew.under_way[0] == 4)
    crew.add(await connect_as("b"))
    crew.work(1, callers=8)
    await until(lambda: crew.limiters[1].allowed()[0] == 2)
    await until(lambda: crew.done[1] >= 10)
    assert crew.most == 4


async def test_the_begins_of_a_minute_are_shared_too(crew: Crew, connect_as: ConnectAs) -> None:
    crew.limits = ModelLimits(per_minute=6)
    for name in ("a", "b"):
        crew.add(await connect_as(name))
    crew.work(0, 1)
    await until(lambda: crew.done.total() == 6)
    bus = await connect_as("a")

    async def both_told() -> bool:
        shares = (await entry_of(bus, crew.model)).shares.values()
        return len(shares) == 2 and all(share.per_minute.wants for share in shares)

    await eventually(both_told)
    assert crew.done.total() == 6


async def test_the_share_of_a_process_that_was_killed_returns(
    crew: Crew, own_server: LocalBus, connect_as: ConnectAs
) -> None:
    crew.limits = ModelLimits(concurrency=3)
    seed = own_server.keys["a"].seed
    async with child("tests.rate_limit_process", own_server.url, seed, crew.model, "3") as holder:
        await holder.line("holding 3")
        async with own_server.connected_as("b") as bus:
            late = crew.add(bus)
            with pytest.raises(HeldBack):
                async with late.room(1.0):
                    pass
            holder.signal(9)
            await holder.ended()
            crew.work(0)
            await until(lambda: crew.done[0] > 0)
            assert len((await entry_of(bus, crew.model)).shares) == 1
            await crew.end()


async def test_without_the_bus_the_last_grant_is_used_to_its_end(
    crew: Crew, own_server: LocalBus, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rate_limit, "SKEW_S", LEASE_US / 1e6 - 2.0)
    crew.limits = ModelLimits(concurrency=2)
    async with own_server.connected_as("a") as bus:
        own = crew.add(bus)
        async with own.room(PATIENCE_S):
            pass
        await own_server.server.kill()
        async with own.room(1):
            pass
        await until(lambda: own.allowed()[0] == 0)
        with pytest.raises(HeldBack, match="no room for a request"):
            async with own.room(0.5):
                pass
        await own_server.server.start()
        async with own.room(PATIENCE_S):
            pass
        assert len((await entry_of(bus, crew.model)).shares) == 1  # it outlived the server
        await crew.end()


@pytest.mark.parametrize("rubbish", [b"", b"\xff", b'{"shares":{"x":{"until":"soon"}}}'])
async def test_an_entry_that_cannot_be_read_is_written_over(
    crew: Crew, connect_as: ConnectAs, rubbish: bytes
) -> None:
    crew.limits = ModelLimits(concurrency=2)
    bus = await connect_as("a")
    await bus.publish_durable(subjects.rate(crew.model), rubbish)
    async with crew.add(bus).room(PATIENCE_S):
        assert len((await entry_of(bus, crew.model)).shares) == 1


async def test_a_call_writes_nothing_and_a_share_is_given_back(crew: Crew, connect_as: ConnectAs) -> None:
    crew.limits = ModelLimits(concurrency=4)
    bus = await connect_as("a")
    own = RateLimiter(crew.model, crew.limits, bus)
    async with own.room(PATIENCE_S):
        pass
    sent = bus.counters.requests
    for _ in range(500):
        async with own.room(PATIENCE_S):
            pass
    assert bus.counters.requests <= sent + 2  # a renewal, should it have come in between
    assert len((await entry_of(bus, crew.model)).shares) == 1
    await own.stop()
    assert (await entry_of(bus, crew.model)).shares == {}


async def test_a_process_that_asks_no_more_gives_its_share_back(
    crew: Crew, connect_as: ConnectAs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rate_limit, "IDLE_S", 0.5)
    crew.limits = ModelLimits(concurrency=4)
    bus = await connect_as("a")
    own = crew.add(bus)
    async with own.room(PATIENCE_S):
        pass

    async def is_empty() -> bool:
        return not (await entry_of(bus, crew.model)).shares

    await eventually(is_empty)
    async with own.room(PATIENCE_S):
        assert not await is_empty()


async def test_without_limits_no_call_waits_and_nothing_is_shared(crew: Crew, connect_as: ConnectAs) -> None:
    bus = await connect_as("a")
    own = crew.add(bus)
    sent, tasks = bus.counters.requests, len(asyncio.all_tasks())
    async with own.room(PATIENCE_S), own.room(PATIENCE_S):
        assert len(asyncio.all_tasks()) == tasks
    assert bus.counters.requests == sent
    assert (await entry_of(bus, crew.model)).shares == {}


async def test_changed_limits_hold_for_the_next_call(crew: Crew, connect_as: ConnectAs) -> None:
    bus = await connect_as("a")
    own = crew.add(bus)
    async with own.room(PATIENCE_S):
        own.configure(ModelLimits(concurrency=1), bus)
        with pytest.raises(HeldBack):
            async with own.room(1):
                pass
    async with own.room(PATIENCE_S):
        own.configure(ModelLimits(), bus)
        async with own.room(PATIENCE_S):
            pass


async def test_a_model_that_the_fleet_does_not_limit_is_asked_at_once(
    connect_as: ConnectAs, model: str
) -> None:
    rate_limit.configure({}, await connect_as("a"))
    async with rate_limit.limiter_of(model).room(PATIENCE_S):
        pass


async def test_a_process_that_leaves_gives_its_shares_back(connect_as: ConnectAs, model: str) -> None:
    bus = await connect_as("a")
    rate_limit.configure({model: ModelLimits(concurrency=4)}, bus)
    async with rate_limit.limiter_of(model).room(PATIENCE_S):
        assert len((await entry_of(bus, model)).shares) == 1
    await rate_limit.give_back(bus)
    assert (await entry_of(bus, model)).shares == {}


async def test_agents_alone_write_it_and_viewers_see_it(connect_as: ConnectAs, model: str) -> None:
    subject = subjects.rate(model)
    said = renew(RateLimitEntry(), "p", time.time_ns() // 1000, ModelUse(), ModelLimits(concurrency=1))
    agent, other = await connect_as("a"), await connect_as("b")
    await agent.publish_durable(subject, msgspec.json.encode(said.entry))
    assert await entry_of(other, model) == said.entry
    for name in ("c1", "audit", "op", "guard"):
        outsider = await connect_as(name)
        with pytest.raises(Denied):
            await outsider.publish_durable(subject, b"{}")
    for name in ("c1", "guard"):
        with pytest.raises(Denied):
            await (await connect_as(name)).request(f"{GET}RATES.{subject}")
    assert await entry_of(await connect_as("audit"), model) == said.entry
    with pytest.raises(Denied):
        await agent.request(f"{GET}RATES", b'{"seq":1}')
