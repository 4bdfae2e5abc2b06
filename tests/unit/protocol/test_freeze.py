"""No clock of a request runs while it is frozen, or the whole mesh is; only deadlines do."""

import itertools
from collections.abc import Callable

import pytest

from mesh.replay.rejudge import rejudge
from mesh.testing import InMemoryGuard
from protocol.wire import events
from protocol.wire.commands import Command, FactsPost, Freeze, Thaw
from protocol.wire.config import Policy
from protocol.wire.events import AnyEvent
from protocol.wire.freeze import Span, merged, postponed
from protocol.wire.ids import AgentName, control_cause
from protocol.wire.moves import Delegate, Task
from tests.certain import is_
from tests.unit.protocol.swarms import FLEET
from tests.unit.protocol.worlds import REQUEST, Play, ask, fact

POLICIES = {
    policy.name: policy
    for policy in (
        Policy(name="default", turn_timeout_s=30.0, retry_backoff_s=30.0, retry_backoff_max_s=30.0),
        Policy(name="sla", escalation_sla_s=30.0, max_retries=0),
        Policy(name="swarm", topology="swarm", claim_within_s=30.0),
    )
}
SECOND_US = 1_000_000
LONGEST_S = 31.0
"""A second longer than anything here may take."""
Frozen = Callable[[InMemoryGuard, float], None]


def the_request(guard: InMemoryGuard, seconds: float) -> None:
    guard.say(Freeze(id=guard._id()), guard._operator())
    guard.wait(seconds)
    guard.say(Thaw(id=guard._id()), guard._operator())


def the_mesh(guard: InMemoryGuard, seconds: float) -> None:
    guard.mesh_frozen = True
    guard.wait(seconds)
    guard.mesh_frozen = False


def both(guard: InMemoryGuard, seconds: float) -> None:
    """Freeze the request, and for the second half of that time, and longer, the whole mesh."""
    guard.say(Freeze(id=guard._id()), guard._operator())
    guard.wait(seconds / 2)
    guard.mesh_frozen = True
    guard.say(Thaw(id=guard._id()), guard._operator())
    guard.wait(seconds / 2)
    guard.mesh_frozen = False


def round_(guard: InMemoryGuard) -> type[AnyEvent]:
    guard.submit("hello")
    return events.TurnFailed


def retry(guard: InMemoryGuard) -> type[AnyEvent]:
    guard.submit("hello")
    guard.fail()
    return events.TurnRetried


def question(guard: InMemoryGuard) -> type[AnyEvent]:
    guard.submit("hello")
    guard.move(ask("c1", expires_s=30))
    return events.TurnResumed


def approval(guard: InMemoryGuard) -> type[AnyEvent]:
    guard.submit("hello")
    guard.move(ask("human", expires_s=30, action="pay", digest="0" * 64))
    return events.TurnResumed


def person(guard: InMemoryGuard) -> type[AnyEvent]:
    guard.submit("hello", policy="sla")
    guard.fail()
    return events.EscalationRaised


def plan(*tasks: Task, within_s: float | None = None) -> Delegate:
    return Delegate(tasks=tasks, within_s=within_s)


def offer(guard: InMemoryGuard) -> type[AnyEvent]:
    guard.submit("hello", policy="swarm")
    guard.move(plan(Task(name="one", summary="one", intent="read")))
    return events.TaskOffered


def offer_again(guard: InMemoryGuard) -> type[AnyEvent]:
    again = offer(guard)
    assert type(guard.wait(LONGEST_S)[-1]) is again
    return events.TaskFailed


def join(guard: InMemoryGuard) -> type[AnyEvent]:
    guard.submit("hello", policy="swarm")
    guard.move(plan(Task(name="one", summary="one", intent="read"), within_s=25.0))
    return events.TurnResumed


WAITS = (round_, retry, question, approval, person, offer, offer_again, join)


@pytest.mark.parametrize("freeze", [the_request, the_mesh, both], ids=lambda each: each.__name__)
@pytest.mark.parametrize("begin", WAITS, ids=lambda each: each.__name__)
def test_what_waits_stands_while_it_is_frozen_and_goes_on_after_the_thaw(
    begin: Callable[[InMemoryGuard], type[AnyEvent]], freeze: Frozen
) -> None:
    guard = InMemoryGuard(FLEET, POLICIES)
    comes = begin(guard)
    assert guard.wait(5.0) == []
    for _ in range(2):
        before = len(guard.events)
        freeze(guard, 100.0)
        assert comes not in map(type, guard.events[before:])
        assert guard.wait(1.0) == []
    due = guard.wait(LONGEST_S)
    assert type(due[0]) is comes
    assert rejudge(guard.bodies).same
    taken_up = InMemoryGuard.given(guard.bodies, FLEET)
    assert taken_up.ledger.noted == guard.ledger.noted


def test_a_freeze_of_the_mesh_is_noted_once_and_only_what_the_request_saw_of_it() -> None:
    guard = InMemoryGuard(FLEET, POLICIES)
    the_mesh(guard, 10.0)
    guard.submit("hello")
    the_mesh(guard, 10.0)
    guard.fail()
    guard.wait(LONGEST_S)
    assert [len(event.stood) for event in guard.events] == [0, 1, 0]
    (span,) = guard.events[1].stood
    assert span.until - span.since == 10_000_000


def test_deadlines_go_on_while_anything_is_frozen() -> None:
    for freeze in (the_request, the_mesh):
        guard = InMemoryGuard(FLEET, {"default": Policy(deadline_s=60.0)})
        guard.submit("hello")
        guard.move(ask("c1", expires_s=50))
        freeze(guard, 55.0)
        guard.wait(4.0)
        assert not isinstance(guard.events[-1], events.RequestExpired)
        guard.wait(2.0)
        assert isinstance(guard.events[-1], events.RequestExpired)


def test_posts_wait_for_the_thaw_of_their_request_and_come_before_the_move_after_them() -> None:
    guard = InMemoryGuard(FLEET, POLICIES)
    guard.submit("hello", policy="swarm")
    turn = guard.holder
    guard.say(Freeze(id="f"), guard._operator())
    for number in range(2):
        facts = (fact(f"k{number}", number),)
        deferred = guard.propose(FactsPost(turn=turn.id, round=0, post=number, facts=facts))
        assert isinstance(deferred, events.MoveDeferred)
    assert guard.ledger.board == {}
    guard.move(ask("c1"))
    guard.say(Thaw(id="t"), guard._operator())
    kinds = [type(event) for event in guard.events if not isinstance(event, events.FactsWithheld)][-3:]
    assert kinds == [events.FactsPosted, events.FactsPosted, events.TurnSuspended]
    assert len(guard.ledger.board) == 2
    assert guard.ledger.deferred == []
    assert rejudge(guard.bodies).same


def test_time_that_stood_counts_once_however_freezes_overlap() -> None:
    """Against counting each second."""
    edges = range(0, 7, 2)
    spans = [Span(since=since, until=until) for since in edges for until in edges if since <= until]
    for one, other in itertools.product(spans, spans):
        stood = {t for span in (one, other) for t in range(span.since, span.until)}
        for begin, lasts in itertools.product(range(8), range(5)):
            at, left = begin, lasts
            while left:
                left -= at not in stood
                at += 1
            assert postponed(begin, begin + lasts, merged((one, other))) == at


def test_a_freeze_counts_from_when_its_order_was_stored_however_late_it_is_read() -> None:
    play = Play()
    play.submit()
    play.move(ask(expires_s=50))
    stored = play.now + 10 * SECOND_US
    play.now += 100 * SECOND_US  # no guard ran
    order = Freeze(id="freeze-1")
    cause = control_cause(REQUEST, "op1", order.id)
    frozen = play.process(Command(REQUEST, AgentName("op1"), order, cause, "operator", stored=stored))
    assert is_(frozen, events.RequestFrozen).since == stored
    play.now += 30 * SECOND_US
    assert type(play.control(Thaw)) is events.RequestThawed
    assert play.wait(39) == []  # 10 of its 50 seconds had run when the order came
    (resumed,) = play.wait(2)
    assert is_(resumed, events.TurnResumed).work.past[-1].how == "expired"
    assert rejudge(play.bodies).same
