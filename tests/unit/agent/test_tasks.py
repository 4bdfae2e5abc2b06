"""What a lead and a worker know, whatever round and whatever instance it is."""

from typing import Any

import pytest
from pydantic import BaseModel

from mesh.agent import Agent, FactUnusable, Turn, agent, tool
from mesh.agent.errors import ActionNotAllowed, PostUnusable, failure_of
from mesh.testing import MemorySteps, turn
from mesh.testing.harness import JOINED, delivered, undelivered
from protocol.wire.commands import FactsPost, Proposal
from protocol.wire.event_parts import Posted, RoundOutcome
from protocol.wire.handoff import Constraints, Fact
from protocol.wire.ids import AgentName
from protocol.wire.moves import Delegate, Deliver, Move, Task
from tests.certain import is_


def joined(round_: int) -> RoundOutcome:
    return RoundOutcome(round=round_, how="joined")


@agent(name="agent")
async def lead(turn: Turn) -> Move:
    """Say what is known."""
    known = {name: each.summary or each.status for name, each in turn.results.items()}
    if not known:
        return turn.delegate([turn.task("a", summary="one", to="b")])
    return turn.complete(known)


def in_round(n: int, steps: MemorySteps, **more: Any) -> Turn:
    return turn(topology="supervised", past=[joined(each) for each in range(n)], steps=steps, **more)


async def known_to(given: Turn, code: Agent = lead) -> Any:
    return (await code(given)).answer  # type: ignore[union-attr]


# --- results --------------------------------------------------------------------------------------


async def test_a_later_round_of_another_instance_knows_what_each_round_was_told() -> None:
    steps = MemorySteps()
    assert isinstance(await lead(in_round(0, steps)), Delegate)
    assert await known_to(in_round(1, steps, results=[delivered("a", "first")])) == {"a": "first"}
    told = [delivered("b", "second"), undelivered("c", "retry")]
    assert await known_to(in_round(2, steps, results=told)) == {"a": "first", "b": "second", "c": "failed"}
    assert list(await known_to(in_round(3, steps))) == ["a", "b", "c"]


async def test_a_round_that_runs_again_records_nothing_twice() -> None:
    steps = MemorySteps()
    for _ in range(2):
        await lead(in_round(1, steps, results=[delivered("a")]))
        written = steps.written
    assert written == steps.written == 2  # the results, and the fence on round 0


async def test_a_round_after_a_refusal_finds_the_results_told_again_and_writes_them_once() -> None:
    steps = MemorySteps()
    await lead(in_round(1, steps, results=[delivered("a")]))
    before = {place for place in steps.steps if "-0" in place[2]}
    past = [joined(0), RoundOutcome(round=1, how="failed")]
    again = turn(topology="supervised", past=past, steps=steps, results=[delivered("a")])
    assert await known_to(again) == {"a": "delivered"}
    assert {place[2] for place in steps.steps if "-0" in place[2]} == {place[2] for place in before}


async def test_a_round_reads_of_each_earlier_one_little_more_than_it_recorded() -> None:
    class Counting(MemorySteps):
        reads = 0

        async def get(self, request: str, turn: str, name: str) -> bytes | None:
            self.reads += 1
            return await super().get(request, turn, name)

    steps = Counting()
    for n in range(1, 12):
        before = steps.reads
        await lead(in_round(n, steps, results=[delivered(f"t{n}")]))
    assert (
        steps.reads - before < 12 * 40
    )  # 16 places, each with a second name, have to be free behind the last


async def test_more_results_than_a_step_holds_are_recorded_in_parts() -> None:
    steps = MemorySteps()
    told = [delivered(f"t{n}", facts={"long": "x" * 60_000}) for n in range(9)]
    board = [Posted(by=AgentName("x"), fact=Fact(key="much", value="y" * 100_000))]
    await lead(in_round(1, steps, results=told, board=board, waiting=["w"]))
    assert list(await known_to(in_round(2, steps))) == [f"t{n}" for n in range(9)]
    again = in_round(2, steps)
    await lead(again)
    first = again.execution.tasks.news[1]
    assert (len(first.results), len(first.board), first.waiting) == (9, 1, ("w",))


async def test_a_request_without_tasks_journals_nothing_of_them() -> None:
    steps = MemorySteps()
    await lead(turn(steps=steps, past=[RoundOutcome(round=0, how="replied", reply=1)]))
    assert steps.written == 0


async def test_what_a_task_was_given_to_use_is_known_after_its_own_tasks_are_done() -> None:
    @agent(name="agent")
    async def middle(turn: Turn) -> Move:
        if "own" not in turn.results:
            return turn.delegate([turn.task("own", summary="x", to="b")])
        return turn.deliver("done", facts={name: each.summary for name, each in turn.results.items()})

    steps = MemorySteps()
    await middle(
        turn(topology="supervised", task="t", steps=steps, results=[delivered("given", "from above")])
    )
    assert steps.written == 1
    end = is_(await middle(in_round(1, steps, task="t", results=[delivered("own", "mine")])), Deliver)
    assert {fact.key: fact.value for fact in end.facts} == {"given": "from above", "own": "mine"}


async def test_a_task_that_only_uses_results_journals_nothing_of_them() -> None:
    steps = MemorySteps()
    await lead(turn(topology="supervised", task="t", steps=steps, results=[delivered("given")]))
    assert steps.written == 0


class Count(BaseModel):
    n: int


def test_a_result_is_read_as_a_type_and_a_failure_by_its_code() -> None:
    results = turn(
        topology="supervised",
        past=[JOINED],
        results=[delivered("a", facts={"count": Count(n=2)}), undelivered("b", "no_capable", "nobody")],
    ).results
    assert results["a"].delivered
    assert results["a"].fact("count", Count) == Count(n=2)
    assert results["a"].facts["count"] == {"n": 2}
    with pytest.raises(FactUnusable, match="no fact 'other' of task a: there are count"):
        results["a"].fact("other", Count)
    error = results["b"].error
    assert not results["b"].delivered
    assert error is not None
    assert (error.code, error.message, error.lineage) == ("no_capable", "nobody", ("worker",))


def test_a_result_that_is_not_there_is_answered_with_those_that_are() -> None:
    with pytest.raises(KeyError) as unknown:
        turn(topology="supervised", past=[JOINED], results=[delivered("search")]).results["serach"]
    assert str(unknown.value) == "no result 'serach': there are search; did you mean 'search'?"
    assert "did you mean" in failure_of(unknown.value).message


# --- moves ----------------------------------------------------------------------------------------


def test_a_delegate_says_what_was_asked_and_no_more() -> None:
    given = turn(topology="supervised")
    task = given.task("a", summary="two\nlines", to="b", facts={"k": 1}, carry=["text"], uses=["z"])
    assert task == Task(
        name="a",
        summary="two lines",
        to_agent=AgentName("b"),
        facts=(Fact(key="k", value=1),),
        carry=("text",),
        uses=("z",),
    )
    assert given.delegate([task], join=2, within_s=5, cancel=["old"]) == Delegate(
        tasks=(task,), join=2, within_s=5, cancel=("old",)
    )
    assert given.task("a", summary="x", intent="i").carry is None


# --- reading only ---------------------------------------------------------------------------------


@tool
async def look() -> str:
    """Look."""
    return "seen"


@tool(effect="idempotent")
async def pay(idempotency_key: str = "") -> str:
    """Pay."""
    raise AssertionError("it was run")


async def test_a_turn_that_may_only_read_runs_no_effect() -> None:
    given = turn(constraints=Constraints(read_only=True))
    assert given.read_only
    assert await given.call(look) == "seen"
    with pytest.raises(ActionNotAllowed, match="pay has an effect, and this turn may only read"):
        await given.call(pay)
    assert given.execution.report.actions == ("look",)


# --- the board ------------------------------------------------------------------------------------


async def test_a_post_is_made_once_however_often_the_code_runs() -> None:
    sent: list[Proposal] = []
    steps = MemorySteps()

    async def send(proposal: Proposal) -> None:
        sent.append(proposal)

    for past in ((), (), (RoundOutcome(round=0, how="failed"),)):
        given = turn(topology="swarm", task="t", steps=steps, send=send, past=past)
        await given.post({"cause": "off by one"})
        await given.post({"cause": "no: a race"})
    assert [(post.round, post.post) for post in sent if isinstance(post, FactsPost)] == [(0, 0), (0, 1)]


async def test_there_is_no_post_without_a_board_nor_of_what_nobody_can_read() -> None:
    with pytest.raises(PostUnusable, match="topology 'supervised' has no board"):
        await turn(topology="supervised").post({"a": 1})
    with pytest.raises(PostUnusable, match="nobody could read these facts"):
        await turn(topology="swarm").post([Fact(key="a", value=1), Fact(key="a", value=2)])


def test_the_board_is_read_by_agent_and_key() -> None:
    posted = [
        Posted(by=AgentName("x"), fact=Fact(key="vote", value=1)),
        Posted(by=AgentName("y"), fact=Fact(key="vote", value=2)),
    ]
    assert turn(topology="swarm", board=posted).board == {"x": {"vote": 1}, "y": {"vote": 2}}
