"""An agent that leaves the fleet while it has work: its round ends at the next look."""

from msgspec.structs import replace

from mesh.replay.rejudge import rejudge
from mesh.testing import InMemoryGuard
from protocol.domain.steps import Settled
from protocol.wire.commands import Freeze, Thaw
from protocol.wire.config import Fleet, Policy
from protocol.wire.events import (
    AnyEvent,
    EscalationRaised,
    RequestCompleted,
    RequestFrozen,
    TaskFailed,
    TaskOpened,
    TurnFailed,
    TurnRetried,
    type_of,
)
from protocol.wire.ids import AgentName
from protocol.wire.moves import Ask, Delegate, Task
from tests.certain import is_
from tests.unit.protocol.swarms import Swarm
from tests.unit.protocol.swarms import task as read
from tests.unit.protocol.worlds import agent, complete

FLEET = Fleet(
    name="desk",
    entry=AgentName("a"),
    agents={name: agent(name) for name in "abc"},
    clients=(AgentName("c1"),),
    operators=(AgentName("op"),),
    human=True,
    revision=7,
)
PATIENT = Policy(turn_timeout_s=9_000.0, unattended_after_s=None)
"""By whose clocks nobody is called off for hours."""


def opened(policy: Policy = PATIENT, fleet: Fleet = FLEET) -> InMemoryGuard:
    guard = InMemoryGuard(fleet, {"default": policy})
    guard.submit("hello")
    return guard


def leaves(guard: InMemoryGuard, *names: str) -> None:
    """Write a fleet without these agents."""
    left = {name: entry for name, entry in guard.fleet.agents.items() if name not in names}
    guard.fleet = replace(guard.fleet, agents=left, revision=guard.fleet.revision + 1)


def types(happened: list[AnyEvent]) -> list[str]:
    return [type_of(event) for event in happened]


def same(guard: InMemoryGuard) -> None:
    """Assert that the log says by itself why each thing happened."""
    again = rejudge(guard.bodies)
    assert again.same, again.differences


def test_its_round_ends_at_the_next_look_and_a_person_gets_the_request() -> None:
    guard = opened()
    leaves(guard, "a")
    failed, raised = guard.wait(0.001)
    error = is_(failed, TurnFailed).error
    assert (error.code, error.permanent) == ("agent_removed", True)
    assert (failed.grounds.removed, failed.grounds.fleet) == (True, 8)  # type: ignore[union-attr]
    assert is_(raised, EscalationRaised).reason == "agent_removed"
    same(guard)


def test_it_ends_though_a_process_still_answers_for_it() -> None:
    guard = InMemoryGuard(FLEET, {"default": PATIENT}, served=lambda name: True)
    guard.submit("hello")
    leaves(guard, "a")
    assert types(guard.wait(0.001))[0] == "turn.failed"


def test_an_agent_that_is_back_before_anybody_looked_has_lost_nothing() -> None:
    guard = opened()
    leaves(guard, "a")
    guard.fleet = replace(FLEET, revision=9)
    assert guard.wait(1.0) == []
    guard.move(complete())
    same(guard)


def test_a_guard_with_an_older_fleet_than_the_requests_removes_nobody() -> None:
    """It has not read yet that the agent joined."""
    guard = opened()
    guard.fleet = replace(FLEET, agents={}, revision=6)
    assert guard.wait(10.0) == []


def test_what_it_proposed_before_it_left_is_decided_first() -> None:
    guard = opened()
    leaves(guard, "a")
    is_(guard.move(complete()), RequestCompleted)
    same(guard)


def test_an_agent_that_leaves_while_the_request_is_frozen_loses_its_round_at_the_thaw() -> None:
    guard = opened()
    guard.say(Freeze(id="f"), "op")
    leaves(guard, "a")
    assert guard.wait(60.0) == []
    is_(guard.events[-1], RequestFrozen)
    guard.say(Thaw(id="t"), "op")
    assert types(guard.events)[-3:] == ["request.thawed", "turn.failed", "escalation.raised"]
    same(guard)


def test_while_the_whole_mesh_is_frozen_nothing_ends_and_after_it_all_does() -> None:
    guard = opened()
    leaves(guard, "a")
    guard.mesh_frozen = True
    assert guard.wait(60.0) == []
    guard.mesh_frozen = False
    assert types(guard.wait(0.001)) == ["turn.failed", "escalation.raised"]


def test_a_turn_that_waits_for_a_reply_or_a_retry_ends_with_its_next_round() -> None:
    asked = opened()
    asked.move(Ask(to_agent=AgentName("c1"), question="which?"))
    leaves(asked, "a")
    assert asked.wait(1.0) == []  # the client may still reply: the next one reads it
    asked.reply("that one")
    assert types(asked.events)[-3:] == ["turn.resumed", "turn.failed", "escalation.raised"]
    same(asked)
    retried = opened(replace(PATIENT, retry_backoff_s=1.0))
    retried.fail()
    leaves(retried, "a")
    happened = retried.wait(10.0)
    is_(happened[0], TurnRetried)
    assert is_(happened[1], TurnFailed).error.code == "agent_removed"
    same(retried)


def test_a_worker_that_leaves_hands_its_task_to_another_and_its_siblings_go_on() -> None:
    guard = opened(replace(PATIENT, topology="supervised"))
    tasks = (
        Task(name="one", summary="1", intent="dig", fallback=True),
        Task(name="two", summary="2", to_agent=AgentName("c")),
    )
    guard.move(Delegate(tasks=tasks))
    assert {turn.agent for turn in guard.ledger.open.values()} == {"a", "b", "c"}
    leaves(guard, "b")
    failed, end, again = guard.wait(1.0)
    assert is_(failed, TurnFailed).error.code == "agent_removed"
    assert guard.ledger.turns[failed.turn].agent == "b"
    assert (is_(end, TaskFailed).name, is_(again, TaskOpened).name) == ("one", "one")
    assert again.to == "c"
    same(guard)


def test_of_two_that_leave_at_once_each_loses_its_own_round() -> None:
    guard = opened(replace(PATIENT, topology="supervised"))
    tasks = (
        Task(name="one", summary="1", to_agent=AgentName("b")),
        Task(name="two", summary="2", to_agent=AgentName("c")),
    )
    guard.move(Delegate(tasks=tasks))
    leaves(guard, "b", "c")
    failed = [event for event in guard.wait(1.0) if isinstance(event, TurnFailed)]
    assert {guard.ledger.turns[event.turn].agent for event in failed} == {"b", "c"}
    same(guard)


def test_a_claimed_read_of_a_reader_that_leaves_is_offered_once_more() -> None:
    play = Swarm()
    play.delegate(read("one", fallback=True))
    first = play.offers()["one"].id
    play.claim("one", "b")
    leaves(play.guard, "b")
    assert [type_of(event) for event in play.guard.wait(1.0)] == [
        "turn.failed",
        "task.failed",
        "task.offered",
    ]
    assert play.offers()["one"].id != first
    is_(play.claim("one", "c"), TaskOpened)
    play.same()


def test_an_offer_whose_only_readers_leave_fails_its_task_when_its_time_is_up() -> None:
    play = Swarm()
    play.delegate(read("one"))
    leaves(play.guard, "b", "c")
    play.guard.wait(31.0)
    assert play.results() == {"one": "failed"}
    play.same()


def test_nothing_is_asked_until_the_time_of_something_has_come() -> None:
    """An agent of the fleet costs no more than before."""
    guard = opened()
    decision = guard._decider.wake(guard.fleet, guard._moment())
    assert is_(decision.next(), Settled).wake_at == guard.ledger.policy.turn_timeout_s * 1e6 + guard.now
