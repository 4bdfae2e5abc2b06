"""A guard whose own code fails on a request, or goes in circles: the request ends, and all others go on."""

import base64
import itertools
from collections.abc import Callable
from typing import Any

import pytest

from mesh.client import SubmitRejected
from protocol.domain import admission, decider, ledger, plans, rules
from protocol.domain.case import Case
from protocol.domain.decider import OpenDecision
from protocol.domain.steps import NeedPeers
from protocol.domain.timers import GUARD_FAILED, consequence
from protocol.wire import codec, events
from protocol.wire.commands import Cancel, Command, Freeze, OfferClaimed, Thaw
from protocol.wire.handoff import Refusal, Rule
from protocol.wire.ids import AgentName, TurnId, control_cause
from protocol.wire.moves import Complete, Delegate, Task, Transfer
from tests.guard.stage import PATIENT, Stage, control_command
from tests.guard.test_trees import ends
from tests.logs import captured_logs, said
from tests.servers import PATIENCE_S, eventually

DONE = Complete(answer="done")
TO_B = Transfer(to_agent=AgentName("b"), summary="take it")
VERDICT_S = 0.3
WAITS = PATIENT._replace(again_s=0.02)


def circle(*_: Any) -> None:
    for _number in itertools.count():
        pass


def broken(*_: Any) -> None:
    raise AssertionError("a rule that fails")


async def failed(stage: Stage, request: str) -> events.RequestFailed:
    """Wait until a request has ended because the guard failed on it, and everybody was told."""
    end = await stage.reached(request, events.RequestFailed)
    assert (end.code, end.sender, end.to) == (GUARD_FAILED, None, "c1")
    await stage.drained("PROP", "CTL")
    return end


async def goes_on(stage: Stage) -> None:
    """Do a request that has nothing to do with it."""
    client, a = await stage.client(), await stage.actor("a")
    request = await client.submit("hello")
    await a.propose(request, await a.work(request), DONE)
    assert (await client.wait(request, timeout_s=PATIENCE_S)).status == "completed"


@pytest.mark.parametrize("wrong", [circle, broken])
async def test_a_rule_that_fails_ends_its_message_and_its_request(
    stage: Stage, wrong: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    depth = rules.RULES[Rule.DEPTH]

    def planted(case: Case) -> Refusal | None:
        if case.ledger.request == request:
            wrong(case)
        return depth(case)

    monkeypatch.setitem(rules.RULES, Rule.DEPTH, planted)
    guard = await stage.guard(verdict_s=VERDICT_S)
    client, a = await stage.client(), await stage.actor("a")
    request = await client.submit("hello")
    work = await a.work(request)
    with captured_logs() as lines:
        await a.propose(request, work, TO_B)
        await failed(stage, request)
        await said(lines, "guard_failed")
    letter = await stage.buried(GUARD_FAILED, request=request)
    assert codec.parse_proposal(base64.b64decode(letter.data)).turn == work.turn
    assert letter.sender == "a"
    # On a slow machine the message comes again while the guard still fails on it.
    assert all(f"in {wrong.__name__}" in line["place"] for line in lines if line["event"] == "guard_failed")
    outcome = await client.wait(request, timeout_s=PATIENCE_S)
    assert outcome.status == "failed"
    await goes_on(stage)
    assert stage.alive(guard)


@pytest.mark.parametrize("wrong", [circle, broken])
async def test_what_is_due_and_fails_ends_the_request_and_not_message_after_message(
    stage: Stage, wrong: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its agents are told that their turns are over."""
    opened = plans.opened

    def planted(ledger: Any, world: Any, task: Any) -> Any:
        return wrong() if task.name == "two" else opened(ledger, world, task)

    monkeypatch.setattr(plans, "opened", planted)
    await stage.guard(verdict_s=VERDICT_S)
    client, a, b = await stage.client(), await stage.actor("a"), await stage.actor("b")
    request = await client.submit("hello", policy="tree")
    lead, to = await a.work(request), AgentName("b")
    tasks = tuple(Task(name=name, summary=name, to_agent=to) for name in ("one", "two"))
    await a.propose(request, lead, Delegate(tasks=tasks))
    await failed(stage, request)
    one = await b.work(request)

    async def told() -> bool:
        return await ends(stage, request) == {lead.turn, one.turn}

    await eventually(told)
    await stage.control(request, Cancel(id="late"))
    await stage.drained()
    assert (await stage.types(request))[-1] == "request.failed"


@pytest.mark.parametrize("wrong", [circle, broken])
async def test_a_timer_on_which_the_guard_fails_ends_the_request(
    stage: Stage, wrong: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def planted(ledger: Any, *rest: Any) -> Any:
        follows = consequence(ledger, *rest)
        return wrong() if isinstance(follows, events.RequestExpired) else follows

    monkeypatch.setattr(decider, "consequence", planted)
    await stage.guard(verdict_s=VERDICT_S)
    request = await (await stage.client()).submit("hello", policy="short")
    await failed(stage, request)
    letter = await stage.buried(GUARD_FAILED, request=request)
    assert (letter.sender, letter.subject.split(".")[1]) == ("", "timer")


async def test_a_decision_that_asks_without_an_end_ends_the_request(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No step takes the watchdog's time, however long all of them take."""
    judge = OpenDecision._judge

    def planted(decision: OpenDecision) -> Any:
        head = decision._ledger.head
        return judge(decision) if head is None or head.request != request else NeedPeers(())

    guard = await stage.guard()
    client, a = await stage.client(), await stage.actor("a")
    request = await client.submit("hello")
    work = await a.work(request)
    await stage.drained()
    monkeypatch.setattr(OpenDecision, "_judge", planted)
    with captured_logs() as lines:
        await a.propose(request, work, TO_B)
        await failed(stage, request)
        await said(lines, "guard_failed")
    [line] = [line for line in lines if line["event"] == "guard_failed"]
    assert "in _steps" in line["place"]
    assert "NeedPeers again and again" in str(line)
    await goes_on(stage)
    assert stage.alive(guard)


async def test_consequences_that_come_to_no_end_end_the_request(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A request that is frozen and thawed by itself, again and again."""

    def planted(decision: OpenDecision) -> Any:
        ledger = decision._ledger
        if not ledger.is_open or ledger.request != request:
            return next_due(decision)
        order = (Freeze if ledger.frozen_at is None else Thaw)(id=f"n{ledger.n}")
        cause = control_cause(request, "op", order.id)
        return decision._verdict(Command(request, AgentName("op"), order, cause, "operator"))

    next_due = OpenDecision._next_due
    guard = await stage.guard(most_events=50)
    client, a = await stage.client(), await stage.actor("a")
    request = await client.submit("hello")
    work = await a.work(request)
    await stage.drained()  # the submit's stored copy would bring as many again
    monkeypatch.setattr(OpenDecision, "_next_due", planted)
    await a.propose(request, work, TO_B)
    await failed(stage, request)
    assert 50 <= len(await stage.types(request)) < 60
    await goes_on(stage)
    assert stage.alive(guard)


async def test_a_log_that_cannot_be_folded_in_time_is_ended_from_its_first_event_and_its_head(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = await stage.guard("first")
    client, a = await stage.client(), await stage.actor("a")
    request = await client.submit("hello")
    await a.propose(request, await a.work(request), TO_B)
    await stage.reaches(request, "handoff.admitted")
    await stage.drained()
    await stage.dismiss(first)
    with monkeypatch.context() as planted:
        apply: dict[Any, Any] = {**ledger._APPLY, events.HandoffAdmitted: circle}
        planted.setattr(ledger, "_APPLY", apply)
        second = await stage.guard("second", verdict_s=VERDICT_S)
        await client.cancel(request)
        await failed(stage, request)
        assert (await stage.buried(GUARD_FAILED, request=request)).sender == "c1"
        await goes_on(stage)
        await stage.dismiss(second)
    await stage.guard("third")
    await goes_on(stage)


@pytest.mark.parametrize("wrong", [circle, broken])
async def test_a_stranger_s_message_on_which_admission_fails_harms_no_request(
    stage: Stage, wrong: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(admission._OF, OfferClaimed, wrong)
    await stage.guard(verdict_s=VERDICT_S)
    client, a, d = await stage.client(), await stage.actor("a"), await stage.actor("d")
    request = await client.submit("hello")
    work = await a.work(request)
    await d.say(request, OfferClaimed(turn=TurnId(work.turn), round=0))
    assert (await stage.buried(GUARD_FAILED, request=request)).sender == "d"
    await a.propose(request, work, DONE)
    assert (await client.wait(request, timeout_s=PATIENCE_S)).status == "completed"


async def test_a_submit_on_which_the_guard_fails_is_refused_to_its_client(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("protocol.domain.submit._handoff", broken)
    await stage.guard()
    client = await stage.client()
    request = await client.submit("hello")
    with pytest.raises(SubmitRejected) as rejected:
        await client.wait(request, timeout_s=PATIENCE_S)
    assert rejected.value.reason == GUARD_FAILED
    assert await stage.types(request) == []


async def test_a_copy_that_a_guard_holds_and_that_fails_is_read_anew_first(stage: Stage) -> None:
    processor = await stage.processor()
    guard = await stage.guard()
    client, a = await stage.client(), await stage.actor("a")
    request = await client.submit("hello")
    await a.work(request)
    await processor.wake(request)
    copy = processor._cache.get(request)
    assert copy is not None
    copy.ledger.causes = None  # type: ignore[assignment]  # as if a bug had spoiled it
    await processor.process(control_command(request, "op", Cancel(id="x")))
    assert (await stage.types(request))[-1] == "request.cancelled"
    assert stage.alive(guard)
