"""A withheld key is no obstacle: layers, guesses, and worlds that look the same."""

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mesh.replay.rejudge import rejudge
from protocol.domain.layers import FactHistory
from protocol.wire.commands import HandBack, Move, Resolve, Transfer
from protocol.wire.config import Policy
from protocol.wire.event_parts import Withheld
from protocol.wire.events import FactsWithheld, HandoffAdmitted, MoveRefused, RequestFailed
from protocol.wire.handoff import Artifact, Constraints, Fact, Rule
from protocol.wire.ids import AgentName
from tests.certain import is_
from tests.unit.protocol.anything import ALIKE, STORIES
from tests.unit.protocol.happened import admitted, refused
from tests.unit.protocol.oracle.audit import Auditor
from tests.unit.protocol.worlds import Play, agent, agents, escalate, fact, hand_back, transfer

UNSEEN = agents("bde") | {"a": agent("a", clearance=("pii",))}
BIG = "x" * 300


def opened_unseen(*facts: Fact, policy: Policy | None = None, **submit: Any) -> Play:
    """Open a request whose entry agent `b` may not see what is labelled."""
    play = Play(fleet=dict(UNSEEN), entry="b", policy=policy or Policy(max_depth=30, max_refusals=30))
    play.submit(facts=facts, **submit)
    return play


def seen(play: Play) -> list[Any]:
    """Return all that reaches agents who are cleared for nothing, less ids and times."""
    got: list[Any] = []
    for event in play.events:
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
    play = opened_unseen(fact("k", 1, "pii"), constraints=Constraints(must_carry=must))
    event = admitted(play.move(transfer("d", fact("k", value))))
    assert [item.value for item in event.work.handoff.facts if item.key == "k"] == [value]
    assert event.work.withheld == Withheld(labels=("pii",), facts=1)
    admitted(play.move(transfer("a")))
    assert play.shown["k"] == 1
    assert play.holder.work.withheld is None
    play.move(hand_back(fact("seen", True)))
    assert play.shown["k"] == value


def test_who_sees_the_secret_changes_it_and_who_does_not_keeps_seeing_their_own() -> None:
    play = opened_unseen(fact("k", "secret", "pii"))
    play.move(transfer("d", fact("k", "mine")))
    play.move(transfer("a"))
    play.move(transfer("e", fact("k", "changed")))
    assert play.shown["k"] == "mine"
    play.move(hand_back(fact("n", 1)))
    assert play.shown["k"] == "changed"


def test_what_one_brought_unseen_is_not_new_a_second_time() -> None:
    play = opened_unseen()
    play.move(transfer("d", fact("ssn", 1, "pii")))
    play.move(hand_back())
    assert refused(play.move(transfer("d", fact("ssn", 1, "pii")))).rule == Rule.CYCLE
    admitted(play.move(transfer("d", fact("ssn", 2, "pii"))))


@pytest.mark.parametrize("guess", ["right", "wrong"])
def test_a_guess_is_new_whether_it_is_right_or_wrong(guess: str) -> None:
    play = opened_unseen(fact("k", "right", "pii"))
    play.move(transfer("d"))
    play.move(hand_back())
    admitted(play.move(transfer("d", fact("k", guess))))
    play.move(hand_back())
    assert refused(play.move(transfer("d", fact("k", guess)))).rule == Rule.CYCLE


def test_asking_what_is_new_looks_at_each_handoff_once(monkeypatch: pytest.MonkeyPatch) -> None:
    looked = 0

    def canonical(value: int) -> bytes:
        nonlocal looked
        looked += 1
        return b"%d" % value

    monkeypatch.setattr("protocol.domain.layers.canonical", canonical)
    history = FactHistory()
    for number in range(50):
        assert history.is_new(fact("k", number))
        history.remember((fact("k", number),))
        assert not history.is_new(fact("k", number))
    assert looked == 50 * 3


@pytest.mark.parametrize("secret", ["", "x" * 900])
def test_the_size_of_what_is_withheld_counts_for_nobody_who_may_not_see_it(secret: str) -> None:
    play = opened_unseen(fact("k", secret, "pii"), policy=Policy(max_handoff_bytes=1500))
    admitted(play.move(transfer("d", fact("n", "y" * 900))))
    assert refused(play.move(transfer("e", fact("m", "z" * 900)))).rule == Rule.SIZE


def test_a_persons_hands_lose_no_layer() -> None:
    play = opened_unseen(fact("k", "secret", "pii"))
    play.move(transfer("d", fact("k", "mine")))
    play.move(escalate(fact("k", "newer")))
    assert play.shown["k"] == "secret"
    play.control(Resolve, turn=play.turn, to=AgentName("e"), facts=(fact("k", "by hand"),))
    assert play.shown["k"] == "newer"
    play.move(transfer("a"))
    assert play.shown["k"] == "by hand"


def test_what_lies_beneath_outlives_people_who_hand_it_on_unseen() -> None:
    """The oracle keeps it, too: what a reader sees nothing of is there all the same."""
    play = opened_unseen(fact("k", 1, "pii"))
    play.move(escalate(fact("k", 1, "pii")))
    play.control(Resolve, turn=play.turn)
    play.move(escalate(fact("k", 1)))
    assert play.shown["k"] == 1
    auditor = Auditor()
    for event in play.events:
        auditor.follow(event, play.heard.get(event.cause))
    assert auditor.found == []
    assert rejudge(play.bodies).same


def test_a_client_is_told_no_fact_of_an_escalation_that_ends_its_request() -> None:
    play = opened_unseen(fact("k", "secret", "pii"), policy=Policy(max_escalations=0))
    event = is_(play.move(escalate(fact("found", "hush", "pii"))), RequestFailed)
    assert (event.to, event.code) == ("c1", "max_escalations")
    assert b"hush" not in play.bodies[-1]
    assert rejudge(play.bodies).same


def test_must_carry_binds_what_its_asker_sees() -> None:
    play = opened_unseen(fact("k", "secret", "pii"), constraints=Constraints(must_carry=("k",)))
    assert list(play.holder.work.handoff.constraints.must_carry) == []
    play.move(transfer("d", fact("k", "mine"), constraints=Constraints(must_carry=("k",))))
    assert list(play.holder.work.handoff.constraints.must_carry) == ["k"]
    assert refused(play.move(transfer("e", drop=("k",)))).numbers == {"keys": ["k"]}
    assert refused(play.move(transfer("e", fact("k", "another")))).numbers == {"keys": ["k"]}
    play.fleet = UNSEEN | agents("c")
    admitted(play.move(transfer("a")))
    assert list(play.holder.work.handoff.constraints.must_carry) == ["k"]
    assert refused(play.move(transfer("c", drop=("k",)))).rule == Rule.MUST_CARRY
    admitted(play.move(transfer("c")))
    assert play.shown["k"] == "mine"
    assert rejudge(play.bodies).same


def test_a_mark_beneath_a_secret_outlives_the_secret() -> None:
    play = opened_unseen(fact("k", "secret", "pii"))
    play.move(transfer("d", fact("k", "mine"), constraints=Constraints(must_carry=("k",))))
    play.move(transfer("a"))
    assert list(play.holder.work.handoff.constraints.must_carry) == []
    admitted(play.move(transfer("e", drop=("k",))))  # who sees the secret may drop it
    assert (play.shown["k"], list(play.holder.work.handoff.constraints.must_carry)) == ("mine", ["k"])
    assert refused(play.move(hand_back(fact("n", 1), drop=("k",)))).rule == Rule.MUST_CARRY
    play.move(hand_back(fact("n", 1)))
    assert refused(play.move(transfer("c", drop=("k",)))).rule in (Rule.MUST_CARRY, Rule.KNOWN_AGENT)
    assert rejudge(play.bodies).same


def test_whether_a_reader_is_cleared_and_no_key_decides_how_many_events_a_hop_takes() -> None:
    """An agent counts events: a key that it guesses is withheld or not, and it learns nothing of it."""
    counts = set()
    for guess in ("k", "other"):
        play = opened_unseen(fact("k", "secret", "pii"))
        admitted(play.move(transfer("d", fact(guess, "mine"))))
        admitted(play.move(transfer("a")))
        admitted(play.move(hand_back(fact("n", 1))))
        counts.add(tuple(event.n for event in play.events if isinstance(event, HandoffAdmitted)))
    assert counts == {(3, 4, 6)}


values = st.sampled_from([value for alike in ALIKE for value in alike] + [BIG])
brought = st.builds(fact, st.sampled_from(["k", "l", "m"]), values) | st.builds(
    fact, st.sampled_from(["k", "l", "m"]), values, st.just("pii")
)
unseen_steps = st.builds(
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
    st.lists(unseen_steps, max_size=10),
    st.booleans(),
)
def test_two_worlds_that_differ_in_what_is_withheld_look_the_same(
    secret: Any, other: Any, key: str, must: bool, moves: list[Move], tight: bool
) -> None:
    """In the one world a key is withheld under which agents may bring something; in the other, another is."""
    policy = Policy(max_depth=30, max_refusals=30, max_handoff_bytes=1400 if tight else 65_536)
    worlds = [
        opened_unseen(
            fact("k", secret, "pii"),
            artifacts=(Artifact(name="scan", uri="s3://secret", labels=("pii",)),),
            constraints=Constraints(must_carry=("k",) if must else ()),
            policy=policy,
        ),
        opened_unseen(
            fact(key, other, "pii"),
            artifacts=(Artifact(name="other", uri="s3://0", labels=("pii",)),),
            policy=policy,
        ),
    ]
    for play in worlds:
        for number, move in enumerate(moves):
            if play.holder.agent == "a":  # who sees the secret may act on it; this one does not
                play.move(HandBack(summary="seen", facts=(fact(f"n{number}"),)))
            play.move(move)
    assert seen(worlds[0]) == seen(worlds[1])


def test_worlds_that_differ_in_what_is_seen_do_not_look_the_same() -> None:
    one, other = opened_unseen(fact("k", 1)), opened_unseen(fact("k", 2))
    assert seen(one) != seen(other)
    assert not isinstance(one.last, FactsWithheld | HandoffAdmitted | MoveRefused)
    assert is_(one.last, type(other.last))
