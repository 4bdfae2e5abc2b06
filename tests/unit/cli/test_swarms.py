"""Views of a swarm: offers that wait for a claim, claims that were refused, facts on the board."""

import pytest

from mesh.ops.explain import explain, sentences
from mesh.ops.words import story
from mesh.testing import InMemoryGuard, fleet_of
from mesh.ui.drawing.scene import mermaid, scene
from protocol.views.timeline import timeline
from protocol.views.tree import flat
from protocol.wire import events
from protocol.wire.commands import FactsPost, MoveProposed
from protocol.wire.config import AgentEntry, Policy
from protocol.wire.handoff import Fact
from protocol.wire.ids import AgentName
from protocol.wire.moves import Delegate, Deliver, Task
from tests.mermaid import read

READERS = [AgentEntry(name=AgentName(name), intents=("read",)) for name in ("ann", "bob")]
OTHER = AgentEntry(name=AgentName("eve"), intents=("write",))


@pytest.fixture
def guard() -> InMemoryGuard:
    """A swarm with two offers, of which one is claimed, and the other by somebody who may not have it."""
    guard = InMemoryGuard(fleet_of("lead", *READERS, OTHER), {"default": Policy(topology="swarm")})
    guard.submit("Why does it fail?")
    tasks = (
        Task(name=name, summary="read", intent="read", facts=(Fact(key="file", value=name),)) for name in "ab"
    )
    guard.move(Delegate(tasks=tuple(tasks)))
    offers = [event.offer.turn for event in guard.events if isinstance(event, events.TaskOffered)]
    for offer, by in zip(offers, ("ann", "eve"), strict=True):
        guard.claim(offer, by)
    return guard


def test_an_offer_that_nobody_claimed_is_waited_for(guard: InMemoryGuard) -> None:
    told = timeline(guard.events)
    assert [(node.name, node.status, node.agent) for node in flat(told.tree)] == [
        ("", "delegated", "lead"),
        ("a", "working", "ann"),
        ("b", "offered", ""),
    ]
    assert [(waits.for_, waits.why) for waits in told.waiting] == [
        ("ann", "its task a of lead is not done"),
        ("any-read", "no agent has claimed task b"),
    ]
    said = "\n".join(line.plain for line in story(told))
    assert "└─ b (nobody yet)  " in said
    assert "b: nobody has claimed it, since " in "\n".join(sentences(explain(guard.events, 1)))


def test_a_claim_that_was_refused_is_its_agents_own(guard: InMemoryGuard) -> None:
    (refused,) = [move for move in timeline(guard.events).moves if move.move == "claim"]
    assert (refused.from_, refused.rule, refused.turn) == ("eve", "capable", None)
    assert "Refused by rule `capable`" in "\n".join(sentences(explain(guard.events)))
    drawn = mermaid(scene(timeline(guard.events)))
    assert read(drawn).lanes > 3
    assert "participant p3 as eve" in drawn
    assert "p3-xp3: claim refused by capable" in drawn
    assert "people" not in drawn


def test_an_offer_that_went_again_is_told_with_who_took_it(guard: InMemoryGuard) -> None:
    guard.wait(31)
    told = timeline(guard.events)
    again = {move.to: move.detail for move in told.moves if move.move == "offer"}
    assert again == {"any-read": "b", **dict.fromkeys(("ann", "bob"), "b, again: nobody has claimed it")}
    assert [waits.for_ for waits in told.waiting] == ["ann", "any-read"]
    guard.takers.add("bob")
    guard.wait(31)
    (failed,) = (event.n for event in guard.events if isinstance(event, events.TaskFailed))
    said = "\n".join(sentences(explain(guard.events, failed)))
    assert "bob (served, breaker closed, took the offer and did not claim it)" in said
    assert "ann (served, breaker closed)" in said


def test_posts_are_told_and_what_nobody_claims_fails_by_its_own_code(guard: InMemoryGuard) -> None:
    ann = next(turn for turn in guard.ledger.open.values() if turn.agent == "ann")
    guard.propose(FactsPost(turn=ann.id, round=0, post=0, facts=(Fact(key="line", value=3),)))
    guard.propose(MoveProposed(turn=ann.id, round=0, move=Deliver(summary="line 3")))
    for _ in ("offered again", "unclaimed"):
        guard.wait(31)
    told = timeline(guard.events)
    assert [(move.from_, move.summary) for move in told.moves if move.move == "post"] == [("ann", "line")]
    by_name = {node.name: node for node in flat(told.tree)}
    assert (by_name["a"].result, by_name["b"].errors[0].code) == ("line 3", "unclaimed")
    assert [waits.for_ for waits in told.waiting] == ["lead"]
