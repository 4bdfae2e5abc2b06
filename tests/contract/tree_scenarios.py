"""Scenarios of trees of tasks: what is said to a guard, and what has to come of it."""

from typing import Any

import msgspec

from protocol.wire.commands import Cancel, Failure, Freeze, MoveProposed, ReportFailure, Resolve, Thaw
from protocol.wire.config import Policy
from protocol.wire.handoff import Budget, Constraints
from protocol.wire.ids import AgentName, TurnId
from protocol.wire.moves import Complete, Delegate, Deliver, Fail, Task
from tests.contract.scenarios import BACK, DONE, OPEN_BY_HAND, Scenario, fact, to
from tests.contract.script import Script

POLICIES = {
    policy.name: policy
    for policy in (
        Policy(name="tree", topology="supervised"),
        Policy(name="frail-tree", topology="supervised", max_retries=0),
        Policy(
            name="low-tree",
            topology="supervised",
            max_levels=2,
            max_open_tasks=2,
            max_revisions=0,
            max_refusals=20,
        ),
        Policy(
            name="timed-tree",
            topology="supervised",
            turn_timeout_s=60.0,
            unattended_after_s=120.0,
            max_retries=0,
        ),
    )
}
DELIVERED = Deliver(summary="here")


def task(name: str, agent: str | None = None, **rest: Any) -> Task:
    named = None if agent is None else AgentName(agent)
    return Task(name=name, summary=name, to_agent=named, **rest)


def plan(*tasks: Task, **rest: Any) -> Delegate:
    return Delegate(tasks=tasks, **rest)


def joined(script: Script) -> None:
    script.submit(policy="tree", facts=(fact("ssn", "1"), fact("plan", "gold")))
    script.of("", plan(task("left", "b"), task("right", "c")))
    script.of("left", Deliver(summary="here", facts=(fact("found", 1), fact("secret", 2, "pii"))))
    script.of("right", DELIVERED)
    script.of("", Complete(answer="both"))


def three_levels(script: Script) -> None:
    script.submit(policy="tree", constraints=Constraints(budget=Budget(tokens=1000)))
    script.of("", plan(task("left", "b"), task("right", "d", intent="bill")), tokens=100)
    script.of("left", plan(task("deep", "c")), tokens=50)
    script.of("deep", DELIVERED, tokens=60)
    script.of("left", Deliver(summary="here"), tokens=90)
    script.of("right", DELIVERED, tokens=10)
    script.of("", plan(task("more", "b", revises="left", facts=(fact("wrong", 1),), uses=("right",))))
    script.of("more", DELIVERED)
    script.of("", DONE, tokens=200)


def chosen(script: Script) -> None:
    """Whoever takes it: b's breaker is open, so that c gets it; who takes `bill` is served or not alike."""
    script.submit(policy="tree")
    script.of("", plan(task("one", intent="look"), task("two", intent="bill")))
    script.of("one", DELIVERED)


def refused_plans(script: Script) -> None:
    script.submit(policy="low-tree")
    script.of("", plan(task("one", "nobody")))
    script.of("", plan(task("one", "a")))
    script.of("", plan(task("one", "b"), task("one", "c")))
    script.of("", plan(*(task(f"t{number}", "b") for number in range(3))))
    script.of("", plan(*(task(f"t{number}", "b") for number in range(2_000))))
    script.of("", plan(task("one", "b", uses=("two",))))
    script.of("", plan(task("one", "b", constraints=Constraints(max_resolution_time_s=1e6))))
    script.of("", plan())
    script.of("", to("b"))
    script.of("", DELIVERED)
    script.of("", plan(task("one", "b"), task("two", "c"), join="any"))
    script.of("one", plan(task("deep", "d")))
    script.of("one", BACK)
    script.of("one", DONE)
    script.of("one", DELIVERED)
    script.of("", DONE)
    script.of("", plan(task("again", "b", revises="one", facts=(fact("wrong", 1),))))
    script.of("", Complete(answer="enough", cancel_open=True))


def failed_tasks(script: Script) -> None:
    script.submit(policy="frail-tree")
    script.of("", plan(task("one", "b"), task("two", "c"), task("three", intent="bill", fallback=True)))
    script.breaks("one")
    script.of("two", Fail(reason="no"))
    script.of("three", Fail(reason="not I"))
    script.of("three", DELIVERED)
    script.of("", DONE)


def failed_deep_down(script: Script) -> None:
    """What fails three levels down arrives at the root with its origin."""
    script.submit(policy="frail-tree")
    script.of("", plan(task("one", "b")))
    script.of("one", plan(task("deep", "c")))
    script.breaks("deep", permanent=True)
    script.of("one", Fail(reason="deep failed"))
    script.of("", Fail(reason="all failed"))


def called_off(script: Script) -> None:
    script.submit(policy="tree")
    script.of("", plan(task("one", "c"), task("two", "b"), join="any"))
    script.of("two", plan(task("deep", "d", intent="bill")))
    script.of("one", DELIVERED)
    script.of("", plan(cancel=("two",)))
    script.of("", DONE)


def cancelled_tree(script: Script) -> None:
    script.submit(policy="tree")
    script.of("", plan(task("one", "c"), task("two", "b")))
    script.of("two", plan(task("deep", "d", intent="bill")))
    deep = script.working("deep")
    script.control(Cancel, sender="c1")
    script.say("d", MoveProposed(turn=deep.id, round=0, move=DELIVERED))


def frozen_tree(script: Script) -> None:
    script.submit(policy="tree")
    script.of("", plan(task("one", "b"), task("two", "c")))
    script.control(Freeze)
    script.of("one", DELIVERED)
    script.of("two", DELIVERED)
    script.control(Thaw)
    script.of("", DONE)


def out_of_time(script: Script) -> None:
    """A join closes by its own deadline; a task by its own; the request by its own."""
    script.submit(policy="tree", constraints=Constraints(max_resolution_time_s=300.0))
    script.of("", plan(task("one", "b"), task("two", "c"), within_s=60.0))
    script.wait(61)
    script.of("", plan(task("three", "d", constraints=Constraints(max_resolution_time_s=60.0)), join=1))
    script.wait(61)
    script.wait(200)


def nobody_there(script: Script) -> None:
    script.submit(policy="timed-tree")
    script.of("", plan(task("one", "b")))
    script.wait(121)
    script.of("", DONE)


def by_a_person(script: Script) -> None:
    script.submit(policy="frail-tree")
    script.of("", plan(task("one", "b")))
    script.of("one", DELIVERED)
    script.breaks("")
    script.control(Resolve, turn=script.guard.holder.id, to=AgentName("c"))
    script.of("", plan(task("one", "b")))
    script.of("one", DELIVERED)
    script.of("", DONE)


def somebody_elses(script: Script) -> None:
    """Turns that are another's, or nobody's; tasks of another request; what comes too late."""
    script.submit(policy="tree")
    script.of("", plan(task("one", "b"), task("two", "c")))
    one = script.working("one")
    script.of("one", DELIVERED, by="c")
    script.of("one", DELIVERED, by="a")
    script.of("one", DELIVERED, by="c2")
    script.say("c", MoveProposed(turn=TurnId("forged"), round=0, move=DELIVERED))
    script.say("b", MoveProposed(turn=one.id, round=7, move=DELIVERED))
    script.say("b", MoveProposed(turn=TurnId(""), round=0, move=plan(task("more", "d"))))
    script.say("c", ReportFailure(turn=one.id, round=0, error=Failure(code="bug")))
    script.of("one", DELIVERED)
    script.say("b", MoveProposed(turn=one.id, round=0, move=DELIVERED))
    script.of("two", msgspec.structs.replace(DELIVERED, summary="late for nobody"))
    script.of("", DONE)


def outlined(script: Script) -> None:
    """Moves that their queue does not take: of each its outline is refused, and less is asked for."""
    script.submit(policy="tree")
    script.of("", plan(), oversized=1_310_720)
    script.of("", plan(task("one", "b")))
    script.of("one", Deliver(summary="a long result"), oversized=400_123)
    script.of("one", Complete(answer=None), oversized=400_123)
    script.of("one", DELIVERED)
    script.of("", DONE)


TREES = (
    Scenario(
        outlined,
        "request.opened move.refused:size turn.delegated task.opened move.refused:size "
        "move.refused:known_move task.delivered turn.resumed request.completed",
    ),
    Scenario(
        joined,
        "request.opened turn.delegated task.opened task.opened task.delivered task.delivered "
        "turn.resumed request.completed",
    ),
    Scenario(
        three_levels,
        "request.opened turn.delegated task.opened task.opened turn.delegated task.opened "
        "task.delivered turn.resumed task.delivered task.delivered turn.resumed turn.delegated "
        "task.opened task.delivered turn.resumed request.completed",
    ),
    Scenario(
        chosen,
        "request.opened turn.delegated task.opened task.opened task.delivered",
        breakers={"b": OPEN_BY_HAND},
    ),
    Scenario(
        refused_plans,
        "request.opened move.refused:known_agent move.refused:cycle move.refused:known_task "
        "move.refused:fan_out move.refused:fan_out move.refused:known_task "
        "move.refused:constraints move.refused:known_task move.refused:known_move "
        "move.refused:known_move turn.delegated task.opened task.opened move.refused:levels "
        "move.refused:known_move move.refused:known_move task.delivered turn.resumed "
        "move.refused:open_tasks move.refused:revisions request.completed",
    ),
    Scenario(
        failed_tasks,
        "request.opened turn.delegated task.opened task.opened task.opened turn.failed:bug "
        "task.failed:bug task.failed:failed task.failed:failed task.opened task.delivered "
        "turn.resumed request.completed",
        served=True,
    ),
    Scenario(
        failed_deep_down,
        "request.opened turn.delegated task.opened turn.delegated task.opened turn.failed:bug "
        "task.failed:bug turn.resumed task.failed:failed turn.resumed request.failed:failed",
    ),
    Scenario(
        called_off,
        "request.opened turn.delegated task.opened task.opened turn.delegated task.opened "
        "task.delivered turn.resumed turn.delegated task.cancelled task.cancelled turn.resumed "
        "request.completed",
    ),
    Scenario(
        cancelled_tree,
        "request.opened turn.delegated task.opened task.opened turn.delegated task.opened request.cancelled",
    ),
    Scenario(
        frozen_tree,
        "request.opened turn.delegated task.opened task.opened request.frozen move.deferred "
        "move.deferred request.thawed task.delivered task.delivered turn.resumed "
        "request.completed",
    ),
    Scenario(
        out_of_time,
        "request.opened turn.delegated task.opened task.opened turn.resumed turn.delegated "
        "task.opened turn.failed:deadline task.failed:deadline request.expired",
    ),
    Scenario(
        nobody_there,
        "request.opened turn.delegated task.opened turn.failed:unattended task.failed:unattended "
        "turn.resumed request.completed",
    ),
    Scenario(
        by_a_person,
        "request.opened turn.delegated task.opened task.delivered turn.resumed turn.failed:bug "
        "escalation.raised escalation.resolved turn.delegated task.opened task.delivered "
        "turn.resumed request.completed",
    ),
    Scenario(
        somebody_elses,
        "request.opened turn.delegated task.opened task.opened task.delivered task.delivered "
        "turn.resumed request.completed",
        rejected="not_the_holder not_the_holder not_the_holder unknown_turn unknown_round"
        " protocol.malformed not_the_holder",
    ),
)
