"""Trees: requests under `supervised`, played as small worlds are. Turns are named by the tasks they do."""

from typing import Any

from mesh.replay.rejudge import rejudge
from protocol.domain.turns import TurnState
from protocol.wire.commands import Failure, MoveProposed, Report, ReportFailure
from protocol.wire.config import AgentEntry, Policy
from protocol.wire.event_parts import TaskResult
from protocol.wire.events import AnyEvent, TaskOpened, TurnDelegated
from protocol.wire.handoff import Budget, Constraints, Fact, Refusal
from protocol.wire.ids import AgentName
from protocol.wire.moves import Delegate, Deliver, Move, Task
from tests.certain import is_
from tests.unit.protocol.happened import refused
from tests.unit.protocol.worlds import NO_REPORT, Play, agents, opened, told

SUPERVISED = Policy(name="supervised", topology="supervised")


def task(name: str = "one", to: str | None = "b", *facts: Fact, **rest: Any) -> Task:
    agent = None if to is None else AgentName(to)
    return Task(name=name, summary=f"do {name}", to_agent=agent, facts=facts, **rest)


def delegate(*tasks: Task, **rest: Any) -> Delegate:
    return Delegate(tasks=tasks, **rest)


def deliver(*facts: Fact, summary: str = "found", **rest: Any) -> Deliver:
    return Deliver(summary=summary, facts=facts, **rest)


def grant(**amounts: int) -> Constraints:
    return Constraints(budget=Budget(**amounts))


def tree(
    *tasks: Task,
    fleet: dict[str, AgentEntry] | None = None,
    policy: dict[str, Any] | None = None,
    **rest: Any,
) -> Play:
    """Return a play whose root turn, `a`, has delegated these tasks; with none, it has not yet."""
    rules = Policy(**{"name": "supervised", "topology": "supervised", **(policy or {})})
    play = opened(fleet=fleet or agents("abcdef"), policy=rules, **rest)
    if tasks:
        play.move(delegate(*tasks))
    return play


def informed(*facts: Fact, policy: Policy = SUPERVISED, **constraints: Any) -> Play:
    """Return a play whose client brought these facts, under these constraints."""
    return told(*facts, policy=policy, **constraints)


def worker(play: Play, name: str) -> TurnState:
    """Return the open turn that does a task of this name."""
    found = [turn for turn in play.ledger.open.values() if turn.task is not None and turn.task.name == name]
    assert len(found) == 1, f"{len(found)} open turns do {name}"
    return found[0]


def turn_of(play: Play, who: str) -> TurnState:
    return play.holder if who == "" else worker(play, who)


def say(play: Play, who: str, move: Move, report: Report = NO_REPORT) -> AnyEvent:
    """The turn that does task `who` (the root's, of no name) asks for a move."""
    turn = turn_of(play, who)
    proposal = MoveProposed(turn=turn.id, round=turn.round, move=move, report=report)
    return play.event(play.propose(proposal, turn.agent))


def refusal_of(play: Play, who: str, move: Move, report: Report = NO_REPORT) -> Refusal:
    """Return why a move is refused; the log with it replays the same."""
    found = refused(say(play, who, move, report))
    assert rejudge(play.bodies).same
    return found


def admitted(play: Play, move: Delegate) -> TurnDelegated:
    """Return the event of a root's delegation; the log with it replays the same."""
    found = is_(say(play, "", move), TurnDelegated)
    assert rejudge(play.bodies).same
    return found


def breaks(play: Play, who: str, report: Report = NO_REPORT, **error: Any) -> AnyEvent:
    """The turn that does task `who` breaks."""
    turn = turn_of(play, who)
    failure = Failure(**{"code": "boom", "message": "it broke", "permanent": True, **error})
    return play.event(
        play.propose(ReportFailure(turn=turn.id, round=turn.round, error=failure, report=report), turn.agent)
    )


def results(play: Play, who: str = "") -> dict[str, TaskResult]:
    """Return by name the results that a lead was told in its newest round."""
    return {result.name: result for result in turn_of(play, who).work.results}


def opened_tasks(play: Play) -> list[tuple[str, str]]:
    """Return (name, agent) of each task that was opened, in order."""
    return [(event.name, event.to) for event in play.events if isinstance(event, TaskOpened)]


def kinds(happened: list[AnyEvent]) -> list[str]:
    return [type(event).__name__ for event in happened]
