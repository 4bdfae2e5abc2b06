"""Several guards on one mesh: each has its share, and what a killed or frozen one had goes to the others."""

import asyncio
import contextlib
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest_asyncio

from mesh.bus.nats_protocol import Incoming
from mesh.guard.queues import Beat
from protocol.wire.ids import RequestId
from protocol.wire.moves import Complete
from protocol.wire.subjects import GUARD_BEATS, partition
from tests.guard.stage import FLEET, Stage, furnished_mesh, staged
from tests.servers import PATIENCE_S, Child, until

PARTITIONS = 16
EVERY = frozenset(range(PARTITIONS))


class Holders:
    """Who says that it holds which partitions, by identity."""

    def __init__(self) -> None:
        self.of: dict[str, frozenset[int]] = {}
        self.gaps: set[int] = set()
        """Partitions that nobody held at some moment, as far as beats say, after `watch`."""
        self._watches = False

    def hear(self, message: Incoming) -> None:
        beat = msgspec.json.decode(message.data, type=Beat)
        self.of[beat.guard.partition("/")[0]] = beat.holds
        if self._watches:
            self.gaps |= EVERY.difference(*self.of.values())

    def watch(self) -> None:
        self.gaps.clear()
        self._watches = True

    async def are(self, *names: str) -> None:
        """Wait until these guards have an even share each, and all partitions together."""

        def shared() -> bool:
            held = [self.of.get(name, frozenset()) for name in names]
            sizes = [len(each) for each in held]
            return (
                sum(sizes) == PARTITIONS and frozenset().union(*held) == EVERY and max(sizes) - min(sizes) < 2
            )

        await until(shared)


@pytest_asyncio.fixture
async def wide(tmp_path: Path) -> AsyncIterator[Stage]:
    """A stage on a mesh of 16 partitions."""
    fleet = msgspec.structs.replace(FLEET, partitions=PARTITIONS)
    async with furnished_mesh(tmp_path, fleet) as mesh, staged(mesh) as own:
        yield own


async def holders(stage: Stage) -> Holders:
    heard = Holders()
    await (await stage.bus("admin", "holders")).subscribe(GUARD_BEATS, heard.hear)
    return heard


async def each_partition_decides(stage: Stage) -> None:
    """Open and answer a request of every partition."""
    client, a = await stage.client(), await stage.actor("a")
    requests: dict[int, RequestId] = {}
    while len(requests) < PARTITIONS:
        request = client.new_id()
        requests.setdefault(partition(request, PARTITIONS), request)

    async def answered(request: RequestId) -> None:
        await client.submit("hello", request=request)
        await a.propose(request, await a.work(request), Complete(answer="done"))
        assert (await client.wait(request, timeout_s=PATIENCE_S)).status == "completed"

    await asyncio.gather(*map(answered, requests.values()))
    for request in requests.values():
        assert await stage.types(request) == ["request.opened", "request.completed"]


@contextlib.asynccontextmanager
async def guards(stage: Stage, *names: str) -> AsyncIterator[list[Child]]:
    """Start guards as processes of their own, one after the other."""
    async with contextlib.AsyncExitStack() as stack:
        yield [await stack.enter_async_context(stage.doomed_guard("never", name)) for name in names]


async def test_guards_take_an_even_share_each_and_no_partition_twice(wide: Stage) -> None:
    heard = await holders(wide)
    async with guards(wide, "g1", "g2", "g3"):
        await heard.are("g1", "g2", "g3")
        await each_partition_decides(wide)


async def test_what_a_killed_guard_had_is_decided_by_the_others(wide: Stage) -> None:
    heard = await holders(wide)
    async with guards(wide, "g1", "g2", "g3") as processes:
        await heard.are("g1", "g2", "g3")
        processes[1].signal(signal.SIGKILL)
        await processes[1].ended()
        await each_partition_decides(wide)
        await heard.are("g1", "g3")


async def test_a_frozen_guard_is_done_without_and_has_its_share_again_when_it_goes_on(wide: Stage) -> None:
    heard = await holders(wide)
    async with guards(wide, "g1", "g2") as (_, frozen):
        await heard.are("g1", "g2")
        frozen.signal(signal.SIGSTOP)
        await each_partition_decides(wide)
        assert heard.of["g1"] == EVERY
        frozen.signal(signal.SIGCONT)
        await heard.are("g1", "g2")
        await each_partition_decides(wide)


async def test_while_guards_join_and_leave_somebody_holds_every_partition(wide: Stage) -> None:
    heard = await holders(wide)
    first = await wide.guard("g1")
    await heard.are("g1")
    heard.watch()
    await wide.guard("g2")
    await heard.are("g1", "g2")
    await wide.guard("g3")
    await heard.are("g1", "g2", "g3")
    await wide.dismiss(first)
    await heard.are("g2", "g3")
    assert not heard.gaps
    await each_partition_decides(wide)


async def test_guards_that_come_and_go_again_and_again_starve_no_partition(wide: Stage) -> None:
    heard = await holders(wide)
    async with guards(wide, "g1", "g2") as processes:
        await heard.are("g1", "g2")
        for turn in range(6):
            processes[turn % 2].signal(signal.SIGSTOP)
            processes[1 - turn % 2].signal(signal.SIGCONT)
            await each_partition_decides(wide)
        for each in processes:
            each.signal(signal.SIGCONT)
        await heard.are("g1", "g2")
