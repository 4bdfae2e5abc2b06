"""Artifacts of a turn: a save is a step, a load is not; the next agent and the client get the very bytes."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from mesh.agent import Artifact, FactUnusable, Move, Turn, agent
from mesh.artifacts import ArtifactForeign, ArtifactStore
from mesh.testing import FleetHarness, InMemoryGuard, LocalMesh, MemorySteps, TemporaryStore, fleet_of, turn
from tests.servers import PATIENCE_S


async def test_a_round_that_runs_again_reads_no_data_and_saves_nothing(tmp_path: Path) -> None:
    read: list[int] = []

    async def stream(n: int) -> AsyncIterator[bytes]:
        read.append(n)
        yield b"hello %d" % n

    journal, store = MemorySteps(), ArtifactStore.at(str(tmp_path / "store"))
    first = await turn(steps=journal, store=store).save("report", stream(1), labels=["pii"])
    assert first.labels == ("pii",)
    again = turn(steps=journal, store=ArtifactStore.at(str(tmp_path / "another")))
    assert await again.save("report", stream(2), labels=["pii"]) == first
    assert read == [1]
    assert not (tmp_path / "another").exists()
    assert await turn(store=store).load(first) == b"hello 1"


async def test_a_later_round_saves_anew() -> None:
    journal, store = MemorySteps(), TemporaryStore()
    now = turn(steps=journal, store=store)
    first = await now.save("report", b"a draft")
    later = turn(steps=journal, store=store, refused=[(now.complete("no"), "budget")])
    second = await later.save("report", b"a better draft")
    assert [await store.load(each) for each in (first, second)] == [b"a draft", b"a better draft"]


async def test_a_save_that_failed_is_no_step(tmp_path: Path) -> None:
    journal, place = MemorySteps(), tmp_path / "store"
    place.write_text("in the way")
    now = turn(steps=journal, store=ArtifactStore.at(str(place)))
    with pytest.raises(Exception, match="cannot be used"):
        await now.save("report", b"hello")
    place.unlink()
    saved = await turn(steps=journal, store=ArtifactStore.at(str(place))).save("report", b"hello")
    assert saved.size == 5


async def test_what_was_handed_over_is_loaded_by_name(tmp_path: Path) -> None:
    store = TemporaryStore()
    scan = await store.save("scan", b"hello")
    now = turn(artifacts=[scan], store=store)
    assert await now.load("scan") == await now.load(scan) == b"hello"
    assert (await now.load_to("scan", tmp_path / "scan")).read_bytes() == b"hello"
    with pytest.raises(FactUnusable, match="no artifact 'scna': there are scan"):
        await now.load("scna")
    with pytest.raises(FactUnusable, match="there are none"):
        await turn().load("scan")


def test_a_test_that_saves_nothing_makes_no_folder_and_one_that_does_leaves_none() -> None:
    store = TemporaryStore()
    assert "root" not in vars(store.objects)
    saved = asyncio.run(store.save("x", b"hello"))
    assert asyncio.run(store.load(saved)) == b"hello"
    root = Path(vars(store.objects)["root"])
    assert root.is_dir()
    del store
    assert not root.exists()


@agent(name="front")
async def front(turn: Turn) -> Move:
    if "scan" not in {each.name for each in turn.handoff.artifacts}:
        return turn.escalate("no scan")
    text = (await turn.load("scan")).decode()
    notes = await turn.save("notes", f"notes on {text}".encode(), media_type="text/plain")
    return turn.transfer("writer", summary="write it up", artifacts=[notes])


@agent(name="writer")
async def writer(turn: Turn) -> Move:
    whole = await turn.load("scan") + b"; " + await turn.load("notes")
    return turn.complete(await turn.save("report", whole))


async def test_a_whole_path_shares_one_store() -> None:
    walk = FleetHarness(InMemoryGuard(fleet_of("front", "writer")), {"front": front, "writer": writer})
    scan = await walk.store.save("scan", b"a contract")
    await walk.go("Read this", artifacts=(scan,))
    assert await walk.store.load(Artifact(**walk.answer)) == b"a contract; notes on a contract"


async def test_an_artifact_of_somebody_elses_store_ends_the_turn_with_its_code() -> None:
    walk = FleetHarness(
        InMemoryGuard(fleet_of("front", "writer")), {"front": front, "writer": writer}, keep_going=True
    )
    await walk.go("Read this", artifacts=(Artifact(name="scan", uri="s3://bucket/contract.pdf"),))
    assert walk.broke == [ArtifactForeign.code]
    assert walk.status == "escalated"


async def test_on_a_real_mesh_a_client_hands_in_a_scan_and_fetches_the_report(tmp_path: Path) -> None:
    async with LocalMesh([front, writer], tmp_path) as mesh:
        scan = await mesh.store.save("scan", b"a contract")
        client = await mesh.client()
        request = await client.submit("Read this", artifacts=[scan], answer_type=Artifact)
        report = (await client.wait(request, timeout_s=PATIENCE_S)).answer
        assert await mesh.store.load(report) == b"a contract; notes on a contract"
