"""What travels on: merging, sticky labels, and who sees what."""

from collections.abc import Collection
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mesh.replay.rejudge import rejudge
from mesh.testing import InMemoryGuard, fleet_of, turn
from protocol.domain.layers import Bringer, Load, divide, merge
from protocol.wire import codec
from protocol.wire.codec import equal
from protocol.wire.commands import Move
from protocol.wire.config import AgentEntry, Fleet
from protocol.wire.events import HandoffAdmitted, MoveRefused
from protocol.wire.handoff import Fact
from protocol.wire.ids import AgentName
from tests.certain import is_
from tests.unit.protocol.worlds import fact

EMPTY = Load({}, {})


def load(*items: Any) -> Load:
    return merge(EMPTY, items)


def who_sees(*items: Any, clearance: Collection[str] | None = None) -> Bringer:
    cleared = None if clearance is None else frozenset(clearance)
    return Bringer({item.key: item for item in items}, clearance=cleared)


def test_what_is_brought_where_nothing_is_seen_lies_beneath() -> None:
    secret, mine = fact("ssn", 1, "pii"), fact("ssn", 1)
    merged = merge(load(secret), [mine], bringer=who_sees(clearance=()))
    assert merged.facts["ssn"] == (secret, mine)
    assert merge(merged, [fact("ssn", 2)], bringer=who_sees(mine)).facts["ssn"] == (secret, fact("ssn", 2))
    assert merge(merged, [fact("ssn", 3)], bringer=who_sees(secret)).facts["ssn"] == (
        fact("ssn", 3, "pii"),
        mine,
    )
    assert merge(merged, drop=("ssn",), bringer=who_sees(mine)).facts["ssn"] == (secret,)
    assert merge(merged, drop=("ssn",), bringer=who_sees(secret)).facts["ssn"] == (mine,)


@pytest.mark.parametrize("cleared", [True, False])
def test_labels_of_a_key_that_is_carried_no_longer_hold_for_who_could_have_seen_it(cleared: bool) -> None:
    seen = who_sees(clearance=("pii",) if cleared else ())
    merged = merge(EMPTY, [fact("ssn", 2)], bringer=seen, labels={"ssn": ("pii",)})
    assert merged.facts["ssn"][0].labels == (("pii",) if cleared else ())


def test_labels_hold_for_a_key_that_is_carried_no_longer() -> None:
    assert merge(EMPTY, [fact("ssn", 2)], labels={"ssn": ("pii",)}).facts["ssn"][0].labels == ("pii",)


def test_a_reader_sees_the_first_layer_that_it_is_cleared_for() -> None:
    layers = (fact("k", 1, "pii", "x"), fact("k", 2, "pii"), fact("k", 3))
    whole = Load({"k": layers}, {})
    for clearance, value, hidden in (((), 3, 2), (("pii",), 2, 1), (("pii", "x"), 1, 0), (None, 1, 0)):
        divided = divide(whole, clearance)
        assert divided.facts["k"].value == value
        assert divided.rest.facts == {"k": layers}
        assert (divided.withheld.facts if divided.withheld else 0) == hidden


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
    merged = merge(load(fact("k", one)), [fact("k", other)], bringer=who_sees(fact("k", one)))
    assert [layer.value for layer in merged.facts["k"]] == [other]
    assert merged.facts["k"][0].value is other


def test_what_is_brought_again_as_it_is_stays_to_the_letter() -> None:
    before = load(fact("k", {"a": 1, "b": 2}, "pii"))
    again = merge(before, [fact("k", {"b": 2, "a": 1})], bringer=who_sees(before.facts["k"][0]))
    assert again.facts["k"] is before.facts["k"]


@given(st.lists(st.sampled_from("abc")), st.lists(st.sampled_from("abc")))
def test_dividing_loses_nothing(keys: list[str], clearance: list[str]) -> None:
    whole = load(*(fact(key, 1, key) for key in set(keys)))
    divided = divide(whole, clearance)
    assert {key: (item,) for key, item in divided.facts.items()} | divided.rest.facts == whole.facts
    assert not divided.facts.keys() & divided.rest.facts.keys()


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
    return [fact for key, fact in opened.ledger.carried().items() if key == NAME.key]


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
    assert refused.move.facts == (LABELLED,)  # type: ignore[union-attr]
    assert_judged_the_same(opened)


def test_a_person_who_resolves_brings_it_labelled() -> None:
    opened = opened_with()
    opened.move(turn(agent="front").escalate("who is this?"))
    opened.resolve(to="blind", summary="it is Ada", facts=(NAME,))
    assert carried_name(opened) == [LABELLED]
    assert_judged_the_same(opened)
