"""The tree of a request: tasks under their leads, what each came to, and what it cost with all below it."""

import pytest

from protocol.domain.ledger import fold
from protocol.views.spending import BY, spending, summed
from protocol.views.timeline import timeline
from protocol.views.tree import TreeNode, flat
from tests.tree_story import TreeStory


@pytest.fixture
def story() -> TreeStory:
    return TreeStory()


def nodes(story: TreeStory) -> dict[str, TreeNode]:
    """Return every node by the name of its task; the root's is empty."""
    return {node.name: node for node in flat(timeline(story.guard.events).tree)}


def test_a_request_that_delegates_nothing_has_no_tree(story: TreeStory) -> None:
    assert timeline(story.guard.events).tree == ()
    story.refused()
    assert timeline(story.guard.events).tree == ()


def test_each_task_stands_under_its_lead(story: TreeStory) -> None:
    told = timeline(story.whole().guard.events)
    (root,) = told.tree
    assert [task.name for task in root.tasks] == ["find", "check", "write", "again"]
    assert [task.name for task in root.tasks[0].tasks] == ["fetch"]
    assert [(node.name, node.level, node.agent) for node in flat(told.tree)][:3] == [
        ("", 1, "lead"),
        ("find", 2, "searcher"),
        ("fetch", 3, "fetcher"),
    ]


def test_an_open_task_stands_as_its_turn_does_and_a_lead_says_what_it_waits_for(story: TreeStory) -> None:
    story.searching()
    told = nodes(story)
    assert {name: node.status for name, node in told.items()} == {
        "": "delegated",
        "find": "delegated",
        "fetch": "working",
        "check": "delivered",
    }
    assert (told[""].join, told["find"].join, told["fetch"].join) == ("all", "all", None)
    assert told["check"].result == "1998 it was"
    assert [node.name for node in told.values() if node.is_open] == ["", "find", "fetch"]


def test_an_error_is_told_at_each_level_with_its_origin(story: TreeStory) -> None:
    story.searching()
    story.failed()
    told = nodes(story)
    assert [(level.code, level.agent, level.attempts) for level in told["find"].errors] == [
        ("failed", "searcher", 2),
        ("site_down", "fetcher", 1),
    ]
    assert told["find"].errors[1].lineage == ("lead", "searcher", "fetcher")
    assert told["find"].errors[1:] == told["fetch"].errors
    assert told["fetch"].errors[0].message == "the site answers 503"


def test_an_end_of_the_request_ends_what_is_open(story: TreeStory) -> None:
    told = nodes(story.whole())
    assert (told["again"].status, told["again"].why, told["again"].revises) == (
        "cancelled",
        "request_ended",
        "find",
    )
    assert told["again"].ended == story.guard.events[-1].at
    assert not any(node.is_open for node in told.values())


def test_a_node_costs_what_all_below_it_cost(story: TreeStory) -> None:
    told = timeline(story.whole().guard.events)
    by_name = {node.name: node for node in flat(told.tree)}
    assert {name: (node.own.model_calls, node.cost.model_calls) for name, node in by_name.items()} == {
        "": (5, 12),
        "find": (2, 2),
        "fetch": (0, 0),
        "check": (1, 1),
        "write": (4, 4),
        "again": (0, 0),
    }
    assert by_name[""].cost == told.cost
    for node in by_name.values():
        below = sum(task.cost.nano_dollars for task in node.tasks)
        assert node.cost.nano_dollars == node.own.nano_dollars + below


def test_a_task_lasts_from_its_plan_to_its_end(story: TreeStory) -> None:
    told = nodes(story.whole())
    assert {name: ((node.ended or 0) - node.began) / 1e6 for name, node in told.items() if name} == {
        "find": 4.0,
        "fetch": 1.0,
        "check": 1.0,
        "write": 1.0,
        "again": 2.0,
    }


def test_entries_of_tasks_go_between_a_lead_and_its_workers(story: TreeStory) -> None:
    told = timeline(story.whole().guard.events)
    passed = [
        (move.move, move.from_, move.to, move.detail)
        for move in told.moves
        if move.move in ("task", "deliver", "task_failed", "join")
    ]
    assert passed[:6] == [
        ("task", "lead", "searcher", "find"),
        ("task", "lead", "checker", "check"),
        ("deliver", "checker", "lead", "check"),
        ("task", "searcher", "fetcher", "fetch"),
        ("task_failed", "fetcher", "searcher", "fetch: site_down"),
        ("join", "guard", "searcher", None),
    ]


def test_an_open_request_waits_for_its_workers_and_not_for_its_leads(story: TreeStory) -> None:
    story.searching()
    (waits,) = timeline(story.guard.events).waiting
    assert (waits.for_, waits.why) == ("fetcher", "its task fetch of searcher is not done")


def test_costs_are_summed_up_by_lead_and_by_worker(story: TreeStory) -> None:
    lines = spending(story.whole().guard.events)
    calls = {
        kind: {name: usage.model_calls for name, usage in summed(lines, BY[kind]).items()}
        for kind in ("lead", "worker", "agent")
    }
    assert calls == {
        "lead": {"lead": 12, "searcher": 2},
        "worker": {"writer": 4, "searcher": 2, "checker": 1},
        "agent": {"lead": 5, "writer": 4, "searcher": 2, "checker": 1},
    }
    cut_off = 38  # granted to a task of the searcher's that the answer ended: it did not say what it used
    assert sum(calls["agent"].values()) + cut_off == fold(story.guard.events).spent.model_calls


def test_a_task_shows_the_facts_that_its_lead_did_not_carry(story: TreeStory) -> None:
    told = timeline(story.whole().guard.events)
    facts = {move.detail: [fact.key for fact in move.facts] for move in told.moves if move.move == "task"}
    assert facts == {"find": [], "check": [], "fetch": [], "write": [], "again": ["hint"]}
