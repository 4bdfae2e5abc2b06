"""Questions of one request stand side by side: each is heard once, and answered by its own number."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from mesh.client import Client, Question
from mesh.client.follow import Replying
from mesh.errors import Impossible, UsageWrong
from mesh.ops import decisions, queue
from protocol.wire.commands import ReplyToAsk
from protocol.wire.event_parts import Assignment
from protocol.wire.ids import AgentName, RequestId
from protocol.wire.moves import Ask, Complete, Delegate, Deliver, Task
from tests.guard.stage import Stage
from tests.servers import PATIENCE_S, eventually, until

WORKERS = ("b", "c", "d")
DONE = Complete(answer="done")


def question_of(worker: str) -> str:
    return f"question of {worker}"


class Tree:
    """A request whose lead has given each worker a task."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self.request = RequestId("")
        self.works: dict[str, Assignment] = {}

    async def begin(self, client: Client, workers: Sequence[str] = WORKERS) -> "Tree":
        lead = await self.stage.actor("a", served=True)
        actors = {name: await self.stage.actor(name, served=True) for name in workers}
        self.request = await client.submit("ask me", policy="tree")
        tasks = tuple(Task(name=name, summary=name, to_agent=AgentName(name)) for name in workers)
        await lead.propose(self.request, await lead.work(self.request), Delegate(tasks=tasks))
        self.works = {name: await actor.work(self.request) for name, actor in actors.items()}
        return self

    async def asks(self, *workers: str, whom: str = "c1", expires_s: float | None = None) -> None:
        """Let these workers ask, one after the other."""
        before = (await self.stage.types(self.request)).count("turn.suspended")
        for count, name in enumerate(workers, before + 1):
            ask = Ask(to_agent=AgentName(whom), question=question_of(name), expires_s=expires_s)
            await (await self.stage.actor(name)).propose(self.request, self.works[name], ask)
            await self.stage.reaches(self.request, "turn.suspended", count)

    async def replies(self, *workers: str) -> list[Any]:
        """Return the reply that each worker got."""
        works = [await (await self.stage.actor(name)).work(self.request, round_=1) for name in workers]
        return [work.past[-1].reply for work in works]

    async def finish(self) -> None:
        for name in self.works:
            actor = await self.stage.actor(name)
            await actor.propose(self.request, await actor.work(self.request, round_=1), Deliver(summary=name))
        lead = await self.stage.actor("a")
        await lead.propose(self.request, await lead.work(self.request, round_=1), DONE)


@pytest.fixture
async def tree(stage: Stage) -> Tree:
    return await Tree(stage).begin(await stage.client())


async def again(stage: Stage, name: str) -> Client:
    """Return the client as a process that was started anew has it."""
    return await Client.on(await stage.bus("c1", name), "c1")


async def listed(client: Client, request: RequestId, *workers: str) -> tuple[Question, ...]:
    """Wait until exactly these workers' questions are open; return them."""

    async def shown() -> bool:
        return [each.agent for each in await client.questions(request)] == list(workers)

    await eventually(shown, PATIENCE_S)
    return await client.questions(request)


async def test_workers_that_ask_at_the_same_time_each_get_their_own_reply(stage: Stage, tree: Tree) -> None:
    client, heard, release = await stage.client(), list[str](), asyncio.Event()

    async def answer(question: Question) -> str:
        heard.append(question.question)
        await release.wait()
        return f"to {question.agent}"

    await tree.asks("b", "c")
    waiting = asyncio.create_task(client.wait(tree.request, timeout_s=PATIENCE_S, on_question=answer))
    await until(lambda: len(heard) == 2)
    await tree.asks("d")
    await until(lambda: len(heard) == 3)
    release.set()
    assert await tree.replies(*WORKERS) == ["to b", "to c", "to d"]
    await tree.finish()
    assert (await waiting).answer == "done"
    assert heard == [question_of(name) for name in WORKERS]


async def test_a_third_question_comes_while_one_is_open_and_one_was_answered(
    stage: Stage, tree: Tree
) -> None:
    client, heard, slow = await stage.client(), list[str](), asyncio.Event()

    async def answer(question: Question) -> str:
        heard.append(question.agent)
        if question.agent == "b":
            await slow.wait()
        return f"to {question.agent}"

    waiting = asyncio.create_task(client.wait(tree.request, timeout_s=PATIENCE_S, on_question=answer))
    await tree.asks("b", "c")
    assert await tree.replies("c") == ["to c"]
    await tree.asks("d")
    assert await tree.replies("d") == ["to d"]
    slow.set()
    assert await tree.replies("b") == ["to b"]
    await tree.finish()
    await waiting
    assert sorted(heard) == ["b", "c", "d"]


async def test_a_client_that_is_started_anew_hears_what_is_open_and_nothing_else(
    stage: Stage, tree: Tree
) -> None:
    first, heard = await stage.client(), list[str]()

    async def only_c(question: Question) -> str:
        if question.agent != "c":
            await asyncio.get_running_loop().create_future()
        return "early"

    dies = asyncio.create_task(first.wait(tree.request, on_question=only_c))
    await tree.asks("b", "c", "d")
    assert await tree.replies("c") == ["early"]
    dies.cancel()
    await asyncio.wait({dies})

    async def answer(question: Question) -> str:
        heard.append(question.agent)
        return f"to {question.agent}"

    second = await again(stage, "second")
    await listed(second, tree.request, "b", "d")
    waiting = asyncio.create_task(second.wait(tree.request, timeout_s=PATIENCE_S, on_question=answer))
    assert await tree.replies("b", "d") == ["to b", "to d"]
    await tree.finish()
    assert (await waiting).answer == "done"
    assert sorted(heard) == ["b", "d"]


async def test_a_question_that_expired_is_neither_listed_nor_heard(stage: Stage, tree: Tree) -> None:
    client = await stage.client()
    await tree.asks("b", expires_s=0.2)
    await tree.asks("c")
    assert await tree.replies("b") == [None]
    (left,) = await listed(await again(stage, "second"), tree.request, "c")
    assert left.question == question_of("c")
    await client.reply(left, "yes")
    assert await tree.replies("c") == ["yes"]
    assert await listed(client, tree.request) == ()


async def test_a_question_that_was_answered_elsewhere_is_taken_back(stage: Stage, tree: Tree) -> None:
    client, asked, over = await stage.client(), list[str](), list[str]()

    async def nothing(question: Question) -> None:
        asked.append(question.agent)
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            over.append(question.agent)

    waiting = asyncio.create_task(client.wait(tree.request, on_question=nothing))
    await tree.asks("b", "c")
    await until(lambda: sorted(asked) == ["b", "c"])
    other = await again(stage, "other")
    await other.reply((await other.questions(tree.request))[0], "from elsewhere")
    await until(lambda: over == ["b"])
    assert asked == ["b", "c"]
    waiting.cancel()
    await asyncio.wait({waiting})


async def test_what_keeps_a_reply_from_being_given_ends_the_wait(stage: Stage, tree: Tree) -> None:
    async def breaks(question: Question) -> str:
        raise RuntimeError(question.agent)

    await tree.asks("b", "c")
    with pytest.raises(RuntimeError):
        await (await stage.client()).wait(tree.request, timeout_s=PATIENCE_S, on_question=breaks)


async def test_following_gives_out_each_question_once(stage: Stage, tree: Tree) -> None:
    client, heard = await stage.client(), list[str]()
    async with client.follow(tree.request) as feed:
        await tree.asks("b", "c", "d")
        async for item in feed:
            if isinstance(item, Question):
                heard.append(item.agent)
                await client.reply(item, item.agent)
            if len(heard) == 3:
                break
    assert sorted(heard) == list(WORKERS)
    assert await tree.replies(*WORKERS) == list(WORKERS)


async def test_people_who_are_asked_twice_say_which_one_they_answer(stage: Stage, tree: Tree) -> None:
    op = await stage.bus("op")
    await tree.asks("b", "c", whom="human")
    waiting = (await queue.queue(op)).waiting
    ours = [each for each in waiting if each.request == tree.request]
    assert [each.summary for each in ours] == [question_of("b"), question_of("c")]
    shown = await queue.waiting_at(op, tree.request, ours[1].n)
    assert (shown.waiting.summary, [each.summary for each in shown.others]) == (
        question_of("c"),
        [question_of("b")],
    )

    async def reply(value: str, n: int | None) -> None:
        await decisions.reply(
            op, tree.request, value, by="kim", check=lambda *_: None, connect_as=no_key, n=n
        )

    with pytest.raises(UsageWrong, match=f"--event {ours[0].n}.*--event {ours[1].n}"):
        await reply("yes", None)
    await reply("for c", ours[1].n)
    assert await tree.replies("c") == ["for c"]
    with pytest.raises(Impossible):
        await reply("again", ours[1].n)
    await tree.asks("d", whom="human")
    await reply("for b", ours[0].n)
    await reply("for d", None)
    assert await tree.replies("b", "d") == ["for b", "for d"]
    await tree.finish()


async def no_key(client: str) -> None:
    return None


async def test_a_client_replies_by_the_events_number_when_it_was_asked_twice(
    stage: Stage, tree: Tree
) -> None:
    own = await stage.bus("c1", "by hand")
    await tree.asks("b", "c")
    _, second = await listed(await stage.client(), tree.request, "b", "c")

    async def reply(n: int | None) -> None:
        await decisions.reply(
            own, tree.request, "yes", by="kim", check=lambda *_: None, connect_as=no_key, n=n
        )

    with pytest.raises(UsageWrong, match="2 decisions"):
        await reply(None)
    await reply(second.n)
    assert await tree.replies("c") == ["yes"]
    await listed(await stage.client(), tree.request, "b")
    await reply(None)
    assert await tree.replies("b") == ["yes"]


async def test_a_guard_that_wakes_late_does_not_bring_an_answered_question_back(
    stage: Stage, tree: Tree
) -> None:
    from mesh.bus import stores

    client, guard = await stage.client(), await stage.bus("guard", "late")
    await tree.asks("b", "c")
    await listed(client, tree.request, "b", "c")
    old = await stores.read_questions(await stage.bus("c1"), "c1", tree.request)
    assert old is not None
    op = ReplyToAsk(id="r", turn=tree.works["b"].turn, round=0, value="yes")
    await stage.control(tree.request, op, "c1")
    await listed(client, tree.request, "c")
    await stores.show_questions(guard, "c1", tree.request, old)
    await listed(client, tree.request, "c")


async def test_replying_hears_no_question_twice() -> None:
    heard = list[int]()

    async def answer(question: Question) -> str:
        heard.append(question.n)
        return "yes"

    class Mute:
        async def reply(self, question: Question, value: Any) -> None: ...

    def asked(n: int) -> Question:
        return Question(RequestId("r"), f"t{n}", 0, "?", None, 0, "a", n)

    async with Replying(Mute(), answer) as replying:  # type: ignore[arg-type]
        for questions in ([asked(1)], [asked(1), asked(2)], [asked(2)], [asked(2), asked(3)]):
            await replying.take(questions)
            await asyncio.gather(*replying.tasks)
    assert heard == [1, 2, 3]
