"""The loop: what becomes of a model's replies."""

from typing import Any

import pytest

from mesh.agent.errors import Permanent, Retry, ToolError, ToolsUnusable
from mesh.agent.tools import tool
from mesh.errors import Unreachable
from mesh.model.loop import drive
from mesh.model.port import Model, Reply, Said, ToolResult
from mesh.testing import turn
from protocol.wire.commands import Complete, Escalate, Fail, HandBack, Move, Transfer
from protocol.wire.handoff import Constraints, Fact
from tests.unit.model.doubles import StubbornModel, TalkingModel, calls, says

ran: list[int] = []


@tool
async def add(a: int, b: int) -> int:
    """Add two numbers."""
    ran.append(a + b)
    return a + b


@tool
async def refuse() -> None:
    """Never do it."""
    raise ToolError("Not on a Sunday.")


@tool
async def break_down() -> None:
    """Have a bug."""
    raise ZeroDivisionError("secret")


@tool
async def stumble(how: str) -> None:
    """Fail in a way that is not for the model."""
    raise {"retry": Retry("later"), "permanent": Permanent("never"), "bus": Unreachable("gone")}[how]


TOOLS = (add, refuse, break_down, stumble)


@pytest.fixture(autouse=True)
def _nothing_ran() -> None:
    ran.clear()


async def made_of(model: Model, **about: Any) -> Move:
    return await drive(turn(**about), model, instructions="Be brief.", tools=TOOLS)


def results(model: TalkingModel) -> list[ToolResult]:
    return [each for each in model.prompts[-1].transcript if isinstance(each, ToolResult)]


ADD = ("add", {"a": 1, "b": 1})
GIVEN = {"summary": "Do it.", "facts": [{"key": "a", "value": {"b": [1]}}], "drop": ["old"]}
GIVING = Transfer(
    to_agent="other",  # type: ignore[arg-type]
    summary="Do it.",
    facts=(Fact(key="a", value={"b": [1]}),),
    drop=("old",),
)


@pytest.mark.parametrize(
    ("reply", "made", "sums"),
    [
        pytest.param(says(" 42 "), Complete(answer="42"), [], id="words-are-the-answer"),
        pytest.param(calls(("transfer_to_other", GIVEN)), GIVING, [], id="a-call-is-a-move"),
        pytest.param(
            calls(("complete", {"answer": "yes"}), ("escalate", {"reason": "no"})),
            Complete(answer="yes"),
            [],
            id="the-first-of-two-moves",
        ),
        pytest.param(
            calls(ADD, ("complete", {"answer": "2"}), ("add", {"a": 5, "b": 5})),
            Complete(answer="2"),
            [2],
            id="calls-before-a-move-are-run-and-those-after-it-are-not",
        ),
    ],
)
async def test_a_reply_comes_to_its_move(reply: Reply, made: Move, sums: list[int]) -> None:
    assert await made_of(TalkingModel(reply), peers=["other"]) == made
    assert ran == sums


async def test_the_model_is_shown_instructions_brief_tools_and_moves_and_nothing_else() -> None:
    model = TalkingModel(says("done"))
    await made_of(model, summary="Add up.", facts={"a": 1}, peers=["other"], path=["first", "agent"])
    (prompt,) = model.prompts
    assert prompt.instructions == "Be brief."
    assert "Summary: Add up." in prompt.brief
    assert "- a: 1" in prompt.brief
    names = [tool.name for tool in prompt.tools]
    moves = ["transfer_to_other", "hand_back", "complete", "ask", "escalate"]
    assert names == ["add", "refuse", "break_down", "stumble", *moves]
    assert prompt.transcript == ()


async def test_a_result_comes_back_as_text() -> None:
    model = TalkingModel(calls(("add", {"a": 1, "b": 2})), says("3"))
    assert await made_of(model) == Complete(answer="3")
    said, result = model.prompts[1].transcript
    assert isinstance(said, Said)
    assert result == ToolResult("call_0", "add", "3")


@pytest.mark.parametrize(
    ("first", "texts"),
    [
        pytest.param(
            [("escalate", {"reason": " "})], ["escalate was not called: reason:"], id="an-invalid-move"
        ),
        pytest.param(
            [("complete", {}), ("escalate", {"reason": "no"})],
            ["complete was not called", "Not looked at"],
            id="a-second-move-after-an-invalid-one",
        ),
        pytest.param(
            [("refuse", {}), ("complete", {"answer": "Refused it."})],
            ["Not on a Sunday.", "Not taken"],
            id="a-move-in-one-breath-with-a-call-that-failed",
        ),
    ],
)
async def test_a_move_that_does_not_count_goes_back_to_the_model_which_may_try_again(
    first: list[tuple[str, dict[str, Any]]], texts: list[str]
) -> None:
    model = TalkingModel(calls(*first), calls(("escalate", {"reason": "Too hard."})))
    assert await made_of(model) == Escalate(summary="Too hard.")
    for told, text in zip(results(model), texts, strict=True):
        assert told.is_error
        assert told.text.startswith(text)


@pytest.mark.parametrize(
    ("name", "given", "text"),
    [
        pytest.param("refuse", {}, "Not on a Sunday.", id="the-tool-says-no"),
        pytest.param("add", {"a": "x"}, "add was not called: a: ", id="invalid-arguments"),
        pytest.param("multiply", {}, "There is no tool 'multiply' here.", id="no-such-tool"),
        pytest.param("break_down", {}, "break_down broke: ZeroDivisionError", id="a-bug-in-the-tool"),
        pytest.param("transfer_to_nobody", {"summary": "x"}, "There is no tool", id="no-such-peer"),
    ],
)
async def test_what_goes_wrong_is_told_to_the_model(name: str, given: dict[str, Any], text: str) -> None:
    model = TalkingModel(calls((name, given)), says("Never mind."))
    assert await made_of(model) == Complete(answer="Never mind.")
    (told,) = results(model)
    assert told.is_error
    assert told.text.startswith(text)
    assert "secret" not in told.text


@pytest.mark.parametrize(("how", "error"), [("retry", Retry), ("permanent", Permanent), ("bus", Unreachable)])
async def test_what_no_model_can_mend_ends_the_round(how: str, error: type[Exception]) -> None:
    with pytest.raises(error):
        await made_of(TalkingModel(calls(("stumble", {"how": how}))))


async def test_a_tool_that_the_turn_may_not_call_is_not_offered() -> None:
    model = TalkingModel(calls(("add", {"a": 1, "b": 2})), says("I may not."))
    await made_of(model, constraints=Constraints(allowed_actions=("refuse",)))
    assert "add" not in {tool.name for tool in model.prompts[0].tools}
    assert results(model)[0].is_error
    assert ran == []


@pytest.mark.parametrize(
    "reply",
    [
        pytest.param(calls(("add", {"a": 1, "b": 2})), id="the-same-call"),
        pytest.param(calls(("complete", {})), id="an-invalid-move"),
        pytest.param(calls(("nothing", {})), id="a-tool-that-is-not-there"),
        pytest.param(Reply(), id="nothing-said"),
        pytest.param(calls(*[("add", {"a": 1, "b": 2})] * 50), id="fifty-calls-at-once"),
    ],
)
async def test_a_model_that_comes_to_no_end_ends_with_a_person(reply: Reply) -> None:
    model = StubbornModel(reply)
    move = await drive(turn(), model, instructions="", tools=TOOLS, max_calls=3)
    assert move == Escalate(summary="agent came to no move within 3 calls")
    assert model.asked <= 4
    assert len(ran) <= 3


async def test_a_move_may_follow_the_last_call() -> None:
    add_once = calls(("add", {"a": 1, "b": 2}))
    model = TalkingModel(add_once, calls(("complete", {"answer": "3"})))
    assert await drive(turn(), model, instructions="", tools=TOOLS, max_calls=1) == Complete(answer="3")


async def test_without_people_a_model_that_comes_to_no_end_gives_up() -> None:
    move = await drive(turn(human=False), StubbornModel(Reply()), instructions="", tools=(), max_calls=1)
    assert isinstance(move, Fail)


async def test_what_a_model_costs_is_accounted_for() -> None:
    asked = turn()
    model = TalkingModel(
        says("", tokens=5, model_calls=1), says("ok", tokens=7, nano_dollars=3, model_calls=1)
    )
    await drive(asked, model, instructions="", tools=())
    usage = asked.execution.report.usage
    assert (usage.tokens, usage.model_calls, usage.nano_dollars) == (12, 2, 3)


async def test_labels_are_put_on_whatever_the_model_says() -> None:
    labels = {"email": ("pii",), "text": ("pii",)}
    carried = [Fact(key="text", value="I am Ada"), Fact(key="size", value=3)]
    given = {"summary": "s", "facts": [{"key": "email", "value": "a@example.com"}, {"key": "n", "value": 1}]}
    model = TalkingModel(calls(("transfer_to_other", given)))
    move = await drive(turn(facts=carried, peers=["other"]), model, instructions="", tools=(), labels=labels)
    assert isinstance(move, Transfer)
    assert move.facts == (
        Fact(key="email", value="a@example.com", labels=("pii",)),
        Fact(key="n", value=1),
        Fact(key="text", value="I am Ada", labels=("pii",)),
    )


async def test_a_label_does_not_bring_back_what_is_dropped() -> None:
    carried = [Fact(key="text", value="I am Ada")]
    given = {"reason": "s", "drop": ["text"]}
    asked = turn(facts=carried, path=["first", "agent"])
    model = TalkingModel(calls(("hand_back", given)))
    move = await drive(asked, model, instructions="", tools=(), labels={"text": ("pii",)})
    assert move == HandBack(summary="s", drop=("text",))


@pytest.mark.parametrize(
    ("about", "absent"),
    [
        pytest.param({}, "hand_back", id="nobody-to-go-back-to"),
        pytest.param({"human": False}, "escalate", id="no-people"),
    ],
)
async def test_a_move_that_cannot_make_sense_is_not_offered(about: dict[str, Any], absent: str) -> None:
    model = TalkingModel(says("ok"))
    await made_of(model, **about)
    assert absent not in {tool.name for tool in model.prompts[0].tools}


async def test_whom_the_agent_was_not_made_to_hand_to_is_not_named_either() -> None:
    model = TalkingModel(says("done"))
    await drive(turn(peers=["b", "c"]), model, instructions="Be brief.", tools=(), handoffs={"b"})
    (prompt,) = model.prompts
    assert "- b" in prompt.brief
    assert "- c" not in prompt.brief
    assert [tool.name for tool in prompt.tools if tool.name.startswith("transfer")] == ["transfer_to_b"]


async def test_a_tool_that_is_called_like_a_move_is_refused() -> None:
    @tool(name="complete", description="Finish.")
    async def complete() -> None: ...

    with pytest.raises(ToolsUnusable, match="complete is the name of a move"):
        await drive(turn(), TalkingModel(), instructions="", tools=[complete])


async def test_where_the_answer_has_a_form_words_are_none() -> None:
    model = TalkingModel(says("It is seven."), calls(("complete", {"answer": {"sum": 7}})))
    move = await drive(turn(), model, instructions="", tools=(), answer=dict[str, int])
    assert move == Complete(answer={"sum": 7})
    (told,) = results(model)
    assert (told.is_error, "call `complete`" in told.text) == (True, True)


async def test_an_answer_in_another_form_is_told_to_the_model() -> None:
    model = TalkingModel(
        calls(("complete", {"answer": {"sum": "seven"}})), calls(("complete", {"answer": {"sum": 7}}))
    )
    move = await drive(turn(), model, instructions="", tools=(), answer=dict[str, int])
    assert move == Complete(answer={"sum": 7})
    assert "answer.sum" in results(model)[0].text
