"""Control: what people and clients say becomes one event each, or a dead letter that says why not."""

import os
import time

import pytest
import pytest_asyncio

from mesh.guard import service
from mesh.guard.processor import Frozen
from mesh.guard.service import Guard
from protocol.wire import events
from protocol.wire.commands import (
    Ask,
    Assign,
    Cancel,
    Complete,
    Doubt,
    Escalate,
    Freeze,
    MoveProposed,
    Reply,
    ReportInDoubt,
    Resolve,
    Settle,
    Thaw,
    Transfer,
)
from protocol.wire.events import type_of
from protocol.wire.ids import AgentName, request_id
from tests.guard.stage import Stage, control_hearing, human_turn, proposal_hearing

TO_B = Transfer(to_agent="b", summary="please")  # type: ignore[arg-type]
DONE = Complete(answer="done")


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
    event = (await stage.reaches(request, "turn.suspended"))[-1]
    assert isinstance(event, events.TurnSuspended)
    return event


# --- cancel, freeze, thaw -------------------------------------------------------------------------


@pytest.mark.parametrize("sender", ["c1", "op"])
async def test_its_client_and_an_operator_cancel_a_request(stage: Stage, sender: str) -> None:
    client, a = await stage.client(), await stage.actor("a")
    request = await client.submit("hello")
    await a.work(request)
    await stage.control(request, Cancel(id="x", by="kim", reason="no more"), sender)
    outcome = await client.wait(request, timeout_s=60)
    assert isinstance(outcome.event, events.RequestCancelled)
    assert (outcome.event.by, outcome.event.sender, outcome.event.reason) == ("kim", sender, "no more")


async def test_another_client_cancels_nothing(stage: Stage) -> None:
    client = await stage.client()
    told = await stage.notices("c2")
    request = await client.submit("hello")
    await stage.reaches(request, "request.opened")
    await stage.control(request, Cancel(id="x"), "c2")
    letter = await stage.buried("not_allowed", request=request)
    assert letter.sender == "c2"
    assert [notice.error.code for notice in told if notice.error] == ["not_allowed"]
    assert await stage.types(request) == ["request.opened"]


@pytest.mark.parametrize("message", [Freeze(id="x"), Thaw(id="x")], ids=["freeze", "thaw"])
async def test_a_client_does_not_freeze_even_its_own_request(stage: Stage, message: Freeze | Thaw) -> None:
    request = await (await stage.client()).submit("hello")
    await stage.reaches(request, "request.opened")
    await stage.control(request, message, "c1")
    await stage.buried("not_allowed", request=request)
    assert await stage.types(request) == ["request.opened"]


async def test_the_same_control_message_twice_is_obeyed_once(stage: Stage) -> None:
    request = await (await stage.client()).submit("hello")
    await stage.reaches(request, "request.opened")
    for _ in range(3):
        await stage.control(request, Freeze(id="once"))
    await stage.drained()
    assert await stage.types(request) == ["request.opened", "request.frozen"]


async def test_a_move_on_a_frozen_request_is_deferred_and_judged_after_the_thaw(stage: Stage) -> None:
    client, a, b = await stage.client(), await stage.actor("a"), await stage.actor("b")
    request = await client.submit("hello")
    work = await a.work(request)
    await stage.control(request, Freeze(id="f"))
    await stage.reaches(request, "request.frozen")
    await a.propose(request, work, TO_B, times=2)
    await stage.reaches(request, "move.deferred")
    await stage.drained()
    await stage.control(request, Thaw(id="t"))
    await b.work(request)
    await stage.drained()
    assert await stage.types(request) == [
        "request.opened",
        "request.frozen",
        "move.deferred",
        "request.thawed",
        "handoff.admitted",
    ]


async def test_a_deferred_move_is_judged_by_every_rule(stage: Stage) -> None:
    client, a = await stage.client(), await stage.actor("a")
    request = await client.submit("hello")
    work = await a.work(request)
    await stage.control(request, Freeze(id="f"))
    await stage.reaches(request, "request.frozen")
    await a.propose(request, work, Transfer(to_agent="nobody", summary="please"))  # type: ignore[arg-type]
    await stage.reaches(request, "move.deferred")
    await stage.control(request, Thaw(id="t"))
    refused = (await stage.reaches(request, "move.refused"))[-1]
    assert isinstance(refused, events.MoveRefused)
    assert refused.refusal.rule == "known_agent"


@pytest.mark.parametrize(
    ("message", "code"),
    [
        pytest.param(Thaw(id="x"), "not_frozen", id="thaw"),
        pytest.param(Freeze(id="y"), "frozen", id="freeze"),
    ],
)
async def test_what_is_so_already_is_no_news(stage: Stage, message: Freeze | Thaw, code: str) -> None:
    request = await (await stage.client()).submit("hello")
    await stage.reaches(request, "request.opened")
    if isinstance(message, Freeze):
        await stage.control(request, Freeze(id="first"))
        await stage.reaches(request, "request.frozen")
    await stage.control(request, message)
    await stage.buried(code, request=request)


# --- the whole mesh -------------------------------------------------------------------------------


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
    assert (await client.wait(ended, timeout_s=60)).status == "cancelled"
    assert await stage.types(moving) == ["request.opened"]
    assert await stage.types(fresh) == []
    await stage.control("_", Thaw(id="t"))
    await b.work(moving)
    await a.work(fresh)
    assert guard._context.thawed.is_set()


async def test_what_was_in_hand_when_the_mesh_froze_comes_again(stage: Stage, guard: Guard) -> None:
    court = await stage.processor("late")
    court._context._set_frozen(True)
    client, a, b = await stage.client(), await stage.actor("a"), await stage.actor("b")
    request = await client.submit("hello")
    work = await a.work(request)
    proposal = MoveProposed(turn=work.turn, round=0, move=TO_B)
    with pytest.raises(Frozen):
        await court.process(proposal_hearing(request, "a", proposal))
    with pytest.raises(Frozen):
        await court.wake(request)
    assert await stage.types(request) == ["request.opened"]
    await a.say(request, proposal)
    await b.work(request)


async def test_a_reply_while_the_mesh_is_frozen_sees_to_the_next_rounds_timer(stage: Stage) -> None:
    client = await stage.client()
    request = await client.submit("hello", policy="brisk")
    event = await asked(stage, request, "c1")
    await stage.drained()
    court = await stage.processor("late")
    court._context._set_frozen(True)
    reply = Reply(id="r", turn=event.turn, round=0, value="red")
    await court.process(control_hearing(request, "c1", reply, "client"))
    resumed = (await stage.log(request))[-1]
    assert type_of(resumed) == "turn.resumed"
    schedule = await stage.schedule(request)
    assert schedule is None or schedule[1] <= resumed.at + 250_000, "it stands early enough or has fired"
    await client.cancel(request)
    await client.wait(request, timeout_s=60)


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


# --- escalations ----------------------------------------------------------------------------------


async def test_an_escalation_is_assigned_to_a_person(stage: Stage) -> None:
    request = await (await stage.client()).submit("hello")
    raised = await escalated(stage, request)
    await stage.control(request, Assign(id="x", turn=raised.work.turn, to="kim"))
    assigned = (await stage.reaches(request, "escalation.assigned"))[-1]
    assert isinstance(assigned, events.EscalationAssigned)
    assert (assigned.person, assigned.sender) == ("kim", "op")


async def test_a_resolution_goes_to_whose_turn_it_was_if_it_names_nobody(stage: Stage) -> None:
    request = await (await stage.client()).submit("hello")
    raised = await escalated(stage, request)
    await stage.control(request, Resolve(id="x", turn=raised.work.turn, summary="go on"))
    work = await (await stage.actor("a")).work(request, nth=1)
    assert (work.handoff.move, work.handoff.from_agent, work.continues) == ("resolve", "human", None)


async def test_a_resolution_goes_to_whom_it_names(stage: Stage) -> None:
    request = await (await stage.client()).submit("hello")
    raised = await escalated(stage, request)
    await stage.control(request, Resolve(id="x", turn=raised.work.turn, to="b"))  # type: ignore[arg-type]
    work = await (await stage.actor("b")).work(request)
    assert (work.path, work.depth) == (("b",), 0)


async def test_a_resolution_that_says_again_goes_on_under_the_turn_that_ended(stage: Stage) -> None:
    request = await (await stage.client()).submit("hello")
    raised = await escalated(stage, request)
    await stage.control(request, Resolve(id="x", turn=raised.work.turn, again=True))
    work = await (await stage.actor("a")).work(request, nth=1, round_=1)  # its rounds count on
    assert work.continues == raised.turn


async def test_a_resolution_that_completes_is_the_answer(stage: Stage) -> None:
    client = await stage.client()
    request = await client.submit("hello")
    raised = await escalated(stage, request)
    answer = Resolve(id="x", turn=raised.work.turn, complete=True, answer={"refund": 7}, by="kim")
    await stage.control(request, answer)
    outcome = await client.wait(request, timeout_s=60)
    assert outcome.answer == {"refund": 7}
    assert isinstance(outcome.event, events.RequestCompleted)
    assert outcome.event.by == "kim"


async def test_a_resolution_to_nobody_of_the_fleet_is_no_event(stage: Stage) -> None:
    request = await (await stage.client()).submit("hello")
    raised = await escalated(stage, request)
    await stage.control(request, Resolve(id="x", turn=raised.work.turn, to="zoe"))  # type: ignore[arg-type]
    await stage.buried("unknown_agent", request=request)
    assert (await stage.types(request))[-1] == "escalation.raised"


async def test_an_escalation_is_resolved_once(stage: Stage) -> None:
    request = await (await stage.client()).submit("hello")
    raised = await escalated(stage, request)
    told = await stage.notices("op")
    for number in range(3):
        await stage.control(request, Resolve(id=f"x{number}", turn=raised.work.turn))
    await stage.drained()
    assert (await stage.types(request)).count("escalation.resolved") == 1
    assert [notice.ended.why for notice in told if notice.ended] == ["ended", "ended"]


# --- replies and settlements ----------------------------------------------------------------------


async def test_a_client_replies_to_what_it_was_asked(stage: Stage) -> None:
    request = await (await stage.client()).submit("hello")
    event = await asked(stage, request, "c1")
    await stage.control(request, Reply(id="x", turn=event.turn, round=0, value={"colour": "red"}), "c1")
    work = await (await stage.actor("a")).work(request, round_=1)
    assert (work.past[0].how, work.past[0].reply) == ("replied", {"colour": "red"})


async def test_an_operator_replies_to_what_people_were_asked(stage: Stage) -> None:
    request = await (await stage.client()).submit("hello")
    event = await asked(stage, request, "human")
    await stage.control(request, Reply(id="x", turn=event.turn, round=0, value="red", by="kim"))
    work = await (await stage.actor("a")).work(request, round_=1)
    assert (work.past[0].reply, work.past[0].by) == ("red", "kim")


@pytest.mark.parametrize(
    ("whom", "sender"),
    [pytest.param("human", "c1", id="the-client-for-people"), pytest.param("c1", "op", id="people-for-it")],
)
async def test_nobody_replies_for_another(stage: Stage, whom: str, sender: str) -> None:
    request = await (await stage.client()).submit("hello")
    event = await asked(stage, request, whom)
    await stage.control(request, Reply(id="x", turn=event.turn, round=0, value="red"), sender)
    await stage.buried("not_allowed", request=request)
    assert (await stage.types(request))[-1] == "turn.suspended"


@pytest.mark.parametrize("outcome", ["done", "not_done"])
async def test_an_effect_in_doubt_waits_until_an_operator_settles_it(stage: Stage, outcome: str) -> None:
    client, a = await stage.client(), await stage.actor("a")
    request = await client.submit("hello")
    work = await a.work(request)
    doubt = Doubt(step="0-3", action="pay", key="k")
    await a.say(request, ReportInDoubt(turn=work.turn, round=0, effect=doubt))
    await stage.reaches(request, "effect.doubted")
    settled = Settle(id="x", turn=work.turn, round=0, outcome=outcome, result={"paid": 7})  # type: ignore[arg-type]
    await stage.control(request, settled)
    again = await a.work(request, round_=1)
    assert (again.past[0].settled, again.past[0].reply) == (outcome, {"paid": 7})


async def test_a_reply_to_a_round_that_is_not_open_yet_is_no_event(stage: Stage) -> None:
    request = await (await stage.client()).submit("hello")
    event = await asked(stage, request, "c1")
    await stage.control(request, Reply(id="x", turn=event.turn, round=5, value="red"), "c1")
    await stage.buried("unknown_round", request=request)


# --- order ----------------------------------------------------------------------------------------


async def test_a_control_message_that_overtakes_its_submit_is_obeyed(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "_AGAIN_S", 0.05)
    client = await stage.client()
    request = client.new_id()
    await client.cancel(request)
    await client.submit("hello", request=request)
    assert (await client.wait(request, timeout_s=60)).status == "cancelled"


async def test_a_control_message_for_no_request_ends_as_a_dead_letter(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "_AGAIN_S", 0.05)
    monkeypatch.setattr(service, "OVERTAKEN_S", 0.2)
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
    when_ms = time.time_ns() // 1_000_000 - (2 * int(service.OVERTAKEN_S * 1000) if whose == "old" else 0)
    request = request_id(AgentName("c1" if whose == "old" else "c2"), when_ms, os.urandom(10))
    await (await stage.client("c1")).cancel(request)
    letter = await stage.buried("unknown_request", request=request)
    assert letter.delivered == 1


async def test_an_operator_may_be_told_of_a_request_before_the_log_is(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "_AGAIN_S", 0.05)
    client = await stage.client()
    request = client.new_id()
    await stage.control(request, Cancel(id="x1"), "op")
    await client.submit("hello", request=request)
    assert (await client.wait(request, timeout_s=60)).status == "cancelled"
