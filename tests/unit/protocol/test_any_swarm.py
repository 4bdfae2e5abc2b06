"""Whatever happens in a swarm, in whatever order: an oracle that knows the wire alone finds nothing wrong."""

import itertools
import random
from collections.abc import Callable
from typing import Any

import pytest

from mesh.replay.rejudge import rejudge
from mesh.testing import InMemoryGuard
from protocol.domain import plans, swarm, tasks
from protocol.domain.admission import Late, Rejected
from protocol.domain.steps import Attendance, Decided, Outcome
from protocol.domain.turns import TurnState
from protocol.wire.commands import (
    Assign,
    Command,
    Doubt,
    FactsPost,
    Failure,
    Freeze,
    MoveProposed,
    OfferClaimed,
    Proposal,
    ReplyToAsk,
    ReportFailure,
    ReportInDoubt,
    Resolve,
    Settle,
    Thaw,
    id_of,
)
from protocol.wire.config import BreakerEntry, Fleet, Policy
from protocol.wire.errors import BrokenLog
from protocol.wire.events import MoveRefused, TaskFailed, type_of
from protocol.wire.ids import HUMAN, AgentName, Cause, TurnId, control_cause
from protocol.wire.moves import Ask, Complete, Delegate, Deliver, Escalate, Fail, Move, Task
from tests.unit.protocol import anything
from tests.unit.protocol.oracle.swarm import SwarmOracle
from tests.unit.protocol.oracle.tree import Tree
from tests.unit.protocol.worlds import agent, fact

FLEET = Fleet(
    name="swarm",
    entry=AgentName("a"),
    agents={
        "a": agent("a", clearance=("pii", "vip"), to=("b", "c", "d")),
        "b": agent("b", intents=("x", "y"), clearance=("pii", "vip")),
        "c": agent("c", intents=("x",), clearance=("pii",)),
        "d": agent("d", intents=("y",)),
        "e": agent("e", intents=("x",), clearance=("pii",)),
    },
    clients=(AgentName("c1"),),
    operators=(AgentName("op"),),
    human=True,
)
STORIES, STEPS = anything.STORIES // 3, 40


class Teller:
    """One request; after each thing that is said, the oracle looks."""

    def __init__(self, **policy: Any) -> None:
        rules = {"name": "swarm", "topology": "swarm", "retry_backoff_s": 0.0, "max_refusals": 99, **policy}
        self.away: set[str] = set()
        self.guard = InMemoryGuard(
            FLEET, {"swarm": Policy(**rules)}, served=lambda name: name not in self.away
        )
        self.oracle, self.tree = SwarmOracle(FLEET.agents), Tree()
        self.heard, self.controls = 0, itertools.count()
        self.wrong: list[str] = []
        self.guard.submit("go", policy="swarm", facts=[fact("p", 1, "pii"), fact("v", 1, "vip")])
        self.look()

    def look(self) -> None:
        self.oracle.broken = {name for name, entry in self.guard.breakers.items() if entry.state != "closed"}
        for event in self.guard.events[self.heard :]:
            self.oracle.take(event)
            self.tree.take(event)
        self.heard = len(self.guard.events)
        self.wrong += [*self.oracle.wrong, *self.oracle.at_rest(self.guard.now), *self.tree.wrong]
        ledger = self.guard.ledger
        if list(ledger.live.values()) != [one for one in ledger.tasks.values() if one.is_open]:
            self.wrong.append(f"{len(ledger.live)} tasks are taken to be open")
        self.oracle.wrong.clear()
        self.tree.wrong.clear()

    def judged_again(self) -> list[str]:
        again = rejudge(self.guard.bodies)
        return [*self.wrong, *([] if again.same else [str(again.differences)])]

    def send(self, proposal: Proposal, by: str) -> Outcome:
        cause = Cause(id_of(self.guard.request, proposal, by))
        outcome = self.guard.process(Command(self.guard.request, AgentName(by), proposal, cause, "agent"))
        return outcome

    def claim(self, offer: str, by: str) -> None:
        broken = self.guard.breakers.get(by, BreakerEntry()).state == "open"
        self.guard.wait(0.0)
        self.look()
        expected = self.oracle.opinion(offer, by, broken)
        found = said(self.send(OfferClaimed(turn=TurnId(offer), round=0), by))
        if found != expected:
            self.wrong.append(f"a claim by {by}: {found}, and it should be {expected}")
        self.look()

    def move(self, turn: TurnState, move: Move) -> None:
        self.send(MoveProposed(turn=turn.id, round=turn.round, move=move), turn.agent)
        self.look()

    def breaks(self, turn: TurnState) -> None:
        error = Failure(code="boom", permanent=True)
        self.send(ReportFailure(turn=turn.id, round=turn.round, error=error), turn.agent)
        self.look()

    def post(self, turn: TurnState, n: int, *labels: str) -> None:
        facts = (fact(f"k{n % 3}", n, *labels),)
        self.send(FactsPost(turn=turn.id, round=turn.round, post=n, facts=facts), turn.agent)
        self.look()

    def doubts(self, turn: TurnState) -> None:
        effect = Doubt(step=f"{turn.round}-1", action="pay")
        self.send(ReportInDoubt(turn=turn.id, round=turn.round, effect=effect), turn.agent)
        self.look()

    def comes_or_goes(self, name: str) -> None:
        """An agent that reads offers is served from now on, or not any more."""
        self.away ^= {name}
        self.oracle.served.setdefault(name, []).append((self.guard.now, name not in self.away))
        self.wait(0.0)

    def control(self, kind: Any) -> None:
        self.order(kind)

    def order(self, kind: Any, **about: Any) -> Outcome:
        message = kind(id=f"m{next(self.controls)}", **about)
        cause = control_cause(self.guard.request, "op", message.id)
        command = Command(self.guard.request, AgentName("op"), message, cause, "operator")
        outcome = self.guard.process(command)
        self.look()
        return outcome

    def people(self, kind: Any, **about: Any) -> None:
        """A person's word about what waits for them has to be obeyed."""
        if not isinstance(outcome := self.order(kind, **about), Decided):
            self.wrong.append(f"{kind.__name__} of {about} became {outcome}")

    def wait(self, seconds: float) -> None:
        self.guard.wait(seconds)
        self.look()

    @property
    def waiting(self) -> list[TurnState]:
        """The turns that wait for a person."""
        turns = self.guard.ledger.open.values()
        return [turn for turn in turns if turn.agent == "human" or turn.state in ("suspended", "doubted")]

    @property
    def working(self) -> list[TurnState]:
        turns = self.guard.ledger.open.values()
        return [turn for turn in turns if turn.state == "working" and turn.agent != "human"]

    def offers(self) -> list[str]:
        return [offer for job in self.oracle.jobs for offer in job.offers]


def said(outcome: Outcome) -> str:
    match outcome:
        case Decided(event):
            return str(event.refusal.rule) if isinstance(event, MoveRefused) else type_of(event)
        case Late(ended=ended):
            return ended
        case Rejected(code):
            return code
    return "frozen"


def task(name: str, intent: str, **rest: Any) -> Task:
    return Task(name=name, summary=name, intent=intent, **rest)


# --- a small world --------------------------------------------------------------------------------


def _worker(teller: Teller, name: str) -> TurnState | None:
    return next((turn for turn in teller.working if turn.work.task == name), None)


def _claims(name: str, by: str) -> Callable[[Teller], None]:
    def act(teller: Teller) -> None:
        job = next(job for job in teller.oracle.jobs if job.name == name)
        teller.claim(job.offer, by)

    return act


def _of_one(act: Callable[[Teller, TurnState], None]) -> Callable[[Teller], None]:
    def acts(teller: Teller) -> None:
        turn = _worker(teller, "one")
        if turn is not None:
            act(teller, turn)

    return acts


ACTS: dict[str, Callable[[Teller], None]] = {
    "b claims one": _claims("one", "b"),
    "c claims one": _claims("one", "c"),
    "b claims two": _claims("two", "b"),
    "e claims one": _claims("one", "e"),
    "one delivers": _of_one(lambda teller, turn: teller.move(turn, Deliver(summary="here"))),
    "one breaks": _of_one(lambda teller, turn: teller.breaks(turn)),
    "one posts": _of_one(lambda teller, turn: teller.post(turn, 0, "vip")),
    "time": lambda teller: teller.wait(31.0),
    "d goes": lambda teller: teller.comes_or_goes("d"),
    "freeze": lambda teller: teller.control(Freeze),
    "thaw": lambda teller: teller.control(Thaw),
}


@pytest.mark.parametrize("first", ACTS)
def test_everything_that_can_happen_in_a_few_steps(first: str) -> None:
    """Each order of three things, after a plan of two offers."""
    for acts in itertools.product(ACTS, repeat=2):
        teller = Teller(max_retries=0)
        teller.move(teller.guard.holder, Delegate(tasks=(task("one", "x", fallback=True), task("two", "y"))))
        for name in (first, *acts):
            ACTS[name](teller)
        assert teller.wrong == [], (first, *acts)
    assert teller.judged_again() == []


# --- random stories ---------------------------------------------------------------------------------


class Story(Teller):
    """A random story."""

    def __init__(self, seed: int) -> None:
        self.draw = random.Random(seed)
        super().__init__(
            max_retries=self.draw.choice([0, 1]),
            claim_within_s=self.draw.choice([5.0, 30.0]),
            unattended_after_s=self.draw.choice([60.0, 3_600.0, None]),
            human_deadline_s=(None, 200.0, 86_400.0)[seed % 3],
        )
        self.names, self.posts = itertools.count(), itertools.count()

    def tell(self) -> list[str]:
        for _ in range(STEPS):
            if not self.guard.ledger.is_open or self.wrong:
                break
            self.step()
        return self.judged_again()

    def step(self) -> None:
        draw, chance = self.draw, self.draw.random()
        if draw.random() < 0.05:
            self.guard.breakers[AgentName("c")] = BreakerEntry(state=draw.choice(["open", "closed"]))
        if draw.random() < 0.1:
            self.comes_or_goes(draw.choice("bcde"))
        if self.guard.ledger.frozen_at is not None and chance < 0.4:
            self.control(Thaw)
        elif chance < 0.03:
            self.control(Freeze)
        elif chance < 0.3 and self.waiting:
            self.decide(draw.choice(self.waiting))
        elif chance < 0.13:
            self.wait(draw.choice([1.0, 5.0, 31.0, 100.0]))
        elif chance < 0.55 and self.offers():
            self.claim(draw.choice([*self.offers()[-4:], "nothing"]), draw.choice("abcde"))
        elif self.working:
            self.speak(draw.choice(self.working))
        else:
            self.wait(1.0)

    def decide(self, turn: TurnState) -> None:
        draw = self.draw
        if turn.state == "suspended":
            self.people(ReplyToAsk, turn=turn.id, round=turn.round, value="yes")
        elif turn.state == "doubted":
            self.people(Settle, turn=turn.id, round=turn.round, outcome=draw.choice(["done", "not_done"]))
        elif draw.random() < 0.25:
            self.people(Assign, turn=turn.id, to="Ada")
        else:
            hows: list[dict[str, Any]] = [{}, {"again": True}, {"again": True}, {"to": AgentName("b")}]
            self.people(Resolve, turn=turn.id, **draw.choice([*hows, {"complete": True}]))

    def speak(self, turn: TurnState) -> None:
        draw, ends = self.draw, list[Move]()
        if draw.random() < 0.05:
            self.doubts(turn)
        elif turn.task is None:
            names = [job.name for job in self.oracle.jobs if job.state in ("offered", "open")]
            plan = [self.task() for _ in range(draw.choice([0, 1, 2, 3] if names else [1, 2, 3]))]
            cancel = tuple(name for name in names if draw.random() < 0.2)
            moves: list[Move] = [
                Delegate(tasks=tuple(plan), join=draw.choice(["any", "all"]), cancel=cancel)
            ] * 8
            answers: list[Move] = [Complete(answer=1), Complete(answer=1, cancel_open=True)]
            ends = [*answers, Escalate(summary="e"), Ask(to_agent=HUMAN, question="q")]
            self.move(turn, draw.choice([*moves, *ends]))
        elif draw.random() < 0.4:
            self.post(turn, next(self.posts), *draw.choice([(), ("pii",), ("vip",)]))
        elif draw.random() < 0.25:
            self.breaks(turn)
        else:
            ends = [Deliver(summary="d"), Fail(reason="f"), Escalate(summary="e")]
            self.move(turn, draw.choice(ends))

    def task(self) -> Task:
        draw = self.draw
        name, intent = (
            f"t{next(self.names)}",
            draw.choice(["x", "y", "y", "none"] if draw.random() < 0.1 else "xy"),
        )
        return task(name, intent, fallback=draw.random() < 0.5, facts=(fact("n", name),))


@pytest.mark.parametrize("seed", range(STORIES))
def test_a_random_story_is_as_the_oracle_has_it(seed: int) -> None:
    assert Story(seed).tell() == []


def test_the_stories_come_to_everything_that_can_be_told_of_a_claim() -> None:
    found, kinds, codes = set[str](), set[str](), set[str]()
    for seed in range(STORIES):
        story = Story(seed)
        story.tell()
        found |= set(story.oracle.claims.values())
        kinds |= {type_of(event) for event in story.guard.events}
        codes |= {event.error.code for event in story.guard.events if isinstance(event, TaskFailed)}
    assert found == {"task.opened", "capable", "claimed", "agent_available"}
    assert {"unclaimed", "unattended"} <= codes
    assert {"task.offered", "facts.posted", "task.failed", "task.cancelled", "move.deferred"} <= kinds
    assert {"escalation.resolved", "escalation.assigned", "effect.settled", "turn.suspended"} <= kinds


# --- planted bugs -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("owner", "name", "broken"),
    [
        (swarm, "_capable", lambda *_: None),
        (swarm, "_claimed", lambda *_: None),
        (swarm, "common_clearance", lambda readers: frozenset({"pii", "vip"})),
        (tasks.TaskState, "may_be_offered_again", False),
        (tasks.TaskState, "may_be_claimed", lambda task, offer: True),
        (swarm, "to_ask", lambda task, readers: tuple(readers)),
        (swarm, "to_ask", lambda task, readers: ()),
        (tasks.TaskState, "next_asked", None),
        (swarm, "MOST_ASKED", 1),
        (plans, "unreported", lambda known: tuple(one for one in known if not one.is_open)),
        (plans, "to_cancel", lambda ledger: []),
        (Attendance, "of_any", lambda seen: Attendance(served=True, since=0, unbegun=False)),
        (Attendance, "of_any", lambda seen: Attendance(served=False, since=0, unbegun=False)),
    ],
    ids=[
        "anybody-claims",
        "taken-twice",
        "offers-show-all",
        "no-fallback",
        "old-offers",
        "again-to-all",
        "never-again",
        "again-to-the-first",
        "again-to-one",
        "told-twice",
        "never-cancelled",
        "someone-there",
        "nobody-there",
    ],
)
def test_a_guard_that_decides_claims_wrongly_is_found(
    owner: Any, name: str, broken: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(owner, name, broken)
    assert any(_found(seed) for seed in range(STORIES))


def _found(seed: int) -> bool:
    try:
        return bool(Story(seed).tell())
    except BrokenLog:
        return True  # a log that no guard could have written
