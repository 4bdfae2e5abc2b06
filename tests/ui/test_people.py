"""What people decide on the page: each decision comes out in the log under their name, or nothing does."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
import pytest

from protocol.wire import events
from protocol.wire.commands import Doubt, Failure, ReportFailure, ReportInDoubt
from protocol.wire.ids import AgentName
from protocol.wire.moves import Ask, Escalate
from tests.certain import is_, known
from tests.system.office import Office
from tests.ui.conftest import Serve, Visitor


async def test_the_queue_tells_what_waits_and_why(serve: Serve, office: Office) -> None:
    waiting = [await office.escalated(), await office.asked(), await office.doubted()]
    async with serve() as address, httpx.AsyncClient(base_url=address) as browser:
        shown = (await browser.get("/people")).text
        for request in waiting:
            assert f'href="/people/{request}?n=' in shown
            one = await browser.get(f"/people/{request}")
            assert one.status_code == 200
            assert "<form" not in one.text.partition("<main>")[2]  # it only shows
        assert "a person, please" in shown
        assert "in doubt" in shown
        assert "desk" in shown
        assert waiting[0] not in (await browser.get("/people?tier=lead")).text
        assert (await browser.get("/people?tier=nobody")).status_code == 400


@asynccontextmanager
async def visiting(serve: Serve, **options: object) -> AsyncIterator[Visitor]:
    async with serve(allow_write=True, **options) as address, Visitor(address) as visitor:
        yield visitor


async def test_an_escalation_is_resolved_in_the_visitors_name(serve: Serve, office: Office) -> None:
    request = await office.escalated()
    async with visiting(serve) as kim:
        said = {"how": "to", "to": "b", "note": "look at the bill", "tokens": "500", "dollars": "$0.25"}
        said["by"] = "Kim"
        answer = await kim.sends(f"/people/{request}", f"/people/{request}/resolve", said)
        assert answer.status_code == 303
        assert "went to b" in (await kim.browser.get("/people")).text
        assert "went to b" not in (await kim.browser.get("/people")).text  # it is told once
    last = is_(await office.last(request), events.EscalationResolved)
    assert (last.by, last.to, last.summary) == ("Kim", "b", "look at the bill")
    assert (known(last.budget).tokens, known(last.budget).nano_dollars) == (500, 250_000_000)


async def test_a_name_is_said_once(serve: Serve, office: Office) -> None:
    first, second = await office.escalated(), await office.escalated()
    async with visiting(serve) as kim:
        page = f"/people/{first}"
        nameless = await kim.sends(page, f"{page}/resolve", {"how": "again"})
        assert nameless.status_code == 400
        assert "enter your name" in nameless.text
        for request, name in ((first, {"by": "Kim"}), (second, {})):
            answer = await kim.sends(
                f"/people/{request}", f"/people/{request}/resolve", {"how": "complete", "answer": "42"} | name
            )
            assert answer.status_code == 303, answer.text
            last = is_(await office.last(request), events.RequestCompleted)
            assert (last.by, last.answer) == ("Kim", "42")


async def test_the_page_may_act_in_one_name_alone(serve: Serve, office: Office) -> None:
    request = await office.escalated()
    async with visiting(serve, by="Desk 3") as visitor:
        page = f"/people/{request}"
        said = {"how": "assign", "person": "Ada", "by": "somebody else"}
        await visitor.sends(page, f"{page}/resolve", said)
        last = is_(await office.last(request), events.EscalationAssigned)
        assert (last.by, last.person) == ("Desk 3", "Ada")


async def test_a_question_is_replied_to_by_its_own_form(serve: Serve, office: Office) -> None:
    schema = {"type": "object", "required": ["sum"], "properties": {"sum": {"type": "integer", "maximum": 9}}}
    request = await office.asked(schema=schema)
    async with visiting(serve, by="Kim") as kim:
        page = f"/people/{request}"
        wrong = await kim.sends(page, f"{page}/reply", {"value.0": "10"})
        assert wrong.status_code == 400
        assert "maximum" in wrong.text
        assert 'value="10"' in wrong.text  # what was typed stands there still
        assert isinstance(await office.last(request), events.TurnSuspended)
        assert (await kim.sends(page, f"{page}/reply", {"value.0": "9"})).status_code == 303
    last = is_(await office.last(request), events.TurnResumed)
    assert last.work.past[-1].reply == {"sum": 9}
    assert last.work.past[-1].by == "Kim"


@pytest.mark.parametrize(
    ("button", "reason", "told"),
    [
        ("true", "", "pay was approved by Kim"),
        ("false", "too much", "pay was denied by Kim"),
    ],
)
async def test_an_effect_is_approved_or_denied_with_its_arguments(
    serve: Serve, office: Office, button: str, reason: str, told: str
) -> None:
    request, work = await office.begun()
    ask = Ask(
        to_agent="human",  # type: ignore[arg-type]
        question='a asks for approval: pay {"amount":5,"to":"Ann"}',
        schema={"type": "boolean"},
        digest="d1",
        action="pay",
    )
    await (await office.stage.actor("a")).propose(request, work, ask)
    await office.stage.reaches(request, "turn.suspended")
    async with visiting(serve, by="Kim") as kim:
        page = f"/people/{request}"
        shown = (await kim.browser.get(page)).text
        assert "approve" in shown
        assert '<th scope="row">amount</th><td class="text">5</td>' in shown
        assert shown.count("Ann") == 1
        said = {"value": button, "reason": reason}
        assert (await kim.sends(page, f"{page}/reply", said)).status_code == 303
        assert told in (await kim.browser.get("/people")).text
        story = (await kim.browser.get(f"/requests/{request}")).text
    last = is_(await office.last(request), events.TurnResumed).work.past[-1]
    assert (last.reply, last.by, last.reason) == (button == "true", "Kim", reason)
    assert told.partition("was ")[2] in story
    assert reason in story
    assert told.partition("was ")[2] in (await office.mesh("request", "show", request)).out


async def test_a_doubt_and_a_failure_show_what_went_wrong_with_tool_arguments_and_attempts(
    serve: Serve, office: Office
) -> None:
    a = await office.stage.actor("a")
    request, work = await office.begun()
    ask = Ask(
        to_agent=AgentName("human"),
        question='a asks for approval: refund {"order":1042,"to":"<b>Ann</b>"}',
        schema={"type": "boolean"},
        digest="k1",
        action="refund",
    )
    await a.propose(request, work, ask)
    await office.stage.reaches(request, "turn.suspended")
    assert (await office.mesh("human", "approve", request, "--by", "Kim")).status == 0
    doubt = Doubt(
        step="1-0", action="refund", key="k1", message="refund raised OSError, at shop.py:7 in refund"
    )
    await a.say(request, ReportInDoubt(turn=work.turn, round=1, effect=doubt))
    await office.stage.reaches(request, "effect.doubted")
    failing, work = await office.begun()
    error = Failure(code="bug", message="the handler raised KeyError, at shop.py:9 in pay", permanent=True)
    await a.say(failing, ReportFailure(turn=work.turn, round=0, error=error))
    await office.stage.reaches(failing, "escalation.raised")
    async with serve() as address, httpx.AsyncClient(base_url=address) as browser:
        doubted = (await browser.get(f"/people/{request}")).text
        failed = (await browser.get(f"/people/{failing}")).text
        many = (await browser.get("/people")).text
    for told in (doubt.message, '<th scope="row">order</th><td class="text">1042</td>', "2 rounds"):
        assert told in doubted
    assert "<b>Ann" not in doubted
    for told in (error.message, "1 round", f"The turn had failed: {error.message}."):
        assert told in failed
    assert doubt.message in many
    assert error.message in many
    shown = (await office.mesh("human", "show", failing)).out
    assert f"went wrong: {error.message}\n" in shown


@pytest.mark.parametrize(
    ("said", "outcome", "result"),
    [
        ({"outcome": "done", "result": '{"receipt": 7}'}, "done", {"receipt": 7}),
        ({"outcome": "done", "result": "paid"}, "done", "paid"),
        ({"outcome": "not_done"}, "not_done", None),
    ],
)
async def test_a_doubt_is_settled(
    serve: Serve, office: Office, said: dict[str, str], outcome: str, result: object
) -> None:
    request = await office.doubted()
    async with visiting(serve, by="Kim") as kim:
        page = f"/people/{request}"
        assert (await kim.sends(page, f"{page}/settle", said)).status_code == 303
    last = is_(await office.last(request), events.EffectSettled)
    assert (last.by, last.outcome, last.result) == ("Kim", outcome, result)


async def test_a_decision_is_for_what_was_shown_and_nothing_else(serve: Serve, office: Office) -> None:
    request = await office.escalated()
    async with visiting(serve, by="Kim") as kim:
        page = f"/people/{request}"
        form = await kim.form(page)
        assert (await kim.sends(page, f"{page}/resolve", {"how": "to", "to": "b"})).status_code == 303
        work = await (await office.stage.actor("b")).work(request)
        await (await office.stage.actor("b")).propose(request, work, Escalate(summary="another thing"))
        await office.stage.reaches(request, "escalation.raised", 2)
        before = await office.last(request)
        late = await kim.posts(f"{page}/resolve", form | {"how": "complete", "answer": "42"})
        assert late.status_code == 409
        assert "look again" in late.text
        assert (await office.last(request)).n == before.n


@pytest.mark.parametrize(
    ("decision", "said", "status"),
    [
        ("resolve", {}, 400),
        ("resolve", {"how": "magic"}, 400),
        ("resolve", {"how": "to"}, 400),
        ("resolve", {"how": "to", "to": "nobody"}, 400),
        ("resolve", {"how": "complete"}, 400),
        ("resolve", {"how": "complete", "answer": "x", "tokens": "5"}, 400),
        ("resolve", {"how": "again", "tokens": "many"}, 400),
        ("resolve", {"how": "again", "n": "99"}, 409),
        ("resolve", {"how": "again", "n": ""}, 400),
        ("resolve", {"how": "assign", "person": " "}, 400),
        ("resolve", {"how": "again", "dollars": "-1"}, 400),
        ("resolve", {"how": "again", "dollars": "nan"}, 400),
        ("reply", {"value": "x"}, 404),
        ("settle", {"outcome": "done"}, 404),
        ("dance", {}, 400),
    ],
)
async def test_a_decision_that_makes_no_sense_changes_nothing(
    serve: Serve, office: Office, decision: str, said: dict[str, str], status: int
) -> None:
    request = await office.escalated()
    async with visiting(serve, by="Kim") as kim:
        page = f"/people/{request}"
        answer = await kim.sends(page, f"{page}/{decision}", said)
        assert answer.status_code == status, answer.text
        assert 'role="alert"' in answer.text
    assert (await office.last(request)).n == 1
