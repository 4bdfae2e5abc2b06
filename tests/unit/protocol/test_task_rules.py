"""The rules on tasks: what each refuses, with its numbers, and what is just allowed."""

import msgspec
import pytest

from mesh.replay.rejudge import rejudge
from protocol.wire.handoff import Artifact, Rule
from protocol.wire.moves import Complete, Delegate, Escalate, Move, Task
from tests.unit.protocol.happened import refused, rule_of
from tests.unit.protocol.trees import (
    admitted,
    delegate,
    deliver,
    opened_tasks,
    refusal_of,
    results,
    say,
    task,
    tree,
    worker,
)
from tests.unit.protocol.worlds import Play, agent, ask, complete, fact, hand_back, opened, transfer

# --- known_move -------------------------------------------------------------------------------------


@pytest.mark.parametrize("move", [transfer("b"), hand_back()], ids=lambda move: type(move).__name__)
def test_peers_moves_are_refused_with_the_topology_that_has_them(move: Move) -> None:
    refusal = refusal_of(tree(), "", move)
    assert refusal.rule == Rule.KNOWN_MOVE
    assert "takes a submit with a policy whose topology is handoff" in refusal.hint


@pytest.mark.parametrize("move", [delegate(task()), deliver()], ids=lambda move: type(move).__name__)
def test_a_trees_moves_are_refused_among_peers(move: Move) -> None:
    refusal = refused(opened().move(move))
    assert refusal.rule == Rule.KNOWN_MOVE
    assert "takes a submit with a policy whose topology is supervised or swarm" in refusal.hint


@pytest.mark.parametrize("move", [complete(), Escalate(summary="help")], ids=lambda move: type(move).__name__)
def test_a_task_neither_completes_nor_escalates(move: Move) -> None:
    refusal = refusal_of(tree(task()), "one", move)
    assert (refusal.rule, refusal.hint) == (Rule.KNOWN_MOVE, "one of: delegate, deliver, ask, fail")
    assert "no move of a task" in refusal.detail


def test_a_root_turn_does_not_deliver() -> None:
    refusal = refusal_of(tree(), "", deliver())
    assert (refusal.rule, refusal.hint) == (
        Rule.KNOWN_MOVE,
        "one of: delegate, ask, escalate, complete, fail",
    )


def test_a_task_may_ask() -> None:
    play = tree(task())
    say(play, "one", ask())
    assert worker(play, "one").state == "suspended"


# --- known_agent, levels ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("to", "said"),
    [
        ("nobody", "'nobody' is not in the fleet"),
        ("human", "`human` is reached by"),
        ("c", "a may not give work to c"),
        ("d", "d does not take the intent 'sum'"),
    ],
)
def test_a_task_for_an_agent_that_cannot_have_it_is_refused_with_the_tasks_name(to: str, said: str) -> None:
    fleet = {
        "a": agent("a", to=("b", "d")),
        "b": agent("b"),
        "c": agent("c"),
        "d": agent("d", intents=("x",)),
    }
    play = tree(fleet=fleet)
    refusal = refusal_of(play, "", delegate(task("fine"), task("odd", to, intent="sum")))
    assert (refusal.rule, refusal.numbers) == (Rule.KNOWN_AGENT, {"task": "odd", "target": to})
    assert said in refusal.detail
    assert opened_tasks(play) == []


def test_a_lead_that_the_fleet_lost_delegates_nothing() -> None:
    play = tree()
    del play.fleet["a"]
    assert refusal_of(play, "", delegate(task())).rule == Rule.KNOWN_AGENT


def test_a_task_lies_no_deeper_than_the_policy_allows() -> None:
    play = tree(task("two", "b"))
    say(play, "two", delegate(task("three", "c")))
    refusal = refusal_of(play, "three", delegate(task("four", "d")))
    assert refusal.rule == Rule.LEVELS
    assert refusal.numbers == {"level": 4, "max_levels": 3, "lineage": ["a", "b", "c"]}
    assert worker(play, "three").work.path == ("a", "b", "c")


# --- known_task, fan_out ------------------------------------------------------------------------------


def one_done_one_open() -> Play:
    play = tree()
    say(play, "", delegate(task("done", "b"), task("open", "c"), join="any"))
    say(play, "done", deliver())
    return play


@pytest.mark.parametrize(
    ("move", "name"),
    [
        (delegate(task("done", "d")), "done"),
        (delegate(task("new", "d"), task("new", "e")), "new"),
        (delegate(task("new", "d", uses=("no",))), "new"),
        (delegate(task("new", "d", uses=("open",))), "new"),
        (delegate(task("new", "d", revises="open")), "new"),
        (delegate(task("new", "d", revises="no")), "new"),
        (delegate(task("new", "d", uses=("other",)), task("other", "e")), "new"),
        (delegate(cancel=("no",)), "no"),
    ],
)
def test_names_of_tasks_are_known_and_unique(move: Delegate, name: str) -> None:
    refusal = refusal_of(one_done_one_open(), "", move)
    assert (refusal.rule, refusal.numbers) == (Rule.KNOWN_TASK, {"task": name})


def test_nobody_waits_for_nothing() -> None:
    assert refusal_of(tree(), "", delegate()).rule == Rule.KNOWN_TASK
    play = one_done_one_open()
    admitted(play, delegate(cancel=("done", "open")))  # one that ended meanwhile is called off by nothing
    assert {name: result.status for name, result in results(play).items()} == {"open": "cancelled"}
    assert refusal_of(play, "", delegate()).rule == Rule.KNOWN_TASK


def test_open_tasks_of_one_turn_are_counted_without_those_that_are_called_off() -> None:
    play = tree(policy={"max_open_tasks": 2})
    refusal = refusal_of(play, "", delegate(task("x", "b"), task("y", "c"), task("z", "d")))
    assert (refusal.rule, refusal.numbers) == (Rule.FAN_OUT, {"open": 3, "max_open_tasks": 2})
    admitted(play, delegate(task("x", "b"), task("y", "c"), join="any"))
    say(play, "x", deliver())
    assert rule_of(say(play, "", delegate(task("v", "d"), task("w", "e")))) == Rule.FAN_OUT
    admitted(play, delegate(task("v", "d"), task("w", "e"), cancel=("y",)))


def test_all_tasks_of_a_request_are_counted_also_those_of_workers() -> None:
    play = tree(task("two", "b"), policy={"max_tasks": 3})
    say(play, "two", delegate(task("x", "c"), task("y", "d")))
    say(play, "x", deliver())
    say(play, "y", deliver())
    refusal = refusal_of(play, "two", delegate(task("z", "e")))
    assert (refusal.rule, refusal.numbers) == (Rule.FAN_OUT, {"tasks": 4, "max_tasks": 3})


# --- capable ------------------------------------------------------------------------------------------

SKILLED = {
    "a": agent("a"),
    "b": agent("b", intents=("search", "sum")),
    "c": agent("c", intents=("search",)),
    "d": agent("d", intents=("check",)),
}
SKILLED["a"] = agent("a", intents=("plan",))


def test_an_intent_alone_finds_the_first_in_the_fleets_order() -> None:
    play = tree(fleet=dict(SKILLED))
    event = admitted(play, delegate(task("one", None, intent="search")))
    assert event.tasks[0].why == "the first in the fleet that takes 'search'"
    assert opened_tasks(play) == [("one", "b")]
    assert [one.entry.name for one in event.grounds.candidates] == ["b", "c"]


def test_who_is_not_served_fails_often_or_is_in_the_lineage_is_passed_over() -> None:
    fleet = {name: agent(name, intents=("x",)) for name in "abcde"}
    play = tree(fleet=fleet, unserved=("b",), breakers={"c": "open"})
    event = admitted(play, delegate(task("one", None, intent="x")))
    assert event.tasks[0].agent == "d"
    assert event.tasks[0].why == (
        "the first in the fleet that takes 'x', after a (in the lineage), b (nobody serves it), "
        "c (its breaker is open)"
    )


def test_where_nobody_is_served_the_first_waits_for_it() -> None:
    play = tree(fleet=dict(SKILLED), unserved=("b", "c"))
    assert admitted(play, delegate(task("one", None, intent="search"))).tasks[0].agent == "b"


def test_an_intent_that_nobody_takes_is_refused_with_the_nearest() -> None:
    play = tree(fleet=dict(SKILLED))
    refusal = refusal_of(play, "", delegate(task("one", None, intent="serch")))
    assert refusal.rule == Rule.CAPABLE
    assert refusal.numbers == {"task": "one", "intent": "serch", "nearest": ["search"]}
    assert refusal.detail == "no capable agent for task 'one': none takes 'serch'"


@pytest.mark.parametrize(
    ("intent", "nearest"),
    [
        pytest.param("summary", ["sums"], id="half-of-its-letters"),
        pytest.param("do", ["do-6", "do-5", "do-4"], id="three-at-most"),
        pytest.param("zzz", ["do-1", "do-2", "do-3", "do-4", "do-5"], id="the-first-five-if-none-is-near"),
    ],
)
def test_the_nearest_intents_are_named_or_the_first_of_all(intent: str, nearest: list[str]) -> None:
    taken = ("sums", *(f"do-{number}" for number in range(1, 7)))
    play = tree(fleet={"a": agent("a", intents=("plan",)), "b": agent("b", intents=taken)})
    refusal = refusal_of(play, "", delegate(task("one", None, intent=intent)))
    assert (refusal.rule, refusal.numbers["nearest"]) == (Rule.CAPABLE, nearest)


@pytest.mark.parametrize("intents", [("plan",), None], ids=["it-lists-it", "it-takes-every-one"])
def test_an_intent_that_only_the_lineage_takes_is_refused(intents: tuple[str, ...] | None) -> None:
    play = tree(fleet={**SKILLED, "a": agent("a", intents=intents)})
    refusal = refusal_of(play, "", delegate(task("one", None, intent="plan")))
    assert (refusal.rule, refusal.numbers["lineage"]) == (Rule.CAPABLE, ["a"])


@pytest.mark.parametrize(
    ("odd", "what"),
    [(task("one", None), "a task without an agent"), (task("one", "b", fallback=True), "a fallback")],
)
def test_a_task_that_the_guard_is_to_place_needs_an_intent(odd: Task, what: str) -> None:
    refusal = refusal_of(tree(), "", delegate(odd))
    assert (refusal.rule, refusal.hint) == (Rule.CAPABLE, "name the intent")
    assert refusal.detail == f"task 'one': {what} needs an intent"


# --- cycle, revisions ---------------------------------------------------------------------------------


def test_no_task_goes_to_an_agent_of_its_lineage() -> None:
    play = tree(task("two", "b"))
    refusal = refusal_of(play, "two", delegate(task("up", "a")))
    assert refusal.rule == Rule.CYCLE
    assert refusal.numbers == {"task": "up", "lineage": ["a", "b"], "agent": "a"}
    assert rule_of(say(play, "two", delegate(task("self", "b")))) == Rule.CYCLE


def test_the_same_task_is_not_given_again_without_anything_new() -> None:
    play = tree()
    admitted(play, delegate(task("one", "b", fact("doc", 1))))
    say(play, "one", deliver())
    again = task("two", "b", fact("doc", 1))
    refusal = refusal_of(play, "", delegate(msgspec.structs.replace(again, summary="in other words")))
    assert (refusal.rule, refusal.numbers) == (Rule.CYCLE, {"task": "two", "same": "one", "agent": "b"})
    admitted(play, delegate(task("two", "b", fact("doc", 1), fact("feedback", "too short"), revises="one")))


def test_siblings_of_one_plan_may_differ_by_what_they_are_asked_alone() -> None:
    play = tree()
    admitted(play, delegate(task("x", "b"), task("y", "b")))
    other = tree()
    same = [msgspec.structs.replace(task(name, "b"), summary="the same") for name in "xy"]
    assert refusal_of(other, "", delegate(*same)).numbers == {"task": "y", "same": "x", "agent": "b"}


@pytest.mark.parametrize(
    "new",
    [
        task("new", "c", fact("doc", 1)),
        task("new", "b", fact("doc", 2)),
        task("new", "b", fact("doc", 1), intent="other"),
        task("new", "b", fact("doc", 1), uses=("one",)),
        task("new", "b", fact("doc", 1), artifacts=(Artifact(name="n", uri="u"),)),
    ],
)
def test_what_differs_in_agent_intent_facts_artifacts_or_results_is_another_task(new: object) -> None:
    play = tree()
    admitted(play, delegate(task("one", "b", fact("doc", 1))))
    say(play, "one", deliver())
    admitted(play, delegate(new))  # type: ignore[arg-type]


def test_a_task_is_revised_three_times_at_most() -> None:
    play, last = tree(), ""
    for number in range(4):
        admitted(play, delegate(task(f"t{number}", "b", fact("feedback", number), revises=last)))
        say(play, f"t{number}", deliver())
        last = f"t{number}"
    refusal = refusal_of(play, "", delegate(task("t4", "b", fact("feedback", 4), revises=last)))
    assert (refusal.rule, refusal.numbers) == (
        Rule.REVISIONS,
        {"task": "t4", "revisions": 4, "max_revisions": 3},
    )
    assert "of task 't0'" in refusal.detail


# --- open_tasks ---------------------------------------------------------------------------------------


def test_an_answer_waits_for_open_tasks_unless_it_calls_them_off() -> None:
    play = one_done_one_open()
    refusal = refusal_of(play, "", complete())
    assert (refusal.rule, refusal.numbers) == (Rule.OPEN_TASKS, {"open": ["open"]})
    say(play, "", Complete(answer="enough", cancel_open=True))
    assert play.ledger.status == "completed"
    assert rejudge(play.bodies).same


def test_a_lead_does_not_wait_in_vain_for_ever() -> None:
    play = tree(policy={"max_asks": 2})
    say(play, "", delegate(task("x", "b"), within_s=1.0))
    play.wait(1)
    admitted(play, delegate(within_s=1.0))
    play.wait(1)
    refusal = refusal_of(play, "", delegate(within_s=1.0))
    assert (refusal.rule, refusal.numbers) == (Rule.ASKS, {"waits": 3, "max_asks": 2})
    admitted(play, delegate())
    say(play, "x", deliver())
    assert results(play)["x"].status == "delivered"


def test_a_result_waits_for_the_workers_own_tasks() -> None:
    play = tree(task("two", "b"))
    say(play, "two", delegate(task("x", "c"), task("y", "d"), join="any"))
    say(play, "x", deliver())
    assert refusal_of(play, "two", deliver()).numbers == {"open": ["y"]}
    say(play, "two", deliver(cancel_open=True))
    assert results(play)["two"].status == "delivered"
