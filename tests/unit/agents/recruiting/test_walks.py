"""The recruiting fleet at work: what each agent may know, and what only people may do."""

from pathlib import Path
from typing import Any

import pytest

from mesh.agent.turn import Turn
from mesh.model.prompt import render
from tests.certain import known
from tests.unit.agents.crews import RECRUITING, walk

OFFER = "The interview went very well: please send an offer to k-1014 for v-101."

PERSON = {"text", "candidate_name", "email", "phone", "birth_date"}
PAY = {"text", "salary_expectation", "offer_amount", "at_least"}
NOT_FOR = {"screening": PERSON | PAY, "scheduling": PAY, "compliance": PERSON}


def mailed(kind: str) -> list[tuple[Any, ...]]:
    with RECRUITING.connected() as db:
        rows = db.execute("SELECT candidate_id, text FROM mails WHERE kind = ? ORDER BY rowid", (kind,))
        return [tuple(row) for row in rows]


async def test_no_agent_is_told_what_it_is_not_cleared_for(records: Path) -> None:
    ran: list[tuple[str, Turn]] = []
    for sample in RECRUITING.of_kind("ruled"):
        if NOT_FOR.keys() & set(sample.expect.path):
            going = await walk(RECRUITING, sample.text)
            ran += [(sample.text, turn) for turn in going.turns if turn.agent in NOT_FOR]
    with RECRUITING.connected() as db:  # afterwards: it holds those who were new, too
        query = "SELECT name, email, phone, birth_date FROM candidates"
        people = [word.lower() for row in db.execute(query) for word in row if word]
    assert "lea sommer" in people
    assert len(ran) >= 40
    for text, turn in ran:
        brief = render(turn)
        assert text not in brief
        assert NOT_FOR[turn.agent].isdisjoint(turn.facts)
        if turn.agent != "scheduling":
            assert [each for each in people if each in brief.lower()] == []
        if turn.agent != "compliance":
            assert " EUR" not in brief
    reviews = [turn for _, turn in ran if turn.handoff.intent == "review_offer"]
    assert all(turn.facts["offer_amount"] for turn in reviews)
    assert reviews


async def test_each_agent_is_told_what_is_withheld_from_it_and_the_next_has_it_again(records: Path) -> None:
    going = await walk(RECRUITING, "I am applying for v-102. tariq.aziz@example.com")
    withheld = {turn.agent: turn.withheld for turn in going.turns}
    assert withheld == {
        "intake": (),
        "screening": ("pii", "salary"),
        "scheduling": ("pii", "salary"),  # the text is both
        "offer": (),
        "compliance": ("pii", "salary"),
    }
    names = {str(turn.agent): turn.facts.get("candidate_name") for turn in going.turns}
    assert (names["scheduling"], names["offer"]) == ("Tariq Aziz", "Tariq Aziz")


async def test_an_offer_is_sent_once_a_person_approves_of_this_very_sum(records: Path) -> None:
    going = await walk(RECRUITING, OFFER)
    (asked,) = going.approvals
    assert (going.status, asked.to_agent, asked.action) == ("escalated", "human", "send_offer")
    assert '"euros":64000' in asked.question
    assert mailed("offer") == []


@pytest.mark.parametrize("said", [False, "yes"])
async def test_anything_but_a_yes_sends_nothing(said: Any, records: Path) -> None:
    going = await walk(RECRUITING, OFFER, replies=[said])
    assert (going.status, going.path[-1]) == ("completed", "offer")
    assert "is not sent: somebody did not approve send_offer" in going.answer
    assert mailed("offer") == []


async def test_a_yes_sends_it_once(records: Path) -> None:
    going = await walk(RECRUITING, OFFER, replies=[True])
    assert (going.status, going.path) == ("completed", ["intake", "offer", "compliance", "offer"])
    assert "Amira Sayed is approved and sent: 64,000 EUR" in going.answer
    assert len(mailed("offer")) == 1
    again = await walk(RECRUITING, OFFER, replies=[True])
    assert again.approvals == []
    assert again.status == "escalated"
    assert len(mailed("offer")) == 1


async def test_over_the_limit_nobody_is_even_asked(records: Path) -> None:
    going = await walk(RECRUITING, "Please make an offer to k-1015 for v-107.", replies=[True])
    assert (going.status, going.approvals) == ("escalated", [])
    assert mailed("offer") == []


async def test_too_small_an_offer_is_raised_and_only_then_sealed(records: Path) -> None:
    going = await walk(RECRUITING, "I apply for v-103. ulla.berg@example.org")
    last = going.guard.ledger.root
    assert known(last).segment.depth == RECRUITING.file.rules["default"].max_depth == 7
    with RECRUITING.connected() as db:
        (row,) = db.execute("SELECT euros, status FROM offers").fetchall()
    assert tuple(row) == (40_000, "reviewed")


async def test_a_rejection_is_sent_only_with_reasons_that_hold(records: Path) -> None:
    sound = "My application for v-104. rafael.costa@example.org"
    unsound = "I apply for v-106! sofia.marin@example.net"
    assert (await walk(RECRUITING, sound)).status == "completed"
    going = await walk(RECRUITING, unsound)
    assert (going.status, going.refused) == ("escalated", [])
    assert mailed("rejection") == [("k-1005", "4 years of experience, of at least 5.")]


def test_the_walks_that_the_fleet_is_there_to_show_are_all_among_the_samples() -> None:
    ruled = RECRUITING.of_kind("ruled")
    offered = ("intake", "screening", "scheduling", "offer", "compliance", "offer")
    rejected = ("intake", "screening", "compliance")
    assert {("completed", offered), ("completed", rejected), ("escalated", ("intake", "offer"))} <= {
        (sample.expect.status, sample.expect.path) for sample in ruled
    }
    refused = {str(rule) for sample in ruled for rule in sample.expect.refused}
    assert refused == {"cycle", "depth"}
