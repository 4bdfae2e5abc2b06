"""Results: what became of a task, as one reader is told of it; and the error of one that failed."""

from collections.abc import Collection

import msgspec

from protocol.domain.layers import is_cleared
from protocol.domain.tasks import TaskState
from protocol.domain.turns import TurnState
from protocol.wire.assignment import TaskError, TaskResult, Withheld
from protocol.wire.events import TaskDelivered, TaskFailed
from protocol.wire.handoff import Artifact, Fact

MAX_JOIN_BYTES = 524_288
"""What the results that one event brings may come to, as JSON: half of what the bus takes of a message."""


def result_of(task: TaskState, clearance: Collection[str] | None = None) -> TaskResult:
    """Return what became of a task that ended, as somebody with this clearance (None: for all) is told."""
    end = task.ended
    assert end is not None
    assert task.state in ("delivered", "failed", "cancelled")
    facts: tuple[Fact, ...] = ()
    artifacts: tuple[Artifact, ...] = ()
    summary, withheld = "", None
    if isinstance(end, TaskDelivered):
        summary = end.summary
        facts = tuple(fact for fact in end.facts if clearance is None or is_cleared((fact,), clearance))
        artifacts = tuple(one for one in end.artifacts if clearance is None or is_cleared((one,), clearance))
        withheld = _withheld(end, facts, artifacts)
    return TaskResult(
        name=task.name,
        task=task.turn,
        status=task.state,
        agent=task.agents[-1] if task.agents else task.addressee,
        agents=task.agents if len(task.agents) > 1 else (),
        summary=summary,
        facts=facts,
        artifacts=artifacts,
        error=end.error if isinstance(end, TaskFailed) else None,
        withheld=withheld,
        cost=task.spent,
        attempts=task.attempts,
        duration_s=(end.at - task.since) / 1e6,
    )


def _withheld(
    end: TaskDelivered, facts: tuple[Fact, ...], artifacts: tuple[Artifact, ...]
) -> Withheld | None:
    hidden: list[Fact | Artifact] = [one for one in end.facts if one not in facts]
    hidden += [one for one in end.artifacts if one not in artifacts]
    if not hidden:
        return None
    return Withheld(
        labels=tuple(sorted({label for one in hidden for label in one.labels})),
        facts=len(end.facts) - len(facts),
        artifacts=len(end.artifacts) - len(artifacts),
    )


def size_of(task: TaskState) -> int:
    """Return how many bytes the whole result of a task comes to, as JSON."""
    return len(msgspec.json.encode(result_of(task)))


def error_of(turn: TurnState, code: str, message: str) -> TaskError:
    """Return the error of a task whose turn came to nothing.

    Its origin is the newest of the turn's own tasks that failed and that no later one made good.
    """
    return TaskError(
        code=code,
        message=message,
        agent=turn.agent,
        attempts=turn.round + 1,
        lineage=turn.work.path,
        origin=_origin(turn),
    )


def _origin(turn: TurnState) -> TaskError | None:
    made_good = {task.planned.task.revises for task in turn.tasks.values() if task.state == "delivered"}
    for task in reversed(turn.tasks.values()):
        if isinstance(task.ended, TaskFailed) and task.told and task.name not in made_good:
            return task.ended.error
    return None
