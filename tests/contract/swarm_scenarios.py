"""Scenarios of swarms: tasks are offered and claimed, turns post to the board, and one turn answers."""

from protocol.wire.commands import (
    Cancel,
    FactsPost,
    Failure,
    Freeze,
    MoveProposed,
    OfferClaimed,
    Report,
    ReportFailure,
    Thaw,
)
from protocol.wire.config import Policy
from protocol.wire.handoff import Artifact, Budget, Constraints, Fact
from protocol.wire.ids import TurnId
from protocol.wire.moves import Complete, Deliver, Task
from tests.contract.scenarios import DONE, OPEN_BY_HAND, Scenario, fact
from tests.contract.script import Script
from tests.contract.tree_scenarios import DELIVERED, plan

POLICIES = {"swarm": Policy(name="swarm", topology="swarm", max_retries=0, budget=Budget(tokens=1000))}


def offer(name: str, *facts: Fact, **rest: object) -> Task:
    said: dict[str, object] = {"intent": "bill", **rest}
    return Task(name=name, summary=f"read {name}", facts=facts, **said)  # type: ignore[arg-type]


def claim(script: Script, name: str, by: str) -> None:
    """An agent claims the newest offer of a task."""
    task = next(task for task in reversed(script.guard.ledger.tasks.values()) if task.name == name)
    script.say(by, OfferClaimed(turn=task.offer or TurnId("none"), round=0))


def post(script: Script, name: str, *facts: Fact, n: int = 0) -> None:
    turn = script.working(name)
    script.say(turn.agent, FactsPost(turn=turn.id, round=turn.round, post=n, facts=facts))


def swarm(script: Script) -> None:
    """Two read and tell each other; what they may not do is refused; the root answers with both."""
    script.submit(policy="swarm", facts=(Fact(key="ssn", value="123"), Fact(key="plan", value="gold")))
    limits = Constraints(budget=Budget(tokens=300), max_resolution_time_s=600.0)
    script.of("", plan(offer("left", fact("focus", "dates"), constraints=limits), offer("right"), join="all"))
    claim(script, "left", "b")
    claim(script, "left", "e")
    claim(script, "left", "d")
    claim(script, "right", "e")
    post(script, "left", fact("seen", 1), fact("ssn", "456"))
    claim(script, "right", "d")
    post(script, "right", fact("seen", 2))
    post(script, "left", fact("seen", 3), n=1)
    turn = script.working("right")
    wrote = Report(actions=("pay",), effects=("pay",))
    script.say(turn.agent, MoveProposed(turn=turn.id, round=turn.round, move=DELIVERED, report=wrote))
    script.of("right", Complete(answer="mine"))
    proof = Artifact(name="proof", uri="s3://b/proof")
    script.of("left", Deliver(summary="here", facts=(fact("cause", "off by one"),), artifacts=(proof,)))
    script.of("right", DELIVERED, tokens=20)
    script.of("", plan(offer("more", fact("feedback", "and why"), uses=("left",))))
    claim(script, "more", "d")
    script.of("more", DELIVERED)
    script.of("", DONE)


def unclaimed(script: Script) -> None:
    script.submit(policy="swarm")
    script.of("", plan(offer("left"), offer("right")))
    claim(script, "left", "d")
    script.wait(31.0)
    script.wait(31.0)
    script.of("left", DELIVERED)
    script.of("", DONE)


def claimed_when_offered_again(script: Script) -> None:
    """Both get it once more, each as it may see it; the first claim settles it, and the other is no event."""
    script.submit(policy="swarm", facts=(Fact(key="ssn", value="123"),))
    script.of("", plan(offer("left")))
    script.wait(31.0)
    claim(script, "left", "e")
    claim(script, "left", "d")
    script.of("left", DELIVERED)
    script.of("", DONE)


def taken_and_never_claimed(script: Script) -> None:
    """One takes it out of its inbox, and one takes nothing any more; a claim after that is late."""
    script.submit(policy="swarm")
    script.of("", plan(offer("left")))
    script.takes_nothing("e")
    script.wait(31.0)
    script.wait(31.0)
    claim(script, "left", "d")
    script.of("", DONE)


def offered_again(script: Script) -> None:
    """Who had it and failed may not have it again."""
    script.submit(policy="swarm")
    script.of("", plan(offer("left", fallback=True)))
    claim(script, "left", "d")
    turn = script.working("left")
    error = Failure(code="bug", message="it broke", permanent=True)
    script.say("d", ReportFailure(turn=turn.id, round=0, error=error))
    claim(script, "left", "d")
    claim(script, "left", "e")
    script.of("left", DELIVERED)
    script.of("", DONE)


def frozen_claim(script: Script) -> None:
    script.submit(policy="swarm")
    script.of("", plan(offer("left"), offer("right"), join="any"))
    script.control(Freeze)
    claim(script, "left", "d")
    claim(script, "left", "e")
    script.wait(120.0)
    script.control(Thaw)
    script.of("left", DELIVERED)
    script.of("", Complete(answer="left is enough", cancel_open=True))


def refused_after_the_thaw(script: Script) -> None:
    """The first claim of a frozen offer is refused at the thaw; another's is in time, as the clock stood."""
    script.submit(policy="swarm")
    script.of("", plan(offer("left")))
    script.wait(20.0)
    script.control(Freeze)
    claim(script, "left", "b")
    script.wait(120.0)
    script.control(Thaw)
    script.wait(5.0)
    claim(script, "left", "d")
    script.of("left", DELIVERED)
    script.of("", DONE)


def claims_for_nothing(script: Script) -> None:
    script.submit(policy="swarm")
    script.of("", plan(offer("left"), offer("far", intent="far")))
    script.of("", plan(offer("left")))
    script.say("d", OfferClaimed(turn=TurnId("nothing"), round=0))
    claim(script, "left", "d")
    script.of("left", DELIVERED)
    post(script, "", fact("big", "x" * 70_000))
    turn = script.working("")
    script.say("b", FactsPost(turn=turn.id, round=turn.round, post=1, facts=(fact("k"),)))
    script.say("a", b'{"kind":"post","turn":"%s","round":1,"post":1,"facts":[]}' % turn.id.encode())
    script.of("", DONE)


def claimed_in_vain(script: Script) -> None:
    """Nobody could claim it: it does not go again."""
    script.submit(policy="swarm")
    script.of("", plan(offer("left")))
    claim(script, "left", "d")
    script.wait(31.0)
    script.of("", DONE)


def not_a_swarm(script: Script) -> None:
    script.submit()
    script.say("b", OfferClaimed(turn=script.turn, round=0))
    script.say("a", FactsPost(turn=script.turn, round=0, post=0, facts=(fact("k"),)))
    script.of("", DONE)


def of_others(script: Script) -> None:
    """Offers, turns and places on the board that are somebody else's, or nobody's."""
    script.submit(policy="swarm")
    script.of("", plan(offer("left"), offer("right")))
    claim(script, "left", "c")
    claim(script, "left", "a")
    claim(script, "left", "c1")
    for _ in range(2):
        claim(script, "left", "d")
    claim(script, "left", "e")
    claim(script, "right", "e")
    left, root = script.working("left").id, script.working("").id
    for by, turn in (("d", left), ("e", root), ("e", TurnId("forged")), ("e", TurnId(""))):
        script.say(by, OfferClaimed(turn=turn, round=0))
    for by, turn in (("e", left), ("c2", left), ("d", root), ("d", TurnId("forged"))):
        script.say(by, FactsPost(turn=turn, round=0, post=0, facts=(fact("seen"),)))
    script.of("left", DELIVERED, by="e")
    script.of("left", plan(offer("deep")))
    for value in (1, 2):  # one post, told twice
        post(script, "left", fact("seen", value))
    script.of("left", DELIVERED)
    script.say("d", FactsPost(turn=left, round=0, post=1, facts=(fact("overtaken"),)))
    claim(script, "left", "e")
    script.of("right", DELIVERED)
    script.of("", DONE)


def cancelled_swarm(script: Script) -> None:
    """One is at work, one is offered, and both are over with their request."""
    script.submit(policy="swarm")
    script.of("", plan(offer("left"), offer("right")))
    claim(script, "left", "d")
    script.control(Cancel, sender="c1")
    claim(script, "right", "e")


SWARMS = (
    Scenario(
        of_others,
        "request.opened turn.delegated task.offered task.offered move.refused:capable "
        "move.refused:capable task.opened task.opened "
        "move.refused:known_move facts.posted task.delivered facts.posted task.delivered turn.resumed "
        "request.completed",
        rejected="not_allowed unknown_turn unknown_turn unknown_turn protocol.malformed"
        " not_the_holder not_the_holder not_the_holder unknown_turn not_the_holder",
    ),
    Scenario(
        cancelled_swarm,
        "request.opened turn.delegated task.offered task.offered task.opened request.cancelled",
    ),
    Scenario(
        swarm,
        "request.opened turn.delegated task.offered task.offered move.refused:capable task.opened"
        " facts.posted task.opened facts.posted facts.posted"
        " move.refused:read_only move.refused:known_move task.delivered task.delivered turn.resumed"
        " turn.delegated task.offered task.opened task.delivered turn.resumed request.completed",
    ),
    Scenario(
        unclaimed,
        "request.opened turn.delegated task.offered task.offered task.opened task.offered task.offered"
        " task.failed:unclaimed task.delivered turn.resumed request.completed",
        served=True,
    ),
    Scenario(
        claimed_when_offered_again,
        "request.opened turn.delegated task.offered task.offered task.offered task.opened task.delivered"
        " turn.resumed request.completed",
        served=True,
    ),
    Scenario(
        taken_and_never_claimed,
        "request.opened turn.delegated task.offered task.offered task.offered task.failed:unclaimed"
        " turn.resumed request.completed",
        served=True,
    ),
    Scenario(
        offered_again,
        "request.opened turn.delegated task.offered task.opened turn.failed:bug task.failed:bug task.offered"
        " move.refused:claimed task.opened task.delivered turn.resumed request.completed",
    ),
    Scenario(
        refused_after_the_thaw,
        "request.opened turn.delegated task.offered request.frozen move.deferred request.thawed"
        " move.refused:capable task.opened task.delivered turn.resumed request.completed",
    ),
    Scenario(
        frozen_claim,
        "request.opened turn.delegated task.offered task.offered request.frozen move.deferred move.deferred"
        " request.thawed task.opened task.delivered turn.resumed request.completed",
    ),
    Scenario(
        claims_for_nothing,
        "request.opened move.refused:capable turn.delegated task.offered task.opened task.delivered"
        " turn.resumed request.completed",
        rejected="unknown_turn size not_the_holder protocol.malformed",
    ),
    Scenario(not_a_swarm, "request.opened request.completed", rejected="known_move known_move"),
    Scenario(
        claimed_in_vain,
        "request.opened turn.delegated task.offered move.refused:agent_available task.failed:unclaimed"
        " turn.resumed request.completed",
        breakers={"d": OPEN_BY_HAND, "e": OPEN_BY_HAND},
        served=True,
    ),
)
