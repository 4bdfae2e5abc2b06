"""`mesh requeue`: open turns that are in no queue are delivered again, and no others."""

import asyncio
from pathlib import Path

import msgspec
import pytest

from mesh.agent.definition import Agent
from mesh.agent.turn import Turn
from mesh.ops.requeue import requeue
from protocol.wire.moves import Move
from tests.guard.stage import furnished_mesh, staged
from tests.ops.restoring import Bank, acknowledged_unseen
from tests.servers import FLEET, PATIENCE_S


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
