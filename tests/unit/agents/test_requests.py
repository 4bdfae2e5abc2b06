"""The sample requests: well-formed, varied, and not all written by whoever wrote the rules."""

import re
from collections import Counter
from pathlib import Path

import pytest

from tests.unit.agents.crews import CREWS, SUPPORT, Crew

ADDRESS = re.compile(r"[\w.+-]+@[\w-]+(?:\.[\w-]+)+")
EVERY_CREW = pytest.mark.parametrize("crew", CREWS, ids=str)


@EVERY_CREW
def test_there_are_enough_of_every_kind(crew: Crew) -> None:
    kinds = Counter(sample.kind for sample in crew.samples)
    assert sum(kinds.values()) >= 40
    assert kinds["paraphrase"] + kinds["ambiguous"] >= 10
    assert min(kinds.values()) >= 4


@EVERY_CREW
def test_every_request_is_told_apart_and_says_what_it_is_about(crew: Crew) -> None:
    names = Counter(sample.id_hint for sample in crew.samples)
    assert [name for name, count in names.items() if count > 1] == []
    texts = Counter(sample.text for sample in crew.samples)
    assert [text for text, count in texts.items() if count > 1] == []
    assert all(sample.about.strip() and "\n" not in sample.about for sample in crew.samples)


@EVERY_CREW
def test_a_path_begins_at_the_entry_and_leads_through_the_fleet(crew: Crew) -> None:
    for sample in crew.samples:
        assert sample.expect.path[0] == crew.file.entry
        assert set(sample.expect.path) <= set(crew.file.agents)


@EVERY_CREW
def test_only_an_answered_request_is_expected_to_have_an_answer(crew: Crew) -> None:
    assert [s.id_hint for s in crew.samples if s.expect.answer_has and s.expect.status != "completed"] == []


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
    assert refused["cycle"] >= 2
    assert refused["depth"] >= 1


@EVERY_CREW
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


@EVERY_CREW
def test_the_rules_name_nobody_and_nothing_on_record(crew: Crew, records: Path) -> None:
    with crew.connected() as db:
        named = [row[0] for row in db.execute(f"SELECT name FROM {PEOPLE[crew.name]}")]
        named += [row[0] for table in IDS[crew.name] for row in db.execute(f"SELECT id FROM {table}")]
    assert len(named) > 50
    assert [name for name in named if name in crew.rules] == []


@EVERY_CREW
def test_every_address_is_a_reserved_one(crew: Crew) -> None:
    found = [address for sample in crew.samples for address in ADDRESS.findall(sample.text)]
    found += ADDRESS.findall((crew.home / "seed.sql").read_text(encoding="utf-8"))
    assert len(found) > 40
    assert {address.rpartition(".")[0].rpartition("@")[2] for address in found} == {"example"}
