"""What people decide in a request with tasks, where several turns are open at once."""

import pytest

from mesh.errors import Impossible, UsageWrong
from mesh.ops.fork import fork_of
from mesh.ops.queue import turn_in, waiting_in
from mesh.ops.rerun import rerun_of
from protocol.wire.events import TurnDelegated
from protocol.wire.ids import AgentName
from tests.tree_story import TreeStory


def test_each_of_two_questions_is_decided_by_itself() -> None:
    story = TreeStory()
    story.asked()
    first, second = waiting_in(story.guard.events)
    assert [each.summary for each in (first, second)] == ["searcher asks", "checker asks"]
    ledger = story.guard.ledger
    with pytest.raises(UsageWrong, match=f"--event {first.n}.*--event {second.n}"):
        turn_in(ledger, "ask")
    assert [turn_in(ledger, "ask", n=each.n).agent for each in (first, second)] == ["searcher", "checker"]
    with pytest.raises(Impossible, match="what waited since event 1 is decided"):
        turn_in(ledger, "ask", n=1)


def test_a_rerun_begins_with_the_lead_and_not_with_its_newest_task() -> None:
    story = TreeStory().whole()
    again = rerun_of(story.guard.events)
    assert again.agent == "lead"
    assert again.submit.text == "Who won in 1998, and says who?"
    assert {fact.key for fact in again.submit.facts} == set()  # a task's hint is the task's


def test_a_fork_in_the_middle_of_a_tree_is_led_to_the_plan() -> None:
    guard = TreeStory().whole().guard
    planned = next(event.n for event in guard.events if isinstance(event, TurnDelegated))
    assert fork_of(guard.events, guard.bodies, planned - 1).to == "lead"
    for n in range(planned, len(guard.events) - 1):
        with pytest.raises(Impossible, match="fork at the plan: --at 0"):
            fork_of(guard.events, guard.bodies, n)
    fork = fork_of(guard.events, guard.bodies, 0).forked_from
    assert fork is not None
    assert fork.journals[AgentName("fetcher")]
