"""A fallback gets the work of an agent once: when that one has failed for good, or its breaker is open."""

from typing import Any

import pytest

from mesh.ops.explain import explain
from mesh.replay.rejudge import rejudge
from protocol.domain.breaker import Permit, Signal, counted, counts, moved_by
from protocol.domain.ledger import fold
from protocol.views.timeline import timeline
from protocol.wire.config import BreakerEntry, Policy, Trial
from protocol.wire.events import EscalationRaised, HandoffAdmitted, MoveRefused, RequestFailed, TurnFailed
from protocol.wire.handoff import Budget, Constraints
from protocol.wire.ids import HUMAN, AgentName
from tests.certain import is_
from tests.unit.protocol.oracle.audit import Auditor
from tests.unit.protocol.trees import admitted, breaks, delegate, results, task, tree
from tests.unit.protocol.worlds import Play, agent, agents, complete, fact, hand_back, transfer, usage

NO_RETRY = Policy(max_retries=0)


def world(*, policy: Policy = NO_RETRY, human: bool = True, **more: Any) -> Play:
    """Return a play in which `c` is the fallback of `b`; an entry by name replaces one of the fleet."""
    fleet = agents("abcde") | {"b": agent("b", fallback="c")} | more.pop("fleet", {})
    play = Play(fleet=fleet, policy=policy, human=human, **more)
    play.submit()
    return play


def failed(play: Play, **how: Any) -> Any:
    """Give the work to `b`, which fails; return what follows."""
    play.move(transfer("b", **how))
    play.fail()
    return play.events[-1]


def sound(play: Play) -> Play:
    """Return a play of which the oracle has no complaint, and that replays as it happened."""
    auditor = Auditor()
    for event in play.events:
        auditor.follow(event, play.heard.get(event.cause))
    assert auditor.found == []
    assert rejudge(play.bodies).same
    assert fold(play.events).ended == play.ledger.ended
    return play


# --- a turn that has failed for good ----------------------------------------------------------------


def test_the_fallback_takes_the_place_of_the_agent_that_failed() -> None:
    play = world()
    event = is_(failed(play, intent="bill", return_to="a"), HandoffAdmitted)
    given = event.work.handoff
    assert (event.to, given.move, given.from_agent, given.summary) == ("c", "fallback", "b", "please")
    assert (given.intent, given.return_to, event.work.path, event.work.depth) == ("bill", "a", ("a", "c"), 2)
    assert [each.how for each in event.work.past] == []  # they are rounds of another turn
    assert is_(play.move(hand_back()), HandoffAdmitted).to == "a"
    play.move(complete())
    assert sound(play).ledger.status == "completed"


def test_it_gets_the_work_once_every_retry_is_used_up() -> None:
    play = world(policy=Policy(max_retries=1))
    assert type(failed(play)) is TurnFailed
    play.wait_until(play.next_due)
    play.fail()
    assert sound(play).holder.agent == "c"


def test_a_fallback_that_fails_too_leaves_the_work_to_a_person() -> None:
    play = world(fleet={"c": agent("c", fallback="d")})
    failed(play)
    play.fail()
    assert [type(event) for event in play.events[-2:]] == [TurnFailed, EscalationRaised]
    assert sound(play).holder.agent == HUMAN


def test_whoever_gets_the_work_from_a_fallback_has_a_fallback_again() -> None:
    play = world(fleet={"e": agent("e", fallback="d")}, policy=Policy(max_retries=0, max_depth=9))
    failed(play)
    play.move(transfer("e"))
    play.fail()
    assert sound(play).holder.agent == "d"


def test_the_entry_agent_has_one_as_well() -> None:
    play = world(fleet={"a": agent("a", fallback="e")})
    play.fail()
    assert sound(play).holder.agent == "e"
    assert play.holder.path == ("e",)


def test_it_sees_what_it_is_cleared_for_and_no_more() -> None:
    fleet = {"a": agent("a", clearance=("pii",)), "b": agent("b", clearance=("pii",), fallback="c")}
    play = world(fleet=fleet)
    play.move(transfer("b", fact("card", "4111", "pii")))
    play.fail()
    event = is_(play.events[-1], HandoffAdmitted)
    assert [each.key for each in event.work.handoff.facts] == ["text"]
    assert event.work.withheld is not None
    assert event.work.withheld.labels == ("pii",)
    sound(play)


def test_what_was_sealed_stays_so() -> None:
    play = world()
    event = is_(failed(play, no_return=True), HandoffAdmitted)
    assert (event.work.handoff.no_return, event.work.seal) == (True, 1)
    assert is_(play.move(hand_back()), MoveRefused).refusal.rule == "no_return"
    sound(play)


OTHERWISE: dict[str, dict[str, Any]] = {
    "its breaker is open": {"breakers": {"c": "open"}},
    "nobody serves it": {"unserved": ("c",)},
    "it does not take the intent": {"fleet": {"c": agent("c", intents=("other",))}},
    "it is beyond the depth": {"policy": Policy(max_retries=0, max_depth=1)},
    "it left the fleet": {"fleet": {"b": agent("b", fallback="gone")}},
    "it is on the path": {"fleet": {"b": agent("b", fallback="a")}},
}


@pytest.mark.parametrize("why", OTHERWISE)
def test_a_person_gets_the_work_if_the_fallback_may_not_have_it(why: str) -> None:
    play = world(**OTHERWISE[why])
    assert is_(failed(play, intent="bill"), EscalationRaised).reason == "boom"
    sound(play)


def test_without_people_the_request_fails_after_the_fallback() -> None:
    play = world(human=False)
    assert type(failed(play)) is HandoffAdmitted
    play.fail()
    assert is_(play.events[-1], RequestFailed).code == "no_human"
    sound(play)


def test_refusals_are_a_persons() -> None:
    play = world(policy=Policy(max_refusals=0))
    play.move(transfer("b"))
    play.move(transfer("nobody"))
    assert is_(play.events[-1], EscalationRaised).reason == "refusals"
    sound(play)


def test_the_agent_that_left_the_fleet_has_no_fallback() -> None:
    play = world()
    play.move(transfer("b"))
    del play.fleet["b"]
    play.finish()
    assert is_(play.events[-1], EscalationRaised).reason == "agent_removed"
    sound(play)


def test_the_fleet_of_the_moment_says_who_it_is() -> None:
    play = world(policy=Policy(max_retries=1))
    failed(play)
    play.fleet["b"] = agent("b", fallback="d")
    play.wait_until(play.next_due)
    play.fail()
    assert sound(play).holder.agent == "d"


# --- what it may spend --------------------------------------------------------------------------------


def test_it_has_what_is_left_of_the_budget() -> None:
    play = world()
    play.move(transfer("b", constraints=Constraints(budget=Budget(tokens=100))))
    play.fail(report=usage(30))
    assert is_(play.events[-1], HandoffAdmitted).work.handoff.constraints.budget == Budget(tokens=70)
    sound(play)


@pytest.mark.parametrize("spent", [100, 130])
def test_a_budget_that_is_spent_is_a_persons(spent: int) -> None:
    play = world()
    play.move(transfer("b", constraints=Constraints(budget=Budget(tokens=100))))
    play.fail(report=usage(spent))
    assert type(sound(play).events[-1]) is EscalationRaised


def test_so_is_one_of_which_nobody_knows_what_is_left() -> None:
    play = world(policy=Policy(max_retries=0, turn_timeout_s=60.0))
    play.move(transfer("b", constraints=Constraints(budget=Budget(tokens=100))))
    play.wait(61)
    assert type(sound(play).events[-1]) is EscalationRaised


def test_without_a_budget_it_goes_on_after_the_clock() -> None:
    play = world(policy=Policy(max_retries=0, turn_timeout_s=60.0))
    play.move(transfer("b"))
    play.wait(61)
    assert sound(play).holder.agent == "c"


# --- a breaker that is open ---------------------------------------------------------------------------


def test_a_transfer_to_an_open_breaker_goes_to_the_fallback() -> None:
    play = world(breakers={"b": "open"})
    event = is_(play.move(transfer("b", fact("k", 7), intent="bill")), HandoffAdmitted)
    assert (event.to, event.instead_of, event.work.handoff.move) == ("c", "b", "transfer")
    assert (event.work.path, event.work.depth) == (("a", "c"), 1)
    assert (event.grounds.breaker, event.grounds.target) == ("open", play.fleet["b"])
    play.fail()
    assert sound(play).holder.agent == HUMAN  # it is a fallback: it has none


CLOSED: dict[str, dict[str, Any]] = {
    "its breaker is open, too": {"breakers": {"b": "open", "c": "open"}},
    "it may not be given work": {"fleet": {"a": agent("a", to=("b",))}},
    "it is on the path": {"fleet": {"b": agent("b", fallback="a")}},
    "nobody serves it": {"unserved": ("c",)},
}


@pytest.mark.parametrize("why", CLOSED)
def test_the_transfer_is_refused_if_the_fallback_may_not_have_it(why: str) -> None:
    play = world(**{"breakers": {"b": "open"}} | CLOSED[why])
    refused = is_(play.move(transfer("b")), MoveRefused).refusal
    assert (refused.rule, refused.numbers["target"]) == ("agent_available", "b")
    sound(play)


def test_what_another_rule_refuses_goes_to_nobody() -> None:
    play = world(breakers={"b": "open"})
    late = transfer("b", constraints=Constraints(deadline=1))
    assert is_(play.move(late), MoveRefused).refusal.rule == "agent_available"
    sound(play)


# --- trials -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("breaker", ["b", ""])
def test_a_trial_that_the_fallback_gets_is_its_turns(breaker: str) -> None:
    play = world(breakers={"c": Permit("half_open")} | ({breaker: "open"} if breaker else {}))
    event = is_(play.move(transfer("b")) if breaker else failed(play), HandoffAdmitted)
    entry = BreakerEntry(state="half_open", trial=Trial(event.cause, play.now))
    rules = play.whole_fleet.breaker
    worked = counted(entry, rules, Signal(AgentName("c"), "worked", event.work.turn), play.now)
    assert worked is not None
    assert worked.state == "closed"


def test_a_trial_of_a_fallback_that_gets_nothing_is_given_back() -> None:
    play = world(breakers={"b": "open", "c": Permit("half_open")}, fleet={"a": agent("a", to=("b",))})
    event = is_(play.move(transfer("b")), MoveRefused)
    signals = list(counts(play.ledger, event, moved_by(event), ()))
    assert ("c", "given_back", event.cause) in [(each.agent, each.how, each.subject) for each in signals]


# --- other topologies, and what is told ----------------------------------------------------------------


def test_a_supervised_task_keeps_its_own() -> None:
    play = tree(fleet=agents("abc") | {"b": agent("b", fallback="c")})
    admitted(play, delegate(task("one", "b")))
    breaks(play, "one")
    assert {task.agent: task.status for task in results(play).values()} == {"b": "failed"}
    assert "c" not in {event.to for event in play.events}


@pytest.mark.parametrize("breakers", [{}, {"b": "open"}])
def test_timeline_and_why_say_it(breakers: dict[str, Any]) -> None:
    play = world(breakers=breakers)
    event = play.move(transfer("b")) if breakers else failed(play)
    told = timeline(play.events).moves[-1]
    assert (told.to, told.move) == ("c", "transfer" if breakers else "fallback")
    assert "fallback" in (told.detail or "")
    why = explain(play.events, event.n)
    assert (why.to, why.detail, why.failure) == ("c", told.detail, None if breakers else "it broke")
