"""What holds for every reference fleet: its rules do what its samples say, and its files agree."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from mesh.agent.definition import load
from mesh.fleet.setup import listed
from protocol.wire.prices import price_list
from tests.unit.agents.crews import CREWS, Crew
from tests.unit.agents.requests import Sample
from tests.unit.agents.walk import disagreements, walk

EVERY_CREW = pytest.mark.parametrize("crew", CREWS, ids=str)


def ruled() -> list[Any]:
    return [
        pytest.param(crew, sample, id=f"{crew}-{sample.id_hint}")
        for crew in CREWS
        for sample in crew.of_kind("ruled")
    ]


@pytest.mark.parametrize(("crew", "sample"), ruled())
async def test_a_request_that_rules_were_written_for_comes_to_what_it_should(
    crew: Crew, sample: Sample, records: Path
) -> None:
    assert disagreements(await walk(crew, sample.text, sample.facts), sample) == []


@EVERY_CREW
async def test_all_of_them_at_once_on_one_database_do_not_disturb_each_other(
    crew: Crew, records: Path
) -> None:
    found = await asyncio.gather(*(walk(crew, each.text, each.facts) for each in crew.samples))
    for sample, one in zip(crew.samples, found, strict=True):
        if sample.kind == "ruled":
            assert disagreements(one, sample) == []
        assert one.broke == []
        assert one.status in ("completed", "escalated")


@EVERY_CREW
def test_an_agent_is_allowed_what_its_tools_are_and_nothing_else(crew: Crew) -> None:
    for name, agent in crew.agents.items():
        section = crew.file.agents[name]
        assert agent.name == name
        assert load(str(section.module)) is agent
        assert set(section.actions or ()) == {tool.name for tool in agent.tools}
        assert section.description == agent.description
        assert agent.prompt_version


@EVERY_CREW
def test_every_model_that_an_agent_is_pinned_to_costs_what_the_vendors_list_says(crew: Crew) -> None:
    pinned = {agent.model for agent in crew.agents.values()}
    assert price_list(crew.file.prices) == listed(pinned)


@EVERY_CREW
def test_instructions_speak_of_every_intent_that_the_agent_takes(crew: Crew) -> None:
    for name, section in crew.file.agents.items():
        text = (crew.home / "prompts" / f"{name}.md").read_text(encoding="utf-8")
        assert [intent for intent in section.intents or () if f"`{intent}`" not in text] == []
