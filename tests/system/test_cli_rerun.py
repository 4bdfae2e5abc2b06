"""`mesh request rerun`: the same work again, from the handoff at which it failed."""

from typing import Any

import msgspec
import pytest

from mesh.agent import Move, Turn, agent, tool
from mesh.cli.exits import Exit
from protocol.wire import events, subjects
from protocol.wire.commands import Failure, ReportFailure
from protocol.wire.handoff import Artifact, Budget, Constraints, Fact
from protocol.wire.ids import AgentName
from protocol.wire.moves import Complete, Escalate, Fail, Transfer
from protocol.wire.records import Record
from tests.certain import is_, known
from tests.guard.stage import Stage
from tests.servers import PATIENCE_S
from tests.system.office import Office
from tests.system.terminal import Finished

CARD = Fact(key="card", value="4111", labels=("pii",))
SCAN = Artifact(name="scan", uri="s3://scan", labels=("pii",))


def to_b(**more: Any) -> Transfer:
    return Transfer(to_agent=AgentName("b"), summary="pay it back", **more)


async def failed_at_b(office: Office, stage: Stage) -> str:
    """Bring a request to an end at `b`, which may not see the card that it carries."""
    a, b = await stage.actor("a"), await stage.actor("b")
    client = await stage.client()
    request = await client.submit(
        "Refund me\nplease", policy="eager", facts=(CARD,), conversation="c-7", artifacts=(SCAN,)
    )
    narrow = Constraints(
        max_resolution_time_s=60, allowed_actions=("pay",), budget=Budget(tokens=500), must_carry=("card",)
    )
    order = Fact(key="order", value={"number": 42})
    move = to_b(intent="refund", facts=(order,), constraints=narrow)
    await a.propose(request, await a.work(request), move)
    await b.propose(request, await b.work(request), Fail(reason="the bank is down"))
    await stage.reaches(request, "request.failed")
    return request


async def rerun(office: Office, request: str, *options: object) -> tuple[str, Finished]:
    done = await office.mesh("request", "rerun", request, "--yes", *options)
    assert done.status == Exit.DONE, done
    return done.out.strip(), done


async def opened(stage: Stage, request: str) -> events.RequestOpened:
    await stage.reaches(request, "request.opened")
    event = next(event for event in await stage.log(request) if isinstance(event, events.RequestOpened))
    assert isinstance(event, events.RequestOpened)
    return event


async def test_the_new_request_begins_where_the_old_one_failed(office: Office, stage: Stage) -> None:
    old = await failed_at_b(office, stage)
    new, _ = await rerun(office, old)
    event = await opened(stage, new)
    assert (event.to, event.client, event.rerun_of, event.conversation) == ("b", "op", old, "c-7")
    assert event.policy.name == "eager"
    handoff = event.work.handoff
    assert (handoff.move, handoff.summary, handoff.intent) == ("submit", "Refund me", "refund")
    assert {fact.key: fact.value for fact in handoff.facts} == {
        "text": "Refund me\nplease",
        "order": {"number": 42},
        "rerun_summary": "pay it back",
    }
    limits = handoff.constraints
    assert (limits.allowed_actions, limits.budget) == (("pay",), Budget(tokens=500))
    old_deadline = (await opened(stage, old)).work.handoff.constraints.deadline
    assert known(limits.deadline) > known(old_deadline)  # a day from now, not a minute from then
    # What `b` may not see is carried past it again, under its labels.
    [withheld] = [event for event in await stage.log(new) if isinstance(event, events.FactsWithheld)]
    assert (withheld.facts, withheld.artifacts) == ((CARD,), (SCAN,))


async def test_the_link_is_shown_wherever_the_request_is(office: Office, stage: Stage) -> None:
    old = await failed_at_b(office, stage)
    new, _ = await rerun(office, old)
    await stage.reaches(new, "request.opened")
    assert f"a rerun of {old}" in (await office.mesh("request", "show", new)).out
    assert (await office.mesh("request", "show", new, "--json")).json["rerun_of"] == old
    assert (await office.mesh("request", "show", old, "--json")).json["rerun_of"] is None
    assert f"It does {old} again." in (await office.mesh("why", new)).out
    assert (await office.mesh("why", new, "--json")).json["rerun_of"] == old
    assert (await office.mesh("replay", new)).status == Exit.DONE


async def test_it_may_begin_at_another_agent_with_another_text(office: Office, stage: Stage) -> None:
    new, _ = await rerun(office, await failed_at_b(office, stage), "--to", "c", "--text", "Refund them")
    event = await opened(stage, new)
    handoff = event.work.handoff
    assert (event.to, handoff.summary, handoff.intent) == ("c", "Refund them", None)
    assert CARD in handoff.facts  # `c` may see it


async def test_what_the_old_request_did_is_said_first_and_happens_again_under_new_keys(
    office: Office, stage: Stage
) -> None:
    paid, mended = list[str](), False

    @tool(effect="idempotent")
    async def pay(amount: int, *, idempotency_key: str = "") -> str:
        paid.append(idempotency_key)
        return "receipt"

    @agent(name="d")
    async def teller(turn: Turn) -> Move:
        await turn.call(pay, amount=7)
        return turn.complete("paid") if mended else turn.fail("the printer is broken")

    await stage.runtime(teller)
    client = await stage.client()
    old = await client.submit("pay", to="d")
    assert (await client.wait(old, timeout_s=PATIENCE_S)).status == "failed"
    mended = True
    new, done = await rerun(office, old)
    assert f"1 effect of {old} can happen again" in done.err
    assert "d  pay  step 0-0  done" in done.err
    await stage.reaches(new, "request.completed")
    assert len(set(paid)) == 2
    assert paid[0] in done.err


async def test_an_effect_without_a_result_is_said_to_be_unproven(office: Office, stage: Stage) -> None:
    request, work = await office.begun()
    a = await stage.actor("a")
    intent = Record(kind="intent", name="pay", digest="d", version="1", nonce="n", at=7, key="k9")
    for name, body in (("0-0", msgspec.json.encode(intent)), ("0-a0", b"{}"), ("0-1", b"nonsense")):
        await a.bus.publish_durable(subjects.step("a", request, work.turn, name), body)
    await a.propose(request, work, Fail(reason="no"))
    await stage.reaches(request, "request.failed")
    _, done = await rerun(office, request)
    assert "a  pay  step 0-0  begun, and nobody knows whether it was done  k9" in done.err


# --- when it may be done --------------------------------------------------------------------------


async def test_off_a_terminal_nothing_is_submitted_without_yes(office: Office, stage: Stage) -> None:
    request = await failed_at_b(office, stage)
    before = await stage.last_seq("PROP")
    done = await office.process("request", "rerun", request)
    assert done.status == Exit.USAGE, done
    assert "effects get new keys" in done.err
    assert "--yes" in done.err
    assert await stage.last_seq("PROP") == before


@pytest.mark.parametrize(("said", "status"), [("y\n", Exit.DONE), ("\n", Exit.FAILED)], ids=["yes", "no"])
async def test_at_a_terminal_it_asks(office: Office, stage: Stage, said: str, status: Exit) -> None:
    request = await failed_at_b(office, stage)
    done = await office.typed(said, "request", "rerun", request)
    assert done.status == status, done
    assert "submit it? [y/N]" in done.err
    if status is Exit.DONE:
        assert (await opened(stage, done.out.strip())).rerun_of == request
    else:
        assert (done.out, "nothing was submitted" in done.err) == ("", True)


async def test_what_goes_on_is_not_done_twice(office: Office, stage: Stage) -> None:
    request, _ = await office.begun()
    done = await office.mesh("request", "rerun", request, "--yes")
    assert done.status == Exit.FAILED, done
    assert f"mesh request cancel {request}" in done.err
    assert (await office.mesh("request", "cancel", request)).status == Exit.DONE
    assert (await opened(stage, (await rerun(office, request))[0])).to == "a"


async def test_of_what_waits_for_a_person_the_better_way_is_said(office: Office, stage: Stage) -> None:
    request = await office.escalated()
    new, done = await rerun(office, request)
    assert f"mesh human resolve {request} --again" in done.err
    assert (await opened(stage, new)).rerun_of == request
    doubted = await office.mesh("request", "rerun", await office.doubted(), "--yes")
    assert doubted.status == Exit.FAILED, doubted
    assert "mesh doubt settle" in doubted.err


@pytest.mark.parametrize(
    ("code", "said"), [("budget_unpriced", "it keeps the prices"), ("budget_exhausted", "--again --budget")]
)
async def test_of_what_ran_out_of_its_budget_it_is_said_what_lets_it_go_on(
    office: Office, stage: Stage, code: str, said: str
) -> None:
    request, work = await office.begun()
    error = Failure(code=code, message="it broke", permanent=True)
    await (await stage.actor("a")).say(request, ReportFailure(turn=work.turn, round=0, error=error))
    await stage.reaches(request, "escalation.raised")
    new, done = await rerun(office, request)
    assert said in done.err
    assert f"it waits for a person, because of {code}" in done.err
    assert f"mesh request cancel {request}" in done.err
    assert (await opened(stage, new)).rerun_of == request


async def test_an_effect_under_a_time_that_there_is_not_is_listed_all_the_same(
    office: Office, stage: Stage
) -> None:
    request, work = await office.begun()
    a = await stage.actor("a")
    intent = Record(kind="intent", name="pay\x1b[2J\nno effect", nonce="n", at=10**18, key="k9\n")
    body = msgspec.json.encode(intent)
    await a.bus.publish_durable(subjects.step("a", request, work.turn, "0-0"), body)
    await a.propose(request, work, Fail(reason="no"))
    await stage.reaches(request, "request.failed")
    _, done = await rerun(office, request)
    assert "  ?  a  pay\\x1b[2J no effect  step 0-0  begun, and nobody knows" in done.err


async def test_a_request_that_was_never_opened_is_submitted_again_as_it_was(
    office: Office, stage: Stage
) -> None:
    client = await stage.client()
    old = await client.submit("hello", to="nobody", facts={"k": 1}, intent="chat")
    await client.wait(old, timeout_s=PATIENCE_S)
    again, _ = await rerun(office, old)
    refused = is_((await stage.reaches(again, "request.refused"))[-1], events.RequestRefused)
    assert (refused.submit.rerun_of, refused.submit.to, refused.submit.intent) == (old, "nobody", "chat")
    assert (await office.mesh("request", "show", again, "--json")).json["rerun_of"] == old
    new, _ = await rerun(office, old, "--to", "a")
    assert (await opened(stage, new)).work.handoff.facts[0] == Fact(key="k", value=1)


async def test_an_old_text_that_cannot_be_said_again_has_to_be_given(office: Office, stage: Stage) -> None:
    a, b = await stage.actor("a"), await stage.actor("b")
    request, work = await office.begun()
    await a.propose(request, work, to_b(drop=("text",)))
    await b.propose(request, await b.work(request), Complete(answer="done"))
    await stage.reaches(request, "request.completed")
    done = await office.mesh("request", "rerun", request, "--yes")
    assert done.status == Exit.USAGE, done
    assert "--text" in done.err
    new, done = await rerun(office, request, "--text", "the same")
    assert "was completed; its answer stands" in done.err
    assert (await opened(stage, new)).work.handoff.summary == "the same"


async def test_a_resolved_escalation_reruns_with_the_whole_grant(office: Office, stage: Stage) -> None:
    a = await stage.actor("a")
    client = await stage.client()
    request = await client.submit("hello", constraints=Constraints(budget=Budget(tokens=100)))
    await a.propose(request, await a.work(request), Escalate(summary="help"))
    await stage.reaches(request, "escalation.raised")
    assert (await office.mesh("human", "resolve", request)).status == Exit.DONE
    await a.propose(request, await a.work(request, nth=1), Fail(reason="no"))
    await stage.reaches(request, "request.failed")
    new, _ = await rerun(office, request)
    assert (await opened(stage, new)).work.handoff.constraints.budget == Budget(tokens=100)


async def test_there_is_nothing_to_rerun_of_what_is_not_there(office: Office, stage: Stage) -> None:
    unknown = (await stage.client()).new_id()
    assert (await office.mesh("request", "rerun", unknown, "--yes")).status == Exit.FAILED
    assert (await office.mesh("request", "rerun", "x", "--yes")).status == Exit.USAGE
