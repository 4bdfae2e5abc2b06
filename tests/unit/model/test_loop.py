"""The loop: what becomes of a model's replies."""

import asyncio
from typing import Any

import pytest

from mesh.agent.errors import Permanent, Retry, ToolError
from mesh.agent.tools import tool
from mesh.errors import Unreachable
from mesh.model.loop import ModelGaveUp, drive
from mesh.model.port import Model, PastReply, Reply, ToolResult
from mesh.testing import MemorySteps, replied, turn, unanswered
from protocol.wire.event_parts import RoundOutcome
from protocol.wire.handoff import Constraints, Fact
from protocol.wire.moves import Ask, Complete, Escalate, Fail, HandBack, Move, Transfer
from tests.certain import is_
from tests.servers import PATIENCE_S
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
    ("reply", "said"),
    [
        pytest.param(says("It is seven."), "call `complete`", id="words"),
        pytest.param(calls(("complete", {"answer": {"sum": "seven"}})), "answer.sum", id="another-form"),
    ],
)
async def test_where_the_answer_has_a_form_nothing_else_is_one(reply: Reply, said: str) -> None:
    model = TalkingModel(reply, calls(("complete", {"answer": {"sum": 7}})))
    move = await drive(turn(), model, instructions="", tools=(), output_type=dict[str, int])
    assert move == Complete(answer={"sum": 7})
    (told,) = results(model)
    assert (told.is_error, said in told.text) == (True, True)


TO_B = Transfer(to_agent="b", summary="Do it.")  # type: ignore[arg-type]
GIVE = calls(("transfer_to_b", {"summary": "Do it."}))


async def test_a_refusal_is_the_result_of_the_call_that_asked_and_nothing_is_asked_again() -> None:
    steps = MemorySteps()
    first = TalkingModel(GIVE)
    assert await drive(turn(peers=["b"], steps=steps), first, instructions="", tools=()) == TO_B
    then = TalkingModel(calls(("complete", {"answer": "by myself"})))
    later = turn(peers=["b"], steps=steps, refused=[(TO_B, "depth")])
    assert await drive(later, then, instructions="", tools=()) == Complete(answer="by myself")
    (prompt,) = then.prompts
    assert prompt.brief == first.prompts[0].brief
    said, result = prompt.transcript
    assert isinstance(said, PastReply)
    assert isinstance(result, ToolResult)
    assert (result.call, result.is_error) == (said.calls[0].id, True)
    assert result.text.startswith("rule depth refused transfer to b")


async def test_an_agent_that_joins_meanwhile_does_not_change_what_the_conversation_began_with() -> None:
    steps = MemorySteps()
    first = TalkingModel(GIVE)
    await drive(turn(peers=["b"], steps=steps), first, instructions="", tools=())
    then = TalkingModel(says("alone"))
    later = turn(peers=["b", "c"], steps=steps, refused=[(TO_B, "cycle")])
    await drive(later, then, instructions="", tools=())
    assert then.prompts[0].tools == first.prompts[0].tools
    fresh = TalkingModel(says("alone"))
    await drive(turn(peers=["b", "c"]), fresh, instructions="", tools=())
    assert "transfer_to_c" in {spec.name for spec in fresh.prompts[0].tools}


ASKED = Ask(to_agent="client", question="Which?")  # type: ignore[arg-type]
RAISED = Escalate(summary="Too hard.")
LET_GO_ON = RoundOutcome(round=0, how="resolved", move=RAISED, reply="use the other account", by="Ada")


@pytest.mark.parametrize(
    ("call", "made", "past", "told", "is_error"),
    [
        pytest.param(
            ("ask", {"question": "Which?"}), ASKED, replied(ASKED, "red"), '"red"', False, id="a reply"
        ),
        pytest.param(
            ("ask", {"question": "Which?"}),
            ASKED,
            unanswered(ASKED),
            "Nobody replied in time.",
            True,
            id="no reply",
        ),
        pytest.param(
            ("escalate", {"reason": "Too hard."}),
            RAISED,
            LET_GO_ON,
            "A person says: go on. use the other account",
            False,
            id="a person who lets it go on",
        ),
    ],
)
async def test_the_outcome_of_a_move_is_the_result_of_its_call(
    call: tuple[str, dict[str, Any]], made: Move, past: RoundOutcome, told: str, is_error: bool
) -> None:
    steps = MemorySteps()
    assert await drive(turn(steps=steps), TalkingModel(calls(call)), instructions="", tools=()) == made
    then = TalkingModel(says("Done."))
    later = await drive(turn(steps=steps, past=[past]), then, instructions="", tools=())
    assert later == Complete(answer="Done.")
    result = is_(then.prompts[0].transcript[-1], ToolResult)
    assert (result.call, result.text, result.is_error) == ("call_0", told, is_error)


async def test_what_people_could_not_be_asked_is_given_up() -> None:
    steps, escalate = MemorySteps(), Escalate(summary="agent came to no move within 1 calls")
    silent = [Reply(), Reply()]
    first = turn(steps=steps)
    assert await drive(first, TalkingModel(*silent), instructions="", tools=(), max_calls=1) == escalate
    later = turn(steps=steps, refused=[(escalate, "known_agent")])
    assert isinstance(await drive(later, TalkingModel(), instructions="", tools=(), max_calls=1), Fail)


async def test_calls_that_only_read_run_at_once_and_answer_in_their_order() -> None:
    met = asyncio.Barrier(2)

    @tool
    async def meet(who: str) -> str:
        """Wait for the other."""
        async with asyncio.timeout(PATIENCE_S):
            await met.wait()
        return who

    model = TalkingModel(calls(("meet", {"who": "one"}), ("meet", {"who": "other"})), says("met"))
    await drive(turn(steps=MemorySteps()), model, instructions="", tools=(meet,))
    assert [each.text for each in model.prompts[1].transcript[1:]] == ["one", "other"]


async def test_effects_happen_one_after_the_other() -> None:
    busy: list[str] = []

    @tool(effect="idempotent")
    async def change(what: str) -> str:
        """Change something."""
        assert not busy
        busy.append(what)
        await asyncio.sleep(0)
        busy.remove(what)
        return what

    model = TalkingModel(calls(("change", {"what": "one"}), ("change", {"what": "other"})), says("done"))
    await drive(turn(steps=MemorySteps()), model, instructions="", tools=(change,))
    assert [each.text for each in model.prompts[1].transcript[1:]] == ["one", "other"]


@pytest.mark.parametrize(
    ("stop", "said"),
    [("refusal", "declines"), ("model_context_window_exceeded", "longer than"), ("tired", "tired")],
)
async def test_a_stop_that_is_no_end_of_an_answer_gives_up_for_good(stop: str, said: str) -> None:
    with pytest.raises(ModelGaveUp, match=said) as failed:
        await drive(turn(), TalkingModel(Reply(text="half", stop=stop)), instructions="", tools=())
    assert failed.value.permanent


async def test_a_reply_that_was_cut_off_does_nothing_and_is_told_so() -> None:
    ran = []

    @tool
    async def read() -> None:
        """Read."""
        ran.append(1)

    cut = Reply(calls=calls(("read", {})).calls, stop="max_tokens")
    model = TalkingModel(cut, says("short"))
    assert await drive(turn(), model, instructions="", tools=(read,)) == Complete(answer="short")
    assert ran == []
    assert "cut off" in model.prompts[1].transcript[-1].text


async def test_a_pause_goes_on_with_its_own_words() -> None:
    model = TalkingModel(Reply(text="So far, ", stop="pause_turn"), says("so good."))
    answer = Complete(answer="So far, so good.")
    assert await drive(turn(), model, instructions="", tools=()) == answer
    assert [each.text for each in model.prompts[1].transcript] == ["So far, "]


async def test_of_two_moves_in_one_reply_the_journal_says_that_one_counts() -> None:
    steps = MemorySteps()
    both = calls(("transfer_to_b", {"summary": "Do it."}), ("complete", {"answer": "x"}))
    assert await drive(turn(peers=["b"], steps=steps), TalkingModel(both), instructions="", tools=()) == TO_B
    assert any(b"only transfer_to_b counts" in body for body in steps.steps.values())
