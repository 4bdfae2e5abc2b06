"""A graph of LangGraph whose process dies goes on where its journal ends. Nothing is paid for twice."""

import pytest

from tests.adapters.stage import Stage

SCRIPT = "langgraph_process.py"
pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest.mark.parametrize(("agent", "times"), [("a", 1), ("b", 2)], ids=["adapted", "bare"])
async def test_what_a_dead_process_did_is_done_again_only_by_a_bare_agent(
    stage: Stage, agent: str, times: int
) -> None:
    outcome = await stage.ask(agent, "Pay me back", dies_at="turn.journaled")
    assert outcome.answer == "Refunded."
    done = [line.split()[0] for line in stage.world]
    assert done == ["model", "refund", "model"] * times


async def test_an_effect_whose_end_is_unknown_runs_again_under_its_key(stage: Stage) -> None:
    await stage.ask("a", "Pay me back", dies_at="effect.ran")
    asked, first, second, answered = stage.world
    assert (asked, answered) == ("model", "model")
    assert first == second
    assert len(first.split()) == 3, "the tool saw its key"
