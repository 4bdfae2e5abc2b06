"""Queues: one for each sender. Nobody waits behind another's flood, and nobody fills another's queue."""

import asyncio
import contextlib
import os
import time

import msgspec
import pytest
from msgspec.structs import replace

from mesh.agent import Turn, tool
from mesh.agent.definition import Agent
from mesh.bus.connection import Bus
from mesh.bus.provision import provision
from mesh.bus.reader import get
from mesh.bus.streams import Limits, Storage, controls_of, proposals_of, steps_of
from mesh.errors import PublishRefused, StreamFull
from mesh.testing import EmbeddedBus
from protocol.wire import codec, subjects
from protocol.wire.commands import Cancel, Freeze, Resolve, Thaw
from protocol.wire.config import AgentEntry
from protocol.wire.freeze import FreezeEntry
from protocol.wire.ids import AgentName, RequestId, request_id
from protocol.wire.moves import Move
from tests.guard.stage import FLEET, Stage
from tests.servers import PATIENCE_S, eventually


def fresh(sender: str = "c1") -> RequestId:
    return request_id(sender, time.time_ns() // 1_000_000, os.urandom(10))


async def is_frozen(stage: Stage) -> bool:
    kept = await get(await stage.bus("audit"), "CONF", subjects.FREEZE)
    return kept is not None and msgspec.json.decode(kept.data, type=FreezeEntry).frozen


async def test_the_brake_is_obeyed_while_what_clients_said_before_still_waits(own_stage: Stage) -> None:
    """In one queue with clients, it would wait behind what may have overtaken a submit."""
    stage = own_stage
    client = await stage.bus("c1")
    ids = [fresh() for _ in range(2_000)]
    for request in ids:
        await client.publish_durable(subjects.ctl("c1", request), codec.encode(Cancel(id="x")))
    for request in ids[:500]:
        await client.publish_durable(subjects.prop("c1", request), b'{"text":"hello"}')
    await stage.control(subjects.MESH_WIDE, Freeze(id="f1"))
    guard = await stage.guard()
    await eventually(lambda: is_frozen(stage))
    assert await stage.waiting(controls_of("c1")) > 0
    await stage.control(subjects.MESH_WIDE, Thaw(id="t1"))

    async def thawed() -> bool:
        return not await is_frozen(stage)

    await eventually(thawed)
    await stage.dismiss(guard)


async def test_a_request_is_opened_while_anothers_flood_still_waits(own_stage: Stage) -> None:
    """In one queue, it would be opened after all that were stored before it."""
    stage = own_stage
    loud = await stage.bus("c2")
    flood = [subjects.prop("c2", fresh("c2")) for _ in range(3_000)]
    await asyncio.gather(*(loud.publish_durable(subject, b'{"text":"flood"}') for subject in flood))
    request = await (await stage.client("c1")).submit("hello")
    guard = await stage.guard()
    await stage.reaches(request, "request.opened")
    assert await stage.waiting(proposals_of("c2")) > 1_000
    await stage.dismiss(guard)


async def test_a_sender_fills_its_own_queue_and_no_other(tmp_path_factory: pytest.TempPathFactory) -> None:
    limits_of = {"c2": Limits(messages=5, bytes=1 << 20), "b": Limits(steps=9)}
    storage = Storage(limits=Limits(messages=20, steps=5), limits_of=limits_of)
    async with (
        EmbeddedBus(FLEET, tmp_path_factory.mktemp("mesh"), storage=storage) as mesh,
        mesh.connected_as("c1") as c1,
        mesh.connected_as("c2") as c2,
        mesh.connected_as("a") as agent,
        mesh.connected_as("b") as another,
        mesh.connected_as("op") as operator,
    ):
        for taken, bus in ((20, c1), (5, c2)):
            for _ in range(taken):
                await bus.publish_durable(subjects.prop(bus.name, fresh(bus.name)), b'{"text":"hello"}')
            with pytest.raises(StreamFull, match=f"PROP-{bus.name} is full"):
                await bus.publish_durable(subjects.prop(bus.name, fresh(bus.name)), b'{"text":"hello"}')
        for taken, bus in ((5, agent), (9, another)):
            for n in range(taken):
                await bus.publish_durable(subjects.step(bus.name, "r", "t", f"0-{n}"), b"{}")
            with pytest.raises(StreamFull, match=f"STEPS-{bus.name} is full"):
                await bus.publish_durable(subjects.step(bus.name, "r", "t", "1-0"), b"{}")
        await agent.publish_durable(subjects.prop("a", fresh()), b"{}")
        await operator.publish_durable(subjects.ctl("op", subjects.MESH_WIDE), b"{}")
        await c1.publish_durable(subjects.ctl("c1", fresh()), b"{}")


async def test_an_agent_that_fills_its_journals_keeps_nobody_else_waiting(own_stage: Stage) -> None:
    """Its own turns still end: their marks lie elsewhere. In one stream, nobody could journal any more."""
    stage, admin, a = own_stage, await own_stage.bus("admin"), await own_stage.actor("a", served=True)
    await stage.guard()
    config = (await admin.api(f"STREAM.INFO.{steps_of('a')}"))["config"]
    await admin.api(f"STREAM.UPDATE.{steps_of('a')}", {**config, "max_bytes": 100_000})
    client = await stage.client("c1")
    held = await client.submit("hello")
    work = await a.work(held)
    with pytest.raises(StreamFull, match="STEPS-a is full"):
        await _journal(a.bus, held, work.turn, steps=1_000)
    with pytest.raises(PublishRefused) as taken:
        await a.bus.publish_durable(subjects.step("a", held, work.turn, "0-0"), b"again")
    assert not isinstance(taken.value, StreamFull)

    await client.cancel(held)
    await stage.reaches(held, "request.cancelled")
    await stage.drained()
    assert await get(await stage.bus("audit"), "ENDS", subjects.end("a", held, work.turn)) is not None

    await stage.runtime(Agent("b", _calls, tools=(_look,)))
    outcome = await client.wait(await client.submit("hello", to="b"), timeout_s=PATIENCE_S)
    assert outcome.answer == "seen"
    assert (await stage.state(steps_of("b")))["messages"] > 0


async def _journal(bus: Bus, request: str, turn: str, steps: int) -> None:
    for n in range(steps):
        await bus.publish_durable(subjects.step(bus.name, request, turn, f"0-{n}"), bytes(1_000))


@tool
async def _look() -> str:
    """Look."""
    return "seen"


async def _calls(turn: Turn) -> Move:
    return turn.complete(await turn.call(_look))


async def test_who_joins_the_fleet_is_heard_by_a_guard_that_runs(own_stage: Stage) -> None:
    stage = own_stage
    await stage.ready(await stage.guard())
    agents = {**FLEET.agents, "new": AgentEntry(name=AgentName("new"))}
    admin = await stage.bus("admin")
    await provision(admin, replace(FLEET, agents=agents))
    await admin.publish_durable(subjects.prop("new", fresh("new")), b"{")  # in its name: it has no key here
    letter = await stage.buried("protocol.malformed")
    assert letter.sender == "new"


async def test_a_client_who_becomes_an_operator_speaks_from_the_operators_queue(own_stage: Stage) -> None:
    stage, admin = own_stage, await own_stage.bus("admin")
    left = fresh("c2")
    await admin.publish_durable(subjects.ctl("c2", left), codec.encode(Cancel(id="before")))
    promoted = replace(FLEET, clients=(AgentName("c1"),), operators=(AgentName("op"), AgentName("c2")))
    await provision(admin, promoted)
    assert await provision(admin, promoted) == []
    assert (await admin.publish_durable(subjects.ctl("c2", fresh()), b"{}")).stream == "CTL"
    await provision(admin, FLEET)
    assert (await admin.publish_durable(subjects.ctl("c2", fresh()), b"{}")).stream == "CTL-c2"
    assert await stage.waiting(controls_of("c2")) == 2  # what lay there before is still to be taken
    assert await provision(admin, FLEET) == []


async def test_an_operators_control_message_lies_in_no_clients_queue(own_stage: Stage) -> None:
    await own_stage.control(fresh(), Resolve(id="r", turn="t"))  # type: ignore[arg-type]
    assert (await own_stage.waiting(controls_of("c1")), await own_stage.waiting(controls_of("c2"))) == (0, 0)


async def test_an_idle_guard_asks_every_queue_for_one_message_alone(own_stage: Stage) -> None:
    """Such a pull may outlast a lease, so that idling costs no more with many queues."""
    guard = await own_stage.guard()
    await own_stage.ready(guard)
    pullers = guard._queues._pullers.values()
    assert {puller.requested for puller in pullers} == {1}
    await own_stage.dismiss(guard)


@pytest.mark.parametrize("passes", [0, 20, 100, 400])
async def test_a_guard_without_a_grace_leaves_at_once(stage: Stage, passes: int) -> None:
    guard = await stage.guard("hasty")
    for _ in range(passes):
        await asyncio.sleep(0)  # wherever its start is by then
    bus = await stage.bus("guard", "hasty")
    async with asyncio.timeout(PATIENCE_S):
        task = stage._guards.pop(guard)
        await guard.drain(0.0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await bus.flush()
        await bus.request("$JS.API.DIRECT.GET.CONF.mesh.conf.fleet")


async def test_a_wait_for_the_server_that_is_given_up_costs_no_connection(stage: Stage) -> None:
    bus = await stage.bus("guard")
    for turn in range(200):
        settling = asyncio.create_task(bus.flush())
        for _ in range(turn % 7):
            await asyncio.sleep(0)
        given_up = settling.cancel()  # False: the server had answered already
        with contextlib.suppress(asyncio.CancelledError):
            await settling
        assert settling.cancelled() == given_up, "a cancellation is not lost"
    async with asyncio.timeout(PATIENCE_S):
        await bus.flush()
        await bus.request("$JS.API.DIRECT.GET.CONF.mesh.conf.fleet")
