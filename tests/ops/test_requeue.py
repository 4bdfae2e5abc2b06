"""`mesh requeue`: open turns that are in no queue are delivered again, and no others."""

import asyncio
from collections import defaultdict
from pathlib import Path
from typing import Any

import msgspec
import pytest

from mesh.agent.definition import Agent
from mesh.agent.turn import Turn
from mesh.bus.connection import Bus
from mesh.ops.requeue import OpenRequests, requeue
from protocol.wire.moves import Move
from tests.guard.stage import Stage, furnished_mesh, staged
from tests.ops.restoring import Bank, acknowledged_unseen
from tests.servers import FLEET, PATIENCE_S, eventually, until


class Held:
    """A handler whose turns wait until they may leave, each by its request."""

    def __init__(self) -> None:
        self.leave = defaultdict[str, asyncio.Event](asyncio.Event)
        self._entered = set[str]()

    async def __call__(self, turn: Turn) -> Move:
        self._entered.add(turn.request)
        await self.leave[turn.request].wait()
        return turn.complete("done")

    async def has(self, request: str) -> None:
        await until(lambda: request in self._entered)

    def leave_all(self) -> None:
        for each in self._entered:
            self.leave[each].set()


async def until_left(stage: Stage, count: int) -> None:
    """Wait until so many events of `a` are not acknowledged."""
    await eventually(lambda: is_left(stage, count))


async def is_left(stage: Stage, count: int) -> bool:
    return await stage.inbox_left("a") == count


async def test_open_turns_that_lie_in_no_queue_are_delivered_again(tmp_path: Path) -> None:
    bank = Bank()
    async with furnished_mesh(tmp_path / "mesh") as mesh, staged(mesh, guards=1) as stage:
        client, admin = await stage.client(), await stage.bus("admin")
        front = await stage.runtime(Agent("a", bank.front))
        back = await stage.runtime(Agent("b", bank.back))
        over = await client.submit("over", to="a")
        await client.wait(over, timeout_s=PATIENCE_S)
        await stage.stop(back)
        requests = [await client.submit("waits", to="a") for _ in range(3)]
        for request in requests:
            await stage.reaches(request, "handoff.admitted")
        assert not (await requeue(admin)).turns, "they lie in the inbox of b"
        await acknowledged_unseen(admin, "b")
        await stage.runtime(Agent("b", bank.back), "again")
        lost = (await requeue(admin, dry_run=True)).turns
        assert {turn.request for turn in lost} == set(requests)
        assert (await requeue(admin)).turns == lost
        for request in requests:
            await client.wait(request, timeout_s=PATIENCE_S)
        assert not (await requeue(admin)).turns
        assert bank.receipts == dict.fromkeys((over, *requests), 1)
        assert stage.runs(front)


@pytest.mark.parametrize("concurrency", [1, 4], ids=["busy", "with-room"])
async def test_what_waits_in_a_queue_or_is_in_hand_is_left_alone(tmp_path: Path, concurrency: int) -> None:
    """An agent that has as many turns in hand as it takes asks for no more."""
    fleet = msgspec.structs.replace(FLEET, lease_s=1.0)
    async with furnished_mesh(tmp_path / "mesh", fleet) as mesh, staged(mesh) as stage:
        admin = await stage.bus("admin")
        guard = await stage.guard()
        await stage.ready(guard)
        entered, leave = asyncio.Event(), asyncio.Event()

        async def slow(turn: Turn) -> Move:
            entered.set()
            await leave.wait()
            return turn.complete("done")

        await stage.runtime(Agent("a", slow, concurrency=concurrency))
        request = await (await stage.client()).submit("hello", to="a")
        await entered.wait()
        for leases in (0.0, 2.0):
            assert not (await requeue(admin, leases=leases)).turns, "an instance has it in hand"
        await stage.dismiss(guard)
        leave.set()
        await stage.drained("LOG", to=1)
        await stage.inbox_drained("a")
        assert not (await requeue(admin)).turns, "its proposal waits for a guard"
        await stage.guard("g2")
        await (await stage.client()).wait(request, timeout_s=PATIENCE_S)


async def test_a_turn_in_hand_is_not_taken_for_its_neighbour_that_is_done(tmp_path: Path) -> None:
    """The proposal of that one waits: the log has both turns open, and the inbox has one event."""
    fleet = msgspec.structs.replace(FLEET, lease_s=1.0, lane=False)
    async with furnished_mesh(tmp_path / "mesh", fleet) as mesh, staged(mesh) as stage:
        client, admin, guard, held = (
            await stage.client(),
            await stage.bus("admin"),
            await stage.guard(),
            Held(),
        )
        await stage.runtime(Agent("a", held, concurrency=2))
        requests = [await client.submit("hello", to="a")]
        await held.has(requests[0])
        requests.append(await client.submit("hello", to="a"))
        await held.has(requests[1])
        await stage.dismiss(guard)
        held.leave[requests[1]].set()
        await until_left(stage, 1)
        for leases in (0.0, 2.0):
            assert not (await requeue(admin, leases=leases)).turns
        held.leave[requests[0]].set()
        await stage.guard("g2")
        for request in requests:
            await client.wait(request, timeout_s=PATIENCE_S)


async def test_turns_that_begin_while_it_looks_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with furnished_mesh(tmp_path / "mesh") as mesh, staged(mesh, guards=1) as stage:
        client, admin, held = await stage.client(), await stage.bus("admin"), Held()
        lost = await client.submit("hello", to="a")
        await stage.reaches(lost, "request.opened")
        await acknowledged_unseen(admin, "a")
        await stage.runtime(Agent("a", held, concurrency=8))
        begun, read_on = [], OpenRequests.read_on

        async def read_and_go_on(self: OpenRequests, bus: Bus) -> None:
            await read_on(self, bus)
            begun.append(await client.submit("hello", to="a"))
            await held.has(begun[-1])

        monkeypatch.setattr(OpenRequests, "read_on", read_and_go_on)
        done = await requeue(admin)
        assert [turn.request for turn in done.turns] == [lost]
        assert len(begun) == 2
        await held.has(lost)
        held.leave_all()
        for request in (lost, *begun):
            assert (await client.wait(request, timeout_s=PATIENCE_S)).status == "completed"
        assert (await admin.api("STREAM.INFO.ENDS"))["state"]["messages"] == 0


@pytest.mark.parametrize("looked_at", ["STREAM.INFO.PROP-c1", "STREAM.INFO.LOG"])
async def test_what_comes_while_it_looks_is_not_taken_for_a_consumer_ahead_of_its_stream(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, looked_at: str
) -> None:
    fleet = msgspec.structs.replace(FLEET, lane=False)
    async with furnished_mesh(tmp_path / "mesh", fleet) as mesh, staged(mesh, guards=1) as stage:
        client, admin, held = await stage.client(), await stage.bus("admin"), Held()
        await stage.runtime(Agent("a", held, concurrency=64))
        consumer = await admin.api("CONSUMER.INFO.LOG.in-a")
        begun, api = [], admin.api

        async def goes_on(verb: str, *rest: Any, **more: Any) -> dict[str, Any]:
            for _ in range(2 if verb == looked_at else 0):
                begun.append(await client.submit("hello", to="a"))
                await held.has(begun[-1])
            found = await api(verb, *rest, **more)
            if verb == looked_at:
                begun.append(await client.submit("hello", to="a"))
                await held.has(begun[-1])
            return found

        monkeypatch.setattr(admin, "api", goes_on)
        done = await requeue(admin)
        assert begun
        assert (done.turns, done.queues) == ((), ())
        assert (await api("CONSUMER.INFO.LOG.in-a"))["created"] == consumer["created"]
        held.leave_all()
        for request in begun:
            await client.wait(request, timeout_s=PATIENCE_S)
