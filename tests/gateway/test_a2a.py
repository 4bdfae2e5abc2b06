"""A2A: what another agent sends, hears, answers and cancels is what a client of the bus would."""

import asyncio
from pathlib import Path
from typing import Any, Literal

import httpx
import msgspec
import pytest
from a2a.types import a2a_pb2 as wire
from a2a.utils.errors import (
    ContentTypeNotSupportedError,
    InternalError,
    InvalidParamsError,
    PushNotificationNotSupportedError,
    TaskNotCancelableError,
    TaskNotFoundError,
    UnsupportedOperationError,
)
from google.protobuf.json_format import ParseDict

from mesh.gateway.a2a_documents import agent_card
from mesh.gateway.a2a_documents import task_of as document_task
from mesh.gateway.documents import QuestionDocument, RequestDocument
from mesh.gateway.tokens import TokenLimits, read_tokens, revoke_token
from protocol.wire import codec, events, subjects
from protocol.wire.config import AgentEntry, Fleet
from protocol.wire.handoff import DEEPEST
from protocol.wire.ids import AgentName, RequestId
from protocol.wire.moves import Ask, Complete, Fail
from protocol.wire.records import LiveNote
from tests.certain import is_
from tests.gateway.a2a import UNLIMITED, agent_up, plain, says, sdk_client, state, task_of, told
from tests.gateway.conftest import bearer
from tests.guard.stage import FLEET, Stage
from tests.servers import PATIENCE_S, eventually


async def answered(stage: Stage, request: str, answer: Any, round_: int = 0) -> None:
    agent = await stage.actor("a")
    await agent.propose(request, await agent.work(request, round_=round_), Complete(answer=answer))


async def asked(stage: Stage, request: str, question: str, round_: int = 0, **ask: Any) -> None:
    agent = await stage.actor("a")
    work = await agent.work(request, round_=round_)
    await agent.propose(request, work, Ask(to_agent=work.handoff.from_agent, question=question, **ask))
    await stage.reaches(request, "turn.suspended")


def at_once(request: wire.SendMessageRequest) -> wire.SendMessageRequest:
    request.configuration.return_immediately = True
    return request


async def test_the_card_says_what_the_fleet_does(stage: Stage, tmp_path: Path, tokens: Path) -> None:
    async with agent_up(stage, tmp_path, tokens) as (address, _), httpx.AsyncClient(base_url=address) as http:
        answer = await http.get("/.well-known/agent-card.json")  # without a token
        card = answer.json()
        assert card["name"] == FLEET.name
        (interface,) = card["supportedInterfaces"]
        assert interface == {"url": f"{address}/a2a", "protocolBinding": "JSONRPC", "protocolVersion": "1.0"}
        assert card["capabilities"]["streaming"] is True
        tag = {"if-none-match": answer.headers["etag"]}
        again = await http.get("/.well-known/agent-card.json", headers=tag)
        assert again.status_code == 304
        for path in ("/a2a", "/.well-known/other"):
            refused = await http.post(path, json={})
            assert refused.status_code == 401
            assert refused.headers["www-authenticate"].startswith("Bearer")


def test_each_intent_is_a_skill_with_its_takers() -> None:
    agents: dict[str, AgentEntry] = {
        AgentName("front"): AgentEntry(name=AgentName("front"), description="it greets"),
        AgentName("pay"): AgentEntry(name=AgentName("pay"), intents=("refund",), description="it pays"),
        AgentName("check"): AgentEntry(name=AgentName("check"), intents=("refund", "review")),
    }
    fleet = Fleet(name="shop", entry=AgentName("front"), agents=agents)
    card = plain(agent_card(fleet, "https://shop.example/a2a", "1"))
    assert [(each["id"], each["description"], each["tags"]) for each in card["skills"]] == [
        ("any", "it greets", ["front"]),
        ("refund", "it pays", ["pay", "check"]),
        ("review", "work of the kind review", ["check"]),
    ]
    assert card["securitySchemes"] == {"token": {"httpAuthSecurityScheme": {"scheme": "bearer"}}}


async def test_a_message_gets_its_answer(echoing: Stage, tmp_path: Path, tokens: Path) -> None:
    async with agent_up(echoing, tmp_path, tokens) as at, sdk_client(*at, streaming=False) as client:
        sent = says("hello", {"order": 1042, "share": 0.5}, contextId="talk-1", metadata={"to": "a"})
        task = await task_of(client, sent)
        assert (state(task), task.context_id) == ("completed", "talk-1")
        assert [part.text for part in task.artifacts[0].parts] == ["hello"]
        assert await client.get_task(wire.GetTaskRequest(id=task.id)) == task
    opened = is_((await echoing.log(task.id))[0], events.RequestOpened)
    assert (opened.client, opened.conversation) == ("c1", "talk-1")
    assert opened.work is not None
    facts = {fact.key: fact.value for fact in opened.work.handoff.facts}
    assert facts == {"text": "hello", "order": 1042, "share": 0.5}
    assert isinstance(facts["order"], int)


async def test_a_stream_tells_the_task_its_notes_its_answer_and_its_end(
    stage: Stage, tmp_path: Path, tokens: Path
) -> None:
    async with agent_up(stage, tmp_path, tokens) as at, sdk_client(*at) as client:
        heard = list[wire.StreamResponse]()

        async def listen() -> None:
            async for each in client.send_message(says("x")):
                heard.append(each)

        listening = asyncio.create_task(listen())
        await eventually(lambda: asyncio.sleep(0, bool(heard)), PATIENCE_S)
        request = heard[0].task.id
        agent = await stage.actor("a")
        work = await agent.work(request)
        note = LiveNote(v=1, turn=work.turn, round=0, n=0, at=1, kind="text", text="so far")
        await agent.bus.publish(subjects.live("c1", request, "a", work.turn), codec.encode(note))
        await eventually(lambda: asyncio.sleep(0, len(heard) > 1), PATIENCE_S)
        await agent.propose(request, work, Complete(answer={"ok": [1, 2.5, None, "ü"]}))
        await listening
    assert state(heard[0].task) in ("submitted", "working")
    said = heard[1].status_update
    assert (state(said), said.status.message.parts[0].text) == ("working", "so far")
    artifact, last = heard[-2].artifact_update.artifact, heard[-1].status_update
    assert plain(artifact.parts[0].data) == {"ok": [1.0, 2.5, None, "ü"]}
    assert (state(last), last.status.HasField("timestamp")) == ("completed", True)
    assert {each.WhichOneof("payload") for each in heard[1:-2]} <= {"status_update"}


async def test_a_question_makes_the_task_ask_and_a_message_to_it_is_the_reply(
    stage: Stage, tmp_path: Path, tokens: Path
) -> None:
    schema = {"type": "integer"}
    async with agent_up(stage, tmp_path, tokens) as at, sdk_client(*at) as client:
        task = await task_of(client, at_once(says("pay it back")))
        with pytest.raises(UnsupportedOperationError, match="asks nothing"):
            await told(client, says("7", taskId=task.id))
        await asked(stage, task.id, "which order?", schema=schema)
        now = await client.get_task(wire.GetTaskRequest(id=task.id))
        assert (state(now), now.status.message.parts[0].text) == ("input_required", "which order?")
        assert plain(now.status.message.metadata)["schema"] == schema
        for wrong in (says("seven", taskId=task.id), says({"n": 7}, taskId=task.id)):
            with pytest.raises(InvalidParamsError):
                await told(client, wrong)
        with pytest.raises(InvalidParamsError, match="context"):
            await told(client, says("7", taskId=task.id, contextId="another"))
        stream = client.send_message(says("7", taskId=task.id))
        heard = [await anext(stream)]
        await asked(stage, task.id, "sure?", round_=1)
        heard += [each async for each in stream]
        assert state(heard[0].task) == "working"  # not the question that was just answered
        assert heard[-1].status_update.status.message.parts[0].text == "sure?"
        replying = asyncio.create_task(told(client, says({"yes": True}, taskId=task.id)))
        await answered(stage, task.id, "done", round_=2)
        assert state((await replying)[-1].status_update) == "completed"
        with pytest.raises(UnsupportedOperationError):
            await told(client, says("thanks", taskId=task.id))
    resumed = [each for each in await stage.log(task.id) if isinstance(each, events.TurnResumed)]
    assert [each.work.past[-1].reply for each in resumed] == [7, {"yes": True}]


async def test_a_message_that_comes_twice_answers_one_question(
    stage: Stage, tmp_path: Path, tokens: Path
) -> None:
    """Also at another gateway, which has not kept it: the guard takes one reply of an id."""
    replies = []
    async with agent_up(stage, tmp_path / "one", tokens) as at, sdk_client(*at, streaming=False) as client:
        task = await task_of(client, at_once(says("hello")))
        await asked(stage, task.id, "which?")
        replies.append(at_once(says("yes", taskId=task.id)))
        await told(client, replies[0])
        await asked(stage, task.id, "delete all of it?", round_=1)
        await stage.reaches(task.id, "turn.suspended", 2)
        [shown] = await told(client, replies[0])
        assert state(shown.task) == "input_required"
        assert shown.task.status.message.parts[0].text == "delete all of it?"
        other = says("no", taskId=task.id)
        other.message.message_id = replies[0].message.message_id
        with pytest.raises(InvalidParamsError, match="stands for another message"):
            await told(client, other)
    async with agent_up(stage, tmp_path / "two", tokens) as at, sdk_client(*at, streaming=False) as client:
        await told(client, replies[0])
        await stage.drained("CTL-c1")
        await told(client, at_once(says("no", taskId=task.id)))
        await answered(stage, task.id, "kept", round_=2)
    resumed = [each for each in await stage.log(task.id) if isinstance(each, events.TurnResumed)]
    assert [each.work.past[-1].reply for each in resumed] == ["yes", "no"]


async def test_a_caller_that_hangs_up_gives_its_place_back(
    stage: Stage, tmp_path: Path, tokens: Path
) -> None:
    limits = TokenLimits(streams=1, per_second=10_000)
    async with (
        agent_up(stage, tmp_path, tokens, limits=limits) as at,
        sdk_client(*at, streaming=False) as client,
        sdk_client(*at, streaming=False) as other,
    ):

        async def is_full() -> bool:
            try:
                await told(other, at_once(says("another")))
            except InternalError as full:
                return "open streams at most" in str(full)
            return False

        async def has_place() -> bool:
            return not await is_full()

        async def is_submitted() -> bool:
            return await stage.last_seq("LOG") > before

        before = await stage.last_seq("LOG")
        waiting = asyncio.create_task(told(client, says("first")))  # nobody answers it
        await eventually(is_submitted)
        assert await is_full()
        waiting.cancel()
        await eventually(has_place)


async def test_a_task_is_cancelled_once(stage: Stage, tmp_path: Path, tokens: Path) -> None:
    async with agent_up(stage, tmp_path, tokens) as at, sdk_client(*at) as client:
        task = await task_of(client, at_once(says("x")))
        await stage.reaches(task.id, "request.opened")
        assert state(await client.cancel_task(wire.CancelTaskRequest(id=task.id))) == "canceled"
        assert (await stage.types(task.id))[-1] == "request.cancelled"
        with pytest.raises(TaskNotCancelableError):
            await client.cancel_task(wire.CancelTaskRequest(id=task.id))


async def test_the_same_message_again_is_the_same_task_also_after_a_restart(
    echoing: Stage, tmp_path: Path, tokens: Path
) -> None:
    sent, found = says("pay"), set[str]()
    for _ in range(2):
        async with agent_up(echoing, tmp_path, tokens) as at, sdk_client(*at, streaming=False) as client:
            for task in await asyncio.gather(*(task_of(client, sent) for _ in range(4))):
                found.add(task.id)
                assert (state(task), task.context_id != "") == ("completed", True)
            other = says("pay twice", messageId=sent.message.message_id)
            with pytest.raises(InvalidParamsError, match="another task"):
                await task_of(client, other)
    (request,) = found
    assert (await echoing.types(request)).count("request.opened") == 1


async def test_a_task_of_another_client_is_not_found(echoing: Stage, tmp_path: Path, tokens: Path) -> None:
    async with agent_up(echoing, tmp_path, tokens) as at, sdk_client(*at, streaming=False) as client:
        mine = await task_of(client, says("x"))
        assert [each.id for each in (await client.list_tasks(wire.ListTasksRequest())).tasks] == [mine.id]
    async with agent_up(echoing, tmp_path, tokens, "c2") as at, sdk_client(*at) as client:
        assert not (await client.list_tasks(wire.ListTasksRequest())).tasks
        for id_ in (mine.id, "x", "c2_01JAZ00000000000000000000V", "c2_x"):
            with pytest.raises(TaskNotFoundError):
                await client.get_task(wire.GetTaskRequest(id=id_))
            with pytest.raises(TaskNotFoundError):
                await client.cancel_task(wire.CancelTaskRequest(id=id_))
            with pytest.raises(TaskNotFoundError):
                await told(client, says("x", taskId=id_))
            with pytest.raises(TaskNotFoundError):
                [each async for each in client.subscribe(wire.SubscribeToTaskRequest(id=id_))]


async def test_a_subscriber_gets_the_task_as_it_stands_and_then_its_news(
    stage: Stage, tmp_path: Path, tokens: Path
) -> None:
    async with agent_up(stage, tmp_path, tokens) as at, sdk_client(*at) as client:
        task = await task_of(client, at_once(says("x")))
        wanted, heard = wire.SubscribeToTaskRequest(id=task.id), list[wire.StreamResponse]()
        async for each in client.subscribe(wanted):
            heard.append(each)
            if len(heard) == 1:
                await answered(stage, task.id, "done")
        assert heard[0].task.id == task.id
        assert [state(heard[-1].status_update), heard[-2].artifact_update.artifact.parts[0].text] == [
            "completed",
            "done",
        ]
        with pytest.raises(UnsupportedOperationError, match="over"):
            [each async for each in client.subscribe(wanted)]


async def test_tasks_are_listed_by_pages(echoing: Stage, tmp_path: Path, tokens: Path) -> None:
    async with agent_up(echoing, tmp_path, tokens) as at, sdk_client(*at, streaming=False) as client:
        made = [(await task_of(client, says(f"{n}", contextId=f"k{n % 2}"))).id for n in range(5)]
        found, token = list[str](), ""
        while token or not found:
            page = await client.list_tasks(wire.ListTasksRequest(page_size=2, page_token=token))
            found += [each.id for each in page.tasks]
            token = page.next_page_token
            assert page.total_size == 5
        assert found == made[::-1]
        odd = await client.list_tasks(wire.ListTasksRequest(context_id="k1"))
        assert [each.id for each in odd.tasks] == [made[3], made[1]]
        for wanted, count in (("COMPLETED", 5), ("WORKING", 0)):
            asked_for = wire.ListTasksRequest(status=f"TASK_STATE_{wanted}")
            assert len((await client.list_tasks(asked_for)).tasks) == count
        for size in (-1, 0, 101):
            with pytest.raises(InvalidParamsError):
                await client.list_tasks(wire.ListTasksRequest(page_size=size))
        for odd_token in ("x", "9" * 40, "1.x'", "."):
            assert (await client.list_tasks(wire.ListTasksRequest(page_token=odd_token))).page_size == 50


async def test_other_ends_have_their_states_and_reasons(stage: Stage, tmp_path: Path, tokens: Path) -> None:
    async with agent_up(stage, tmp_path, tokens) as at, sdk_client(*at, streaming=False) as client:
        refused = await task_of(client, says("x", metadata={"policy": "nowhere"}))
        assert state(refused) == "rejected"
        assert "nowhere" in refused.status.message.parts[0].text
        failing = await task_of(client, at_once(says("x", metadata={"policy": "strict"})))
        agent = await stage.actor("a")
        await agent.propose(failing.id, await agent.work(failing.id), Fail(reason="no way"))
        await stage.reaches(failing.id, "request.failed")
        failed = await client.get_task(wire.GetTaskRequest(id=failing.id))
        assert (state(failed), "no way" in failed.status.message.parts[0].text) == ("failed", True)


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        ({"a": [1, "x", None, True]}, "data"),
        (None, "data"),
        (0, "data"),
        (2**53 + 1, "text"),
        ([[[[0]]]], "data"),
        ("words", "text"),
    ],
)
async def test_an_answer_comes_out_as_it_went_in(
    stage: Stage, tmp_path: Path, tokens: Path, answer: Any, kind: str
) -> None:
    async with agent_up(stage, tmp_path, tokens) as at, sdk_client(*at) as client:
        task = await task_of(client, at_once(says("x")))
        await answered(stage, task.id, answer)
        await stage.reaches(task.id, "request.completed")
        (part,) = (await client.get_task(wire.GetTaskRequest(id=task.id))).artifacts[0].parts
        assert part.WhichOneof("content") == kind
        shown = plain(part.data) if kind == "data" else part.text
        assert shown == (answer if kind == "data" or isinstance(answer, str) else str(answer))


@pytest.mark.parametrize("status", ["asks", "completed"])
def test_a_schema_or_an_answer_that_is_too_deep_or_too_large_goes_as_text(
    status: Literal["asks", "completed"],
) -> None:
    values: list[Any] = [{"maximum": 10**400}, {}]
    while len(values) < DEEPEST:
        values.append({"not": values[-1]})
    kinds = set()
    for value in values:
        asks = (QuestionDocument(n=3, agent="a", question="?", schema=value, expires_at=1),)
        questions = asks if status == "asks" else ()
        answer = value if status == "completed" else msgspec.UNSET
        told = RequestDocument(request=RequestId("c1_x"), status=status, questions=questions, answer=answer)
        sent = wire.ListTasksResponse(tasks=[document_task(told, "talk")])
        (read,) = ParseDict(plain(sent), wire.ListTasksResponse()).tasks
        shown = plain(read.status.message.metadata).get("schema")
        if status == "completed":
            (part,) = read.artifacts[0].parts
            shown = part.text or plain(part.data)
        kinds.add(type(shown))
        assert (msgspec.json.decode(shown) if isinstance(shown, str) else shown) == value
    assert kinds == {str, dict}


async def test_what_it_does_not_do_is_said(stage: Stage, tmp_path: Path, tokens: Path) -> None:
    async with agent_up(stage, tmp_path, tokens) as at, sdk_client(*at, streaming=False) as client:
        pushed = says("x")
        pushed.configuration.task_push_notification_config.url = "https://a.example"
        with pytest.raises(PushNotificationNotSupportedError):
            await told(client, pushed)
        raw = says("x")
        raw.message.parts.add(raw=b"bytes")
        with pytest.raises(ContentTypeNotSupportedError):
            await told(client, raw)
        for wrong in (
            says(""),
            says({"only": "data"}),
            says("x", [1]),
            says("x", role="ROLE_AGENT"),
            says("x", messageId="m" * 201),
            says("x", metadata={"to": 1}),
            says("x", {"text": "twice"}),
        ):
            with pytest.raises(InvalidParamsError):
                await told(client, wrong)
        url, token = at
        async with httpx.AsyncClient(base_url=url, headers=bearer(token)) as http:
            call = {"jsonrpc": "2.0", "id": 1, "method": "ListTasks", "params": {}}
            old = (await http.post("/a2a", json=call)).json()
            assert old["error"]["code"] == -32009  # without a version it is 0.3
            large = await http.post("/a2a", content=b" " * (UNLIMITED.body_kib * 1024 + 1))
            assert large.status_code == 413


async def test_a_url_becomes_an_artifact(stage: Stage, tmp_path: Path, tokens: Path) -> None:
    async with agent_up(stage, tmp_path, tokens) as at, sdk_client(*at) as client:
        sent = at_once(says("read it"))
        pdf = {"filename": "scan", "media_type": "application/pdf"}
        sent.message.parts.add(url="https://a.example/scan.pdf", **pdf)
        task = await task_of(client, sent)
        work = await (await stage.actor("a")).work(task.id)
        (artifact,) = work.handoff.artifacts
        assert (artifact.name, artifact.uri) == ("scan", "https://a.example/scan.pdf")
        assert artifact.media_type == "application/pdf"


async def test_streams_are_limited_and_a_revoked_token_ends_its_own(
    stage: Stage, tmp_path: Path, tokens: Path
) -> None:
    limits = TokenLimits(per_second=10_000, streams=1)
    async with (
        agent_up(stage, tmp_path, tokens, limits=limits, beat_s=0.05) as at,
        sdk_client(*at) as client,
    ):
        heard = client.send_message(says("x"))
        first = await anext(heard)
        with pytest.raises(InternalError, match="open streams"):
            await told(client, says("y"))
        (entry,) = read_tokens(tokens)
        revoke_token(tokens, entry.id)
        assert [each async for each in heard] == []
        assert first.task.id
