"""Plans and joins: tasks open, each told what it may see, and their lead runs again."""

import pytest

from protocol.wire.events import TaskDelivered, TaskOpened, TurnDelegated
from tests.certain import is_
from tests.unit.protocol.trees import delegate, deliver, informed, kinds, results, say, task, tree, worker
from tests.unit.protocol.worlds import agent, fact, give_up

pytestmark = pytest.mark.usefixtures("judged_again")


# --- opening ------------------------------------------------------------------------------------------


def test_a_plan_is_one_event_and_its_tasks_follow() -> None:
    play = tree(task("one", "b"), task("two", "c"))
    assert kinds(play.events) == ["RequestOpened", "TurnDelegated", "TaskOpened", "TaskOpened"]
    plan = is_(play.events[1], TurnDelegated)
    assert [str(planned.turn) for planned in plan.tasks] == [event.id for event in play.events[2:]]
    assert play.holder.state == "delegated"


def test_a_worker_is_told_nothing_of_its_siblings_or_of_the_plan() -> None:
    play = tree(task("one", "b", fact("x", 1)), task("two", "c", fact("secret-plan", 2)))
    opened = is_(play.events[2], TaskOpened)
    assert b"two" not in play.bodies[2]
    assert b"secret-plan" not in play.bodies[2]
    assert (opened.work.topology, opened.work.task, opened.work.path) == ("supervised", "one", ("a", "b"))
    assert opened.work.handoff.move == "delegate"


def test_a_task_carries_what_its_lead_names_and_all_of_it_where_it_names_nothing() -> None:
    play = informed(fact("x", 1), fact("y", 2))
    say(play, "", delegate(task("all", "b"), task("some", "c", fact("z", 3), carry=("x",))))
    keys = {name: [one.key for one in worker(play, name).work.handoff.facts] for name in ("all", "some")}
    assert keys == {"all": ["text", "x", "y"], "some": ["x", "z"]}


def test_what_a_worker_is_not_cleared_for_is_kept_back_and_travels_on() -> None:
    play = informed(fact("pin", 1, "secret"))
    play.fleet["c"] = agent("c", clearance=("secret",))
    say(play, "", delegate(task("one", "b")))
    assert kinds(play.events)[-2:] == ["FactsWithheld", "TaskOpened"]
    assert b"pin" not in play.bodies[-1]
    say(play, "one", delegate(task("two", "c", carry=())))
    shown = {one.key: one.value for one in worker(play, "two").work.handoff.facts}
    assert shown == {"pin": 1}  # who does not see it cannot leave it out


def test_a_guard_that_dies_after_the_plan_is_followed_by_one_that_opens_the_same_tasks() -> None:
    play = tree(task("one", "b"), task("two", "c"))
    died = tree()
    died.append(play.events[1])
    died.finish()
    assert [event.id for event in died.events] == [event.id for event in play.events]


# --- joining ------------------------------------------------------------------------------------------


def test_all_waits_until_no_task_is_open() -> None:
    play = tree(task("one", "b"), task("two", "c"))
    say(play, "two", deliver(fact("r", 2)))
    assert play.holder.state == "delegated"
    say(play, "one", give_up())
    assert (play.holder.state, play.holder.round) == ("working", 1)
    found = results(play)
    assert list(found) == ["one", "two"]
    assert (found["one"].status, found["two"].status) == ("failed", "delivered")
    assert (found["two"].summary, found["two"].facts) == ("found", (fact("r", 2),))
    assert play.holder.work.past[-1].how == "joined"


def test_any_is_the_first_success_and_a_failure_is_none() -> None:
    play = tree()
    say(play, "", delegate(task("x", "b"), task("y", "c"), task("z", "d"), join="any"))
    say(play, "x", give_up())
    assert play.holder.state == "delegated"
    say(play, "y", deliver())
    assert {name: result.status for name, result in results(play).items()} == {
        "x": "failed",
        "y": "delivered",
    }
    assert play.holder.work.waiting == ("z",)


def test_a_number_is_so_many_successes_or_the_end_of_all() -> None:
    play = tree()
    say(play, "", delegate(task("x", "b"), task("y", "c"), task("z", "d"), join=2))
    say(play, "x", deliver())
    say(play, "y", give_up())
    assert play.holder.state == "delegated"
    say(play, "z", give_up())
    assert len(results(play)) == 3


def test_a_lead_is_told_each_result_once() -> None:
    play = tree()
    say(play, "", delegate(task("x", "b"), task("y", "c"), join="any"))
    say(play, "x", deliver())
    say(play, "", delegate())
    say(play, "y", deliver())
    assert list(results(play)) == ["y"]
    assert (play.holder.work.waiting, play.holder.round) == ((), 2)


def test_what_ends_while_its_lead_works_is_told_at_the_next_join() -> None:
    play = tree()
    say(play, "", delegate(task("x", "b"), task("y", "c"), join="any"))
    say(play, "x", deliver())
    say(play, "y", deliver())
    assert list(results(play)) == ["x"]
    say(play, "", delegate(task("z", "d"), join="any"))
    assert list(results(play)) == ["y"]  # it was a success that the lead was not told yet
    assert play.holder.work.waiting == ("z",)


def test_a_join_has_a_deadline_of_its_own() -> None:
    play = tree()
    say(play, "", delegate(task("x", "b"), within_s=10.0))
    assert kinds(play.wait(9.9)) == []
    assert kinds(play.wait(0.1)) == ["TurnResumed"]
    assert (results(play), play.holder.work.waiting) == ({}, ("x",))
    assert worker(play, "x").state == "working"


def test_results_are_shown_as_far_as_their_reader_is_cleared() -> None:
    play = informed()
    play.fleet["c"] = agent("c", clearance=("pii",))
    say(play, "", delegate(task("x", "b")))
    say(play, "x", deliver(fact("open", 1), fact("ssn", 2, "pii")))
    told = results(play)["x"]
    assert told.facts == (fact("open", 1),)
    assert told.withheld is not None
    assert (told.withheld.labels, told.withheld.facts) == (("pii",), 1)
    say(play, "", delegate(task("y", "c", uses=("x",)), task("z", "d", uses=("x",))))
    assert [len(worker(play, name).work.results[0].facts) for name in "yz"] == [2, 1]


def test_a_label_of_a_key_stays_with_it_in_a_result() -> None:
    play = informed(fact("ssn", 1, "pii"))
    play.fleet["b"] = agent("b", clearance=("pii",))
    say(play, "", delegate(task("x", "b")))
    delivered = is_(say(play, "x", deliver(fact("ssn", 2))), TaskDelivered)
    assert delivered.facts == (fact("ssn", 2, "pii"),)
