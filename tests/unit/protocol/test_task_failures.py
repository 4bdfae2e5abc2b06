"""Tasks that fail: typed, up the tree, and given to another agent once where they may be."""

from typing import Any

import pytest

from mesh.testing import InMemoryGuard
from protocol.views.timeline import timeline
from protocol.wire.commands import Doubt, Freeze, ReportInDoubt, Settle, Thaw
from protocol.wire.config import BreakerEntry, Fleet
from protocol.wire.event_parts import TaskError
from protocol.wire.events import (
    FactsWithheld,
    MoveDeferred,
    RequestFailed,
    TaskFailed,
    TaskOpened,
    TurnResumed,
)
from protocol.wire.handoff import Budget, Constraints
from protocol.wire.ids import AgentName
from protocol.wire.moves import Fail
from tests.certain import is_, known
from tests.unit.protocol.trees import (
    SUPERVISED,
    breaks,
    delegate,
    deliver,
    grant,
    informed,
    kinds,
    opened_tasks,
    results,
    say,
    task,
    tree,
    worker,
)
from tests.unit.protocol.worlds import Play, agent, complete, fact, give_up, usage

pytestmark = pytest.mark.usefixtures("judged_again")


def error_in(play: Play, name: str) -> TaskError:
    """Return why a task failed, as its lead is told."""
    return known(results(play)[name].error)


def error_of(
    code: str, message: str, path: str, attempts: int = 1, origin: TaskError | None = None
) -> TaskError:
    lineage = tuple(map(AgentName, path))
    return TaskError(
        code=code, message=message, agent=lineage[-1], attempts=attempts, lineage=lineage, origin=origin
    )


# --- failing ------------------------------------------------------------------------------------------


def test_a_broken_turn_is_retried_and_then_its_task_fails_with_its_code() -> None:
    play = tree(task("one", "b"), policy={"max_retries": 1})
    breaks(play, "one", permanent=False)
    play.wait(2)
    assert worker(play, "one").round == 1
    breaks(play, "one", permanent=False)
    assert results(play)["one"].error == error_of("boom", "it broke", "ab", 2)
    assert play.ledger.is_open


def test_refused_too_often_a_task_fails_and_no_person_is_asked() -> None:
    play = tree(task("one", "b"), policy={"max_refusals": 0})
    say(play, "one", complete())
    error = error_in(play, "one")
    assert (error.code, error.message[:32]) == ("refusals", "refused by the rule known_move: ")
    assert play.ledger.escalations == 0


def test_an_agent_that_gives_up_says_why_by_a_code_of_its_own() -> None:
    play = tree(task("one", "b"))
    say(play, "one", Fail(reason="nothing was found", code="no_sources"))
    error = error_in(play, "one")
    assert (error.code, error.message) == ("no_sources", "nothing was found")
    say(play, "", Fail(reason="nobody found anything", code="no_sources"))
    assert is_(play.events[-1], RequestFailed).code == "no_sources"


def test_a_task_that_asks_for_too_much_has_used_up_its_budget() -> None:
    play = tree(task("one", "b", constraints=grant(tokens=5)), policy={"max_refusals": 0})
    say(play, "one", delegate(task("sub", "c", constraints=grant(tokens=6))))
    assert error_in(play, "one").code == "budget_exhausted"


def test_an_error_three_levels_down_arrives_with_its_origin_and_each_levels_code() -> None:
    play = tree(task("two", "b"))
    say(play, "two", delegate(task("three", "c")))
    breaks(play, "three", code="no_source", message="the site is gone")
    say(play, "two", give_up())
    error = results(play)["two"].error
    below = error_of("no_source", "the site is gone", "abc")
    assert error == error_of("failed", "it cannot be done", "ab", 2, below)


def test_a_failure_that_a_revision_made_good_is_no_origin() -> None:
    play = tree(task("two", "b"))
    say(play, "two", delegate(task("x", "c")))
    breaks(play, "x")
    say(play, "two", delegate(task("y", "d", revises="x")))
    say(play, "y", deliver())
    say(play, "two", give_up())
    assert error_in(play, "two").origin is None


def test_the_deadline_of_a_task_ends_it_and_not_the_request() -> None:
    play = tree(task("one", "b", constraints=Constraints(max_resolution_time_s=5.0)))
    play.begun = True
    play.wait(5)
    assert (error_in(play, "one").code, play.ledger.is_open) == ("deadline", True)


def test_a_lead_that_waits_for_its_tasks_has_its_deadline_too() -> None:
    play = tree(task("two", "b", constraints=Constraints(max_resolution_time_s=5.0)))
    say(play, "two", delegate(task("three", "c")))
    assert kinds(play.wait(5))[-3:] == ["TaskFailed", "TaskCancelled", "TurnResumed"]
    assert results(play)["two"].error is not None


def test_a_task_whose_agent_nobody_serves_fails_after_a_while() -> None:
    play = tree(task("one", "b"), policy={"unattended_after_s": 30.0}, served=False, begun=False)
    play.wait(30)
    assert (error_in(play, "one").code, play.ledger.spent.tokens) == ("unattended", 0)


def test_an_open_breaker_is_the_tasks_failure_and_not_the_plans() -> None:
    play = tree(task("one", "b"), task("two", "c"), breakers={"b": "open"})
    assert opened_tasks(play) == [("two", "c")]
    say(play, "two", deliver())
    error = error_in(play, "one")
    assert (error.code, error.attempts, error.agent) == ("agent_available", 0, "b")


def test_a_failure_falls_back_once_to_the_next_capable_agent() -> None:
    fleet = {name: agent(name, intents=("x",)) for name in "abcd"}
    play = tree(task("one", None, intent="x", fallback=True), fleet=fleet)
    breaks(play, "one", report=usage(tokens=7))
    assert opened_tasks(play) == [("one", "b"), ("one", "c")]
    assert play.holder.state == "delegated"
    breaks(play, "one", report=usage(tokens=5))
    told = results(play)["one"]
    assert (told.status, told.agent, told.agents, told.attempts) == ("failed", "c", ("b", "c"), 2)
    assert told.cost.tokens == 12


def test_a_worker_that_gives_up_falls_back_too_on_what_is_left_of_its_grant() -> None:
    fleet = {name: agent(name, intents=("x",)) for name in "abcd"}
    one = task("one", "c", intent="x", fallback=True, constraints=grant(tokens=50))
    play = tree(one, fleet=fleet, policy={"budget": Budget(tokens=100)})
    say(play, "one", give_up(), usage(tokens=20))
    again = worker(play, "one")
    assert (again.agent, again.work.handoff.constraints.budget) == ("b", Budget(tokens=30))
    say(play, "one", deliver())
    assert results(play)["one"].status == "delivered"


def test_without_another_agent_a_failure_stands() -> None:
    fleet = {"a": agent("a"), "b": agent("b", intents=("x",)), "c": agent("c", intents=("y",))}
    fleet["a"] = agent("a", intents=("z",))
    play = tree(task("one", None, intent="x", fallback=True), fleet=fleet)
    breaks(play, "one")
    assert results(play)["one"].status == "failed"


def test_an_open_breaker_falls_back_at_once() -> None:
    fleet = {name: agent(name, intents=("x",)) for name in "abc"}
    play = tree(task("one", "b", intent="x", fallback=True), fleet=fleet, breakers={"b": "open"})
    assert opened_tasks(play) == [("one", "c")]


def test_a_task_that_falls_back_before_it_was_opened_is_told() -> None:
    fleet = {name: agent(name, intents=("x",)) for name in "abc"}
    play = tree(task("one", "b", intent="x", fallback=True), fleet=fleet, breakers={"b": "open"})
    told = next(move for move in timeline(play.events).moves if move.move == "task_failed")
    assert (told.from_, told.to, told.detail) == ("b", "a", "one: agent_available")


def test_the_trial_of_an_agent_that_a_fallback_passes_over_is_given_back() -> None:
    trusted = Fleet(
        name="trees",
        entry=AgentName("a"),
        agents={name: agent(name, intents=("x",)) for name in "abcd"},
        clients=(AgentName("c1"),),
    )
    breakers = {"b": BreakerEntry(state="open"), "c": BreakerEntry(state="open", opened_at=0)}
    guard = InMemoryGuard(
        trusted, {"default": SUPERVISED}, breakers=breakers, served=lambda name: name != "c"
    )
    guard.submit("go")
    guard.move(delegate(task("one", "b", intent="x", fallback=True)))
    failed = next(event for event in guard.events if isinstance(event, TaskFailed))
    assert [one.breaker for one in known(failed.grounds).candidates] == ["half_open", "closed"]
    assert [turn.agent for turn in guard.ledger.open.values()] == ["a", "d"]
    assert guard.breakers["c"].trial is None


# --- freeze, doubt, ask -------------------------------------------------------------------------------


def test_a_frozen_tree_defers_each_turns_move_and_goes_on_at_the_thaw() -> None:
    play = tree(task("x", "b"), task("y", "c"))
    play.control(Freeze)
    assert isinstance(say(play, "x", deliver()), MoveDeferred)
    assert isinstance(say(play, "y", deliver()), MoveDeferred)
    play.control(Thaw)
    assert isinstance(play.last, TurnResumed)
    assert len(results(play)) == 2


def test_an_effect_in_doubt_of_a_task_waits_for_a_person_alone() -> None:
    play = tree(task("x", "b"), task("y", "c"))
    turn = worker(play, "x")
    effect = Doubt(step="0-1", action="pay")
    play.event(play.propose(ReportInDoubt(turn=turn.id, round=0, effect=effect), "b"))
    say(play, "y", deliver())
    play.control(Settle, turn=turn.id, round=0, outcome="done", result=1)
    assert worker(play, "x").round == 1
    say(play, "x", deliver())
    assert len(results(play)) == 2


@pytest.mark.parametrize("kind", [TaskOpened, FactsWithheld])
def test_a_task_that_cannot_be_stored_fails_alone(kind: type[Any]) -> None:
    play = informed(fact("pin", 1, "secret"))
    play.fleet["a"] = play.fleet["c"] = agent("a", clearance=("secret",))
    play.fleet["c"] = agent("c", clearance=("secret",))
    play.too_large = (kind,)
    say(play, "", delegate(task("one", "b")))
    assert (error_in(play, "one").code, play.ledger.is_open) == ("event_too_large", True)


def test_a_join_that_cannot_be_stored_ends_a_lead_below_the_root_alone() -> None:
    play = tree(task("two", "b"))
    say(play, "two", delegate(task("three", "c")))
    play.too_large = (TurnResumed,)
    say(play, "three", deliver())
    assert play.ledger.status == "failed"  # the root's own join cannot be stored either
    assert [event.error.code for event in play.events if isinstance(event, TaskFailed)] == ["event_too_large"]
