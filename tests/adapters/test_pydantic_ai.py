"""Agents of Pydantic AI: their calls are steps, their handoffs moves, their approvals questions."""

from collections.abc import Callable, Iterable
from typing import Any, TypeAlias

import msgspec
import pytest
from pydantic import BaseModel
from pydantic_ai import (
    Agent,
    ApprovalRequired,
    DeferredToolRequests,
    ExternalToolset,
    ModelMessage,
    ModelResponse,
    ModelRetry,
    RunContext,
    TextPart,
    Tool,
    ToolCallPart,
    ToolDefinition,
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
from mesh.agent import Agent as MeshAgent
from mesh.agent import Budget, BudgetExhausted, Constraints, Move, ToolRefused, Turn
from mesh.agent._telemetry import LiveOutput
from mesh.agent.errors import EffectUnknown, ToolsUnusable
from mesh.agent.hooks import Hooks
from mesh.model.loop import ModelGaveUp
from mesh.model.vendor import ModelRefused
from mesh.model.vendor import ModelRetry as AskAgain
from mesh.replay.code import Replayer
from mesh.testing import FleetHarness, InMemoryGuard, MemorySteps, fleet_of, turn
from protocol.wire.moves import Complete, Deliver, Transfer
from protocol.wire.records import LiveNote

Reply: TypeAlias = ModelResponse | str | tuple[str, dict[str, Any]] | BaseException


class Script:
    """A model that replies what it is told, in order, and keeps what it was asked."""

    def __init__(self, *replies: Reply) -> None:
        self.replies = list(replies)
        self.asked: list[list[ModelMessage]] = []
        self.offered: list[list[str]] = []
        self.model = FunctionModel(self)

    def __call__(self, messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        self.asked.append(list(messages))
        self.offered.append([tool.name for tool in info.function_tools])
        reply = self.replies.pop(0)
        if isinstance(reply, BaseException):
            raise reply
        if isinstance(reply, tuple):
            return ModelResponse(parts=[ToolCallPart(*reply)])
        return reply if isinstance(reply, ModelResponse) else ModelResponse(parts=[TextPart(reply)])

    @property
    def told(self) -> list[Any]:
        """What came of each call, as the model reads it."""
        return [message[-1].parts[-1].content for message in self.asked[1:]]  # type: ignore[union-attr]


class PowerCut(BaseException):
    """The process dies here."""


def look() -> str:
    """Look."""
    return "seen"


def refund() -> str:
    """Pay back."""
    return "refunded"


async def walked(made: MeshAgent, *, replies: Iterable[Any] = (), **submit: Any) -> FleetHarness:
    """Give a request to `billing`, which may hand it to `triage`."""
    guard = InMemoryGuard(fleet_of("billing", "triage", human=True))
    return await FleetHarness(guard, {"billing": made, "triage": greeter}).go(
        "Refund 7", replies=replies, **submit
    )


async def _greet(turn: Turn) -> Move:
    return turn.complete(f"triage got {dict(turn.facts)}")


greeter = MeshAgent("triage", _greet)


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


# --- moves ----------------------------------------------------------------------------------------


async def test_a_handoff_is_a_move_with_its_facts() -> None:
    given = {"summary": "Refund it.", "facts": [{"key": "order", "value": 7}]}
    script = Script(("transfer_to_triage", given))
    move = await mesh_agent("billing", Agent(script.model), handoffs=["triage"])(
        turn(agent="billing", peers=["triage", "other"])
    )
    assert isinstance(move, Transfer)
    assert (move.to_agent, move.summary) == ("triage", "Refund it.")
    assert [(fact.key, fact.value) for fact in move.facts] == [("order", 7)]
    assert script.offered == [["transfer_to_triage"]]


async def test_the_model_reads_what_is_wrong_with_a_move_and_why_one_was_refused() -> None:
    no_words, words = ("transfer_to_triage", {"summary": 7}), ("transfer_to_triage", {"summary": "It."})
    journal, script = MemorySteps(), Script(no_words, words, "I do it myself.")
    made = mesh_agent("billing", Agent(script.model), handoffs=["triage"])
    first = turn(agent="billing", peers=["triage"], steps=journal)
    move = await made(first)
    again = turn(agent="billing", peers=["triage"], steps=journal, refused=[(move, "labels")])
    assert (await made(again)).answer == "I do it myself."  # type: ignore[union-attr]
    assert "summary" in str(script.told[0])
    assert "labels refused transfer to triage" in script.told[1]


async def test_work_goes_back_to_the_giver_that_is_among_the_handoffs() -> None:
    def given() -> Turn:
        return turn(agent="billing", peers=["triage"], path=["triage", "billing"], from_agent="triage")

    script = Script("Done.", "Done.", "Done.")
    for handoffs, moves in ((["triage"], []), ([], []), ([], ["hand_back", "ask", "escalate"])):
        await mesh_agent("billing", Agent(script.model), handoffs=handoffs, moves=moves)(given())
    assert script.offered == [["hand_back"], [], ["hand_back", "ask", "escalate"]]


async def test_a_question_suspends_the_turn_and_its_reply_is_the_calls_result() -> None:
    script = Script(("ask", {"question": "Which order?"}), "Thanks.")
    walk = await walked(mesh_agent("billing", Agent(script.model), moves=["ask"]), replies=["The red one"])
    assert walk.answer == "Thanks."
    assert script.told == ['"The red one"']


async def test_a_refused_answer_goes_back_to_the_model() -> None:
    script, journal = Script("Yes.", "No."), MemorySteps()
    made = mesh_agent("a", Agent(script.model))
    move = await made(turn(agent="a", steps=journal))
    assert (await made(turn(agent="a", steps=journal, refused=[(move, "size")]))).answer == "No."  # type: ignore[union-attr]
    assert "size refused complete" in script.told[0]


async def test_an_output_type_is_the_form_of_the_answer() -> None:
    class Refund(BaseModel):
        cents: int

    script = Script(("final_result", {"cents": 5}), ("final_result", {"cents": 5}))
    made = mesh_agent("a", Agent(script.model, output_type=Refund))
    move = await made(turn(agent="a"))
    assert isinstance(move, Complete)
    assert move.answer == {"cents": 5}
    delivery = await made(turn(agent="a", topology="supervised", task="refund"))
    assert isinstance(delivery, Deliver)
    assert [(fact.key, fact.value) for fact in delivery.facts] == [("answer", {"cents": 5})]


# --- approvals ------------------------------------------------------------------------------------


def with_approval(script: Script, paid: list[int], *, at_run_time: bool) -> Agent[Any, str]:
    def refund(ctx: RunContext[Any], cents: int) -> str:
        if not ctx.tool_call_approved:
            raise ApprovalRequired
        paid.append(cents)
        return "refunded"

    return Agent(script.model, tools=[Tool(refund, requires_approval=not at_run_time)])


@pytest.mark.parametrize("at_run_time", [False, True])
async def test_an_approval_is_a_question_about_this_very_call(at_run_time: bool) -> None:
    script, paid = Script(("refund", {"cents": 5}), "Done."), list[int]()
    existing = with_approval(script, paid, at_run_time=at_run_time)
    walk = await walked(
        mesh_agent("billing", existing, effects={"refund": "idempotent"}),
        replies=[True],
    )
    assert walk.answer == "Done."
    assert paid == [5]
    assert 'billing asks for approval: refund {"cents":5}' in str(walk)


async def test_the_model_reads_a_no() -> None:
    script, paid = Script(("refund", {"cents": 5}), "Sorry."), list[int]()
    existing = with_approval(script, paid, at_run_time=False)
    walk = await walked(mesh_agent("billing", existing, approver="client"), replies=[False])
    assert walk.answer == "Sorry."
    assert paid == []
    assert "did not approve refund" in script.told[0]


async def test_the_client_gives_the_result_of_a_tool_that_runs_elsewhere() -> None:
    script = Script(("locate", {"what": "parcel"}), "It is in Oslo.")
    elsewhere = ExternalToolset([ToolDefinition(name="locate")])
    existing = Agent(script.model, toolsets=[elsewhere], output_type=[str, DeferredToolRequests])
    walk = await walked(mesh_agent("billing", existing), replies=["Oslo"])
    assert walk.answer == "It is in Oslo."
    assert script.told == ['"Oslo"']


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
