"""Graphs of LangGraph: calls in their nodes are steps, their models' handoffs moves, interrupts questions."""

import asyncio
from collections.abc import Callable
from typing import Annotated, Any

import msgspec
import pytest
from langchain_core.language_models.fake_chat_models import FakeListChatModel
from langchain_core.messages import HumanMessage, ToolMessage
from langchain_core.tools import InjectedToolCallId, tool
from langgraph.graph import MessagesState, StateGraph
from langgraph.prebuilt import InjectedState
from langgraph.types import Command, interrupt
from typing_extensions import TypedDict

from mesh.adapters import current_turn, idempotency_key
from mesh.adapters.langgraph import mesh_agent
from mesh.agent import Agent as MeshAgent
from mesh.agent import Budget, BudgetExhausted, Constraints, Permanent, Turn
from mesh.agent._telemetry import LiveOutput
from mesh.agent.errors import EffectUnknown
from mesh.model.loop import ModelGaveUp
from mesh.model.vendor import ModelRefused, ModelRetry
from mesh.replay.code import Replayer
from mesh.testing import MemorySteps, turn
from protocol.wire.moves import Complete
from protocol.wire.records import LiveNote
from tests.adapters.langgraph_script import PowerCut, Script, calls, graph, look, node, script
from tests.adapters.walk import walked
from tests.logs import captured_logs

# --- steps ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_async", [True, False], ids=["async", "in-threads"])
async def test_what_is_recorded_is_neither_asked_nor_done_again(is_async: bool) -> None:
    model, paid, journal = script(calls(("refund", {"cents": 5})), "Done."), list[str](), MemorySteps()

    async def pay(cents: int) -> str:
        """Pay money back."""
        paid.append(idempotency_key())
        return f"refunded {cents}"

    def pay_in_a_thread(cents: int) -> str:
        """Pay money back."""
        paid.append(idempotency_key())
        return f"refunded {cents}"

    refund = tool("refund")(pay if is_async else pay_in_a_thread)
    made = mesh_agent("billing", graph(model, refund, is_async=is_async), effects={"refund": "once"})
    for _ in range(2):
        given = turn(agent="billing", steps=journal)
        move = await made(given)
        assert isinstance(move, Complete)
        assert move.answer == "Done."
        assert given.execution.report.usage.model_calls == 2
    assert len(paid) == 1
    assert paid[0]
    assert len(model.asked) == 2
    assert model.told == ["refunded 5"]


async def test_outside_of_a_turn_models_and_tools_are_what_they_were() -> None:
    model = script(calls(("look", {})), "Done.")
    mesh_agent("a", graph(model, look))
    state = await graph(model, look).ainvoke({"messages": [HumanMessage("Look")]})
    assert state["messages"][-1].text == "Done."
    assert graph(script("Done.")).invoke  # nothing is wrapped


async def test_a_result_is_the_same_for_the_model_when_it_is_recorded() -> None:
    @tool(response_format="content_and_artifact")
    def find() -> tuple[str, dict[str, int]]:
        """Find."""
        return "here", {"number": 7}

    model, journal = script(calls(("find", {})), PowerCut(), "Done."), MemorySteps()
    made = mesh_agent("a", graph(model, find))
    with pytest.raises(PowerCut):
        await made(turn(steps=journal))
    await made(turn(steps=journal))
    first, second = ([each for each in asked if isinstance(each, ToolMessage)] for asked in model.asked[-2:])
    assert [(each.content, each.artifact) for each in first] == [("here", {"number": 7})]
    assert [(each.content, each.artifact) for each in second] == [("here", {"number": 7})]


async def test_a_tool_can_send_the_graph_on_and_see_its_state() -> None:
    seen = list[int]()

    @tool
    def finish(
        how: str, state: Annotated[dict[str, Any], InjectedState], call: Annotated[str, InjectedToolCallId]
    ) -> Command[Any]:
        """Finish."""
        seen.append(len(state["messages"]))
        return Command(update={"messages": [ToolMessage(how, tool_call_id=call)]})

    model, journal = script(calls(("finish", {"how": "well"})), "Done."), MemorySteps()
    made = mesh_agent("a", graph(model, finish), effects={"finish": "once"})
    for _ in range(2):
        await made(turn(steps=journal))
    assert seen == [2]
    assert model.told == ["well"]


async def test_reads_run_at_the_same_time_and_effects_in_the_order_of_their_calls() -> None:
    done, both, journal = list[str](), asyncio.Barrier(2), MemorySteps()

    @tool
    async def read(what: str) -> str:
        """Read."""
        async with asyncio.timeout(60):
            await both.wait()
        done.append(f"read {what}")
        return what

    @tool
    def write(what: str) -> str:
        """Write."""
        done.append(f"write {what}")
        return what

    wanted = calls(
        ("read", {"what": "a"}), ("read", {"what": "b"}), ("write", {"what": "c"}), ("write", {"what": "d"})
    )
    model = script(wanted, "Done.")
    made = mesh_agent("a", graph(model, read, write), effects={"write": "idempotent"})
    for _ in range(2):
        await made(turn(steps=journal))
    assert sorted(done[:2]) == ["read a", "read b"]
    assert done[2:] == ["write c", "write d"]


async def test_what_a_tool_calls_is_part_of_its_step() -> None:
    inner = script("the order is 7")

    @tool
    async def find() -> str:
        """Find."""
        return str((await inner.ainvoke("Which order?")).text)

    model, journal = script(calls(("find", {})), "Done."), MemorySteps()
    given = turn(steps=journal)
    await mesh_agent("a", graph(model, find))(given)
    assert given.execution.report.usage.model_calls == 2
    assert given.execution.report.actions == ("find",)


async def test_an_effect_that_raises_is_unknown_and_arguments_that_do_not_fit_are_not() -> None:
    @tool
    def refund(cents: int) -> str:
        """Pay money back."""
        raise KeyError("the bank is gone")

    def made(*replies: Any) -> tuple[Script, MeshAgent]:
        model = script(*replies)
        return model, mesh_agent("a", graph(model, refund), effects={"refund": "idempotent"})

    with pytest.raises(EffectUnknown, match="refund raised KeyError"):
        await made(calls(("refund", {"cents": 5})))[1](turn())
    model, agent = made(calls(("refund", {"cents": "many"})), "Sorry.")
    await agent(turn())
    assert "cents" in model.told[0]


async def test_an_async_node_that_blocks_is_told_what_to_call() -> None:
    async def think(state: MessagesState) -> dict[str, Any]:
        return {"messages": [script("Done.").invoke(state["messages"])]}

    with pytest.raises(Permanent, match="ainvoke"):
        await mesh_agent("a", node(think))(turn())


async def test_nodes_and_tools_see_the_turn_and_the_prompt_may_be_a_state() -> None:
    class Order(TypedDict):
        number: int
        said: str

    def think(state: Order) -> dict[str, Any]:
        return {"said": f"{current_turn().agent} has order {state['number']}"}

    made = mesh_agent(
        "a",
        node(think, Order),
        prompt=lambda turn: {"number": turn.facts["order"]},
        answer=lambda state: state["said"],
    )
    move = await made(turn(agent="a", facts={"order": 7}))
    assert isinstance(move, Complete)
    assert move.answer == "a has order 7"


# --- what a turn may do ---------------------------------------------------------------------------


def test_what_is_no_compiled_graph_is_refused_at_once() -> None:
    with pytest.raises(TypeError, match="not a StateGraph: compile it"):
        mesh_agent("a", StateGraph(MessagesState))  # type: ignore[arg-type]


async def test_an_answer_that_is_refused_needs_messages_to_say_so() -> None:
    class Order(TypedDict):
        said: str

    made = mesh_agent("a", node(lambda _: {"said": "Yes."}, Order), prompt=lambda _: {"said": ""})
    journal = MemorySteps()
    move = await made(turn(agent="a", steps=journal))
    with pytest.raises(Permanent, match="size refused complete"):
        await made(turn(agent="a", steps=journal, refused=[(move, "size")]))


async def test_a_tool_that_the_turn_may_not_call_is_not_offered() -> None:
    @tool
    def refund() -> str:
        """Pay back."""
        return "refunded"

    model = script("Done.")
    made = mesh_agent("a", graph(model, look, refund), effects={"refund": "once"})
    await made(turn(constraints=Constraints(allowed_actions=("look",))))
    assert model.offered == [["look"]]


async def test_an_effect_of_a_tool_that_no_model_was_offered_is_warned_about_once() -> None:
    made = mesh_agent("misspelt", graph(script("Done.", "Done."), look), effects={"lok": "once"})
    with captured_logs() as logs:
        for _ in range(2):
            await made(turn(agent="misspelt"))
    (line,) = (line for line in logs if line["event"] == "effects_unknown")
    assert (line["agent"], line["names"], line["tools"]) == ("misspelt", ["lok"], ["look"])


async def test_tokens_are_counted_and_a_budget_ends_the_turn() -> None:
    given = turn(constraints=Constraints(budget=Budget(model_calls=1)))
    with pytest.raises(BudgetExhausted):
        await mesh_agent("a", graph(script(calls(("look", {})), "Done."), look))(given)
    second = turn()
    await mesh_agent("a", graph(script("Done.")))(second)
    assert second.execution.report.usage.tokens == 10


async def test_the_client_reads_along_but_not_twice() -> None:
    def streamed(given: Turn) -> Callable[[], str]:
        notes = list[LiveNote]()
        execution = given.execution
        execution.live = LiveOutput(
            lambda _, body: notes.append(msgspec.json.decode(body, type=LiveNote)), execution.key
        )

        def text() -> str:
            execution.live.close()
            return "".join(note.text for note in notes if note.kind == "text")

        return text

    for is_async in (True, False):
        journal = MemorySteps()
        model = FakeListChatModel(responses=["It is in Oslo."])
        made = mesh_agent("a", graph(model, is_async=is_async))
        for expected in ("It is in Oslo.", ""):
            given = turn(steps=journal)
            text = streamed(given)
            await made(given)
            assert text() == expected


# --- replay ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_async", [True, False], ids=["async", "in-threads"])
async def test_a_replay_of_the_code_comes_to_the_same_and_calls_nothing(is_async: bool) -> None:
    paid = list[int]()

    @tool
    def refund(cents: int) -> str:
        """Pay money back."""
        if interrupt("Sure?"):
            paid.append(cents)
        return "refunded"

    model = script(calls(("refund", {"cents": 5})), "Done.")
    made = mesh_agent("billing", graph(model, refund, is_async=is_async), effects={"refund": "once"})
    walk = await walked(made, replies=[True])
    found = await Replayer({"billing": made}, walk.recording).replay(walk.guard.bodies)
    assert [(each.round, each.result, each.why) for each in found] == [(0, "same", ""), (1, "same", "")]
    assert (paid, len(model.asked)) == ([5], 2)


# --- failures -------------------------------------------------------------------------------------


class StatusError(Exception):
    """As an SDK's error with an HTTP status."""

    def __init__(self, status_code: int) -> None:
        super().__init__(f"status {status_code}")
        self.status_code = status_code


@pytest.mark.parametrize(("status", "kind"), [(400, ModelRefused), (503, ModelRetry)])
async def test_an_error_of_the_model_says_whether_trying_again_helps(
    status: int, kind: type[Exception]
) -> None:
    with pytest.raises(kind, match=f"status {status}"):
        await mesh_agent("a", graph(script(StatusError(status))))(turn())


async def test_a_throttled_model_is_asked_again_in_the_same_round() -> None:
    move = await mesh_agent("a", graph(script(StatusError(429), "Done.")))(turn())
    assert isinstance(move, Complete)


async def test_a_retry_of_the_graphs_own_does_not_hide_a_failure() -> None:
    """It would take another way when the round runs again: the guard tries once more instead."""
    model = script(StatusError(503), "Done.")

    async def think(state: MessagesState) -> dict[str, Any]:
        bold = model.with_retry(stop_after_attempt=3, wait_exponential_jitter=False)
        return {"messages": [await bold.ainvoke(state["messages"])]}

    with pytest.raises(ModelRetry):
        await mesh_agent("a", node(think))(turn())
    assert len(model.asked) == 1


async def test_a_limit_of_the_sdks_own_ends_the_turn_for_good() -> None:
    model = script(*(calls(("look", {})) for _ in range(20)))
    made = mesh_agent("a", graph(model, look), config={"recursion_limit": 6})
    with pytest.raises(ModelGaveUp, match="limit of 6"):
        await made(turn())
