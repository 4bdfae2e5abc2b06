"""The policy: a document with a hash, judged by as it was when the request opened."""

import msgspec
import pytest

from protocol.wire.config import Policy, policy_hash
from protocol.wire.events import HandoffAdmitted, MoveRefused
from protocol.wire.handoff import Budget
from tests.unit.protocol.worlds import is_, opened, transfer


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
    court = opened(policy=Policy(max_depth=1))
    court.policy = Policy(max_depth=9)
    is_(court.move(transfer("b")), HandoffAdmitted)
    is_(court.move(transfer("c")), MoveRefused)
