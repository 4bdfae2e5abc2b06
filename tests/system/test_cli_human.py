"""What waits for people, from the command line: replies, assignments, effects in doubt."""

import asyncio
import json
from typing import Any

import pytest

from mesh.agent._reply_schema import ReplyInvalid
from mesh.cli.exits import Exit
from mesh.client import Question
from protocol.wire import events
from protocol.wire.handoff import Budget
from protocol.wire.ids import AgentName, RequestId
from protocol.wire.moves import Ask, Complete
from tests.certain import is_
from tests.guard.stage import Stage
from tests.servers import PATIENCE_S
from tests.system.office import Office

COLOUR = {"type": "string", "enum": ["red", "blue"]}


async def waiting(office: Office, request: str) -> dict[str, Any]:
    """Return what `mesh human ls` says of a request."""
    listed = (await office.mesh("human", "ls", "--json")).json
    [found] = [each for each in listed if each["request"] == request]
    return dict(found)


async def test_everything_that_waits_for_people_is_in_one_list(office: Office) -> None:
    escalated, asked, doubted = await office.escalated(), await office.asked(), await office.doubted()
    for_the_client = await office.asked("c1")
    listed = {each["request"]: each for each in (await office.mesh("human", "ls", "--json")).json}
    assert {request: listed[request]["what"] for request in (escalated, asked, doubted)} == {
        escalated: "escalation",
        asked: "ask",
        doubted: "doubt",
    }
    assert for_the_client not in listed
    by_status = (await office.mesh("request", "ls", "--status", "human", "-n", "100", "--json")).json
    assert {escalated, asked, doubted} <= {each["request"] for each in by_status}
    assert for_the_client not in {each["request"] for each in by_status}
    still_open = (await office.mesh("request", "ls", "--status", "open", "-n", "100", "--json")).json
    stands = {each["request"]: (each["status"], each["holder"]) for each in still_open}
    assert stands[for_the_client] == ("open", "c1")
    assert {stands[request] for request in (escalated, asked, doubted)} == {("open", "human")}
    assert listed[asked]["summary"] == "which one?"
    assert (listed[doubted]["action"], listed[doubted]["key"]) == ("pay", "k7")
    assert all(each["from_agent"] == "a" for each in listed.values())
    shown = (await office.mesh("human", "ls")).out
    for request in (escalated, asked, doubted):
        assert request in shown


async def test_a_person_grants_more_to_spend(office: Office, stage: Stage) -> None:
    request = await office.escalated()
    assert "--budget tokens=N" in (await office.mesh("human", "show", request)).out
    for wrong in (
        ["tokens"],
        ["tokens=-1"],
        ["cents=1"],
        ["tokens=1.5"],
        ["tokens=1", "--budget", "tokens=2"],
    ):
        done = await office.mesh("human", "resolve", request, "--budget", *wrong)
        assert done.status == Exit.USAGE, done
        assert "budget" in done.err or "tokens" in done.err
    done = await office.mesh(
        "human", "resolve", request, "--complete", "--answer", "x", "--budget", "tokens=1"
    )
    assert done.status == Exit.USAGE, done
    granted = ["--budget", "tokens=5000", "--budget", "dollars=0.5"]
    done = await office.mesh("human", "resolve", request, "--again", *granted)
    assert done.status == Exit.DONE, done
    work = await (await stage.actor("a")).work(request, round_=1, nth=1)
    assert work.handoff.constraints.budget == Budget(tokens=5000, nano_dollars=500_000_000)
    event = is_((await stage.log(request))[-1], events.EscalationResolved)
    assert event.budget == work.handoff.constraints.budget


# --- replies --------------------------------------------------------------------------------------


async def test_a_person_replies_and_the_turn_goes_on_with_it(office: Office, stage: Stage) -> None:
    request = await office.asked(schema=COLOUR)
    shown = (await office.mesh("human", "show", request)).out
    assert "which one?" in shown
    assert f"mesh human reply {request}" in shown
    assert '"enum":["red","blue"]' in shown
    done = await office.mesh("human", "reply", request, "red", "--by", "kim")
    assert (done.status, done.out) == (Exit.DONE, f"{request}: a goes on with the reply (event 3)\n"), done
    work = await (await stage.actor("a")).work(request, round_=1)
    assert (work.past[0].reply, work.past[0].by) == ("red", "kim")
    again = await office.mesh("human", "reply", request, "blue")
    assert again.status == Exit.FAILED, again
    assert "nothing in it waits for a person's reply" in again.err


@pytest.mark.parametrize(
    ("schema", "value", "said"),
    [
        pytest.param(COLOUR, ["green"], "'green' is not one of ['red', 'blue']", id="not-in-the-schema"),
        pytest.param({"type": "boolean"}, ["true"], "add --json-value", id="text-for-a-truth"),
        pytest.param({"type": "boolean"}, ["yes", "--json-value"], "not JSON: 'yes'", id="no-json"),
    ],
)
async def test_a_reply_that_was_not_asked_for_is_not_sent(
    office: Office, stage: Stage, schema: dict[str, Any], value: list[str], said: str
) -> None:
    request = await office.asked(schema=schema)
    done = await office.mesh("human", "reply", request, *value)
    assert done.status == Exit.USAGE, done
    assert said in done.err
    assert await stage.types(request) == ["request.opened", "turn.suspended"]


async def test_a_reply_may_be_any_json(office: Office, stage: Stage) -> None:
    request = await office.asked(schema={"type": "object", "required": ["ok"]})
    assert (await office.mesh("human", "reply", request, '{"ok": true}', "--json-value")).status == Exit.DONE
    work = await (await stage.actor("a")).work(request, round_=1)
    assert work.past[0].reply == {"ok": True}


@pytest.mark.parametrize(
    "schema", [{"type": "colour"}, {"$ref": "http://127.0.0.1:1/nowhere"}], ids=["no-schema", "elsewhere"]
)
async def test_a_schema_that_cannot_be_used_keeps_nobody_from_replying(
    office: Office, stage: Stage, schema: dict[str, Any]
) -> None:
    request = await office.asked(schema=schema)
    done = await office.mesh("human", "reply", request, "red")
    assert done.status == Exit.DONE, done
    assert "sent unchecked" in done.err
    await stage.reaches(request, "turn.resumed")


async def test_nobody_replies_for_a_client(office: Office, stage: Stage) -> None:
    request = await office.asked("c1")
    for command in (["human", "reply", request, "red"], ["human", "show", request]):
        done = await office.mesh(*command)
        assert done.status == Exit.FAILED, done
        assert f"under c1's own key: mesh human reply {request} '…' --as c1 [" in done.err
    done = await office.mesh("human", "reply", request, "red", who="c2")
    assert done.status == Exit.FAILED, done
    assert f"nothing that c2 may see in {request} waits for its reply" in done.err
    assert await stage.types(request) == ["request.opened", "turn.suspended"]


async def test_a_client_replies_with_its_own_key_alone(office: Office, stage: Stage) -> None:
    request = await office.asked("c1", schema={"type": "object", "required": ["ok"]})
    wrong = await office.mesh("human", "reply", request, '{"ok": true}', who="c1")
    assert wrong.status == Exit.USAGE, wrong
    assert "add --json-value" in wrong.err
    done = await office.mesh(
        "human", "reply", request, '{"ok": true}', "--json-value", "--by", "kim", who="c1"
    )
    assert (done.status, done.out) == (Exit.DONE, f"{request} goes on with the reply\n"), done
    a = await stage.actor("a")
    work = await a.work(request, round_=1)
    assert (work.past[0].reply, work.past[0].by) == ({"ok": True}, "kim")
    late = await office.mesh("human", "reply", request, '{"ok": false}', "--json-value", who="c1")
    assert late.status == Exit.FAILED, late
    assert f"nothing that c1 may see in {request} waits for its reply" in late.err
    await a.propose(request, work, Complete(answer="thanks"))
    await stage.reaches(request, "request.completed")
    over = await office.mesh("human", "reply", request, "{}", who="c1")
    assert over.status == Exit.FAILED, over
    assert f"{request} has ended: completed" in over.err
    types = ["request.opened", "turn.suspended", "turn.resumed", "request.completed"]
    assert await stage.types(request) == types  # what was said again changed nothing
    assert request not in (await office.mesh("dead", "ls", "--json")).out


async def test_an_operator_who_is_the_client_replies_as_such(office: Office, stage: Stage) -> None:
    a, operator = await stage.actor("a"), await stage.client("op")
    request = await operator.submit("hello")
    await a.propose(request, await a.work(request), Ask(to_agent=AgentName("op"), question="which one?"))
    await stage.reaches(request, "turn.suspended")
    assert f"mesh human reply {request} '…'" in (await office.mesh("human", "show", request)).out
    done = await office.mesh("human", "reply", request, "red")
    assert (done.status, done.out) == (Exit.DONE, f"{request}: a goes on with the reply (event 3)\n"), done


async def test_a_client_at_its_terminal_is_asked_until_the_reply_is_what_was_asked_for(
    office: Office, stage: Stage
) -> None:
    a = await stage.actor("a")
    typing = asyncio.create_task(office.typed("maybe\ntrue\n", "send", "hello", who="c1"))

    request = await a.first()
    ask = Ask(to_agent=AgentName("c1"), question="may I?", schema={"type": "boolean"})
    await a.propose(request, await a.work(request), ask)
    work = await a.work(request, round_=1)
    assert work.past[0].reply is True
    await a.propose(request, work, Complete(answer="thanks"))
    done = await typing
    assert (done.status, done.out) == (Exit.DONE, "thanks\n"), done
    assert "not what was asked for: at $: 'maybe' is not of type 'boolean'" in done.err


async def test_a_clients_own_code_cannot_send_a_reply_that_was_not_asked_for(
    office: Office, stage: Stage
) -> None:
    request = RequestId(await office.asked("c1", schema=COLOUR))

    async def wrong(question: Question) -> str:
        return "green"

    with pytest.raises(ReplyInvalid, match="green"):
        await (await stage.client()).wait(request, timeout_s=PATIENCE_S, on_question=wrong)
    assert await stage.types(request) == ["request.opened", "turn.suspended"]


# --- assigning ------------------------------------------------------------------------------------


async def test_an_escalation_is_assigned_to_a_person(office: Office) -> None:
    request = await office.escalated()
    assert (await waiting(office, request))["person"] == ""
    done = await office.mesh("human", "assign", request, "rosa", "--by", "kim")
    assert (done.status, done.out) == (Exit.DONE, f"{request} is rosa's to look at (event 2)\n"), done
    assert (await waiting(office, request))["person"] == "rosa"
    [listed] = (await office.mesh("request", "ls", "-n", 1, "--json")).json
    assert [listed[name] for name in ("request", "status", "holder")] == [request, "open", "human"]
    event = is_(await office.last(request), events.EscalationAssigned)
    assert (event.person, event.by, event.sender) == ("rosa", "kim", "op")
    assert (await office.mesh("human", "assign", request, " ")).status == Exit.USAGE


async def test_only_an_escalation_is_assigned(office: Office) -> None:
    request = await office.asked()
    done = await office.mesh("human", "assign", request, "rosa")
    assert done.status == Exit.FAILED, done
    assert f"no escalation in it waits for people; it waits for this: mesh human reply {request}" in done.err


# --- effects in doubt -----------------------------------------------------------------------------


async def test_effects_in_doubt_are_listed_with_what_to_look_for(office: Office) -> None:
    request = await office.doubted()
    listed = {each["request"]: each for each in (await office.mesh("doubt", "ls", "--json")).json}
    found = listed[request]
    assert [found[name] for name in ("from_agent", "action", "step", "key")] == ["a", "pay", "0-3", "k7"]
    shown = (await office.mesh("doubt", "ls")).out
    assert f"mesh doubt settle {request} --done|--not-done" in shown
    assert "mesh doubt settle" in (await office.mesh("human", "show", request)).out


async def test_a_person_sees_what_an_effect_in_doubt_was_called_with(office: Office) -> None:
    request, called = await office.doubted(), 'pay {"cents":1299} card: secret'
    for command in (("doubt", "ls"), ("doubt", "show", request), ("human", "show", request)):
        assert called in (await office.mesh(*command)).out
    listed = {each["request"]: each for each in (await office.mesh("doubt", "ls", "--json")).json}
    found = listed[request]
    assert (found["arguments"], found["secret"]) == ({"cents": 1299}, ["card"])
    assert called in (await office.mesh("doubt", "settle", request, "--done")).out


@pytest.mark.parametrize(
    ("options", "outcome", "result"),
    [
        pytest.param(["--done"], "done", None, id="done"),
        pytest.param(["--done", "--result", '{"ref": 7}'], "done", {"ref": 7}, id="done-with-json"),
        pytest.param(["--done", "--result", "paid it"], "done", "paid it", id="done-with-text"),
        pytest.param(["--not-done"], "not_done", None, id="not-done"),
    ],
)
async def test_a_doubt_is_settled_and_the_turn_goes_on(
    office: Office, stage: Stage, options: list[str], outcome: str, result: object
) -> None:
    request = await office.doubted()
    done = await office.mesh("doubt", "settle", request, *options, "--by", "kim")
    assert done.status == Exit.DONE, done
    assert "a goes on (event 2)" in done.out
    work = await (await stage.actor("a")).work(request, round_=1)
    past = work.past[0]
    assert (past.settled, past.reply, past.by) == (outcome, result, "kim")
    assert request not in (await office.mesh("doubt", "ls")).out
    again = await office.mesh("doubt", "settle", request, "--done")
    assert again.status == Exit.FAILED
    assert "no effect in it is in doubt" in again.err


@pytest.mark.parametrize(
    "options",
    [[], ["--done", "--not-done"], ["--not-done", "--result", "7"]],
    ids=["neither", "both", "a-result-of-nothing"],
)
async def test_a_settlement_that_makes_no_sense_is_a_matter_of_usage(
    office: Office, stage: Stage, options: list[str]
) -> None:
    request = await office.doubted()
    assert (await office.mesh("doubt", "settle", request, *options)).status == Exit.USAGE
    assert await stage.types(request) == ["request.opened", "effect.doubted"]


async def test_a_viewer_sees_what_waits_and_settles_nothing(office: Office, stage: Stage) -> None:
    request = await office.doubted()
    assert request in (await office.mesh("doubt", "ls", who="audit")).out
    assert (await office.mesh("doubt", "settle", request, "--done", who="audit")).status == Exit.USAGE
    assert json.loads((await office.mesh("human", "show", request, "--json", who="audit")).out)["waiting"]
    assert await stage.types(request) == ["request.opened", "effect.doubted"]
