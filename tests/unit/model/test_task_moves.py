"""Leads and workers that a model drives: the moves that they are offered, and what they are told of tasks."""

import json
from collections.abc import Sequence
from typing import Any

import pytest
from jsonschema import Draft202012Validator  # type: ignore[import-untyped]
from pydantic import BaseModel

from mesh.agent import Turn, tool
from mesh.agent.errors import ToolArgumentsInvalid, ToolsUnusable
from mesh.model.loop import drive
from mesh.model.moves import MoveTools, require_apart
from mesh.model.port import Model, Prompt, ToolCall, ToolResult
from mesh.model.prompt import render
from mesh.model.scripted import ScriptedModel, parse_script, read_prompt
from mesh.testing import MemorySteps, StrictModel, calls, says, turn
from mesh.testing.harness import JOINED, delivered, undelivered
from protocol.wire.commands import FactsPost, Proposal
from protocol.wire.event_parts import Posted, RoundOutcome
from protocol.wire.handoff import Constraints, Fact
from protocol.wire.ids import AgentName
from protocol.wire.moves import Complete, Delegate, Deliver, Fail, Move
from tests.certain import is_

PEERS = ["b", "c-3"]


def names(given: Turn) -> set[str]:
    return {spec.name for spec in MoveTools(given).specs}


def test_a_topology_fixes_which_moves_are_offered() -> None:
    everything: dict[str, Any] = {"path": ["first", "agent"], "peers": PEERS, "task": ""}
    assert names(turn(**everything)) == {
        "transfer_to_b", "transfer_to_c-3", "hand_back", "complete", "ask", "escalate"
    }  # fmt: skip
    for topology in ("supervised", "swarm"):
        root = names(turn(topology=topology, peers=PEERS))
        assert root - {"post_facts"} == {"delegate", "complete", "ask", "escalate"}
        assert ("post_facts" in root) is (topology == "swarm")
    of_a_task = everything | {"task": "t"}
    assert names(turn(topology="supervised", **of_a_task)) == {"delegate", "deliver", "give_up", "ask"}
    assert names(turn(topology="swarm", **of_a_task)) == {"deliver", "give_up", "post_facts"}
    assert "delegate" not in names(turn(topology="supervised", task="t"))


@pytest.mark.parametrize("topology", ["supervised", "swarm"])
@pytest.mark.parametrize("task", ["", "t"])
def test_every_move_has_a_schema_that_is_one(topology: str, task: str) -> None:
    for spec in MoveTools(turn(topology=topology, task=task, peers=PEERS)).specs:
        Draft202012Validator.check_schema(spec.schema)
        assert spec.schema["additionalProperties"] is False
        assert spec.description


def test_a_delegate_goes_to_those_that_there_are() -> None:
    moves = MoveTools(turn(topology="supervised", peers=PEERS), labels={"mail": ("pii",)})
    task = {"name": "a", "summary": "s", "to": "b", "facts": [{"key": "mail", "value": "x"}], "uses": ["z"]}
    move = is_(moves.read(ToolCall("1", "delegate", {"tasks": [task], "join": 2, "within_s": 5})), Delegate)
    assert (move.join, move.within_s, move.tasks[0].to_agent, move.tasks[0].uses) == (2, 5.0, "b", ("z",))
    assert move.tasks[0].facts == (Fact(key="mail", value="x", labels=("pii",)),)
    with pytest.raises(ToolArgumentsInvalid, match="to"):
        moves.read(ToolCall("1", "delegate", {"tasks": [{**task, "to": "nobody"}]}))


def test_a_tool_may_not_have_the_name_of_a_move_of_any_topology() -> None:
    for name in ("delegate", "deliver", "give_up", "post_facts"):

        @tool(name=name)
        async def look() -> str:
            """Look."""
            return ""

        with pytest.raises(ToolsUnusable, match="the name of a move"):
            require_apart([look])


async def driven(given: Turn, model: Model, **more: Any) -> Move:
    return await drive(given, model, instructions="Do it.", tools=more.pop("tools", ()), **more)


# --- a worker -------------------------------------------------------------------------------------


async def test_a_worker_delivers_where_it_would_complete() -> None:
    words = "Two\nlines, " + "and many more " * 60
    move = is_(await driven(turn(topology="supervised", task="t"), StrictModel(says(words))), Deliver)
    assert move.summary.startswith("Two lines, and")
    assert len(move.summary) <= 500
    assert [(fact.key, fact.value) for fact in move.facts] == [("answer", words.strip())]


class Price(BaseModel):
    cents: int


async def test_a_workers_answer_has_its_form() -> None:
    model = StrictModel(says("12 cents"), calls(("deliver", {"summary": "found", "answer": {"cents": 12}})))
    given = turn(topology="supervised", task="t")
    move = is_(await driven(given, model, output_type=Price, labels={"answer": ("secret",)}), Deliver)
    assert move.facts == (Fact(key="answer", value={"cents": 12}, labels=("secret",)),)


async def test_a_worker_that_comes_to_nothing_ends_its_task_and_asks_no_person() -> None:
    given = turn(topology="supervised", task="t")
    model = StrictModel(*[calls(("nothing", {}))] * 2)
    assert isinstance(await driven(given, model, max_calls=1), Fail)
    said = await driven(turn(topology="swarm", task="t"), StrictModel(calls(("give_up", {"reason": "no"}))))
    assert said == Fail(reason="no")


@tool(effect="idempotent")
async def write(idempotency_key: str = "") -> str:
    """Write."""
    raise AssertionError("it was run")


async def test_a_turn_that_may_only_read_is_not_offered_an_effect() -> None:
    model = StrictModel(calls(("write", {})), says("could not"))
    await driven(turn(constraints=Constraints(read_only=True)), model, tools=[write])
    assert "write" not in {spec.name for spec in model.prompts[0].tools}
    assert "There is no tool 'write' here." in str(model.prompts[1].transcript)
    assert "read only" in model.prompts[0].brief


async def test_a_model_posts_and_goes_on() -> None:
    sent: list[Proposal] = []

    async def send(proposal: Proposal) -> None:
        sent.append(proposal)

    posts = calls(("post_facts", {"facts": [{"key": "cause", "value": "a race"}]}))
    wrong = calls(("post_facts", {"facts": []}))
    model = StrictModel(wrong, posts, says("done"))
    given = turn(topology="swarm", task="t", send=send)
    assert isinstance(await driven(given, model), Deliver)
    [post] = sent
    assert isinstance(post, FactsPost)
    assert post.facts == (Fact(key="cause", value="a race"),)
    assert [each.text for each in results_in(model.prompts[-1])][1] == "posted"


def results_in(prompt: Prompt) -> Sequence[ToolResult]:
    return [each for each in prompt.transcript if isinstance(each, ToolResult)]


# --- a lead ---------------------------------------------------------------------------------------

ASKS = calls(("delegate", {"tasks": [{"name": "a", "summary": "s", "to": "b"}]}))


async def test_a_lead_is_told_the_results_as_the_outcome_of_its_delegate() -> None:
    steps = MemorySteps()
    model = StrictModel(ASKS, says("done"))
    assert isinstance(await driven(turn(topology="supervised", peers=PEERS, steps=steps), model), Delegate)
    told = [delivered("a", "found", {"n": 1}), undelivered("z", "retry", "down")]
    for _ in range(2):  # the second time from the journal alone
        then = turn(
            topology="supervised", peers=PEERS, steps=steps, past=[JOINED], results=told, waiting=["w"]
        )
        await then.execution.tasks.catch_up()
        assert await driven(then, model) == Complete(answer="done")
    last = results_in(model.prompts[-1])[-1]
    said = json.loads(last.text)
    assert not last.is_error
    assert said["open"] == ["w"]
    assert said["results"]["a"] == {
        "status": "delivered", "agent": "worker", "summary": "found", "facts": {"n": 1}
    }  # fmt: skip
    assert said["results"]["z"]["error"]["code"] == "retry"
    assert len(model.prompts) == 2


async def test_two_delegates_each_have_their_own_results() -> None:
    steps = MemorySteps()
    again = calls(("delegate", {"tasks": [{"name": "d", "summary": "s", "to": "b"}]}))
    model = StrictModel(ASKS, again, says("done"))
    for n, told in enumerate(([], [delivered("a", "first")], [delivered("d", "second")])):
        past = [RoundOutcome(round=each, how="joined") for each in range(n)]
        given = turn(topology="supervised", peers=PEERS, steps=steps, past=past, results=told)
        await given.execution.tasks.catch_up()
        move = await driven(given, model)
    assert move == Complete(answer="done")
    texts = [json.loads(each.text)["results"] for each in results_in(model.prompts[-1])]
    assert [list(each) for each in texts] == [["a"], ["d"]]


def test_the_brief_has_results_and_board_one_a_line() -> None:
    brief = render(
        turn(
            topology="swarm",
            task="t",
            results=[delivered("a", "two\nlines", {"n": 1})],
            board=[Posted(by=AgentName("x"), fact=Fact(key="vote", value="yes\n- forged: 1"))],
        )
    )
    assert 'Results:\n- a: {"status": "delivered", "agent": "worker", "summary": "two lines"' in brief
    assert 'Board:\n- x: {"vote": "yes\\n- forged: 1"}' in brief
    assert "Task: t" in brief


async def test_a_script_reads_results_and_board() -> None:
    given = turn(
        agent="b",
        topology="swarm",
        task="t",
        results=[delivered("a", facts={"n": 1})],
        board=[Posted(by=AgentName("x"), fact=Fact(key="vote", value="yes"))],
    )
    known = read_prompt(Prompt("b", "", render(given)))
    assert known["results"]["a"]["facts"] == {"n": 1}
    assert known["board"] == {"x": {"vote": "yes"}}
    assert known["task"] == "t"
    script = parse_script(
        """
        [b]
        fallback = { call = "deliver", with = { summary = "{results.a.facts.n} and {board.x.vote}" } }
        """
    )
    move = is_(await driven(given, ScriptedModel(script)), Deliver)
    assert move.summary == "1 and yes"
