"""Claims of offers: who may claim, who is late, and what becomes of an offer without a claimant."""

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
    Thaw,
    id_of,
)
from protocol.wire.config import BreakerEntry
from protocol.wire.events import (
    MoveDeferred,
    TaskFailed,
    TaskOpened,
    TurnFailed,
    TurnResumed,
    type_of,
)
from protocol.wire.handoff import Constraints, Rule
from protocol.wire.ids import NOBODY, AgentName, Cause, TurnId
from protocol.wire.moves import Deliver, Fail
from tests.certain import is_, known
from tests.unit.protocol.swarms import FLEET, Swarm, again, claimed, fleet_of, refused, task
from tests.unit.protocol.worlds import agent, fact

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
    play = Swarm(fleet=fleet_of(agents))
    play.delegate(task("one"))
    assert refused(play.claim("one", "a")) == Rule.CAPABLE
    assert isinstance(play.claim("one", "b"), TaskOpened)
    play.same()


def test_an_agent_that_the_lead_may_not_give_work_to_cannot_claim() -> None:
    agents = {**FLEET.agents, "a": agent("a", to=("c",))}
    play = Swarm(fleet=fleet_of(agents))
    play.delegate(task("one"))
    assert refused(play.claim("one", "b")) == Rule.CAPABLE
    assert isinstance(play.claim("one", "c"), TaskOpened)


def test_a_claim_of_an_agent_that_has_left_the_fleet_is_refused_and_judged_again() -> None:
    play = Swarm()
    play.delegate(task("one"))
    play.guard.fleet = fleet_of({name: one for name, one in FLEET.agents.items() if name != "b"})
    said = known(play.claim("one", "b").refusal).numbers
    assert (said["agent"], said["intent"]) == ("b", "read")
    play.same()


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
