"""Conversations on a real server: written once, found by the next request, forgotten by order."""

import asyncio
from typing import Any

import msgspec
import pytest

from mesh.bus.stores import read_memory, write_memory
from mesh.bus.streams import memory_of
from protocol.wire.commands import Complete, Control, Forget
from protocol.wire.handoff import Fact
from protocol.wire.ids import RequestId
from protocol.wire.records import MemoryRecord
from protocol.wire.subjects import ctl
from tests.guard.stage import HASTY, Stage
from tests.servers import PATIENCE_S, eventually

LEAVES = (Fact(key="order", value=7), Fact(key="a customer's name", value="Ada", labels=("pii",)))


FURNISHED = HASTY


async def remembered(stage: Stage, conversation: str, client: str = "c1") -> dict[str, Any]:
    records = await read_memory(await stage.bus("audit"), client, conversation)
    return {record.key: record.fact and record.fact.value for record in records}


async def ended(stage: Stage, conversation: str, *leaves: Fact, keys: tuple[str, ...] = ()) -> RequestId:
    """Submit a request of a conversation, and let it be answered."""
    client, a = await stage.client(), await stage.actor("a")
    request = await client.submit("hello", conversation=conversation)
    move = Complete(answer="done", remember=leaves, remember_keys=keys)
    await a.propose(request, await a.work(request), move)
    await client.wait(request, timeout_s=PATIENCE_S)
    return request


async def handed(stage: Stage, conversation: str, name: str = "c1", to: str = "a") -> dict[str, Any]:
    """Return what a new request of a conversation begins with, but for its text."""
    client = await stage.client(name)
    request = await client.submit("hello", conversation=conversation, to=to)
    work = await (await stage.actor(to)).work(request)
    return {fact.key: fact.value for fact in work.handoff.facts if fact.key != "text"}


async def test_the_next_request_begins_with_what_the_last_one_left(stage: Stage) -> None:
    await stage.guard()
    await ended(stage, "one", *LEAVES)
    await stage.drained()
    assert await handed(stage, "one") == {"order": 7, "a customer's name": "Ada"}
    assert await handed(stage, "one", to="b") == {"order": 7}
    assert await handed(stage, "one", name="c2") == {}
    assert await handed(stage, "another") == {}


async def test_a_request_that_is_submitted_as_soon_as_the_answer_is_read_finds_it(stage: Stage) -> None:
    await stage.guard()
    for number in range(10):
        await ended(stage, "at once", Fact(key="n", value=number))
        assert await handed(stage, "at once") == {"n": number}


@pytest.mark.parametrize("point", ["append:request.completed", "remembered"])
async def test_a_guard_that_dies_before_it_has_written_everything_leaves_that_to_another(
    stage: Stage, point: str
) -> None:
    async with stage.doomed_guard(point) as doomed:
        await ended(stage, point, *LEAVES)
        await doomed.ended()
    assert bool(await remembered(stage, point)) == (point == "remembered")
    await stage.guard()
    await stage.drained()
    assert await remembered(stage, point) == {"order": 7, "a customer's name": "Ada"}
    assert await handed(stage, point) == {"order": 7, "a customer's name": "Ada"}


async def test_what_is_written_late_does_not_undo_what_came_after_it(stage: Stage) -> None:
    bus = await stage.bus("guard", "writer")
    newer = MemoryRecord(conversation="late", key="k", fact=Fact(key="k", value=2), at=20, request="r2")
    older = MemoryRecord(conversation="late", key="k", fact=Fact(key="k", value=1), at=10, request="r1")
    await asyncio.gather(*(write_memory(bus, "c1", [each]) for each in (newer, older, newer, older)))
    assert await remembered(stage, "late") == {"k": 2}
    before = await stage.last_seq(memory_of("c1"))
    await write_memory(bus, "c1", [newer, older])
    assert await stage.last_seq(memory_of("c1")) == before


async def test_what_cannot_be_read_is_written_anew(stage: Stage) -> None:
    bus = await stage.bus("guard", "writer")
    await bus.publish_durable("mesh.mem.c1.rubbish.k", b"{")
    assert await remembered(stage, "rubbish") == {}
    new = MemoryRecord(conversation="rubbish", key="k", fact=Fact(key="k", value=1), at=1, request="r")
    await write_memory(bus, "c1", [new])
    assert await remembered(stage, "rubbish") == {"k": 1}


# --- forgetting -------------------------------------------------------------------------------------


async def order(stage: Stage, sender: str, control: Control) -> None:
    await (await stage.bus(sender)).publish_durable(ctl(sender, "_"), msgspec.json.encode(control))
    await stage.drained()


@pytest.mark.parametrize(("sender", "client"), [("op", "c1"), ("c1", None)])
async def test_an_operator_and_the_client_have_it_forgotten(
    stage: Stage, sender: str, client: str | None
) -> None:
    await stage.guard()
    talk = f"forgotten by {sender}"
    await ended(stage, talk, *LEAVES)
    await stage.drained()
    await order(stage, sender, Forget(id="f1", conversation=talk, client=client, keys=("order",)))  # type: ignore[arg-type]
    assert await handed(stage, talk) == {"a customer's name": "Ada"}
    await order(stage, sender, Forget(id="f2", conversation=talk, client=client))  # type: ignore[arg-type]
    assert await handed(stage, talk) == {}
    assert set((await remembered(stage, talk)).values()) == {None}
    await ended(stage, talk, Fact(key="order", value=8))
    await stage.drained()
    assert await handed(stage, talk) == {"order": 8}


async def test_a_guard_that_dies_while_it_forgets_has_forgotten(stage: Stage) -> None:
    async with stage.doomed_guard("remembered") as doomed:
        bus = await stage.bus("guard", "writer")
        for at, key in enumerate("ab"):
            fact = Fact(key=key, value=1)
            record = MemoryRecord(conversation="dying", key=key, fact=fact, at=at, request="r")
            await write_memory(bus, "c1", [record])
        order_ = Forget(id="f3", conversation="dying")
        await (await stage.bus("c1")).publish_durable(ctl("c1", "_"), msgspec.json.encode(order_))
        await doomed.ended()
    assert await remembered(stage, "dying") == {"a": 1, "b": 1, "": None}
    await stage.guard()
    assert await handed(stage, "dying") == {}
    await stage.drained()
    assert await remembered(stage, "dying") == {"a": None, "b": None, "": None}


@pytest.mark.parametrize(
    ("sender", "order_", "code"),
    [
        ("c2", Forget(id="f4", conversation="c", client="c1"), "not_allowed"),  # type: ignore[arg-type]
        ("op", Forget(id="f5", conversation="c", client="a"), "unknown_client"),  # type: ignore[arg-type]
        ("op", Forget(id="f6", conversation=""), "protocol.malformed"),
    ],
)
async def test_an_order_that_may_not_be_obeyed_is_a_dead_letter(
    stage: Stage, sender: str, order_: Forget, code: str
) -> None:
    await stage.guard()
    after = await stage.last_seq("DEAD")
    await order(stage, sender, order_)
    assert (await stage.buried(code, after=after)).sender == sender


async def test_a_conversation_that_is_too_large_for_the_store_loses_its_oldest_facts(stage: Stage) -> None:
    """One client's memory is bounded, and no answer waits for room in it."""
    bus = await stage.bus("guard", "writer")
    most = (await (await stage.bus("admin")).api(f"STREAM.INFO.{memory_of('c2')}"))["config"]["max_bytes"]
    large = "x" * 200_000
    for at in range(most // len(large) + 2):
        fact = Fact(key=f"k{at}", value=large)
        record = MemoryRecord(conversation=f"talk {at}", key=fact.key, fact=fact, at=at, request="r")
        await write_memory(bus, "c2", [record])
    assert await remembered(stage, "talk 0", "c2") == {}

    async def bounded() -> bool:
        info = await (await stage.bus("admin")).api(f"STREAM.INFO.{memory_of('c2')}")
        return bool(info["state"]["bytes"] <= most)

    await eventually(bounded)
