"""Following a request: what a turn does and says comes while it works; who comes late misses no truth."""

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest

from mesh.agent.definition import Agent
from mesh.agent.tools import tool
from mesh.agent.turn import Turn
from mesh.bus import reader
from mesh.bus.nats_protocol import Incoming
from mesh.bus.reader import StoredMessage
from mesh.client import Client, Outcome, Question
from mesh.client import follow as following
from mesh.client.follow import AgentNote, Following, JournalStep, LogEvent
from mesh.model.loop import drive
from mesh.model.port import Hear, Model, Prompt, Reply, ToolCall
from protocol.wire import subjects
from protocol.wire.events import type_of
from protocol.wire.moves import Move
from tests.guard.stage import Stage
from tests.servers import PATIENCE_S, eventually, until

CANARY = "canary-7c1f"
LOOK = Reply(text="I look it up.", calls=(ToolCall("1", "find", {"who": CANARY}),))
PIECES = ("It is ", "in the ", "attic.")
ANSWER = "".join(PIECES)


@tool
async def find(who: str) -> str:
    """Find somebody."""
    return f"{CANARY} found"


class Speaker(Model):
    """A model that looks something up, then waits until it may go on, and speaks in pieces."""

    mode = "speaker"

    def __init__(self) -> None:
        self.go_on = asyncio.Event()
        self.speaks = asyncio.Event()

    def go_on_when_heard(self, item: Any) -> None:
        if isinstance(item, AgentNote):
            self.go_on.set()

    async def reply(self, prompt: Prompt, hear: Hear | None = None) -> Reply:
        hear = hear or (lambda piece: None)
        if not prompt.transcript:
            hear(LOOK.text)
            return LOOK
        self.speaks.set()
        await self.go_on.wait()
        for piece in PIECES:
            hear(piece)
            await asyncio.sleep(0)
        return Reply(text=ANSWER)


@pytest.fixture
def speaker() -> Speaker:
    return Speaker()


@pytest.fixture
async def client(stage: Stage, speaker: Speaker) -> Client:
    async def handler(turn: Turn) -> Move:
        return await drive(turn, speaker, instructions="Help.", tools=[find])

    await stage.runtime(Agent("a", handler))
    return await stage.client()


async def everything(feed: Following, each: Callable[[Any], object] = lambda item: None) -> list[Any]:
    items = []
    async with asyncio.timeout(PATIENCE_S):
        async for item in feed:
            each(item)
            items.append(item)
    return items


def heard(items: list[Any]) -> list[tuple[str, ...]]:
    """Return the live notes, without what differs from run to run; text put together."""
    told: list[tuple[str, ...]] = []
    for item in items:
        if isinstance(item, AgentNote):
            note = item.note
            if note.kind == "text" and told and told[-1][0] == "text":
                told[-1] = ("text", told[-1][1] + note.text)
            elif note.kind == "text":
                told.append(("text", note.text))
            else:
                said = (note.what, note.name, note.state, note.move, note.to, note.failed)
                told.append((note.kind, *filter(None, said)))
    return told


async def test_steps_and_words_come_while_the_turn_runs_and_the_end_comes_last(
    client: Client, speaker: Speaker
) -> None:
    request = client.new_id()

    def go_on(item: Any) -> None:
        """Only what is shown *before* the turn's end lets the turn come to it."""
        if isinstance(item, AgentNote) and (item.note.what, item.note.state) == ("tool", "returned"):
            speaker.go_on.set()

    async with client.follow(request) as feed:
        await client.submit("Where is it?", request=request)
        items = await everything(feed, go_on)
    assert heard(items) == [
        ("began",),
        ("step", "model", "speaker", "called"),
        ("text", LOOK.text),
        ("step", "model", "speaker", "returned"),
        ("step", "tool", "find", "called"),
        ("step", "tool", "find", "returned"),
        ("step", "model", "speaker", "called"),
        ("text", ANSWER),
        ("step", "model", "speaker", "returned"),
        ("ended", "complete"),
    ]
    assert isinstance(items[-1], Outcome)
    assert items[-1].answer == ANSWER
    assert {item.agent for item in items[:-1]} == {"a"}
    assert [item.note.n for item in items[:-1]] == list(range(len(items) - 1))


async def test_no_argument_and_no_result_of_a_tool_is_shown(
    stage: Stage, client: Client, speaker: Speaker
) -> None:
    seen: list[Incoming] = []
    request = client.new_id()
    bus = await stage.bus("c1", "listening")
    await bus.subscribe("mesh.live.c1.>", seen.append)
    speaker.go_on.set()
    await client.submit("Where is it?", request=request)
    await client.wait(request, timeout_s=PATIENCE_S)
    await until(lambda: any(b'"ended"' in message.data for message in seen))
    assert not [message for message in seen if CANARY.encode() in message.data]


async def test_a_model_whose_words_are_for_nobody_is_not_heard(stage: Stage, speaker: Speaker) -> None:
    async def quiet(turn: Turn) -> Move:
        return await drive(turn, speaker, instructions="Help.", tools=[find], live=False)

    await stage.runtime(Agent("a", quiet))
    client = await stage.client()
    request = client.new_id()
    speaker.go_on.set()
    async with client.follow(request) as feed:
        await client.submit("Where is it?", request=request)
        items = await everything(feed)
    assert [each[0] for each in heard(items)] == ["began", *["step"] * 6, "ended"]


async def test_a_viewer_that_comes_late_gets_the_journal_first_and_then_the_rest(
    stage: Stage, client: Client, speaker: Speaker
) -> None:
    request = await client.submit("Where is it?")
    await asyncio.wait_for(speaker.speaks.wait(), PATIENCE_S)
    viewer = await stage.bus("audit")
    late = client.follow(request, viewer=viewer)
    steps = 0

    def go_on(item: Any) -> None:
        nonlocal steps
        steps += isinstance(item, JournalStep)
        if steps == 2:
            speaker.go_on.set()

    items = await everything(late, go_on)
    kinds = [type(item).__name__ for item in items]
    assert kinds[:3] == ["LogEvent", "JournalStep", "JournalStep"]
    journaled = [item.step for item in items if isinstance(item, JournalStep)]
    assert [(step.kind, step.name) for step in journaled] == [("model", "speaker"), ("call", "find")]
    assert heard(items) == [
        ("text", ANSWER),
        ("step", "model", "speaker", "returned"),
        ("ended", "complete"),
    ], "nothing is told twice"
    assert [type_of(item.event) for item in items if isinstance(item, LogEvent)] == [
        "request.opened",
        "facts.withheld",  # what the end rests on: it is not for the client
        "request.completed",
    ]
    assert kinds[-1] == "Outcome"


async def test_what_is_heard_while_the_journal_is_read_comes_after_it_and_once(
    stage: Stage, client: Client, speaker: Speaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    may_read = asyncio.Event()
    usual = reader.batch

    async def slow(*arguments: Any) -> list[StoredMessage]:
        await may_read.wait()
        return await usual(*arguments)

    monkeypatch.setattr(following, "batch", slow)
    request = client.new_id()
    async with client.follow(request, viewer=await stage.bus("audit")) as feed:
        await client.submit("Where is it?", request=request)
        await asyncio.wait_for(speaker.speaks.wait(), PATIENCE_S)
        await until(lambda: len(feed._early or ()) == 7)  # up to the second call of the model
        may_read.set()
        items = await everything(feed, speaker.go_on_when_heard)
    kinds = [type(item).__name__ for item in items]
    assert kinds[:3] == ["LogEvent", "JournalStep", "JournalStep"]
    assert heard(items) == [
        ("step", "model", "speaker", "called"),
        ("text", ANSWER),
        ("step", "model", "speaker", "returned"),
        ("ended", "complete"),
    ]


async def test_by_time_a_rounds_notes_stand_between_what_opened_it_and_what_it_led_to(stage: Stage) -> None:
    async def giving(turn: Turn) -> Move:
        await turn.call(find, who="Ada")
        if not turn.refusals:
            return turn.transfer("nobody", summary="refused, and another round of the same turn")
        return turn.transfer("b", summary="go on")

    async def ending(turn: Turn) -> Move:
        await turn.call(find, who="Ada")
        return turn.complete("done")

    # What is stored has the server's time; what is asked the guard's measure of it, a little off.
    for made in (Agent("a", giving, tools=(find,)), Agent("b", ending, tools=(find,))):
        (await stage.runtime(made))._executor._lane._close(PATIENCE_S)
    client = await stage.client()
    for _ in range(5):
        request = client.new_id()
        async with client.follow(request, viewer=await stage.bus("audit")) as feed:
            await until(lambda feed=feed: feed._early is None)  # type: ignore[misc]
            await client.submit("Where is it?", request=request)
            items = await everything(feed)
        items[:-1] = sorted(
            items[:-1], key=lambda item: item.event.at if isinstance(item, LogEvent) else item.note.at
        )
        told = [
            type_of(item.event)
            if isinstance(item, LogEvent)
            else (item.agent, item.note.round, item.note.kind, item.note.state)
            for item in items[:-1]
        ]

        def round_of(agent: str, round_: int) -> list[object]:
            steps = [("step", "called"), ("step", "returned")]
            return [(agent, round_, *each) for each in (("began", ""), *steps, ("ended", ""))]

        # Of round 1 nothing is shown, unless it takes long: its call stands in the journal already.
        assert [each for each in told if isinstance(each, str) or each[:2] != ("a", 1)] == [
            "request.opened",
            *round_of("a", 0),
            "move.refused",
            "handoff.admitted",
            *round_of("b", 0),
            "facts.withheld",
            "request.completed",
        ]


async def test_without_a_viewer_the_end_comes_after_the_last_words(
    client: Client, speaker: Speaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    usual = client.latest
    speaker.go_on.set()

    async def at_once(request: str) -> Any:
        event = await usual(request)
        while event is None:  # the end is known before anything else of the wire is looked at
            event = await usual(request)
        return event

    monkeypatch.setattr(client, "latest", at_once)
    for _ in range(5):
        request = client.new_id()
        async with client.follow(request) as feed:
            await client.submit("Where is it?", request=request)
            items = await everything(feed)
        assert heard(items)[-1] == ("ended", "complete")
        assert isinstance(items[-1], Outcome)


async def test_after_the_end_there_is_the_end(client: Client, speaker: Speaker) -> None:
    speaker.go_on.set()
    request = await client.submit("Where is it?")
    await client.wait(request, timeout_s=PATIENCE_S)
    (outcome,) = await everything(client.follow(request))
    assert outcome.answer == ANSWER
    assert client._wakes == {}


async def test_a_question_is_what_a_client_that_comes_late_is_told(stage: Stage) -> None:
    async def curious(turn: Turn) -> Move:
        return turn.complete(turn.reply) if turn.reply else turn.ask("Which colour?")

    await stage.runtime(Agent("a", curious))
    client = await stage.client()
    request = await client.submit("Paint it.")
    await stage.reaches(request, "turn.suspended")
    items: list[Any] = []
    async with asyncio.timeout(PATIENCE_S):
        async for item in client.follow(request):
            items.append(item)
            if isinstance(item, Question):
                await client.reply(item, "red")
    assert [item.question for item in items if isinstance(item, Question)] == ["Which colour?"]
    assert items[-1].answer == "red"


async def test_what_any_agent_may_put_there_does_no_harm(
    stage: Stage, client: Client, speaker: Speaker
) -> None:
    request = client.new_id()
    liar = await stage.bus("b")
    async with client.follow(request) as feed:
        for data in (
            b"",
            b"\xff\xfe",
            b"[]",
            json.dumps({"v": 1, "kind": "ended", "turn": "other"}).encode(),
        ):
            liar.send(subjects.live("c1", request, "b", "turn"), data)
        await liar.flush()
        speaker.go_on.set()
        await client.submit("Where is it?", request=request)
        items = await everything(feed)
    assert {item.agent for item in items if isinstance(item, AgentNote)} == {"a"}


async def test_a_failed_round_says_its_code_and_the_next_one_begins(stage: Stage) -> None:
    async def shaky(turn: Turn) -> Move:
        if not turn.failures:
            raise RuntimeError(CANARY)
        return turn.complete("done")

    await stage.runtime(Agent("a", shaky))
    client = await stage.client()
    request = client.new_id()
    async with client.follow(request) as feed:
        await client.submit("hello", request=request, policy="eager")
        items = await everything(feed)
    assert heard(items)[:2] == [("began",), ("ended", "bug")]
    assert [item.note.round for item in items if isinstance(item, AgentNote)][:2] == [0, 0]


async def test_leaving_early_leaves_nothing_behind(stage: Stage, client: Client, speaker: Speaker) -> None:
    request = await client.submit("Where is it?")
    async with client.follow(request, viewer=await stage.bus("audit")) as feed:
        async for _ in feed:
            break
    assert client._wakes == {}
    assert not feed._tasks
    speaker.go_on.set()

    async def ended() -> bool:
        return (await stage.types(request))[-1] == "request.completed"

    await eventually(ended)
