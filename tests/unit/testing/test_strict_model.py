"""A model that says what was written down, and complains about anything else."""

import pytest

from mesh.agent.errors import failure_of
from mesh.model.loop import drive
from mesh.model.port import Prompt, Reply
from mesh.testing import StrictModel, says, turn


async def test_a_step_left_over_fails_as_the_context_ends() -> None:
    with (
        pytest.raises(AssertionError, match="1 of the model's steps left over"),
        StrictModel(says("one"), says("other")) as model,
    ):
        await drive(turn(), model, instructions="", tools=())


async def test_a_call_too_many_fails_even_if_somebody_swallows_it() -> None:
    model = StrictModel()
    with pytest.raises(AssertionError, match="a call too many, number 1, by agent") as said:
        await drive(turn(), model, instructions="", tools=())
    assert failure_of(said.value).code == "bug"
    with pytest.raises(AssertionError, match="a call too many"):
        model.done()


async def test_a_step_may_look_at_the_prompt() -> None:
    def looks(prompt: Prompt) -> Reply:
        assert "Summary: Add up." in prompt.brief
        return says("3")

    with StrictModel(looks) as model:
        move = await drive(turn(summary="Add up."), model, instructions="", tools=())
    assert move.answer == "3"  # type: ignore[union-attr]


async def test_an_error_of_the_test_itself_is_not_hidden_by_steps_left_over() -> None:
    with pytest.raises(KeyError), StrictModel(says("one")):
        raise KeyError("mine")


async def test_the_first_mistake_is_the_one_that_is_told() -> None:
    model = StrictModel(says("one"))
    await drive(turn(), model, instructions="", tools=())
    for number in (2, 3):
        with pytest.raises(AssertionError, match=f"number {number}, by agent"):
            await drive(turn(), model, instructions="", tools=())
    with pytest.raises(AssertionError, match="a call too many, number 2, by agent"):
        model.done()


@pytest.mark.parametrize(("text", "said"), [("no parcel", "no parcel"), ("", "an assertion of step 1")])
async def test_what_a_step_asserts_fails_even_if_another_round_goes_well(text: str, said: str) -> None:
    def looks(prompt: Prompt) -> Reply:
        raise AssertionError(text)

    model = StrictModel(looks, says("done"))
    with pytest.raises(AssertionError):
        await drive(turn(), model, instructions="", tools=())
    await drive(turn(), model, instructions="", tools=())
    with pytest.raises(AssertionError, match=said):
        model.done()
