"""What an agent's code gives or raises becomes exactly one proposal, whatever it is."""

import asyncio
import re
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from mesh.agent.definition import Agent
from mesh.agent.errors import Permanent, Retry
from mesh.agent.tools import tool
from mesh.agent.turn import Turn
from mesh.ops.explain import explain, sentences
from mesh.ops.queue import waiting_in
from mesh.service.logs import VALUES
from protocol.domain.ledger import fold
from protocol.wire import events
from protocol.wire.commands import Usage
from protocol.wire.handoff import Fact, Rule
from protocol.wire.moves import Complete, Fail, Move
from tests.certain import is_
from tests.guard.stage import Stage, human_turn
from tests.servers import PATIENCE_S

Handler = Callable[[Turn], Awaitable[Any]]


async def run(stage: Stage, handler: Handler, *, policy: str = "eager", name: str = "a") -> str:
    """Submit a request to an agent with this code; return its id."""
    await stage.runtime(Agent(name, handler))
    return await (await stage.client()).submit("hello", policy=policy, to=name)


async def ends(stage: Stage, request: str) -> events.AnyEvent:
    return (await (await stage.client()).wait(request, timeout_s=PATIENCE_S)).event


async def fails(stage: Stage, handler: Handler, **more: str) -> events.TurnFailed:
    """Return the first failure that a handler's round comes to."""
    request = await run(stage, handler, **more)
    failed = is_((await stage.reaches(request, "turn.failed"))[1], events.TurnFailed)
    assert failed.sender is not None, "not by the clock"
    return failed


# --- refusals -------------------------------------------------------------------------------------


async def test_after_a_refusal_the_code_runs_again_and_is_told_why(stage: Stage) -> None:
    rounds: list[tuple[int, list[str]]] = []

    async def stubborn(turn: Turn) -> Move:
        rounds.append((turn.round, [refusal.rule for refusal in turn.refusals]))
        if turn.round == 2:
            return turn.complete("gave in")
        return turn.transfer("nobody", summary="please")

    request = await run(stage, stubborn)
    assert isinstance(await ends(stage, request), events.RequestCompleted)
    assert rounds == [(0, []), (1, ["known_agent"]), (2, ["known_agent", "known_agent"])]


async def test_a_report_says_how_long_the_turn_was_worked_on_in_all_its_rounds(stage: Stage) -> None:
    told: list[int] = []

    async def stubborn(turn: Turn) -> Move:
        told.append(turn.execution.work.reported.worked_ms)
        return turn.transfer("nobody", summary="please")

    request = await run(stage, stubborn)
    log = await stage.reaches(request, "escalation.raised")
    reported = [event.report.worked_ms for event in log if isinstance(event, events.MoveRefused)]
    assert told[0] == 0
    assert told[1:] == reported[: len(told) - 1], "each round begins with what the rounds before reported"
    assert reported == sorted(set(reported)), "and each adds a millisecond at least"


async def test_a_refusal_too_many_goes_to_people(stage: Stage) -> None:
    async def stubborn(turn: Turn) -> Move:
        return turn.transfer("nobody", summary="please")

    request = await run(stage, stubborn)
    log = await stage.reaches(request, "escalation.raised")
    assert human_turn(log).reason == "refusals"


async def test_more_than_a_handoff_may_hold_is_refused_and_can_be_done_otherwise(stage: Stage) -> None:
    async def careless(turn: Turn) -> Move:
        if turn.refusals:
            return turn.complete([turn.refusals[0].rule, turn.refusals[0].hint])
        return turn.transfer("b", summary="please", facts={"all": "x" * 70_000})

    event = is_(await ends(stage, await run(stage, careless)), events.RequestCompleted)
    assert event.answer[0] == "size"
    assert "artifacts" in event.answer[1]


# --- failures -------------------------------------------------------------------------------------


async def test_an_exception_is_a_bug_and_says_nothing_of_what_it_held(stage: Stage) -> None:
    async def broken(turn: Turn) -> Move:
        raise RuntimeError("secret: 4711")

    failed = await fails(stage, broken)
    assert (failed.error.code, failed.error.permanent) == ("bug", False)
    place = re.fullmatch(r"the handler raised RuntimeError, at (\S+):\d+ in broken", failed.error.message)
    assert place is not None, failed.error.message
    assert Path(place[1]).name == "test_turns.py"


@pytest.mark.parametrize("shown", [False, True])
async def test_an_exception_in_an_effect_says_its_place_to_whoever_settles_it(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, shown: bool
) -> None:
    if shown:
        monkeypatch.setenv(VALUES, "1")

    @tool(effect="once")
    def refund(order: int) -> str:
        """Pay back."""
        raise RuntimeError("the bank says:\n4711 \x1b[31m" + "x" * 1_000)

    async def pays(turn: Turn) -> Move:
        return turn.complete(await turn.call(refund, order=7))

    request = await run(stage, pays)
    happened = await stage.reaches(request, "effect.doubted")
    told = is_(happened[-1], events.EffectDoubted).effect.message
    place = re.match(r"refund raised RuntimeError, at (\S+):\d+ in refund", told)
    assert place is not None, told
    assert Path(place[1]).name == "test_turns.py"
    assert told[place.end() :].startswith(": the bank says: 4711 \\x1b[31mxxx" if shown else "")
    assert ("4711" in told, len(told) < 400) == (shown, True)
    assert f"{told}." in "\n".join(sentences(explain(happened, happened[-1].n)))
    assert [waiting.error for waiting in waiting_in(happened)] == [told]


async def test_an_exception_in_an_effect_that_can_be_run_again_says_its_place(stage: Stage) -> None:
    @tool(effect="idempotent")
    async def refund(order: int, idempotency_key: str = "") -> str:
        """Pay back."""
        raise KeyError("secret")

    async def pays(turn: Turn) -> Move:
        return turn.complete(await turn.call(refund, order=7))

    error = (await fails(stage, pays)).error
    assert error.code == "effect_unknown"
    assert re.fullmatch(r"refund raised KeyError, at \S+test_turns\.py:\d+ in refund", error.message)


async def test_a_fact_that_does_not_fit_says_where_the_code_asked_for_it(stage: Stage) -> None:
    async def reads(turn: Turn) -> Move:
        return turn.complete(turn.fact("order", int))

    request = await run(stage, reads)
    failed = is_((await stage.reaches(request, "turn.failed"))[1], events.TurnFailed).error
    assert failed.code == "fact_unusable"
    assert re.fullmatch(r"no fact 'order': there are text, at \S+test_turns\.py:\d+ in reads", failed.message)
    raised = await stage.reaches(request, "escalation.raised")
    assert [waiting.error for waiting in waiting_in(raised)] == [failed.message]


async def test_a_forgotten_return_and_an_unknown_fact_say_what_was_meant(stage: Stage) -> None:
    async def forgetful(turn: Turn) -> Move:
        turn.complete("done")
        return None  # type: ignore[return-value]

    async def misspelt(turn: Turn) -> Move:
        return turn.complete(turn.facts["txt"])

    returned = (await fails(stage, forgetful)).error
    assert returned.code == "bug"
    assert re.search(
        r"^the handler \(\S+:\d+ in forgetful\) returned nothing; return a move: ", returned.message
    )
    unknown = (await fails(stage, misspelt, name="b")).error
    assert unknown.message.startswith("no fact 'txt': there are text; did you mean 'text'?, at ")
    assert unknown.message.endswith(" in misspelt")


async def test_a_retry_is_tried_again_no_sooner_than_it_says(stage: Stage) -> None:
    async def busy(turn: Turn) -> Move:
        if turn.failures:
            return turn.complete([failure.message for failure in turn.failures])
        raise Retry("the vendor is busy", after_s=0.2)

    request = await run(stage, busy)
    event = is_(await ends(stage, request), events.RequestCompleted)
    assert event.answer == ["the vendor is busy"]
    _, failed, retried, *_ = await stage.log(request)
    assert retried.at - failed.at >= 200_000


async def test_what_no_retry_can_mend_goes_to_people_at_once(stage: Stage) -> None:
    async def hopeless(turn: Turn) -> Move:
        raise Permanent("no such customer")

    request = await run(stage, hopeless)
    log = await stage.reaches(request, "escalation.raised")
    assert [type(event).__name__ for event in log[1:]] == ["TurnFailed", "EscalationRaised"]
    assert human_turn(log).reason == "permanent"


async def nothing(turn: Turn) -> Any:
    return "done"


async def cancels_itself(turn: Turn) -> Move:
    inner = asyncio.create_task(asyncio.sleep(60))
    inner.cancel()
    await inner
    raise AssertionError("unreachable")


async def gives_an_object(turn: Turn) -> Move:
    return turn.complete(object())


async def gives_half_a_character(turn: Turn) -> Move:
    return turn.complete("\ud800")


async def names_a_fact_twice(turn: Turn) -> Move:
    return turn.transfer("b", summary="x", facts=[Fact(key="k", value=1), Fact(key="k", value=2)])


async def nests_too_deep(turn: Turn) -> Move:
    answer: Any = None
    for _ in range(200):
        answer = [answer]
    return turn.complete(answer)


async def spends_less_than_nothing(turn: Turn) -> Move:
    turn.spend(tokens=-5)
    return turn.complete("done")


async def comes_back_never(turn: Turn) -> Move:
    raise Retry("later", after_s=float("nan"))


async def waits_an_age(turn: Turn) -> Move:
    raise Retry("later", after_s=1e300)


async def misuses_a_move(turn: Turn) -> Move:
    return Complete(answer={1: 2})


UNSOUND = (
    nothing,
    cancels_itself,
    gives_an_object,
    gives_half_a_character,
    names_a_fact_twice,
    nests_too_deep,
    spends_less_than_nothing,
    waits_an_age,
)


@pytest.mark.parametrize("handler", UNSOUND, ids=lambda handler: handler.__name__)
async def test_what_is_no_proposal_is_a_bug_of_its_turn(stage: Stage, handler: Handler) -> None:
    failed = await fails(stage, handler)
    assert failed.error.code == "bug"
    assert len(failed.error.message) <= 512
    await stage.drained("PROP")
    assert await stage.dead_letters() == []


async def test_an_agent_goes_on_after_turns_that_broke(stage: Stage) -> None:
    async def fickle(turn: Turn) -> Any:
        broken = {handler.__name__: handler for handler in (*UNSOUND, comes_back_never, misuses_a_move)}
        wanted = turn.facts["text"]
        return await broken[wanted](turn) if wanted in broken else turn.complete("well")

    runtime = await stage.runtime(Agent("a", fickle))
    client = await stage.client()
    for handler in (*UNSOUND, comes_back_never, misuses_a_move):
        await client.submit(handler.__name__, policy="eager")
    request = await client.submit("now something else")
    assert (await client.wait(request, timeout_s=PATIENCE_S)).answer == "well"
    assert stage.runs(runtime)


@pytest.mark.parametrize("size", [300_000, 2_000_000], ids=["for-the-stream", "for-the-server"])
async def test_a_move_that_the_bus_cannot_hold_is_refused_in_outline_and_keeps_what_it_cost(
    stage: Stage, size: int
) -> None:
    async def huge(turn: Turn) -> Move:
        if turn.refusals:
            return turn.complete("short")
        turn.spend(tokens=77)
        return turn.complete("x" * size)

    request = await run(stage, huge)
    refused = is_((await stage.reaches(request, "request.completed"))[1], events.MoveRefused)
    assert (refused.refusal.rule, refused.move) == (Rule.SIZE, Complete(answer=None))
    assert refused.oversized > size
    assert refused.report.usage == Usage(tokens=77)


async def test_giving_up_is_a_move(stage: Stage) -> None:
    async def gives_up(turn: Turn) -> Move:
        return Fail(reason="cannot be done")

    event = is_(await ends(stage, await run(stage, gives_up)), events.RequestFailed)
    assert (event.code, event.reason) == ("failed", "cannot be done")


# --- tools ----------------------------------------------------------------------------------------


async def test_a_tool_that_is_not_allowed_is_not_run_and_the_turn_goes_to_people(stage: Stage) -> None:
    ran: list[str] = []

    @tool(effect="once")
    def pay() -> None:
        ran.append("paid")

    async def pays(turn: Turn) -> Move:
        await turn.call(pay)
        return turn.complete("paid")

    failed = await fails(stage, pays, name="e")
    assert (failed.error.code, failed.error.permanent) == ("action_not_allowed", True)
    assert ran == []


async def test_an_effect_has_the_same_key_in_every_round_and_a_second_equal_call_another(
    stage: Stage,
) -> None:
    keys: list[str] = []

    @tool(effect="idempotent")
    def pay(amount: int, idempotency_key: str = "") -> None:
        keys.append(idempotency_key)
        if len(keys) in (1, 3):
            raise Retry()

    async def pays(turn: Turn) -> Move:
        await turn.call(pay, amount=1)
        await turn.call(pay, amount=1)
        return turn.complete("paid")

    request = await run(stage, pays)
    await ends(stage, request)
    assert keys[0] == keys[1]  # it broke, and was tried again under its key
    assert keys[2] == keys[3]  # what was done before that is not done again
    assert len(set(keys)) == 2
    happened = await stage.log(request)
    assert isinstance(happened[-1], events.RequestCompleted)
    assert fold(happened).report_of(happened[-1]).actions == ("pay",)


async def test_an_ask_suspends_the_turn_and_its_reply_comes_to_the_code(stage: Stage) -> None:
    async def asks(turn: Turn) -> Move:
        if turn.round == 0:
            return turn.ask("which colour?", schema={"type": "string"})
        return turn.complete(f"painted {turn.reply}")

    request = await run(stage, asks)
    client = await stage.client()

    async def answer(question: Any) -> str:
        assert question.question == "which colour?"
        return "red"

    outcome = await client.wait(request, timeout_s=PATIENCE_S, on_question=answer)
    assert outcome.answer == "painted red"


async def test_an_ask_from_deep_in_the_code_that_expires_is_told_from_none(stage: Stage) -> None:
    looked: list[int] = []

    @tool
    async def look() -> str:
        looked.append(1)
        return "seen"

    async def deep(turn: Turn) -> Move:
        seen = await turn.call(look)
        if turn.expired:
            return turn.complete([seen, turn.reply, "nobody said anything"])
        return turn.ask("which colour?", expires_s=0.1)

    async def asks(turn: Turn) -> Move:
        assert turn.reply is None
        return await deep(turn)

    event = is_(await ends(stage, await run(stage, asks)), events.RequestCompleted)
    assert event.answer == ["seen", None, "nobody said anything"]
    assert looked == [1]
