"""Whatever happens in a tree, in whatever order: an oracle with accounts of its own finds nothing wrong."""

import itertools
from collections.abc import Collection, Iterator
from typing import Any

import pytest

from protocol.domain import budget, ledger, plans, rules, task_rules, tasks
from protocol.domain.ledger import Ledger
from protocol.domain.turns import TurnState
from protocol.wire.commands import Command, MoveProposed, Usage, id_of
from protocol.wire.errors import BrokenLog
from protocol.wire.event_parts import PlannedTask, TaskResult
from protocol.wire.events import AnyEvent
from protocol.wire.handoff import Budget, Constraints, Rule
from protocol.wire.ids import Cause
from protocol.wire.moves import Delegate
from tests.unit.protocol.oracle.tree import Tree
from tests.unit.protocol.tree_stories import FLEET, STORIES, Teller, stories
from tests.unit.protocol.trees import delegate, deliver, say, task, tree, worker
from tests.unit.protocol.worlds import REQUEST, Play, fact, usage


def test_nothing_is_wrong_with_any_story() -> None:
    assert list(stories()) == []


# --- all plans of a small world -------------------------------------------------------------------------


def worlds() -> dict[str, tuple[Play, str]]:
    rules_ = {"max_open_tasks": 2, "max_revisions": 1, "budget": Budget(tokens=50)}
    fresh = tree(fleet=dict(FLEET), policy=rules_)
    going = tree(fleet=dict(FLEET), policy=rules_)
    say(going, "", delegate(task("done", "b", fact("k", 1)), task("open", "e"), join="any"))
    say(going, "done", deliver(), usage(tokens=5))
    below = tree(task("two", "b"), fleet=dict(FLEET), policy=rules_)
    deepest = tree(task("two", "b"), fleet=dict(FLEET), policy=rules_)
    say(deepest, "two", delegate(task("three", "c")))
    return {
        "fresh": (fresh, ""),
        "going": (going, ""),
        "below": (below, "two"),
        "deepest": (deepest, "three"),
    }


def delegations() -> Iterator[Delegate]:
    tos = ("a", "b", "c", "nobody", None)
    for to, intent, linked, asked, name in itertools.product(
        tos, (None, "x", "z"), ("", "done", "open"), (None, 10, 51), ("new", "done")
    ):
        limits = Constraints(budget=None if asked is None else Budget(tokens=asked))
        for said in ({"uses": (linked,) if linked else ()}, {"revises": linked}):
            one = task(name, to, fact("k", 1), intent=intent, constraints=limits, **said)
            yield delegate(one)
            yield delegate(one, task("other", "e"), join="any")


def verdict(play: Play, who: str, move: Delegate) -> tuple[MoveProposed, AnyEvent]:
    """Return the proposal of a move and the verdict on it, which is not appended."""
    turn = play.holder if who == "" else worker(play, who)
    said = MoveProposed(turn=turn.id, round=turn.round, move=move)
    command = Command(REQUEST, turn.agent, said, Cause(id_of(REQUEST, said, turn.agent)), "agent")
    return said, play.first_event(command)


@pytest.mark.parametrize("world", ["fresh", "going", "below", "deepest"])
def test_every_plan_of_a_small_world_is_judged_as_the_oracle_does(world: str) -> None:
    play, who = worlds()[world]
    oracle = Tree()
    for event in play.events:
        oracle.take(event)
    ruled = set()
    for move in delegations():
        said, event = verdict(play, who, move)
        assert oracle.complaints(said, event) == []
        ruled.add(event.refusal.rule if event.refusal is not None else None)
    assert (None in ruled) == (world != "deepest")
    assert len(ruled) >= 2


# --- it finds what is broken ------------------------------------------------------------------------------


def never(_: object) -> None:
    return None


@pytest.mark.parametrize(
    "rule",
    [
        Rule.LEVELS,
        Rule.KNOWN_TASK,
        Rule.FAN_OUT,
        Rule.CAPABLE,
        Rule.CYCLE,
        Rule.ASKS,
        Rule.OPEN_TASKS,
        Rule.BUDGET,
        Rule.READ_ONLY,
        Rule.REVISIONS,
    ],
)
def test_it_finds_a_rule_that_is_gone(rule: Rule, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(rules.RULES, rule, never)
    assert next(broken(), "") != ""


def broken() -> Iterator[str]:
    """Yield what is wrong; a log that no guard could have written is wrong, too."""
    for seed in range(STORIES):
        try:
            yield from Teller(seed).tell()
        except (BrokenLog, AssertionError) as error:
            yield repr(error)


def by_the_newest_name(
    ledger: Ledger, plan: PlannedTask, clearance: Collection[str]
) -> tuple[TaskResult, ...]:
    """Return what a task was given to use before names were resolved at the plan."""
    lead = ledger.turns[ledger.tasks[plan.turn].lead]
    return tuple(tasks.result_of(lead.known_tasks[name], clearance) for name in plan.task.uses)


def counted_anew(planned: PlannedTask, known: object) -> tuple[int, str]:
    return (1, planned.task.revises) if planned.revises else (0, "")


BROKEN: list[Any] = [
    pytest.param(plans, "to_cancel", lambda ledger: [], id="nothing-is-cancelled"),
    pytest.param(ledger.Ledger, "_charge_unaccounted", lambda state, turn, began: None, id="silence-is-free"),
    pytest.param(tasks.TaskState, "reserved", property(lambda self: Usage()), id="nothing-is-reserved"),
    pytest.param(ledger, "next_worker", lambda *_: None, id="nothing-falls-back"),
    pytest.param(
        plans,
        "is_joined",
        lambda known, join: not any(one.is_open for one in known.values()),
        id="any-waits-for-all",
    ),
    pytest.param(
        plans,
        "unreported",
        lambda known: tuple(one for one in known if not one.is_open),
        id="told-twice",
    ),
    pytest.param(budget, "grant", lambda asked, rest: rest, id="what-a-person-grants-is-ignored"),
    pytest.param(plans, "given", by_the_newest_name, id="a-name-means-the-newest-task"),
    pytest.param(task_rules, "revision_of", counted_anew, id="each-revision-is-the-first"),
    pytest.param(TurnState, "known_tasks", property(lambda turn: turn.tasks), id="again-without-results"),
]


@pytest.mark.parametrize(("where", "name", "wrong"), BROKEN)
def test_it_finds_an_account_or_a_consequence_that_is_wrong(
    where: Any, name: str, wrong: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(where, name, wrong)
    assert next(broken(), "") != ""
