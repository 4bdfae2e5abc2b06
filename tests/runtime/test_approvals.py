"""Approvals through a real guard: who is asked, what they see, and that a yes is for one effect alone."""

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from mesh.agent import ToolRefused, Turn, tool
from mesh.agent.definition import Agent
from mesh.agent.tools import Tool
from mesh.client import Question
from protocol.wire import events
from protocol.wire.commands import Cancel, ReplyToAsk
from protocol.wire.ids import HUMAN
from protocol.wire.moves import Ask, Move
from tests.certain import is_
from tests.guard.stage import Stage
from tests.servers import PATIENCE_S


class Till:
    """A tool with an effect, and what it did."""

    def __init__(self, **how: Any) -> None:
        self.paid: list[int] = []

        @tool(effect="idempotent", **how)
        async def pay(amount: int, idempotency_key: str) -> str:
            """Pay."""
            self.paid.append(amount)
            return idempotency_key

        self.pay: Tool = pay


async def begun(stage: Stage, code: Callable[[Turn], Awaitable[Move]], **submit: Any) -> str:
    await stage.runtime(Agent("a", code))
    request: str = await (await stage.client()).submit("pay", **{"policy": "eager", **submit})
    return request


async def suspended(stage: Stage, request: str, count: int = 1) -> events.TurnSuspended:
    log = await stage.reaches(request, "turn.suspended", count)
    found = [event for event in log if isinstance(event, events.TurnSuspended)][-1]
    return found


async def says(stage: Stage, asked: events.TurnSuspended, value: Any, *, by: str = "Ada") -> None:
    reply = ReplyToAsk(id=f"r{asked.n}", by=by, turn=asked.turn, round=asked.round, value=value)
    await stage.control(asked.request, reply)


async def ends(stage: Stage, request: str) -> events.AnyEvent:
    return (await (await stage.client()).wait(request, timeout_s=PATIENCE_S)).event


def paying(till: Till) -> Callable[[Turn], Awaitable[Move]]:
    async def code(turn: Turn) -> Move:
        try:
            return turn.complete(await turn.call(till.pay, amount=5))
        except ToolRefused as no:
            return turn.complete([no.reason, str(no)])

    return code


async def test_people_see_what_they_approve_and_then_it_happens_once(stage: Stage) -> None:
    till = Till(approve="human")
    request = await begun(stage, paying(till))
    asked = await suspended(stage, request)
    assert asked.to == HUMAN
    assert 'pay {"amount":5}' in asked.ask.question
    await stage.inbox_drained("a")
    assert till.paid == []
    await says(stage, asked, True)
    completed = is_(await ends(stage, request), events.RequestCompleted)
    assert till.paid == [5]
    assert completed.answer == asked.ask.digest
    assert await stage.all_types(request) == [
        "request.opened",
        "facts.withheld",  # before the question
        "turn.suspended",
        "turn.resumed",
        "facts.withheld",  # before the end
        "request.completed",
    ]
    resumed = is_((await stage.log(request))[3], events.TurnResumed)
    (past,) = resumed.work.past
    assert (past.asked, past.by, past.reply) == (asked.ask.digest, "Ada", True)


async def test_the_client_approves_what_is_the_clients(stage: Stage) -> None:
    till = Till(approve="client")
    request = await begun(stage, paying(till))
    client = await stage.client()

    async def answer(question: Question) -> bool:
        assert "pay" in question.question
        return True

    await client.wait(request, timeout_s=PATIENCE_S, on_question=answer)
    assert till.paid == [5]


@pytest.mark.parametrize("value", [False, "yes"])
async def test_a_no_is_told_to_the_code(stage: Stage, value: Any) -> None:
    till = Till(approve="human")
    request = await begun(stage, paying(till))
    await says(stage, await suspended(stage, request), value)
    completed = is_(await ends(stage, request), events.RequestCompleted)
    assert completed.answer[0] == "not_approved"
    assert "Ada" in completed.answer[1]
    assert till.paid == []


async def test_no_word_in_time_is_a_no(stage: Stage) -> None:
    till = Till(approve="human", approve_within_s=0.2)
    request = await begun(stage, paying(till))
    completed = is_(await ends(stage, request), events.RequestCompleted)
    assert completed.answer[0] == "approval_expired"
    assert till.paid == []


async def test_other_arguments_than_those_approved_are_asked_for_again(stage: Stage) -> None:
    till = Till(approve="human")
    amounts = iter((5, 500, 500))

    async def fickle(turn: Turn) -> Move:
        return turn.complete(await turn.call(till.pay, amount=next(amounts)))

    request = await begun(stage, fickle)
    first = await suspended(stage, request)
    await says(stage, first, True)
    second = await suspended(stage, request, 2)
    assert till.paid == []
    assert '"amount":500' in second.ask.question
    assert second.ask.digest != first.ask.digest
    await says(stage, second, True)
    await ends(stage, request)
    assert till.paid == [500]


async def test_a_yes_holds_in_the_rounds_after_it(stage: Stage) -> None:
    till = Till(approve="human")

    async def stubborn(turn: Turn) -> Move:
        if len(turn.refusals) == 0 and any(past.asked for past in turn.past):
            return turn.transfer("nobody", summary="before it is done")
        return turn.complete(await turn.call(till.pay, amount=5))

    request = await begun(stage, stubborn)
    await says(stage, await suspended(stage, request), True)
    await ends(stage, request)
    assert till.paid == [5]
    assert (await stage.types(request)).count("turn.suspended") == 1


async def test_approvals_count_as_asks_and_one_too_many_is_a_no(stage: Stage) -> None:
    till = Till(approve="human")
    reasons: list[str] = []

    async def greedy(turn: Turn) -> Move:
        reasons.clear()
        for amount in range(4):
            try:
                await turn.call(till.pay, amount=amount)
            except ToolRefused as no:
                reasons.append(str(no))
        return turn.complete("done")

    request = await begun(stage, greedy)
    for count in (1, 2, 3):
        await says(stage, await suspended(stage, request, count), True)
    await ends(stage, request)
    assert till.paid == [0, 1, 2]
    (reason,) = reasons
    assert reason.startswith("nobody could be asked to approve pay: asks: ")


async def test_whoever_replies_has_no_say_in_what_was_approved(stage: Stage) -> None:
    """The code's own question is answered `true`: that approves nothing."""
    till = Till(approve="client")

    async def asks_first(turn: Turn) -> Move:
        if turn.reply is None:
            return turn.ask("shall we begin?")
        return await paying(till)(turn)

    request = await begun(stage, asks_first)
    questions: list[str] = []

    async def answer(question: Question) -> bool:
        questions.append(question.question)
        return len(questions) == 1

    client = await stage.client()
    event = (await client.wait(request, timeout_s=PATIENCE_S, on_question=answer)).event
    assert questions[0] == "shall we begin?"
    assert 'pay {"amount":5}' in questions[1]
    assert till.paid == []
    assert isinstance(event, events.RequestCompleted)
    assert event.answer[0] == "not_approved"


async def test_code_cannot_go_on_as_if_it_had_been_approved(stage: Stage) -> None:
    till = Till(approve="human")

    async def brazen(turn: Turn) -> Move:
        try:
            await turn.call(till.pay, amount=5)
        except Exception:
            return turn.complete("paid")
        raise AssertionError("was paid")

    request = await begun(stage, brazen)
    asked = await suspended(stage, request)
    assert isinstance(asked.ask, Ask)
    assert await stage.types(request) == ["request.opened", "turn.suspended"]
    await stage.control(request, Cancel(id="x"))
    await ends(stage, request)
    assert till.paid == []
