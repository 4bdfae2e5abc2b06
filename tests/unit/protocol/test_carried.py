"""What travels on: merging, sticky labels, and who sees what."""

from collections.abc import Collection

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mesh.replay.rejudge import rejudge
from mesh.testing import InMemoryGuard, fleet_of, turn
from protocol.domain.carried import NOTHING, Carried, divide, merge, together
from protocol.wire import codec
from protocol.wire.codec import equal
from protocol.wire.config import AgentEntry, Fleet
from protocol.wire.events import HandoffAdmitted, MoveRefused
from protocol.wire.handoff import Artifact, Fact
from protocol.wire.ids import AgentName
from protocol.wire.moves import Move
from tests.certain import is_
from tests.unit.protocol.worlds import fact


def carrying(*items: Fact) -> Carried:
    return merge(NOTHING, items)


def test_a_fact_takes_the_place_of_the_one_under_its_key_and_keeps_its_labels() -> None:
    merged = merge(carrying(fact("ssn", 1, "pii"), fact("n", 1)), [fact("ssn", 2, "vip")])
    assert merged.fact_tuple == (fact("n", 1), fact("ssn", 2, "pii", "vip"))
    assert merge(merged, drop=("ssn", "never")).fact_tuple == (fact("n", 1),)
    assert merge(merged, [fact("n", 2)], drop=("n",)).facts["n"] == fact("n", 2)


def test_labels_of_a_key_that_is_carried_no_longer_hold() -> None:
    assert merge(NOTHING, [fact("ssn", 2)], labels={"ssn": ("pii",)}).facts["ssn"].labels == ("pii",)


def test_an_artifact_takes_the_place_of_the_one_of_its_name_and_keeps_its_labels() -> None:
    scan = Artifact(name="scan", uri="s3://1", labels=("pii",))
    merged = merge(merge(NOTHING, (), [scan]), (), [Artifact(name="scan", uri="s3://2")])
    assert merged.artifact_tuple == (Artifact(name="scan", uri="s3://2", labels=("pii",)),)


@pytest.mark.parametrize(
    ("clearance", "shown"),
    [((), {"c"}), (("pii",), {"b", "c"}), (("pii", "x"), {"a", "b", "c"}), (None, {*"abc"})],
)
def test_a_reader_sees_what_it_is_cleared_for(clearance: Collection[str] | None, shown: set[str]) -> None:
    whole = carrying(fact("a", 1, "pii", "x"), fact("b", 2, "pii"), fact("c", 3))
    divided = divide(whole, clearance)
    assert divided.shown.facts.keys() == shown
    assert divided.hidden.facts.keys() == whole.facts.keys() - shown
    assert (divided.withheld.facts if divided.withheld else 0) == 3 - len(shown)


values = st.recursive(
    st.one_of(
        st.none(), st.booleans(), st.integers(-3, 3), st.sampled_from(["", "1", "true", 1.0, 0.0, -0.0])
    ),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.sampled_from("ab"), inner)),
    max_leaves=4,
)


def json_equal(one: object, other: object) -> bool:
    """Compare as JSON does, by another way than the code: types first, then piece by piece."""
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(json_equal(one[key], other[key]) for key in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(json_equal, one, other))
    return type(one) is type(other) and repr(one) == repr(other)


@given(values, values)
def test_two_values_are_equal_if_they_are_one_json_value(one: object, other: object) -> None:
    assert equal(one, other) == json_equal(one, other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (1, True),
        (1, 1.0),
        (0.0, -0.0),
        (1, "1"),
        ([0], [False]),
        ({"a": [1]}, {"a": [True]}),
        (None, 0),
        ({}, []),
    ],
)
def test_what_only_python_or_a_reader_takes_for_one_value_are_two(one: object, other: object) -> None:
    assert not equal(one, other)
    assert not equal(fact("k", one), fact("k", other))
    merged = merge(carrying(fact("k", one)), [fact("k", other)])
    assert merged.facts["k"].value is other


def test_what_is_brought_again_as_it_is_stays_to_the_letter() -> None:
    before = carrying(fact("k", {"a": 1, "b": 2}, "pii"))
    again = merge(before, [fact("k", {"b": 2, "a": 1})])
    assert again.facts["k"] is before.facts["k"]


@given(st.lists(st.sampled_from("abc")), st.lists(st.sampled_from("abc")))
def test_dividing_loses_nothing(keys: list[str], clearance: list[str]) -> None:
    whole = carrying(*(fact(key, 1, key) for key in set(keys)))
    divided = divide(whole, clearance)
    assert together(divided.shown, divided.hidden) == whole
    assert not divided.shown.facts.keys() & divided.hidden.facts.keys()


NAME = Fact(key="customer_name", value="Ada")
LABELLED = Fact(key="customer_name", value="Ada", labels=("pii",))


def labelling_fleet() -> Fleet:
    made = fleet_of("front", "blind", human=True)
    cleared = AgentEntry(name=AgentName("front"), clearance=("pii", "vip"))
    return msgspec.structs.replace(
        made, agents={**made.agents, "front": cleared}, labels={"customer_name": ("pii",)}
    )


def opened_with(*facts: Fact, to: str | None = None) -> InMemoryGuard:
    opened = InMemoryGuard(labelling_fleet())
    opened.submit("Say hello", facts=facts, to=to)
    return opened


def carried_name(opened: InMemoryGuard) -> list[Fact]:
    return [fact for key, fact in opened.ledger.carried().facts.items() if key == NAME.key]


def assert_judged_the_same(opened: InMemoryGuard) -> None:
    again = rejudge([codec.encode(event) for event in opened.events])
    assert again.same, again


@pytest.mark.parametrize("to", ["front", "blind"])
def test_what_a_client_labels_besides_stays(to: str) -> None:
    opened = opened_with(Fact(key="customer_name", value="Ada", labels=("vip",)), to=to)
    assert carried_name(opened) == [Fact(key="customer_name", value="Ada", labels=("pii", "vip"))]
    assert_judged_the_same(opened)


@pytest.mark.parametrize(
    "move",
    [
        turn(agent="front", peers=["blind"]).transfer("blind", summary="greet them", facts=[NAME]),
        turn(agent="front").escalate("who is this?", facts=[NAME]),
    ],
    ids=["transfer", "escalate"],
)
def test_an_agent_that_says_no_label_brings_it_all_the_same(move: Move) -> None:
    opened = opened_with()
    opened.move(move)
    assert carried_name(opened) == [LABELLED]
    assert_judged_the_same(opened)


def test_a_hand_back_and_a_refused_move_are_labelled_too() -> None:
    opened = opened_with()
    opened.move(turn(agent="front", peers=["blind"]).transfer("blind", summary="greet them"))
    back = turn(agent="blind", path=["front", "blind"]).hand_back("it is Ada", facts=[NAME])
    assert isinstance(opened.move(back), HandoffAdmitted)
    assert carried_name(opened) == [LABELLED]
    stranger = turn(agent="front", peers=["nobody"]).transfer("nobody", summary="?", facts=[NAME])
    refused = is_(opened.move(stranger), MoveRefused)
    assert refused.move.facts == (LABELLED,)
    assert_judged_the_same(opened)


def test_a_key_that_was_dropped_keeps_its_labels_for_whoever_brings_it_again() -> None:
    opened = opened_with(Fact(key="iban", value="DE1", labels=("vip",)), to="front")
    opened.move(turn(agent="front", peers=["blind"]).transfer("blind", summary="go on", drop=["iban"]))
    assert "iban" not in opened.ledger.carried().facts
    back = turn(agent="blind", path=["front", "blind"]).hand_back("found", facts={"iban": "DE2"})
    assert isinstance(opened.move(back), HandoffAdmitted)
    assert opened.ledger.carried().facts["iban"] == Fact(key="iban", value="DE2", labels=("vip",))
    assert_judged_the_same(opened)


def test_who_may_see_an_artifact_may_put_another_under_its_name() -> None:
    opened = opened_with()
    first, second = Artifact(name="scan", uri="s3://1"), Artifact(name="scan", uri="s3://2")
    opened.move(turn(agent="front", peers=["blind"]).transfer("blind", summary="go on", artifacts=[first]))
    back = turn(agent="blind", path=["front", "blind"]).hand_back("found", artifacts=[second])
    assert isinstance(opened.move(back), HandoffAdmitted)
    assert opened.ledger.carried().artifacts["scan"] == second


def test_a_person_who_resolves_brings_it_labelled() -> None:
    opened = opened_with()
    opened.move(turn(agent="front").escalate("who is this?"))
    opened.resolve(to="blind", summary="it is Ada", facts=(NAME,))
    assert carried_name(opened) == [LABELLED]
    assert_judged_the_same(opened)
