"""Verdicts: what an admitted, refused, deferred or failed proposal becomes."""

from collections.abc import Callable
from typing import Any

import pytest

from protocol.wire.commands import Cancel, Freeze, MoveProposed, Report, Resolve
from protocol.wire.config import Policy
from protocol.wire.events import (
    Ended,
    EscalationRaised,
    HandoffAdmitted,
    MoveDeferred,
    MoveRefused,
    RequestCompleted,
    RequestFailed,
    TurnFailed,
    TurnSuspended,
)
from protocol.wire.handoff import Artifact, Budget, Constraints, Fact, Handoff
from protocol.wire.ids import AgentName
from protocol.wire.moves import Complete, Move
from tests.certain import is_, known
from tests.unit.protocol.worlds import (
    START,
    Play,
    ask,
    complete,
    escalate,
    fact,
    give_up,
    hand_back,
    opened,
    played,
    seconds,
    transfer,
    usage,
)


def test_an_admitted_transfer_hands_over_the_whole_of_what_is_known() -> None:
    play = Play()
    first = Artifact(name="scan", uri="s3://scan")
    play.submit("Refund me\nplease", facts=(fact("order", 7),), artifacts=(first,), intent="refund")
    opening = play.turn
    play.now += 5
    event = is_(
        play.move(
            transfer(
                "b",
                fact("amount", 12.5),
                summary="check the amount",
                artifacts=(Artifact(name="bill", uri="s3://bill"),),
                drop=("order",),
                return_to="a",
                intent="check",
            )
        ),
        HandoffAdmitted,
    )
    assert event.to == "b"
    assert str(event.work.turn) == event.id
    assert (event.work.round, event.work.depth, event.work.path) == (0, 1, ("a", "b"))
    assert event.work.handoff == Handoff(
        move="transfer",
        from_agent=AgentName("a"),
        to_agent=AgentName("b"),
        parent=opening,
        summary="check the amount",
        intent="check",
        facts=(fact("amount", 12.5), Fact(key="text", value="Refund me\nplease")),
        artifacts=(Artifact(name="bill", uri="s3://bill"), first),
        constraints=Constraints(deadline=START + seconds(86_400)),
        return_to=AgentName("a"),
    )


def test_a_clock_that_went_back_does_not_take_the_log_with_it() -> None:
    play = opened()
    play.now -= seconds(5)
    assert play.move(transfer("b")).at == START


def test_a_transfer_says_what_was_asked_for() -> None:
    asked = Constraints(max_resolution_time_s=5, allowed_actions=("z", "a"), must_carry=("text",))
    event = is_(opened().move(transfer("b", constraints=asked)), HandoffAdmitted)
    assert event.asked == asked
    given = event.work.handoff.constraints
    assert given == Constraints(deadline=START + seconds(5), allowed_actions=("a", "z"), must_carry=("text",))


@pytest.mark.parametrize("most", [0, 1, 2])
def test_the_refusal_after_max_refusals_escalates(most: int) -> None:
    play = opened(policy=Policy(max_refusals=most))
    turn = play.turn
    for round_ in range(most):
        event = is_(play.move(transfer("nobody"), usage(tokens=round_ + 1)), MoveRefused)
        assert event.to == "a"
        assert event.work is not None
        assert (event.work.turn, event.work.round, event.round) == (turn, round_ + 1, round_)
        assert [past.how for past in event.work.past] == ["refused"] * (round_ + 1)
        assert event.work.past[-1].refusal == event.refusal
        assert event.work.past[-1].move == transfer("nobody")
        assert event.work.reported == usage(tokens=round_ + 1)
        assert event.work.handoff == play.events[0].work.handoff  # type: ignore[union-attr]
    last = is_(play.move(transfer("nobody")), MoveRefused)
    assert (last.to, last.work) == ("_", None)
    raised = is_(play.last, EscalationRaised)
    assert (raised.reason, raised.turn, raised.to) == ("refusals", turn, "human")
    assert len(raised.work.past) == most + 1


@pytest.mark.parametrize(
    ("expires_s", "own_s", "after_s"),
    [
        pytest.param(None, None, 86_400, id="until-the-requests-deadline"),
        pytest.param(60, None, 60, id="as-long-as-it-says"),
        pytest.param(1e6, None, 86_400, id="not-beyond-the-requests-deadline"),
        pytest.param(60, 30, 30, id="not-beyond-the-handoffs-own"),
        pytest.param(None, 30, 30, id="until-the-handoffs-own"),
        pytest.param(0, None, 0, id="not-at-all"),
    ],
)
def test_a_question_waits_no_longer_than_any_deadline(
    expires_s: float | None, own_s: float | None, after_s: float
) -> None:
    play = played(transfer("b", constraints=Constraints(max_resolution_time_s=own_s)))
    event = is_(play.move(ask(expires_s=expires_s)), TurnSuspended)
    assert event.expires_at == START + seconds(after_s)
    assert event.to == "c1"


def test_a_question_keeps_its_schema_and_digest() -> None:
    asked = ask("human", schema={"type": "boolean"}, digest="f00")
    event = is_(opened().move(asked), TurnSuspended)
    assert (event.to, event.ask) == ("human", asked)


@pytest.mark.parametrize(
    ("move", "kind", "status"),
    [
        pytest.param(complete([1, {"x": None}]), RequestCompleted, "completed", id="complete"),
        pytest.param(Complete(answer=None), RequestCompleted, "completed", id="nothing-as-an-answer"),
        pytest.param(give_up(), RequestFailed, "failed", id="fail"),
    ],
)
def test_an_end_goes_to_the_client_and_leaves_nothing_open(move: Move, kind: type, status: str) -> None:
    play = opened()
    event = play.move(move, usage(tokens=3))
    assert isinstance(event, kind)
    assert event.to == "c1"
    assert (play.ledger.status, play.ledger.holder, play.next_due) == (status, None, None)
    assert play.ledger.spent.tokens == 3
    assert play.wait(1e6) == []


@pytest.mark.parametrize(
    "ended",
    [
        pytest.param(lambda play: play.move(complete("done")), id="completed"),
        pytest.param(lambda play: play.move(give_up()), id="failed"),
        pytest.param(lambda play: play.wait(1e6)[-1], id="expired"),
        pytest.param(lambda play: play.control(Cancel), id="cancelled"),
    ],
)
def test_every_end_names_the_submit_that_it_answers(ended: Callable[[Play], Any]) -> None:
    event = ended(opened(human=False))
    assert isinstance(event, Ended)
    assert event.digest == "d0"


def test_a_frozen_request_defers_a_move_whole_and_records_failures_and_doubts() -> None:
    play = opened()
    play.control(Freeze)
    move = transfer("nobody")
    event = is_(play.move(move, usage(tokens=5)), MoveDeferred)
    assert event.to == "_"
    assert (event.sender, event.proposal.report) == ("a", usage(tokens=5))
    assert is_(event.proposal, MoveProposed).move == move
    assert play.ledger.spent.tokens == 0
    for say in (Play.fail, Play.doubt):
        frozen = opened()
        frozen.control(Freeze)
        assert not isinstance(say(frozen), MoveDeferred)


def budget_of(play: Play) -> Budget | None:
    return play.holder.work.handoff.constraints.budget


def test_a_report_that_says_less_than_an_earlier_one_gives_nothing_back() -> None:
    play = opened(policy=Policy(budget=Budget(tokens=100)))
    play.fail(report=usage(tokens=60, model_calls=1))
    play.wait(10)
    assert play.holder.work.reported == usage(tokens=60, model_calls=1)
    refusal = is_(play.move(transfer("nobody"), usage(tokens=0, model_calls=3)), MoveRefused)
    assert play.ledger.spent == usage(tokens=60, model_calls=3).usage
    assert known(refusal.work).reported.usage == usage(tokens=60, model_calls=3).usage
    event = is_(play.move(transfer("b"), usage(tokens=10)), HandoffAdmitted)
    assert event.work.handoff.constraints.budget == Budget(tokens=40)
    assert event.report == usage(tokens=10), "what was said stands in the log"
    play.move(complete(), usage(tokens=5))
    assert play.ledger.spent == usage(tokens=65, model_calls=3).usage


def test_a_turn_that_overspends_its_grant_takes_it_from_those_beneath() -> None:
    play = opened(policy=Policy(budget=Budget(tokens=100)))
    play.move(transfer("b", constraints=Constraints(budget=Budget(tokens=10))))
    play.move(hand_back(), usage(tokens=40))
    assert budget_of(play) == Budget(tokens=60)


def test_a_turn_that_never_reported_is_charged_its_whole_grant_when_it_escalates() -> None:
    play = opened(policy=Policy(budget=Budget(tokens=100), max_retries=0))
    play.move(transfer("b", constraints=Constraints(budget=Budget(tokens=30))), usage(tokens=20))
    play.wait(900)  # nobody answers
    assert is_(play.last, EscalationRaised).reason == "timeout"
    assert play.ledger.spent.tokens == 50


def test_a_turn_that_lay_in_its_inbox_until_it_escalated_is_charged_nothing() -> None:
    play = opened(policy=Policy(budget=Budget(tokens=100)), served=False, begun=False)
    failed, raised = play.wait(3600)
    grounds = is_(failed, TurnFailed).grounds
    assert known(grounds).unbegun
    assert is_(raised, EscalationRaised).reason == "unattended"
    assert play.ledger.spent.tokens == 0
    play.control(Resolve, turn=play.turn)
    assert budget_of(play) == Budget(tokens=100)


def test_a_turn_of_which_one_round_had_begun_is_charged_all_the_same() -> None:
    play = opened(policy=Policy(budget=Budget(tokens=100), max_retries=1))
    play.wait(900)
    play.wait(60)
    play.begun = False  # its second round is never taken up
    play.wait(900)
    assert is_(play.last, EscalationRaised).reason == "timeout"
    assert play.ledger.spent.tokens == 100


def test_a_handoffs_deadline_that_passes_in_the_inbox_costs_nothing() -> None:
    play = opened(policy=Policy(budget=Budget(tokens=100)), begun=False)
    play.move(transfer("b", constraints=Constraints(max_resolution_time_s=10)))
    play.wait(10)
    assert is_(play.last, EscalationRaised).reason == "deadline"
    assert play.ledger.spent.tokens == 0


@pytest.mark.parametrize("reported", [usage(tokens=1), Report(actions=("look",))])
def test_a_turn_that_reported_is_charged_what_it_said(reported: Report) -> None:
    play = opened(policy=Policy(budget=Budget(tokens=100), max_retries=1))
    play.fail(report=reported)
    play.wait(60)
    play.wait(900)
    assert is_(play.last, EscalationRaised).reason == "timeout"
    assert play.ledger.spent.tokens == reported.usage.tokens


def test_an_agent_that_asks_for_a_person_has_reported_even_if_it_spent_nothing() -> None:
    play = played(escalate(), policy=Policy(budget=Budget(tokens=100)))
    assert play.ledger.spent.tokens == 0
