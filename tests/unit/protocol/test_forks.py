"""What the guard makes of a fork: whom it takes one from, and what it tells each turn."""

import msgspec
import pytest

from mesh.errors import Malformed
from mesh.replay.rejudge import rejudge
from mesh.testing import InMemoryGuard, NotDecided, fleet_of
from protocol.wire import codec
from protocol.wire.commands import ForkedFrom, Submit
from protocol.wire.events import RequestOpened
from protocol.wire.handoff import Fact
from protocol.wire.ids import AgentName, RequestId, TurnId
from protocol.wire.moves import HandBack, Transfer
from tests.certain import is_, known

A, B = AgentName("a"), AgentName("b")
FLEET = msgspec.structs.replace(fleet_of("a", "b"), operators=(AgentName("op"),), clients=(AgentName("app"),))
FORK = ForkedFrom(
    request=RequestId(f"app_{'0' * 26}"),
    n=3,
    digest="0" * 64,
    summary="look again",
    journals={A: (TurnId("a1"), TurnId("a2"), TurnId("a3")), B: (TurnId("b1"),)},
)


def opened(fork: ForkedFrom = FORK) -> InMemoryGuard:
    """Return a guard that an operator gave a fork to."""
    guard = InMemoryGuard(FLEET, client="op")
    is_(guard.submit_whole(Submit(text="hello", forked_from=fork)), RequestOpened)
    return guard


def test_a_clients_fork_is_rejected_and_an_operators_is_opened() -> None:
    with pytest.raises(NotDecided, match="not_allowed"):
        InMemoryGuard(FLEET, client="app").submit_whole(Submit(text="hello", forked_from=FORK))
    event = is_(opened().events[-1], RequestOpened)
    assert event.forked_from == FORK
    assert event.work.handoff.summary == "look again"


def test_each_turn_of_an_agent_is_told_its_own_turns_and_first_the_one_that_it_goes_on_from() -> None:
    guard = opened()
    seen = [known(guard.holder.work.forked_from)]
    back = HandBack(summary="back", facts=(Fact(key="found", value=1),))
    for move in (Transfer(to_agent=B, summary="on"), back):
        guard.move(move)
        seen.append(known(guard.holder.work.forked_from))
    assert [dict(each.journals) for each in seen] == [
        {A: ("a1", "a2", "a3")},
        {B: ("b1",)},
        {A: ("a2", "a1", "a3")},
    ]
    assert {(each.request, each.n, each.effects, each.summary) for each in seen} == {
        (FORK.request, 3, "recorded", "")
    }
    assert rejudge(guard.bodies).same


def test_a_text_keeps_the_labels_that_it_had_come_to_have() -> None:
    guard = opened(msgspec.structs.replace(FORK, text_labels=("pii",)))
    assert guard.ledger.carried().facts["text"].labels == ("pii",)
    assert rejudge(guard.bodies).same


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("request", "none"),
        ("digest", "0" * 63),
        ("digest", "G" * 64),
        ("n", -1),
        ("effects", "some"),
        ("text_labels", ["no label!"]),
        ("journals", {"A!": ["t"]}),
        ("journals", {"a": ["t.u"]}),
        ("journals", {"a": ["t"] * 1_001}),
    ],
)
def test_a_fork_that_cannot_be_one_makes_its_submit_unreadable(field: str, value: object) -> None:
    submit = {"text": "hello", "forked_from": msgspec.to_builtins(FORK) | {field: value}}
    with pytest.raises(Malformed):
        codec.parse_submit(msgspec.json.encode(submit))


def test_a_submit_is_a_rerun_or_a_fork() -> None:
    submit = Submit(text="hello", forked_from=FORK, rerun_of=FORK.request)
    with pytest.raises(Malformed, match="not both"):
        codec.parse_submit(codec.encode(submit))
