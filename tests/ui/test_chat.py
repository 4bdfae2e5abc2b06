"""The page's chat, as forms: messages, replies and cancellations, each as the page's operator."""

import re
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest

from mesh.testing import InMemoryGuard
from mesh.ui import PageLimits
from mesh.ui.chat import said_in
from protocol.wire import events
from protocol.wire.config import Fleet
from protocol.wire.event_parts import Continued
from protocol.wire.handoff import Fact
from protocol.wire.ids import AgentName
from protocol.wire.moves import Ask, Complete, Escalate, Fail, Transfer
from tests.guard.stage import Stage
from tests.servers import PATIENCE_S, eventually
from tests.ui.conftest import Serve, Visitor
from tests.unit.protocol.worlds import agents

FLEET = Fleet(
    name="shop",
    entry=AgentName("a"),
    agents=agents("ab"),
    clients=(AgentName("c1"),),
    operators=(AgentName("op"),),
    human=True,
    labels={"text": ("pii",)},
)


def lines(guard: InMemoryGuard) -> list[tuple[str, str, str]]:
    return [(said.kind, said.by, said.text) for said in said_in(guard.events, "c1")]


# --- what was said ----------------------------------------------------------------------------------


def test_a_conversation_is_the_text_the_questions_the_replies_and_the_answer() -> None:
    guard = InMemoryGuard(FLEET)
    guard.submit("My seat?\nPlease.")
    guard.move(Transfer(to_agent=AgentName("b"), summary="the seat"))
    guard.move(Ask(to_agent=AgentName("c1"), question="Which one?"))
    guard.reply({"seat": "12A"})
    guard.move(Ask(to_agent=AgentName("human"), question="May I?"))
    guard.reply(True)
    guard.move(Complete(answer="You are in 12A."))
    assert lines(guard) == [
        ("said", "", "My seat?\nPlease."),
        ("asked", "b", "Which one?"),
        ("replied", "", '{"seat":"12A"}'),
        ("answered", "b", "You are in 12A."),
    ]


def test_a_question_that_ran_out_has_no_reply_and_may_be_asked_again() -> None:
    guard = InMemoryGuard(FLEET)
    guard.submit("My seat?")
    guard.move(Ask(to_agent=AgentName("c1"), question="Which one?", expires_s=5.0))
    guard.wait(6)
    guard.move(Ask(to_agent=AgentName("c1"), question="Still there?"))
    guard.reply("yes")
    guard.move(Fail(reason="no seats", code="full"))
    assert lines(guard)[1:] == [
        ("asked", "a", "Which one?"),
        ("asked", "a", "Still there?"),
        ("replied", "", "yes"),
        ("failed", "", "full: no seats"),
    ]


def test_a_persons_answer_has_their_name_and_a_refused_message_its_rule() -> None:
    guard = InMemoryGuard(FLEET)
    guard.submit("Help")
    guard.move(Escalate(summary="a person, please"))
    guard.resolve("Ada", complete=True, answer="I call you.")
    assert lines(guard)[-1] == ("answered", "Ada", "I call you.")
    refused = InMemoryGuard(FLEET)
    refused.submit("Help", to=AgentName("nobody"))
    assert lines(refused) == [
        ("said", "", "Help"),
        ("refused", "", "known_agent: 'nobody' is not in the fleet"),
    ]


# --- forms ------------------------------------------------------------------------------------------


async def answered(stage: Stage, request: str, by: str, words: str, *leaves: Fact) -> None:
    actor = await stage.actor(by)
    await actor.propose(request, await actor.work(request), Complete(answer=words, remember=leaves))
    await stage.reaches(request, "request.completed")


def sent(answer: httpx.Response) -> tuple[str, str]:
    """Return the conversation and the request of a message that was sent."""
    assert answer.status_code == 303, answer.text
    query = parse_qs(urlsplit(answer.headers["location"]).query)
    return query["in"][0], query["sent"][0]


async def test_messages_go_to_whoever_spoke_last_and_stand_in_order(stage: Stage, serve: Serve) -> None:
    async with serve(allow_write=True, by="Ada") as address, Visitor(address) as visitor:
        name, first = sent(await visitor.sends("/chat", "/chat/say", {"text": " hello\r\nthere ", "to": "b"}))
        opened = await stage.reached(first, events.RequestOpened)
        assert (opened.client, opened.to, opened.conversation) == ("op", "b", name)
        assert opened.work.handoff.facts[0].value == "hello\nthere"
        here = f"/chat?in={name}&sent={first}"
        assert "is under way" in (await visitor.browser.get(here)).text
        await answered(stage, first, "b", "Hello <b>you</b>!")
        _, second = sent(await visitor.sends(here, "/chat/say", {"text": "and now?"}))
        opened = await stage.reached(second, events.RequestOpened)
        assert (opened.to, opened.continued) == ("b", Continued(last=AgentName("b")))
        await answered(stage, second, "b", "Goodbye.")

        async def shows_all() -> bool:
            shown = (await visitor.browser.get(f"/chat?in={name}&sent={second}")).text
            said = re.findall(r"<p>(.*?)</p></li>", shown, re.DOTALL)
            return said == ["hello\nthere", "Hello &lt;b&gt;you&lt;/b&gt;!", "and now?", "Goodbye."]

        await eventually(shows_all, PATIENCE_S)  # the list of requests reads the log behind it

        async def is_listed() -> bool:
            return f"/chat?in={name}" in (await visitor.browser.get("/chat")).text

        await eventually(is_listed, PATIENCE_S)


async def test_a_form_that_is_sent_twice_sends_one_message_and_no_other_text_under_it(
    stage: Stage, serve: Serve
) -> None:
    async with serve(allow_write=True, by="Ada") as address, Visitor(address) as visitor:
        form = await visitor.form("/chat")
        first = sent(await visitor.posts("/chat/say", form | {"text": "once"}))
        assert sent(await visitor.posts("/chat/say", form | {"text": "once"})) == first
        other = await visitor.posts("/chat/say", form | {"text": "another"})
        assert other.status_code == 400
        assert "this form was sent before, with another text" in other.text
        log = await stage.log(first[1])
        assert [type(event) for event in log] == [events.RequestOpened]
        await answered(stage, first[1], "a", "done")


async def test_a_question_is_answered_by_its_form_in_place(stage: Stage, serve: Serve) -> None:
    schema = {"type": "object", "properties": {"seat": {"type": "string"}}, "required": ["seat"]}
    async with serve(allow_write=True, by="Ada") as address, Visitor(address) as visitor:
        name, request = sent(await visitor.sends("/chat", "/chat/say", {"text": "a seat"}))
        actor = await stage.actor("a")
        ask = Ask(to_agent=AgentName("op"), question="Which one?", schema=schema)
        await actor.propose(request, await actor.work(request), ask)
        asked = await stage.reached(request, events.TurnSuspended)
        here = f"/chat?in={name}&sent={request}"
        shown = (await visitor.browser.get(here)).text
        assert "Reply to a</h2>" in shown
        form = await visitor.form(here)
        assert form["n"] == str(asked.n)
        late = await visitor.posts("/chat/reply", form | {"n": "0", "value.0": "12A"})
        assert late.status_code in (400, 404, 409)
        assert sent(await visitor.posts("/chat/reply", form | {"value.0": "12A"})) == (name, request)
        resumed = await stage.reached(request, events.TurnResumed)
        assert (resumed.work.past[-1].reply, resumed.work.past[-1].by) == ({"seat": "12A"}, "Ada")
        await actor.propose(request, await actor.work(request, round_=1), Complete(answer="Done."))
        await stage.reaches(request, "request.completed")
        said = (await visitor.browser.get(here)).text
        assert re.findall(r"<p>(.*?)</p></li>", said) == [
            "a seat", "Which one?", "{&#34;seat&#34;:&#34;12A&#34;}", "Done."
        ]  # fmt: skip


async def test_a_message_is_cancelled(stage: Stage, serve: Serve) -> None:
    async with serve(allow_write=True, by="Ada") as address, Visitor(address) as visitor:
        name, request = sent(await visitor.sends("/chat", "/chat/say", {"text": "stop me"}))
        here = f"/chat?in={name}&sent={request}"
        assert sent(await visitor.sends(here, "/chat/cancel", {})) == (name, request)
        cancelled = await stage.reached(request, events.RequestCancelled)
        assert (cancelled.by, cancelled.reason) == ("Ada", "cancelled in the chat")
        assert "cancelled by Ada" in (await visitor.browser.get(here)).text


async def test_what_waits_for_people_leads_to_them(stage: Stage, serve: Serve) -> None:
    async with serve(allow_write=True, by="Ada") as address, Visitor(address) as visitor:
        name, request = sent(await visitor.sends("/chat", "/chat/say", {"text": "help"}))
        actor = await stage.actor("a")
        await actor.propose(request, await actor.work(request), Escalate(summary="a person, please"))
        raised = await stage.reached(request, events.EscalationRaised)
        shown = (await visitor.browser.get(f"/chat?in={name}&sent={request}")).text
        assert f"/people/{request}?n={raised.n}" in shown


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ({"text": " \r\n"}, "write a message"),
        ({"text": "x", "request": "c1_01HF7YAT00040G2081040G2081"}, "another operator"),
        ({"text": "x", "request": "rubbish"}, "rubbish"),
        ({"text": "x", "request": "op_01HF7YAT00040G2081040G2081"}, "stale_id"),
        ({"text": "x", "in": ""}, "does not name its conversation"),
        ({"text": "x", "in": "n" * 129}, "128 characters at most"),
    ],
    ids=["nothing", "another's", "no-request", "of-long-ago", "no-conversation", "a-long-name"],
)
async def test_what_cannot_be_sent_is_answered_with_the_reason(
    stage: Stage, serve: Serve, said: dict[str, str], words: str
) -> None:
    async with serve(allow_write=True, by="Ada") as address, Visitor(address) as visitor:
        answer = await visitor.sends("/chat", "/chat/say", said)
        assert answer.status_code == 400
        assert words in answer.text


async def test_a_reply_without_its_question_and_an_unknown_act_are_wrong(stage: Stage, serve: Serve) -> None:
    async with serve(allow_write=True, by="Ada") as address, Visitor(address) as visitor:
        answer = await visitor.sends("/chat", "/chat/reply", {"value": "x"})
        assert (answer.status_code, "does not name the question" in answer.text) == (400, True)
        answer = await visitor.sends("/chat", "/chat/shout", {})
        assert (answer.status_code, "say, reply, cancel" in answer.text) == (400, True)


async def test_a_page_that_only_shows_has_no_chat(stage: Stage, serve: Serve) -> None:
    async with serve() as address, Visitor(address) as visitor:
        assert (await visitor.browser.get("/chat")).status_code == 403
        assert 'href="/chat"' not in (await visitor.browser.get("/requests")).text
        assert (await visitor.sends("/requests", "/chat/say", {"text": "x"})).status_code == 403


async def test_a_chat_needs_the_visitors_name_as_every_action_does(stage: Stage, serve: Serve) -> None:
    async with serve(allow_write=True) as address, Visitor(address) as visitor:
        form = await visitor.form("/chat") | {"text": "hello"}
        answer = await visitor.posts("/chat/say", form)
        assert (answer.status_code, "say your name first" in answer.text) == (400, True)
        _, request = sent(await visitor.posts("/chat/say", form | {"by": "Grace"}))
        await answered(stage, request, "a", "Hello Grace.")


async def test_a_message_that_no_guard_decides_is_shown_as_sent(stage: Stage, serve: Serve) -> None:
    for guard in list(stage._guards):
        await stage.dismiss(guard)
    limits = PageLimits(begun_s=0.05)
    async with serve(allow_write=True, by="Ada", limits=limits) as address, Visitor(address) as visitor:
        name, request = sent(await visitor.sends("/chat", "/chat/say", {"text": "anyone?"}))
        shown = (await visitor.browser.get(f"/chat?in={name}&sent={request}")).text
        assert "no guard has decided it yet" in shown
        await stage.guard("again")
        await stage.reaches(request, "request.opened")
        assert "anyone?" in (await visitor.browser.get(f"/chat?in={name}&sent={request}")).text
        await answered(stage, request, "a", "I am.")
