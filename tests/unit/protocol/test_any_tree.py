"""Whatever happens in a tree, in whatever order: an oracle with accounts of its own finds nothing wrong."""

import itertools
import random
from collections.abc import Iterator
from typing import Any

import pytest

from mesh.replay.rejudge import rejudge
from protocol.domain import rules, task_consequences, task_events, tasks
from protocol.domain.admission import Late, Rejected
from protocol.domain.ledger import fold_bodies
from protocol.domain.steps import Append
from protocol.domain.turns import TurnState
from protocol.wire.commands import (
    Cancel,
    Command,
    Complete,
    Delegate,
    Deliver,
    Escalate,
    Fail,
    Failure,
    Freeze,
    Move,
    MoveProposed,
    Report,
    ReportFailure,
    Task,
    Thaw,
    Usage,
    id_of,
)
from protocol.wire.config import Policy
from protocol.wire.errors import BrokenLog
from protocol.wire.events import AnyEvent, MoveRefused, TurnDelegated
from protocol.wire.handoff import Budget, Constraints, Rule
from protocol.wire.ids import AgentName, Cause
from tests.unit.protocol.oracle.tree import Tree
from tests.unit.protocol.trees import delegate, deliver, say, task, tree, worker
from tests.unit.protocol.worlds import REQUEST, Play, agent, escalate, fact, give_up, usage

FLEET = {
    "a": agent("a"),
    "b": agent("b", intents=("x", "y")),
    "c": agent("c", intents=("x",)),
    "d": agent("d", intents=("y",)),
    "e": agent("e"),
}
STORIES, STEPS = 100, 60


class Teller:
    """Plays one random story. Agents spend no more than they were given, as the runtime sees to it."""

    def __init__(self, seed: int) -> None:
        self.draw = random.Random(seed)
        policy = Policy(
            topology="supervised",
            budget=self.draw.choice([None, Budget(tokens=2000), Budget(tokens=500, model_calls=200)]),
            max_levels=self.draw.choice([2, 3, 4, 4]),
            max_open_tasks=self.draw.choice([3, 8]),
            max_tasks=self.draw.choice([9, 50]),
            max_revisions=self.draw.choice([1, 3]),
            max_refusals=self.draw.choice([0, 9, 9]),
            max_retries=self.draw.choice([0, 1]),
            turn_timeout_s=100.0,
            max_asks=self.draw.choice([0, 1]),
            unattended_after_s=500.0,
        )
        self.play = Play(fleet=dict(FLEET), policy=policy)
        self.play.submit()
        self.oracle = Tree()
        self.heard = 0
        self.names = itertools.count()
        self.learn()

    def tell(self) -> list[str]:
        """Return what the oracle finds wrong."""
        for _ in range(STEPS):
            if not self.play.ledger.is_open:
                break
            self.step()
            self.learn()
            wrong = [*self.oracle.at_rest(), *self.unlike()]
            if wrong:
                return wrong
        judged = rejudge(self.play.bodies)
        return [] if judged.same else [str(judged.differences)]

    def learn(self) -> None:
        for event in self.play.events[self.heard :]:
            self.oracle.take(event)
        self.heard = len(self.play.events)

    def unlike(self) -> Iterator[str]:
        """Yield where the ledger stands otherwise than the oracle."""
        ledger = self.play.ledger
        for dimension in ("tokens", "model_calls"):
            spent = sum(node.own[dimension] + node.fine[dimension] for node in self.oracle.nodes.values())
            if ledger.is_open and getattr(ledger.spent, dimension) != spent:
                yield f"{spent} {dimension} are spent, and {getattr(ledger.spent, dimension)} by the ledger"
            for turn in ledger.open.values():
                node = self.oracle.nodes.get(turn.id)
                if node is not None and getattr(ledger.rest(turn), dimension) != node.left(dimension):
                    yield f"{turn.agent} has {node.left(dimension)} {dimension} left"
        if state_of(fold_bodies(self.play.bodies)) != state_of(ledger):
            yield "the log adds up to something else"

    def step(self) -> None:
        play, draw = self.play, self.draw
        play.begun, play.served = draw.random() < 0.8, draw.random() < 0.8
        play.unserved = tuple(name for name in "bcde" if draw.random() < 0.2)
        play.breakers = {name: "open" for name in "bcde" if draw.random() < 0.05}
        turns = [
            turn for turn in play.ledger.open.values() if turn.state == "working" and turn.agent != "human"
        ]
        chance = draw.random()
        if play.ledger.frozen_at is not None and chance < 0.5:
            play.send_control(play.message(Thaw))
        elif chance < 0.02:
            play.send_control(play.message(Freeze))
        elif chance < 0.025:
            play.send_control(play.message(Cancel))
        elif chance < 0.1 or not turns:
            play.wait(draw.choice([1, 30, 100, 501]))
        else:
            self.speak(draw.choice(turns))

    def speak(self, turn: TurnState) -> None:
        report = self.report(turn)
        if self.draw.random() < 0.1:
            failure = Failure(code="boom", permanent=self.draw.random() < 0.5)
            self.play.propose(
                ReportFailure(turn=turn.id, round=turn.round, error=failure, report=report), turn.agent
            )
            return
        said = MoveProposed(turn=turn.id, round=turn.round, move=self.move(turn), report=report)
        self.play.finish()
        self.learn()
        event = self.play.propose(said, turn.agent)
        if not isinstance(event, Late | Rejected):
            self.oracle.wrong += judged(self.oracle, said, event)

    def report(self, turn: TurnState) -> Report:
        node = self.oracle.nodes[turn.id]
        spent = dict[str, Any]()
        for name in ("tokens", "model_calls"):
            left = node.left(name)
            most = 20 if left is None else max(0, left)
            spent[name] = node.own[name] + self.draw.randint(0, min(most, 20))
        effects = ("pay",) if self.draw.random() < 0.1 else ()
        return Report(usage=Usage(**spent), actions=effects, effects=effects)

    def move(self, turn: TurnState) -> Move:
        draw = self.draw
        if turn.task is None:
            kinds: list[Any] = [self.plan] * 20 + [self.complete, give_up, escalate, deliver]
        else:
            kinds = [self.plan] * 4 + [self.deliver] * 4 + [give_up, self.complete, escalate]
        kind = draw.choice(kinds)
        move = kind(turn) if kind in (self.plan, self.deliver, self.complete) else kind()
        assert isinstance(move, Delegate | Deliver | Complete | Fail | Escalate)
        return move

    def deliver(self, _: TurnState) -> Deliver:
        return deliver(fact("found", self.draw.randint(0, 9)), cancel_open=self.draw.random() < 0.5)

    def complete(self, _: TurnState) -> Complete:
        return Complete(answer=1, cancel_open=self.draw.random() < 0.5)

    def plan(self, turn: TurnState) -> Delegate:
        draw, known = self.draw, self.oracle.nodes[turn.id].jobs
        ended = [name for name, job in known.items() if not job.live]
        live = [name for name, job in known.items() if job.live]
        at_least = 0 if live else 1
        join: Any = draw.choice(["all", "any", "any", 2])
        return Delegate(
            tasks=tuple(self.task(ended, live) for _ in range(draw.choice([at_least, 1, 2, 3]))),
            join=join,
            within_s=draw.choice([None, 50.0]),
            cancel=tuple(name for name in (*live, *ended) if draw.random() < 0.15),
        )

    def task(self, ended: list[str], live: list[str]) -> Task:
        draw = self.draw
        odd = draw.random() < 0.07
        to, intent = draw.choice(
            [("b", "x"), ("b", "y"), ("c", "x"), ("d", "y"), ("e", None), (None, "x"), (None, "y")]
        )
        if odd:
            to, intent = draw.choice(["a", "b", "nobody", None]), draw.choice([None, "x", "z"])
        named = [*ended, *live, "no"] if odd else ended
        asked = draw.choice([None, None, Budget(tokens=draw.choice([0, 5, 40, 400]))])
        return Task(
            name=draw.choice(named) if odd and draw.random() < 0.3 else f"t{next(self.names)}",
            summary=draw.choice(["look", "find"]),
            to_agent=None if to is None else AgentName(to),
            intent=intent,
            facts=(fact("k", draw.randint(0, 5) if odd else next(self.names)),),
            uses=tuple(dict.fromkeys(one for one in named if draw.random() < 0.1)),
            revises=draw.choice(named) if named and draw.random() < 0.3 else "",
            fallback=intent is not None and draw.random() < 0.3,
            constraints=Constraints(budget=asked, read_only=draw.random() < 0.2),
        )


def judged(oracle: Tree, said: MoveProposed, event: AnyEvent) -> list[str]:
    """Return what is wrong with the verdict on a move, by the oracle as it stood before."""
    grounds = event.grounds
    if grounds is None:
        return []
    opinion = oracle.opinion(said, grounds)
    ruled = event.refusal.rule if isinstance(event, MoveRefused) else None
    wrong = (
        []
        if ruled == opinion
        else [f"{type(event).__name__} by {ruled}, and {opinion} is right: {said.move}"]
    )
    if isinstance(event, TurnDelegated) and isinstance(said.move, Delegate):
        agents = [str(planned.agent) for planned in event.tasks]
        right = oracle.placed(oracle.nodes[said.turn], said.move, grounds)
        wrong += [] if agents == right else [f"the tasks went to {agents} instead of {right}"]
    return wrong


def state_of(ledger: Any) -> Any:
    return (
        ledger.status,
        ledger.spent,
        [(turn.id, turn.state, turn.round) for turn in ledger.turns.values()],
        [(one.name, one.state, one.spent, one.told, one.agents, one.attempts) for one in ledger.tasks],
    )


def stories(first: int = 0, count: int = STORIES) -> Iterator[str]:
    """Yield what is wrong with so many stories."""
    for seed in range(first, first + count):
        for wrong in Teller(seed).tell():
            yield f"story {seed}: {wrong}"


def test_nothing_is_wrong_with_any_story() -> None:
    assert list(stories()) == []


# --- all plans of a small world -------------------------------------------------------------------------


def worlds() -> dict[str, tuple[Play, str]]:
    rules_ = {"max_open_tasks": 2, "max_revisions": 1, "budget": Budget(tokens=50)}
    fresh = tree(fleet=dict(FLEET), policy=rules_)
    going = tree(fleet=dict(FLEET), policy=rules_)
    say(going, "", delegate(task("done", "b", fact("k", 1)), task("open", "e"), join="any"))
    say(going, "done", deliver(), usage(tokens=5))
    below = tree(task("two", "b"), fleet=dict(FLEET), policy=rules_)
    deepest = tree(task("two", "b"), fleet=dict(FLEET), policy=rules_)
    say(deepest, "two", delegate(task("three", "c")))
    return {
        "fresh": (fresh, ""),
        "going": (going, ""),
        "below": (below, "two"),
        "deepest": (deepest, "three"),
    }


def plans() -> Iterator[Delegate]:
    tos = ("a", "b", "c", "nobody", None)
    for to, intent, linked, asked, name in itertools.product(
        tos, (None, "x", "z"), ("", "done", "open"), (None, 10, 51), ("new", "done")
    ):
        limits = Constraints(budget=None if asked is None else Budget(tokens=asked))
        for said in ({"uses": (linked,) if linked else ()}, {"revises": linked}):
            one = task(name, to, fact("k", 1), intent=intent, constraints=limits, **said)
            yield delegate(one)
            yield delegate(one, task("other", "e"), join="any")


def verdict(play: Play, who: str, move: Delegate) -> tuple[MoveProposed, AnyEvent]:
    """Return the proposal of a move and the verdict on it, which is not appended."""
    turn = play.holder if who == "" else worker(play, who)
    said = MoveProposed(turn=turn.id, round=turn.round, move=move)
    command = Command(REQUEST, turn.agent, said, Cause(id_of(REQUEST, said, turn.agent)), "agent")
    steps = play.decider.handle(command, play.whole_fleet)
    answer: object = None
    while True:
        step = steps.send(answer)
        if isinstance(step, Append):
            steps.close()
            return said, step.event
        answer = play.answer(step)


@pytest.mark.parametrize("world", ["fresh", "going", "below", "deepest"])
def test_every_plan_of_a_small_world_is_judged_as_the_oracle_does(world: str) -> None:
    play, who = worlds()[world]
    oracle = Tree()
    for event in play.events:
        oracle.take(event)
    ruled = set()
    for move in plans():
        said, event = verdict(play, who, move)
        assert judged(oracle, said, event) == []
        ruled.add(event.refusal.rule if event.refusal is not None else None)
    assert (None in ruled) == (world != "deepest")
    assert len(ruled) >= 2


# --- it finds what is broken ------------------------------------------------------------------------------


def never(_: object) -> None:
    return None


@pytest.mark.parametrize(
    "rule",
    [
        Rule.LEVELS,
        Rule.KNOWN_TASK,
        Rule.FAN_OUT,
        Rule.CAPABLE,
        Rule.CYCLE,
        Rule.ASKS,
        Rule.OPEN_TASKS,
        Rule.BUDGET,
        Rule.READ_ONLY,
        Rule.REVISIONS,
    ],
)
def test_it_finds_a_rule_that_is_gone(rule: Rule, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(rules.RULES, rule, never)
    assert next(broken(), "") != ""


def broken() -> Iterator[str]:
    """Yield what is wrong; a log that no guard could have written is wrong, too."""
    for seed in range(STORIES):
        try:
            yield from Teller(seed).tell()
        except BrokenLog as error:
            yield repr(error)


BROKEN: list[Any] = [
    pytest.param(task_consequences, "doomed", lambda ledger: [], id="nothing-is-cancelled"),
    pytest.param(task_events, "_charge_unaccounted", lambda state, turn, began: None, id="silence-is-free"),
    pytest.param(tasks.TaskState, "reserved", property(lambda self: Usage()), id="nothing-is-reserved"),
    pytest.param(task_events, "next_worker", lambda *_: None, id="nothing-falls-back"),
    pytest.param(
        task_consequences,
        "is_joined",
        lambda known, join: not any(one.is_open for one in known.values()),
        id="any-waits-for-all",
    ),
    pytest.param(
        task_consequences,
        "untold",
        lambda known: tuple(one for one in known if not one.is_open),
        id="told-twice",
    ),
]


@pytest.mark.parametrize(("where", "name", "wrong"), BROKEN)
def test_it_finds_an_account_or_a_consequence_that_is_wrong(
    where: Any, name: str, wrong: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(where, name, wrong)
    assert next(broken(), "") != ""
