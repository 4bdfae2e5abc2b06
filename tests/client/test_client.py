"""A client's answer is its own, however many share its name, and is found whatever gets lost on the way."""

import asyncio
import json
import os
from typing import Any

import nats
import pytest

from mesh.agent.definition import Agent
from mesh.agent.turn import Turn
from mesh.client import Client, Question, SubmitRejected
from mesh.client import client as client_module
from mesh.errors import Disconnected, NoResponders, PublishRefused, TooLarge
from protocol.wire import events
from protocol.wire.commands import Cancel, ReplyToAsk
from protocol.wire.handoff import Rule
from protocol.wire.ids import ulid
from protocol.wire.moves import Ask, Complete, Fail, Move
from tests.certain import known
from tests.guard.stage import Stage
from tests.servers import PATIENCE_S, until

DONE = Complete(answer="done")
STORED_TOO_LARGE = 10054


async def echo(turn: Turn) -> Move:
    return turn.complete(turn.facts["text"])


@pytest.fixture
async def echoing(stage: Stage) -> Stage:
    await stage.runtime(Agent("a", echo, concurrency=16))
    return stage


async def test_fifty_callers_under_one_name_each_get_their_own_answer(echoing: Stage) -> None:
    one = await echoing.client()
    other = await Client.on(await echoing.bus("c1", "second"), "c1")

    async def ask(client: Client, text: str) -> Any:
        return (await client.wait(await client.submit(text), timeout_s=PATIENCE_S)).answer

    texts = [f"hello {number}" for number in range(50)]
    answers = await asyncio.gather(*(ask((one, other)[len(text) % 2], text) for text in texts))
    assert answers == texts


async def test_a_request_costs_its_submit_and_one_look(
    echoing: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_module, "POLL_S", PATIENCE_S)  # only a note brings a look
    client = await echoing.client()
    client._lane._close(PATIENCE_S)  # it asks at most once a second where guards take no questions
    asked = client._bus.counters.requests
    for _ in range(3):
        assert (await client.wait(await client.submit("hello"), timeout_s=PATIENCE_S)).answer == "hello"
    assert client._bus.counters.requests - asked == 3 * 2


async def test_an_answer_that_came_before_anybody_waited_is_found_at_once(
    echoing: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_module, "POLL_S", 10 * PATIENCE_S)
    client = await echoing.client()
    request = await client.submit("hello")
    await until(lambda: request not in client._submitted._silent)  # its note has come
    assert (await client.wait(request, timeout_s=PATIENCE_S)).answer == "hello"


async def test_the_same_id_with_the_same_content_is_the_same_request(echoing: Stage) -> None:
    one = await echoing.client()
    other = await Client.on(await echoing.bus("c1", "second"), "c1")
    request = await one.submit("hello")
    await one.wait(request, timeout_s=PATIENCE_S)
    assert await other.submit("hello", request=request) == request
    assert (await other.wait(request, timeout_s=PATIENCE_S)).answer == "hello"
    assert await echoing.types(request) == ["request.opened", "request.completed"]


async def test_the_same_id_with_other_content_is_rejected_and_does_the_first_no_harm(stage: Stage) -> None:
    a, one = await stage.actor("a"), await stage.client()
    other = await Client.on(await stage.bus("c1", "second"), "c1")
    request = await one.submit("hello")
    work = await a.work(request)
    first = asyncio.create_task(one.wait(request, timeout_s=PATIENCE_S))
    await other.submit("good-bye", request=request)
    with pytest.raises(SubmitRejected) as rejected:
        await other.wait(request, timeout_s=PATIENCE_S)
    assert (rejected.value.reason, rejected.value.request) == ("request_exists", request)
    await until(lambda: bool(one._submitted._rejections))  # it heard of it too
    await a.propose(request, work, DONE)
    assert (await first).answer == "done"


async def test_an_old_id_is_rejected(echoing: Stage) -> None:
    client = await echoing.client()
    old = f"c1_{ulid(1_600_000_000_000, os.urandom(10))}"
    await client.submit("hello", request=old)
    with pytest.raises(SubmitRejected) as rejected:
        await client.wait(old, timeout_s=PATIENCE_S)
    assert rejected.value.reason == "stale_id"


async def test_a_control_message_that_comes_to_nothing_does_not_end_the_wait(stage: Stage) -> None:
    a, client = await stage.actor("a"), await stage.client()
    request = await client.submit("hello")
    work = await a.work(request)
    waiting = asyncio.create_task(client.wait(request, timeout_s=PATIENCE_S))
    await client.control(request, ReplyToAsk(id="x", turn="lost", round=0))  # type: ignore[arg-type]
    await until(lambda: request in client._submitted._rejections)
    await a.propose(request, work, DONE)
    assert (await waiting).answer == "done"


async def test_what_another_process_submitted_and_was_told_is_told_here_too(stage: Stage) -> None:
    client = await stage.client()
    old = f"c1_{ulid(1_600_000_000_000, os.urandom(10))}"
    waiting = asyncio.create_task(client.wait(old, timeout_s=PATIENCE_S))
    await until(lambda: old in client._wakes)
    await (await stage.bus("c1", "second")).publish_durable(f"mesh.prop.c1.{old}", b'{"text":"hello"}')
    with pytest.raises(SubmitRejected):
        await waiting


async def test_an_outcome_says_how_and_why_a_request_ended(stage: Stage) -> None:
    a, client = await stage.actor("a"), await stage.client()
    failed, cancelled = await client.submit("hello"), await client.submit("hello")
    expired, refused = await client.submit("hello", policy="short"), await client.submit("hello", to="zoe")
    await a.propose(failed, await a.work(failed), Fail(reason="cannot be done"))
    await client.cancel(cancelled, "never mind", by="kim")
    ends = [
        await client.wait(request, timeout_s=PATIENCE_S) for request in (failed, cancelled, expired, refused)
    ]
    assert [end.status for end in ends] == ["failed", "cancelled", "expired", "refused"]
    named = (("cannot be done",), ("kim (c1)", "never mind"), ("deadline",), (Rule.KNOWN_AGENT, "zoe"))
    for end, names in zip(ends, named, strict=True):
        assert all(name in known(end.reason) for name in names), end.reason
    assert {end.answer for end in ends} == {None}


async def test_a_wait_has_a_deadline_of_its_own(stage: Stage) -> None:
    client = await stage.client()
    request = await client.submit("hello")
    with pytest.raises(TimeoutError):
        await client.wait(request, timeout_s=0.05)
    assert client._wakes == {}


async def test_questions_are_answered_while_waiting(stage: Stage) -> None:
    a, client = await stage.actor("a"), await stage.client()
    request = await client.submit("hello")
    asked: list[Question] = []

    async def answer(question: Question) -> str:
        asked.append(question)
        return f"answer {len(asked)}"

    waiting = asyncio.create_task(client.wait(request, timeout_s=PATIENCE_S, on_question=answer))
    replies = []
    for round_ in range(2):
        question = Ask(to_agent="c1", question=f"question {round_}")  # type: ignore[arg-type]
        await a.propose(request, await a.work(request, round_=round_), question)
        replies.append((await a.work(request, round_=round_ + 1)).past[-1].reply)
    await a.propose(request, await a.work(request, round_=2), DONE)
    assert (await waiting).answer == "done"
    assert [question.question for question in asked] == ["question 0", "question 1"]
    assert replies == ["answer 1", "answer 2"]


class Unanswered:
    """Is asked, and says nothing unless it is told to."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.over: list[str] = []
        """Questions that were taken back."""
        self.replies: dict[str, str] = {}

    async def __call__(self, question: Question) -> str:
        self.asked.append(question.question)
        if question.question in self.replies:
            return self.replies[question.question]
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            self.over.append(question.question)
        raise AssertionError("it waits for ever")


def asking(question: str) -> Ask:
    return Ask(to_agent="c1", question=question)  # type: ignore[arg-type]


async def test_an_end_is_told_while_a_question_stands(stage: Stage) -> None:
    a, client, nobody = await stage.actor("a"), await stage.client(), Unanswered()
    request = await client.submit("hello")
    waiting = asyncio.create_task(client.wait(request, timeout_s=PATIENCE_S, on_question=nobody))
    await a.propose(request, await a.work(request), asking("which one?"))
    await until(lambda: bool(nobody.asked))
    await stage.control(request, Cancel(id="x", reason="enough"))
    assert (await waiting).status == "cancelled"
    assert nobody.over == ["which one?"]


async def test_a_question_that_somebody_else_has_answered_gives_way_to_the_next(stage: Stage) -> None:
    a, client, slow = await stage.actor("a"), await stage.client(), Unanswered()
    other = await Client.on(await stage.bus("c1", "second"), "c1")
    slow.replies["second?"] = "two"
    request = await client.submit("hello")
    waiting = asyncio.create_task(client.wait(request, timeout_s=PATIENCE_S, on_question=slow))
    work = await a.work(request)
    await a.propose(request, work, asking("first?"))
    await until(lambda: bool(slow.asked))
    await other.control(request, ReplyToAsk(id="r", turn=work.turn, round=0, value="one"))
    work = await a.work(request, round_=1)
    assert work.past[-1].reply == "one"
    await a.propose(request, work, asking("second?"))
    work = await a.work(request, round_=2)
    assert (work.past[-1].reply, slow.over) == ("two", ["first?"])
    await a.propose(request, work, DONE)
    assert (await waiting).answer == "done"


async def test_an_answer_is_found_without_a_single_note(
    echoing: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_module, "POLL_S", 0.05)
    deaf = Client(await echoing.bus("c1", "deaf"), "c1")  # not made by `on`, so it listens to nothing
    request = await deaf.submit("hello")
    assert (await deaf.wait(request, timeout_s=PATIENCE_S)).answer == "hello"


async def test_a_wait_outlives_a_restart_of_the_broker(stage: Stage) -> None:
    a, client = await stage.actor("a"), await stage.client()
    request = await client.submit("hello")
    work = await a.work(request)
    await stage.drained()
    waiting = asyncio.create_task(client.wait(request, timeout_s=PATIENCE_S))
    await until(lambda: request in client._wakes)
    await stage.mesh.server.kill()
    await until(lambda: not client._bus.connected)
    await stage.mesh.server.start()
    await stage.back()
    await a.propose(request, work, DONE)
    assert (await waiting).answer == "done"


async def test_a_submit_whose_fate_nobody_knows_is_stored_again_and_decided_once(echoing: Stage) -> None:
    client = await echoing.client()
    client._lane._close(PATIENCE_S)  # what a guard is asked has an answer, or is stored like this
    inner, tries = client._bus.publish_durable, list[str]()

    async def publish(subject: str, *rest: Any, **more: Any) -> Any:
        ack = await inner(subject, *rest, **more)
        tries.append(subject)
        if len(tries) < 3:
            raise Disconnected("stored, and nobody heard of it")
        return ack

    client._bus.publish_durable = publish  # type: ignore[method-assign]
    request = await client.submit("hello")
    assert (await client.wait(request, timeout_s=PATIENCE_S)).answer == "hello"
    await echoing.drained("PROP")
    assert len(tries) == 3
    assert await echoing.types(request) == ["request.opened", "request.completed"]


async def test_a_submit_waits_while_its_queue_has_no_leader(echoing: Stage) -> None:
    client = await echoing.client()
    client._lane._close(PATIENCE_S)
    inner, tries = client._bus.publish_durable, list[str]()

    async def publish(subject: str, *rest: Any, **more: Any) -> Any:
        tries.append(subject)
        if len(tries) <= len(client_module._AGAIN_S) + 1:  # longer than any other unknown outcome
            raise NoResponders("they elect")
        return await inner(subject, *rest, **more)

    client._bus.publish_durable = publish  # type: ignore[method-assign]
    assert (await client.wait(await client.submit("hello"), timeout_s=PATIENCE_S)).answer == "hello"


@pytest.mark.parametrize(
    ("size", "error"),
    [pytest.param(300_000, PublishRefused, id="stream"), pytest.param(2_000_000, TooLarge, id="server")],
)
async def test_what_the_bus_cannot_hold_is_a_typed_error_at_once(
    stage: Stage, size: int, error: type[Exception]
) -> None:
    client = await stage.client()
    with pytest.raises(error) as caught:
        await client.submit("x" * size)
    if isinstance(caught.value, PublishRefused):
        assert caught.value.err_code == STORED_TOO_LARGE


async def test_more_than_a_handoff_may_hold_is_refused_by_size(stage: Stage) -> None:
    client = await stage.client()
    outcome = await client.wait(await client.submit("x" * 70_000), timeout_s=PATIENCE_S)
    assert isinstance(outcome.event, events.RequestRefused)
    assert outcome.event.refusal.rule == "size"


async def test_plain_json_from_any_nats_client_gets_its_acknowledgement_and_its_answer(
    echoing: Stage,
) -> None:
    request = (await echoing.client()).new_id()
    raw = await nats.connect(
        echoing.mesh.url, nkeys_seed_str=echoing.mesh.keys["c1"].seed, inbox_prefix=b"_I.c1"
    )
    try:
        notes = await raw.subscribe(f"mesh.note.c1.{request}")
        await raw.flush()
        stored = json.loads((await raw.request(f"mesh.prop.c1.{request}", b'{"text": "hello"}')).data)
        assert stored["stream"] == "PROP-c1"
        note = await notes.next_msg(timeout=PATIENCE_S)
        assert note.data == b""
        assert (note.headers or {})["Mesh-Type"] == "request.completed"
        answer = await raw.request(f"$JS.API.DIRECT.GET.LOG.mesh.evt.c1.{request}")
        assert json.loads(answer.data)["answer"] == "hello"
    finally:
        await raw.close()
