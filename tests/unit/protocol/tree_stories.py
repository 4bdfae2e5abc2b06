"""Random stories of trees: agents that plan, fail and deliver, and people who step in."""

import itertools
import random
from collections.abc import Iterator
from typing import Any

from msgspec.structs import replace

from mesh.ops.rerun import rerun_of
from mesh.replay.rejudge import rejudge
from protocol.domain.admission import Late, Rejected
from protocol.domain.ledger import fold_bodies
from protocol.domain.turns import TurnState
from protocol.wire.commands import (
    Assign,
    Cancel,
    Doubt,
    Failure,
    Freeze,
    MoveProposed,
    ReplyToAsk,
    Report,
    ReportFailure,
    ReportInDoubt,
    Resolve,
    Settle,
    Submit,
    Thaw,
    Usage,
)
from protocol.wire.config import Policy
from protocol.wire.guardrails import Guardrail, GuardrailWhen
from protocol.wire.handoff import Budget, Constraints
from protocol.wire.ids import AgentName
from protocol.wire.moves import Ask, Complete, Delegate, Deliver, Escalate, Fail, Move, Task
from tests.unit.protocol import anything
from tests.unit.protocol.oracle.jobs import Node
from tests.unit.protocol.oracle.tree import Tree
from tests.unit.protocol.trees import deliver
from tests.unit.protocol.worlds import Play, agent, ask, escalate, fact, give_up

FLEET = {
    "a": agent("a"),
    "b": agent("b", intents=("x", "y")),
    "c": agent("c", intents=("x",)),
    "d": agent("d", intents=("y",)),
    "e": agent("e"),
}
GUARDRAILS = (  # they look at what a task or a result brings itself
    Guardrail(
        name="no-three",
        looks_at=("facts.found", "facts.k"),
        forbid_pattern="^3$",
        when=GuardrailWhen(to=(AgentName("a"), AgentName("c"))),
    ),
    Guardrail(
        name="look",
        looks_at=("summary",),
        pattern="^(?:look|found)",
        when=GuardrailWhen(to=(AgentName("d"),)),
    ),
)
STORIES, STEPS = anything.STORIES // 2, 60
HELP = Submit(text="help me")


class Teller:
    """Plays one random story. Agents spend no more than they were given, as the runtime sees to it."""

    def __init__(self, seed: int, submit: Submit = HELP) -> None:
        self.seed, self.again = seed, submit.rerun_of is not None
        self.draw = random.Random(f"{seed} again" if self.again else seed)
        policy = Policy(
            topology="supervised",
            budget=self.draw.choice([None, Budget(tokens=2000), Budget(tokens=500, model_calls=200)]),
            max_levels=self.draw.choice([2, 3, 4, 4]),
            max_open_tasks=self.draw.choice([3, 8]),
            max_tasks=self.draw.choice([9, 50]),
            max_revisions=self.draw.choice([1, 3]),
            max_escalations=self.draw.choice([3, 9]),
            max_refusals=self.draw.choice([0, 9, 9]),
            max_retries=self.draw.choice([0, 1]),
            turn_timeout_s=100.0,
            max_asks=self.draw.choice([0, 1]),
            unattended_after_s=500.0,
            escalation_sla_s=self.draw.choice([None, 100.0]),
            human_deadline_s=self.draw.choice([None, 150.0, 86_400.0]),
            guardrails=self.draw.choice([(), (), GUARDRAILS]),
        )
        self.play = Play(fleet=dict(FLEET), policy=policy)
        self.play.send_submit(submit)
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
        return [str(judged.differences)] if not judged.same else self.done_again()

    def done_again(self) -> list[str]:
        """Return what is wrong with the same request begun once more, where it may be."""
        root, waits = self.oracle.root, {turn.agent for turn in self.waiting()}
        if self.again or root is None or (self.play.ledger.is_open and waits != {"human"}):
            return []
        again = rerun_of(self.play.events)
        first = next(iter(self.oracle.nodes.values()))
        if (again.agent, again.submit.constraints.budget or Budget()) != (root.agent, first.grant):
            return [f"done again by {again.agent} for {again.submit.constraints.budget}"]
        return Teller(self.seed, again.submit).tell()

    def learn(self) -> None:
        for event in self.play.events[self.heard :]:
            self.oracle.take(event)
        self.heard = len(self.play.events)

    def unlike(self) -> Iterator[str]:
        """Yield where the ledger stands otherwise than the oracle."""
        ledger = self.play.ledger
        for dimension in ("tokens", "model_calls"):
            spent = sum(node.own[dimension] + node.fine[dimension] for node in self.oracle.nodes.values())
            if getattr(ledger.spent, dimension) != spent:
                yield f"{spent} {dimension} are spent, and {getattr(ledger.spent, dimension)} by the ledger"
            for turn in ledger.open.values():
                node = self.oracle.nodes.get(turn.id)
                if node is not None and getattr(ledger.rest(turn), dimension) != node.left(dimension):
                    yield f"{turn.agent} has {node.left(dimension)} {dimension} left"
        if list(ledger.live.values()) != [one for one in ledger.tasks.values() if one.is_open]:
            yield f"{len(ledger.live)} tasks are taken to be open"
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
        elif chance < 0.08 or (chance < 0.7 and self.waiting()):
            self.step_in()
        elif chance < 0.15 or not turns:
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
        if self.draw.random() < 0.05 and turn.id not in self.deferred():
            effect = Doubt(step=f"{turn.round}-1", action="pay")
            said_ = ReportInDoubt(turn=turn.id, round=turn.round, effect=effect, report=report)
            self.play.event(self.play.propose(said_, turn.agent))
            return
        said = MoveProposed(turn=turn.id, round=turn.round, move=self.move(turn), report=report)
        self.play.finish()
        self.learn()
        event = self.play.propose(said, turn.agent)
        if not isinstance(event, Late | Rejected):
            self.oracle.wrong += self.oracle.complaints(said, event)

    # --- what people do ---------------------------------------------------------------------------

    def waiting(self) -> list[TurnState]:
        """Return the turns that wait for somebody's word."""
        return [
            turn
            for turn in self.play.ledger.open.values()
            if turn.agent == "human" or turn.state in ("suspended", "doubted")
        ]

    def step_in(self) -> None:
        """Somebody decides, answers, settles or takes something over, where it is due and where it is not."""
        play, draw = self.play, self.draw
        anywhere = draw.random() < 0.2 or not self.waiting()
        turn = draw.choice(list(play.ledger.turns.values()) if anywhere else self.waiting())
        about: dict[str, Any] = {"turn": turn.id}
        likely: dict[str, Any] = {"suspended": ReplyToAsk, "doubted": Settle}
        kind: Any = draw.choice([Assign, Resolve, ReplyToAsk, Settle])
        if not anywhere and draw.random() < 0.8:
            kind = likely.get(turn.state, Resolve)
        if kind in (ReplyToAsk, Settle):
            about["round"] = turn.round
        if kind is Assign:
            about["to"] = "Ada"
        elif kind is Settle:
            about["outcome"] = draw.choice(["done", "not_done"])
        elif kind is Resolve:
            about |= self.resolution()
        said = play.message(kind, **about)
        play.finish()
        self.learn()
        by = draw.choice(["human", "c1"]) if kind is ReplyToAsk else "human"
        right = self.oracle.obeyed(said, by, play.fleet)
        outcome = play.send_control(said, "c1" if by == "c1" else "op1")
        came = None if isinstance(outcome, Late | Rejected) else type(outcome)
        if came is not right:
            self.oracle.wrong.append(f"{said} became {outcome}, and {right} is right")

    def resolution(self) -> dict[str, Any]:
        draw = self.draw
        how: dict[str, Any] = draw.choice(
            [
                {},
                {"again": True},
                {"again": True},
                {"to": draw.choice(["a", "b", "nobody"])},
                {"complete": True, "answer": 1},
            ]
        )
        granted = draw.choice([None, Budget(tokens=300), Budget(tokens=50, model_calls=50)])
        return how if "complete" in how else {**how, "budget": granted, "facts": (fact("hint", 1),)}

    def deferred(self) -> list[str]:
        return [str(waiting.turn) for waiting in self.play.ledger.deferred]

    # --- what agents say --------------------------------------------------------------------------

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
            again = [escalate] * self.draw.choice([0, 0, 5])  # several turns of one lead
            kinds: list[Any] = [self.plan] * 20 + [
                self.complete,
                give_up,
                escalate,
                self.ask,
                deliver,
                *again,
            ]
        else:
            kinds = [self.plan] * 4 + [self.deliver] * 4 + [give_up, self.complete, escalate, self.ask]
        kind = draw.choice(kinds)
        move = kind(turn) if kind in (self.plan, self.deliver, self.complete, self.ask) else kind()
        assert isinstance(move, Delegate | Deliver | Complete | Fail | Escalate | Ask)
        return move

    def deliver(self, _: TurnState) -> Deliver:
        return deliver(fact("found", self.draw.randint(0, 9)), cancel_open=self.draw.random() < 0.5)

    def complete(self, _: TurnState) -> Complete:
        return Complete(answer=1, cancel_open=self.draw.random() < 0.5)

    def ask(self, _: TurnState) -> Ask:
        return ask(self.draw.choice(["human", "c1"]), expires_s=50.0)

    def plan(self, turn: TurnState) -> Delegate:
        draw, known = self.draw, self.oracle.nodes[turn.id].known
        ended = [name for name, job in known.items() if not job.live]
        live = [name for name, job in known.items() if job.live]
        at_least = 0 if live else 1
        join: Any = draw.choice(["all", "any", "any", 2])
        return Delegate(
            tasks=self.tasks(self.oracle.nodes[turn.id], ended, live, draw.choice([at_least, 1, 2, 3])),
            join=join,
            within_s=draw.choice([None, 50.0]),
            cancel=tuple(name for name in (*live, *ended) if draw.random() < 0.15),
        )

    def tasks(self, node: Node, ended: list[str], live: list[str], count: int) -> tuple[Task, ...]:
        """Return tasks, some of them named as an earlier turn of the same lead named its own."""
        free = [name for name in node.before if name not in node.jobs]
        found = []
        for _ in range(count):
            task = self.task(ended, live)
            if free and self.draw.random() < 0.6:
                task = replace(task, name=free.pop(self.draw.randrange(len(free))))
            found.append(task)
        return tuple(found)

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
            uses=tuple(dict.fromkeys(one for one in named if draw.random() < 0.2)),
            revises=draw.choice(named) if named and draw.random() < 0.3 else "",
            fallback=intent is not None and draw.random() < 0.3,
            constraints=Constraints(budget=asked, read_only=draw.random() < 0.2),
        )


def state_of(ledger: Any) -> Any:
    return (
        ledger.status,
        ledger.spent,
        [(turn.id, turn.state, turn.round) for turn in ledger.turns.values()],
        [
            (
                one.name,
                one.state,
                one.spent,
                one.reported,
                one.agents,
                one.attempts,
                one.revision,
                one.revised,
            )
            for one in ledger.tasks.values()
        ],
    )


def stories(first: int = 0, count: int = STORIES) -> Iterator[str]:
    """Yield what is wrong with so many stories."""
    for seed in range(first, first + count):
        for wrong in Teller(seed).tell():
            yield f"story {seed}: {wrong}"
