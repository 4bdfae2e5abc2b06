"""What people's and clients' words become."""

from typing import Any

import msgspec
import pytest

from mesh.replay.rejudge import rejudge
from protocol.domain.admission import Rejected
from protocol.domain.control import resolves_to
from protocol.wire import codec
from protocol.wire.commands import Assign, Cancel, Freeze, ReplyToAsk, Resolve, Settle, Thaw
from protocol.wire.config import Policy
from protocol.wire.errors import Malformed
from protocol.wire.events import (
    EffectSettled,
    EscalationAssigned,
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
from protocol.wire.moves import Escalate
from tests.certain import is_
from tests.unit.protocol.worlds import (
    REQUEST,
    START,
    Play,
    agent,
    agents,
    ask,
    escalate,
    fact,
    opened,
    played,
    seconds,
    transfer,
    usage,
)


def escalated(**play: Any) -> Play:
    """A request that a handed to b, and b to people."""
    made = played(transfer("b", fact("k", 1), intent="bill"), escalate(fact("why", "odd")), **play)
    return made


def test_a_cancel_ends_the_request_and_names_the_person() -> None:
    play = opened()
    event = is_(play.control(Cancel, by="Ada", reason="changed my mind"), RequestCancelled)
    assert (event.to, event.by, event.sender, event.reason) == ("c1", "Ada", "op1", "changed my mind")
    assert (play.ledger.status, play.next_due) == ("cancelled", None)
    assert event.cause == control_cause(REQUEST, "op1", event.control)


def test_who_gives_no_name_is_recorded_by_their_credentials() -> None:
    assert is_(opened().control(Cancel, sender="c1"), RequestCancelled).by == "c1"


def test_freeze_and_thaw_lie_in_nobodys_inbox() -> None:
    play = opened()
    frozen = is_(play.control(Freeze, reason="look"), RequestFrozen)
    assert (frozen.to, play.ledger.frozen_at) == ("_", START)
    thawed = is_(play.control(Thaw), RequestThawed)
    assert (thawed.to, play.ledger.frozen_at) == ("_", None)


@pytest.mark.parametrize("value", ["red", None, {"approved": True}, 0])
def test_a_reply_opens_the_next_round_with_it(value: Any) -> None:
    play = played(ask(expires_s=60))
    event = is_(play.control(ReplyToAsk, sender="c1", turn=play.turn, round=0, value=value), TurnResumed)
    assert (event.to, event.sender, event.work.round) == ("a", "c1", 1)
    past = event.work.past[-1]
    assert (past.how, past.reply, past.by, past.round) == ("replied", value, "c1", 0)
    assert play.wait(61) == []  # the expiry is off


@pytest.mark.parametrize("outcome", ["done", "not_done"])
def test_settling_a_doubt_opens_the_next_round(outcome: Any) -> None:
    play = opened()
    play.doubt("pay", usage(tokens=9))
    event = is_(
        play.control(Settle, turn=play.turn, round=0, outcome=outcome, result={"ref": 7}, by="Ada"),
        EffectSettled,
    )
    assert (event.to, event.outcome, event.result, event.by) == ("a", outcome, {"ref": 7}, "Ada")
    past = event.work.past[-1]
    assert (past.how, past.settled, past.reply) == ("settled", outcome, {"ref": 7})
    assert (event.work.round, event.work.reported) == (1, usage(tokens=9))


def test_a_resolution_goes_by_default_to_whose_turn_it_ended_with_its_constraints() -> None:
    limits = Constraints(max_resolution_time_s=600, allowed_actions=("look",), must_carry=("text",))
    play = opened(policy=Policy(budget=Budget(tokens=100)))
    play.move(transfer("b", constraints=limits), usage(tokens=10))
    play.move(escalate(), usage(tokens=30))
    human = play.turn
    event = is_(play.control(Resolve, turn=human, by="Ada"), EscalationResolved)
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
    play = opened(policy=Policy(budget=Budget(tokens=100, model_calls=5)))
    play.fail("budget_exhausted", permanent=True, report=usage(tokens=105, model_calls=1))
    order = play.control(Resolve, turn=play.turn, again=again, budget=granted)
    event = is_(order, EscalationResolved)
    assert event.budget == granted
    assert event.work.handoff.constraints.budget == left
    assert rejudge(play.bodies).same
    if granted is not None and granted.tokens is not None:
        play.move(transfer("b"), usage(tokens=30))  # spent by this turn: what is left is handed on
        assert play.holder.work.handoff.constraints.budget == Budget(tokens=40, model_calls=4)


def test_a_resolution_starts_a_fresh_segment() -> None:
    play = escalated(policy=Policy(max_depth=1))
    event = is_(play.control(Resolve, turn=play.turn), EscalationResolved)
    assert (event.work.path, event.work.depth) == (("b",), 0)
    play.move(transfer("a"))  # on the old path, at the old depth's end
    assert play.holder.segment.names == ("b", "a")
    assert play.ledger.turns[play.turn].frame.giver == "b"


def test_a_person_who_adds_no_summary_passes_the_old_one_on() -> None:
    play = escalated()
    event = is_(play.control(Resolve, turn=play.turn), EscalationResolved)
    assert (event.work.handoff.summary, event.work.handoff.intent) == ("a person, please", "bill")


def test_an_assignment_names_the_person_and_the_last_one_counts() -> None:
    play = escalated()
    event = is_(play.control(Assign, turn=play.turn, to="Ada", by="Bob"), EscalationAssigned)
    assert (event.to, event.person, event.by) == ("_", "Ada", "Bob")
    play.control(Assign, turn=play.turn, to="Cid")
    assert play.holder.person == "Cid"


def test_again_goes_on_under_the_ended_turns_id_however_often() -> None:
    play = escalated()
    first = play.holder.instead_of
    for _ in range(2):
        event = is_(play.control(Resolve, turn=play.turn, again=True, to=AgentName("c")), EscalationResolved)
        assert (event.to, event.again, event.work.continues) == ("b", True, first)
        assert event.work.turn != first
        play.move(escalate())


def test_again_tells_the_turn_that_goes_on_who_let_it_and_what_they_noted() -> None:
    play = escalated()
    note = "try the other account"
    event = is_(play.control(Resolve, turn=play.turn, again=True, summary=note, by="Ada"), EscalationResolved)
    past = event.work.past[-1]
    assert (past.round, past.how, past.reply, past.by) == (0, "resolved", note, "Ada")
    assert isinstance(past.move, Escalate)
    assert event.work.round == 1


def test_again_after_failures_answers_no_move() -> None:
    play = opened(policy=Policy(max_retries=0))
    play.fail()
    event = is_(play.control(Resolve, turn=play.turn, again=True), EscalationResolved)
    assert [past.how for past in event.work.past] == ["failed", "resolved"]
    assert event.work.past[-1].move is None


def test_a_person_may_answer_the_request() -> None:
    play = escalated()
    human = play.turn
    event = is_(play.control(Resolve, turn=human, complete=True, answer=42, by="Ada"), RequestCompleted)
    assert (event.to, event.answer, event.by, event.turn, event.control) == ("c1", 42, "Ada", human, "ctl-1")
    assert play.ledger.status == "completed"


@pytest.mark.parametrize("to", ["nobody", "human", "c1"])
def test_work_is_resolved_only_to_an_agent_of_the_fleet(to: str) -> None:
    play = escalated()
    outcome = is_(play.send_control(play.message(Resolve, turn=play.turn, to=to)), Rejected)
    assert outcome.code == "unknown_agent"
    assert play.holder.agent == "human"


def test_a_default_that_left_the_fleet_is_objected_to() -> None:
    play = escalated()
    del play.fleet["b"]
    is_(play.send_control(play.message(Resolve, turn=play.turn)), Rejected)
    assert resolves_to(play.ledger, Resolve(id="x", turn=play.turn)) == "b"
    assert resolves_to(play.ledger, Resolve(id="x", turn=play.turn, complete=True)) is None


def test_a_resolution_that_hides_something_survives_a_guard_that_dies_in_the_middle() -> None:
    play = Play(fleet=agents("b") | {"a": agent("a", clearance=("pii",))})
    play.submit(facts=(fact("ssn", "1", "pii"),))
    play.move(escalate())
    message = play.message(Resolve, turn=play.turn, to=AgentName("b"))
    whole = play.send_control(message)
    withheld = is_(play.events[-2], FactsWithheld)
    is_(whole, EscalationResolved)
    died = Play(fleet=play.fleet)
    for event in play.events[:-1]:
        died.append(event)
    assert died.last == withheld
    assert died.send_control(message) == whole


DIGEST = "qzk3yhx2r7bmmx6d3cjvd5h2ne"


def approval(**more: Any) -> Any:
    return ask(action="pay", digest=DIGEST, schema={"type": "boolean"}, **more)


def reply_to(play: Play, value: Any = True) -> TurnResumed:
    turn = play.holder
    return is_(
        play.control(ReplyToAsk, sender="c1", turn=turn.id, round=turn.round, value=value), TurnResumed
    )


def test_a_reply_is_told_with_what_it_approves() -> None:
    play = played(approval())
    assert reply_to(play).work.past[-1].asked == DIGEST
    assert rejudge(play.bodies).same


def test_an_approval_that_expires_is_told_with_what_was_to_be_approved() -> None:
    play = played(approval(expires_s=60))
    (event,) = play.wait(60)
    past = is_(event, TurnResumed).work.past[-1]
    assert (past.how, past.asked) == ("expired", DIGEST)
    assert rejudge(play.bodies).same


@pytest.mark.parametrize("move", [ask(), ask(digest=DIGEST)], ids=["a-question", "no-action"])
def test_a_reply_to_what_is_no_approval_approves_nothing(move: Any) -> None:
    play = played(move)
    assert reply_to(play).work.past[-1].asked == ""


def test_a_question_after_an_approval_is_a_question() -> None:
    play = played(approval())
    reply_to(play)
    play.move(ask())
    assert [past.asked for past in reply_to(play).work.past] == [DIGEST, ""]
    play.move(transfer("b"))
    assert rejudge(play.bodies).same


@pytest.mark.parametrize(
    ("more", "said"),
    [
        pytest.param({"action": "pay"}, "needs the `digest`", id="of-nothing"),
        pytest.param({"action": "pay", "digest": ""}, "needs the `digest`", id="of-an-empty-one"),
        pytest.param({"action": "x" * 129, "digest": "d"}, "length <= 128", id="a-long-action"),
        pytest.param({"digest": "d" * 129}, "length <= 128", id="a-long-digest"),
    ],
)
def test_an_approval_that_says_too_little_or_too_much_cannot_be_read(more: Any, said: str) -> None:
    move = {"move": "ask", "to_agent": "c1", "question": "?", **more}
    body = msgspec.json.encode({"kind": "move", "turn": "t", "round": 0, "move": move})
    with pytest.raises(Malformed, match=said):
        codec.parse_proposal(body)
