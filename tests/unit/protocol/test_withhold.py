"""Withholding: no reader of an inbox event learns what its labels keep from them."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.wire import codec
from protocol.wire.commands import Freeze, Move, Resolve, Thaw
from protocol.wire.config import Policy
from protocol.wire.events import (
    AnyEvent,
    EscalationRaised,
    EscalationResolved,
    FactsWithheld,
    HandoffAdmitted,
    MoveRefused,
    RequestCompleted,
    RequestOpened,
    Withheld,
)
from protocol.wire.handoff import Artifact, Constraints, Fact, Rule
from protocol.wire.ids import AgentName
from tests.unit.protocol.worlds import (
    Court,
    agent,
    agents,
    ask,
    complete,
    escalate,
    fact,
    hand_back,
    is_,
    transfer,
)

CLEARED = {"a": agent("a", clearance=("pii",)), "c": agent("c", clearance=("pii", "secret"))}
FLEET = agents("bd") | CLEARED
SSN = fact("ssn", "078-05", "pii")
SCAN = Artifact(name="passport", uri="s3://passport", labels=("pii",))
TEXT = Fact(key="text", value="help me")


def told(**submit: Any) -> Court:
    court = Court(fleet=FLEET)
    court.submit(facts=(SSN,), artifacts=(SCAN,), **submit)
    return court


def test_what_the_target_may_not_see_is_kept_just_before_the_handoff() -> None:
    court = told()
    event = is_(court.move(transfer("b")), HandoffAdmitted)
    kept = is_(court.events[-2], FactsWithheld)
    assert (kept.to, kept.target, kept.facts, kept.artifacts) == ("_", "b", (SSN,), (SCAN,))
    assert kept.cause == event.cause
    assert event.work.handoff.facts == (TEXT,)
    assert event.work.handoff.artifacts == ()
    assert event.work.withheld == Withheld(labels=("pii",), facts=1, artifacts=1)


def test_who_may_see_everything_is_withheld_nothing() -> None:
    event = is_(told().move(transfer("c")), HandoffAdmitted)
    assert event.work.withheld is None
    assert event.work.handoff.facts == (SSN, TEXT)


def test_a_submit_withholds_from_the_entry_agent_before_the_request_opens() -> None:
    court = Court(fleet=FLEET)
    limits = Constraints(must_carry=("ssn", "text"))
    event = is_(court.submit(to=AgentName("b"), facts=(SSN,), constraints=limits), RequestOpened)
    kept = is_(court.events[0], FactsWithheld)
    assert (kept.n, event.n, kept.target) == (0, 1, "b")
    assert (kept.facts, kept.must_carry) == ((SSN,), (0,))
    assert event.work.handoff.constraints.must_carry == ("text",)
    assert b"ssn" not in court.bodies[1]


def test_what_is_withheld_comes_back_for_the_next_who_may_see_it() -> None:
    court = told()
    court.move(transfer("b"))
    court.move(transfer("c"))
    assert court.holder.work.handoff.facts == (SSN, TEXT)
    assert court.holder.work.handoff.artifacts == (SCAN,)
    assert court.ledger.stash.facts == {}
    court.move(transfer("d"))
    court.move(hand_back())
    assert court.shown["ssn"] == "078-05"


def test_what_is_kept_already_is_kept_again_at_each_hop() -> None:
    court = told()
    court.move(transfer("b"))
    event = is_(court.move(transfer("d", fact("new", 1))), HandoffAdmitted)
    assert is_(court.events[-2], FactsWithheld).facts == (SSN,)
    assert event.work.withheld == Withheld(labels=("pii",), facts=1, artifacts=1)
    court.move(transfer("c"))
    assert court.shown["ssn"] == "078-05"


def test_more_that_has_to_be_withheld_is_kept_with_the_rest() -> None:
    court = told()
    court.move(transfer("b"))
    court.move(transfer("d", fact("pin", 1, "secret")))
    kept = is_(court.events[-2], FactsWithheld)
    assert kept.facts == (fact("pin", 1, "secret"), SSN)
    court.move(transfer("c"))
    assert court.holder.work.handoff.facts == (fact("pin", 1, "secret"), SSN, TEXT)


def test_what_one_may_see_in_part_is_shown_in_part() -> None:
    court = told()
    court.move(transfer("b", fact("pin", 1, "secret")))
    court.move(hand_back())
    assert court.holder.work.handoff.facts == (SSN, TEXT)
    assert court.holder.work.withheld == Withheld(labels=("secret",), facts=1)
    court.move(transfer("c"))
    assert court.shown == {"pin": 1, "ssn": "078-05", "text": "help me"}


def test_a_withheld_fact_counts_as_carried() -> None:
    court = told(constraints=Constraints(must_carry=("ssn",)))
    event = is_(court.move(transfer("b")), HandoffAdmitted)
    assert event.work.handoff.constraints.must_carry == ()
    assert is_(court.events[-2], FactsWithheld).must_carry == (0,)
    onward = is_(court.move(transfer("d", fact("new", 1))), HandoffAdmitted)
    assert onward.work.handoff.constraints.must_carry == ()
    cleared = is_(court.move(transfer("c")), HandoffAdmitted)
    assert cleared.work.handoff.constraints.must_carry == ("ssn",)
    refused = is_(court.move(transfer("e", drop=("ssn",))), MoveRefused)
    assert refused.refusal.rule == Rule.KNOWN_AGENT
    court.fleet = FLEET | agents("e")
    refused = is_(court.move(transfer("e", drop=("ssn",))), MoveRefused)
    assert refused.refusal.numbers == {"keys": ["ssn"]}


@pytest.mark.parametrize("key", ["ssn", "no-such-key"])
@pytest.mark.parametrize("must", [("ssn",), ()])
def test_nobody_finds_a_withheld_key_out_by_asking_to_carry_it(key: str, must: tuple[str, ...]) -> None:
    court = told(constraints=Constraints(must_carry=must))
    court.move(transfer("b"))
    event = is_(court.move(transfer("d", constraints=Constraints(must_carry=(key,)))), MoveRefused)
    assert (event.refusal.rule, event.refusal.numbers) == (Rule.MUST_CARRY, {"keys": [key]})


def test_what_has_to_be_carried_is_kept_anew_where_it_is_another_than_before() -> None:
    """Both frames beneath are withheld the same fact, but only one of them was told to carry it."""
    court = told()
    court.move(transfer("b"))
    court.move(transfer("c"))
    court.move(transfer("d", constraints=Constraints(must_carry=("ssn",))))
    assert is_(court.events[-2], FactsWithheld).must_carry == (0,)
    court.fleet = FLEET | {"c": agent("c")}
    court.move(hand_back(fact("new", 1)))
    assert is_(court.events[-2], FactsWithheld).must_carry == ()
    court.fleet = FLEET
    court.move(hand_back(fact("newer", 1)))
    assert court.ledger.marks() == frozenset()


def test_who_cannot_see_a_fact_cannot_drop_it() -> None:
    court = told()
    court.move(transfer("b"))
    court.move(transfer("c", drop=("ssn",)))
    assert court.shown["ssn"] == "078-05"


def test_a_label_sticks_to_its_key_even_after_the_fact_was_dropped() -> None:
    court = told()
    court.move(transfer("c", drop=("ssn",)))
    assert "ssn" not in court.shown
    event = is_(court.move(transfer("d", Fact(key="ssn", value="078-05"))), HandoffAdmitted)
    assert event.work.withheld == Withheld(labels=("pii",), facts=1, artifacts=1)


def test_people_see_everything() -> None:
    court = told()
    court.move(transfer("b"))
    event = is_(court.move(escalate()), EscalationRaised)
    assert event.work.handoff.facts == (SSN, TEXT)
    assert event.work.withheld is None


def test_a_resolution_withholds_from_whom_it_goes_to() -> None:
    court = told(constraints=Constraints(must_carry=("ssn",)))
    court.move(escalate())
    event = is_(court.control(Resolve, turn=court.turn, to=AgentName("b")), EscalationResolved)
    kept = is_(court.events[-2], FactsWithheld)
    assert (kept.facts, kept.must_carry) == ((SSN,), (0,))
    assert event.work.withheld == Withheld(labels=("pii",), facts=1, artifacts=1)
    assert b"ssn" not in court.bodies[-1]
    court.move(transfer("c"))
    assert court.holder.work.handoff.constraints.must_carry == ("ssn",)


def test_a_guard_that_dies_after_withholding_is_finished_by_the_next() -> None:
    court = told()
    turn = court.turn
    whole = is_(court.move(transfer("b")), HandoffAdmitted)
    died = Court(fleet=FLEET)
    for event in court.events[:-1]:
        died.append(event)
    assert died.turn == turn
    assert died.move(transfer("b")) == whole


def test_a_clearance_that_changed_meanwhile_is_withheld_by_as_it_is_now() -> None:
    court = told()
    whole = court.move(transfer("b"))
    died = Court(fleet=FLEET | {"b": agent("b", clearance=("pii",))})
    for event in court.events[:-1]:
        died.append(event)
    event = is_(died.move(transfer("b")), HandoffAdmitted)
    assert event.work.withheld is None
    assert event != whole
    assert died.ledger.stash.facts == {}
    died.fleet = FLEET
    is_(died.move(transfer("d")), HandoffAdmitted)
    died.move(transfer("c"))
    assert died.shown["ssn"] == "078-05"


def test_a_withholding_that_nothing_followed_is_forgotten() -> None:
    """The guard died after it withheld; then the round timed out, and its agent asked for something else."""
    court = told()
    court.move(transfer("b", fact("pin", 1, "secret")))
    died = Court(fleet=FLEET)
    for event in court.events[:-1]:
        died.append(event)
    died.now = court.now
    died.wait(900)
    died.wait(60)
    assert died.holder.round == 1
    event = is_(died.move(transfer("c")), HandoffAdmitted)
    assert event.work.handoff.facts == (SSN, TEXT)
    assert died.ledger.history.is_new(fact("pin", 1))


def test_a_move_that_was_deferred_between_its_withholding_and_its_verdict_is_decided_after_the_thaw() -> None:
    court = told()
    court.move(transfer("b"))
    died = Court(fleet=FLEET)
    for event in court.events[:-1]:
        died.append(event)
    died.control(Freeze)
    died.move(transfer("b"))
    died.control(Thaw)
    assert is_(died.last, HandoffAdmitted).work.withheld == Withheld(labels=("pii",), facts=1, artifacts=1)


SECRETS = ("hush-key", "hush-value", "hush-scan", "hush-uri", "hush-bill")
"""Strings that stand only in labelled facts and artifacts."""


def leaks(event: AnyEvent, fleet: dict[str, Any]) -> list[str]:
    """Return which secrets an event shows an agent that is not cleared for them."""
    entry = fleet.get(event.to)
    if entry is None or "pii" in entry.clearance:
        return []
    body = codec.encode(event).decode()
    return [secret for secret in SECRETS if secret in body]


moves = st.sampled_from("abcdef").flatmap(
    lambda to: st.sampled_from(
        [
            transfer(to),
            transfer(to, fact("open", to)),
            transfer(to, drop=("text",)),
            transfer("nobody"),
            hand_back(),
            hand_back(fact("open", "back")),
            escalate(),
            ask(),
            "fail",
            "freeze",
            "again",
            "wait",
        ]
    )
)
cleared_moves = st.sampled_from("abcdef").flatmap(
    lambda to: st.sampled_from(
        [
            transfer(
                to,
                fact("hush-key-2", "hush-value-2", "pii"),
                artifacts=(Artifact(name="hush-scan", uri="hush-uri", labels=("pii",)),),
            ),
            transfer(to, fact("hush-key-1", "hush-value-3")),
            transfer(to, artifacts=(Artifact(name="hush-bill", uri="hush-uri"),)),
            transfer(to, constraints=Constraints(must_carry=("hush-key-1",))),
            transfer(to, drop=("hush-key-1",)),
            hand_back(fact("hush-key-4", "hush-value-4", "pii")),
        ]
    )
)


@settings(max_examples=250)
@given(
    st.sampled_from("abcdef"),
    st.booleans(),
    st.lists(st.tuples(moves, cleared_moves, st.booleans()), max_size=14),
)
def test_no_event_shows_an_agent_what_it_is_not_cleared_for(
    entry: str, must: bool, steps: list[tuple[Any, Move, bool]]
) -> None:
    fleet = agents("bdf") | {name: agent(name, clearance=("pii",)) for name in "ace"}
    court = Court(fleet=fleet, entry=entry, policy=Policy(max_depth=9, max_escalations=9, max_refusals=9))
    keys = ("hush-key-1",) if must else ()
    court.submit(
        facts=(fact("hush-key-1", "hush-value-1", "pii"),),
        artifacts=(Artifact(name="hush-bill", uri="hush-uri", labels=("pii",)),),
        constraints=Constraints(must_carry=keys),
    )
    for step, with_secrets, use_secrets in steps:
        turn = court.ledger.holder
        if turn is None:
            break
        if turn.agent == "human":
            to = AgentName(with_secrets.to_agent or entry) if hasattr(with_secrets, "to_agent") else None
            court.control(
                Resolve, turn=turn.id, to=to or AgentName(entry), facts=(fact("hush-key-5", 1, "pii"),)
            )
        elif turn.state != "working" or step == "wait":
            court.wait(3000)
        elif "pii" in fleet[turn.agent].clearance and use_secrets:
            court.move(with_secrets)
        elif step == "fail":
            court.fail()
            court.wait(60)
        elif step == "freeze":
            court.control(Freeze)
            court.move(transfer("b"))
            court.control(Thaw)
        elif step == "again":
            court.fail(permanent=True)
            court.control(Resolve, turn=court.turn, again=True)
        else:
            court.move(step)
    shown = {event.n: leaks(event, fleet) for event in court.events}
    assert not any(shown.values()), {n: found for n, found in shown.items() if found}


def test_the_search_for_leaks_finds_one() -> None:
    court = Court(fleet=agents("b"), entry="b")
    court.submit(facts=(fact("hush-key-1", "hush-value-1"),))
    assert leaks(court.last, court.fleet) == ["hush-key", "hush-value"]


def test_an_answer_goes_to_the_client_unread() -> None:
    court = told()
    assert is_(court.move(complete("078-05")), RequestCompleted).to == "c1"


@pytest.mark.parametrize("name", ["a", "c"])
def test_a_must_carry_key_is_shown_to_whoever_sees_its_fact(name: str) -> None:
    court = Court(fleet=FLEET, entry=name)
    court.submit(facts=(SSN,), constraints=Constraints(must_carry=("ssn",)))
    assert court.holder.work.handoff.constraints.must_carry == ("ssn",)
