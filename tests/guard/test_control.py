"""Control: what people and clients say becomes one event each, or a dead letter that says why not."""

import os
import time

import pytest
import pytest_asyncio

from mesh.guard.processor import MeshIsFrozen
from mesh.guard.service import Guard
from protocol.wire import events
from protocol.wire.commands import Assign, Cancel, Freeze, MoveProposed, ReplyToAsk, Resolve, Thaw
from protocol.wire.events import type_of
from protocol.wire.ids import AgentName, request_id
from protocol.wire.moves import Ask, Escalate, Transfer
from tests.guard.stage import PATIENT, Stage, control_command, human_turn, proposal_command
from tests.servers import PATIENCE_S

TO_B = Transfer(to_agent="b", summary="please")  # type: ignore[arg-type]
WAITS = PATIENT._replace(again_s=0.05)


@pytest_asyncio.fixture
async def guard(stage: Stage) -> Guard:
    return await stage.guard()


pytestmark = pytest.mark.usefixtures("guard")


async def escalated(stage: Stage, request: str) -> events.EscalationRaised:
    """Escalate a request's first turn; return the escalation."""
    a = await stage.actor("a")
    await a.propose(request, await a.work(request), Escalate(summary="help"))
    return human_turn(await stage.reaches(request, "escalation.raised"))


async def asked(stage: Stage, request: str, whom: str) -> events.TurnSuspended:
    a = await stage.actor("a")
    await a.propose(request, await a.work(request), Ask(to_agent=whom, question="which?"))  # type: ignore[arg-type]
    event = await stage.reached(request, events.TurnSuspended)
    return event


async def test_a_frozen_mesh_takes_no_proposals_and_obeys_controls(stage: Stage, guard: Guard) -> None:
    client, a, b = await stage.client(), await stage.actor("a"), await stage.actor("b")
    other = await stage.guard("other")
    moving, ended = await client.submit("hello"), await client.submit("hello")
    work, _ = await a.work(moving), await a.work(ended)
    await stage.drained()
    await stage.control("_", Freeze(id="f", by="kim"))
    await guard._context.frozen.wait()
    await other._context.frozen.wait()
    await a.propose(moving, work, TO_B)
    fresh = await client.submit("hello")
    await stage.control(ended, Cancel(id="x"))
    assert (await client.wait(ended, timeout_s=PATIENCE_S)).status == "cancelled"
    assert await stage.types(moving) == ["request.opened"]
    assert await stage.types(fresh) == []
    await stage.control("_", Thaw(id="t"))
    await b.work(moving)
    await a.work(fresh)
    assert guard._context.thawed.is_set()


async def test_what_was_in_hand_when_the_mesh_froze_comes_again(stage: Stage, guard: Guard) -> None:
    processor = await stage.processor("late")
    processor._context._set_frozen(True)
    client, a, b = await stage.client(), await stage.actor("a"), await stage.actor("b")
    request = await client.submit("hello")
    work = await a.work(request)
    proposal = MoveProposed(turn=work.turn, round=0, move=TO_B)
    with pytest.raises(MeshIsFrozen):
        await processor.process(proposal_command(request, "a", proposal))
    with pytest.raises(MeshIsFrozen):
        await processor.wake(request)
    assert await stage.types(request) == ["request.opened"]
    await a.say(request, proposal)
    await b.work(request)


async def test_a_reply_while_the_mesh_is_frozen_sees_to_the_next_rounds_timer(stage: Stage) -> None:
    client = await stage.client()
    request = await client.submit("hello", policy="brisk")
    event = await asked(stage, request, "c1")
    await stage.drained()
    processor = await stage.processor("late")
    processor._context._set_frozen(True)
    reply = ReplyToAsk(id="r", turn=event.turn, round=0, value="red")
    await processor.process(control_command(request, "c1", reply, "client"))
    resumed = (await stage.log(request))[-1]
    assert type_of(resumed) == "turn.resumed"
    schedule = await stage.schedule(request)
    assert schedule is None or schedule[1] <= resumed.at + 250_000, "it stands early enough or has fired"
    await client.cancel(request)
    await client.wait(request, timeout_s=PATIENCE_S)


@pytest.mark.parametrize("message", [Cancel(id="x"), Assign(id="x", turn="t", to="kim")])  # type: ignore[arg-type]
async def test_the_whole_mesh_can_only_be_frozen_and_thawed(stage: Stage, message: Cancel | Assign) -> None:
    after = await stage.last_seq("DEAD")
    await stage.control("_", message)
    letter = await stage.buried("not_allowed", after=after)
    assert letter.request == "_"


async def test_a_client_does_not_freeze_the_mesh(stage: Stage, guard: Guard) -> None:
    after = await stage.last_seq("DEAD")
    await stage.control("_", Freeze(id="x"), "c1")
    await stage.buried("not_allowed", after=after)
    assert not guard._context.frozen.is_set()


async def test_an_escalation_is_resolved_once(stage: Stage) -> None:
    request = await (await stage.client()).submit("hello")
    raised = await escalated(stage, request)
    told = await stage.notices("op")
    for number in range(3):
        await stage.control(request, Resolve(id=f"x{number}", turn=raised.work.turn))
    await stage.drained()
    assert (await stage.types(request)).count("escalation.resolved") == 1
    assert [notice.ended.why for notice in told if notice.ended] == ["ended", "ended"]


@pytest.mark.parametrize("sender", ["c1", "op"], ids=["the-client", "an-operator-told-before-the-log-is"])
async def test_a_control_message_that_overtakes_its_submit_is_obeyed(stage: Stage, sender: str) -> None:
    client = await stage.client()
    request = client.new_id()
    await stage.control(request, Cancel(id="x1"), sender)
    await client.submit("hello", request=request)
    assert (await client.wait(request, timeout_s=PATIENCE_S)).status == "cancelled"


async def test_a_control_message_for_no_request_ends_as_a_dead_letter(stage: Stage, guard: Guard) -> None:
    await stage.dismiss(guard)
    waits = WAITS._replace(overtaken_s=2.0)  # it is heard twice on any machine
    await stage.ready(await stage.guard("second", waits=waits))
    client = await stage.client()
    request = client.new_id()
    await client.cancel(request)
    letter = await stage.buried("unknown_request", request=request)
    assert letter.delivered > 1
    await stage.drained("CTL")
    assert await stage.types(request) == []


@pytest.mark.parametrize("whose", ["another's", "old"])
async def test_a_control_message_that_cannot_have_overtaken_anything_is_refused_at_once(
    stage: Stage, whose: str
) -> None:
    when_ms = time.time_ns() // 1_000_000 - (2 * int(WAITS.overtaken_s * 1000) if whose == "old" else 0)
    request = request_id(AgentName("c1" if whose == "old" else "c2"), when_ms, os.urandom(10))
    await (await stage.client("c1")).cancel(request)
    letter = await stage.buried("unknown_request", request=request)
    assert letter.delivered == 1
