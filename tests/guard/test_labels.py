"""Labels of the fleet file: what somebody brings unlabelled reaches no inbox of who is not cleared."""

from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest_asyncio

from mesh.testing import LocalBus
from protocol.wire.commands import Transfer
from protocol.wire.handoff import Fact
from tests.guard.stage import FLEET, Stage, furnish, staged

LABELLING = msgspec.structs.replace(FLEET, labels={"customer_name": ("pii",)})


@pytest_asyncio.fixture
async def stage(tmp_path: Path) -> AsyncIterator[Stage]:
    async with LocalBus(LABELLING, tmp_path / "mesh") as mesh:
        await furnish(mesh)
        async with staged(mesh, guards=1) as own:
            yield own


async def test_neither_a_clients_nor_an_agents_word_takes_a_label_off(stage: Stage) -> None:
    client, a, b = await stage.client(), await stage.actor("a"), await stage.actor("b")
    name = Fact(key="customer_name", value="Ada")
    request = await client.submit("hello", facts=[name])
    work = await a.work(request)
    assert [fact for fact in work.handoff.facts if fact.key == "customer_name"] == [
        Fact(key="customer_name", value="Ada", labels=("pii",))
    ]
    again = Fact(key="customer_name", value="Ada Lovelace")
    move = Transfer(to_agent="b", summary="look", facts=(again,))  # type: ignore[arg-type]
    await a.propose(request, work, move)
    given = await b.work(request)
    assert [fact.key for fact in given.handoff.facts] == ["text"]
    assert given.withheld is not None
    assert given.withheld.labels == ("pii",)
    assert all(b"Lovelace" not in msgspec.json.encode(event) for event in b.got[request])
