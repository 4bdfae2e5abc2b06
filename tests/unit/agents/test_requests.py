"""The sample requests: well-formed, varied, and not all written by whoever wrote the rules."""

import re
from collections import Counter

from agents.support.database import connected
from mesh.fleet import FleetFile
from tests.unit.agents.conftest import SUPPORT
from tests.unit.agents.requests import of_kind, samples

ADDRESS = re.compile(r"[\w.+-]+@[\w-]+(?:\.[\w-]+)+")


def test_there_are_enough_of_every_kind() -> None:
    kinds = Counter(sample.kind for sample in samples())
    assert sum(kinds.values()) >= 44
    assert kinds["paraphrase"] + kinds["ambiguous"] >= 12
    assert min(kinds.values()) >= 5


def test_every_request_is_told_apart_and_says_what_it_is_about() -> None:
    names = Counter(sample.id_hint for sample in samples())
    assert [name for name, count in names.items() if count > 1] == []
    texts = Counter(sample.text for sample in samples())
    assert [text for text, count in texts.items() if count > 1] == []
    assert all(sample.about.strip() and "\n" not in sample.about for sample in samples())


def test_a_path_begins_at_the_entry_and_leads_through_the_fleet(support: FleetFile) -> None:
    for sample in samples():
        assert sample.expect.path[0] == support.entry
        assert set(sample.expect.path) <= set(support.agents)


def test_only_an_answered_request_is_expected_to_have_an_answer() -> None:
    assert [s.id_hint for s in samples() if s.expect.answer_has and s.expect.status != "completed"] == []


def test_the_walks_that_the_fleet_is_there_to_show_are_all_among_them() -> None:
    walks = {(sample.expect.status, sample.expect.path) for sample in of_kind("ruled")}
    assert {
        ("completed", ("triage",)),
        ("completed", ("triage", "billing")),
        ("completed", ("triage", "technical")),
        ("completed", ("triage", "technical", "triage", "billing")),
        ("escalated", ("triage",)),
        ("escalated", ("triage", "billing")),
        ("escalated", ("triage", "technical")),
    } <= walks
    refused = Counter(rule for sample in of_kind("ruled") for rule in sample.expect.refused)
    assert refused["cycle"] >= 2
    assert refused["depth"] >= 1


def test_no_request_is_written_into_the_rules() -> None:
    rules = (SUPPORT / "rules.toml").read_text(encoding="utf-8").lower()
    for sample in samples():
        assert sample.text.lower() not in rules
    for sample in of_kind("paraphrase", "ambiguous"):
        words = re.findall(r"[a-z']+", sample.text.lower())
        pieces = [" ".join(words[at : at + 5]) for at in range(len(words) - 4)]
        assert [piece for piece in pieces if piece in rules] == []


def test_the_rules_name_no_customer_and_no_charge(records: object) -> None:
    rules = (SUPPORT / "rules.toml").read_text(encoding="utf-8")
    with connected() as db:
        named = [row[0] for row in db.execute("SELECT name FROM customers UNION SELECT id FROM customers")]
        named += [row[0] for row in db.execute("SELECT id FROM charges UNION SELECT id FROM devices")]
        assert len(named) > 100
        assert [name for name in named if name in rules] == []


def test_every_address_is_a_reserved_one() -> None:
    found = [address for sample in samples() for address in ADDRESS.findall(sample.text)]
    found += ADDRESS.findall((SUPPORT / "seed.sql").read_text(encoding="utf-8"))
    assert len(found) > 40
    assert {address.rpartition(".")[0].rpartition("@")[2] for address in found} == {"example"}
