"""While a request waits for people its deadline stands still, and people have time of their own."""

from typing import Any

import pytest

from protocol.domain import people
from protocol.domain.request_state import questions_to
from protocol.wire.commands import Doubt, Freeze, ReplyToAsk, ReportInDoubt, Resolve, Settle, Thaw
from protocol.wire.config import Policy
from protocol.wire.events import (
    EffectSettled,
    EscalationRaised,
    EscalationResolved,
    RequestExpired,
    TaskFailed,
    TaskOpened,
    TurnResumed,
    TurnSuspended,
)
from protocol.wire.handoff import Constraints
from protocol.wire.ids import AgentName
from tests.certain import is_, known
from tests.unit.protocol.swarms import Swarm
from tests.unit.protocol.swarms import task as offered
from tests.unit.protocol.trees import delegate, deliver, kinds, results, say, task, tree, worker
from tests.unit.protocol.worlds import DAY, START, Play, ask, complete, escalate, played, seconds, transfer

pytestmark = pytest.mark.usefixtures("judged_again")

HOUR = 3_600.0
WEEKEND: dict[str, Any] = {
    "human_deadline_s": 3.0 * DAY,
    "turn_timeout_s": 9.0 * DAY,
    "unattended_after_s": None,
}
"""People have three days, and nothing else ends a round."""
POLICY = Policy(deadline_s=HOUR, **WEEKEND)


def on_friday(*moves: Any, policy: Policy = POLICY) -> Play:
    """Return a play in which these moves were made after half an hour, with half an hour left."""
    play = played(policy=policy)
    play.wait(HOUR / 2)
    for move in moves:
        play.move(move)
    return play


def test_an_escalation_outlives_a_weekend_and_the_agent_has_what_was_left() -> None:
    play = on_friday(escalate())
    assert play.wait(2 * DAY) == []
    resolved = is_(play.control(Resolve, turn=play.turn), EscalationResolved)
    left = play.now + seconds(HOUR / 2)
    assert resolved.work.handoff.constraints.deadline == play.ledger.deadline == play.next_due == left
    assert play.wait(HOUR / 2 - 1) == []
    (expired,) = play.wait(1)
    assert (is_(expired, RequestExpired).deadline, is_(expired, RequestExpired).with_people) == (left, False)


def test_a_request_expires_when_peoples_time_is_over_and_says_whose_deadline_it_was() -> None:
    play = on_friday(escalate())
    over = play.now + seconds(3 * DAY)
    assert play.wait(3 * DAY - 1) == []
    (event,) = play.wait(1)
    expired = is_(event, RequestExpired)
    assert (expired.deadline, expired.with_people) == (over, True)
    assert expired.explanation == "people did not decide in time"


def test_people_may_have_less_than_the_request_had_left() -> None:
    play = on_friday(
        escalate(), policy=Policy(**WEEKEND | {"deadline_s": 9.0 * DAY, "human_deadline_s": 60.0})
    )
    assert kinds(play.wait(60)) == ["RequestExpired"]


def test_raising_it_to_the_next_tier_gives_nobody_more_time() -> None:
    play = on_friday(escalate(), policy=Policy(deadline_s=HOUR, escalation_sla_s=1.0 * DAY, **WEEKEND))
    raised = [is_(event, EscalationRaised).tier for _ in range(2) for event in play.wait(DAY)]
    assert raised == [2, 3]
    assert kinds(play.wait(DAY)) == ["RequestExpired"]


def test_a_question_to_people_expires_and_the_agent_goes_on_with_what_was_left() -> None:
    play = on_friday(ask("human"))
    over = play.now + seconds(3 * DAY)
    assert is_(play.last, TurnSuspended).expires_at == over
    assert play.wait(3 * DAY - 1) == []
    (event,) = play.wait(1)
    resumed = is_(event, TurnResumed)
    assert resumed.work.past[-1].how == "expired"
    assert resumed.work.handoff.constraints.deadline == play.next_due == over + seconds(HOUR / 2)


def test_a_reply_ends_the_wait_at_once() -> None:
    play = on_friday(ask("human", expires_s=2.0 * DAY))
    play.wait(DAY)
    resumed = is_(play.control(ReplyToAsk, turn=play.turn, round=0, value="red"), TurnResumed)
    left = play.now + seconds(HOUR / 2)
    assert resumed.work.handoff.constraints.deadline == play.ledger.deadline == left
    assert is_(play.move(ask("human", expires_s=9.0 * DAY)), TurnSuspended).expires_at == play.now + seconds(
        3 * DAY
    )


def test_a_question_to_the_client_has_the_requests_deadline_as_ever() -> None:
    play = on_friday(ask("c1"))
    assert is_(play.last, TurnSuspended).expires_at == START + seconds(HOUR)
    assert kinds(play.wait(HOUR / 2)) == ["RequestExpired"]


def test_an_effect_in_doubt_that_nobody_settles_is_escalated_with_time_of_its_own() -> None:
    play = on_friday()
    play.doubt()
    assert play.wait(3 * DAY - 1) == []
    (event,) = play.wait(1)
    raised = is_(event, EscalationRaised)
    assert raised.reason == "deadline"
    assert known(raised.work.past[-1].failure).message.startswith(
        "people's deadline passed while the effect of"
    )
    assert play.wait(3 * DAY - 1) == []
    is_(play.control(Resolve, turn=play.turn, again=True), EscalationResolved)
    assert play.ledger.deadline == play.now + seconds(HOUR / 2)


def test_a_settled_effect_goes_on_with_what_was_left() -> None:
    play = on_friday()
    play.doubt()
    play.wait(DAY)
    settled = is_(play.control(Settle, turn=play.turn, round=0, outcome="done"), EffectSettled)
    assert settled.work.handoff.constraints.deadline == play.now + seconds(HOUR / 2)


def test_a_deadline_that_an_agent_set_goes_on() -> None:
    limits = Constraints(max_resolution_time_s=60.0)
    play = on_friday(transfer("b", constraints=limits), ask("human"))
    assert is_(play.last, TurnSuspended).expires_at == play.now + seconds(60)
    assert kinds(play.wait(60)) == ["TurnResumed", "TurnFailed", "EscalationRaised"]
    play.wait(DAY)
    resolved = is_(play.control(Resolve, turn=play.turn, to="c"), EscalationResolved)
    assert resolved.work.handoff.constraints.deadline == play.ledger.deadline == play.now + seconds(HOUR / 2)


def test_an_agent_sees_what_it_may_ask_for_and_hands_on_the_deadline_of_then() -> None:
    play = on_friday(escalate())
    play.wait(2 * DAY)
    play.control(Resolve, turn=play.turn)
    left = play.ledger.deadline
    play.move(transfer("b", constraints=Constraints(max_resolution_time_s=60.0)))
    assert play.holder.work.handoff.constraints.deadline == play.now + seconds(60)
    play.move(transfer("c"))
    play.move(transfer("d", constraints=Constraints(max_resolution_time_s=61.0)))
    assert play.holder.agent == "c"
    assert play.ledger.deadline == left


def test_no_deadline_moves_beyond_what_the_log_keeps() -> None:
    play = on_friday(escalate(), policy=Policy(deadline_s=HOUR, **WEEKEND | {"human_deadline_s": 20.0 * DAY}))
    half = START + seconds(15 * DAY)
    assert play.ledger.deadline == half
    assert play.wait(14 * DAY) == []
    resolved = is_(play.control(Resolve, turn=play.turn), EscalationResolved)
    assert resolved.work.handoff.constraints.deadline == play.now + seconds(HOUR / 2)
    play.move(escalate())
    (expired,) = play.wait(2 * DAY)
    assert is_(expired, RequestExpired).deadline == half


@pytest.mark.parametrize("begin", [escalate(), ask("human")], ids=["escalation", "question"])
def test_peoples_time_goes_on_in_a_freeze(begin: Any) -> None:
    play = on_friday(begin)
    over = play.now + seconds(3 * DAY)
    play.control(Freeze)
    assert play.wait(3 * DAY - 1) == []
    play.wait(1)
    if play.ledger.is_open:  # a question expires after the thaw, as of when its time was over
        play.control(Thaw)
        assert play.ledger.deadline == over + seconds(HOUR / 2)
    else:
        assert is_(play.last, RequestExpired).deadline == over


def test_a_question_that_was_over_in_a_freeze_gives_back_its_time_and_no_more() -> None:
    play = on_friday(ask("human"))
    over = play.now + seconds(3 * DAY)
    play.control(Freeze)
    play.wait(3 * DAY + HOUR / 4)
    play.control(Thaw)
    resumed = is_(play.last, TurnResumed)
    assert resumed.work.handoff.constraints.deadline == play.ledger.deadline == over + seconds(HOUR / 2)


def test_people_always_have_some_time() -> None:
    play = on_friday(policy=Policy(deadline_s=HOUR, **WEEKEND | {"human_deadline_s": 1e-9}))
    is_(play.move(escalate()), EscalationRaised)
    assert people.ends_at(play.ledger, play.holder) == play.now + 1


def test_without_a_limit_of_the_log_a_deadline_moves_as_far_as_people_take() -> None:
    play = on_friday()
    play.ledger.latest = None
    play.move(escalate())
    assert play.ledger.deadline == play.now + seconds(3 * DAY + HOUR / 2)
    is_(play.last, EscalationRaised)


# --- trees --------------------------------------------------------------------------------------------


def with_a_person(move: Any, *tasks: Any) -> Play:
    """Return a tree whose task `one` made this move after half an hour."""
    play = tree(task("one", "b"), *tasks, policy={"deadline_s": HOUR, **WEEKEND})
    play.wait(HOUR / 2)
    say(play, "one", move)
    return play


def test_a_tree_outlives_the_wait_of_one_task_and_all_its_turns_have_what_was_left() -> None:
    play = with_a_person(ask("human"), task("two", "c"))
    assert play.wait(DAY) == []
    say(play, "two", deliver())
    one = worker(play, "one")
    resumed = is_(play.control(ReplyToAsk, turn=one.id, round=0, value="red"), TurnResumed)
    left = play.now + seconds(HOUR / 2)
    assert resumed.work.handoff.constraints.deadline == play.ledger.deadline == left
    assert play.holder.frame.constraints.deadline == left
    say(play, "one", deliver())
    assert set(results(play)) == {"one", "two"}
    assert play.holder.work.handoff.constraints.deadline == left
    say(play, "", complete())
    assert play.ledger.status == "completed"


def test_the_deadline_stands_until_the_last_of_several_waits_is_over() -> None:
    play = with_a_person(ask("human"), task("two", "c"))
    play.wait(DAY)
    say(play, "two", ask("human"))
    play.control(ReplyToAsk, turn=worker(play, "one").id, round=0, value="red")
    play.wait(DAY)
    play.control(ReplyToAsk, turn=worker(play, "two").id, round=0, value="red")
    assert play.ledger.deadline == play.now + seconds(HOUR / 2)


def test_a_task_that_works_meanwhile_may_ask_for_time_of_its_own() -> None:
    play = with_a_person(ask("human"), task("two", "c"))
    play.wait(DAY)
    limits = Constraints(max_resolution_time_s=60.0)
    say(play, "two", ask("c1", expires_s=60.0))
    assert kinds(play.wait(60)) == ["TurnResumed"]
    say(play, "two", deliver())
    play.control(ReplyToAsk, turn=worker(play, "one").id, round=0, value="red")
    say(play, "one", deliver())
    say(play, "", delegate(task("three", "d", constraints=limits), within_s=120.0))
    assert worker(play, "three").frame.constraints.deadline == play.now + seconds(60)


def test_a_question_to_the_client_from_before_the_wait_has_what_was_left() -> None:
    play = with_a_person(ask("c1"), task("two", "c"))
    say(play, "two", ask("human"))
    assert play.wait(DAY) == []
    play.control(ReplyToAsk, turn=worker(play, "two").id, round=0, value="red")
    (question,) = questions_to(play.ledger, AgentName("c1"))
    assert question.expires_at == play.ledger.deadline == play.now + seconds(HOUR / 2)
    assert play.wait(HOUR / 2 - 1) == []
    assert worker(play, "one").state == "suspended"


def test_a_question_that_expires_by_itself_does_so_while_people_have_another() -> None:
    play = with_a_person(ask("c1", expires_s=60.0), task("two", "c"))
    say(play, "two", ask("human"))
    assert kinds(play.wait(60)) == ["TurnResumed"]


def test_a_limit_beyond_the_requests_deadline_moves_along_and_holds_as_it_was_set() -> None:
    play = tree(policy={"deadline_s": HOUR, **WEEKEND})
    say(play, "", delegate(task("one", "b"), within_s=2.0 * DAY))
    play.wait(HOUR / 2)
    say(play, "one", ask("human"))
    assert play.wait(2 * DAY - HOUR / 2 - 1) == []
    assert "TurnResumed" in kinds(play.wait(1))
    assert play.holder.agent == "a"


def test_a_task_whose_doubt_nobody_settles_fails_and_its_lead_goes_on() -> None:
    play = with_a_person(deliver(), task("two", "c"))
    turn = worker(play, "two")
    doubt = ReportInDoubt(turn=turn.id, round=0, effect=Doubt(step="0-3", action="pay"))
    play.propose(doubt, turn.agent)
    assert play.wait(3 * DAY - 1) == []
    failed = [event for event in play.wait(1) if isinstance(event, TaskFailed)]
    assert [event.error.code for event in failed] == ["deadline"]
    assert known(results(play)["two"].error).message.startswith("people's deadline passed")
    assert play.ledger.deadline == play.now + seconds(HOUR / 2)


def test_an_offer_outlives_the_wait_of_another_task() -> None:
    policy = {"deadline_s": HOUR, **WEEKEND, "claim_within_s": 1.0 * DAY}
    swarm = Swarm(**policy)
    swarm.delegate(offered("one"), offered("two", "look"))
    swarm.claim("one", "b")
    doubt = Doubt(step="0-3", action="pay")
    swarm.guard.propose(ReportInDoubt(turn=swarm.worker("one").id, round=0, effect=doubt))
    deadline = swarm.guard.ledger.deadline
    assert swarm.guard.wait(HOUR + 60) == []
    is_(swarm.claim("two", "c"), TaskOpened)
    assert swarm.worker("two").frame.constraints.deadline == deadline
    swarm.same()


# --- the alarm ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("begin", "after_s"),
    [(escalate(), 2.4 * DAY), (ask("human"), 2.4 * DAY), (ask("human", expires_s=100.0), 80.0)],
    ids=["escalation", "question", "question-with-its-own"],
)
def test_a_guard_is_woken_when_four_fifths_of_peoples_time_are_over(begin: Any, after_s: float) -> None:
    play = on_friday(begin)
    urgent = play.now + seconds(after_s)
    assert play.next_due == urgent
    assert play.wait(after_s) == []
    end = known(people.ends_at(play.ledger, play.holder))
    assert people.urgent_at(play.holder, end) == urgent <= play.now < known(play.next_due)


def test_without_a_number_nothing_is_urgent() -> None:
    play = played(escalate(), policy=Policy(deadline_s=HOUR))
    assert people.ends_at(play.ledger, play.holder) is None
    assert play.next_due == START + seconds(HOUR)
