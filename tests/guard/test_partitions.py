"""How many partitions a mesh has: a setting of a new mesh, which every guard keeps to."""

from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from mesh.errors import OtherPartitions
from protocol.wire import subjects
from protocol.wire.config import Fleet
from protocol.wire.ids import AgentName, RequestId
from protocol.wire.moves import Complete, Transfer
from tests.guard.stage import FLEET, Stage, furnished_mesh, staged
from tests.servers import PATIENCE_S, until


@pytest.mark.parametrize("partitions", [1, 4, 64])
async def test_messages_and_timers_of_every_partition_are_decided(tmp_path: Path, partitions: int) -> None:
    fleet = msgspec.structs.replace(FLEET, partitions=partitions)
    async with furnished_mesh(tmp_path, fleet) as mesh, staged(mesh) as stage:
        guard, client = await stage.guard(), await stage.client()
        await stage.ready(guard)
        a, b = await stage.actor("a"), await stage.actor("b")
        request = await client.submit("hello")
        await a.propose(request, await a.work(request), Transfer(to_agent=AgentName("b"), summary="please"))
        await b.propose(request, await b.work(request), Complete(answer="done"))
        assert (await client.wait(request, timeout_s=PATIENCE_S)).status == "completed"
        short = [client.new_id() for _ in range(3 * partitions)]
        short += [
            _of_partition(client.new_id, wanted, partitions)
            for wanted in {*range(partitions)} - {subjects.partition(each, partitions) for each in short}
        ]
        for each in short:
            await client.submit("hello", policy="short", request=each)
        for each in short:
            assert (await client.wait(each, timeout_s=PATIENCE_S)).status == "expired"


def _of_partition(new_id: Callable[[], RequestId], wanted: int, partitions: int) -> RequestId:
    while subjects.partition(found := new_id(), partitions) != wanted:
        pass
    return found


async def _write_fleet(stage: Stage, fleet: Fleet) -> None:
    admin = await stage.bus("admin")
    await admin.publish_durable(subjects.FLEET, msgspec.json.encode(fleet))


async def test_a_guard_does_not_start_by_another_number_than_the_meshs(own_stage: Stage) -> None:
    await _write_fleet(own_stage, msgspec.structs.replace(FLEET, partitions=16))
    guard = await own_stage.guard()
    await until(lambda: not own_stage.alive(guard))
    with pytest.raises(OtherPartitions, match=r"made with 4 partitions.*says 16"):
        await own_stage.dismiss(guard)


async def test_a_guard_ends_when_the_number_becomes_another(own_stage: Stage) -> None:
    guard = await own_stage.guard()
    await own_stage.ready(guard)
    await _write_fleet(own_stage, msgspec.structs.replace(FLEET, partitions=16))
    await until(lambda: not own_stage.alive(guard))
    with pytest.raises(ExceptionGroup) as ended:
        await own_stage.dismiss(guard)
    assert [type(each) for each in ended.value.exceptions] == [OtherPartitions]
