"""Swarms: tasks are offered, claimed and done, and one turn writes."""

from typing import Any

import pytest
from msgspec.structs import replace

from mesh.testing import InMemoryGuard, NotDecided
from protocol.domain.admission import Late, admission
from protocol.wire.commands import (
    Command,
    FactsPost,
    Freeze,
    MoveProposed,
    OfferClaimed,
    Report,
    Thaw,
    id_of,
)
from protocol.wire.config import BreakerEntry, Fleet
from protocol.wire.events import (
    FactsWithheld,
    MoveDeferred,
    TaskCancelled,
    TaskFailed,
    TaskOffered,
    TaskOpened,
    TurnDelegated,
    TurnFailed,
    TurnResumed,
    type_of,
)
from protocol.wire.handoff import Budget, Constraints, Rule
from protocol.wire.ids import NOBODY, AgentName, Cause, TurnId
from protocol.wire.moves import Ask, Complete, Delegate, Deliver, Escalate, Fail, Move, Task
from tests.certain import is_, known
from tests.unit.protocol.swarms import FLEET, Swarm, again, claimed, refused, task
from tests.unit.protocol.worlds import agent, fact

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


# --- claims -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("by", ["d", "e", "a"], ids=["another-intent", "lists-none", "in-the-lineage"])
def test_only_a_capable_agent_may_claim(by: str) -> None:
    play = Swarm()
    play.delegate(task("one"))
    verdict = play.claim("one", by)
    assert refused(verdict) == Rule.CAPABLE
    assert (verdict.to, str(verdict.turn), verdict.round, verdict.work) == (
        NOBODY,
        play.offers()["one"].id,
        0,
        None,
    )
    assert isinstance(play.claim("one", "b"), TaskOpened)
    play.same()


def test_a_lead_that_lists_the_intent_itself_cannot_claim_its_own_task() -> None:
    agents = {**FLEET.agents, "a": agent("a", intents=("read",))}
    play = Swarm(fleet=_fleet(agents))
    play.delegate(task("one"))
    assert refused(play.claim("one", "a")) == Rule.CAPABLE
    assert isinstance(play.claim("one", "b"), TaskOpened)
    play.same()


def test_an_agent_that_the_lead_may_not_give_work_to_cannot_claim() -> None:
    agents = {**FLEET.agents, "a": agent("a", to=("c",))}
    play = Swarm(fleet=_fleet(agents))
    play.delegate(task("one"))
    assert refused(play.claim("one", "b")) == Rule.CAPABLE
    assert isinstance(play.claim("one", "c"), TaskOpened)


def test_a_claim_of_an_agent_that_has_left_the_fleet_is_refused_and_judged_again() -> None:
    play = Swarm()
    play.delegate(task("one"))
    play.guard.fleet = _fleet({name: one for name, one in FLEET.agents.items() if name != "b"})
    said = known(play.claim("one", "b").refusal).numbers
    assert (said["agent"], said["intent"]) == ("b", "read")
    play.same()


def _fleet(agents: dict[str, Any]) -> Fleet:
    return Fleet(name="swarm", entry=AgentName("a"), agents=agents, clients=FLEET.clients, human=True)


def test_a_claim_of_a_taken_offer_is_late_and_no_event() -> None:
    play = Swarm()
    play.delegate(task("one"), task("two"))
    play.claim("one", "b")
    before = len(play.events)
    for by in "cd":  # one that may have it, and one that may not
        with pytest.raises(NotDecided, match="too late: ended"):
            play.claim("one", by)
    assert len(play.events) == before
    play.same()


def test_of_two_claims_that_waited_for_a_thaw_the_first_gets_the_task_and_the_other_is_late() -> None:
    play = Swarm()
    play.delegate(task("one"))
    play.guard.say(Freeze(id="f"), "op")
    for by in "cb":
        assert isinstance(play.claim("one", by), MoveDeferred)
    play.guard.say(Thaw(id="t"), "op")
    assert play.worker("one").agent == "c"
    with pytest.raises(NotDecided, match="too late: ended"):
        play.claim("one", "b")
    play.same()


def test_an_agent_that_has_a_task_of_the_set_may_claim_another_once_it_is_done() -> None:
    """There may be more tasks than agents: meanwhile the claim is no event, and the offer is others'."""
    play = Swarm()
    play.delegate(task("one"), task("two"), task("three"))
    play.claim("one", "b")
    before = len(play.events)
    with pytest.raises(NotDecided, match="too late: busy"):
        play.claim("two", "b")
    assert len(play.events) == before
    request, claim = (
        str(play.guard.ledger.request),
        OfferClaimed(turn=play.offers()["two"].offer.turn, round=0),
    )
    command = Command(request, AgentName("b"), claim, Cause(id_of(request, claim, "b")), "agent")
    assert admission(play.guard.ledger, command) == Late(claim.turn, 0, "busy")
    assert isinstance(play.claim("two", "c"), TaskOpened)
    play.say(play.worker("one"), Deliver(summary="found"))
    assert isinstance(play.claim("three", "b"), TaskOpened)
    play.same()


def test_a_claim_of_an_agent_whose_breaker_is_open_is_refused() -> None:
    play = Swarm(around={"breakers": {"b": BreakerEntry(state="open")}})
    play.delegate(task("one"))
    assert refused(play.claim("one", "b")) == Rule.AGENT_AVAILABLE
    play.same()


def test_a_claim_that_is_repeated_is_late_and_says_what_came_of_it() -> None:
    play = claimed()
    with pytest.raises(NotDecided, match=r"too late: task\.opened"):
        play.claim("one", "b")
    play.say(play.worker("one"), Deliver(summary="found"))
    with pytest.raises(NotDecided, match="too late: ended"):
        play.claim("one", "c")


def test_a_claim_for_nothing_is_rejected() -> None:
    play = Swarm()
    play.delegate(task("one"))
    with pytest.raises(NotDecided, match="unknown_turn"):
        play.guard.claim("nothing", "b")
    offer = play.offers()["one"].id
    with pytest.raises(NotDecided, match="unknown_round"):
        play.guard.propose(OfferClaimed(turn=TurnId(offer), round=1), "b")
    with pytest.raises(NotDecided, match="not_the_holder"):  # nobody's move is an offer's
        play.guard.propose(MoveProposed(turn=play.guard.holder.id, round=0, move=Fail(reason="x")), "b")


@pytest.mark.parametrize("what", [OfferClaimed(turn=TurnId("t"), round=0), "post"])
def test_there_are_no_claims_and_no_board_under_another_topology(what: Any) -> None:
    guard = InMemoryGuard(FLEET)
    guard.submit("go")
    if what == "post":
        what = FactsPost(turn=guard.holder.id, round=0, post=0, facts=(fact(),))
    with pytest.raises(NotDecided, match="known_move: topology 'handoff' has no claims and no board"):
        guard.propose(what, "a")


def test_an_offer_that_nobody_claims_fails_the_task_and_not_the_request() -> None:
    play = Swarm()
    play.delegate(task("one"))
    again(play)
    assert play.guard.wait(29.0) == []
    failed, resumed = play.guard.wait(2.0)
    assert isinstance(failed, TaskFailed)
    assert (failed.error.code, failed.error.agent, failed.error.attempts) == ("unclaimed", "any-read", 0)
    assert isinstance(resumed, TurnResumed)
    assert play.results() == {"one": "failed"}
    with pytest.raises(NotDecided, match="too late: ended"):
        play.claim("one", "b")
    play.same()


@pytest.mark.parametrize("away_s", [31.0, 3_000.0])
def test_the_time_to_claim_stands_while_nobody_could_claim(away_s: float) -> None:
    serving = {"a", "b", "c"}
    play = Swarm(around={"served": serving.__contains__})
    play.delegate(task("one"), task("two"))
    play.guard.wait(20.0)
    serving -= {"b", "c"}
    assert play.guard.wait(away_s) == []
    serving.add("c")
    assert play.guard.wait(29.0) == []
    assert isinstance(play.claim("one", "c"), TaskOpened)
    (offered,) = play.guard.wait(2.0)
    assert (type_of(offered), offered.to) == ("task.offered", "c")
    failed = is_(play.guard.wait(30.0)[0], TaskFailed)
    assert (failed.error.code, failed.name) == ("unclaimed", "two")
    play.same()


def test_an_offer_that_nobody_could_claim_for_as_long_as_a_round_would_wait_is_given_up() -> None:
    serving = {"a", "b", "c"}
    play = Swarm(around={"served": serving.__contains__}, unattended_after_s=600.0)
    play.delegate(task("one"))
    play.guard.wait(20.0)
    serving -= {"b", "c"}
    assert play.guard.wait(599.0) == []
    failed = is_(play.guard.wait(2.0)[0], TaskFailed)
    assert (failed.error.code, failed.error.attempts) == ("unattended", 0)
    assert "unattended_after_s" in failed.error.message
    play.same()


def test_a_tasks_own_deadline_does_not_wait_for_somebody_to_come() -> None:
    play = Swarm(around={"served": {"a"}.__contains__})
    play.delegate(task("one", constraints=Constraints(deadline=play.guard.now + 60_000_000)))
    failed = is_(play.guard.wait(61.0)[0], TaskFailed)
    assert failed.error.code == "unclaimed"
    play.same()


def test_nobody_is_waited_for_whom_the_fleet_has_not() -> None:
    play = Swarm(around={"served": {"a"}.__contains__})
    play.delegate(task("one"))
    readers = {name: entry for name, entry in play.guard.fleet.agents.items() if name == "a"}
    play.guard.fleet = replace(play.guard.fleet, agents=readers, revision=9)
    failed = is_(play.guard.wait(31.0)[0], TaskFailed)
    assert (failed.error.code, failed.grounds and failed.grounds.removed) == ("unclaimed", True)
    play.same()


def test_a_claimed_task_that_fails_is_offered_once_more_if_it_falls_back_and_not_to_the_same() -> None:
    play = Swarm(max_retries=0)
    play.delegate(task("one", fallback=True))
    first = play.offers()["one"].id
    play.claim("one", "b")
    play.breaks(play.worker("one"))
    assert play.offers()["one"].id != first
    verdict = play.claim("one", "b")
    assert refused(verdict) == Rule.CLAIMED
    assert known(verdict.refusal).numbers == {"task": "one", "agent": "b"}
    with pytest.raises(NotDecided, match="too late: ended"):
        play.guard.claim(first, "c")
    assert isinstance(play.claim("one", "c"), TaskOpened)
    play.breaks(play.worker("one"))
    assert play.results() == {"one": "failed"}
    assert play.guard.holder.work.results[0].agents == ("b", "c")
    play.same()


@pytest.mark.parametrize("unattended_after_s", [None, 3_600.0])
def test_a_claimed_task_whose_agent_died_for_good_is_offered_once_more_after_the_time_to_claim(
    unattended_after_s: float | None,
) -> None:
    serving = {"a", "b", "c"}
    play = Swarm(around={"served": serving.__contains__}, unattended_after_s=unattended_after_s)
    play.delegate(task("one", fallback=True), task("two"))
    first = play.offers()
    play.claim("one", "b")
    play.claim("two", "c")
    serving -= {"b", "c"}
    play.guard.wait(29.0)
    assert play.offers() == first
    play.guard.wait(1.0)
    failed = is_(play.events[-3], TurnFailed)
    assert (failed.error.code, failed.error.permanent) == ("unattended", True)
    assert "claim_within_s" in failed.error.message
    assert play.offers()["one"].id != first["one"].id
    assert play.worker("two").state == "working"  # it has no fallback: it waits for its agent
    serving.add("c")
    play.say(play.worker("two"), Deliver(summary="late"))
    assert isinstance(play.claim("one", "c"), TaskOpened)
    play.say(play.worker("one"), Deliver(summary="found"))
    assert play.results() == {"one": "delivered", "two": "delivered"}
    play.same()


def test_a_claimed_task_stays_with_an_agent_that_is_served_and_slow_or_soon_back() -> None:
    serving = {"a", "b", "c"}
    play = Swarm(around={"served": serving.__contains__}, turn_timeout_s=3_600.0)
    play.delegate(task("one", fallback=True))
    play.claim("one", "b")
    play.guard.wait(600.0)
    serving.remove("b")
    play.guard.wait(29.0)
    serving.add("b")
    play.guard.wait(29.0)
    serving.remove("b")
    play.guard.wait(29.0)  # in one span, as for every turn
    assert play.worker("one").agent == "b"
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
    play = Swarm(fleet=_fleet(agents))
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
