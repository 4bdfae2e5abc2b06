"""The support fleet at work: its agents' own code and the guard's own verdicts, without a bus."""

from pathlib import Path

import pytest

from mesh.agent.errors import failure_of
from mesh.model.agent import ModelUnavailable
from mesh.model.prompt import render
from protocol.wire.handoff import Fact
from tests.unit.agents.crews import SUPPORT
from tests.unit.agents.walk import walk


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
    going = await walk(SUPPORT, "The router keeps failing, please send a technician. cem.aydin@example.com")
    first, second = (turn for turn in going.turns if turn.agent == "technical")
    assert (first.round, second.round, first.id) == (0, 1, second.id)
    assert "rule cycle refused transfer to triage" in render(second)
    assert "hand_back goes to triage" in render(second)


async def test_an_effect_happens_once_though_a_refused_turn_runs_it_again(records: Path) -> None:
    text = "I want to return the router, it was broken from the start. priya.nair@example.org"
    going = await walk(SUPPORT, text)
    assert going.refused == ["depth"]
    assert "89.00 EUR" in going.answer
    with SUPPORT.connected() as db:
        assert db.execute("SELECT count(*) FROM effects WHERE tool = 'refund_charge'").fetchone()[0] == 1


async def test_the_same_charge_is_refunded_to_the_first_of_two_requests(records: Path) -> None:
    text = "Please refund the late fee. mara.novak@example.com"
    first, second = [await walk(SUPPORT, text) for _ in range(2)]
    assert "we have refunded 12.50 EUR" in first.answer
    assert "already refunded" in second.answer


async def test_a_label_from_the_client_is_kept_and_one_that_lacks_is_put_on(records: Path) -> None:
    facts = (
        Fact(key="email", value="bram@example.org"),
        Fact(key="iban", value="secret number", labels=("pii",)),
    )
    going = await walk(SUPPORT, "My router is offline.", facts)
    technical = next(turn for turn in going.turns if turn.agent == "technical")
    assert set(technical.facts) == {"customer_id", "kind", "problem"}


async def test_a_model_that_cannot_be_had_stops_a_test_and_would_go_to_a_person(
    records: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MESH_MODEL", "claude")
    with pytest.raises(ModelUnavailable, match="set ANTHROPIC_API_KEY") as lacking:
        await walk(SUPPORT, "What are your opening hours?")
    failure = failure_of(lacking.value)
    assert (failure.code, failure.permanent) == ("model.unavailable", True)
