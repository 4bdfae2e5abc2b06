"""Guards that die between any two events, while all around them changes: no log can tell, or be told from it.

A random request of any topology is played three times: by one guard; by guards that die and whose work the
next one takes up, which leave the very same log; and so with a fleet, policy, memory and clock that change at
each death. There a message waits until others were decided. The log is judged again to the letter each time.
"""

import itertools
import random
import re
from typing import Any

import pytest
from msgspec.structs import replace

from mesh.replay.rejudge import rejudge
from protocol.domain.breaker import Permit
from protocol.domain.decider import RequestDecider
from protocol.domain.ledger import fold_bodies
from protocol.domain.steps import NeedVerdictContext, Stored, VerdictContext
from protocol.domain.turns import TurnState
from protocol.views.timeline import timeline
from protocol.wire import commands
from protocol.wire.commands import Command, MoveProposed, Submit
from protocol.wire.config import Fleet, Policy
from protocol.wire.events import AnyEvent, FactsWithheld
from protocol.wire.handoff import Constraints, Fact
from protocol.wire.ids import AgentName
from protocol.wire.moves import (
    Ask,
    Complete,
    Delegate,
    Deliver,
    Escalate,
    Fail,
    HandBack,
    Move,
    Task,
    Transfer,
)
from tests.unit.protocol import anything
from tests.unit.protocol.test_ledger import state
from tests.unit.protocol.worlds import Play, agent, fact

STORIES, STEPS = anything.STORIES // 3, 25
NAMES, LABELS = "abcde", ("pii", "vip")
VALUE = re.compile(rb'"(s-\d+)"')


class Died(Exception):
    """The guard is gone, or another one was first."""


class Story(Play):
    """A random request.

    Args:
        deaths: how likely a guard dies at an event, before or after it is stored.
        changes: True if the world changes at deaths, and what was not decided may wait.
    """

    def __init__(self, seed: int, deaths: float = 0.0, *, changes: bool = False) -> None:
        super().__init__()
        self.draw, self.fate = random.Random(seed), random.Random(f"{seed} fate")
        self.deaths, self.changes = deaths, changes
        self.pending: list[Command] = []
        self.labels: dict[str, tuple[str, ...]] = {}
        self.numbers, self.died = itertools.count(), 0
        self.cleared = {name: set[str]() for name in NAMES}
        """By agent: all labels that it was ever cleared for."""
        self.brought: dict[str, tuple[str, set[str]]] = {}
        """By value of a fact: who brought it, and under which labels."""
        for name in NAMES:
            self.hire(name, self.draw)
        self.topology = self.draw.choice(["handoff", "handoff", "supervised", "swarm"])
        self.policy = Policy(
            topology=self.topology,
            max_refusals=self.draw.choice([0, 2, 9]),
            max_retries=self.draw.choice([0, 1]),
            retry_backoff_s=0.0,
            max_escalations=self.draw.choice([0, 2]),
            escalation_sla_s=self.draw.choice([None, 50.0]),
            human_deadline_s=self.draw.choice([None, 80.0, 86_400.0]),
            claim_within_s=30.0,
            turn_timeout_s=100.0,
            max_handoff_bytes=self.draw.choice([65_536, 3_000]),
        )
        self.memory = self.facts("mo")

    def tell(self) -> "Story":
        talk = self.draw.choice([None, "talk"])
        self.send_submit(Submit(text="go", facts=self.facts("klm"), conversation=talk))
        for _ in range(STEPS):
            if self.pending and self.fate.random() < 0.3:
                self.process(self.pending.pop(self.fate.randrange(len(self.pending))))
            if self.ledger.is_open:
                self.step()
        self.deaths = 0.0
        while self.pending:
            self.process(self.pending.pop())
        self.finish()
        return self

    # --- guards that die ------------------------------------------------------------------------------

    def store(self, event: AnyEvent) -> Stored:
        self.maybe_die(self.deaths / 2)
        stored = super().store(event)
        self.maybe_die(self.deaths * (3 if type(event) is FactsWithheld else 1))
        return stored

    def maybe_die(self, likely: float) -> None:
        if self.fate.random() < likely:
            self.died += 1
            raise Died

    def process(self, command: Command) -> Any:
        while True:
            try:
                return super().process(command)
            except Died:
                self.next_guard()
            if self.changes and self.fate.random() < 0.5:
                self.pending.append(command)
                return None

    def finish(self) -> list[AnyEvent]:
        while True:
            try:
                return super().finish()
            except Died:
                self.next_guard()

    def next_guard(self) -> None:
        self.decider = RequestDecider(fold_bodies(self.bodies))
        for _ in range(self.fate.randint(0, 3) if self.changes else 0):
            self.change(self.fate)

    # --- a world that changes -------------------------------------------------------------------------

    def change(self, draw: random.Random) -> None:
        name = draw.choice(NAMES)
        match draw.randrange(8):
            case 0:
                self.hire(name, draw)
            case 1:
                self.fleet.pop(name, None)
            case 2:
                self.breakers[name] = draw.choice(["open", "closed", "half_open", Permit("open", 1, 2)])
            case 3:
                small = Policy(topology=self.topology, max_handoff_bytes=100)
                self.policy = draw.choice([None, small, Policy(topology=self.topology)])
            case 4:
                self.memory = self.facts("mo", draw=draw)
            case 5:
                self.now += draw.choice([1, 60_000_000, 200_000_000])
            case 6:
                self.labels = draw.choice([{}, {"k": ("pii",)}, {"m": ("vip",), "l": ("pii",)}])
            case _:
                self.human, self.served, self.begun = (draw.random() < 0.5 for _ in range(3))

    def hire(self, name: str, draw: random.Random) -> None:
        clearance = tuple(label for label in LABELS if draw.random() < 0.4)
        self.cleared[name] |= set(clearance)
        intents, to = draw.choice([("x",), ("y",), ("x", "y"), None]), draw.choice([None, None, ("a", "b")])
        self.fleet[name] = agent(name, clearance=clearance, intents=intents, to=to)

    @property
    def whole_fleet(self) -> Fleet:
        return replace(super().whole_fleet, labels=self.labels)

    def verdict_context(self, need: NeedVerdictContext) -> VerdictContext:
        context = super().verdict_context(need)
        if isinstance(need.command.what, Submit) and need.command.what.conversation:
            return context._replace(memory=self.memory)
        return context

    # --- what may happen ------------------------------------------------------------------------------

    def step(self) -> None:
        draw, ledger = self.draw, self.ledger
        turns = [turn for turn in ledger.open.values() if turn.agent != "human"]
        working = [turn for turn in turns if turn.state == "working"]
        waiting = [turn for turn in ledger.open.values() if turn not in turns or turn.asked or turn.doubted]
        chance = draw.random()
        if chance < 0.05 or (ledger.frozen_at is not None and chance < 0.4):
            kind = commands.Freeze if ledger.frozen_at is None else commands.Thaw
            self.send_control(kind(id=self.number()))
        elif chance < 0.3 and waiting:
            self.decide(draw.choice(waiting))
        elif chance < 0.36 or not working:
            self.wait(draw.choice([1, 31, 101]))
        elif chance < 0.6 and ledger.offers:
            offer = draw.choice(list(ledger.offers)[-4:])
            self.propose(commands.OfferClaimed(turn=offer, round=0), draw.choice(NAMES))
        else:
            self.speak(draw.choice(working))

    def decide(self, turn: TurnState) -> None:
        draw, about = self.draw, dict[str, Any](id=self.number(), turn=turn.id)
        if turn.state == "suspended":
            self.send_control(commands.ReplyToAsk(**about, round=turn.round, value="yes"))
        elif turn.state == "doubted":
            self.send_control(commands.Settle(**about, round=turn.round, outcome="done"))
        else:
            to = AgentName(draw.choice(NAMES))
            how: dict[str, Any] = draw.choice(
                [{}, {"again": True}, {"to": to}, {"to": to}, {"complete": True}]
            )
            self.send_control(commands.Resolve(**about, **how, facts=self.facts("kl")))

    def speak(self, turn: TurnState) -> None:
        draw, chance = self.draw, self.draw.random()
        report = commands.Report(usage=commands.Usage(tokens=draw.choice([0, 0, 5])))
        own: dict[str, Any] = {"turn": turn.id, "round": turn.round, "report": report}
        if chance < 0.06:
            self.propose(commands.ReportFailure(**own, error=commands.Failure(code="boom")), turn.agent)
        elif chance < 0.1:
            doubt = commands.Doubt(step="1-1", action="pay")
            self.propose(commands.ReportInDoubt(**own, effect=doubt), turn.agent)
        elif chance < 0.3 and self.topology == "swarm":
            post = commands.FactsPost(**own, post=int(self.number()), facts=self.facts("kz", turn.agent))
            self.propose(post, turn.agent)
        else:
            self.propose(MoveProposed(**own, move=self.move_of(turn)), turn.agent)

    def move_of(self, turn: TurnState) -> Move:
        draw, shown = self.draw, [known.key for known in turn.work.handoff.facts]
        asks = [Ask(to_agent=AgentName(to), question="q") for to in ("c1", "human")]
        moves: list[Move] = [
            *asks,
            Escalate(summary="e", facts=self.facts("kl", turn.agent)),
        ]
        some = [key for key in shown if draw.random() < 0.2]
        if self.topology == "handoff":
            to, drop = AgentName(draw.choice(NAMES)), tuple(key for key in shown if draw.random() < 0.1)
            limits = Constraints(must_carry=tuple(key for key in some if key not in drop))
            brings = dict[str, Any](summary="s", facts=self.facts("klm", turn.agent), drop=drop)
            moves += [Transfer(to_agent=to, **brings, constraints=limits)] * 8
            moves += [HandBack(**brings)] * 4
        elif turn.task is None or draw.random() < 0.2:
            live = [task.name for task in turn.tasks.values() if task.is_open]
            plan = tuple(self.task(turn) for _ in range(draw.randint(0 if live else 1, 2)))
            moves += [Delegate(tasks=plan, join=draw.choice(["any", "all"]))] * 8
        if turn.task is not None:
            moves += [Deliver(summary="d", facts=self.facts("kl", turn.agent), cancel_open=True)] * 8
        else:
            keys = tuple(key for key in some if key not in ("text", "m", "o"))
            left = dict[str, Any](remember=self.facts("mo", turn.agent), remember_keys=keys)
            moves += [Complete(answer="done", cancel_open=True, **left)] * 2
        return draw.choice([*moves, Fail(reason="no")])

    def task(self, lead: TurnState) -> Task:
        draw = self.draw
        to = None if self.topology == "swarm" or draw.random() < 0.4 else AgentName(draw.choice(NAMES))
        over = tuple(task.name for task in lead.tasks.values() if not task.is_open)
        return Task(
            name=self.number(),
            summary="do",
            to_agent=to,
            intent=draw.choice("xy"),
            facts=self.facts("kl", lead.agent),
            carry=draw.choice([None, ("k",), ()]),
            uses=over[:1],
            fallback=draw.random() < 0.5,
        )

    def facts(self, keys: str, by: str = "", draw: random.Random | None = None) -> tuple[Fact, ...]:
        """Return some facts that `by` brings, each with a value of its own."""
        draw, found = draw or self.draw, list[Fact]()
        for key in keys:
            if draw.random() < 0.5:
                labels = tuple(label for label in LABELS if draw.random() < 0.35)
                found.append(fact(key, f"s-{next(self.numbers)}", *labels))
                self.brought[found[-1].value] = by, set(labels)
        return tuple(found)

    def number(self) -> str:
        return str(next(self.numbers))


@pytest.mark.parametrize("seed", range(STORIES))
def test_guards_that_die_leave_the_log_of_one_that_lives(seed: int) -> None:
    alone, many = Story(seed).tell(), Story(seed, 0.15).tell()
    assert many.bodies == alone.bodies
    assert rejudge(alone.bodies).same


@pytest.mark.parametrize("seed", range(STORIES))
def test_guards_that_die_while_all_changes_leave_a_log_that_is_judged_again(seed: int) -> None:
    story = Story(seed, 0.15, changes=True).tell()
    again = rejudge(story.bodies)
    assert again.same, again
    assert state(fold_bodies(story.bodies)) == state(story.ledger)
    assert timeline(story.events).status == story.ledger.status
    for event, body in zip(story.events, story.bodies, strict=True):
        for value in map(bytes.decode, VALUE.findall(body) if event.to in NAMES else ()):
            by, labels = story.brought[value]
            assert by == event.to or labels <= story.cleared[event.to], f"{event.to} is shown {value}"


def test_the_stories_tell_of_what_they_are_for() -> None:
    stories = [Story(seed, 0.15, changes=True).tell() for seed in range(STORIES)]
    kinds = {type(event).__name__ for story in stories for event in story.events}
    assert sum(story.died for story in stories) > STORIES
    assert {"HandoffAdmitted", "TaskOpened", "FactsPosted", "EscalationResolved", "MoveDeferred"} <= kinds
    assert {"RequestCompleted", "RequestFailed", "TurnSuspended", "MoveRefused", "TaskFailed"} <= kinds
