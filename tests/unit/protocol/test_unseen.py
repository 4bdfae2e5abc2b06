"""What an agent is not cleared for changes nothing that it gets: worlds that differ in it look the same."""

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mesh.replay.rejudge import rejudge
from protocol.wire.commands import HandBack, Move, Resolve, Transfer
from protocol.wire.config import Policy
from protocol.wire.events import FactsWithheld, HandoffAdmitted, MoveRefused, RequestFailed, Withheld
from protocol.wire.handoff import Artifact, Constraints, Fact, Rule
from protocol.wire.ids import AgentName
from tests.unit.protocol.anything import ALIKE, STORIES
from tests.unit.protocol.happened import admitted, refused
from tests.unit.protocol.oracle.audit import Auditor
from tests.unit.protocol.worlds import Court, agent, agents, escalate, fact, hand_back, is_, transfer

FLEET = agents("bde") | {"a": agent("a", clearance=("pii",))}
BIG = "x" * 300


def told(*facts: Fact, policy: Policy | None = None, **submit: Any) -> Court:
    """Open a request whose entry agent `b` may not see what is labelled."""
    court = Court(fleet=dict(FLEET), entry="b", policy=policy or Policy(max_depth=30, max_refusals=30))
    court.submit(facts=facts, **submit)
    return court


def seen(court: Court) -> list[Any]:
    """Return all that reaches agents who are cleared for nothing, less ids and times."""
    got: list[Any] = []
    for event in court.events:
        if event.to in ("b", "d", "e"):
            said = msgspec.to_builtins(event)
            work = said["work"]
            handoff = {name: value for name, value in work["handoff"].items() if name != "parent"}
            past = work.get("past", ())
            got.append((said["n"], said["type"], said.get("refusal"), handoff, work.get("withheld"), past))
            got.append(work["path"])
    return got


@pytest.mark.parametrize("value", [1, 2, True, BIG])
@pytest.mark.parametrize("must", [(), ("k",)])
def test_a_fact_under_a_withheld_key_is_taken_and_what_is_withheld_stays(
    value: object, must: tuple[str, ...]
) -> None:
    court = told(fact("k", 1, "pii"), constraints=Constraints(must_carry=must))
    event = admitted(court.move(transfer("d", fact("k", value))))
    assert [item.value for item in event.work.handoff.facts if item.key == "k"] == [value]
    assert event.work.withheld == Withheld(labels=("pii",), facts=1)
    admitted(court.move(transfer("a")))
    assert court.shown["k"] == 1
    assert court.holder.work.withheld is None
    court.move(hand_back(fact("seen", True)))
    assert court.shown["k"] == value


def test_who_sees_the_secret_changes_it_and_who_does_not_keeps_seeing_their_own() -> None:
    court = told(fact("k", "secret", "pii"))
    court.move(transfer("d", fact("k", "mine")))
    court.move(transfer("a"))
    court.move(transfer("e", fact("k", "changed")))
    assert court.shown["k"] == "mine"
    court.move(hand_back(fact("n", 1)))
    assert court.shown["k"] == "changed"


def test_who_drops_their_own_leaves_the_secret() -> None:
    court = told(fact("k", "secret", "pii"))
    court.move(transfer("d", fact("k", "mine")))
    court.move(transfer("e", drop=("k",)))
    assert "k" not in court.shown
    court.move(transfer("a"))
    assert court.shown["k"] == "secret"


def test_an_artifact_under_a_withheld_name_is_another_layer_too() -> None:
    scan = Artifact(name="scan", uri="s3://secret", labels=("pii",))
    court = told(artifacts=(scan,))
    court.move(transfer("d", artifacts=(Artifact(name="scan", uri="s3://mine"),)))
    assert [item.uri for item in court.holder.work.handoff.artifacts] == ["s3://mine"]
    court.move(transfer("a"))
    assert court.holder.work.handoff.artifacts == (scan,)


def test_what_one_brought_unseen_one_may_correct() -> None:
    """The front desk asks for a number that it may not read again, and the customer had mistyped it."""
    court = told()
    court.move(transfer("d", fact("ssn", 1, "pii")))
    court.move(hand_back(fact("n", 1)))
    court.move(transfer("a", fact("ssn", 2, "pii")))
    assert court.shown["ssn"] == 2


def test_what_one_brought_unseen_is_not_new_a_second_time() -> None:
    court = told()
    court.move(transfer("d", fact("ssn", 1, "pii")))
    court.move(hand_back())
    assert refused(court.move(transfer("d", fact("ssn", 1, "pii")))).rule == Rule.CYCLE
    admitted(court.move(transfer("d", fact("ssn", 2, "pii"))))


@pytest.mark.parametrize("guess", ["right", "wrong"])
def test_a_guess_is_new_whether_it_is_right_or_wrong(guess: str) -> None:
    court = told(fact("k", "right", "pii"))
    court.move(transfer("d"))
    court.move(hand_back())
    admitted(court.move(transfer("d", fact("k", guess))))
    court.move(hand_back())
    assert refused(court.move(transfer("d", fact("k", guess)))).rule == Rule.CYCLE


@pytest.mark.parametrize("secret", ["", "x" * 900])
def test_the_size_of_what_is_withheld_counts_for_nobody_who_may_not_see_it(secret: str) -> None:
    court = told(fact("k", secret, "pii"), policy=Policy(max_handoff_bytes=1500))
    admitted(court.move(transfer("d", fact("n", "y" * 900))))
    assert refused(court.move(transfer("e", fact("m", "z" * 900)))).rule == Rule.SIZE


def test_a_persons_hands_lose_no_layer() -> None:
    court = told(fact("k", "secret", "pii"))
    court.move(transfer("d", fact("k", "mine")))
    court.move(escalate(fact("k", "newer")))
    assert court.shown["k"] == "secret"
    court.control(Resolve, turn=court.turn, to=AgentName("e"), facts=(fact("k", "by hand"),))
    assert court.shown["k"] == "newer"
    court.move(transfer("a"))
    assert court.shown["k"] == "by hand"


def test_what_lies_beneath_outlives_people_who_hand_it_on_unseen() -> None:
    """The oracle keeps it, too: what a reader sees nothing of is there all the same."""
    court = told(fact("k", 1, "pii"))
    court.move(escalate(fact("k", 1, "pii")))
    court.control(Resolve, turn=court.turn)
    court.move(escalate(fact("k", 1)))
    assert court.shown["k"] == 1
    auditor = Auditor()
    for event in court.events:
        auditor.follow(event, court.heard.get(event.cause))
    assert auditor.found == []
    assert rejudge(court.bodies).same


def test_a_client_is_told_no_fact_of_an_escalation_that_ends_its_request() -> None:
    court = told(fact("k", "secret", "pii"), policy=Policy(max_escalations=0))
    event = is_(court.move(escalate(fact("found", "hush", "pii"))), RequestFailed)
    assert (event.to, event.code) == ("c1", "max_escalations")
    assert b"hush" not in court.bodies[-1]
    assert rejudge(court.bodies).same


def test_must_carry_binds_what_its_asker_sees() -> None:
    court = told(fact("k", "secret", "pii"), constraints=Constraints(must_carry=("k",)))
    assert list(court.holder.work.handoff.constraints.must_carry) == []
    court.move(transfer("d", fact("k", "mine"), constraints=Constraints(must_carry=("k",))))
    assert list(court.holder.work.handoff.constraints.must_carry) == ["k"]
    assert refused(court.move(transfer("e", drop=("k",)))).numbers == {"keys": ["k"]}
    assert refused(court.move(transfer("e", fact("k", "another")))).numbers == {"keys": ["k"]}
    court.fleet = FLEET | agents("c")
    admitted(court.move(transfer("a")))
    assert list(court.holder.work.handoff.constraints.must_carry) == ["k"]
    assert refused(court.move(transfer("c", drop=("k",)))).rule == Rule.MUST_CARRY
    admitted(court.move(transfer("c")))
    assert court.shown["k"] == "mine"
    assert rejudge(court.bodies).same


def test_a_mark_beneath_a_secret_outlives_the_secret() -> None:
    court = told(fact("k", "secret", "pii"))
    court.move(transfer("d", fact("k", "mine"), constraints=Constraints(must_carry=("k",))))
    court.move(transfer("a"))
    assert list(court.holder.work.handoff.constraints.must_carry) == []
    admitted(court.move(transfer("e", drop=("k",))))  # who sees the secret may drop it
    assert (court.shown["k"], list(court.holder.work.handoff.constraints.must_carry)) == ("mine", ["k"])
    assert refused(court.move(hand_back(fact("n", 1), drop=("k",)))).rule == Rule.MUST_CARRY
    court.move(hand_back(fact("n", 1)))
    assert refused(court.move(transfer("c", drop=("k",)))).rule in (Rule.MUST_CARRY, Rule.KNOWN_AGENT)
    assert rejudge(court.bodies).same


def test_what_one_brings_again_unseen_and_wants_carried_is_judged_again_as_it_was() -> None:
    court = told()
    court.move(transfer("d", fact("ssn", 1, "pii")))
    court.move(hand_back(fact("n", 1)))
    court.move(transfer("a", fact("ssn", 1, "pii"), constraints=Constraints(must_carry=("ssn",))))
    assert list(court.holder.work.handoff.constraints.must_carry) == ["ssn"]
    assert rejudge(court.bodies).same


def test_whether_a_reader_is_cleared_and_no_key_decides_how_many_events_a_hop_takes() -> None:
    """An agent counts events: a key that it guesses is withheld or not, and it learns nothing of it."""
    counts = set()
    for guess in ("k", "other"):
        court = told(fact("k", "secret", "pii"))
        admitted(court.move(transfer("d", fact(guess, "mine"))))
        admitted(court.move(transfer("a")))
        admitted(court.move(hand_back(fact("n", 1))))
        counts.add(tuple(event.n for event in court.events if isinstance(event, HandoffAdmitted)))
    assert counts == {(3, 4, 6)}


values = st.sampled_from([value for alike in ALIKE for value in alike] + [BIG])
brought = st.builds(fact, st.sampled_from(["k", "l", "m"]), values) | st.builds(
    fact, st.sampled_from(["k", "l", "m"]), values, st.just("pii")
)
steps = st.builds(
    lambda to, back, facts, drop, must, scan: (
        HandBack(summary="back", facts=facts, drop=drop)
        if back
        else Transfer(
            to_agent=AgentName(to),
            summary="on",
            facts=facts,
            drop=drop,
            artifacts=(Artifact(name="scan", uri=scan),) if scan else (),
            constraints=Constraints(must_carry=must),
        )
    ),
    st.sampled_from("bdea"),
    st.booleans(),
    st.lists(brought, max_size=2, unique_by=lambda item: item.key).map(tuple),
    st.sampled_from([(), (), ("k",), ("l",)]),
    st.sampled_from([(), (), ("k",), ("l",), ("k", "m"), ("never",)]),
    st.sampled_from(["", "", "s3://1", "s3://2"]),
)


@settings(max_examples=2 * STORIES)
@given(
    values,
    values,
    st.sampled_from(["k", "l", "z"]),
    st.booleans(),
    st.lists(steps, max_size=10),
    st.booleans(),
)
def test_two_worlds_that_differ_in_what_is_withheld_look_the_same(
    secret: Any, other: Any, key: str, must: bool, moves: list[Move], tight: bool
) -> None:
    """In the one world a key is withheld under which agents may bring something; in the other, another is."""
    policy = Policy(max_depth=30, max_refusals=30, max_handoff_bytes=1400 if tight else 65_536)
    worlds = [
        told(
            fact("k", secret, "pii"),
            artifacts=(Artifact(name="scan", uri="s3://secret", labels=("pii",)),),
            constraints=Constraints(must_carry=("k",) if must else ()),
            policy=policy,
        ),
        told(
            fact(key, other, "pii"),
            artifacts=(Artifact(name="other", uri="s3://0", labels=("pii",)),),
            policy=policy,
        ),
    ]
    for court in worlds:
        for number, move in enumerate(moves):
            if court.holder.agent == "a":  # who sees the secret may act on it; this one does not
                court.move(HandBack(summary="seen", facts=(fact(f"n{number}"),)))
            court.move(move)
    assert seen(worlds[0]) == seen(worlds[1])


def test_worlds_that_differ_in_what_is_seen_do_not_look_the_same() -> None:
    one, other = told(fact("k", 1)), told(fact("k", 2))
    assert seen(one) != seen(other)
    assert not isinstance(one.last, FactsWithheld | HandoffAdmitted | MoveRefused)
    assert is_(one.last, type(other.last))
