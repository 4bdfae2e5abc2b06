"""Agents that leave the fleet while they have work: two guards, a new document, and a look soon after."""

from msgspec.structs import replace

from mesh.bus.provision import provision
from mesh.fleet.leavers import held_by_leavers, look_soon
from protocol.wire.commands import Freeze, Thaw
from protocol.wire.config import Fleet
from protocol.wire.events import EscalationRaised, TurnFailed
from protocol.wire.ids import AgentName
from protocol.wire.moves import Complete, Delegate, Task
from tests.guard.stage import FLEET, Stage, human_turn
from tests.servers import PATIENCE_S

POLICY = "lenient"
"""Nobody is called off under it because nobody serves the agent."""


def without(*names: str, fleet: Fleet = FLEET) -> Fleet:
    """Return the stage's fleet without these agents, under a name of its own."""
    left = {name: entry for name, entry in fleet.agents.items() if name not in names}
    return replace(fleet, name=f"without {' '.join(names)}", agents=left)


async def write(stage: Stage, fleet: Fleet, *, look: bool = True) -> None:
    """Write a fleet as `mesh setup` does, and wait until every guard goes by it."""
    admin = await stage.bus("admin")
    held = await held_by_leavers(admin, fleet)
    await provision(admin, fleet)
    await stage.judges_by(fleet.name)
    if look:
        await look_soon(admin, [each.request for each in held], fleet.partitions)


async def test_the_requests_of_an_agent_that_leaves_go_to_a_person_and_those_of_others_wait(
    stage: Stage,
) -> None:
    for each in ("g1", "g2"):
        await stage.ready(await stage.guard(each))
    client = await stage.client()
    stays = await client.submit("to d", to="d", policy=POLICY)
    leaves = await client.submit("to e", to="e", policy=POLICY)
    over = await client.submit("to e, and called off", to="e", policy=POLICY)
    for request in (stays, leaves, over):
        await stage.reaches(request, "request.opened")
    await client.cancel(over)
    await stage.reaches(over, "request.cancelled")
    admin = await stage.bus("admin")
    assert await held_by_leavers(admin, FLEET) == []
    assert await held_by_leavers(admin, without("e")) == [("e", leaves)]
    try:
        await write(stage, without("e"))
        failed = await stage.reached(leaves, TurnFailed)
        assert (failed.error.code, failed.grounds and failed.grounds.removed) == ("agent_removed", True)
        await stage.reached(leaves, EscalationRaised)
        assert human_turn(await stage.log(leaves)).reason == "agent_removed"
        assert await stage.types(stays) == ["request.opened"]
    finally:
        await write(stage, FLEET)


async def test_a_worker_that_leaves_while_its_request_is_frozen_loses_its_round_at_the_thaw(
    stage: Stage,
) -> None:
    await stage.ready(await stage.guard())
    client, a = await stage.client(), await stage.actor("a", served=True)
    request = await client.submit("hello", policy="tree")
    tasks = (Task(name="one", summary="1", to_agent=AgentName("e")),)
    await a.propose(request, await a.work(request), Delegate(tasks=tasks))
    await stage.reaches(request, "task.opened")
    await stage.control(request, Freeze(id="f"))
    await stage.reaches(request, "request.frozen")
    try:
        await write(stage, without("e"), look=False)
        await stage.control(request, Thaw(id="t"))
        log = await stage.reaches(request, "task.failed")
        assert "agent_removed" in [event.error.code for event in log if isinstance(event, TurnFailed)]
    finally:
        await write(stage, FLEET, look=False)


async def test_what_an_agent_proposed_before_it_left_counts_though_no_guard_had_read_it(stage: Stage) -> None:
    guard = await stage.guard("before")
    client, e = await stage.client(), await stage.actor("e")
    request = await client.submit("to e", to="e", policy=POLICY)
    work = await e.work(request)
    await stage.drained()
    await stage.dismiss(guard)
    try:
        await e.propose(request, work, Complete(answer="done"))
        await write(stage, without("e"), look=False)
        processor = await stage.processor()
        await processor.wake(request)  # the timer comes before the proposal
        assert await stage.types(request) == ["request.opened"]
        await stage.guard("after")
        assert (await client.wait(request, timeout_s=PATIENCE_S)).answer == "done"
    finally:
        await write(stage, FLEET, look=False)
