"""Swarms: tasks are offered, claimed and done; turns post to the board; one turn writes."""

from typing import Any

import pytest

from mesh.replay.rejudge import rejudge
from mesh.testing import InMemoryGuard, NotDecided
from protocol.domain.swarm import MAX_BOARD_BYTES
from protocol.domain.turns import TurnState
from protocol.wire import codec
from protocol.wire.assignment import Posted
from protocol.wire.commands import (
    Ask,
    Complete,
    Delegate,
    Deliver,
    Escalate,
    FactsPost,
    Fail,
    Failure,
    Freeze,
    Move,
    MoveProposed,
    OfferClaimed,
    Report,
    ReportFailure,
    Task,
    Thaw,
)
from protocol.wire.config import BreakerEntry, Fleet, Policy
from protocol.wire.errors import Malformed
from protocol.wire.events import (
    AnyEvent,
    FactsPosted,
    FactsWithheld,
    MoveDeferred,
    MoveRefused,
    TaskCancelled,
    TaskDelivered,
    TaskFailed,
    TaskOffered,
    TaskOpened,
    TurnDelegated,
    TurnResumed,
    type_of,
)
from protocol.wire.handoff import Budget, Constraints, Fact, Rule
from protocol.wire.ids import NOBODY, AgentName, TurnId
from tests.unit.protocol.worlds import agent, fact

FLEET = Fleet(
    name="swarm",
    entry=AgentName("a"),
    agents={
        "a": agent("a", clearance=("pii", "vip")),
        "b": agent("b", intents=("read",), clearance=("pii", "vip")),
        "c": agent("c", intents=("read", "look"), clearance=("pii",)),
        "d": agent("d", intents=("look",)),
        "e": agent("e"),
    },
    clients=(AgentName("c1"),),
    operators=(AgentName("op"),),
    human=True,
    swarms=True,
)


class Swarm:
    """One request, whose root is `a`."""

    def __init__(
        self, *facts: Fact, fleet: Fleet = FLEET, around: dict[str, Any] | None = None, **policy: Any
    ) -> None:
        rules = {
            "name": "swarm",
            "topology": "swarm",
            "claim_within_s": 30.0,
            "retry_backoff_s": 0.0,
            **policy,
        }
        self.guard = InMemoryGuard(fleet, {"swarm": Policy(**rules)}, **(around or {}))
        self.guard.submit("go", policy="swarm", facts=facts)

    @property
    def events(self) -> list[AnyEvent]:
        return self.guard.events

    def delegate(self, *tasks: Task, **rest: Any) -> AnyEvent:
        return self.say(self.guard.holder, Delegate(tasks=tasks, **rest))

    def say(self, turn: TurnState, move: Move, report: Report | None = None) -> AnyEvent:
        proposal = MoveProposed(turn=turn.id, round=turn.round, move=move, report=report or Report())
        return self.guard.propose(proposal)

    def breaks(self, turn: TurnState) -> AnyEvent:
        error = Failure(code="boom", message="it broke", permanent=True)
        return self.guard.propose(ReportFailure(turn=turn.id, round=turn.round, error=error))

    def post(self, turn: TurnState, *facts: Fact, n: int = 0) -> AnyEvent:
        return self.guard.propose(FactsPost(turn=turn.id, round=turn.round, post=n, facts=facts))

    def offers(self) -> dict[str, TaskOffered]:
        """Return the newest offer of each task."""
        return {event.name: event for event in self.events if isinstance(event, TaskOffered)}

    def claim(self, name: str, by: str) -> AnyEvent:
        return self.guard.claim(self.offers()[name].id, by)

    def worker(self, name: str) -> TurnState:
        turns = self.guard.ledger.open.values()
        return next(turn for turn in turns if turn.task is not None and turn.task.name == name)

    def results(self) -> dict[str, str]:
        return {result.name: result.status for result in self.guard.holder.work.results}

    def same(self) -> None:
        """Assert that the log is judged again to the letter, and that no id stands twice."""
        again = rejudge(self.guard.bodies)
        assert again.same, again
        ids = [event.id for event in self.events]
        assert len(set(ids)) == len(ids)


def task(name: str = "one", intent: str | None = "read", *facts: Fact, **rest: Any) -> Task:
    return Task(name=name, summary=f"read {name}", intent=intent, facts=facts, **rest)


def refused(event: AnyEvent) -> Rule:
    assert isinstance(event, MoveRefused), event
    return event.refusal.rule


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


def test_a_task_of_a_swarm_that_names_its_agent_is_opened_at_once_and_may_only_read() -> None:
    play = Swarm()
    play.delegate(Task(name="one", summary="read it", to_agent=AgentName("b")))
    opened = play.events[-1]
    assert isinstance(opened, TaskOpened)
    assert opened.to == "b"
    assert opened.work.handoff.constraints.read_only


# --- what an offer shows ----------------------------------------------------------------------------


def test_an_offer_shows_what_each_agent_of_the_intent_may_see_and_the_claimant_gets_its_own() -> None:
    play = Swarm(fact("p", 1, "pii"), fact("v", 2, "vip"), fact("k", 3))
    play.delegate(task("one"))
    offer = play.offers()["one"].offer
    assert {each.key for each in offer.handoff.facts} == {
        "k",
        "p",
        "text",
    }  # of b and c, b alone may see vip
    assert offer.withheld is not None
    assert offer.withheld.labels == ("vip",)
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


def test_an_agent_that_the_lead_may_not_give_work_to_cannot_claim() -> None:
    agents = {**FLEET.agents, "a": agent("a", to=("c",))}
    play = Swarm(fleet=_fleet(agents))
    play.delegate(task("one"))
    assert refused(play.claim("one", "b")) == Rule.CAPABLE
    assert isinstance(play.claim("one", "c"), TaskOpened)


def _fleet(agents: dict[str, Any]) -> Fleet:
    return Fleet(name="swarm", entry=AgentName("a"), agents=agents, clients=FLEET.clients, human=True)


def test_a_taken_offer_is_refused() -> None:
    play = Swarm()
    play.delegate(task("one"), task("two"))
    play.claim("one", "b")
    taken = play.claim("one", "c")
    assert refused(taken) == Rule.CLAIMED
    assert taken.refusal is not None
    assert taken.refusal.numbers == {"task": "one", "taken_by": "b", "agent": "c"}
    with pytest.raises(NotDecided, match="too late: decided"):
        play.claim("one", "c")  # the same claim is decided once
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
    play = Swarm()
    play.delegate(task("one"))
    play.claim("one", "b")
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
    assert play.guard.wait(29.0) == []
    failed, resumed = play.guard.wait(2.0)
    assert isinstance(failed, TaskFailed)
    assert (failed.error.code, failed.error.agent, failed.error.attempts) == ("unclaimed", "any-read", 0)
    assert isinstance(resumed, TurnResumed)
    assert play.results() == {"one": "failed"}
    with pytest.raises(NotDecided, match="too late: ended"):
        play.claim("one", "b")
    play.same()


def test_a_claimed_task_that_fails_is_offered_once_more_if_it_falls_back_and_not_to_the_same() -> None:
    play = Swarm(max_retries=0)
    play.delegate(task("one", fallback=True))
    first = play.offers()["one"].id
    play.claim("one", "b")
    play.breaks(play.worker("one"))
    assert play.offers()["one"].id != first
    assert refused(play.claim("one", "b")) == Rule.CLAIMED
    with pytest.raises(NotDecided, match="too late: ended"):
        play.guard.claim(first, "c")
    assert isinstance(play.claim("one", "c"), TaskOpened)
    play.breaks(play.worker("one"))
    assert play.results() == {"one": "failed"}
    assert play.guard.holder.work.results[0].agents == ("b", "c")
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
    assert play.guard.wait(9.0) == []
    assert type_of(play.guard.wait(2.0)[0]) == "task.failed"
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
    play = Swarm()
    play.delegate(task("one"))
    play.claim("one", "b")
    assert refused(play.say(play.worker("one"), move)) == Rule.KNOWN_MOVE
    play.same()


def test_a_worker_that_reports_an_effect_is_refused() -> None:
    play = Swarm()
    play.delegate(task("one"))
    play.claim("one", "b")
    report = Report(actions=("pay",), effects=("pay",))
    assert refused(play.say(play.worker("one"), Deliver(summary="found"), report)) == Rule.READ_ONLY
    play.same()


def test_an_intent_that_nobody_lists_is_refused_with_the_nearest() -> None:
    play = Swarm()
    verdict = play.delegate(task("one", "reed"))
    assert refused(verdict) == Rule.CAPABLE
    assert verdict.refusal is not None
    assert "nearest intents: read" in verdict.refusal.hint
    play.same()


def test_an_agent_that_takes_everything_and_lists_nothing_reads_no_offers() -> None:
    agents = {name: entry for name, entry in FLEET.agents.items() if name in "ae"}
    play = Swarm(fleet=_fleet(agents))
    assert refused(play.delegate(task("one"))) == Rule.CAPABLE


def test_offers_reserve_their_budget_and_give_it_back() -> None:
    play = Swarm(budget=Budget(tokens=1_000))
    play.delegate(task("one", constraints=Constraints(budget=Budget(tokens=600))))
    ledger, root = play.guard.ledger, play.guard.holder
    assert ledger.rest(root).tokens == 400
    play.guard.wait(31.0)
    assert ledger.rest(root).tokens == 1_000


# --- the board --------------------------------------------------------------------------------------


def test_what_is_posted_is_shown_to_every_turn_that_opens_or_resumes_as_far_as_it_is_cleared() -> None:
    play = Swarm()
    play.delegate(task("one"), task("two"))
    play.claim("one", "b")
    posted = play.post(play.worker("one"), fact("seen", 1), fact("who", "Ada", "vip"))
    assert isinstance(posted, FactsPosted)
    assert posted.to == NOBODY
    assert play.worker("one").state == "working"
    play.claim("two", "c")
    assert play.worker("two").work.board == (Posted(by=AgentName("b"), fact=fact("seen", 1)),)
    play.post(play.worker("one"), fact("seen", 2), n=1)
    play.post(play.worker("two"), fact("seen", 9))
    play.say(play.worker("one"), Deliver(summary="found"))
    play.say(play.worker("two"), Deliver(summary="found"))
    shown = [(each.by, each.fact.key, each.fact.value) for each in play.guard.holder.work.board]
    assert shown == [("b", "who", "Ada"), ("b", "seen", 2), ("c", "seen", 9)]
    play.same()


def test_a_retried_round_is_shown_the_board_too() -> None:
    play = Swarm()
    play.delegate(task("one"))
    play.claim("one", "b")
    play.post(play.worker("one"), fact("seen", 1))
    turn = play.worker("one")
    error = Failure(code="again", message="once more")
    play.guard.propose(ReportFailure(turn=turn.id, round=turn.round, error=error))
    play.guard.wait(1.0)
    assert [each.fact.value for each in play.worker("one").work.board] == [1]
    play.same()


def test_an_offer_shows_of_the_board_what_each_may_see() -> None:
    play = Swarm()
    play.delegate(task("one"), join="any")
    play.claim("one", "b")
    play.post(play.worker("one"), fact("who", "Ada", "vip"), fact("seen", 1, "pii"))
    play.say(play.worker("one"), Deliver(summary="found"))
    play.delegate(task("two", "read", fact("round", 2)))
    assert [each.fact.key for each in play.offers()["two"].offer.board] == ["seen"]
    play.same()


def test_labels_stick_to_what_is_posted_and_the_fleets_labels_are_put_on() -> None:
    agents = dict(FLEET.agents)
    fleet = Fleet(
        name="swarm", entry=AgentName("a"), agents=agents, clients=FLEET.clients, labels={"iban": ("vip",)}
    )
    play = Swarm(fact("ssn", 1, "pii"), fleet=fleet)
    play.delegate(task("one"))
    play.claim("one", "b")
    posted = play.post(play.worker("one"), fact("ssn", 1), fact("iban", "DE1"))
    assert isinstance(posted, FactsPosted)
    assert {each.key: each.labels for each in posted.facts} == {"ssn": ("pii",), "iban": ("vip",)}
    play.same()


def test_a_post_is_decided_once_and_only_of_the_open_round() -> None:
    play = Swarm()
    play.delegate(task("one"))
    play.claim("one", "b")
    turn = play.worker("one")
    play.post(turn, fact("seen", 1))
    with pytest.raises(NotDecided, match="too late: decided"):
        play.post(turn, fact("seen", 2))
    with pytest.raises(NotDecided, match="unknown_round"):
        play.guard.propose(FactsPost(turn=turn.id, round=1, post=0, facts=(fact(),)))
    with pytest.raises(NotDecided, match="not_the_holder"):
        play.guard.propose(FactsPost(turn=turn.id, round=0, post=5, facts=(fact(),)), "c")
    play.say(turn, Deliver(summary="found"))
    with pytest.raises(NotDecided, match="too late: ended"):
        play.guard.propose(FactsPost(turn=turn.id, round=0, post=7, facts=(fact(),)))


def test_a_post_that_is_too_large_is_rejected_by_name_and_the_round_goes_on() -> None:
    play = Swarm()
    play.delegate(task("one"))
    play.claim("one", "b")
    turn = play.worker("one")
    with pytest.raises(NotDecided, match=r"size: \d+ bytes of at most 65536"):
        play.post(turn, fact("big", "x" * 70_000))
    posts = MAX_BOARD_BYTES // 50_000
    for n in range(posts):
        play.post(turn, fact(f"k{n}", "x" * 50_000), n=n)
    with pytest.raises(NotDecided, match="size: the board would come to"):
        play.post(turn, fact("more", "x" * 50_000), n=posts)
    assert play.worker("one").state == "working"
    assert isinstance(play.say(turn, Deliver(summary="found")), TaskDelivered)
    play.same()


@pytest.mark.parametrize("facts", [(), (fact(), fact())], ids=["none", "a-key-twice"])
def test_a_post_that_cannot_be_read_ends_no_round(facts: tuple[Fact, ...]) -> None:
    body = codec.encode(FactsPost(turn=TurnId("t"), round=0, post=0, facts=facts))
    with pytest.raises(Malformed) as wrong:
        codec.parse_proposal(body)
    assert codec.failure_of(body, wrong.value) is None


def test_a_log_of_a_swarm_goes_on_with_the_next_guard_at_every_event() -> None:
    play = Swarm(fact("v", 2, "vip"), max_retries=0)
    play.delegate(task("one", fallback=True), task("two"))
    play.claim("one", "c")
    play.post(play.worker("one"), fact("seen", 1))
    play.breaks(play.worker("one"))
    play.claim("one", "b")
    play.say(play.worker("one"), Deliver(summary="found"))
    play.guard.wait(31.0)
    play.say(play.guard.holder, Complete(answer="done"))
    kinds = [type_of(event) for event in play.events]
    for n in range(1, len(play.events)):
        heir = InMemoryGuard.given(play.guard.bodies[:n], FLEET)
        heir.wait(0.0)
        follows = [type_of(event) for event in heir.events[n:]]
        assert follows == kinds[n : n + len(follows)], (n, follows, kinds)
    assert TurnDelegated in map(type, play.events)
