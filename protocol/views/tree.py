"""The tree of a request: its leads, their tasks, and each task's outcome and cost.

Like the timeline, it is derived from the ledger. An error three levels down is shown with its origin and the
code of each level above it.
"""

from collections.abc import Iterable, Iterator, Mapping

import msgspec

from protocol.domain import budget
from protocol.domain.ledger import Ledger
from protocol.domain.tasks import TaskState
from protocol.domain.turns import TurnState
from protocol.views.spending import Cost, cost_of
from protocol.wire.commands import Usage
from protocol.wire.event_parts import TaskError
from protocol.wire.events import TaskCancelled, TaskDelivered, TaskFailed
from protocol.wire.moves import Join
from protocol.wire.prices import Price


class ErrorLevel(msgspec.Struct, frozen=True, kw_only=True):
    """A failure as one level reported it."""

    code: str
    message: str
    agent: str
    attempts: int
    """Rounds that the agent began."""
    lineage: tuple[str, ...]
    """Holders from the root turn to that agent."""


class TreeNode(msgspec.Struct, frozen=True, kw_only=True):
    """A task or a root turn, with everything below it."""

    name: str = ""
    """The task's name. Empty for a root turn, like all fields that only tasks have."""
    level: int
    """1 for a root turn."""
    turn: str
    """The newest turn that does it; for an unclaimed offer, the offer's id."""
    agent: str
    """The agent that has it, or had it last; empty for an unclaimed offer."""
    agents: tuple[str, ...]
    """All agents that have held it, in order."""
    status: str
    """`planned`, `offered`, `delivered`, `failed` or `cancelled`; while it is open, the state of its turn:
    `working`, `delegated`, `suspended`, `failed`, `refused` or `doubted`. A root turn may also be `ended`."""
    asked: str
    """What is wanted, in one line."""
    intent: str
    """The kind of work; empty if none was given."""
    result: str = ""
    """What was delivered, in one line."""
    errors: tuple[ErrorLevel, ...] = ()
    """Why it failed: its own level first, the origin last."""
    why: str = ""
    """Why it was cancelled: `called_off`, `lead_ended`, or `request_ended`."""
    chosen: str = ""
    """Why the guard picked this agent; empty if the lead named it."""
    uses: tuple[str, ...] = ()
    revises: str = ""
    join: Join | None
    """The join that it waits for while it is `delegated`; otherwise None."""
    attempts: int
    """Rounds that it has begun."""
    own: Cost
    """What its own turns reported."""
    cost: Cost
    """The same, including everything below it."""
    began: int
    """UTC µs of the plan; for a root turn, of its opening."""
    ended: int | None
    """UTC µs."""
    tasks: tuple["TreeNode", ...]

    @property
    def is_open(self) -> bool:
        return self.ended is None


def trees(ledger: Ledger, prices: Mapping[str, Price]) -> tuple[TreeNode, ...]:
    """Return the tree of each root turn that delegated, in the order in which they were opened."""
    builder = _TreeBuilder(ledger, prices)
    return tuple(builder.root(turn) for turn in ledger.turns.values() if turn.task is None and turn.tasks)


def flat(nodes: Iterable[TreeNode]) -> Iterator[TreeNode]:
    """Yield all nodes of these trees, each before the nodes below it."""
    for node in nodes:
        yield node
        yield from flat(node.tasks)


class _TreeBuilder:
    def __init__(self, ledger: Ledger, prices: Mapping[str, Price]) -> None:
        self._ledger, self._prices = ledger, prices
        self._turns: dict[int, list[TurnState]] = {}
        """By the task's `id()`: the turns that did it."""
        for turn in ledger.turns.values():
            if turn.task is not None:
                self._turns.setdefault(id(turn.task), []).append(turn)

    def root(self, turn: TurnState) -> TreeNode:
        tasks = tuple(map(self.task, turn.tasks.values()))
        own = turn.report.usage
        return TreeNode(
            level=1,
            turn=turn.id,
            agent=turn.agent,
            agents=(turn.agent,),
            status=turn.state,
            asked=turn.summary,
            intent=turn.frame.intent or "",
            join=turn.join if turn.state == "delegated" else None,
            attempts=turn.round + 1,
            own=cost_of(own, self._prices),
            cost=self._whole(own, tasks),
            began=turn.opened_at,
            ended=None if turn.end is None else turn.end.at,
            tasks=tasks,
        )

    def task(self, task: TaskState) -> TreeNode:
        turns = self._turns.get(id(task), [])
        newest = turns[-1] if turns and task.state == "open" else None
        tasks = tuple(self.task(each) for turn in turns for each in turn.tasks.values())
        own = budget.total(turn.report.usage for turn in turns)
        end, over = task.ended, self._ledger.ended
        return TreeNode(
            name=task.name,
            level=task.level,
            turn=task.turn,
            agent=task.agents[-1] if task.agents else task.planned.agent,
            agents=task.agents,
            status=task.state if newest is None else newest.state,
            asked=task.planned.task.summary,
            intent=task.planned.task.intent or "",
            result=end.summary if isinstance(end, TaskDelivered) else "",
            errors=tuple(levels_of(end.error)) if isinstance(end, TaskFailed) else (),
            why=end.why if isinstance(end, TaskCancelled) else "" if task.is_open or end else "request_ended",
            chosen=task.planned.why,
            uses=task.planned.task.uses,
            revises=task.planned.task.revises,
            join=newest.join if newest is not None and newest.state == "delegated" else None,
            attempts=task.attempts,
            own=cost_of(own, self._prices),
            cost=self._whole(own, tasks),
            began=task.since,
            ended=end.at if end is not None else None if task.is_open or over is None else over.at,
            tasks=tasks,
        )

    def _whole(self, own: Usage, tasks: Iterable[TreeNode]) -> Cost:
        whole = cost_of(own, self._prices)
        for task in tasks:
            below = task.cost
            whole = Cost(
                nano_dollars=whole.nano_dollars + below.nano_dollars,
                tokens=whole.tokens + below.tokens,
                model_calls=whole.model_calls + below.model_calls,
                unpriced=whole.unpriced or below.unpriced,
            )
        return whole


def levels_of(error: TaskError | None) -> Iterator[ErrorLevel]:
    """Yield a failure as each level reported it, from the task itself down to the origin."""
    while error is not None:
        yield ErrorLevel(
            code=error.code,
            message=error.message,
            agent=error.agent,
            attempts=error.attempts,
            lineage=error.lineage,
        )
        error = error.origin
