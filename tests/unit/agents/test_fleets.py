"""What holds for every reference fleet: its rules do what its samples say, and its files agree."""

import asyncio
import re
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from mesh.agent.definition import load
from mesh.fleet.setup import listed
from mesh.model import ROUTING, WORK
from mesh.model import choice as driven
from mesh.model.prompt import render
from protocol.wire.handoff import Fact, Rule
from protocol.wire.prices import price_list
from tests.scripted_claude import ask_at, scripted_claude
from tests.servers import ROOT
from tests.unit.agents.crews import (
    CODE,
    CREWS,
    EVERY_CREW,
    RECRUITING,
    RESEARCH,
    SUPPORT,
    Crew,
    CrewWithRecords,
    Sample,
    disagreements,
    walk,
)
from tests.vendors.claude import StubClaude

WITH_RECORDS = pytest.mark.parametrize("crew", CREWS, ids=str)
ANY_CREW = pytest.mark.parametrize("crew", EVERY_CREW, ids=str)


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


@WITH_RECORDS
async def test_all_of_them_at_once_on_one_database_do_not_disturb_each_other(
    crew: Crew, records: Path
) -> None:
    found = await asyncio.gather(*(walk(crew, each.text, each.facts) for each in crew.samples))
    for sample, one in zip(crew.samples, found, strict=True):
        if sample.kind == "ruled":
            assert disagreements(one, sample) == []
        assert one.broke == []
        assert one.status in ("completed", "escalated")


@ANY_CREW
def test_an_agent_is_allowed_what_its_tools_are_and_nothing_else(crew: Crew) -> None:
    for name, agent in crew.agents.items():
        section = crew.file.agents[name]
        assert agent.name == name
        assert load(str(section.module)) is agent
        assert set(section.actions or ()) == {tool.name for tool in agent.tools}
        assert section.description == agent.description
        assert agent.prompt_version


@ANY_CREW
def test_every_model_that_an_agent_is_pinned_to_costs_what_the_vendors_list_says(crew: Crew) -> None:
    pinned = {agent.model for agent in crew.agents.values()}
    assert price_list(crew.file.prices) == listed(pinned)


@ANY_CREW
def test_instructions_speak_of_every_intent_that_the_agent_takes(crew: Crew) -> None:
    for name, section in crew.file.agents.items():
        for intent in section.intents or ():
            assert f"`{intent}`" in (crew.home / "prompts" / f"{name}.md").read_text(encoding="utf-8")


ADDRESS = re.compile(r"[\w.+-]+@[\w-]+(?:\.[\w-]+)+")


@WITH_RECORDS
def test_there_are_enough_of_every_kind(crew: Crew) -> None:
    kinds = Counter(sample.kind for sample in crew.samples)
    assert sum(kinds.values()) >= 40
    assert kinds["paraphrase"] + kinds["ambiguous"] >= 10
    assert min(kinds.values()) >= 4


@ANY_CREW
def test_every_request_is_told_apart_and_says_what_it_is_about(crew: Crew) -> None:
    names = Counter(sample.id_hint for sample in crew.samples)
    assert [name for name, count in names.items() if count > 1] == []
    texts = Counter(sample.text for sample in crew.samples)
    assert [text for text, count in texts.items() if count > 1] == []
    assert all(sample.about.strip() and "\n" not in sample.about for sample in crew.samples)


@ANY_CREW
def test_four_requests_are_worth_a_story_and_a_person_decides_one(crew: Crew) -> None:
    stories = [sample for sample in crew.samples if sample.story]
    assert len(stories) == 4
    assert all(sample.kind == "ruled" for sample in stories)
    assert [sample.expect.status for sample in stories if sample.decision is not None] == ["escalated"]
    assert [sample for sample in crew.samples if sample.decision is not None and not sample.story] == []


@pytest.mark.parametrize("crew", [RESEARCH, CODE], ids=str)
def test_the_page_of_the_fleets_says_how_many_requests_rules_cover(crew: Crew) -> None:
    page = (ROOT / "agents" / "README.md").read_text(encoding="utf-8")
    part = page.partition(f"## {crew.name}:")[2].partition("\n## ")[0]
    assert f"right end of {len(crew.of_kind('ruled'))} of {len(crew.samples)} requests" in part


def test_the_walks_that_the_support_fleet_is_there_to_show_are_all_among_them() -> None:
    walks = {(sample.expect.status, sample.expect.path) for sample in SUPPORT.of_kind("ruled")}
    assert {
        ("completed", ("triage",)),
        ("completed", ("triage", "billing")),
        ("completed", ("triage", "technical")),
        ("completed", ("triage", "technical", "triage", "billing")),
        ("escalated", ("triage",)),
        ("escalated", ("triage", "billing")),
        ("escalated", ("triage", "technical")),
    } <= walks
    refused = Counter(str(rule) for sample in SUPPORT.of_kind("ruled") for rule in sample.expect.refused)
    assert refused["cycle"] >= 1
    assert refused["depth"] >= 1


@ANY_CREW
def test_no_request_is_written_into_the_rules(crew: Crew) -> None:
    rules = crew.rules.lower()
    for sample in crew.samples:
        assert sample.text.lower() not in rules
    for sample in crew.of_kind("paraphrase", "ambiguous"):
        words = re.findall(r"[a-z']+", sample.text.lower())
        pieces = [" ".join(words[at : at + 5]) for at in range(len(words) - 4)]
        assert [piece for piece in pieces if piece in rules] == []


IDS = {"support": ("customers", "charges", "devices"), "recruiting": ("candidates", "vacancies", "slots")}
PEOPLE = {"support": "customers", "recruiting": "candidates"}


@WITH_RECORDS
def test_the_rules_name_nobody_and_nothing_on_record(crew: CrewWithRecords, records: Path) -> None:
    with crew.connected() as db:
        named = [row[0] for row in db.execute(f"SELECT name FROM {PEOPLE[crew.name]}")]
        named += [row[0] for table in IDS[crew.name] for row in db.execute(f"SELECT id FROM {table}")]
    assert len(named) > 50
    assert [name for name in named if name in crew.rules] == []


@WITH_RECORDS
def test_every_address_is_a_reserved_one(crew: Crew) -> None:
    found = [address for sample in crew.samples for address in ADDRESS.findall(sample.text)]
    found += ADDRESS.findall((crew.home / "seed.sql").read_text(encoding="utf-8"))
    assert len(found) > 40
    assert {address.rpartition(".")[0].rpartition("@")[2] for address in found} == {"example"}


async def test_technical_never_learns_who_a_customer_is(records: Path) -> None:
    with SUPPORT.connected() as db:
        people = [word for row in db.execute("SELECT name, email, phone FROM customers") for word in row]
    seen = 0
    for sample in SUPPORT.of_kind("ruled"):
        for turn in (await walk(SUPPORT, sample.text, sample.facts)).turns:
            if turn.agent == "technical":
                seen += 1
                brief = render(turn)
                assert "text" not in turn.facts
                assert sample.text not in brief
                assert [each for each in people if each.lower() in brief.lower()] == []
    assert seen > 15


async def test_what_was_withheld_from_technical_is_there_again_for_billing(records: Path) -> None:
    text = "My router has been broken for a week and I want a credit for that. dmitri.orlov@example.com"
    going = await walk(SUPPORT, text)
    technical, billing = going.turns[1], going.turns[3]
    assert (technical.agent, billing.agent) == ("technical", "billing")
    assert technical.withheld == ("pii",)
    assert billing.withheld == ()
    assert billing.facts["customer_name"] == "Dmitri Orlov"
    assert billing.facts["text"] == text
    assert billing.facts["diagnosis"] == "hardware"


async def test_a_refusal_is_in_the_brief_of_the_next_round_and_is_answered_by_another_move(
    records: Path,
) -> None:
    text = "You said you fixed it, but the router is still bad. oskar.berg@example.com"
    going = await walk(SUPPORT, text)
    first, second = (
        turn for turn in going.turns if turn.agent == "triage" and turn.handoff.move == "hand_back"
    )
    assert (first.round, second.round, first.id) == (0, 1, second.id)
    (refused,) = [past.refusal for past in second.past if past.refusal is not None]
    assert (refused.rule, refused.numbers["edge"]) == (Rule.CYCLE, ["triage", "technical"])
    assert refused.hint in render(second)


async def test_an_effect_happens_once_though_a_refused_turn_runs_it_again(records: Path) -> None:
    text = "I want to return the router, it was broken from the start. priya.nair@example.org"
    going = await walk(SUPPORT, text)
    assert going.refused == ["depth"]
    assert "89.00 EUR" in going.answer
    with SUPPORT.connected() as db:
        assert db.execute("SELECT count(*) FROM effects WHERE tool = 'refund_charge'").fetchone()[0] == 1


async def test_a_label_from_the_client_is_kept_and_one_that_lacks_is_put_on(records: Path) -> None:
    facts = (
        Fact(key="email", value="bram@example.org"),
        Fact(key="iban", value="secret number", labels=("pii",)),
    )
    going = await walk(SUPPORT, "My router is offline.", facts)
    technical = next(turn for turn in going.turns if turn.agent == "technical")
    assert set(technical.facts) == {"customer_id", "kind", "problem"}


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
    """All of the recruiting fleet's ruled samples, and a fourth of the others'."""
    chosen: list[tuple[Crew, Sample]] = [(SUPPORT, sample) for sample in SUPPORT.of_kind("ruled")[::4]]
    chosen += [(RECRUITING, sample) for sample in RECRUITING.of_kind("ruled")]
    chosen += [(RESEARCH, sample) for sample in RESEARCH.of_kind("ruled")[::4]]
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
