"""The support fleet at work: its agents' own code and the guard's own verdicts, without a bus."""

import asyncio
from collections.abc import Mapping
from pathlib import Path

import pytest

from agents.support.database import connected
from mesh.agent.definition import Agent, load
from mesh.fleet import FleetFile
from mesh.model.brief import render
from protocol.handoff import Fact
from tests.unit.agents.conftest import SUPPORT
from tests.unit.agents.requests import Sample, of_kind, samples
from tests.unit.agents.walk import Walk, walk

Agents = Mapping[str, Agent]


def agrees(found: Walk, sample: Sample) -> None:
    assert found.broke == []
    assert (found.status, tuple(found.path)) == (sample.expect.status, sample.expect.path)
    assert [part for part in sample.expect.answer_has if part not in found.answer] == []
    assert found.refused == list(sample.expect.refused)


@pytest.mark.parametrize("sample", of_kind("ruled"), ids=lambda sample: sample.id_hint)
async def test_a_request_that_rules_were_written_for_comes_to_what_it_should(
    sample: Sample, support: FleetFile, agents: Agents, records: Path
) -> None:
    agrees(await walk(support, agents, sample.text, sample.facts), sample)


async def test_all_of_them_at_once_on_one_database_do_not_disturb_each_other(
    support: FleetFile, agents: Agents, records: Path
) -> None:
    everything = samples()
    found = await asyncio.gather(*(walk(support, agents, each.text, each.facts) for each in everything))
    for sample, one in zip(everything, found, strict=True):
        if sample.kind == "ruled":
            agrees(one, sample)
        assert one.broke == []
        assert one.status in ("completed", "escalated")


async def test_technical_never_learns_who_a_customer_is(
    support: FleetFile, agents: Agents, records: Path
) -> None:
    with connected() as db:
        people = [word for row in db.execute("SELECT name, email, phone FROM customers") for word in row]
    seen = 0
    for sample in of_kind("ruled"):
        for turn in (await walk(support, agents, sample.text, sample.facts)).turns:
            if turn.agent == "technical":
                seen += 1
                brief = render(turn)
                assert "text" not in turn.facts
                assert sample.text not in brief
                assert [each for each in people if each.lower() in brief.lower()] == []
    assert seen > 15


async def test_what_was_withheld_from_technical_is_there_again_for_billing(
    support: FleetFile, agents: Agents, records: Path
) -> None:
    text = "My router has been broken for a week and I want a credit for that. dmitri.orlov@example.com"
    going = await walk(support, agents, text)
    technical, billing = going.turns[1], going.turns[3]
    assert (technical.agent, billing.agent) == ("technical", "billing")
    assert technical.withheld == ("pii",)
    assert billing.withheld == ()
    assert billing.facts["customer_name"] == "Dmitri Orlov"
    assert billing.facts["text"] == text
    assert billing.facts["diagnosis"] == "hardware"


async def test_a_refusal_is_in_the_brief_of_the_next_round_and_is_answered_by_another_move(
    support: FleetFile, agents: Agents, records: Path
) -> None:
    going = await walk(
        support, agents, "The router keeps failing, please send a technician. cem.aydin@example.com"
    )
    first, second = (turn for turn in going.turns if turn.agent == "technical")
    assert (first.round, second.round, first.id) == (0, 1, second.id)
    assert "rule cycle refused transfer to triage" in render(second)
    assert "hand_back goes to triage" in render(second)


async def test_an_effect_happens_once_though_a_refused_turn_runs_it_again(
    support: FleetFile, agents: Agents, records: Path
) -> None:
    text = "I want to return the router, it was broken from the start. priya.nair@example.org"
    going = await walk(support, agents, text)
    assert going.refused == ["depth"]
    assert "89.00 EUR" in going.answer
    with connected() as db:
        assert db.execute("SELECT count(*) FROM effects WHERE tool = 'refund_charge'").fetchone()[0] == 1


async def test_the_same_charge_is_refunded_to_the_first_of_two_requests(
    support: FleetFile, agents: Agents, records: Path
) -> None:
    text = "Please refund the late fee. mara.novak@example.com"
    first, second = [await walk(support, agents, text) for _ in range(2)]
    assert "we have refunded 12.50 EUR" in first.answer
    assert "already refunded" in second.answer


async def test_a_label_from_the_client_is_kept_and_one_that_lacks_is_put_on(
    support: FleetFile, agents: Agents, records: Path
) -> None:
    facts = (
        Fact(key="email", value="bram@example.org"),
        Fact(key="iban", value="secret number", labels=("pii",)),
    )
    going = await walk(support, agents, "My router is offline.", facts)
    technical = next(turn for turn in going.turns if turn.agent == "technical")
    assert set(technical.facts) == {"customer_id", "kind", "problem"}


async def test_a_model_that_this_build_does_not_have_ends_with_a_person(
    support: FleetFile, agents: Agents, records: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MESH_MODEL", "claude")
    going = await walk(support, agents, "What are your opening hours?")
    assert (going.broke, going.status) == (["model.unavailable"], "escalated")


def test_an_agent_is_allowed_what_its_tools_are_and_nothing_else(support: FleetFile, agents: Agents) -> None:
    for name, agent in agents.items():
        section = support.agents[name]
        assert load(str(section.module)) is agent
        assert set(section.actions or ()) == {tool.name for tool in agent.tools}
        assert section.description == agent.description
        assert agent.prompt_version


def test_instructions_speak_of_every_intent_that_the_agent_takes(support: FleetFile) -> None:
    for name, section in support.agents.items():
        text = (SUPPORT / "prompts" / f"{name}.md").read_text(encoding="utf-8")
        assert [intent for intent in section.intents or () if f"`{intent}`" not in text] == []
