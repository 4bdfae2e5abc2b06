"""An offer that nobody claims goes once more, to each agent that could claim it, in its own inbox."""

import pytest
from msgspec.structs import replace

from mesh.testing import InMemoryGuard, NotDecided
from protocol.wire.commands import Cancel, Freeze, Thaw
from protocol.wire.config import BreakerEntry, Fleet
from protocol.wire.events import MoveDeferred, TaskCancelled, TaskFailed, TaskOffered, TaskOpened, type_of
from protocol.wire.handoff import Constraints, Rule
from protocol.wire.ids import AgentName
from protocol.wire.moves import Delegate, Deliver
from tests.certain import is_, known
from tests.unit.protocol.swarms import FLEET, Swarm, again, refused, task
from tests.unit.protocol.worlds import agent, fact


def offered(**rest: object) -> Swarm:
    play = Swarm(**rest)  # type: ignore[arg-type]
    play.delegate(task("one"))
    return play


def unclaimed(play: Swarm) -> TaskFailed:
    failed = is_(play.guard.wait(31.0)[0], TaskFailed)
    assert failed.error.code == "unclaimed"
    play.same()
    return failed


# --- who gets it ------------------------------------------------------------------------------------


def test_it_goes_once_to_each_that_could_claim_it_and_its_time_begins_anew() -> None:
    play = offered()
    first = play.offers()["one"]
    copies = again(play)
    assert sorted(event.to for event in copies) == ["b", "c"]
    for event in copies:
        assert (event.name, event.intent, event.lead) == (first.name, first.intent, first.lead)
        assert (event.offer.turn, event.offer.handoff.to_agent) == (first.offer.turn, event.to)
        assert (event.opens_turn, event.claim_by) == (False, event.at + 30_000_000)
        assert (event.again, first.again) == (True, False)
    assert [sorted(one.entry.name for one in known(event.grounds).candidates) for event in copies[:1]] == [
        ["b", "c"]
    ]
    assert all(event.grounds is None for event in copies[1:])
    assert play.guard.wait(29.0) == []
    unclaimed(play)


@pytest.mark.parametrize("by", "bc")
def test_one_claim_settles_all_of_it(by: str) -> None:
    play = offered()
    again(play)
    assert isinstance(play.claim("one", by), TaskOpened)
    with pytest.raises(NotDecided, match="too late: ended"):
        play.claim("one", "c" if by == "b" else "b")
    assert play.guard.wait(31.0) == []
    play.say(play.worker("one"), Deliver(summary="found"))
    assert play.results() == {"one": "delivered"}
    play.same()


def test_it_goes_to_nobody_who_is_away_or_fails_or_may_not_claim() -> None:
    agents = {
        **FLEET.agents,
        "a": agent("a", to=("b", "c", "f", "g")),
        **{name: agent(name, intents=("read",)) for name in "fgh"},
    }
    play = offered(
        fleet=replace(FLEET, agents=agents),
        around={
            "served": lambda name: name != "f",
            "breakers": {AgentName("g"): BreakerEntry(state="open")},
        },
    )
    assert sorted(event.to for event in again(play)) == ["b", "c"]


def test_where_nobody_could_claim_it_now_it_fails_at_once() -> None:
    breakers = {AgentName(name): BreakerEntry(state="open") for name in "bc"}
    failed = unclaimed(offered(around={"breakers": breakers}))
    assert failed.error.message == "no agent that lists 'read' claimed it within 30 s"


def test_a_tasks_own_deadline_is_not_put_off() -> None:
    play = Swarm()
    play.delegate(task("one", constraints=Constraints(deadline=play.guard.now + 20_000_000)))
    unclaimed(play)


def test_who_had_the_task_and_failed_does_not_get_it() -> None:
    play = Swarm(max_retries=0)
    play.delegate(task("one", fallback=True))
    play.claim("one", "b")
    play.breaks(play.worker("one"))
    assert [event.to for event in again(play)] == ["c"]


def test_an_agent_that_has_another_task_of_the_lead_gets_it_and_claims_it_later() -> None:
    play = Swarm()
    play.delegate(task("one"), task("two"))
    play.claim("one", "b")
    assert sorted(event.to for event in again(play)) == ["b", "c"]
    with pytest.raises(NotDecided, match="too late: busy"):
        play.claim("two", "b")
    play.say(play.worker("one"), Deliver(summary="found"))
    assert isinstance(play.claim("two", "b"), TaskOpened)
    play.same()


def test_of_many_agents_each_offer_goes_to_some_that_it_draws() -> None:
    """Liars that stand first in the fleet file stand not before all others in each offer."""
    readers = {f"r{n}": agent(f"r{n}", intents=("read",)) for n in range(48)}
    fleet = replace(FLEET, agents={"a": FLEET.agents["a"], **readers})
    asked = []
    for number in range(8):
        play = offered(fleet=fleet, around={"number": number})
        asked.append(frozenset(event.to for event in again(play)))
        play.same()
    assert {len(names) for names in asked} == {16}
    assert len(set(asked)) > 1
    assert len(frozenset.union(*asked)) > 32


# --- what it shows ----------------------------------------------------------------------------------


def test_each_is_shown_what_it_may_see_itself() -> None:
    play = Swarm(fact("p", 1, "pii"), fact("v", 2, "vip"))
    play.delegate(task("one"))
    shown = {event.to: {each.key for each in event.offer.handoff.facts} for event in again(play)}
    assert shown == {"b": {"text", "p", "v"}, "c": {"text", "p"}}


def test_a_reader_whose_clearance_was_taken_meanwhile_is_shown_no_more_than_it_may_see_now() -> None:
    play = Swarm(fact("p", 1, "pii"))
    play.delegate(task("one"))
    agents = {**FLEET.agents, "c": agent("c", intents=("read",))}
    play.guard.fleet = replace(play.guard.fleet, agents=agents, revision=9)
    copy = next(event for event in again(play) if event.to == "c")
    assert {each.key for each in copy.offer.handoff.facts} == {"text"}
    play.same()


# --- what is said of them -----------------------------------------------------------------------------


def test_it_is_said_who_took_it_and_who_did_not() -> None:
    play = offered()
    again(play)
    play.guard.takers.add("b")
    failed = unclaimed(play)
    asked = {one.entry.name: one.took for one in known(failed.grounds).candidates}
    assert asked == {"b": True, "c": False}
    assert "nor when it was offered again to each: " in failed.error.message
    assert "b took it and did not claim it" in failed.error.message
    assert "c did not take it" in failed.error.message
    assert play.guard.holder.work.results[0].error == failed.error


def test_of_those_that_came_after_it_went_again_nothing_is_said() -> None:
    play = offered()
    again(play)
    agents = {**FLEET.agents, "f": agent("f", intents=("read",))}
    play.guard.fleet = replace(play.guard.fleet, agents=agents, revision=9)
    failed = unclaimed(play)
    assert [one.entry.name for one in known(failed.grounds).candidates] == ["b", "c"]


def test_of_those_that_have_left_the_fleet_nothing_is_said() -> None:
    play = offered()
    again(play)
    readers = {name: entry for name, entry in FLEET.agents.items() if name == "a"}
    play.guard.fleet = replace(play.guard.fleet, agents=readers, revision=9)
    failed = unclaimed(play)
    assert known(failed.grounds).removed
    assert failed.error.message == "no agent that lists 'read' claimed it within 30 s"


# --- frozen, called off, from guard to guard ----------------------------------------------------------


def test_a_claim_of_it_waits_for_a_thaw() -> None:
    play = offered()
    again(play)
    play.guard.say(Freeze(id="f"), "op")
    assert isinstance(play.claim("one", "c"), MoveDeferred)
    play.guard.wait(600.0)
    play.guard.say(Thaw(id="t"), "op")
    assert play.worker("one").agent == "c"
    play.same()


def test_each_offer_of_a_task_goes_again_once() -> None:
    play = Swarm(max_retries=0)
    play.delegate(task("one", fallback=True))
    again(play)
    play.claim("one", "b")
    play.breaks(play.worker("one"))
    assert play.offers()["one"].to == "any-read"
    assert refused(play.claim("one", "b")) == Rule.CLAIMED
    assert [event.to for event in again(play)] == ["c"]
    unclaimed(play)


@pytest.mark.parametrize("n", range(1, 4))
def test_a_guard_that_dies_between_two_of_them_leaves_the_rest_to_the_next(n: int) -> None:
    readers = {name: agent(name, intents=("read",)) for name in "bcd"}
    fleet = replace(FLEET, agents={"a": FLEET.agents["a"], **readers})
    play = offered(fleet=fleet)
    copies = again(play)
    assert len(copies) == 3
    kept = len(play.events) - 3 + n
    heir = InMemoryGuard.given(play.guard.bodies[:kept], fleet)
    heir.wait(0.0)
    assert [event.to for event in heir.events[kept:]] == [event.to for event in copies[n:]]
    assert [event.id for event in heir.events[kept:]] == [event.id for event in copies[n:]]


def test_a_freeze_between_two_of_them_keeps_the_rest_and_an_end_drops_it() -> None:
    """The first is in the log; what comes next is read before the others are written."""
    play = offered()
    again(play)
    kept = play.guard.bodies[: len(play.events) - 1]
    frozen, cancelled = InMemoryGuard.given(kept, FLEET), InMemoryGuard.given(kept, FLEET)
    cancelled.say(Cancel(id="c"), "c1")
    assert [type_of(event) for event in cancelled.events[len(kept) :]] == [
        "task.offered",
        "request.cancelled",
    ]
    frozen.mesh_frozen = True
    frozen.say(Freeze(id="f"), "op")
    frozen.mesh_frozen = False
    assert frozen.wait(5.0) == []
    frozen.say(Thaw(id="t"), "op")
    assert [type_of(event) for event in frozen.events[len(kept) :]] == [
        "request.frozen",
        "request.thawed",
        "task.offered",
    ]


def test_a_lead_calls_it_off() -> None:
    play = Swarm()
    play.delegate(task("one"), task("two"), join="any")
    play.claim("two", "b")
    again(play)
    play.say(play.worker("two"), Deliver(summary="found"))
    play.say(play.guard.holder, Delegate(cancel=("one",)))
    assert any(isinstance(event, TaskCancelled) for event in play.events)
    with pytest.raises(NotDecided, match="too late: ended"):
        play.claim("one", "c")
    play.same()


def test_who_joined_the_fleet_before_it_goes_again_gets_it_and_is_listened_to() -> None:
    play = offered()
    agents = {**FLEET.agents, "f": agent("f", intents=("read",))}
    play.guard.fleet = replace(play.guard.fleet, agents=agents, revision=9)
    assert "f" not in play.guard.ledger.possible_senders()
    assert "f" in {event.to for event in again(play)}
    assert "f" in play.guard.ledger.possible_senders()
    assert isinstance(play.claim("one", "f"), TaskOpened)
    play.same()


def test_who_joins_the_fleet_after_it_went_again_may_claim_the_offer_too() -> None:
    play = offered()
    again(play)
    fleet: Fleet = play.guard.fleet
    play.guard.fleet = replace(fleet, agents={**fleet.agents, "f": agent("f", intents=("read",))}, revision=9)
    offer = next(event for event in play.events if isinstance(event, TaskOffered))
    assert isinstance(play.guard.claim(offer.id, "f"), TaskOpened)
    play.same()
