"""The reference fleets through the vendor's real SDK, against a stand-in that follows the same rules."""

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from mesh.model import ROUTING, WORK
from mesh.model import agent as driven
from tests.claude_stub import StubClaude
from tests.scripted_claude import ask_at, scripted_claude
from tests.unit.agents.crews import RECRUITING, SUPPORT, Crew
from tests.unit.agents.requests import Sample
from tests.unit.agents.walk import disagreements, walk

Standing = Callable[[Crew], AbstractAsyncContextManager[StubClaude]]


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch) -> Standing:
    """What stands in for the vendor, with a fleet's rules behind it."""

    @asynccontextmanager
    async def standing(crew: Crew) -> AsyncIterator[StubClaude]:
        async with scripted_claude(crew.home / "rules.toml") as stub:
            ask_at(stub.url, monkeypatch)
            yield stub
            await driven.close_models()

    return standing


def some() -> list[Any]:
    """A fourth of the support fleet's ruled samples, and all of the recruiting fleet's."""
    chosen = [(SUPPORT, sample) for sample in SUPPORT.of_kind("ruled")[::4]]
    chosen += [(RECRUITING, sample) for sample in RECRUITING.of_kind("ruled")]
    return [pytest.param(crew, sample, id=f"{crew}-{sample.id_hint}") for crew, sample in chosen]


@pytest.mark.parametrize(("crew", "sample"), some())
async def test_a_request_comes_to_the_same_end_with_the_same_prompts_and_tools(
    crew: Crew, sample: Sample, records: Path, stand_in: Standing
) -> None:
    async with stand_in(crew) as stub:
        assert disagreements(await walk(crew, sample.text, sample.facts), sample) == []
        assert stub.asked


@pytest.mark.parametrize(
    ("crew", "text"),
    [
        pytest.param(SUPPORT, "My router is offline. bram@example.org", id="support"),
        pytest.param(RECRUITING, "I am applying for v-102. tariq.aziz@example.com", id="recruiting"),
    ],
)
async def test_each_agent_asks_the_model_that_it_is_pinned_to(
    crew: Crew, text: str, records: Path, stand_in: Standing
) -> None:
    async with stand_in(crew) as stub:
        await walk(crew, text)
        assert {each.body["model"] for each in stub.asked} == {ROUTING, WORK}
        for each in stub.asked:
            agent = each.body["messages"][0]["content"][0]["text"].split("\n")[0].removeprefix("You are: ")
            assert each.body["model"] == crew.agents[agent].model
