"""Tasks that end with their lead, by its word or late; and what each end is charged."""

from typing import Any

import pytest

from protocol.domain.admission import Late
from protocol.domain.steps import Step, TurnOver
from protocol.wire.commands import Cancel, MoveProposed, Resolve
from protocol.wire.events import (
    EscalationRaised,
    RequestCancelled,
    RequestCompleted,
    RequestExpired,
    TaskCancelled,
    TaskFailed,
)
from protocol.wire.handoff import Budget
from protocol.wire.moves import Complete
from tests.unit.protocol.trees import (
    breaks,
    delegate,
    deliver,
    grant,
    kinds,
    results,
    say,
    task,
    tree,
    worker,
)
from tests.unit.protocol.worlds import Play, complete, escalate, give_up, usage

pytestmark = pytest.mark.usefixtures("judged_again")


class Watched(Play):
    """A play that notes whom it tells that their turn is over."""

    def take(self, step: Step) -> None:
        if isinstance(step, TurnOver):
            self.__dict__.setdefault("over", []).append((step.turn.agent, type(step.event).__name__))
        super().take(step)


def over(play: Play) -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = play.__dict__.pop("over", [])
    return found


def watched(*tasks: Any, **rest: Any) -> Watched:
    play = tree(*tasks, **rest)
    play.__class__ = Watched
    return play  # type: ignore[return-value]


# --- ending -------------------------------------------------------------------------------------------


def deep() -> Watched:
    """A root with two tasks, the first of which has two of its own."""
    play = watched(task("two", "b"), task("other", "c"))
    say(play, "two", delegate(task("x", "d"), task("y", "e")))
    over(play)
    return play


def test_the_roots_end_ends_every_turn_the_deepest_first() -> None:
    play = deep()
    play.control(Cancel)
    assert over(play) == [
        ("e", "RequestCancelled"),
        ("d", "RequestCancelled"),
        ("c", "RequestCancelled"),
        ("b", "RequestCancelled"),
        ("a", "RequestCancelled"),
    ]
    assert not play.ledger.open
    assert isinstance(play.last, RequestCancelled)


def test_expiry_ends_every_turn() -> None:
    play = deep()
    happened = play.wait_until(play.ledger.deadline)
    assert isinstance(happened[-1], RequestExpired)
    assert [name for name, _ in over(play)][-1] == "a"


def test_an_answer_that_calls_off_what_is_open_ends_it() -> None:
    play = watched()
    say(play, "", delegate(task("x", "b"), task("y", "c"), join="any"))
    say(play, "x", deliver())
    over(play)
    say(play, "", Complete(answer=1, cancel_open=True))
    assert over(play) == [("c", "RequestCompleted")]
    assert isinstance(play.last, RequestCompleted)


def test_a_task_that_is_called_off_takes_its_own_tasks_with_it() -> None:
    play = watched()
    say(play, "", delegate(task("two", "b"), task("other", "c"), join="any"))
    say(play, "two", delegate(task("x", "d")))
    say(play, "other", deliver())
    over(play)
    say(play, "", delegate(cancel=("two",)))
    ended = [event for event in play.events if isinstance(event, TaskCancelled)]
    assert [(event.name, event.why) for event in ended] == [("x", "lead_ended"), ("two", "called_off")]
    assert over(play) == [("d", "TaskCancelled"), ("b", "TaskCancelled")]
    assert results(play)["two"].status == "cancelled"


def test_a_lead_that_fails_takes_its_tasks_with_it() -> None:
    play = watched(task("two", "b"))
    say(play, "two", delegate(task("x", "c"), task("y", "d"), join="any"))
    say(play, "x", deliver())
    say(play, "two", give_up())
    assert kinds(play.events)[-3:] == ["TaskFailed", "TaskCancelled", "TurnResumed"]
    assert ("d", "TaskCancelled") in over(play)


def test_an_escalation_of_the_root_cancels_what_is_open() -> None:
    play = watched()
    say(play, "", delegate(task("x", "b"), task("y", "c"), join="any"))
    say(play, "x", deliver())
    say(play, "", escalate())
    assert kinds(play.events)[-2:] == ["EscalationRaised", "TaskCancelled"]
    assert [turn.agent for turn in play.ledger.open.values()] == ["human"]


def test_a_person_can_give_the_root_turn_on_and_it_delegates_anew() -> None:
    play = tree(task("x", "b"))
    say(play, "x", deliver())
    say(play, "", escalate())
    assert isinstance(play.last, EscalationRaised)
    play.control(Resolve, turn=play.holder.id, again=True)
    say(play, "", delegate(task("x", "b")))
    say(play, "x", deliver())
    say(play, "", complete())
    assert play.ledger.status == "completed"


def test_a_late_result_is_late() -> None:
    play = tree()
    say(play, "", delegate(task("x", "b"), task("y", "c"), join="any"))
    late = worker(play, "y")
    say(play, "x", deliver())
    say(play, "", delegate(task("z", "d"), cancel=("y",)))
    said = MoveProposed(turn=late.id, round=late.round, move=deliver())
    assert play.propose(said, "c") == Late(late.id, 0, "ended")


# --- accounts -----------------------------------------------------------------------------------------


def cancelled_after(**begun: Any) -> Play:
    play = tree(policy={"budget": Budget(tokens=1000)}, **begun)
    two = (task("x", "b", constraints=grant(tokens=100)), task("y", "c", constraints=grant(tokens=200)))
    say(play, "", delegate(*two, join="any"))
    say(play, "x", deliver(), usage(tokens=10))
    say(play, "", delegate(cancel=("y",)))
    return play


def test_a_task_that_is_cancelled_at_work_is_charged_all_that_it_had() -> None:
    assert cancelled_after(begun=True).ledger.spent.tokens == 210


def test_a_task_that_is_cancelled_before_it_began_costs_nothing() -> None:
    play = cancelled_after(begun=False)
    assert play.ledger.spent.tokens == 10
    assert play.ledger.rest(play.holder) == Budget(tokens=990)


def test_a_round_that_the_clock_ended_is_charged_unless_a_later_report_says_what_it_cost() -> None:
    rules = {"budget": Budget(tokens=1000), "turn_timeout_s": 10.0, "max_retries": 1}
    for reports, spent in ((False, 100), (True, 7)):
        play = tree(task("x", "b", constraints=grant(tokens=100)), policy=rules)
        play.wait(10)
        play.wait(2)
        assert worker(play, "x").round == 1
        if reports:
            breaks(play, "x", report=usage(tokens=7))
        else:
            play.wait(10)
        assert (results(play)["x"].status, play.ledger.spent.tokens) == ("failed", spent)


def test_the_clocks_of_two_turns_are_looked_at_apart() -> None:
    play = tree(task("x", "b"), policy={"turn_timeout_s": 10.0, "max_retries": 0})
    say(play, "x", delegate(task("y", "c"), task("z", "d")))
    play.wait(5)
    say(play, "y", deliver())
    happened = play.wait(5)
    assert [event.name for event in happened if isinstance(event, TaskFailed)] == ["z"]
