"""A conversation lasts for a turn: later rounds go on where the last one ended, and pay for nothing twice."""

import asyncio
from typing import Any

import pytest

from mesh.agent.tools import tool
from mesh.model.loop import ModelGaveUp, drive
from mesh.model.port import Reply, Said, ToolResult
from mesh.testing import MemorySteps, turn
from mesh.testing.harness import replied, unanswered
from protocol.wire.commands import Ask, Complete, Escalate, Fail, Move, Transfer
from protocol.wire.events import RoundOutcome
from protocol.wire.prices import Metered, Price, Tokens
from tests.unit.model.doubles import TalkingModel, calls, says

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
    assert isinstance(said, Said)
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
    result = then.prompts[0].transcript[-1]
    assert isinstance(result, ToolResult)
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
        async with asyncio.timeout(60):
            await met.wait()
        return who

    model = TalkingModel(calls(("meet", {"who": "one"}), ("meet", {"who": "other"})), says("met"))
    await drive(turn(steps=MemorySteps()), model, instructions="", tools=(meet,))
    assert [each.text for each in model.prompts[1].transcript[1:]] == ['"one"', '"other"']


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
    assert [each.text for each in model.prompts[1].transcript[1:]] == ['"one"', '"other"']


@pytest.mark.parametrize("stop", ["refusal", "model_context_window_exceeded"])
async def test_a_stop_that_nothing_cures_fails_for_good(stop: str) -> None:
    with pytest.raises(ModelGaveUp) as failed:
        await drive(turn(), TalkingModel(Reply(text="no", stop=stop)), instructions="", tools=())
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


async def test_a_stop_that_nobody_knows_is_no_answer() -> None:
    with pytest.raises(ModelGaveUp, match="tired"):
        await drive(turn(), TalkingModel(Reply(text="half an ans", stop="tired")), instructions="", tools=())


async def test_of_two_moves_in_one_reply_the_journal_says_that_one_counts() -> None:
    steps = MemorySteps()
    both = calls(("transfer_to_b", {"summary": "Do it."}), ("complete", {"answer": "x"}))
    assert await drive(turn(peers=["b"], steps=steps), TalkingModel(both), instructions="", tools=()) == TO_B
    assert any(b"only transfer_to_b counts" in body for body in steps.steps.values())


async def test_tokens_cost_what_the_turns_prices_say() -> None:
    asked = turn(prices={"big": Price(input=1_000_000, output=5_000_000)})
    reply = Reply(text="ok", tokens=Tokens(input=10, output=2), model="big")
    await drive(asked, TalkingModel(reply), instructions="", tools=())
    usage = asked.execution.report.usage
    assert usage.nano_dollars == 20
    assert usage.models == {"big": Metered(input=10, output=2, calls=1, nano_dollars=20)}
