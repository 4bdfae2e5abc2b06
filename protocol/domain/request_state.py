"""The state of a request: its turns, its spending, its verdicts; and each change that an event makes.

Only the ledger's folding changes a state (`protocol.domain.ledger`). Every turn holds its own work: the path
that led to it, and what its reader does not see. So several turns may be open at once.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import msgspec
from msgspec.structs import replace

from protocol.domain import budget
from protocol.domain.carried import NOTHING, Carried, FactHistory, together
from protocol.domain.hash_chain import GENESIS
from protocol.domain.tasks import TaskState, open_of, reserved
from protocol.domain.turns import (
    NO_REPORT,
    Board,
    Frame,
    Segment,
    TurnEnd,
    TurnState,
    posted,
    summed_up,
)
from protocol.wire import codec, events
from protocol.wire.commands import FactsPost, ForkedFrom, Report, Usage
from protocol.wire.config import Policy
from protocol.wire.event_parts import Assignment, Grounds, Posted
from protocol.wire.events import AnyEvent
from protocol.wire.freeze import Span, merged, moved_on
from protocol.wire.handoff import Budget, Fact, Handoff
from protocol.wire.ids import HUMAN, AgentName, Cause, RequestId, TurnId
from protocol.wire.records import QUESTIONS_BYTES, OpenQuestion, Questions

Status = Literal["unknown", "open", "refused", "completed", "failed", "expired", "cancelled"]
_DEFAULT_POLICY = Policy()


@dataclass(slots=True, eq=False)
class RequestState:
    """One request, as far as its events go. Empty until its first event."""

    request: RequestId | None = None
    client: AgentName | None = None
    policy: Policy = _DEFAULT_POLICY
    deadline: int | None = None
    conversation: str | None = None
    memory: tuple[Fact, ...] = ()
    """What the conversation remembered when the request began, and its submit did not bring."""
    prices: Mapping[str, Any] = field(default_factory=dict)
    """What models cost when the request began."""
    forked_from: ForkedFrom | None = None
    """The request that it goes on from."""
    submit_digest: str = ""
    status: Status = "unknown"
    ended: AnyEvent | None = None
    turns: dict[TurnId, TurnState] = field(default_factory=dict)
    open: dict[TurnId, TurnState] = field(default_factory=dict)
    """The open turns, in the order in which they were opened. At most one under topology `handoff`."""
    root: TurnState | None = None
    """The turn that holds the request itself, or held it last; none until one is opened."""
    tasks: dict[TurnId, TaskState] = field(default_factory=dict)
    """Every task of the request by the turn that it was planned under, in the order of the plans."""
    live: dict[tuple[TurnId, str], TaskState] = field(default_factory=dict)
    """Those that are open, by lead and name, in the same order: what each event looks through."""
    history: FactHistory = field(default_factory=FactHistory)
    offers: dict[TurnId, TaskState] = field(default_factory=dict)
    """The task of each offer, of those that are over, too."""
    board: Board = field(default_factory=dict)
    """Of a swarm: by agent and key the newest fact that was posted, in the order of the posts."""
    fleet: int = 0
    """The newest revision of the fleet by which anything of the request was judged."""
    posted_bytes: int = 0
    """What all posts came to, as JSON, those that newer ones replaced included."""
    readers: tuple[AgentName, ...] = ()
    """Clients that were asked something, ever."""
    pending: events.FactsWithheld | None = None
    spent: Usage = budget.NOTHING
    escalations: int = 0
    frozen_at: int | None = None
    began: int = 0
    """UTC µs of its first event."""
    noted: tuple[Span, ...] = ()
    """When the whole mesh was frozen, as its events say."""
    thawed: tuple[Span, ...] = ()
    """When the request itself was frozen."""
    mesh_thawed: tuple[Span, ...] = ()
    """When the whole mesh was frozen, as whoever judges knows it. Its next event notes what is new."""
    deferred: list[events.MoveDeferred] = field(default_factory=list)
    causes: dict[tuple[Cause, str], int] = field(default_factory=dict)
    """How many events there are by cause and type."""
    decided: set[Cause] = field(default_factory=set)
    """What was decided. (A withholding alone only comes before the decision.)"""
    head: AnyEvent | None = None
    body: bytes = b""
    """The stored bytes of `head`; empty where whoever folds did not give them."""
    _digest: str | None = None

    # --- time that does not count -----------------------------------------------------------------

    def not_noted(self) -> tuple[Span, ...]:
        """Return when the whole mesh was frozen since the request began, as far as no event says so."""
        if not self.mesh_thawed or self.head is None:
            return ()
        return tuple(span for span in self.mesh_thawed if span.until > self.began and span not in self.noted)

    def runs_out(self, begin: int, end: int, *most: int | None) -> int:
        """Return when a clock runs out that began at `begin` and would at `end`: it stands while frozen.

        Args:
            most: deadlines, which no freeze moves and no clock outlives.
        """
        if self.noted or self.thawed or self.mesh_thawed:
            end = moved_on(begin, end, merged((*self.noted, *self.thawed, *self.not_noted())))
        for at in most:
            if at is not None and at < end:
                end = at
        return end

    # --- reading ----------------------------------------------------------------------------------

    def record_for(self, agent: str, forked_from: ForkedFrom | None = None) -> ForkedFrom | None:
        """Return what a fork tells the next turn of an agent; None where this is no fork.

        Its n-th turn here goes on with the n-th one that it had there: that one's steps come first.

        Args:
            forked_from: of a request that is not open yet.
        """
        fork = forked_from or self.forked_from
        if fork is None:
            return None
        turns = fork.journals.get(AgentName(agent), ())
        had = sum(turn.agent == agent for turn in self.turns.values())
        first = turns[had : had + 1]
        ordered = (*first, *(each for each in turns if each not in first))
        own = {AgentName(agent): ordered} if turns else {}
        return replace(fork, summary="", text_labels=(), journals=own)

    @property
    def n(self) -> int:
        """The number that the next event gets."""
        return 0 if self.head is None else self.head.n + 1

    @property
    def prev(self) -> str:
        """What the next event names as the one before it."""
        if self.head is None:
            return GENESIS
        if self._digest is None:
            self._digest = codec.body_digest(self.body or codec.encode(self.head))
        return self._digest

    @property
    def trace(self) -> str:
        """`traceparent` of the newest event; empty where there is none."""
        return "" if self.head is None else self.head.trace

    @property
    def is_open(self) -> bool:
        return self.status == "open"

    @property
    def holder(self) -> TurnState | None:
        """The turn that holds the request itself, while it is open."""
        root = self.root
        return None if root is None or root.state == "ended" else root

    def speakers(self) -> frozenset[AgentName]:
        """Return the agents whose proposals may count now: of open turns, and those who read offers."""
        claimants = (name for task in self.live.values() for name in task.claimants)
        return frozenset((*claimants, *(turn.agent for turn in self.open.values()))) - {HUMAN}

    def count(self, cause: str, type_: str) -> int:
        """Return how many events of this cause and type there are."""
        return self.causes.get((Cause(cause), type_), 0)

    def knows(self, cause: str) -> bool:
        """Return True if this cause was decided."""
        return cause in self.decided

    def is_deferred(self, turn: TurnId, round_: int) -> bool:
        """Return True if this round's move waits for a thaw; its posts are no such."""
        return any(
            (waiting.turn, waiting.round) == (turn, round_) and type(waiting.proposal) is not FactsPost
            for waiting in self.deferred
        )

    def waits_for_thaw(self, cause: Cause) -> bool:
        """Return True if the proposal of this cause waits for a thaw."""
        return any(waiting.cause == cause for waiting in self.deferred)

    def carried_after(self, event: AnyEvent) -> Carried:
        """Return all that is carried once `event`, which opens a turn, is in the log."""
        held, kept = work_of(event).handoff, self.kept_back(event.cause)
        shown = Carried.of(held.facts, held.artifacts)
        return shown if kept is None else together(shown, Carried.of(kept.facts, kept.artifacts))

    def added_by(self, event: AnyEvent) -> tuple[Fact, ...]:
        """Return the facts that the message added which `event` admits."""
        carried = self.carried_after(event).facts
        return tuple(carried[key] for key in event.added)

    def kept_back(self, cause: str) -> events.FactsWithheld | None:
        """Return what is kept back from the reader of the event that `cause` brings about, if anything is."""
        return self.pending if self.pending is not None and self.pending.cause == cause else None

    def report_of(self, event: AnyEvent) -> Report:
        """Return what was reported with the proposal that `event` answers; it is the newest or the next."""
        kept = self.kept_back(event.cause)
        return event.report or (NO_REPORT if kept is None else kept.report)

    def grounds_of(self, event: AnyEvent) -> Grounds | None:
        """Return what `event` rested on outside the log; None where nothing was asked. As `report_of`."""
        kept = self.kept_back(event.cause)
        return event.grounds or (None if kept is None else kept.grounds)

    def board_for(self, clearance: Collection[str] | None) -> tuple[Posted, ...]:
        """Return what of the board somebody with this clearance (None: for everything) may see."""
        return posted(self.board, clearance)

    def carried(self) -> Carried:
        """Return all that the request's holder carries, withheld or not."""
        return NOTHING if self.root is None else self.root.carried()

    @staticmethod
    def more(turn: TurnState, report: Report) -> Usage:
        """Return what a turn's newest report adds to what it spent.

        Reports are cumulative, so that one which says less than an earlier one gives nothing back.
        """
        if turn.report is NO_REPORT:
            return report.usage
        before = turn.report.usage
        return budget.minus(budget.larger(before, report.usage), before)

    def rest(self, turn: TurnState, more: Usage = budget.NOTHING) -> Budget:
        """Return what a turn may still spend: less what its open tasks have reserved, and `more` spent."""
        if turn.task is None:
            left = budget.left(turn.frame.ceiling, budget.plus(self.spent, more))
        else:
            left = budget.left(turn.task.grant, budget.plus(turn.task.spent, more))
        return budget.left(left, reserved(turn.tasks.values())) if turn.tasks else left

    def task_of(self, turn: TurnId) -> TaskState | None:
        """Return the task that a turn does, or would do if it is opened; None for a root turn."""
        known = self.turns.get(turn)
        if known is not None:
            return known.task
        return next((task for task in self.tasks.values() if turn in (task.turn, task.fell_back)), None)

    # --- what events are made of ----------------------------------------------------------------

    def settle(self, turn: TurnState, report: Report) -> None:
        """Account for what a turn reported."""
        self.charge(turn, self.more(turn, report))
        turn.report, turn.reported, turn.unaccounted = summed_up(turn, report), True, False

    def charge(self, turn: TurnState, spent: Usage) -> None:
        """Charge what a turn spent to the request, and to its task and all those above it."""
        self.spent = budget.plus(self.spent, spent)
        task = turn.task
        while task is not None:
            task.spent = budget.plus(task.spent, spent)
            task = self.turns[task.lead].task

    def close(self, turn_id: TurnId, by: AnyEvent) -> TurnState:
        """End a turn."""
        turn = self.turns[turn_id]
        turn.state, turn.end = "ended", TurnEnd.of(by)
        self.open.pop(turn_id, None)
        self.forget(turn)
        return turn

    @staticmethod
    def forget(turn: TurnState) -> None:
        """Drop what a turn was given that is over: a request of many turns would keep it of every one.

        A lead's is its tasks' source, until they are over, too.
        """
        if turn.state == "ended" and not open_of(turn.tasks.values()):
            turn.given, turn.hidden, turn.past, turn.ask = None, NOTHING, (), None

    def begin(
        self,
        event: AnyEvent,
        segment: Segment,
        hidden: Carried,
        *,
        instead_of: TurnId | None = None,
        tier: int = 0,
        task: TaskState | None = None,
    ) -> TurnState:
        """Open the turn that an inbox event opens."""
        work = work_of(event)
        turn = TurnState(
            id=work.turn,
            agent=work.handoff.to_agent,
            given=work,
            path=work.path,
            journal_id=work.journal_id,
            summary=work.handoff.summary,
            segment=segment,
            hidden=hidden,
            opened_at=event.at,
            round=work.round,
            round_n=event.n,
            clock=event.at,
            since_n=event.n,
            past=work.past,
            instead_of=instead_of,
            tier=tier,
            task=task,
            board=self.board if self.policy.topology == "swarm" else None,
        )
        self.turns[turn.id] = self.open[turn.id] = turn
        if task is None:
            self.root = turn
        return turn

    def enter(self, event: AnyEvent, hidden: Carried, task: TaskState | None = None) -> TurnState:
        """Open a turn that begins a segment."""
        work = work_of(event)
        return self.begin(event, Segment((self.frame_of(work.handoff),)), hidden, task=task)

    def take_over(self, event: AnyEvent) -> Carried:
        """Take in what an inbox event carries; return what of it its reader does not see."""
        kept, self.pending = self.kept_back(event.cause), None
        self.history.remember(work_of(event).handoff.facts)
        if kept is None:
            return NOTHING
        self.history.remember(kept.facts)
        return Carried.of(kept.facts, kept.artifacts)

    def next_round(self, event: AnyEvent) -> None:
        """Open a turn's next round."""
        work = work_of(event)
        turn = self.turns[work.turn]
        turn.given, turn.round, turn.round_n, turn.clock = work, work.round, event.n, event.at
        turn.state, turn.since_n, turn.due_at, turn.ask = "working", event.n, None, None
        turn.approval, turn.past = "", work.past
        if turn.task is not None:
            turn.task.attempts += 1

    def frame_of(self, handoff: Handoff) -> Frame:
        """Return the frame of the turn that a handoff opens now."""
        granted = handoff.constraints.budget
        ceiling = budget.UNLIMITED if granted is None else budget.ceiling(granted, self.spent)
        return Frame.of(handoff, ceiling)

    def end(self, event: AnyEvent) -> None:
        """End the request, and every turn.

        A task's round that was under way is charged all that the task had left: it is not said what it cost.
        """
        self.status, self.ended = _STATUS[type(event)], event
        for turn in sorted(self.open.values(), key=lambda one: -len(one.path)):
            if turn.task is not None:
                if turn.unaccounted or turn.state == "working":
                    self.charge(turn, budget.whole(self.rest(turn)))
                turn.task.state = "cancelled"
        for turn in self.open.values():
            turn.state, turn.end = "ended", TurnEnd.of(event)
        for task in self.live.values():
            task.state = "cancelled"
        self.live.clear()
        self.open.clear()
        self.deferred.clear()


def work_of(event: AnyEvent) -> Assignment:
    """Return the work of an event that gives some."""
    assert event.work is not None
    return event.work


_STATUS: dict[type[events.Event], Status] = {
    events.RequestRefused: "refused",
    events.RequestCompleted: "completed",
    events.RequestFailed: "failed",
    events.RequestExpired: "expired",
    events.RequestCancelled: "cancelled",
}


# --- questions that wait for a reply ---------------------------------------------------------------
#
# The tasks of a tree may ask at the same time. The last event in a client's inbox shows one question, and not
# that one is over. So guards keep a list for each request and client, made here from the ledger.


def questions_to(ledger: RequestState, reader: AgentName) -> tuple[OpenQuestion, ...]:
    """Return every question that waits for this reader, the oldest first."""
    waiting = [
        OpenQuestion(
            n=turn.since_n,
            turn=turn.id,
            round=turn.round,
            agent=turn.agent,
            ask=turn.ask,
            expires_at=turn.due_at or 0,
        )
        for turn in ledger.open.values()
        if turn.state == "suspended" and turn.ask is not None and turn.ask.to_agent == reader
    ]
    return tuple(sorted(waiting, key=lambda question: question.n))


def listed(waiting: tuple[OpenQuestion, ...], n: int) -> Questions:
    """Return the list that a reader is shown as of event `n`.

    A message has a size that the bus takes: what finds no room is counted, and comes once there is room.
    """
    room, shown = QUESTIONS_BYTES, list[OpenQuestion]()
    for question in waiting:
        room -= len(msgspec.json.encode(question))
        if room < 0 and shown:
            break
        shown.append(question)
    return Questions(n=n, open=tuple(shown), more=len(waiting) - len(shown))
