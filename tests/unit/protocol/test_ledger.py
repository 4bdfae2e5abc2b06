"""The fold: what a request's events add up to."""

import pytest

from protocol.domain.carried import NOTHING
from protocol.domain.hash_chain import GENESIS
from protocol.domain.ledger import Ledger, fold, fold_bodies
from protocol.wire import codec, events
from protocol.wire.commands import Assign, Freeze, ReplyToAsk, Resolve, Settle, Thaw
from protocol.wire.config import Policy
from protocol.wire.errors import UnknownEvent
from protocol.wire.events import MoveDeferred
from protocol.wire.ids import TurnId
from tests.unit.protocol.worlds import (
    Play,
    agent,
    agents,
    ask,
    complete,
    escalate,
    fact,
    hand_back,
    opened,
    transfer,
    usage,
)


def eventful() -> Play:
    """A request to which nearly everything happens."""
    play = Play(
        fleet=agents("bcd") | {"a": agent("a", clearance=("pii",))}, policy=Policy(escalation_sla_s=60.0)
    )
    play.submit(facts=(fact("ssn", 1, "pii"),))
    play.move(transfer("b"), usage(tokens=5))
    play.move(transfer("nobody"))
    play.fail()
    play.wait(60)
    play.move(ask())
    play.control(Freeze)
    play.control(ReplyToAsk, sender="c1", turn=play.turn, round=2, value="red")
    play.move(hand_back(fact("found", 1)), usage(tokens=7))
    play.control(Thaw)
    play.doubt()
    play.control(Settle, turn=play.turn, round=0, outcome="done")
    play.move(escalate())
    play.wait(60)
    play.control(Assign, turn=play.turn, to="Ada")
    play.control(Resolve, turn=play.turn, again=True)
    play.move(complete())
    return play


def state(ledger: Ledger) -> dict[str, object]:
    """Return what two equal ledgers have in common; when one was last asked for news is nothing of it."""
    ledger.history.condense()
    return {name: getattr(ledger, name) for name in Ledger.__slots__ if name not in ("body", "_digest")}


def test_a_ledger_is_the_same_however_it_was_folded() -> None:
    play = eventful()
    by_steps = Ledger()
    for n, (event, body) in enumerate(zip(play.events, play.bodies, strict=True)):
        assert by_steps.n == n
        by_steps.apply(event, body)
        assert (
            state(by_steps) == state(fold(play.events[: n + 1])) == state(fold_bodies(play.bodies[: n + 1]))
        )
        assert by_steps.prev == codec.body_digest(body) == fold(play.events[: n + 1]).prev
    assert state(by_steps) == state(play.ledger)


def test_an_empty_ledger_knows_nothing() -> None:
    ledger = Ledger()
    assert (ledger.n, ledger.prev, ledger.status, ledger.holder) == (0, GENESIS, "unknown", None)
    assert not ledger.is_open
    assert (ledger.root, ledger.carried()) == (None, NOTHING)


def test_every_kind_of_event_can_be_folded() -> None:
    from protocol.domain.ledger import _APPLY

    of_swarms = {events.TaskOffered, events.FactsPosted}
    assert set(_APPLY) | of_swarms == set(events.AnyEvent.__args__)


def test_the_fold_fails_closed_on_what_it_does_not_know() -> None:
    play = opened()
    with pytest.raises(UnknownEvent):
        fold_bodies([*play.bodies, b'{"type":"handoff.delegated","v":2}'])


def test_a_deferred_proposal_waits_until_it_is_decided() -> None:
    play = opened()
    play.control(Freeze)
    play.move(transfer("b"))
    assert [type(waiting) for waiting in play.ledger.deferred] == [MoveDeferred]
    assert play.ledger.is_deferred(play.turn, 0)
    assert not play.ledger.is_deferred(play.turn, 1)
    assert not play.ledger.is_deferred(TurnId("x"), 0)
    play.control(Thaw)
    assert play.ledger.deferred == []


def test_a_cause_is_known_once_it_was_decided() -> None:
    play = Play(fleet=agents("a"))
    play.submit(facts=(fact("ssn", 1, "pii"),))
    withheld, decided = play.events
    assert withheld.cause == decided.cause
    assert not fold([withheld]).knows(withheld.cause)
    assert fold([withheld, decided]).knows(withheld.cause)
    assert not play.ledger.knows("x")


def test_a_ledger_that_was_asked_for_news_is_the_same_as_one_that_was_not() -> None:
    play = opened()
    play.move(transfer("b", fact("k", 1)))
    assert not play.ledger.history.is_new(fact("k", 1))
    assert state(fold_bodies(play.bodies)) == state(play.ledger)
