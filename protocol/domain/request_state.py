"""The state of a request: its turns, spending and verdicts, and the changes that events make.

Only the ledger changes a state, by folding (`protocol.domain.ledger`). Every turn has its own work, path and
hidden facts, so several turns may be open at once.
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
from protocol.wire.event import Event
from protocol.wire.event_parts import Assignment, Grounds, Posted
from protocol.wire.events import AnyEvent
from protocol.wire.freeze import Span, merged, postponed
from protocol.wire.handoff import Budget, Fact, Handoff
from protocol.wire.ids import HUMAN, AgentName, Cause, RequestId, TurnId
from protocol.wire.records import QUESTIONS_BYTES, OpenQuestion, Questions


class Stand(msgspec.Struct, frozen=True, gc=False):
    """A span in which a request waits for people, so that its deadline stands still. All in UTC µs."""

    since: int
    until: int
    """When the people's time is over, at the latest."""
    deadline: int
    """The request's deadline as it was before."""


Status = Literal["unknown", "open", "refused", "completed", "failed", "expired", "cancelled"]
_DEFAULT_POLICY = Policy()


@dataclass(slots=True, eq=False)
class RequestState:
    """One request as its events have left it. Empty until its first event."""

    request: RequestId | None = None
    client: AgentName | None = None
    policy: Policy = _DEFAULT_POLICY
    deadline: int | None = None
    """UTC µs. While people have the request: the latest that it can become."""
    latest: int | None = None
    """UTC µs beyond which no deadline moves: the log keeps no request for longer. None: unknown."""
    stand: Stand | None = None
    """Set while it waits for people under a policy with `human_deadline_s`."""
    conversation: str | None = None
    notes_speakers: bool = False
    """True if the conversation remembers who answers and asks in this request."""
    memory: tuple[Fact, ...] = ()
    """Facts that came from the conversation at the request's beginning, and not from its submit."""
    prices: Mapping[str, Any] = field(default_factory=dict)
    """Prices of models when the request began."""
    forked_from: ForkedFrom | None = None
    """The request that it continues."""
    submit_digest: str = ""
    status: Status = "unknown"
    ended: AnyEvent | None = None
    turns: dict[TurnId, TurnState] = field(default_factory=dict)
    open: dict[TurnId, TurnState] = field(default_factory=dict)
    """Open turns, in the order in which they were opened. At most one under the topology `handoff`."""
    root: TurnState | None = None
    """The turn that holds the request itself, or held it last; None before the first turn."""
    tasks: dict[TurnId, TaskState] = field(default_factory=dict)
    """All tasks of the request, by the turn that their plan gave them, in the order of the plans."""
    live: dict[tuple[TurnId, str], TaskState] = field(default_factory=dict)
    """The open tasks, by lead and name, in the same order. Every event iterates over them."""
    history: FactHistory = field(default_factory=FactHistory)
    offers: dict[TurnId, TaskState] = field(default_factory=dict)
    """The task of each offer, including offers that are over."""
    board: Board = field(default_factory=dict)
    """Swarms: the newest posted fact for each agent and key, in the order of the posts."""
    fleet: int = 0
    """The newest fleet revision that any verdict of the request used."""
    posted_bytes: int = 0
    """Total JSON size of all posts, including those that newer posts replaced."""
    readers: tuple[AgentName, ...] = ()
    """All clients that were ever asked something."""
    pending: events.FactsWithheld | None = None
    spent: Usage = budget.NOTHING
    escalations: int = 0
    frozen_at: int | None = None
    began: int = 0
    """UTC µs of its first event."""
    noted: tuple[Span, ...] = ()
    """When the whole mesh was frozen, as recorded in the request's events."""
    thawed: tuple[Span, ...] = ()
    """When the request itself was frozen."""
    mesh_thawed: tuple[Span, ...] = ()
    """When the whole mesh was frozen, as the deciding guard knows it. The next event records what is new."""
    deferred: list[events.MoveDeferred] = field(default_factory=list)
    causes: dict[tuple[Cause, str], int] = field(default_factory=dict)
    """Number of events by cause and type."""
    decided: set[Cause] = field(default_factory=set)
    """Causes that were decided. (A `facts.withheld` alone only precedes the decision.)"""
    head: AnyEvent | None = None
    body: bytes = b""
    """The stored bytes of `head`; empty if the caller of `apply` did not pass them."""
    _digest: str | None = None

    # --- time that does not count -----------------------------------------------------------------

    def not_noted(self) -> tuple[Span, ...]:
        """Return the freezes of the whole mesh since the request began that no event has recorded."""
        if not self.mesh_thawed or self.head is None:
            return ()
        return tuple(span for span in self.mesh_thawed if span.until > self.began and span not in self.noted)

    def runs_out(self, begin: int, end: int, *most: int | None) -> int:
        """Return when a clock runs out that started at `begin` and was due at `end`. It stops while frozen.

        Args:
            most: deadlines, which freezes do not postpone and clocks do not exceed.
        """
        if self.noted or self.thawed or self.mesh_thawed:
            end = postponed(begin, end, merged((*self.noted, *self.thawed, *self.not_noted())))
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
        """Number of the next event."""
        return 0 if self.head is None else self.head.n + 1

    @property
    def prev(self) -> str:
        """The `prev` of the next event."""
        if self.head is None:
            return GENESIS
        if self._digest is None:
            self._digest = codec.body_digest(self.body or codec.encode(self.head))
        return self._digest

    @property
    def trace(self) -> str:
        """`traceparent` of the newest event; empty if it has none."""
        return "" if self.head is None else self.head.trace

    @property
    def is_open(self) -> bool:
        return self.status == "open"

    @property
    def holder(self) -> TurnState | None:
        """The turn that holds the request itself, while it is open."""
        root = self.root
        return None if root is None or root.state == "ended" else root

    def possible_senders(self) -> frozenset[AgentName]:
        """Return the agents whose proposals may count now: holders of open turns, and readers of offers."""
        claimants = (name for task in self.live.values() for name in task.claimants)
        return frozenset((*claimants, *(turn.agent for turn in self.open.values()))) - {HUMAN}

    def count(self, cause: str, type_: str) -> int:
        """Return how many events of this cause and type there are."""
        return self.causes.get((Cause(cause), type_), 0)

    def knows(self, cause: str) -> bool:
        """Return True if this cause was decided."""
        return cause in self.decided

    def is_deferred(self, turn: TurnId, round_: int) -> bool:
        """Return True if this round's move waits for a thaw. Posts do not count."""
        return any(
            (waiting.turn, waiting.round) == (turn, round_) and type(waiting.proposal) is not FactsPost
            for waiting in self.deferred
        )

    def waits_for_thaw(self, cause: Cause) -> bool:
        """Return True if the proposal of this cause waits for a thaw."""
        return any(waiting.cause == cause for waiting in self.deferred)

    def carried_after(self, event: AnyEvent) -> Carried:
        """Return everything that is carried once `event`, which opens a turn, is in the log."""
        held, kept = work_of(event).handoff, self.kept_back(event.cause)
        shown = Carried.collect(held.facts, held.artifacts)
        return shown if kept is None else together(shown, Carried.collect(kept.facts, kept.artifacts))

    def added_by(self, event: AnyEvent) -> tuple[Fact, ...]:
        """Return the facts that were added by the message that `event` admits."""
        carried = self.carried_after(event).facts
        return tuple(carried[key] for key in event.added)

    def kept_back(self, cause: str) -> events.FactsWithheld | None:
        """Return what is withheld from the reader of the event with this cause, if anything."""
        return self.pending if self.pending is not None and self.pending.cause == cause else None

    def report_of(self, event: AnyEvent) -> Report:
        """Return the report of the proposal that `event` answers. It must be the newest event or the next."""
        kept = self.kept_back(event.cause)
        return event.report or (NO_REPORT if kept is None else kept.report)

    def grounds_of(self, event: AnyEvent) -> Grounds | None:
        """Return what `event` depended on outside the log; None if nothing was asked. See `report_of`."""
        kept = self.kept_back(event.cause)
        return event.grounds or (None if kept is None else kept.grounds)

    def board_for(self, clearance: Collection[str] | None) -> tuple[Posted, ...]:
        """Return the part of the board that a reader with this clearance (None: for everything) may see."""
        return posted(self.board, clearance)

    def carried(self) -> Carried:
        """Return everything that the request's holder carries, withheld or not."""
        return NOTHING if self.root is None else self.root.carried()

    @staticmethod
    def more(turn: TurnState, report: Report) -> Usage:
        """Return what a turn's newest report adds to its spending.

        Reports are cumulative. A report that is lower than an earlier one gives nothing back.
        """
        if turn.report is NO_REPORT:
            return report.usage
        before = turn.report.usage
        return budget.minus(budget.larger(before, report.usage), before)

    def rest(self, turn: TurnState, more: Usage = budget.NOTHING) -> Budget:
        """Return what a turn may still spend, minus its open tasks' reservations and `more` spending."""
        if turn.task is None:
            left = budget.left(turn.frame.ceiling, budget.plus(self.spent, more))
        else:
            left = budget.left(turn.task.grant, budget.plus(turn.task.spent, more))
        return budget.left(left, reserved(turn.tasks.values())) if turn.tasks else left

    def task_of(self, turn: TurnId) -> TaskState | None:
        """Return the task that a turn does, or will do once it is opened; None for a root turn."""
        known = self.turns.get(turn)
        if known is not None:
            return known.task
        return next((task for task in self.tasks.values() if turn in (task.turn, task.fell_back)), None)

    # --- changes ----------------------------------------------------------------------------------

    def settle(self, turn: TurnState, report: Report) -> None:
        """Charge what a turn newly reported, and keep the report."""
        self.charge(turn, self.more(turn, report))
        turn.report, turn.reported, turn.unaccounted = summed_up(turn, report), True, False

    def charge(self, turn: TurnState, spent: Usage) -> None:
        """Charge spending of a turn to the request, to the turn's task and to all tasks above it."""
        self.spent = budget.plus(self.spent, spent)
        task = turn.task
        while task is not None:
            task.spent = budget.plus(task.spent, spent)
            task = self.turns[task.lead].task

    def close(self, turn_id: TurnId, by: AnyEvent) -> TurnState:
        """End a turn."""
        turn = self.turns[turn_id]
        turn.state, turn.end = "ended", TurnEnd.read(by)
        self.open.pop(turn_id, None)
        self.forget(turn)
        return turn

    @staticmethod
    def forget(turn: TurnState) -> None:
        """Drop what an ended turn was given, so that a request of many turns does not keep it all.

        A lead's is kept until its tasks are over, too, since they are made from it.
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
        """Add what an inbox event carries to the history; return the part that its reader does not see."""
        kept, self.pending = self.kept_back(event.cause), None
        self.history.remember(work_of(event).handoff.facts)
        if kept is None:
            return NOTHING
        self.history.remember(kept.facts)
        return Carried.collect(kept.facts, kept.artifacts)

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
        return Frame.open(handoff, ceiling)

    def end(self, event: AnyEvent) -> None:
        """End the request and every turn.

        A running round of a task is charged everything the task had left, since its cost is unknown.
        """
        self.status, self.ended = _STATUS[type(event)], event
        for turn in sorted(self.open.values(), key=lambda turn: -len(turn.path)):
            if turn.task is not None:
                if turn.unaccounted or turn.state == "working":
                    self.charge(turn, budget.whole(self.rest(turn)))
                turn.task.state = "cancelled"
        for turn in self.open.values():
            turn.state, turn.end = "ended", TurnEnd.read(event)
        for task in self.live.values():
            task.state = "cancelled"
        self.live.clear()
        self.open.clear()
        self.deferred.clear()


def work_of(event: AnyEvent) -> Assignment:
    """Return the work of an event that gives work."""
    assert event.work is not None
    return event.work


_STATUS: dict[type[Event], Status] = {
    events.RequestRefused: "refused",
    events.RequestCompleted: "completed",
    events.RequestFailed: "failed",
    events.RequestExpired: "expired",
    events.RequestCancelled: "cancelled",
}


# --- questions that wait for a reply ---------------------------------------------------------------
#
# Tasks of a tree may ask at the same time. The last event in a client's inbox shows only one question, and
# not if it is over. So guards keep a list for each request and client, made here from the ledger.


def questions_to(ledger: RequestState, reader: AgentName) -> tuple[OpenQuestion, ...]:
    """Return this reader's open questions, the oldest first."""
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
    """Return the list of questions to show a reader as of event `n`.

    The bus limits the size of a message. Questions that do not fit are counted, and listed once there is
    room.
    """
    room, shown = QUESTIONS_BYTES, list[OpenQuestion]()
    for question in waiting:
        room -= len(msgspec.json.encode(question))
        if room < 0 and shown:
            break
        shown.append(question)
    return Questions(n=n, open=tuple(shown), more=len(waiting) - len(shown))
