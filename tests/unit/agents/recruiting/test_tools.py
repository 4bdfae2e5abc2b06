"""The recruiting fleet's tools, each against a fresh database."""

from typing import Any

import pytest

from agents.recruiting import compliance, connected, intake, scheduling, screening
from agents.recruiting import offer as offers
from mesh.agent.errors import ToolArgumentsInvalid, ToolError
from mesh.agent.tools import NOT_DONE

pytestmark = pytest.mark.usefixtures("records")


def one(query: str, *values: Any) -> Any:
    with connected() as db:
        return db.execute(query, values).fetchone()[0]


def test_an_address_is_registered_once() -> None:
    first = intake.register_candidate("Lea Sommer", "lea@example.org", "key-1")
    assert first["created"]
    assert intake.register_candidate("Lea Sommer", "lea@example.org", "key-1") == first
    again = intake.register_candidate("L. Sommer", "Lea@example.org", "key-2")
    assert again == {"candidate_id": first["candidate_id"], "created": False}
    assert one("SELECT name FROM candidates WHERE id = ?", first["candidate_id"]) == "Lea Sommer"


async def test_details_are_noted_as_people_write_them() -> None:
    said = {
        "phone": " 01632 960999 ",
        "salary_expectation": "61,500 EUR",
        "skills": "Python, SQL and Singing",
    }
    noted = await intake.note_details.run({"candidate_id": "k-1011", **said}, idempotency_key="key")
    assert noted["not_kept"] == ["singing"]
    found = intake.find_candidate(candidate_id="k-1011")
    assert (found["phone"], found["salary_expectation"]) == ("01632 960999", 61_500)
    assert screening.match_profile("k-1011", "v-101")["skills"] == ["python", "sql"]


@pytest.mark.parametrize(
    "wrong", [{"birth_date": "last May"}, {"years": 200}, {"salary_expectation": "much"}]
)
async def test_details_of_another_shape_never_reach_the_database(wrong: dict[str, Any]) -> None:
    with pytest.raises(ToolArgumentsInvalid, match=next(iter(wrong))):
        await intake.note_details.run({"candidate_id": "k-1011", **wrong})


def test_an_application_is_taken_in_once_and_only_for_what_is_open() -> None:
    assert intake.apply_for("k-1001", "v-101", "key-1")["name"] == "Nora Lindqvist"
    intake.apply_for("k-1001", "v-101", "key-2")
    assert [each["status"] for each in intake.list_applications("k-1001")] == ["received"]
    with pytest.raises(ToolError, match="no open vacancy v-108"):
        intake.apply_for("k-1001", "v-108", "key-3")


def test_nothing_that_screening_and_compliance_can_call_says_who_a_candidate_is() -> None:
    offer = offers.draft_offer("k-1001", "v-101", 62_000, "Fits.", "k1")["offer_id"]
    shown = str(
        [
            screening.match_profile("k-1001", "v-101"),
            compliance.check_rejection("k-1001", "v-101", "Needs more."),
            compliance.send_rejection("k-1001", "v-101", "Needs more.", "k2"),
            compliance.check_offer(offer),
            compliance.seal_offer(offer, 62_000, "k3"),
        ]
    )
    assert "Nora" not in shown
    assert "@" not in shown
    assert "1991" not in shown


def test_a_slot_is_booked_once_and_whoever_comes_later_is_told_the_next() -> None:
    first = scheduling.book_slot("sl-101", "k-1001", "key-1")
    assert first["booked"]
    assert scheduling.book_slot("sl-101", "k-1001", "key-1") == first
    assert scheduling.book_slot("sl-101", "k-1004", "key-2") == {"booked": False, "next_free": "sl-102"}
    assert one("SELECT count(*) FROM mails WHERE kind = 'interview'") == 1


def test_a_changed_draft_loses_its_seal() -> None:
    offer = offers.draft_offer("k-1001", "v-101", 60_000, "Fits.", "key-1")["offer_id"]
    assert compliance.seal_offer(offer, 60_000, "key-2")["sealed"]
    assert offers.draft_offer("k-1001", "v-101", 61_000, "Fits.", "key-3")["offer_id"] == offer
    assert offers.send_offer(offer, 61_000, "key-4")["why"] == "not_reviewed"


def test_a_seal_is_for_the_sum_that_was_checked() -> None:
    offer = offers.draft_offer("k-1001", "v-101", 60_000, "Fits.", "key-1")["offer_id"]
    assert compliance.seal_offer(offer, 59_000, "key-2")["why"] == "changed"


@pytest.mark.parametrize(
    ("euros", "sealed", "said", "why"),
    [
        pytest.param(60_000, False, 60_000, "not_reviewed", id="not-reviewed"),
        pytest.param(60_000, True, 65_000, "changed", id="another-sum"),
        pytest.param(120_000, True, 120_000, "over_limit", id="over-the-limit"),
    ],
)
def test_what_the_house_rules_forbid_is_not_sent(euros: int, sealed: bool, said: int, why: str) -> None:
    offer = offers.draft_offer("k-1001", "v-101", euros, "Fits.", "key-1")["offer_id"]
    if sealed:
        compliance.seal_offer(offer, euros, "key-2")
    assert offers.send_offer(offer, said, "key-3") == {"offer_id": offer, "sent": False, "why": why}
    assert one("SELECT count(*) FROM mails") == 0


async def test_an_offer_is_sent_once_and_can_be_asked_about() -> None:
    offer = offers.draft_offer("k-1001", "v-101", 60_000, "Fits.", "key-1")["offer_id"]
    compliance.seal_offer(offer, 60_000, "key-2")
    assert await offers.send_offer.ask("key-3") is NOT_DONE
    sent = offers.send_offer(offer, 60_000, "key-3")
    assert (sent["sent"], await offers.send_offer.ask("key-3")) == (True, sent)
    assert offers.send_offer(offer, 60_000, "key-4")["why"] == "already_sent"
    assert offers.draft_offer("k-1001", "v-101", 70_000, "Fits.", "key-5")["why"] == "already_sent"
    assert compliance.seal_offer(offer, 60_000, "key-6")["why"] == "already_sent"
    assert one("SELECT count(*) FROM mails WHERE kind = 'offer'") == 1


def test_sending_waits_for_a_person() -> None:
    assert (offers.send_offer.approve, offers.send_offer.effect) == ("human", "reconcilable")


@pytest.mark.parametrize(
    ("euros", "reasons", "verdict"),
    [
        pytest.param(60_000, "Fits.", "clear", id="clear"),
        pytest.param(60_000, " ", "no_reasons", id="no-reasons"),
        pytest.param(60_000, "A young man, which we like.", "discriminating", id="discriminating"),
        pytest.param(80_000, "Fits.", "outside_band", id="outside"),
        pytest.param(56_000, "Fits.", "unequal", id="unequal"),
    ],
)
def test_a_draft_is_reviewed(euros: int, reasons: str, verdict: str) -> None:
    offer = offers.draft_offer("k-1001", "v-101", euros, reasons, "key")["offer_id"]
    found = compliance.check_offer(offer)
    assert found["verdict"] == verdict
    assert found.get("at_least") == (58_000 if verdict == "unequal" else None)


@pytest.mark.parametrize(
    ("reasons", "verdict"),
    [
        pytest.param("Needed for the work and not found: kubernetes.", "sound", id="sound"),
        pytest.param("", "no_reasons", id="none"),
        pytest.param("Not a NATIVE speaker.", "discriminating", id="discriminating"),
        pytest.param("Does not manage an agenda.", "sound", id="no-word-of-its-own"),
        pytest.param("Knows no SQL.", "contradicted", id="contradicted"),
    ],
)
def test_the_reasons_for_a_rejection_are_reviewed(reasons: str, verdict: str) -> None:
    assert compliance.check_rejection("k-1001", "v-104", reasons)["verdict"] == verdict


def test_the_seed_is_consistent() -> None:
    with connected() as db:
        assert db.execute("PRAGMA foreign_key_check").fetchall() == []
        booked = db.execute("SELECT candidate_id, vacancy_id FROM slots WHERE candidate_id IS NOT NULL")
        applied = set(map(tuple, db.execute("SELECT candidate_id, vacancy_id FROM applications")))
        assert {tuple(row) for row in booked} <= applied
