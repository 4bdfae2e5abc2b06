"""A swarm at play: its root, the tasks that it offers, and what its agents say."""

from typing import Any

from mesh.replay.rejudge import rejudge
from mesh.testing import InMemoryGuard
from protocol.domain.turns import TurnState
from protocol.wire.commands import FactsPost, Failure, MoveProposed, Report, ReportFailure
from protocol.wire.config import AgentEntry, Fleet, Policy
from protocol.wire.events import AnyEvent, MoveRefused, TaskOffered
from protocol.wire.handoff import Fact, Rule
from protocol.wire.ids import AgentName
from protocol.wire.moves import Delegate, Move, Task
from tests.certain import is_
from tests.unit.protocol.worlds import agent

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
        return self.guard.claim(self.offers()[name].offer.turn, by)

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


def fleet_of(agents: dict[str, AgentEntry]) -> Fleet:
    """Return the fleet of a swarm with these agents alone."""
    return Fleet(name="swarm", entry=AgentName("a"), agents=agents, clients=FLEET.clients, human=True)


def task(name: str = "one", intent: str | None = "read", *facts: Fact, **rest: Any) -> Task:
    return Task(name=name, summary=f"read {name}", intent=intent, facts=facts, **rest)


def claimed(*facts: Fact, **rest: Any) -> Swarm:
    """Return a swarm whose only task, `one`, `b` has claimed."""
    play = Swarm(*facts, **rest)
    play.delegate(task("one"))
    play.claim("one", "b")
    return play


def again(play: Swarm, after_s: float = 29.0) -> list[TaskOffered]:
    """Let the time to claim run out after `after_s`, and not before; return what is offered again."""
    assert play.guard.wait(after_s) == []
    return [is_(event, TaskOffered) for event in play.guard.wait(1.5)]


def refused(event: AnyEvent) -> Rule:
    assert isinstance(event, MoveRefused), event
    return event.refusal.rule
