"""An effect that waits for a yes: asked once, bound to its arguments, run once, and never by itself."""

from typing import Any

import pytest
from msgspec.structs import replace

from mesh.agent import ApprovalNeeded, Move, ToolRefused, Turn, tool
from mesh.agent._effects import SHOWN_CHARS
from mesh.agent.errors import InDoubt
from mesh.model.loop import drive
from mesh.model.port import ToolResult
from mesh.testing import MemorySteps, turn
from mesh.testing.harness import replied, unanswered
from protocol.wire.event_parts import RoundOutcome
from protocol.wire.moves import Ask, Complete
from tests.unit.model.doubles import TalkingModel, calls, says

done: list[str] = []


@pytest.fixture(autouse=True)
def _nothing_done() -> None:
    done.clear()


@tool
async def look(what: str) -> str:
    """Look."""
    done.append(f"look {what}")
    return what


@tool(effect="idempotent", approve="human")
async def pay(amount: float, currency: str = "EUR", idempotency_key: str = "") -> str:
    """Pay."""
    done.append(f"pay {amount}")
    return idempotency_key


@tool(effect="once", approve="client")
async def call(number: str) -> str:
    """Call."""
    done.append(f"call {number}")
    return "called"


async def asked(given: Turn, **arguments: Any) -> Ask:
    """Return the approval that a payment asks for."""
    with pytest.raises(ApprovalNeeded) as needed:
        await given.call(pay, **arguments)
    return needed.value.ask


@pytest.mark.parametrize(
    ("more", "said"),
    [
        pytest.param({"effect": "once", "approve_within_s": 1.0}, "say whose", id="nobody-in-time"),
        pytest.param({"effect": "once", "approve": "boss"}, "nobody is called 'boss'", id="nobody"),
    ],
)
def test_a_tool_that_cannot_be_approved_is_refused_where_it_is_made(more: Any, said: str) -> None:
    with pytest.raises(TypeError, match=said):

        @tool(**more)
        def never() -> None: ...


async def test_the_question_shows_what_is_approved_defaults_included() -> None:
    ask = await asked(turn(agent="teller", steps=MemorySteps()), amount=5)
    assert ask.question == 'teller asks for approval: pay {"amount":5,"currency":"EUR"}'
    assert (ask.to_agent, ask.action, ask.schema) == ("human", "pay", {"type": "boolean"})
    assert ask.expires_s is None
    assert done == []


async def test_the_client_is_asked_where_the_tool_says_so() -> None:
    with pytest.raises(ApprovalNeeded) as needed:
        await turn().call(call, number="1")
    assert needed.value.ask.to_agent == "client"


async def test_long_arguments_are_cut_and_the_question_says_so() -> None:
    ask = await asked(turn(), amount=1, currency="x" * 10_000)
    assert len(ask.question) < SHOWN_CHARS + 200
    assert ask.question.endswith("characters in all)")


async def test_code_that_swallows_the_stop_gets_it_again_at_its_next_step() -> None:
    given = turn(steps=MemorySteps())
    await asked(given, amount=5)
    with pytest.raises(ApprovalNeeded):
        await given.call(look, what="round the corner")
    assert done == []


async def test_after_a_yes_the_call_runs_and_what_came_before_it_does_not_run_again() -> None:
    steps = MemorySteps()

    times: list[int] = []

    async def code(given: Turn) -> Any:
        looked = await given.call(look, what="one")
        times.append(await given.now())
        return looked, await given.call(pay, amount=5)

    first = turn(steps=steps)
    with pytest.raises(ApprovalNeeded) as needed:
        await code(first)
    past = [replied(needed.value.ask, True, by="Ada")]
    for _ in range(2):  # the second time, delivered again
        assert await code(turn(past=past, steps=steps)) == ("one", needed.value.ask.digest)
        assert done == ["look one", "pay 5.0"]
    assert len(set(times)) == 1


@pytest.mark.parametrize("value", [False, None, "yes", 1, {"ok": True}])
async def test_anything_but_true_is_a_no_that_stays_one(value: Any) -> None:
    steps = MemorySteps()
    ask = await asked(turn(steps=steps), amount=5)
    past = [replied(ask, value, by="Ada")]
    for _ in range(2):
        with pytest.raises(ToolRefused, match="Ada did not approve pay") as refused:
            await turn(past=past, steps=steps).call(pay, amount=5)
        assert refused.value.reason == "not_approved"
    later = turn(past=[*past, RoundOutcome(round=1, how="refused")], steps=steps)
    with pytest.raises(ToolRefused):
        await later.call(pay, amount=5)
    assert done == []


async def test_an_approval_that_nobody_gave_in_time_is_a_no() -> None:
    steps = MemorySteps()
    ask = await asked(turn(steps=steps), amount=5)
    with pytest.raises(ToolRefused) as refused:
        await turn(past=[unanswered(ask)], steps=steps).call(pay, amount=5)
    assert refused.value.reason == "approval_expired"


async def test_an_ask_that_the_guard_refused_is_a_no_and_not_asked_again() -> None:
    steps = MemorySteps()
    ask = await asked(turn(steps=steps), amount=5)
    with pytest.raises(ToolRefused, match="nobody could be asked to approve pay: asks") as refused:
        await turn(refused=[(ask, "asks")], steps=steps).call(pay, amount=5)
    assert refused.value.reason == "not_approved"


async def test_a_yes_is_for_one_call_with_these_arguments() -> None:
    steps = MemorySteps()
    ask = await asked(turn(steps=steps), amount=5)
    past = [replied(ask, True)]
    other = await asked(turn(past=past, steps=steps), amount=500)
    assert other.digest != ask.digest
    given = turn(past=past, steps=steps)
    await given.call(pay, amount=5)
    second = await asked(given, amount=5)
    assert second.digest not in (ask.digest, other.digest)
    assert done == ["pay 5.0"]


async def test_an_ordinary_reply_approves_nothing() -> None:
    given = turn(past=[RoundOutcome(round=0, how="replied", reply=True)])
    await asked(given, amount=5)
    assert given.reply is True


async def test_a_yes_outlives_a_process_that_dies_before_it_does_it() -> None:
    steps = MemorySteps()
    ask = await asked(turn(steps=steps), amount=5)
    past = [replied(ask, True)]
    await turn(past=past, steps=steps).call(look, what="one")  # and dies
    again = turn(past=past, steps=steps)
    await again.call(look, what="one")
    await again.call(pay, amount=5)
    assert done == ["look one", "pay 5.0"]


async def test_an_approved_effect_that_may_have_happened_is_in_doubt_and_not_asked_again() -> None:
    class Crash(BaseException):
        pass

    @tool(effect="once", approve="client")
    async def dial(number: str) -> None:
        done.append(number)
        raise Crash

    steps = MemorySteps()
    with pytest.raises(ApprovalNeeded) as needed:
        await turn(steps=steps).call(dial, number="1")
    past = [replied(needed.value.ask, True)]
    with pytest.raises(Crash):
        await turn(past=past, steps=steps).call(dial, number="1")
    with pytest.raises(InDoubt):
        await turn(past=past, steps=steps).call(dial, number="1")
    assert done == ["1"]


async def test_an_approval_is_no_reply_to_the_codes_own_question() -> None:
    own = turn().ask("which colour?")
    approval = await asked(turn(), amount=5)
    given = turn(past=[replied(own, "red"), replied(approval, True, round_=1)])
    assert (given.reply, given.expired, given.round) == ("red", False, 2)
    assert turn(past=[replied(approval, True)]).reply is None


def test_an_ask_that_expired_is_told_from_none() -> None:
    own = turn().ask("which colour?")
    assert (turn().reply, turn().expired) == (None, False)
    late = turn(past=[unanswered(own)])
    assert (late.reply, late.expired) == (None, True)
    again = turn(past=[unanswered(own), replied(own, None, round_=1)])
    assert (again.reply, again.expired) == (None, False)


async def test_a_model_is_not_asked_again_for_what_led_to_the_approval() -> None:
    steps = MemorySteps()
    model = TalkingModel(calls(("look", {"what": "one"}), ("pay", {"amount": 5})), says("Paid."))

    async def code(given: Turn) -> Move:
        return await drive(given, model, instructions="", tools=(look, pay))

    with pytest.raises(ApprovalNeeded) as needed:
        await code(turn(steps=steps))
    past = [replied(needed.value.ask, True)]
    assert await code(turn(past=past, steps=steps)) == Complete(answer="Paid.")
    assert len(model.prompts) == 2
    assert done == ["look one", "pay 5.0"]


@tool(effect="idempotent", needs_approval=lambda given: given["euros"] > 100)
async def refund(euros: int) -> str:
    """Refund."""
    done.append(f"refund {euros}")
    return "refunded"


@tool(approve="client", needs_approval=lambda given: given["name"].startswith("secret"))
async def read(name: str) -> str:
    """Read a file."""
    done.append(f"read {name}")
    return f"text of {name}"


async def test_only_the_arguments_that_need_a_yes_wait_for_one() -> None:
    assert await turn().call(refund, euros=100) == "refunded"
    with pytest.raises(ApprovalNeeded) as needed:
        await turn().call(refund, euros=101)
    assert (needed.value.ask.to_agent, done) == ("human", ["refund 100"])
    yes = turn(past=[replied(needed.value.ask, True)])
    assert await yes.call(refund, euros=101) == "refunded"
    assert done == ["refund 100", "refund 101"]


async def test_a_tool_that_reads_waits_too_and_a_no_carries_its_words_to_the_model() -> None:
    first = calls(("read", {"name": "hours"}), ("read", {"name": "secret plan"}))
    steps = MemorySteps()
    with pytest.raises(ApprovalNeeded) as needed:
        await drive(turn(steps=steps), TalkingModel(first), instructions="", tools=[read])
    assert (needed.value.ask.to_agent, needed.value.ask.action) == ("client", "read")
    no = replace(replied(needed.value.ask, False, by="kim"), reason="ask the board")
    model = TalkingModel(says("I may not."))
    await drive(turn(steps=steps, past=[no]), model, instructions="", tools=[read])
    told = {each.text for each in model.prompts[-1].transcript if isinstance(each, ToolResult)}
    assert told == {"text of hours", "kim did not approve read: ask the board"}
    assert done.count("read secret plan") == 0


async def test_a_rule_that_breaks_lets_nothing_happen() -> None:
    @tool(effect="once", needs_approval=lambda given: given["none"] > 1)
    async def pay_all(euros: int) -> str:
        """Pay."""
        done.append("paid")
        return "paid"

    with pytest.raises(KeyError):
        await turn().call(pay_all, euros=1)
    assert done == []
