"""A loop reads what a step brought while that is being stored, and does nothing with it before it is."""

import asyncio
import contextlib

import pytest

from mesh.agent import Turn, tool
from mesh.agent.errors import Fenced
from mesh.bus.stores import StepTaken
from mesh.model.loop import drive
from mesh.testing import MemorySteps, StrictModel, calls, says, turn
from protocol.wire.moves import Complete
from tests.unit.model.doubles import TalkingModel
from tests.unit.model.doubles import says as costs


class HeldSteps(MemorySteps):
    """Steps that are under way until they may be stored; if they are another's, they are not."""

    def __init__(self) -> None:
        super().__init__()
        self.may_store = asyncio.Semaphore(0)
        self.on_the_way: list[str] = []
        self.is_anothers = False

    async def put(self, request: str, turn: str, name: str, body: bytes) -> None:
        self.on_the_way.append(name)
        await self.may_store.acquire()
        if self.is_anothers:
            raise StepTaken(name)
        await super().put(request, turn, name, body)


def spent(given: Turn) -> tuple[int, int]:
    """Return tokens and calls as the turn reports them."""
    usage = given.execution.report.usage
    return usage.tokens, usage.model_calls


async def passes() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


async def test_nothing_is_done_with_what_a_model_says_before_that_is_stored() -> None:
    """The reply is read, the next prompt is made, and the move is checked, while a step is on its way."""
    ran: list[str] = []

    @tool
    async def note(key: str) -> str:
        """Note something."""
        ran.append(key)
        return key

    steps, model = HeldSteps(), StrictModel(calls(("note", {"key": "x"})), says("done"))
    driven = asyncio.ensure_future(drive(turn(steps=steps), model, instructions="", tools=(note,)))
    await passes()
    assert (steps.on_the_way, ran, len(model.prompts)) == (["0-0"], [], 1)
    steps.may_store.release()
    await passes()
    assert (steps.on_the_way, ran, len(model.prompts)) == (["0-0", "0-1"], ["x"], 1)
    steps.may_store.release()
    await passes()
    assert (steps.on_the_way, len(model.prompts)) == (["0-0", "0-1", "0-2"], 2)
    assert not driven.done()
    steps.may_store.release()
    assert await driven == Complete(answer="done")


async def test_a_reply_that_another_instance_has_stored_comes_to_nothing() -> None:
    @tool
    async def note(key: str) -> str:
        """Note something."""
        raise AssertionError("it is another's")

    steps = HeldSteps()
    steps.is_anothers = True
    steps.may_store.release()
    given = turn(steps=steps)
    for _ in range(2):
        with pytest.raises(Fenced):
            await drive(given, StrictModel(calls(("note", {"key": "x"}))), instructions="", tools=(note,))
    with pytest.raises(Fenced):
        await given.execution.journal.finish()


async def test_code_that_gives_up_on_the_loop_has_paid_for_its_reply_all_the_same() -> None:
    given = turn(steps=(held := HeldSteps()))
    model = TalkingModel(costs("done", tokens=6, model_calls=1))
    driven = asyncio.ensure_future(drive(given, model, instructions="", tools=()))
    await passes()
    driven.cancel()
    await asyncio.gather(driven, return_exceptions=True)
    assert spent(given) == (0, 0)
    held.may_store.release()
    await given.execution.journal.finish()
    assert spent(given) == (6, 1)


async def test_a_round_that_is_over_gives_up_a_step_on_its_way() -> None:
    given = turn(steps=HeldSteps())
    model = TalkingModel(costs("done", tokens=6, model_calls=1))
    driven = asyncio.ensure_future(drive(given, model, instructions="", tools=()))
    await passes()
    driven.cancel()
    await asyncio.gather(driven, return_exceptions=True)
    given.execution.close()
    await passes()
    assert asyncio.all_tasks() == {asyncio.current_task()}


@pytest.mark.parametrize(("held_s", "asked"), [(3.1, 0), (2.0, 1)])
async def test_no_model_is_asked_after_half_a_lease_by_an_instance_whose_turn_another_has(
    held_s: float, asked: int
) -> None:
    given, model = turn(), StrictModel(says("done"))
    journal = given.execution.journal

    async def is_overtaken() -> bool:
        return True

    journal._lease_s, journal._is_overtaken = 6.0, is_overtaken
    journal.progressed_at -= held_s
    with pytest.raises(Fenced) if not asked else contextlib.nullcontext():
        await drive(given, model, instructions="", tools=())
    assert len(model.prompts) == asked
