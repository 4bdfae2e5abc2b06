"""What comes by itself, and when to look again: retries, time-outs, deadlines, escalations, thaws."""

from typing import Any

import pytest

from protocol.domain.admission import Late
from protocol.domain.envelope import World
from protocol.domain.hash_chain import breaks
from protocol.domain.ledger import Ledger
from protocol.domain.timers import due, guard_failed, is_by_the_clock, is_guard_failed
from protocol.domain.waits import may_time_out, next_due
from protocol.wire.codec import body_digest
from protocol.wire.commands import Command, Failure, Freeze, ReplyToAsk, Resolve, Settle, Thaw
from protocol.wire.config import Policy
from protocol.wire.event_parts import Grounds
from protocol.wire.events import (
    EscalationRaised,
    FactsWithheld,
    RequestCompleted,
    RequestExpired,
    RequestFailed,
    RequestOpened,
    TurnFailed,
    TurnResumed,
    TurnRetried,
)
from protocol.wire.handoff import Artifact, Budget, Constraints
from protocol.wire.ids import control_cause, due_cause, event_id
from protocol.wire.moves import Fail
from tests.certain import is_, known
from tests.unit.protocol.happened import kinds
from tests.unit.protocol.worlds import (
    CLIENT,
    DAY,
    REQUEST,
    START,
    Play,
    ask,
    complete,
    escalate,
    fact,
    give_up,
    opened,
    played,
    seconds,
    transfer,
    usage,
)


def test_a_failed_round_is_tried_again_when_its_wait_is_over_and_not_before() -> None:
    play = opened()
    failed = is_(play.fail(), TurnFailed)
    assert failed.retry_at == play.next_due
    play.now = (failed.retry_at or 0) - 1
    assert play.finish() == []
    play.now += 1
    (event,) = play.finish()
    retried = is_(event, TurnRetried)
    assert (retried.to, retried.work.round, retried.work.turn) == ("a", 1, failed.turn)
    assert [(past.how, past.failure) for past in retried.work.past] == [("failed", failed.error)]
    cause = due_cause(REQUEST, "turn.retried", failed.turn, failed.n)
    assert (retried.cause, retried.id) == (cause, event_id(cause, "turn.retried", 0))


@pytest.mark.parametrize("most", [0, 1, 2])
def test_the_failure_after_max_retries_escalates(most: int) -> None:
    play = opened(policy=Policy(max_retries=most))
    for _ in range(most):
        assert is_(play.fail(), TurnFailed).retry_at is not None
        play.wait(60)
    play.fail("out_of_luck")
    last, raised = play.events[-2:]
    assert is_(last, TurnFailed).retry_at is None
    assert is_(raised, EscalationRaised).reason == "out_of_luck"
    assert len(is_(raised, EscalationRaised).work.past) == most + 1


def test_a_question_nobody_answers_resumes_its_turn() -> None:
    play = played(ask(expires_s=60))
    assert play.next_due == START + seconds(60)
    assert play.wait(59) == []
    (event,) = play.wait(1)
    resumed = is_(event, TurnResumed)
    assert (resumed.to, resumed.sender, resumed.control) == ("a", None, "")
    assert (resumed.work.round, resumed.work.past[-1].how) == (1, "expired")


def test_no_time_out_runs_while_a_question_waits() -> None:
    play = opened()
    play.wait(800)
    play.move(ask(expires_s=10_000))
    assert play.wait(9_999) == []
    play.control(ReplyToAsk, sender="c1", turn=play.turn, round=0, value="red")
    assert play.next_due == play.now + seconds(900)  # a new round, a new clock


def test_a_request_expires_at_its_deadline_whatever_else_is_due() -> None:
    play = opened(policy=Policy(deadline_s=900))
    (event,) = play.wait(900)
    expired = is_(event, RequestExpired)
    assert (expired.to, expired.deadline, expired.digest) == ("c1", START + seconds(900), "d0")
    assert expired.cause == due_cause(REQUEST, "request.expired", "", 0)
    assert play.next_due is None


def test_a_handoffs_own_deadline_is_a_permanent_failure() -> None:
    play = played(transfer("b", constraints=Constraints(max_resolution_time_s=10)))
    assert play.next_due == START + seconds(10)
    assert play.wait(9.9) == []
    failed, raised = play.wait(0.1)
    assert is_(failed, TurnFailed).error.code == "deadline"
    assert is_(failed, TurnFailed).retry_at is None
    assert is_(raised, EscalationRaised).reason == "deadline"


def test_a_handoffs_deadline_holds_while_its_turn_waits_for_a_retry() -> None:
    play = played(transfer("b", constraints=Constraints(max_resolution_time_s=10)))
    play.fail(retry_after_s=100)
    assert play.next_due == START + seconds(10)
    assert play.wait(9.9) == []
    (event,) = play.wait(0.1)
    raised = is_(event, EscalationRaised)
    assert raised.reason == "deadline"
    own, clocks = (past.failure for past in raised.work.past)
    assert known(own).code == "boom"
    assert known(clocks).message == "the handoff's deadline passed while a retry was due"
    assert (known(clocks).code, known(clocks).permanent) == ("deadline", True)


def test_a_handoffs_deadline_holds_while_an_effect_is_in_doubt_and_a_person_is_told_which() -> None:
    play = played(transfer("b", constraints=Constraints(max_resolution_time_s=10)))
    doubted = play.turn
    play.doubt()
    (event,) = play.wait(10)
    raised = is_(event, EscalationRaised)
    assert raised.reason == "deadline"
    failure = raised.work.past[-1].failure
    assert known(failure).message == "the handoff's deadline passed while the effect of step 0-3 was in doubt"
    is_(play.send_control(play.message(Settle, turn=doubted, round=0, outcome="done")), Late)


def test_a_deadline_that_was_passed_is_not_handed_on_by_whoever_resolves_it() -> None:
    play = played(transfer("b", constraints=Constraints(max_resolution_time_s=10)))
    play.wait(10)
    play.control(Resolve, turn=play.turn)
    assert play.holder.agent == "b"
    assert play.holder.work.handoff.constraints.deadline == play.ledger.deadline


def test_what_a_late_look_finds_happens_in_the_order_in_which_it_fell_due() -> None:
    play = opened(policy=Policy(turn_timeout_s=60, deadline_s=50.0))
    play.move(transfer("b", constraints=Constraints(max_resolution_time_s=10)))
    events = play.wait(60)
    assert kinds(events) == [TurnFailed, EscalationRaised, RequestExpired]
    assert is_(events[0], TurnFailed).error.code == "deadline"


@pytest.mark.parametrize("deciding", [None, ("x", 0)])
def test_nothing_is_due_on_a_request_that_is_not_there_or_over(deciding: Any) -> None:
    world = World(now=START + seconds(1e6), salt="0" * 32, grounds=Grounds(served=True))
    play = played(complete())
    for ledger in (Ledger(), play.ledger):
        assert due(ledger, world, deciding) is None
        assert next_due(ledger, world.now) is None


def test_another_policy_changes_what_is_due() -> None:
    play = opened()
    world = World(now=START + seconds(5), salt="0" * 32, grounds=Grounds(served=True))
    assert due(play.ledger, world) is None
    play.ledger.policy = Policy(turn_timeout_s=5)
    is_(due(play.ledger, world), TurnFailed)
    assert next_due(play.ledger, START) == START + seconds(5)
    assert may_time_out(play.ledger, world.now) == [play.holder]


def test_without_people_the_first_escalation_ends_the_request() -> None:
    play = opened(human=False)
    play.fail("crash_loop", permanent=True)
    failed = is_(play.last, RequestFailed)
    assert (failed.code, failed.reason, failed.to) == ("no_human", "failed with crash_loop", "c1")
    assert failed.digest == "d0", "the client knows by it that its own submit came to this"
    assert play.ledger.status == "failed"


def test_a_person_gets_the_work_as_its_holder_had_it_with_what_is_left_of_its_budget() -> None:
    scan = Artifact(name="scan", uri="s3://scan")
    play = opened(policy=Policy(budget=Budget(tokens=100)))
    given = transfer("b", fact("k", 1), summary="look at this", intent="bill", artifacts=(scan,))
    play.move(given, usage(tokens=30))
    turn = play.turn
    play.fail(permanent=True, report=usage(tokens=20))
    raised = is_(play.last, EscalationRaised)
    assert (raised.turn, raised.round, raised.tier, raised.to) == (turn, 0, 1, "human")
    work, handoff = raised.work, raised.work.handoff
    assert (work.path, work.depth) == (("a", "b"), 1)
    assert [(past.round, past.how) for past in work.past] == [(0, "failed")]
    assert (handoff.move, handoff.from_agent, handoff.parent) == ("escalate", "b", turn)
    assert (handoff.summary, handoff.intent) == ("look at this", "bill")
    assert {each.key for each in handoff.facts} == {"text", "k"}
    assert handoff.artifacts == (scan,)
    assert handoff.constraints.budget == Budget(tokens=50)


@pytest.mark.parametrize("most", [0, 1, 2])
def test_a_request_goes_to_people_max_escalations_times_and_the_next_time_it_ends(most: int) -> None:
    play = opened(policy=Policy(max_escalations=most))
    for _ in range(most):
        play.fail(permanent=True)
        is_(play.last, EscalationRaised)
        play.control(Resolve, turn=play.turn)
    play.fail(permanent=True)
    assert is_(play.last, RequestFailed).code == "max_escalations"


def test_last_words_name_the_rule_that_refused() -> None:
    play = played(transfer("nobody"), human=False, policy=Policy(max_refusals=0))
    assert is_(play.last, RequestFailed).reason == "refused by the rule known_agent"


FAILS = Policy(on_budget="fail", budget=Budget(tokens=10))


def asks_for_more(play: Play) -> None:
    for _ in range(3):
        play.move(transfer("b", constraints=Constraints(budget=Budget(tokens=99))))


def test_a_budget_that_is_used_up_goes_to_a_person_or_ends_the_request_as_the_policy_says() -> None:
    play = opened(policy=Policy())
    play.fail("budget_exhausted", permanent=True)
    assert is_(play.last, EscalationRaised).reason == "budget_exhausted"
    play = opened(policy=FAILS)
    play.fail("budget_exhausted", permanent=True)
    failed = is_(play.last, RequestFailed)
    assert (failed.code, failed.reason, failed.to) == (
        "budget_exhausted",
        "failed with budget_exhausted",
        "c1",
    )
    assert failed.sender is None


def test_a_turn_that_the_budget_rule_leaves_without_a_round_is_taken_likewise() -> None:
    play = opened(policy=Policy(budget=Budget(tokens=10)))
    asks_for_more(play)
    assert is_(play.last, EscalationRaised).reason == "refusals"
    play = opened(policy=FAILS)
    asks_for_more(play)
    failed = is_(play.last, RequestFailed)
    assert failed.code == "budget_exhausted"
    assert failed.reason == "refused by the rule budget"


def test_other_failures_and_refusals_go_to_a_person_whatever_becomes_of_budgets() -> None:
    play = opened(policy=FAILS)
    play.fail(permanent=True)
    is_(play.last, EscalationRaised)
    play = played(transfer("b", constraints=Constraints(budget=Budget(tokens=99))), policy=FAILS)
    for _ in range(2):
        play.move(transfer("nobody"))
    is_(play.last, EscalationRaised)
    play = played(transfer("b", constraints=Constraints(budget=Budget(tokens=99))), policy=FAILS)
    play.fail(permanent=True)
    is_(play.last, EscalationRaised)


def test_without_a_person_a_used_up_budget_ends_the_request_either_way() -> None:
    for policy, code in ((Policy(), "no_human"), (FAILS, "budget_exhausted")):
        play = opened(policy=policy, human=False)
        play.fail("budget_exhausted", permanent=True)
        assert is_(play.last, RequestFailed).code == code


def test_what_is_too_large_to_follow_ends_the_request() -> None:
    play = opened(too_large=(TurnRetried,))
    turn = play.turn
    play.fail()
    withheld, event = play.wait(10)
    failed = is_(event, RequestFailed)
    assert is_(withheld, FactsWithheld).to == "_"
    assert (failed.code, failed.turn, failed.round, failed.to) == ("event_too_large", turn, 0, "c1")
    assert failed.reason == "the next event, turn.retried, is more than the bus takes"
    assert play.next_due is None


def test_a_deferred_proposal_that_is_too_large_to_decide_ends_the_request() -> None:
    play = opened(too_large=(RequestCompleted,))
    play.control(Freeze)
    play.move(complete())
    play.control(Thaw)
    failed = is_(play.last, RequestFailed)
    assert failed.reason == "the verdict on a deferred proposal is more than the bus takes"


def test_an_sla_that_passes_raises_the_escalation_again_one_tier_up_uncounted() -> None:
    play = played(escalate(fact("why", 1)), policy=Policy(escalation_sla_s=60, max_escalations=1))
    first = is_(play.last, EscalationRaised)
    for tier in (2, 3, 4):
        (event,) = play.wait(60)
        raised = is_(event, EscalationRaised)
        assert (raised.reason, raised.tier, raised.to) == ("sla", tier, "human")
        assert raised.work.handoff.facts == first.work.handoff.facts
        assert raised.work.handoff.from_agent == "a"
        assert raised.turn != raised.work.turn
    assert play.ledger.escalations == 1
    play.control(Resolve, turn=play.turn)
    assert play.holder.agent == "a"


def test_people_have_no_clock_but_the_requests_deadline() -> None:
    play = played(escalate())
    assert play.next_due == START + seconds(DAY)
    assert play.wait(DAY - 1) == []
    assert kinds(play.wait(1)) == [RequestExpired]


def test_a_message_is_judged_before_what_fell_due_after_it_was_stored() -> None:
    """An ask that is over, and a reply that was stored before that, or after it."""
    for stored_s, resumed in ((49, True), (51, False)):
        play = opened()
        suspended = play.move(ask("c1", expires_s=50))
        said = ReplyToAsk(id=f"at {stored_s}", turn=play.holder.id, round=0, value="the red one")
        play.now += 60_000_000
        cause = control_cause(REQUEST, "c1", said.id)
        stored = suspended.at + stored_s * 1_000_000
        outcome = play.process(Command(REQUEST, CLIENT, said, cause, "client", stored=stored))
        assert isinstance(outcome, TurnResumed) is resumed
        assert kinds(play.events[-1:]) == [TurnResumed]
        assert play.events[-1].at == play.now


def test_a_guard_tells_what_it_ended_by_the_clock_from_what_an_agent_says_of_itself() -> None:
    play = opened()
    failed = is_(play.wait(900)[0], TurnFailed)
    assert is_by_the_clock(failed.error)
    assert not is_by_the_clock(Failure(code=failed.error.code, message="my own clock says so"))


# --- a request on which a guard itself fails ----------------------------------------------------------


def test_a_request_on_which_a_guard_fails_ends_by_its_first_event_and_its_head_alone() -> None:
    play = played(transfer("b"), traced=True)
    first, head = is_(play.events[0], RequestOpened), play.last
    later = World(now=head.at + 5, salt="a1" * 8, grounds=Grounds(), trace=play.trace)
    event = guard_failed(first, head, body_digest(play.bodies[-1]), later)
    cause = due_cause(REQUEST, "guard_failed", "", head.n)
    assert (event.v, event.id, event.cause) == (head.v, event_id(cause, "request.failed", 0), cause)
    assert (event.request, event.n, event.at, event.to) == (REQUEST, head.n + 1, head.at + 5, "c1")
    assert (event.salt, event.trace, event.digest) == (later.salt, later.trace, "d0")
    assert (event.code, event.turn, event.round, event.sender) == ("guard_failed", "", 0, None)
    assert "the guard itself failed" in event.reason
    assert is_guard_failed(event)
    play.append(event)
    assert breaks(play.bodies) == []
    assert play.ledger.status == "failed"


def test_the_end_on_which_a_guard_fails_is_never_dated_before_its_head() -> None:
    play = opened()
    behind = World(now=play.last.at - 1, salt="0" * 32, grounds=Grounds())
    event = guard_failed(is_(play.events[0], RequestOpened), play.last, play.ledger.prev, behind)
    assert event.at == play.last.at


def test_an_agent_that_fails_with_the_code_of_a_failed_guard_is_no_failed_guard() -> None:
    play = played(Fail(reason="it is all the guard's fault", code="guard_failed"))
    assert is_(play.last, RequestFailed).code == "guard_failed"
    assert not is_guard_failed(play.last)
    assert not is_guard_failed(is_(played(give_up()).last, RequestFailed))
    assert not is_guard_failed(opened().last)
