"""Swarms: tasks are offered, claimed and done, and one turn writes."""

import pytest

from mesh.testing import InMemoryGuard, NotDecided
from protocol.wire.commands import (
    Freeze,
    Report,
    Thaw,
)
from protocol.wire.events import (
    FactsWithheld,
    MoveDeferred,
    TaskCancelled,
    TaskOffered,
    TaskOpened,
    TurnDelegated,
    type_of,
)
from protocol.wire.handoff import Budget, Constraints, Rule
from protocol.wire.ids import AgentName
from protocol.wire.moves import Ask, Complete, Delegate, Deliver, Escalate, Move, Task
from tests.certain import is_, known
from tests.unit.protocol.swarms import FLEET, Swarm, again, claimed, fleet_of, refused, task
from tests.unit.protocol.worlds import fact

# --- the whole way ----------------------------------------------------------------------------------


def test_tasks_are_offered_claimed_and_joined_and_the_root_answers() -> None:
    play = Swarm()
    play.delegate(task("one"), task("two"))
    assert [event.to for event in play.offers().values()] == ["any-read", "any-read"]
    assert isinstance(play.claim("one", "b"), TaskOpened)
    assert isinstance(play.claim("two", "c"), TaskOpened)
    play.say(play.worker("one"), Deliver(summary="found", facts=(fact("x", 1),)))
    play.say(play.worker("two"), Deliver(summary="found"))
    assert play.results() == {"one": "delivered", "two": "delivered"}
    assert [result.agent for result in play.guard.holder.work.results] == ["b", "c"]
    play.say(play.guard.holder, Complete(answer="done"))
    assert play.guard.ledger.status == "completed"
    play.same()


def test_an_offer_is_in_the_inbox_of_its_intent_and_opens_no_turn() -> None:
    play = Swarm()
    play.delegate(task("one"))
    offer = play.offers()["one"]
    assert (offer.intent, offer.opens_turn, offer.work) == ("read", False, None)
    assert str(offer.offer.turn) == offer.id
    assert offer.offer.handoff.to_agent == "any-read"
    assert offer.claim_by == offer.at + 30_000_000
    assert set(play.guard.ledger.open) == {play.guard.holder.id}


def test_an_offer_is_the_turn_that_its_claimant_gets_as_far_as_all_may_see_it() -> None:
    prices = {"big": {"input": 1, "output": 1}}
    play = Swarm(around={"prices": prices}, turn_timeout_s=77.0)
    play.delegate(task("first"))
    play.claim("first", "b")
    play.say(play.worker("first"), Deliver(summary="found", facts=(fact("x", 1),)))
    play.delegate(
        Task(name="named", summary="read it", to_agent=AgentName("e")), task("one", uses=("first",))
    )
    event = play.offers()["one"]
    offer = event.offer
    assert str(offer.turn) == event.id, "also where tasks before it in the plan are not offered"
    assert (offer.task, offer.topology, offer.timeout_s) == ("one", "swarm", 77.0)
    assert (offer.round, offer.depth, offer.path) == (0, 0, ("a",))
    assert offer.prices == prices
    assert [result.name for result in offer.results] == ["first"]
    play.claim("one", "b")
    work = play.worker("one").work
    for name in ("task", "topology", "timeout_s", "round", "prices", "results"):
        assert getattr(work, name) == getattr(offer, name), name
    play.same()


def test_an_offer_is_over_at_its_deadline_if_that_comes_before_the_time_to_claim() -> None:
    play = Swarm()
    soon = play.guard.now + 20_000_000
    play.delegate(task("one", constraints=Constraints(deadline=soon)), task("two"))
    assert play.offers()["one"].claim_by == soon
    assert play.offers()["two"].claim_by == play.offers()["two"].at + 30_000_000


def test_a_task_of_a_swarm_that_names_its_agent_is_opened_at_once_and_may_only_read() -> None:
    play = Swarm()
    play.delegate(Task(name="one", summary="read it", to_agent=AgentName("b")))
    opened = is_(play.events[-1], TaskOpened)
    assert opened.to == "b"
    assert opened.work.handoff.constraints.read_only


# --- what an offer shows ----------------------------------------------------------------------------


def test_an_offer_shows_what_each_agent_of_the_intent_may_see_and_the_claimant_gets_its_own() -> None:
    play = Swarm(fact("p", 1, "pii"), fact("v", 2, "vip"), fact("k", 3))
    play.delegate(task("one"))
    offer = play.offers()["one"].offer
    assert {each.key for each in offer.handoff.facts} == {"k", "p", "text"}  # of b and c, b alone may see vip
    assert known(offer.withheld).labels == ("vip",)
    play.claim("one", "b")
    assert {each.key for each in play.worker("one").work.handoff.facts} == {"k", "p", "text", "v"}
    play.same()


def test_what_the_claimant_may_not_see_is_withheld_before_its_turn() -> None:
    play = Swarm(fact("v", 2, "vip"))
    play.delegate(task("one"))
    play.claim("one", "c")
    kept, opened = play.events[-2:]
    assert isinstance(kept, FactsWithheld)
    assert isinstance(opened, TaskOpened)
    assert [each.key for each in kept.facts] == ["v"]
    assert kept.cause == opened.cause
    play.same()


def test_an_offer_shows_nothing_labelled_to_an_intent_of_an_agent_without_clearance() -> None:
    play = Swarm(fact("p", 1, "pii"))
    play.delegate(task("one", "look"))
    assert {each.key for each in play.offers()["one"].offer.handoff.facts} == {"text"}


def test_each_task_is_offered_once_under_the_id_that_claims_name_wherever_it_stands_in_its_plan() -> None:
    play = Swarm()
    play.delegate(task("given", to_agent=AgentName("c")), task("one"), task("two"))
    assert play.worker("given").agent == "c"
    offers = [event for event in play.events if isinstance(event, TaskOffered)]
    assert [event.name for event in offers] == ["one", "two"]
    assert [event.id for event in offers] == [str(event.offer.turn) for event in offers]
    assert isinstance(play.claim("two", "b"), TaskOpened)
    play.same()


# --- frozen, called off, over -----------------------------------------------------------------------


def test_a_claim_waits_for_the_thaw_and_the_time_to_claim_stands() -> None:
    play = Swarm()
    play.delegate(task("one"), task("two"))
    play.guard.wait(20.0)
    play.guard.say(Freeze(id="f"), "op")
    assert isinstance(play.claim("one", "b"), MoveDeferred)
    with pytest.raises(NotDecided, match=r"too late: move\.deferred"):
        play.claim("one", "b")
    play.guard.wait(600.0)
    play.guard.say(Thaw(id="t"), "op")
    assert type_of(play.events[-1]) == "task.opened"
    assert play.worker("one").agent == "b"
    again(play, after_s=9.0)
    play.same()


def test_the_time_to_claim_what_is_offered_again_stands_while_frozen_and_no_longer() -> None:
    play = Swarm(max_retries=0)
    play.delegate(task("one", fallback=True))
    play.claim("one", "b")
    play.breaks(play.worker("one"))
    play.guard.say(Freeze(id="f"), "op")
    play.guard.wait(100.0)
    play.guard.say(Thaw(id="t"), "op")
    again(play)
    play.same()


def test_an_offer_is_called_off_with_its_lead() -> None:
    play = Swarm()
    play.delegate(task("one"), task("two"), join="any")
    play.claim("one", "b")
    play.say(play.worker("one"), Deliver(summary="found"))
    assert refused(play.say(play.guard.holder, Complete(answer="done"))) == Rule.OPEN_TASKS
    play.say(play.guard.holder, Delegate(cancel=("two",)))
    assert any(isinstance(event, TaskCancelled) and event.name == "two" for event in play.events)
    with pytest.raises(NotDecided, match="too late: ended"):
        play.claim("two", "c")
    play.say(play.guard.holder, Complete(answer="done"))
    with pytest.raises(NotDecided, match="too late: completed"):
        play.claim("two", "d")
    play.same()


# --- moves and rules --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "move",
    [Complete(answer="x"), Escalate(summary="x"), Ask(to_agent=AgentName("c1"), question="?"), Delegate()],
)
def test_a_worker_has_none_of_the_roots_moves(move: Move) -> None:
    play = claimed()
    assert refused(play.say(play.worker("one"), move)) == Rule.KNOWN_MOVE
    play.same()


def test_a_worker_that_reports_an_effect_is_refused() -> None:
    play = claimed()
    report = Report(actions=("pay",), effects=("pay",))
    assert refused(play.say(play.worker("one"), Deliver(summary="found"), report)) == Rule.READ_ONLY
    play.same()


def test_an_intent_that_nobody_lists_is_refused_with_the_nearest() -> None:
    play = Swarm()
    verdict = play.delegate(task("one", "reed"))
    assert refused(verdict) == Rule.CAPABLE
    assert "nearest intents: read" in known(verdict.refusal).hint
    play.same()


def test_an_agent_that_takes_everything_and_lists_nothing_reads_no_offers() -> None:
    agents = {name: entry for name, entry in FLEET.agents.items() if name in "ae"}
    play = Swarm(fleet=fleet_of(agents))
    verdict = play.delegate(task("one"))
    assert refused(verdict) == Rule.CAPABLE
    assert known(verdict.refusal).numbers == {"task": "one", "intent": "read", "nearest": []}


def test_offers_reserve_their_budget_and_give_it_back() -> None:
    play = Swarm(budget=Budget(tokens=1_000))
    play.delegate(task("one", constraints=Constraints(budget=Budget(tokens=600))))
    ledger, root = play.guard.ledger, play.guard.holder
    assert ledger.rest(root).tokens == 400
    again(play)
    assert ledger.rest(root).tokens == 400
    play.guard.wait(31.0)
    assert ledger.rest(root).tokens == 1_000


# --- from guard to guard ------------------------------------------------------------------------------


def test_a_log_of_a_swarm_goes_on_with_the_next_guard_at_every_event() -> None:
    play = Swarm(fact("v", 2, "vip"), max_retries=0)
    play.delegate(task("one", fallback=True), task("two"))
    play.claim("one", "c")
    play.post(play.worker("one"), fact("seen", 1))
    play.breaks(play.worker("one"))
    play.claim("one", "b")
    play.say(play.worker("one"), Deliver(summary="found"))
    again(play)
    play.guard.wait(31.0)
    play.say(play.guard.holder, Complete(answer="done"))
    kinds = [type_of(event) for event in play.events]
    for n in range(1, len(play.events)):
        heir = InMemoryGuard.given(play.guard.bodies[:n], FLEET)
        heir.wait(0.0)
        follows = [type_of(event) for event in heir.events[n:]]
        assert follows == kinds[n : n + len(follows)], (n, follows, kinds)
    assert TurnDelegated in map(type, play.events)
