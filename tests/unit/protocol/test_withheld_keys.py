"""A key that an agent may not see: who may use it, guesses, and worlds that look the same."""

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mesh.replay.rejudge import rejudge
from protocol.domain.carried import FactHistory
from protocol.wire.commands import Resolve
from protocol.wire.config import Policy
from protocol.wire.event_parts import Withheld
from protocol.wire.events import FactsWithheld, HandoffAdmitted, MoveRefused, RequestFailed
from protocol.wire.handoff import Artifact, Constraints, Fact, Rule
from protocol.wire.ids import AgentName
from protocol.wire.moves import Complete, HandBack, Move, Transfer
from tests.certain import is_
from tests.unit.protocol.anything import ALIKE, STORIES
from tests.unit.protocol.happened import admitted, refused
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


def test_what_the_log_says_was_handed_over_is_what_is_paid() -> None:
    """An agent that may not see the amount cannot put another one beneath it."""
    fleet = {name: agent(name, clearance=("pii",)) for name in ("intake", "payout")} | {"calc": agent("calc")}
    play = Play(fleet=fleet, entry="intake")
    play.submit()
    admitted(play.move(transfer("calc", fact("amount", 100, "pii"))))
    refusal = refused(play.move(transfer("payout", fact("amount", 75))))
    assert (refusal.rule, refusal.numbers) == (Rule.LABELS, {"keys": ["amount"]})
    assert refusal.detail == "the key `amount` is taken by a fact that calc may not see"
    assert refusal.hint == "use another key"
    admitted(play.move(transfer("payout", fact("net_amount", 75))))
    assert (play.shown["amount"], play.shown["net_amount"]) == (100, 75)
    assert rejudge(play.bodies).same


@pytest.mark.parametrize(
    ("move", "numbers", "hint"),
    [
        pytest.param(
            transfer("d", fact("k", 2), fact("n")), {"keys": ["k"]}, "use another key", id="brought"
        ),
        pytest.param(transfer("d", fact("k", 1)), {"keys": ["k"]}, "use another key", id="guessed"),
        pytest.param(transfer("d", drop=("k", "n")), {"keys": ["k"]}, "leave `k` as it is", id="dropped"),
        pytest.param(hand_back(fact("k", 2)), {"keys": ["k"]}, "use another key", id="handed-back"),
        pytest.param(
            hand_back(drop=("k",)), {"keys": ["k"]}, "leave `k` as it is", id="dropped-on-the-way-back"
        ),
        pytest.param(escalate(fact("k", 2)), {"keys": ["k"]}, "use another key", id="escalated"),
        pytest.param(
            Complete(answer="", remember=(fact("k", 2),)), {"keys": ["k"]}, "use another key", id="remembered"
        ),
        pytest.param(
            Complete(answer="", remember_keys=("k",)), {"keys": ["k"]}, "leave `k` as it is", id="named"
        ),
        pytest.param(
            transfer("d", artifacts=(Artifact(name="scan", uri="s3://2"),)),
            {"keys": [], "artifacts": ["scan"]},
            "use another name",
            id="an-artifact",
        ),
    ],
)
def test_who_may_not_see_it_brings_drops_or_remembers_nothing_under_its_key(
    move: Move, numbers: dict[str, Any], hint: str
) -> None:
    play = opened_unseen(
        fact("k", 1, "pii"), artifacts=(Artifact(name="scan", uri="s3://1", labels=("pii",)),)
    )
    refusal = refused(play.move(move))
    assert (refusal.rule, refusal.numbers, refusal.hint) == (Rule.LABELS, numbers, hint)
    assert all(f"`{name}`" in refusal.detail for names in numbers.values() for name in names)
    admitted(play.move(transfer("a")))
    assert (play.shown["k"], play.holder.work.handoff.artifacts[0].uri) == (1, "s3://1")
    assert rejudge(play.bodies).same


def test_what_one_brought_out_of_its_own_sight_is_taken_too() -> None:
    play = opened_unseen()
    admitted(play.move(transfer("d", fact("ssn", 1, "pii"))))
    play.move(hand_back())
    assert refused(play.move(transfer("e", fact("ssn", 2)))).rule == Rule.LABELS
    admitted(play.move(transfer("a", fact("ssn-2", 2, "pii"))))
    assert (play.shown["ssn"], play.shown["ssn-2"]) == (1, 2)


def test_a_clearance_that_was_taken_meanwhile_counts_as_it_is_today() -> None:
    play = Play(fleet=dict(UNSEEN), entry="a")
    play.submit(facts=(fact("k", "secret", "pii"),))
    play.fleet["a"] = agent("a")
    assert refused(play.move(transfer("d", fact("k", "changed")))).rule == Rule.LABELS
    admitted(play.move(transfer("d")))
    assert rejudge(play.bodies).same


def test_a_clearance_that_came_meanwhile_counts_from_the_next_turn_on() -> None:
    """Nobody replaces what they have not seen."""
    play = opened_unseen(fact("k", "secret", "pii"))
    play.fleet["b"] = agent("b", clearance=("pii",))
    assert refused(play.move(transfer("d", fact("k", "blind")))).rule == Rule.LABELS
    play.move(transfer("d"))
    play.move(hand_back(fact("n", 1)))
    assert play.shown["k"] == "secret"
    admitted(play.move(transfer("a", fact("k", "seen"))))
    assert play.shown["k"] == "seen"


def test_who_sees_it_changes_it_for_everybody_and_its_labels_stay() -> None:
    play = opened_unseen(fact("k", "secret", "pii"))
    play.move(transfer("a"))
    event = admitted(play.move(transfer("e", fact("k", "changed"))))
    assert event.work.withheld == Withheld(labels=("pii",), facts=1)
    play.move(hand_back(fact("n", 1)))
    assert play.shown["k"] == "changed"


@pytest.mark.parametrize("secret", ["guess", "other"])
def test_a_guess_under_a_key_that_was_dropped_tells_nothing(secret: str) -> None:
    """It is not new, right or wrong: the request held the key."""
    play = opened_unseen(fact("k", secret, "pii"))
    play.move(transfer("a"))
    play.move(hand_back(fact("n", 1), drop=("k",)))
    play.move(transfer("d"))
    play.move(hand_back())
    assert refused(play.move(transfer("d", fact("k", "guess")))).rule == Rule.CYCLE
    event = admitted(play.move(transfer("d", fact("k", "guess"), fact("m", 1))))
    assert event.work.withheld == Withheld(labels=("pii",), facts=1)
    assert rejudge(play.bodies).same


def test_asking_what_is_new_looks_at_each_handoff_once(monkeypatch: pytest.MonkeyPatch) -> None:
    looked = 0

    def canonical(value: int) -> bytes:
        nonlocal looked
        looked += 1
        return b"%d" % value

    monkeypatch.setattr("protocol.domain.carried.canonical", canonical)
    history = FactHistory()
    for number in range(50):
        assert history.is_new(fact("k", number))
        history.remember((fact("k", number),))
        assert not history.is_new(fact("k", number))
    assert looked == 50 * 3 - 1  # of a key that nobody held, no value is looked at


@pytest.mark.parametrize("secret", ["", "x" * 900])
def test_the_size_of_what_is_withheld_counts_for_nobody_who_may_not_see_it(secret: str) -> None:
    play = opened_unseen(fact("k", secret, "pii"), policy=Policy(max_handoff_bytes=1500))
    admitted(play.move(transfer("d", fact("n", "y" * 900))))
    assert refused(play.move(transfer("e", fact("m", "z" * 900)))).rule == Rule.SIZE


def test_a_person_sees_everything_and_may_change_it() -> None:
    play = opened_unseen(fact("k", "secret", "pii"))
    play.move(escalate())
    assert play.shown["k"] == "secret"
    play.control(Resolve, turn=play.turn, to=AgentName("e"), facts=(fact("k", "by hand"),))
    assert "k" not in play.shown
    play.move(transfer("a"))
    assert play.shown["k"] == "by hand"
    assert rejudge(play.bodies).same


def test_a_client_is_told_no_fact_of_an_escalation_that_ends_its_request() -> None:
    play = opened_unseen(fact("k", "secret", "pii"), policy=Policy(max_escalations=0))
    event = is_(play.move(escalate(fact("found", "hush", "pii"))), RequestFailed)
    assert (event.to, event.code) == ("c1", "max_escalations")
    assert b"hush" not in play.bodies[-1]
    assert rejudge(play.bodies).same


def test_what_must_be_carried_is_carried_past_who_may_not_see_it() -> None:
    play = opened_unseen(fact("k", "secret", "pii"), constraints=Constraints(must_carry=("k",)))
    assert play.holder.work.handoff.constraints.must_carry == ("k",)
    asked = Constraints(must_carry=("k",))
    assert refused(play.move(transfer("d", constraints=asked))).rule == Rule.MUST_CARRY
    admitted(play.move(transfer("a")))
    play.fleet = UNSEEN | agents("c")
    assert refused(play.move(transfer("c", drop=("k",)))).numbers == {"keys": ["k"]}
    assert refused(play.move(transfer("c", fact("k", "another")))).numbers == {"keys": ["k"]}
    admitted(play.move(transfer("c", constraints=asked)))
    assert rejudge(play.bodies).same


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
@given(values, values, st.booleans(), st.lists(unseen_steps, max_size=10), st.booleans())
def test_two_worlds_that_differ_in_what_is_withheld_look_the_same(
    secret: Any, other: Any, must: bool, moves: list[Move], tight: bool
) -> None:
    """Agents may learn that a name is taken. What stands under it, however large, changes nothing."""
    policy = Policy(max_depth=30, max_refusals=30, max_handoff_bytes=1400 if tight else 65_536)
    worlds = [
        opened_unseen(
            fact("k", value, "pii"),
            artifacts=(Artifact(name="scan", uri=uri, labels=("pii",)),),
            constraints=Constraints(must_carry=("k",) if must else ()),
            policy=policy,
        )
        for value, uri in ((secret, "s3://secret"), (other, "s3://0"))
    ]
    for play in worlds:
        for number, move in enumerate(moves):
            if play.holder.agent == "a":  # who sees the secret may act on it; this one drops it, now and then
                drop = ("k",) if number % 3 == 1 and not must else ()
                play.move(HandBack(summary="seen", facts=(fact(f"n{number}"),), drop=drop))
            play.move(move)
    assert seen(worlds[0]) == seen(worlds[1])


def test_worlds_that_differ_in_what_is_seen_do_not_look_the_same() -> None:
    one, other = opened_unseen(fact("k", 1)), opened_unseen(fact("k", 2))
    assert seen(one) != seen(other)
    assert not isinstance(one.last, FactsWithheld | HandoffAdmitted | MoveRefused)
    assert is_(one.last, type(other.last))
