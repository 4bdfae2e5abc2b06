"""A turn as the log tells it, its next round, and the path that a request has taken.

Earlier rounds pile up in every inbox event of a turn, and an event can be no larger than the bus takes. The
event that ended a round holds everything. Later rounds are told (`remembered`) cut texts, and a large move
without its load. Replies are kept whole: the code runs again with them, and they are few and limited.

`transfer` pushes a frame, `hand_back` pops down to one. A segment begins at the entry agent, or where a
person's resolution puts the request. Path, depth, edges and seals are the segment's.
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
from protocol.wire.ids import AgentName, Cause, TurnId, draw
from protocol.wire.moves import Ask, Join, Move, cut

State = Literal["working", "failed", "refused", "suspended", "doubted", "delegated", "ended"]

NO_REPORT = Report()


Board = dict[tuple[AgentName, str], Fact]
"""By agent and key."""


def posted(board: Board, clearance: Collection[str] | None) -> tuple[Posted, ...]:
    """Return what of a board somebody with this clearance (None: for everything) may see."""
    return tuple(
        Posted(by=by, fact=fact)
        for (by, _), fact in board.items()
        if clearance is None or is_cleared((fact,), clearance)
    )


class TurnEnd(msgspec.Struct, frozen=True, gc=False):
    """What ended a turn: as much of the event as is asked for afterwards."""

    n: int
    at: int
    """UTC µs."""
    cause: Cause

    @classmethod
    def of(cls, event: AnyEvent) -> "TurnEnd":
        return cls(event.n, event.at, event.cause)


class TurnState(msgspec.Struct, gc=False, kw_only=True):
    """One agent's work on one handoff, as the log tells it."""

    id: TurnId
    agent: AgentName
    given: Assignment | None
    """What its newest round was given. None once it is over, and all its tasks: the log has it."""
    path: tuple[AgentName, ...]
    """Its lineage: holders from the entry agent to its own."""
    journal_id: TurnId
    """Under whose id its steps are journaled."""
    summary: str
    """What it was asked for."""
    segment: "Segment"
    """The path that led to it, with the hops since it began."""
    hidden: Carried = NOTHING
    """What it carries out of its agent's sight."""
    opened_at: int
    round: int = 0
    round_n: int = 0
    """Number of the event that opened the newest round."""
    clock: int = 0
    """UTC µs from which the newest round's time counts: its opening."""
    state: State = "working"
    since_n: int = 0
    """Number of the event that brought it into its state."""
    due_at: int | None = None
    """When what it waits for comes: a retry or an ask's expiry."""
    waits_since: int = 0
    """UTC µs from which on it waits for that."""
    reason: str = ""
    """Why it has to escalate, once it has to; of a person's turn, why it was raised first."""
    refusals: int = 0
    failures: int = 0
    asks: int = 0
    ask: Ask | None = None
    """The question that it waits with while it is suspended."""
    approval: str = ""
    """The digest that a suspended turn's ask wants approved; empty for an ordinary question."""
    doubted: str = ""
    """The step whose effect is in doubt."""
    past: tuple[RoundOutcome, ...] = ()
    report: Report = NO_REPORT
    reported: bool = False
    unaccounted: bool = False
    """True if a guard ended a round of it by the clock that had begun: nobody said what that cost."""
    tier: int = 0
    """Of an escalation: how often it was raised."""
    instead_of: TurnId | None = None
    """Of a person's turn: the agent's turn that the escalation ended."""
    person: str = ""
    """Of a person's turn: the person that it was assigned to."""
    posts: int = 0
    """How often it posted to the board."""
    end: TurnEnd | None = None

    @property
    def work(self) -> Assignment:
        """What its newest round was given. Raises LookupError once that is dropped."""
        if self.given is None:
            raise LookupError(f"turn {self.id} is over: only the log has what it was given")
        return self.given

    @property
    def asked(self) -> AgentName | None:
        """The name that has to reply while it is suspended."""
        return None if self.ask is None else self.ask.to_agent

    @property
    def frame(self) -> "Frame":
        """What an agent's turn holds the work under."""
        return self.segment.top

    @property
    def known_tasks(self) -> dict[str, TaskState]:
        """By name: its tasks, and those of the turn that it continues."""
        return {**self.before, **self.tasks} if self.before else self.tasks

    task: TaskState | None = None
    """The task that it does; None for a root turn and for a person's."""
    tasks: dict[str, TaskState] = {}
    """Of a lead: its tasks by name, in the order in which they were planned."""
    before: Mapping[str, TaskState] = MappingProxyType({})
    """Of a turn that continues another: the tasks of that one. All are over; their results may be used."""
    join: Join = "all"
    """What a lead waits for while it is `delegated`."""
    waited: int = 0
    """Of a lead: how often its own time ran out before any task had ended."""
    entry: AgentEntry | None = None
    """Its agent, as the fleet file had it at its newest plan, or when a person gave it the work."""
    board: Board | None = None
    """Of a swarm: the request's board, which goes on."""

    def carried(self) -> Carried:
        """Return all that it carries, withheld or not."""
        held = self.work.handoff
        return together(Carried.of(held.facts, held.artifacts), self.hidden)


def summed_up(turn: TurnState, report: Report) -> Report:
    """Return a turn's newest report, its usage not less than what was reported before."""
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
        past: None where the ledger has taken that in already (a failure is an event of its own).
        report: the newest, where it comes with the very proposal that is being judged.
        results: of tasks that ended meanwhile; None: those of the round before, which may not have read them.
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
    """Return when (UTC µs) a failed round is tried again; None when it is not.

    Exponential backoff with "equal jitter": half the wait is fixed, half is drawn, so that turns
    which failed together do not come back together. The draw comes from the failure's own id, so
    that every guard and every replay draws the same. A `retry_after_s` can only make it later.
    """
    if error.permanent or turn.failures >= policy.max_retries:
        return None
    backoff = min(policy.retry_backoff_s * 2.0 ** min(turn.failures, 64), policy.retry_backoff_max_s)
    wait = max(backoff * (0.5 + 0.5 * draw("jitter", cause)), error.retry_after_s or 0.0)
    return now + int(wait * 1e6)


MAX_MOVE_BYTES = 16_384
MAX_NUMBERS_BYTES = 8_192


def remembered(past: RoundOutcome) -> RoundOutcome:
    """Return an earlier round as later ones are told of it. Twice is the same as once."""
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
        move = move.without_load()
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
    """Return the error of a task whose turn came to nothing.

    Its origin is the newest of the turn's own tasks that failed and that no later one made good.
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
        if isinstance(task.ended, TaskFailed) and task.told and task.planned.turn not in made_good:
            return task.ended.error
    return None


class Frame(msgspec.Struct, frozen=True, gc=False):
    """One holder on the path, with what it was given to work under."""

    agent: AgentName
    giver: AgentName
    """Who gave it the work: a client, an agent, or `human`."""
    return_to: AgentName | None
    constraints: Constraints
    """Its own: absolute deadline, actions, and keys that must be carried."""
    ceiling: Budget
    sealed: bool = False
    """It was opened with `no_return`: nothing goes back beneath it."""
    intent: str | None = None
    """The intent that it got the work for. A hand-back to it has the same one."""

    @classmethod
    def of(cls, handoff: Handoff, ceiling: Budget) -> "Frame":
        """Return the frame of the turn that a handoff opens."""
        own = handoff.constraints
        if own.budget is not None:  # the ceiling says it
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
    """From entry, or from the last resolved escalation, to now."""

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
        """The lowest index of the path that may still be gone back to."""
        return max((index for index, frame in enumerate(self.path) if frame.sealed), default=0)

    def index(self, agent: str) -> int | None:
        """Return where on the path `agent` is; None if it is not."""
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

    def push(self, frame: Frame) -> "Segment":
        return self._hop(self.top.agent, (*self.path, frame))

    def pop_to(self, index: int) -> "Segment":
        return self._hop(self.top.agent, self.path[: index + 1])

    def _hop(self, from_agent: str, path: tuple[Frame, ...]) -> "Segment":
        edge = (from_agent, path[-1].agent)
        return Segment(path, self.depth + 1, self.edges if edge in self.edges else self.edges | {edge})
