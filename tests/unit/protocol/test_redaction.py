"""Withholding: no reader of an inbox event learns what its labels keep from them."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.domain.carried import NOTHING
from protocol.wire import codec
from protocol.wire.commands import Freeze, Resolve, Thaw
from protocol.wire.config import Policy
from protocol.wire.event_parts import Withheld
from protocol.wire.events import (
    AnyEvent,
    EscalationResolved,
    FactsWithheld,
    HandoffAdmitted,
    MoveRefused,
    RequestOpened,
)
from protocol.wire.handoff import Artifact, Constraints, Fact, Rule
from protocol.wire.ids import AgentName
from protocol.wire.moves import Move
from tests.certain import is_
from tests.unit.protocol.worlds import Play, agent, agents, ask, escalate, fact, hand_back, transfer

CLEARED = {"a": agent("a", clearance=("pii",)), "c": agent("c", clearance=("pii", "secret"))}
FLEET = agents("bd") | CLEARED
SSN = fact("ssn", "078-05", "pii")
SCAN = Artifact(name="passport", uri="s3://passport", labels=("pii",))
TEXT = Fact(key="text", value="help me")


def told(**submit: Any) -> Play:
    play = Play(fleet=FLEET)
    play.submit(facts=(SSN,), artifacts=(SCAN,), **submit)
    return play


def before_the_verdict(play: Play, fleet: dict[str, Any]) -> Play:
    """Return a play whose guard died after it withheld, and before it decided."""
    died = Play(fleet=fleet)
    for event in play.events[:-1]:
        died.append(event)
    return died


def test_what_the_target_may_not_see_is_kept_just_before_the_handoff() -> None:
    play = told()
    event = is_(play.move(transfer("b")), HandoffAdmitted)
    kept = is_(play.events[-2], FactsWithheld)
    assert (kept.to, kept.target, kept.facts, kept.artifacts) == ("_", "b", (SSN,), (SCAN,))
    assert kept.cause == event.cause
    assert event.work.handoff.facts == (TEXT,)
    assert event.work.handoff.artifacts == ()
    assert event.work.withheld == Withheld(labels=("pii",), facts=1, artifacts=1)


def test_a_submit_withholds_from_the_entry_agent_before_the_request_opens() -> None:
    play = Play(fleet=FLEET)
    limits = Constraints(must_carry=("ssn", "text"))
    event = is_(play.submit(to=AgentName("b"), facts=(SSN,), constraints=limits), RequestOpened)
    kept = is_(play.events[0], FactsWithheld)
    assert (kept.n, event.n, kept.target) == (0, 1, "b")
    assert kept.facts == (SSN,)
    assert event.work.handoff.constraints.must_carry == ("ssn", "text")
    assert b"078-05" not in play.bodies[1]


def test_what_is_withheld_comes_back_for_the_next_who_may_see_it() -> None:
    play = told()
    play.move(transfer("b"))
    play.move(transfer("c"))
    assert play.holder.work.handoff.facts == (SSN, TEXT)
    assert play.holder.work.handoff.artifacts == (SCAN,)
    assert play.holder.hidden == NOTHING
    play.move(transfer("d"))
    play.move(hand_back())
    assert play.shown["ssn"] == "078-05"


def test_a_withheld_fact_counts_as_carried() -> None:
    play = told(constraints=Constraints(must_carry=("ssn",)))
    event = is_(play.move(transfer("b")), HandoffAdmitted)
    assert event.work.handoff.constraints.must_carry == ("ssn",)
    onward = is_(play.move(transfer("d", fact("new", 1))), HandoffAdmitted)
    assert onward.work.handoff.constraints.must_carry == ("ssn",)
    cleared = is_(play.move(transfer("c")), HandoffAdmitted)
    assert cleared.work.handoff.constraints.must_carry == ("ssn",)
    refused = is_(play.move(transfer("e", drop=("ssn",))), MoveRefused)
    assert refused.refusal.rule == Rule.KNOWN_AGENT
    play.fleet = FLEET | agents("e")
    refused = is_(play.move(transfer("e", drop=("ssn",))), MoveRefused)
    assert refused.refusal.numbers == {"keys": ["ssn"]}


@pytest.mark.parametrize("key", ["ssn", "no-such-key"])
@pytest.mark.parametrize("must", [("ssn",), ()])
def test_nobody_binds_a_fact_that_they_do_not_see(key: str, must: tuple[str, ...]) -> None:
    play = told(constraints=Constraints(must_carry=must))
    play.move(transfer("b"))
    event = is_(play.move(transfer("d", constraints=Constraints(must_carry=(key,)))), MoveRefused)
    assert (event.refusal.rule, event.refusal.numbers) == (Rule.MUST_CARRY, {"keys": [key]})


def test_a_hand_back_to_whoever_may_not_see_it_any_more_restores_what_had_to_be_carried() -> None:
    play = told()
    play.move(transfer("b"))
    play.move(transfer("c"))
    play.move(transfer("d", constraints=Constraints(must_carry=("ssn",))))
    play.fleet = FLEET | {"c": agent("c")}
    play.move(hand_back(fact("new", 1)))
    assert play.holder.work.handoff.constraints.must_carry == ()
    assert play.holder.hidden.fact_tuple == (SSN,)


def test_a_label_sticks_to_its_key_even_after_the_fact_was_dropped() -> None:
    play = told()
    play.move(transfer("c", drop=("ssn",)))
    assert "ssn" not in play.shown
    event = is_(play.move(transfer("d", Fact(key="ssn", value="078-05"))), HandoffAdmitted)
    assert event.work.withheld == Withheld(labels=("pii",), facts=1, artifacts=1)


def test_a_resolution_withholds_from_whom_it_goes_to() -> None:
    play = told(constraints=Constraints(must_carry=("ssn",)))
    play.move(escalate())
    event = is_(play.control(Resolve, turn=play.turn, to=AgentName("b")), EscalationResolved)
    kept = is_(play.events[-2], FactsWithheld)
    assert kept.facts == (SSN,)
    assert event.work.withheld == Withheld(labels=("pii",), facts=1, artifacts=1)
    assert b"078-05" not in play.bodies[-1]
    play.move(transfer("c"))
    assert play.holder.work.handoff.constraints.must_carry == ("ssn",)


def test_a_guard_that_dies_after_withholding_is_finished_by_the_next() -> None:
    play = told()
    turn = play.turn
    whole = is_(play.move(transfer("b")), HandoffAdmitted)
    died = before_the_verdict(play, FLEET)
    assert died.turn == turn
    assert died.move(transfer("b")) == whole


def test_a_clearance_that_changed_meanwhile_is_withheld_by_as_it_is_now() -> None:
    play = told()
    whole = play.move(transfer("b"))
    died = before_the_verdict(play, FLEET | {"b": agent("b", clearance=("pii",))})
    event = is_(died.move(transfer("b")), HandoffAdmitted)
    assert event.work.withheld is None
    assert event != whole
    assert died.holder.hidden == NOTHING
    died.fleet = FLEET
    is_(died.move(transfer("d")), HandoffAdmitted)
    died.move(transfer("c"))
    assert died.shown["ssn"] == "078-05"


def test_a_withholding_that_nothing_followed_is_forgotten() -> None:
    """The guard died after it withheld; then the round timed out, and its agent asked for something else."""
    play = told()
    play.move(transfer("b", fact("pin", 1, "secret")))
    died = before_the_verdict(play, FLEET)
    died.now = play.now
    died.wait(900)
    died.wait(60)
    assert died.holder.round == 1
    event = is_(died.move(transfer("c")), HandoffAdmitted)
    assert event.work.handoff.facts == (SSN, TEXT)
    assert died.ledger.history.is_new(fact("pin", 1))


def test_a_move_that_was_deferred_between_its_withholding_and_its_verdict_is_decided_after_the_thaw() -> None:
    play = told()
    play.move(transfer("b"))
    died = before_the_verdict(play, FLEET)
    died.control(Freeze)
    died.move(transfer("b"))
    died.control(Thaw)
    assert is_(died.last, HandoffAdmitted).work.withheld == Withheld(labels=("pii",), facts=1, artifacts=1)


SECRETS = ("hush-value", "hush-uri")
"""Strings that stand only in labelled facts and artifacts. The names of these are no secrets."""


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
    play = Play(fleet=fleet, entry=entry, policy=Policy(max_depth=9, max_escalations=9, max_refusals=9))
    keys = ("hush-key-1",) if must else ()
    play.submit(
        facts=(fact("hush-key-1", "hush-value-1", "pii"),),
        artifacts=(Artifact(name="hush-bill", uri="hush-uri", labels=("pii",)),),
        constraints=Constraints(must_carry=keys),
    )
    for step, with_secrets, use_secrets in steps:
        turn = play.ledger.holder
        if turn is None:
            break
        if turn.agent == "human":
            to = AgentName(with_secrets.to_agent or entry) if hasattr(with_secrets, "to_agent") else None
            play.control(
                Resolve, turn=turn.id, to=to or AgentName(entry), facts=(fact("hush-key-5", 1, "pii"),)
            )
        elif turn.state != "working" or step == "wait":
            play.wait(3000)
        elif "pii" in fleet[turn.agent].clearance and use_secrets:
            play.move(with_secrets)
        elif step == "fail":
            play.fail()
            play.wait(60)
        elif step == "freeze":
            play.control(Freeze)
            play.move(transfer("b"))
            play.control(Thaw)
        elif step == "again":
            play.fail(permanent=True)
            play.control(Resolve, turn=play.turn, again=True)
        else:
            play.move(step)
    shown = {event.n: leaks(event, fleet) for event in play.events}
    assert not any(shown.values()), {n: found for n, found in shown.items() if found}


def test_the_search_for_leaks_finds_one() -> None:
    play = Play(fleet=agents("b"), entry="b")
    play.submit(facts=(fact("hush-key-1", "hush-value-1"),))
    assert leaks(play.last, play.fleet) == ["hush-value"]
