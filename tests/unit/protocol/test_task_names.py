"""Names of tasks over several turns of one lead: each means the task that it meant when it was planned."""

import signal
from collections.abc import Iterator
from types import FrameType
from typing import NoReturn

import pytest

from mesh.replay.rejudge import rejudge
from protocol.wire.commands import Cancel, Resolve
from protocol.wire.events import MoveRefused, RequestCancelled, RequestExpired, TaskOpened, TurnDelegated
from protocol.wire.handoff import Rule
from tests.certain import is_
from tests.unit.protocol.trees import delegate, deliver, refusal_of, say, task, tree
from tests.unit.protocol.worlds import DAY, Play, escalate, fact

HANGS_S = 20


@pytest.fixture(autouse=True)
def ends_what_hangs() -> Iterator[None]:
    """Raise in a decision that goes round in a circle, before it takes all memory."""

    def hangs(_: int, __: FrameType | None) -> NoReturn:
        raise TimeoutError("the decision goes on and on")

    before = signal.signal(signal.SIGALRM, hangs)
    signal.alarm(HANGS_S)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


def taken_up_again(*, turns: int = 2, **policy: int) -> Play:
    """Return a play whose lead has found something in each turn but the newest, and was told to go on."""
    play = tree(policy={"max_escalations": 9, **policy})
    for turn in range(turns - 1):
        say(play, "", delegate(task("find", "b", fact("look", f"in place {turn}"))))
        say(play, "find", deliver(fact("found", f"in turn {turn}")))
        again(play)
    return play


def again(play: Play) -> None:
    say(play, "", escalate())
    play.control(Resolve, turn=play.holder.id, again=True)


def results_of(play: Play, name: str) -> list[object]:
    """Return the facts that the newest task of a name was given to use."""
    opened = [event for event in play.events if isinstance(event, TaskOpened) and event.name == name]
    return [found.value for result in opened[-1].work.results for found in result.facts]


def test_a_task_uses_the_earlier_of_two_tasks_of_one_name() -> None:
    play = taken_up_again()
    plan = is_(say(play, "", delegate(task("find", "b"), task("price", "c", uses=("find",)))), TurnDelegated)
    earlier = next(iter(play.ledger.tasks))
    assert [planned.uses for planned in plan.tasks] == [(), (earlier,)]
    assert results_of(play, "price") == ["in turn 0"]
    say(play, "find", deliver(fact("found", "in turn 1")))
    say(play, "price", deliver())
    say(play, "", delegate(task("sum", "d", uses=("find",))))
    assert results_of(play, "sum") == ["in turn 1"]
    assert rejudge(play.bodies).same


@pytest.mark.parametrize("how", ["cancelled", "expired"])
def test_a_request_of_two_tasks_of_one_name_still_ends(how: str) -> None:
    play = taken_up_again()
    say(play, "", delegate(task("find", "b"), task("price", "c", uses=("find",))))
    if how == "cancelled":
        is_(play.control(Cancel), RequestCancelled)
    else:
        play.wait(2 * DAY)
        is_(play.events[-1], RequestExpired)
    assert rejudge(play.bodies).same


def test_revisions_under_one_name_are_counted_and_end() -> None:
    play = taken_up_again(turns=4, max_revisions=2)
    for number in (1, 2):
        say(play, "", delegate(task("find", "b", fact("feedback", number), revises="find")))
        say(play, "find", deliver())
        again(play)
    found = refusal_of(play, "", delegate(task("find", "b", fact("feedback", 3), revises="find")))
    assert (found.rule, found.numbers["revisions"], found.numbers["max_revisions"]) == (Rule.REVISIONS, 3, 2)
    assert "revision 3 of at most 2 of task 'find'" in found.detail


def test_a_task_may_revise_its_own_name_and_be_revised_again() -> None:
    play = taken_up_again()
    say(play, "", delegate(task("find", "b", fact("feedback", "say where"), revises="find")))
    say(play, "find", deliver())
    plan = say(play, "", delegate(task("find-2", "b", fact("feedback", "say when"), revises="find")))
    assert [planned.revises for planned in is_(plan, TurnDelegated).tasks] == [list(play.ledger.tasks)[1]]
    assert [known.revision for known in play.ledger.tasks.values()] == [0, 1, 2]
    assert rejudge(play.bodies).same


def test_the_same_task_with_another_result_of_the_same_name_is_no_repetition() -> None:
    play = taken_up_again()
    say(play, "", delegate(task("price", "c", uses=("find",))))
    say(play, "price", deliver())
    say(play, "", delegate(task("find", "b")))
    say(play, "find", deliver(fact("found", "anew")))
    is_(say(play, "", delegate(task("price-2", "c", uses=("find",)))), TurnDelegated)
    assert results_of(play, "price-2") == ["anew"]
    say(play, "price-2", deliver())
    is_(say(play, "", delegate(task("price-3", "c", uses=("find",)))), MoveRefused)
