"""Agents of Pydantic AI: their calls are steps, their handoffs moves, their approvals questions."""

from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from pydantic import BaseModel
from pydantic_ai import (
    Agent,
    ModelMessage,
    ModelResponse,
    ModelRetry,
    RunContext,
    TextPart,
    ToolReturn,
    UsageLimits,
)
from pydantic_ai.capabilities import ModelFallback
from pydantic_ai.exceptions import ModelHTTPError, ModelRateLimitError, ModelRequestRejectedError
from pydantic_ai.messages import ToolReturnPart, UserPromptPart
from pydantic_ai.models.fallback import FallbackModel
from pydantic_ai.models.function import AgentInfo, FunctionModel
from pydantic_ai.models.test import TestModel

from mesh.adapters import current_turn, idempotency_key
from mesh.adapters.pydantic_ai import mesh_agent
from mesh.agent import Budget, BudgetExhausted, Constraints, ToolRefused, Turn
from mesh.agent._telemetry import LiveOutput
from mesh.agent.errors import EffectUnknown, ToolsUnusable
from mesh.agent.hooks import Hooks
from mesh.model.loop import ModelGaveUp
from mesh.model.vendor import ModelRefused
from mesh.model.vendor import ModelRetry as AskAgain
from mesh.replay.code import Replayer
from mesh.testing import MemorySteps, turn
from protocol.wire.moves import Complete
from protocol.wire.records import LiveNote
from tests.adapters.pydantic_script import PowerCut, Script, look, refund, with_approval
from tests.adapters.walk import walked

# --- steps ----------------------------------------------------------------------------------------


async def test_what_is_recorded_is_neither_asked_nor_done_again() -> None:
    script, paid, journal = Script(("refund", {"cents": 5}), "Done."), list[str](), MemorySteps()
    existing = Agent(script.model)

    @existing.tool_plain
    def refund(cents: int) -> str:
        paid.append(idempotency_key())
        return f"refunded {cents}"

    made = mesh_agent("billing", existing, effects={"refund": "once"})
    for _ in range(2):
        assert (await made(turn(agent="billing", steps=journal))).answer == "Done."  # type: ignore[union-attr]
    assert len(paid) == 1
    assert paid[0]
    assert len(script.asked) == 2
    assert script.told == ["refunded 5"]


async def test_a_result_is_the_same_for_the_model_when_it_is_recorded() -> None:
    class Order(BaseModel):
        number: int

    def find() -> Order:
        return Order(number=7)

    def picture() -> ToolReturn:
        return ToolReturn("shown", content="what it shows", metadata={"by": "camera"})

    script, journal = Script(("find", {}), ("picture", {}), PowerCut(), "Done."), MemorySteps()
    made = mesh_agent("a", Agent(script.model, tools=[find, picture]))
    with pytest.raises(PowerCut):
        await made(turn(steps=journal))
    await made(turn(steps=journal))
    first, second = (
        [
            (part.content, getattr(part, "metadata", None))
            for message in asked
            for part in message.parts
            if isinstance(part, ToolReturnPart | UserPromptPart)
        ]
        for asked in script.asked[-2:]
    )
    assert first == second
    assert first[1:] == [({"number": 7}, None), ("shown", {"by": "camera"}), ("what it shows", None)]


async def test_a_tools_wish_for_other_arguments_is_recorded() -> None:
    journal, tried = MemorySteps(), list[int]()
    script = Script(("find", {"number": 1}), ("find", {"number": 2}), "Found.")
    existing = Agent(script.model)

    @existing.tool_plain
    def find(number: int) -> str:
        tried.append(number)
        if number == 1:
            raise ModelRetry("there is no order 1")
        return "here"

    made = mesh_agent("a", existing)
    for _ in range(2):
        await made(turn(steps=journal))
    assert tried == [1, 2]
    assert "there is no order 1" in str(script.told[0])


async def test_an_effect_that_takes_too_long_is_unknown_and_not_tried_again_at_once() -> None:
    script = Script(("refund", {}), "Done.")
    existing = Agent(script.model)

    @existing.tool_plain(timeout=0.01)
    async def refund() -> str:
        raise TimeoutError

    made = mesh_agent("a", existing, effects={"refund": "idempotent"})
    with pytest.raises(EffectUnknown, match="took too long"):
        await made(turn())


async def test_what_a_tool_raises_ends_the_round() -> None:
    script = Script(("find", {}))
    existing = Agent(script.model)

    @existing.tool_plain
    def find() -> str:
        raise KeyError("no such order")

    with pytest.raises(KeyError, match="no such order"):
        await mesh_agent("a", existing)(turn())


async def test_tools_and_instructions_see_the_turn() -> None:
    script = Script(("find", {}), "Done.")
    existing = Agent(script.model, deps_type=str)

    @existing.instructions
    def who() -> str:
        return f"The customer is {current_turn().facts['customer']}."

    @existing.tool
    def find(ctx: RunContext[str]) -> str:
        return f"{ctx.deps}: {current_turn().facts['customer']}"

    made = mesh_agent("a", existing, deps=lambda turn: turn.agent)
    await made(turn(agent="a", facts={"customer": "Ada"}))
    assert script.told == ["a: Ada"]
    assert script.asked[0][0].instructions == "The customer is Ada."  # type: ignore[union-attr]


async def test_the_turn_of_a_tool_only_reads() -> None:
    async def find() -> str:
        await current_turn().remark("found")
        return "found"

    with pytest.raises(RuntimeError, match="a tool is a step itself"):
        await mesh_agent("a", Agent(Script(("find", {})).model, tools=[find]))(turn())


@pytest.mark.parametrize(("changed", "times"), [("customer", 2), ("mood", 1)])
async def test_what_an_effect_reads_of_the_facts_counts_in_its_key(changed: str, times: int) -> None:
    paid, journal = list[str](), MemorySteps()

    def pay() -> str:
        paid.append(current_turn().facts["customer"])
        return "paid"

    existing = Agent(Script(("pay", {}), "Done.", "Done.").model, tools=[pay])
    made = mesh_agent("a", existing, effects={"pay": "once"}, prompt=lambda _: "Pay.")
    facts = {"customer": "Ada", "mood": "good"}
    move = await made(turn(agent="a", facts=facts, steps=journal))
    facts[changed] = "another"
    await made(turn(agent="a", facts=facts, steps=journal, refused=[(move, "labels")]))
    assert len(paid) == times


async def test_the_agent_is_asked_the_words_and_the_facts() -> None:
    script = Script("Done.", "Done.")
    given = turn(summary="Refund it.", facts={"order": 7}, move="transfer")
    await mesh_agent("a", Agent(script.model))(given)
    await mesh_agent("a", Agent(script.model), prompt=lambda turn: f"order {turn.facts['order']}")(
        turn(facts={"order": 7})
    )
    assert [message[0].parts[0].content for message in script.asked] == [  # type: ignore[union-attr]
        "Refund it.\n\nFacts:\n- order: 7",
        "order 7",
    ]


# --- what a turn may do ---------------------------------------------------------------------------


async def test_an_effect_of_a_tool_that_does_not_exist_stops_the_agent() -> None:
    existing = Agent(Script("Done.").model)
    existing.tool_plain(refund)
    with pytest.raises(ToolsUnusable, match="names no tool: refnud; there are refund"):
        await mesh_agent("a", existing, effects={"refnud": "once"})(turn())


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        ({"effects": {"refund": "often"}}, "no such effect of refund"),
        ({"effects": {"refund": "reconcilable"}}, "has a `reconcile`"),
        ({"reconcile": {"refund": str}}, "names no effect"),
        ({"handoffs": "triage"}, "list of agents"),
        ({"handoffs": ["not a name"]}, "not an agent's name"),
        ({"moves": ["fly"]}, "no such moves: fly"),
        ({"approver": "nobody"}, "approver is human or client"),
    ],
)
def test_what_cannot_be_meant_is_refused_at_once(wrong: dict[str, Any], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        mesh_agent("a", Agent(TestModel()), **wrong)


def test_what_is_no_agent_is_refused_at_once() -> None:
    with pytest.raises(TypeError, match="not a FunctionModel"):
        mesh_agent("a", Script().model)  # type: ignore[arg-type]


async def test_a_tool_that_the_turn_may_not_call_is_not_offered() -> None:
    script = Script("Done.")
    existing = Agent(script.model)
    existing.tool_plain(look)
    existing.tool_plain(refund)
    made = mesh_agent("a", existing, effects={"refund": "once"})
    await made(turn(constraints=Constraints(allowed_actions=("look",))))
    assert script.offered == [["look"]]


async def test_tokens_are_counted_and_a_budget_ends_the_turn() -> None:
    given = turn(constraints=Constraints(budget=Budget(model_calls=1)))
    script = Script(("look", {}), "Done.")
    existing = Agent(script.model)
    existing.tool_plain(look)
    with pytest.raises(BudgetExhausted):
        await mesh_agent("a", existing)(given)
    assert given.execution.report.usage.model_calls == 1
    assert given.execution.report.usage.tokens > 0


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

    journal = MemorySteps()
    made = mesh_agent("a", Agent(TestModel(custom_output_text="It is in Oslo.")))
    for expected in ("It is in Oslo.", ""):
        given = turn(steps=journal)
        text = streamed(given)
        await made(given)
        assert text() == expected


@pytest.mark.parametrize(("says_first", "calls"), [(False, 1), (True, 0)])
async def test_a_model_that_cannot_stream_is_asked_whole_unless_it_said_something(
    says_first: bool, calls: int
) -> None:
    asked = list[int]()

    def whole(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        asked.append(1)
        return ModelResponse(parts=[TextPart("Done.")])

    async def stream(messages: list[ModelMessage], info: AgentInfo) -> Any:
        if says_first:
            yield "It is "
        raise NotImplementedError

    made = mesh_agent("a", Agent(FunctionModel(whole, stream_function=stream)))
    if says_first:
        with pytest.raises(NotImplementedError):  # it was paid: a retry of the round is another matter
            await made(turn())
    else:
        assert isinstance(await made(turn()), Complete)
    assert len(asked) == calls


async def test_hooks_watch_its_calls() -> None:
    seen = list[str]()
    hooks = Hooks(on_tool=lambda _, call: seen.append(call.name), on_model=lambda *_: seen.append("model"))
    existing = Agent(Script(("look", {}), "Done.").model, tools=[look])
    await mesh_agent("a", existing, hooks=hooks)(turn())
    assert seen == ["model", "look", "model"]


# --- replay ---------------------------------------------------------------------------------------


async def test_a_replay_of_the_code_comes_to_the_same_and_calls_nothing() -> None:
    script, paid = Script(("refund", {"cents": 5}), ("ask", {"question": "Sure?"}), "Done."), list[int]()
    made = mesh_agent(
        "billing", with_approval(script, paid, at_run_time=True), effects={"refund": "once"}, moves=["ask"]
    )
    walk = await walked(made, replies=[True, "Yes"])
    found = await Replayer({"billing": made}, walk.recording).replay(walk.guard.bodies)
    assert [(each.round, each.result, each.why) for each in found] == [
        (round_, "same", "") for round_ in range(3)
    ]
    assert (paid, len(script.asked)) == ([5], 3)


# --- failures -------------------------------------------------------------------------------------


async def test_a_throttled_model_is_asked_again_in_the_same_round() -> None:
    script = Script(ModelRateLimitError("m", "slow down", retry_after=0.0), "Done.")
    move = await mesh_agent("a", Agent(script.model))(turn())
    assert isinstance(move, Complete)


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (ModelRequestRejectedError("m", "bad request"), ModelRefused),
        (ModelHTTPError(401, "m"), ModelRefused),
        (ModelHTTPError(503, "m"), AskAgain),
    ],
)
async def test_an_error_of_the_model_says_whether_trying_again_helps(
    error: Exception, kind: type[Exception]
) -> None:
    with pytest.raises(kind):
        await mesh_agent("a", Agent(Script(error).model))(turn())


async def test_a_fallback_in_a_model_is_one_step_and_one_in_a_capability_leaves_it_to_the_guard() -> None:
    first, second = Script(ModelHTTPError(503, "m")), Script("Done.")
    given = turn()
    await mesh_agent("a", Agent(FallbackModel(first.model, second.model)), live=False)(given)
    assert given.execution.report.usage.model_calls == 1
    first, second = Script(ModelHTTPError(503, "m")), Script("Done.")
    existing = Agent(first.model, capabilities=[ModelFallback(second.model)])
    with pytest.raises(AskAgain):
        await mesh_agent("a", existing)(turn())
    assert second.asked == []


async def test_a_limit_of_the_sdks_own_ends_the_turn_for_good() -> None:
    script = Script(*[("look", {})] * 60)
    existing = Agent(script.model)
    existing.tool_plain(look)
    with pytest.raises(ModelGaveUp, match=str(UsageLimits().request_limit)):
        await mesh_agent("a", existing)(turn())


async def test_a_no_of_the_sdk_that_it_swallows_still_ends_the_round() -> None:
    script = Script(("ask", {"question": "Which?"}), "Never said.")
    existing = Agent(script.model)

    @existing.tool_plain
    def unused() -> str:
        raise ToolRefused("unused", "unused")

    move = await mesh_agent("a", existing, moves=["ask"])(turn())
    assert move.name == "ask"
    assert len(script.asked) == 1
