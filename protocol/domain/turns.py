"""Turns as folded from the log, their next rounds, and the path of a request.

Every inbox event of a turn contains the turn's earlier rounds, and the bus limits the size of events. The
event that ended a round has everything. Later rounds get a short form (`remembered`): cut texts, and a large
move without its payload. Replies are kept whole: the code runs again with them, and they are few and limited.

`transfer` pushes a frame, `hand_back` pops down to an earlier one. A segment begins at the entry agent, or
with a person's resolution. Path, depth, edges and seals belong to the segment.
"""

from collections.abc import Collection, Mapping
from types import MappingProxyType
from typing import Literal

import msgspec
from msgspec import json
from msgspec.structs import replace

from protocol.domain import budget
from protocol.domain.carried import NOTHING, Carried, is_cleared, together
from protocol.domain.tasks import TaskState, committed, open_of
from protocol.wire.commands import Failure, Report
from protocol.wire.config import AgentEntry, Policy
from protocol.wire.event_parts import Assignment, Posted, RoundOutcome, TaskError, TaskResult
from protocol.wire.events import AnyEvent, TaskFailed
from protocol.wire.handoff import Budget, Constraints, Fact, Handoff, Refusal, Rule
from protocol.wire.ids import AgentName, Cause, TurnId, draw, due_cause
from protocol.wire.moves import Ask, Join, Move, cut

State = Literal["working", "failed", "refused", "suspended", "doubted", "delegated", "ended"]

NO_REPORT = Report()


Board = dict[tuple[AgentName, str], Fact]
"""The newest fact by agent and key."""


def posted(board: Board, clearance: Collection[str] | None) -> tuple[Posted, ...]:
    """Return the part of a board that a reader with this clearance (None: for everything) may see."""
    return tuple(
        Posted(by=by, fact=fact)
        for (by, _), fact in board.items()
        if clearance is None or is_cleared((fact,), clearance)
    )


class TurnEnd(msgspec.Struct, frozen=True, gc=False):
    """What ended a turn: the parts of the event that are needed later."""

    n: int
    at: int
    """UTC µs."""
    cause: Cause

    @classmethod
    def read(cls, event: AnyEvent) -> "TurnEnd":
        return cls(event.n, event.at, event.cause)


class TurnState(msgspec.Struct, gc=False, kw_only=True):
    """One agent's work on one handoff, as folded from the log."""

    id: TurnId
    agent: AgentName
    given: Assignment | None
    """What its newest round was given. None once the turn and all its tasks are over; the log has it."""
    path: tuple[AgentName, ...]
    """Its lineage: holders from the entry agent to its own."""
    journal_id: TurnId
    """The turn id under which its steps are journaled."""
    summary: str
    """What it was asked for."""
    segment: "Segment"
    """The segment that it belongs to."""
    hidden: Carried = NOTHING
    """What it carries that its agent may not see."""
    opened_at: int
    round: int = 0
    round_n: int = 0
    """Number of the event that opened the newest round."""
    clock: int = 0
    """UTC µs at which the newest round opened, and its clock started."""
    state: State = "working"
    since_n: int = 0
    """Number of the event that put it into its state."""
    due_at: int | None = None
    """UTC µs of what it waits for: a retry, an ask's expiry, or a join's limit."""
    waits_since: int = 0
    """UTC µs since when it has waited for that, or for people; an escalation since it was first raised."""
    reason: str = ""
    """Why it must escalate, once it must; for a person's turn, why it was first escalated."""
    refusals: int = 0
    failures: int = 0
    asks: int = 0
    ask: Ask | None = None
    """The open question of a suspended turn."""
    approval: str = ""
    """The digest that a suspended turn's ask wants approved; empty for an ordinary question."""
    doubted: str = ""
    """The step whose effect is in doubt."""
    past: tuple[RoundOutcome, ...] = ()
    report: Report = NO_REPORT
    reported: bool = False
    unaccounted: bool = False
    """True if a guard ended one of its rounds after it began, so that its cost is unknown."""
    tier: int = 0
    """Escalations: how often it was raised."""
    instead_of: TurnId | None = None
    """A person's turn: the agent's turn that the escalation ended."""
    person: str = ""
    """A person's turn: the person that it is assigned to."""
    posts: int = 0
    """How often it posted to the board."""
    fell_back: bool = False
    """True if its agent got the work as another one's fallback."""
    end: TurnEnd | None = None

    @property
    def work(self) -> Assignment:
        """What its newest round was given. Raises LookupError once that was dropped."""
        if self.given is None:
            raise LookupError(f"turn {self.id} is over: only the log has what it was given")
        return self.given

    @property
    def asked(self) -> AgentName | None:
        """The name that must reply while it is suspended."""
        return None if self.ask is None else self.ask.to_agent

    @property
    def frame(self) -> "Frame":
        """The frame of an agent's turn."""
        return self.segment.top

    @property
    def known_tasks(self) -> dict[str, TaskState]:
        """Its tasks by name, and those of the turn that it continues."""
        return {**self.before, **self.tasks} if self.before else self.tasks

    task: TaskState | None = None
    """The task that it does; None for a root turn and for a person's."""
    tasks: dict[str, TaskState] = {}
    """Leads: its tasks by name, in the order in which they were planned."""
    before: Mapping[str, TaskState] = MappingProxyType({})
    """If it continues another turn: that turn's tasks. All are over; their results may be used."""
    join: Join = "all"
    """What a lead waits for while it is `delegated`."""
    waited: int = 0
    """Leads: how often its own time limit passed before any task had ended."""
    entry: AgentEntry | None = None
    """Its agent's entry in the fleet as of its newest plan, or of when a person gave it the work."""
    board: Board | None = None
    """Swarms: the request's board, which keeps changing."""

    def carried(self) -> Carried:
        """Return everything that it carries, withheld or not."""
        held = self.work.handoff
        return together(Carried.collect(held.facts, held.artifacts), self.hidden)


def summed_up(turn: TurnState, report: Report) -> Report:
    """Return a turn's newest report, with its usage no lower than any reported before."""
    if turn.report is NO_REPORT:
        return report
    usage = budget.larger(turn.report.usage, report.usage)
    return report if usage == report.usage else replace(report, usage=usage)


def next_round(
    turn: TurnState,
    past: RoundOutcome | None,
    report: Report | None = None,
    results: tuple[TaskResult, ...] | None = None,
) -> Assignment:
    """Return a turn's work for its next round: the same handoff, and how the last round ended.

    Args:
        past: None if the ledger already has it (a failure is an event of its own).
        report: the newest report, if it comes with the proposal that is being decided.
        results: results of tasks that ended since; None for those of the last round, which may not have read
            them.
    """
    ended = turn.past if past is None else (*turn.past, past)
    reported = turn.report if report is None else summed_up(turn, report)
    work = replace(turn.work, round=turn.round + 1, past=ended, reported=reported)
    if turn.tasks:
        waiting = tuple(task.name for task in open_of(turn.tasks.values()))
        work = replace(work, waiting=waiting, committed=committed(turn.tasks.values()))
    if turn.board:
        known = turn.entry or (None if turn.task is None else turn.task.entry)
        work = replace(work, board=posted(turn.board, () if known is None else known.clearance))
    return work if results is None else replace(work, results=results)


def retry_at(turn: TurnState, error: Failure, policy: Policy, now: int, cause: str) -> int | None:
    """Return when (UTC µs) a failed round is retried; None if it is not.

    Exponential backoff with "equal jitter": half of the wait is fixed and half is drawn, so that turns that
    failed together do not retry together. The draw depends on the failure's id, so every guard and every
    replay draws the same. A `retry_after_s` can only delay it further.
    """
    if error.permanent or turn.failures >= policy.max_retries:
        return None
    backoff = min(policy.retry_backoff_s * 2.0 ** min(turn.failures, 64), policy.retry_backoff_max_s)
    wait = max(backoff * (0.5 + 0.5 * draw("jitter", cause)), error.retry_after_s or 0.0)
    return now + int(wait * 1e6)


MAX_MOVE_BYTES = 16_384
MAX_NUMBERS_BYTES = 8_192


def remembered(past: RoundOutcome) -> RoundOutcome:
    """Return the short form of an earlier round for later rounds. Idempotent."""
    move, refusal, failure = past.move, past.refusal, past.failure
    return replace(
        past,
        move=None if move is None else _short_move(move, refusal),
        refusal=None if refusal is None else _short_refusal(refusal),
        failure=None if failure is None else _short_failure(failure),
    )


def _short_move(move: Move, refusal: Refusal | None) -> Move:
    too_large = refusal is not None and refusal.rule == Rule.SIZE
    if too_large or len(json.encode(move)) > MAX_MOVE_BYTES:
        move = move.without_payload()
    return move if len(json.encode(move)) <= MAX_MOVE_BYTES else move.summarize()


def _short_refusal(refusal: Refusal) -> Refusal:
    few = len(json.encode(refusal.numbers)) <= MAX_NUMBERS_BYTES
    return replace(
        refusal,
        detail=cut(refusal.detail),
        hint=cut(refusal.hint),
        numbers=refusal.numbers if few else {},
    )


def _short_failure(failure: Failure) -> Failure:
    return replace(failure, code=cut(failure.code), message=cut(failure.message))


def error_of(turn: TurnState, code: str, message: str) -> TaskError:
    """Return the error of a task whose turn failed.

    Its origin is the newest failed task of the turn that no later task has revised successfully.
    """
    return TaskError(
        code=code,
        message=message,
        agent=turn.agent,
        attempts=turn.round + 1,
        lineage=turn.path,
        origin=_origin(turn),
    )


def _origin(turn: TurnState) -> TaskError | None:
    made_good = {task.planned.revises for task in turn.tasks.values() if task.state == "delivered"}
    for task in reversed(turn.tasks.values()):
        if isinstance(task.ended, TaskFailed) and task.reported and task.planned.turn not in made_good:
            return task.ended.error
    return None


def fallback_cause(request: str, turn: TurnState) -> Cause:
    """Return the cause of the event that gives a failed turn's work to its agent's fallback."""
    return due_cause(request, "handoff.admitted", turn.id, turn.since_n)


class Frame(msgspec.Struct, frozen=True, gc=False):
    """One holder on the path, with its constraints."""

    agent: AgentName
    giver: AgentName
    """The client, agent or `human` that gave it the work."""
    return_to: AgentName | None
    constraints: Constraints
    """Its own constraints: absolute deadline, actions, and keys that must be carried. No budget."""
    ceiling: Budget
    sealed: bool = False
    """True if it was opened with `no_return`: nothing goes back beneath it."""
    intent: str | None = None
    """The intent for which it got the work. A hand-back to it has the same intent."""

    @classmethod
    def open(cls, handoff: Handoff, ceiling: Budget) -> "Frame":
        """Return the frame of the turn that a handoff opens."""
        own = handoff.constraints
        if own.budget is not None:  # `ceiling` replaces it
            own = replace(own, budget=None)
        return cls(
            agent=handoff.to_agent,
            giver=handoff.from_agent,
            return_to=handoff.return_to,
            constraints=own,
            ceiling=ceiling,
            sealed=handoff.no_return,
            intent=handoff.intent,
        )


class Segment(msgspec.Struct, frozen=True, gc=False):
    """The path from the entry agent, or from the last resolved escalation, to now."""

    path: tuple[Frame, ...]
    depth: int = 0
    edges: frozenset[tuple[str, str]] = frozenset()

    @property
    def top(self) -> Frame:
        return self.path[-1]

    @property
    def names(self) -> tuple[AgentName, ...]:
        return tuple(frame.agent for frame in self.path)

    @property
    def seal(self) -> int:
        """The lowest index of the path to which the work may still go back."""
        return max((index for index, frame in enumerate(self.path) if frame.sealed), default=0)

    def index(self, agent: str) -> int | None:
        """Return the index of `agent` on the path; None if it is not there."""
        return next((at for at, frame in enumerate(self.path) if frame.agent == agent), None)

    def resumed(self) -> int | None:
        """Return the index that a hand-back from the top goes to; None at frame 0."""
        if len(self.path) == 1:
            return None
        if self.top.return_to is not None:
            named = self.index(self.top.return_to)
            if named is not None and named < len(self.path) - 1:
                return named
        return len(self.path) - 2

    def replaced_by(self, frame: Frame) -> "Segment":
        """Return the segment with another holder in the place of the top."""
        return self._hop(self.top.agent, (*self.path[:-1], frame))

    def push(self, frame: Frame) -> "Segment":
        return self._hop(self.top.agent, (*self.path, frame))

    def pop_to(self, index: int) -> "Segment":
        return self._hop(self.top.agent, self.path[: index + 1])

    def _hop(self, from_agent: str, path: tuple[Frame, ...]) -> "Segment":
        edge = (from_agent, path[-1].agent)
        return Segment(path, self.depth + 1, self.edges if edge in self.edges else self.edges | {edge})
