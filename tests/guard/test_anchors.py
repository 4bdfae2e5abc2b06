"""Guards sign the newest event of each request, and whoever alters the log's end is found out."""

import msgspec

from mesh.ops.anchors import AnchorCheck, Anchored, anchored, compared, stored_anchors
from mesh.ops.log import chains_of, request_bodies
from protocol.wire.moves import Complete
from protocol.wire.records import Anchor, SignedAnchor
from tests.guard.stage import Stage
from tests.servers import PATIENCE_S, eventually

ONE = Complete(answer="done")


async def lines(stage: Stage) -> list[bytes]:
    return [body async for body in stored_anchors(await stage.bus("op"))]


async def vouched(stage: Stage, request: str) -> Anchored:
    return anchored(await lines(stage)).only(request)


def against(found: Anchored, bodies: list[bytes]) -> AnchorCheck:
    return compared(found, chains_of(bodies, found.watched), first_seq=1)


async def finished(stage: Stage) -> tuple[str, list[bytes]]:
    """Return a request that ended, and its stored events."""
    client, a = await stage.client(), await stage.actor("a")
    request = await client.submit("hello")
    await a.propose(request, await a.work(request), ONE)
    await client.wait(request, timeout_s=PATIENCE_S)
    return request, await request_bodies(await stage.bus("op"), request)


async def test_a_guard_that_leaves_has_anchored_the_last_event(stage: Stage) -> None:
    guard = await stage.guard("leaver")
    request, bodies = await finished(stage)
    await stage.drained()
    await guard.drain(PATIENCE_S)
    found = await vouched(stage, request)
    assert found.heads[request].n == len(bodies) - 1
    assert against(found, bodies) == AnchorCheck([], vouched=1, gone=0)


async def test_after_so_many_events_a_guard_waits_no_longer(stage: Stage) -> None:
    guard = await stage.guard("busy")
    guard._anchors._most = 3  # so many as `finished` appends, so the last of them counts
    request, bodies = await finished(stage)

    async def is_anchored() -> bool:
        head = (await vouched(stage, request)).heads.get(request)
        return head is not None and head.n == len(bodies) - 1

    await eventually(is_anchored)


async def test_what_a_guard_that_was_killed_appended_is_anchored_by_the_next(stage: Stage) -> None:
    client, a = await stage.client(), await stage.actor("a")
    before = len(await lines(stage))

    async def is_known() -> bool:
        """The first anchor of a guard tells the others that it runs."""
        return len(await lines(stage)) > before

    async with stage.doomed_guard("guard.decided#2") as doomed:
        await eventually(is_known)
        request = await client.submit("hello")
        await a.propose(request, await a.work(request), ONE)
        await doomed.ended()
    bodies = await request_bodies(await stage.bus("op"), request)
    assert request not in (await vouched(stage, request)).heads
    await stage.guard("heir")

    async def is_anchored() -> bool:
        return request in (await vouched(stage, request)).heads

    await eventually(is_anchored)
    assert against(await vouched(stage, request), bodies).vouched == 1
    await stage.drained()


async def test_an_altered_last_event_and_a_cut_tail_are_named(stage: Stage) -> None:
    guard = await stage.guard("signer")
    request, bodies = await finished(stage)
    await stage.drained()
    await guard.drain(PATIENCE_S)
    found, last = await vouched(stage, request), len(bodies) - 1
    altered = [*bodies[:-1], bodies[-1].replace(b'"done"', b'"paid"')]
    assert altered != bodies
    assert chains_of(altered).breaks == []  # the chain alone does not tell
    assert [(name, each.n, each.what[:14]) for name, each in against(found, altered).breaks] == [
        (request, last, "is another one")
    ]
    assert chains_of(bodies[:-1]).breaks == []
    assert [(name, each.n, each.what[:10]) for name, each in against(found, bodies[:-1]).breaks] == [
        (request, last, "is missing")
    ]
    assert [each.n for _, each in compared(found, chains_of([]), first_seq=1).breaks] == [last]
    aged = compared(found, chains_of([]), first_seq=found.heads[request].seq + 1)
    assert aged == AnchorCheck([], vouched=0, gone=1)


async def test_anchors_that_were_altered_forged_or_taken_out_vouch_for_nothing(stage: Stage) -> None:
    for identity in ("one", "two", "three"):
        guard = await stage.guard(identity)
        request, _ = await finished(stage)
        await stage.drained()
        await guard.drain(PATIENCE_S)
    stored = await lines(stage)
    assert anchored(stored).faults == ()
    assert anchored(stored, keys=[anchored(stored).keys[0]]).faults == ()
    assert len(anchored(stored, keys=["U" + "A" * 55]).faults) == len(stored)
    assert anchored(stored, keys=["U" + "A" * 55]).heads == {}
    missing = anchored([*stored[:-2], stored[-1]])
    assert [fault[:32] for fault in missing.faults] == ["an anchor is missing or altered "]
    signed = msgspec.json.decode(stored[-1], type=SignedAnchor)
    anchor = msgspec.json.decode(signed.anchor, type=Anchor)
    other = msgspec.structs.replace(anchor, at=anchor.at + 1)
    forged = msgspec.structs.replace(signed, anchor=msgspec.Raw(msgspec.json.encode(other)))
    told = anchored([*stored[:-1], msgspec.json.encode(forged)])
    assert len(told.faults) == 1
    assert request not in told.heads
    assert anchored([b"{", *stored]).faults == ("anchor 1 cannot be read",)


async def test_two_guards_write_one_chain_of_anchors(stage: Stage) -> None:
    for identity in ("left", "right"):
        guard = await stage.guard(identity)
        guard._anchors._most = 1
    requests = [(await finished(stage))[0] for _ in range(8)]

    async def are_anchored() -> bool:
        return anchored(await lines(stage)).heads.keys() >= set(requests)

    await eventually(are_anchored)
    assert anchored(await lines(stage)).faults == ()


async def test_without_the_stream_a_guard_decides_all_the_same(own_stage: Stage) -> None:
    await (await own_stage.bus("admin")).api("STREAM.DELETE.ANCHORS")
    await own_stage.guard("without")
    request, _ = await finished(own_stage)
    assert (await own_stage.types(request))[-1] == "request.completed"
