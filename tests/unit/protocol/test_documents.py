"""The admin's documents: what is valid is read as it is, and every mistake is named with its place."""

import contextlib
import math
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from protocol.wire.config import LEAST_HANDOFF_BYTES, Fleet, Policy, policy_hash
from protocol.wire.documents import DocumentInvalid, parse_policy, read_fleet, read_policy, read_prices
from protocol.wire.events import HandoffAdmitted, MoveRefused
from protocol.wire.handoff import Budget
from protocol.wire.prices import LARGEST_AMOUNT, LONGEST_S
from tests.certain import is_
from tests.unit.protocol.anything import policies
from tests.unit.protocol.worlds import opened, transfer

TIMES = [name for name in Policy.__struct_fields__ if name.endswith("_s")]
COUNTS = [name for name in Policy.__struct_fields__ if name.startswith("max_")]


@given(policies)
def test_a_policy_is_read_as_it_was_written(policy: Policy) -> None:
    policy = replace(policy, max_handoff_bytes=max(policy.max_handoff_bytes, LEAST_HANDOFF_BYTES))
    assert read_policy(msgspec.json.encode(policy), "default") == policy
    assert parse_policy(msgspec.to_builtins(policy), "default") == policy


@pytest.mark.parametrize("field", TIMES)
@pytest.mark.parametrize("value", [-1, -1e-9, math.nan, math.inf, -math.inf, LONGEST_S * 2, "5", True, [1]])
def test_no_time_is_out_of_range(field: str, value: object) -> None:
    with pytest.raises(DocumentInvalid, match=f"^{field}: expected"):
        parse_policy({field: value}, "p")


@pytest.mark.parametrize("field", COUNTS)
@pytest.mark.parametrize("value", [-1, 1.5, math.nan, 1 << 70, 1 << 40, "5", True, None])
def test_no_count_is_out_of_range(field: str, value: object) -> None:
    with pytest.raises(DocumentInvalid, match=f"^{field}: "):
        parse_policy({field: value}, "p")


AT_ONCE = (
    "max_depth",
    "max_handoff_bytes",
    "deadline_s",
    "turn_timeout_s",
    "unattended_after_s",
    "escalation_sla_s",
    "human_deadline_s",
)


@pytest.mark.parametrize("field", AT_ONCE)
def test_what_would_end_every_request_at_once_is_no_policy(field: str) -> None:
    with pytest.raises(DocumentInvalid, match=f"^{field}: expected"):
        parse_policy({field: 0}, "p")


@pytest.mark.parametrize(
    ("said", "mistake"),
    [
        ({"topology": "mesh"}, "topology: known is handoff, supervised, swarm"),
        ({"name": "q"}, "name: it is another one than 'p', under which it stands"),
        ({"on_budget": "shrug"}, "on_budget: invalid enum value '…'"),
        ({"max_deepth": 1}, "Object contains unknown field `max_deepth`"),
        ({"budget": 5}, "budget: expected `object | null`, got `int`"),
        ({"budget": {"token": 5}}, "budget: unknown field `token`"),
        ({"budget": {"tokens": -5}}, "budget.tokens: expected 0 to 2^62"),
        ({"budget": {"tokens": LARGEST_AMOUNT + 1}}, "budget.tokens: expected 0 to 2^62"),
        ({"budget": {"tokens": 0.5}}, "budget.tokens: expected `int | null`, got `float`"),
    ],
)
def test_a_mistake_in_a_policy_is_named(said: dict[str, Any], mistake: str) -> None:
    with pytest.raises(DocumentInvalid) as found:
        parse_policy(said, "p")
    assert found.value.mistakes == (mistake,)


def test_every_mistake_is_named_at_once() -> None:
    with pytest.raises(DocumentInvalid) as found:
        parse_policy({"max_depth": 0, "max_asks": 1, "deadline_s": "soon", "why": 1}, "a b")
    assert [mistake.split(":")[0] for mistake in found.value.mistakes] == [
        "a policy's name is 1 to 64 characters of A-Z a-z 0-9 _ -",
        "max_depth",
        "deadline_s",
        "Object contains unknown field `why`",
    ]


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
)


@given(st.dictionaries(st.sampled_from(Policy.__struct_fields__), anything) | anything)
def test_whatever_a_table_says_it_is_a_valid_policy_or_a_named_mistake(said: object) -> None:
    try:
        policy = parse_policy(said, "p")
    except DocumentInvalid as invalid:
        mistakes = invalid.mistakes
    else:
        assert read_policy(msgspec.json.encode(policy), "p") == policy
        return
    assert mistakes
    assert all(mistakes)


READERS: tuple[Callable[[bytes], object], ...] = (
    lambda body: read_policy(body, "p"),
    read_fleet,
    read_prices,
)


@pytest.mark.parametrize("read", READERS, ids=["policy", "fleet", "prices"])
@given(st.binary() | anything.map(lambda said: repr(said).encode("utf-8", "surrogatepass")))
def test_whatever_bytes_there_are_they_are_a_document_or_a_mistake(
    read: Callable[[bytes], object], body: bytes
) -> None:
    with contextlib.suppress(DocumentInvalid):  # any other exception would be a reader's own
        read(body)


FLEET: dict[str, Any] = {"name": "f", "entry": "a", "agents": {"a": {"name": "a"}}, "clients": ["c"]}


@pytest.mark.parametrize(
    ("change", "mistake"),
    [
        ({"entry": "b"}, "entry: 'b' is no agent of this fleet"),
        ({"agents": {"a": {"name": "b"}}}, "agents.a.name: it is another one"),
        ({"agents": {"a": {"name": "a", "to": ["b"]}}}, "agents.a.to: 'b' is no agent of this fleet"),
        ({"agents": {"a": {"name": "a", "clearance": ["p i"]}}}, "agents.a.clearance: 'p i' is no label"),
        ({"clients": ["a"]}, "agents.a: two members of the fleet have this name"),
        ({"clients": ["c", "c"]}, "clients.c: two members of the fleet have this name"),
        ({"viewers": ["human"]}, "viewers: 'human' is no name"),
        ({"clients": ["any-review"]}, "clients: 'any-review' is no name"),
        ({"operators": ["o.p"]}, "operators: 'o.p' is no name"),
        ({"breakers": {"z": {}}}, "breakers.z: 'z' is no agent of this fleet"),
        ({"breaker": {"open_s": 0}}, "breaker.open_s: expected `float` > 0.0"),
        ({"breakers": {"a": {"failures": -1}}}, "breakers[...].failures: expected `int` >= 0"),
        ({"lease_s": 0}, "lease_s: expected `float` > 0.0"),
        ({"log_max_age_s": 1e300}, "log_max_age_s: expected `float` <= "),
        ({"models": {"m": {"concurrency": 0}}}, "models[...].concurrency: expected `int` >= 1"),
        ({"labels": {"text": ["x"]}}, "labels.text: a submit's own words are free text"),
    ],
)
def test_a_mistake_in_a_fleet_is_named(change: dict[str, Any], mistake: str) -> None:
    assert isinstance(read_fleet(msgspec.json.encode(FLEET)), Fleet)
    with pytest.raises(DocumentInvalid) as found:
        read_fleet(msgspec.json.encode(FLEET | change))
    assert found.value.mistakes[0].startswith(mistake)


def test_a_mistake_in_a_price_is_named_by_its_model() -> None:
    body = b'{"good":{"input":1,"output":2},"bad":{"input":-1,"output":2},"none":5}'
    with pytest.raises(DocumentInvalid) as found:
        read_prices(body)
    assert found.value.mistakes == ("bad: input: expected `int` >= 0", "none: Expected `object`, got `int`")


def test_the_defaults_are_what_the_documentation_promises() -> None:
    assert msgspec.to_builtins(Policy()) == {}
    policy = Policy()
    assert (policy.max_depth, policy.max_refusals, policy.max_retries, policy.max_asks) == (5, 2, 2, 3)
    assert (policy.max_escalations, policy.max_handoff_bytes) == (3, 65_536)
    assert (policy.deadline_s, policy.turn_timeout_s) == (86_400.0, 900.0)


def test_the_hash_is_over_what_differs_from_the_defaults_and_never_changes() -> None:
    assert policy_hash(Policy()) == "44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a"
    assert policy_hash(Policy(max_depth=5)) == policy_hash(Policy())
    assert policy_hash(Policy(max_depth=6)) != policy_hash(Policy())
    one = msgspec.json.decode(b'{"max_asks":1,"budget":{"tokens":5}}', type=Policy)
    assert policy_hash(one) == policy_hash(Policy(budget=Budget(tokens=5), max_asks=1))


def test_a_misspelled_rule_is_no_policy() -> None:
    with pytest.raises(msgspec.ValidationError, match="max_deepth"):
        msgspec.json.decode(b'{"max_deepth": 3}', type=Policy)


def test_a_request_is_judged_by_the_policy_that_it_was_opened_under() -> None:
    play = opened(policy=Policy(max_depth=1))
    play.policy = Policy(max_depth=9)
    is_(play.move(transfer("b")), HandoffAdmitted)
    is_(play.move(transfer("c")), MoveRefused)
