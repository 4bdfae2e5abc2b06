"""Withholding: no reader of an inbox event learns what its labels keep from them."""

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mesh.replay.rejudge import rejudge
from protocol.domain.layers import FactHistory
from protocol.wire import codec
from protocol.wire.commands import Freeze, HandBack, Move, Resolve, Thaw, Transfer
from protocol.wire.config import Policy
from protocol.wire.events import (
    AnyEvent,
    EscalationResolved,
    FactsWithheld,
    HandoffAdmitted,
    MoveRefused,
    RequestFailed,
    RequestOpened,
    Withheld,
)
from protocol.wire.handoff import Artifact, Constraints, Fact, Rule
from protocol.wire.ids import AgentName
from tests.unit.protocol.anything import ALIKE, STORIES
from tests.unit.protocol.happened import admitted, refused
from tests.unit.protocol.oracle.audit import Auditor
from tests.unit.protocol.worlds import Play, agent, agents, ask, escalate, fact, hand_back, is_, transfer

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
    assert (kept.facts, kept.must_carry) == ((SSN,), (0,))
    assert event.work.handoff.constraints.must_carry == ("text",)
    assert b"ssn" not in play.bodies[1]


def test_what_is_withheld_comes_back_for_the_next_who_may_see_it() -> None:
    play = told()
    play.move(transfer("b"))
    play.move(transfer("c"))
    assert play.holder.work.handoff.facts == (SSN, TEXT)
    assert play.holder.work.handoff.artifacts == (SCAN,)
    assert play.ledger.stash.facts == {}
    play.move(transfer("d"))
    play.move(hand_back())
    assert play.shown["ssn"] == "078-05"


def test_a_withheld_fact_counts_as_carried() -> None:
    play = told(constraints=Constraints(must_carry=("ssn",)))
    event = is_(play.move(transfer("b")), HandoffAdmitted)
    assert event.work.handoff.constraints.must_carry == ()
    assert is_(play.events[-2], FactsWithheld).must_carry == (0,)
    onward = is_(play.move(transfer("d", fact("new", 1))), HandoffAdmitted)
    assert onward.work.handoff.constraints.must_carry == ()
    cleared = is_(play.move(transfer("c")), HandoffAdmitted)
    assert cleared.work.handoff.constraints.must_carry == ("ssn",)
    refused = is_(play.move(transfer("e", drop=("ssn",))), MoveRefused)
    assert refused.refusal.rule == Rule.KNOWN_AGENT
    play.fleet = FLEET | agents("e")
    refused = is_(play.move(transfer("e", drop=("ssn",))), MoveRefused)
    assert refused.refusal.numbers == {"keys": ["ssn"]}


@pytest.mark.parametrize("key", ["ssn", "no-such-key"])
@pytest.mark.parametrize("must", [("ssn",), ()])
def test_nobody_finds_a_withheld_key_out_by_asking_to_carry_it(key: str, must: tuple[str, ...]) -> None:
    play = told(constraints=Constraints(must_carry=must))
    play.move(transfer("b"))
    event = is_(play.move(transfer("d", constraints=Constraints(must_carry=(key,)))), MoveRefused)
    assert (event.refusal.rule, event.refusal.numbers) == (Rule.MUST_CARRY, {"keys": [key]})


def test_what_has_to_be_carried_is_kept_anew_where_it_is_another_than_before() -> None:
    """Both frames beneath are withheld the same fact, but only one of them was told to carry it."""
    play = told()
    play.move(transfer("b"))
    play.move(transfer("c"))
    play.move(transfer("d", constraints=Constraints(must_carry=("ssn",))))
    assert is_(play.events[-2], FactsWithheld).must_carry == (0,)
    play.fleet = FLEET | {"c": agent("c")}
    play.move(hand_back(fact("new", 1)))
    assert is_(play.events[-2], FactsWithheld).must_carry == ()
    play.fleet = FLEET
    play.move(hand_back(fact("newer", 1)))
    assert play.ledger.marks() == frozenset()


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
    assert (kept.facts, kept.must_carry) == ((SSN,), (0,))
    assert event.work.withheld == Withheld(labels=("pii",), facts=1, artifacts=1)
    assert b"ssn" not in play.bodies[-1]
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
    assert died.ledger.stash.facts == {}
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
    assert leaks(play.last, play.fleet) == ["hush-key", "hush-value"]


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
