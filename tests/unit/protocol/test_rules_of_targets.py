"""Who may be given work, or asked: in the fleet, allowed, willing, and not failing of late."""

from typing import Any

import pytest

from protocol.domain.breaker import Use
from protocol.wire.commands import Move, Transfer
from protocol.wire.config import AgentEntry
from protocol.wire.events import AnyEvent, EscalationRaised, TurnSuspended
from protocol.wire.handoff import Rule
from tests.unit.protocol.happened import admitted, refused
from tests.unit.protocol.worlds import (
    START,
    agent,
    ask,
    escalate,
    hand_back,
    is_,
    opened,
    seconds,
    transfer,
)


@pytest.mark.parametrize(
    ("a", "b", "move", "hint"),
    [
        pytest.param(agent("a"), None, transfer("b"), "", id="not-in-the-fleet"),
        pytest.param(agent("a", to=("c", "d")), None, transfer("b"), "may hand to: c, d", id="nor-allowed"),
        pytest.param(agent("a", to=("c",)), agent("b"), transfer("b"), "may hand to: c", id="not-allowed"),
        pytest.param(agent("a", to=()), agent("b"), transfer("b"), "", id="may-hand-to-nobody"),
        pytest.param(
            agent("a"),
            agent("b", intents=("refund", "bill")),
            transfer("b", intent="sing"),
            "intents of b: refund, bill",
            id="intent-not-taken",
        ),
        pytest.param(agent("a"), agent("b"), transfer("human"), "use escalate", id="human"),
        pytest.param(agent("a"), agent("b"), transfer("c1"), "", id="the-client"),
    ],
)
def test_a_transfer_needs_a_target_that_may_take_it(
    a: AgentEntry, b: AgentEntry | None, move: Transfer, hint: str
) -> None:
    fleet = {"a": a} | ({"b": b} if b is not None else {})
    refusal = refused(opened(fleet=fleet).move(move))
    assert refusal.rule == Rule.KNOWN_AGENT
    assert refusal.numbers == {"target": move.to_agent}
    assert refusal.hint == hint


@pytest.mark.parametrize(
    ("a", "b", "move"),
    [
        pytest.param(agent("a"), agent("b"), transfer("b"), id="no-limits"),
        pytest.param(agent("a", to=("c", "b")), agent("b"), transfer("b"), id="named"),
        pytest.param(agent("a"), agent("b", intents=("bill",)), transfer("b", intent="bill"), id="takes-it"),
        pytest.param(agent("a"), agent("b", intents=("bill",)), transfer("b"), id="no-intent"),
        pytest.param(agent("a"), agent("b", intents=()), transfer("b"), id="no-intent-to-one-who-takes-none"),
    ],
)
def test_a_transfer_to_who_may_take_it_is_admitted(a: AgentEntry, b: AgentEntry, move: Transfer) -> None:
    admitted(opened(fleet={"a": a, "b": b}).move(move))


def test_a_hand_back_asks_neither_whom_one_may_hand_to_nor_for_the_intent_and_is_for_the_frames_own() -> None:
    court = opened(fleet={"a": agent("a", intents=()), "b": agent("b", to=())})
    court.move(transfer("b", intent="bill"))
    assert admitted(court.move(hand_back())).work.handoff.intent is None


def test_a_hand_back_to_an_agent_that_left_the_fleet_is_refused() -> None:
    court = opened()
    court.move(transfer("b"))
    del court.fleet["a"]
    refusal = refused(court.move(hand_back()))
    assert (refusal.rule, refusal.numbers) == (Rule.KNOWN_AGENT, {"target": "a"})
    assert refusal.hint == "transfer or escalate"


@pytest.mark.parametrize(
    ("human", "move", "hint"),
    [
        pytest.param(False, ask("human"), "ask the client, or decide without", id="ask-nobody"),
        pytest.param(True, ask("b"), "ask c1", id="ask-an-agent"),
        pytest.param(True, ask("c2"), "ask c1", id="ask-another-client"),
        pytest.param(False, escalate(), "complete or fail the request", id="escalate-to-nobody"),
    ],
)
def test_only_the_client_and_people_that_exist_are_asked(human: bool, move: Move, hint: str) -> None:
    refusal = refused(opened(human=human).move(move))
    assert (refusal.rule, refusal.hint) == (Rule.KNOWN_AGENT, hint)


@pytest.mark.parametrize(
    ("human", "move", "kind"),
    [
        pytest.param(True, ask("human"), TurnSuspended, id="ask-people"),
        pytest.param(False, ask("c1"), TurnSuspended, id="ask-the-client"),
        pytest.param(True, escalate(), EscalationRaised, id="escalate"),
    ],
)
def test_whoever_can_be_asked_is_asked(human: bool, move: Move, kind: type[AnyEvent]) -> None:
    is_(opened(human=human).move(move), kind)


def test_an_open_breaker_refuses_a_transfer_and_a_hand_back() -> None:
    court = opened(breakers={"b": "open"})
    refusal = refused(court.move(transfer("b")))
    assert (refusal.rule, refusal.numbers) == (Rule.AGENT_AVAILABLE, {"target": "b"})
    assert refusal.hint == "another agent (c, d, e), or escalate"
    court.move(transfer("c"))
    court.breakers["a"] = "open"
    assert refused(court.move(hand_back())).rule == Rule.AGENT_AVAILABLE


def test_the_refusal_says_since_when_until_when_and_who_else_there_is() -> None:
    court = opened()
    court.move(transfer("b"))
    court.breakers["c"] = Use("open", START, START + seconds(30))
    refusal = refused(court.move(transfer("c")))
    assert refusal.detail == (
        "c has failed too often of late; its breaker is open since 2023-11-14T22:13:20Z"
    )
    assert refusal.numbers == {"target": "c", "since": START, "until": START + seconds(30)}
    assert refusal.hint == (
        "another agent (d, e), or escalate; c is tried again from 2023-11-14T22:13:50Z on"
    ), "a is on the path, where nobody may transfer to it"
    for since in (-(10**18), 10**30):  # an entry that was written by hand
        court.breakers["c"] = Use("open", since, since)
        assert f"{since} µs" in refused(court.move(transfer("c"))).detail


@pytest.mark.parametrize("state", ["closed", "half_open"])
def test_a_breaker_that_is_not_open_lets_work_through(state: Any) -> None:
    event = admitted(opened(breakers={"b": state}).move(transfer("b")))
    assert event.grounds.breaker == state


def test_an_open_breaker_does_not_keep_a_question_back() -> None:
    is_(opened(breakers={"c1": "open", "human": "open"}).move(ask()), TurnSuspended)
