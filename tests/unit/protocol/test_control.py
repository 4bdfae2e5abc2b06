"""What people's and clients' words become."""

from typing import Any

import msgspec
import pytest

from mesh.replay.rejudge import rejudge
from protocol.domain.admission import Rejected
from protocol.domain.control import resolves_to
from protocol.wire import codec
from protocol.wire.commands import Cancel, Escalate, Freeze, Reply, Resolve, Settle, Thaw
from protocol.wire.config import Policy
from protocol.wire.errors import Malformed
from protocol.wire.events import (
    EffectSettled,
    EscalationResolved,
    FactsWithheld,
    RequestCancelled,
    RequestCompleted,
    RequestFrozen,
    RequestThawed,
    TurnResumed,
)
from protocol.wire.handoff import Budget, Constraints
from protocol.wire.ids import AgentName, control_cause
from tests.unit.protocol.worlds import (
    REQUEST,
    START,
    Court,
    agent,
    agents,
    ask,
    escalate,
    fact,
    is_,
    opened,
    played,
    seconds,
    transfer,
    usage,
)


def escalated(**court: Any) -> Court:
    """A request that a handed to b, and b to people."""
    made = played(transfer("b", fact("k", 1), intent="bill"), escalate(fact("why", "odd")), **court)
    return made


def test_a_cancel_ends_the_request_and_names_the_person() -> None:
    court = opened()
    event = is_(court.control(Cancel, by="Ada", reason="changed my mind"), RequestCancelled)
    assert (event.to, event.by, event.sender, event.reason) == ("c1", "Ada", "op1", "changed my mind")
    assert (court.ledger.status, court.next_due) == ("cancelled", None)
    assert event.cause == control_cause(REQUEST, "op1", event.control)


def test_who_gives_no_name_is_recorded_by_their_credentials() -> None:
    assert is_(opened().control(Cancel, sender="c1"), RequestCancelled).by == "c1"


def test_freeze_and_thaw_lie_in_nobodys_inbox() -> None:
    court = opened()
    frozen = is_(court.control(Freeze, reason="look"), RequestFrozen)
    assert (frozen.to, court.ledger.frozen_at) == ("_", START)
    thawed = is_(court.control(Thaw), RequestThawed)
    assert (thawed.to, court.ledger.frozen_at) == ("_", None)


@pytest.mark.parametrize("value", ["red", None, {"approved": True}, 0])
def test_a_reply_opens_the_next_round_with_it(value: Any) -> None:
    court = played(ask(expires_s=60))
    event = is_(court.control(Reply, sender="c1", turn=court.turn, round=0, value=value), TurnResumed)
    assert (event.to, event.sender, event.work.round) == ("a", "c1", 1)
    past = event.work.past[-1]
    assert (past.how, past.reply, past.by, past.round) == ("replied", value, "c1", 0)
    assert court.wait(61) == []  # the expiry is off


@pytest.mark.parametrize("outcome", ["done", "not_done"])
def test_settling_a_doubt_opens_the_next_round(outcome: Any) -> None:
    court = opened()
    court.doubt("pay", usage(tokens=9))
    event = is_(
        court.control(Settle, turn=court.turn, round=0, outcome=outcome, result={"ref": 7}, by="Ada"),
        EffectSettled,
    )
    assert (event.to, event.outcome, event.result, event.by) == ("a", outcome, {"ref": 7}, "Ada")
    past = event.work.past[-1]
    assert (past.how, past.settled, past.reply) == ("settled", outcome, {"ref": 7})
    assert (event.work.round, event.work.reported) == (1, usage(tokens=9))


def test_a_resolution_goes_by_default_to_whose_turn_it_ended_with_its_constraints() -> None:
    limits = Constraints(max_resolution_time_s=600, allowed_actions=("look",), must_carry=("text",))
    court = opened(policy=Policy(budget=Budget(tokens=100)))
    court.move(transfer("b", constraints=limits), usage(tokens=10))
    court.move(escalate(), usage(tokens=30))
    human = court.turn
    event = is_(court.control(Resolve, turn=human, by="Ada"), EscalationResolved)
    assert (event.to, event.turn, event.by, event.again) == ("b", human, "Ada", False)
    handoff = event.work.handoff
    assert (handoff.move, handoff.from_agent, handoff.parent) == ("resolve", "human", human)
    assert handoff.constraints == Constraints(
        deadline=START + seconds(600),
        allowed_actions=("look",),
        must_carry=("text",),
        budget=Budget(tokens=60),
    )
    assert event.work.continues is None


@pytest.mark.parametrize(
    ("granted", "left"),
    [
        pytest.param(None, Budget(tokens=-5, model_calls=4), id="nothing-more"),
        pytest.param(Budget(tokens=70), Budget(tokens=70, model_calls=4), id="more-of-one"),
        pytest.param(Budget(model_calls=1), Budget(tokens=-5, model_calls=1), id="less-of-one"),
        pytest.param(
            Budget(nano_dollars=9), Budget(tokens=-5, model_calls=4, nano_dollars=9), id="a-new-limit"
        ),
    ],
)
@pytest.mark.parametrize("again", [False, True])
def test_a_person_may_grant_another_budget(granted: Budget | None, left: Budget, again: bool) -> None:
    court = opened(policy=Policy(budget=Budget(tokens=100, model_calls=5)))
    court.fail("budget_exhausted", permanent=True, report=usage(tokens=105, model_calls=1))
    order = court.control(Resolve, turn=court.turn, again=again, budget=granted)
    event = is_(order, EscalationResolved)
    assert event.budget == granted
    assert event.work.handoff.constraints.budget == left
    assert rejudge(court.bodies).same
    if granted is not None and granted.tokens is not None:
        court.move(transfer("b"), usage(tokens=30))  # spent by this turn: what is left is handed on
        assert court.holder.work.handoff.constraints.budget == Budget(tokens=40, model_calls=4)


def test_a_resolution_starts_a_fresh_segment() -> None:
    court = escalated(policy=Policy(max_depth=1))
    event = is_(court.control(Resolve, turn=court.turn), EscalationResolved)
    assert (event.work.path, event.work.depth) == (("b",), 0)
    court.move(transfer("a"))  # on the old path, at the old depth's end
    assert court.ledger.segment.names == ("b", "a")
    assert court.ledger.frames[court.turn].giver == "b"


def test_again_goes_on_under_the_ended_turns_id_however_often() -> None:
    court = escalated()
    first = court.holder.instead_of
    for _ in range(2):
        event = is_(
            court.control(Resolve, turn=court.turn, again=True, to=AgentName("c")), EscalationResolved
        )
        assert (event.to, event.again, event.work.continues) == ("b", True, first)
        assert event.work.turn != first
        court.move(escalate())


def test_again_tells_the_turn_that_goes_on_who_let_it_and_what_they_noted() -> None:
    court = escalated()
    note = "try the other account"
    event = is_(
        court.control(Resolve, turn=court.turn, again=True, summary=note, by="Ada"), EscalationResolved
    )
    past = event.work.past[-1]
    assert (past.round, past.how, past.reply, past.by) == (0, "resolved", note, "Ada")
    assert isinstance(past.move, Escalate)
    assert event.work.round == 1


def test_again_after_failures_answers_no_move() -> None:
    court = opened(policy=Policy(max_retries=0))
    court.fail()
    event = is_(court.control(Resolve, turn=court.turn, again=True), EscalationResolved)
    assert [past.how for past in event.work.past] == ["failed", "resolved"]
    assert event.work.past[-1].move is None


def test_a_person_may_answer_the_request() -> None:
    court = escalated()
    human = court.turn
    event = is_(court.control(Resolve, turn=human, complete=True, answer=42, by="Ada"), RequestCompleted)
    assert (event.to, event.answer, event.by, event.turn, event.control) == ("c1", 42, "Ada", human, "ctl-1")
    assert court.ledger.status == "completed"


@pytest.mark.parametrize("to", ["nobody", "human", "c1"])
def test_work_is_resolved_only_to_an_agent_of_the_fleet(to: str) -> None:
    court = escalated()
    ruling = court.hear_control(court.message(Resolve, turn=court.turn, to=to))
    assert isinstance(ruling, Rejected)
    assert ruling.code == "unknown_agent"
    assert court.holder.agent == "human"


def test_a_default_that_left_the_fleet_is_objected_to() -> None:
    court = escalated()
    del court.fleet["b"]
    ruling = court.hear_control(court.message(Resolve, turn=court.turn))
    assert isinstance(ruling, Rejected)
    assert resolves_to(court.ledger, Resolve(id="x", turn=court.turn)) == "b"
    assert resolves_to(court.ledger, Resolve(id="x", turn=court.turn, complete=True)) is None


def test_a_resolution_that_hides_something_survives_a_guard_that_dies_in_the_middle() -> None:
    court = Court(fleet=agents("b") | {"a": agent("a", clearance=("pii",))})
    court.submit(facts=(fact("ssn", "1", "pii"),))
    court.move(escalate())
    message = court.message(Resolve, turn=court.turn, to=AgentName("b"))
    whole = court.hear_control(message)
    withheld = is_(court.events[-2], FactsWithheld)
    is_(whole, EscalationResolved)
    died = Court(fleet=court.fleet)
    for event in court.events[:-1]:
        died.append(event)
    assert died.last == withheld
    assert died.hear_control(message) == whole


DIGEST = "qzk3yhx2r7bmmx6d3cjvd5h2ne"


def approval(**more: Any) -> Any:
    return ask(action="pay", digest=DIGEST, schema={"type": "boolean"}, **more)


def reply_to(court: Court, value: Any = True) -> TurnResumed:
    turn = court.holder
    return is_(court.control(Reply, sender="c1", turn=turn.id, round=turn.round, value=value), TurnResumed)


def test_a_reply_is_told_with_what_it_approves() -> None:
    court = played(approval())
    assert reply_to(court).work.past[-1].asked == DIGEST
    assert rejudge(court.bodies).same


def test_an_approval_that_expires_is_told_with_what_was_to_be_approved() -> None:
    court = played(approval(expires_s=60))
    (event,) = court.wait(60)
    past = is_(event, TurnResumed).work.past[-1]
    assert (past.how, past.asked) == ("expired", DIGEST)
    assert rejudge(court.bodies).same


@pytest.mark.parametrize("move", [ask(), ask(digest=DIGEST)], ids=["a-question", "no-action"])
def test_a_reply_to_what_is_no_approval_approves_nothing(move: Any) -> None:
    court = played(move)
    assert reply_to(court).work.past[-1].asked == ""


def test_a_question_after_an_approval_is_a_question() -> None:
    court = played(approval())
    reply_to(court)
    court.move(ask())
    assert [past.asked for past in reply_to(court).work.past] == [DIGEST, ""]
    court.move(transfer("b"))
    assert rejudge(court.bodies).same


@pytest.mark.parametrize(
    ("more", "said"),
    [
        pytest.param({"action": "pay"}, "needs the `digest`", id="of-nothing"),
        pytest.param({"action": "pay", "digest": ""}, "needs the `digest`", id="of-an-empty-one"),
        pytest.param({"action": "x" * 129, "digest": "d"}, "at most 128", id="a-long-action"),
        pytest.param({"digest": "d" * 129}, "at most 128", id="a-long-digest"),
    ],
)
def test_an_approval_that_says_too_little_or_too_much_cannot_be_read(more: Any, said: str) -> None:
    move = {"move": "ask", "to_agent": "c1", "question": "?", **more}
    body = msgspec.json.encode({"kind": "move", "turn": "t", "round": 0, "move": move})
    with pytest.raises(Malformed, match=said):
        codec.parse_proposal(body)
