"""A model that is asked anew in a replay: only in the rounds that are named, and only what has no record."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from mesh.agent import Agent
from mesh.model.choice import close_models
from mesh.replay.code import Replayed, Replayer
from mesh.testing import FleetHarness, StrictModel, driven_by
from tests.unit.replay import shop
from tests.vendors.claude import StubClaude
from tests.vendors.stand_in import Answer, calls, says

BRIEF = shop.SOURCE.replace("Be kind.", "Be brief.")
HISTORY = {"customer": "c-7", "year": 2026}
ANSWERS: list[Answer] = []


@pytest_asyncio.fixture
async def played(tmp_path: Path) -> FleetHarness:
    with driven_by(StrictModel(*shop.REPLIES)):
        return await shop.played(shop.agents_in(shop.SOURCE, tmp_path))


@pytest_asyncio.fixture
async def claude(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[StubClaude]:
    async with StubClaude(lambda wanted: ANSWERS.pop(0)) as stub:
        monkeypatch.setenv("ANTHROPIC_BASE_URL", stub.url)
        monkeypatch.setenv("ANTHROPIC_API_KEY", "stub")
        yield stub
        await close_models()


async def over(walk: FleetHarness, agents: dict[str, Agent], *live: tuple[str, str, int]) -> list[Replayed]:
    return await Replayer(agents, walk.recording, live=live).replay(walk.guard.bodies)


async def asked(walk: FleetHarness, agents: dict[str, Agent]) -> Replayed:
    """Ask the model anew where it would be asked otherwise."""
    [first] = [each for each in await over(walk, agents) if each.difference]
    assert first.difference is not None
    assert first.difference.kind == "prompt"
    assert first.models is not None
    assert first.models.model_calls == 2
    [again] = await over(walk, agents, (first.request, first.turn, first.round))
    return again


async def test_a_model_that_says_the_same_to_another_prompt_changes_nothing(
    played: FleetHarness, claude: StubClaude, tmp_path: Path
) -> None:
    ANSWERS[:] = [calls(("history", HISTORY)), says("It is on its way.")]
    again = await asked(played, shop.agents_in(BRIEF, tmp_path))
    assert (again.result, again.difference) == ("same", None)
    assert again.models is not None
    assert (again.models.model_calls, len(claude.asked)) == (2, 2)


async def test_another_answer_is_another_move(
    played: FleetHarness, claude: StubClaude, tmp_path: Path
) -> None:
    ANSWERS[:] = [calls(("history", HISTORY)), says("Soon.")]
    again = await asked(played, shop.agents_in(BRIEF, tmp_path))
    assert again.difference is not None
    assert again.difference.kind == "move"
    assert "Soon." in again.difference.says


async def test_a_tool_runs_in_no_case(played: FleetHarness, claude: StubClaude, tmp_path: Path) -> None:
    ANSWERS[:] = [calls(("history", {**HISTORY, "year": 1999}))]
    again = await asked(played, shop.agents_in(BRIEF, tmp_path))
    assert again.difference is not None
    assert again.difference.kind == "arguments"
    assert "1999" in again.difference.says


async def test_another_model_is_asked_with_the_recorded_prompt(
    played: FleetHarness, claude: StubClaude, tmp_path: Path
) -> None:
    """What its record answers, no model is asked."""
    agents = shop.agents_in(shop.SOURCE, tmp_path)
    [writer] = [each for each in await over(played, agents) if each.agent == "writer"]
    ANSWERS.clear()
    [again] = await over(played, agents, (writer.request, writer.turn, writer.round))
    assert (again.result, again.models, claude.asked) == ("same", None, [])
