"""The ledger: what one request's events add up to. State is the fold, and nothing else.

`Ledger.apply` is the only thing that changes one. It believes its events (the guard wrote them) and
raises BrokenLog only for a sequence that no guard could have written. Deciding never changes a ledger.

A ledger is mutable because folding is the hot path of the guard and of replay. For the state at an earlier
event, fold up to that event.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from protocol.domain import budget, hash_chain
from protocol.domain.layers import NO_STASH, FactHistory, Load, Marks, Stash, is_cleared
from protocol.domain.turns import NO_REPORT, Frame, Hop, Segment, TurnState, remembered, summed_up
from protocol.wire import codec, events
from protocol.wire.assignment import Assignment, RoundOutcome
from protocol.wire.commands import Report, Usage, id_of
from protocol.wire.config import AgentEntry, Policy
from protocol.wire.errors import BrokenLog
from protocol.wire.events import AnyEvent
from protocol.wire.grounds import Grounds
from protocol.wire.handoff import Artifact, Fact, Handoff
from protocol.wire.ids import HUMAN, AgentName, Cause, RequestId, TurnId

Status = Literal["unknown", "open", "refused", "completed", "failed", "expired", "cancelled"]
_DEFAULT_POLICY = Policy()
_DECIDES_NOTHING = (events.MoveDeferred, events.FactsWithheld)


@dataclass(slots=True, eq=False)
class Ledger:
    """One request, folded. Empty until its first event."""

    request: RequestId | None = None
    client: AgentName | None = None
    policy: Policy = _DEFAULT_POLICY
    deadline: int | None = None
    conversation: str | None = None
    prices: Mapping[str, Any] = field(default_factory=dict)
    """What models cost when the request began."""
    submit_digest: str = ""
    status: Status = "unknown"
    ended: AnyEvent | None = None
    turns: dict[TurnId, TurnState] = field(default_factory=dict)
    open: dict[TurnId, TurnState] = field(default_factory=dict)
    """The open turns. At most one under topology `handoff`, but nothing here counts on it."""
    _segment: Segment | None = None
    frames: dict[TurnId, Frame] = field(default_factory=dict)
    """The frame that each agent's turn holds or held the work under."""
    hops: list[Hop] = field(default_factory=list)
    history: FactHistory = field(default_factory=FactHistory)
    stash: Stash = NO_STASH
    pending: events.FactsWithheld | None = None
    spent: Usage = budget.NOTHING
    escalations: int = 0
    frozen_at: int | None = None
    deferred: list[events.MoveDeferred] = field(default_factory=list)
    causes: dict[tuple[Cause, str], int] = field(default_factory=dict)
    """How many events there are by cause and type."""
    decided: set[Cause] = field(default_factory=set)
    """What was decided. (A withholding alone only comes before the decision.)"""
    head: AnyEvent | None = None
    body: bytes = b""
    """The stored bytes that `head` was read from; empty where the event itself was made here."""
    _digest: str | None = None

    # --- reading ----------------------------------------------------------------------------------

    @property
    def n(self) -> int:
        """The number that the next event gets."""
        return 0 if self.head is None else self.head.n + 1

    @property
    def prev(self) -> str:
        """What the next event names as the one before it."""
        if self.head is None:
            return hash_chain.GENESIS
        if self._digest is None:
            self._digest = hash_chain.digest(self.body) if self.body else hash_chain.digest_of(self.head)
        return self._digest

    @property
    def trace(self) -> str:
        """`traceparent` of the newest event; empty where there is none."""
        return "" if self.head is None else self.head.trace

    @property
    def segment(self) -> Segment:
        if self._segment is None:
            raise LookupError("no turn was opened yet")
        return self._segment

    @property
    def is_open(self) -> bool:
        return self.status == "open"

    @property
    def holder(self) -> TurnState | None:
        """The open turn, where there is one."""
        return next(iter(self.open.values()), None)

    def count(self, cause: str, type_: str) -> int:
        """Return how many events of this cause and type there are."""
        return self.causes.get((Cause(cause), type_), 0)

    def knows(self, cause: str) -> bool:
        """Return True if this cause was decided."""
        return cause in self.decided

    def is_deferred(self, turn: TurnId, round_: int) -> bool:
        """Return True if this round's proposal waits for a thaw."""
        return any((waiting.turn, waiting.round) == (turn, round_) for waiting in self.deferred)

    def load(self) -> Load:
        """Return all that is carried now, withheld or not."""
        return self.stash.load(None if self.holder is None else self.holder.work.handoff)

    def load_after(self, event: AnyEvent) -> Load:
        """Return all that is carried once `event`, which opens a turn, is in the log."""
        work = _work(event)
        return self._stash_after(event, work).load(work.handoff)

    def marks(self) -> Marks:
        """Return which of the carried facts must be carried on unchanged, withheld or not."""
        holder = self.holder
        return self.stash.marks if holder is None else self.stash.marks_beside(holder.work.handoff)

    def marks_after(self, event: AnyEvent) -> Marks:
        """Return the same once `event`, which opens a turn, is in the log."""
        work = _work(event)
        return self._stash_after(event, work).marks_beside(work.handoff)

    def _stash_after(self, event: AnyEvent, work: Assignment) -> Stash:
        return Stash.of(self.kept_back(event.cause) or work.beneath)

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

    def carried(self) -> dict[str, Fact]:
        """Return by key the fact that somebody sees who is cleared for everything."""
        return {key: layers[0] for key, layers in self.load().facts.items()}

    def carried_artifacts(self) -> dict[str, Artifact]:
        return {name: layers[0] for name, layers in self.load().artifacts.items()}

    def spent_after(self, turn: TurnState, report: Report) -> Usage:
        """Return what the request has spent once `turn` is settled by its newest report.

        Reports are cumulative, so that one which says less than an earlier one gives nothing back.
        """
        if turn.report is NO_REPORT:
            return budget.plus(self.spent, report.usage)
        before = turn.report.usage
        return budget.plus(self.spent, budget.minus(budget.larger(report.usage, before), before))

    # --- folding ----------------------------------------------------------------------------------

    def apply(self, event: AnyEvent, body: bytes = b"") -> None:
        """Take in the next event.

        Args:
            body: the stored bytes that it was read from: the chain is computed over them, for a newer guard's
                have fields that this build does not know. Empty where they were made from this very object.

        Raises BrokenLog when it cannot be the next one; the ledger is of no use then.
        """
        if event.n != self.n:
            raise BrokenLog(f"event {self.n} is missing; the next one there is {event.n}")
        kind = type(event)
        try:
            _APPLY[kind](self, event)
        except (LookupError, AttributeError, TypeError, AssertionError) as error:
            raise BrokenLog(f"event {event.n} does not follow from those before it") from error
        key = (event.cause, events.TYPES[kind])
        self.causes[key] = self.causes.get(key, 0) + 1
        if kind is not events.FactsWithheld:
            self.decided.add(event.cause)
        if self.deferred:
            self._forget_decided(event)
        self.head, self.body, self._digest = event, body, None

    def _forget_decided(self, event: AnyEvent) -> None:
        """Drop the deferred proposal that `event` decides."""
        if isinstance(event, _DECIDES_NOTHING):
            return
        self.deferred = [
            waiting
            for waiting in self.deferred
            if str(id_of(waiting.request, waiting.proposal, waiting.sender)) != event.cause
        ]

    def _settle(self, turn: TurnState, report: Report) -> None:
        self.spent = self.spent_after(turn, report)
        turn.report, turn.reported = summed_up(turn, report), True

    def _close(self, turn_id: TurnId, by: AnyEvent) -> TurnState:
        turn = self.turns[turn_id]
        turn.state, turn.ended_by = "ended", by
        self.open.pop(turn_id, None)
        return turn

    def _begin(self, event: AnyEvent, instead_of: TurnId | None = None, tier: int = 0) -> TurnState:
        """Open the turn that an inbox event opens; what it carries is taken over before."""
        work = _work(event)
        turn = TurnState(
            id=work.turn,
            agent=work.handoff.to_agent,
            work=work,
            opened_at=event.at,
            round=work.round,
            round_n=event.n,
            clock=event.at,
            since_n=event.n,
            past=work.past,
            instead_of=instead_of,
            tier=tier,
        )
        self.turns[turn.id] = self.open[turn.id] = turn
        return turn

    def _enter(self, event: AnyEvent) -> None:
        """Begin a segment with the turn that an event opens."""
        turn, handoff = self._begin(event), _work(event).handoff
        self.frames[turn.id] = frame = self._frame(handoff)
        self._segment = Segment((frame,))

    def _carry(self, event: AnyEvent, sender: AgentEntry | None = None) -> None:
        """Take over what an inbox event carries; the turn that it ends is still open.

        Args:
            sender: the agent by whose move it came about.
        """
        work = _work(event)
        facts, kept = work.handoff.facts, self._stash_after(event, work)
        if kept.facts:
            facts = (*facts, *(fact for layers in kept.facts.values() for fact in layers))
        if sender is not None and not is_cleared(facts, sender.clearance):
            self.history.note_unseen(sender.name, sender.clearance, self.load(), self.load_after(event))
        if self._segment is not None and self._segment.is_marked:
            self._segment = self._segment.carried_on(self.load(), self.load_after(event))
        self.history.remember(facts)
        self.stash, self.pending = kept, None

    def _next_round(self, event: AnyEvent) -> None:
        work = _work(event)
        turn = self.turns[work.turn]
        turn.work, turn.round, turn.round_n, turn.clock = work, work.round, event.n, event.at
        turn.state, turn.since_n, turn.due_at, turn.asked = "working", event.n, None, None
        turn.approval, turn.past = "", work.past

    def _frame(self, handoff: Handoff) -> Frame:
        granted = handoff.constraints.budget
        ceiling = budget.UNLIMITED if granted is None else budget.ceiling(granted, self.spent)
        return Frame.of(handoff, ceiling, self.stash.marks_beside(handoff))

    def _on_opened(self, event: events.RequestOpened) -> None:
        self.request, self.client, self.status = event.request, event.client, "open"
        self.policy, self.deadline, self.conversation = event.policy, event.deadline, event.conversation
        self.submit_digest, self.prices = event.digest, event.prices
        self._carry(event)
        self._enter(event)

    def _on_refused_submit(self, event: events.RequestRefused) -> None:
        self.request, self.client, self.submit_digest = event.request, event.client, event.digest
        self._end(event)

    def _on_admitted(self, event: events.HandoffAdmitted) -> None:
        self._carry(event, event.grounds.sender)
        giver = self._close(event.turn, event)
        self._settle(giver, event.report)
        turn, handoff = self._begin(event), event.work.handoff
        if handoff.move == "hand_back":
            self._segment = self.segment.pop_to(len(event.work.path) - 1)
        else:
            self._segment = self.segment.push(self._frame(handoff))
        self.frames[turn.id] = self._segment.top
        self.hops.append(Hop(event.n, handoff.move, handoff.from_agent, handoff.to_agent))

    def _on_move_refused(self, event: events.MoveRefused) -> None:
        turn = self.turns[event.turn]
        self._settle(turn, event.report)
        turn.refusals += 1
        if event.work is not None:
            self._next_round(event)
        else:
            turn.state, turn.since_n, turn.reason = "refused", event.n, "refusals"
            past = RoundOutcome(round=event.round, how="refused", move=event.move, refusal=event.refusal)
            turn.past = (*turn.past, remembered(past))

    def _on_deferred(self, event: events.MoveDeferred) -> None:
        self.deferred.append(event)

    def _on_withheld(self, event: events.FactsWithheld) -> None:
        self.request = event.request
        self.pending = event

    def _on_failed_turn(self, event: events.TurnFailed) -> None:
        turn = self.turns[event.turn]
        if event.sender is not None:
            self._settle(turn, event.report)
        elif event.grounds is None or not event.grounds.unbegun:
            turn.unaccounted = True
        turn.failures += 1
        turn.state, turn.since_n, turn.due_at = "failed", event.n, event.retry_at
        turn.reason = event.error.code
        past = RoundOutcome(round=event.round, how="failed", failure=event.error)
        turn.past = (*turn.past, remembered(past))

    def _on_suspended(self, event: events.TurnSuspended) -> None:
        turn = self.turns[event.turn]
        self._settle(turn, self.report_of(event))
        turn.asks += 1
        turn.state, turn.since_n, turn.due_at = "suspended", event.n, event.expires_at
        turn.asked = event.ask.to_agent
        turn.approval = (event.ask.digest or "") if event.ask.action else ""

    def _on_escalated(self, event: events.EscalationRaised) -> None:
        self._carry(event, None if event.grounds is None else event.grounds.sender)
        ended = self._close(event.turn, event)
        if ended.agent == HUMAN:
            instead_of = ended.instead_of
        else:
            instead_of = ended.id
            self.escalations += 1
            if event.report != Report() or event.reason == "asked":
                self._settle(ended, event.report)
            elif ended.unaccounted and not ended.reported:
                rest = budget.left(self.frames[ended.id].ceiling, self.spent)
                self.spent = budget.plus(self.spent, budget.whole(rest))
        raised = self._begin(event, instead_of, event.tier)
        raised.reason = ended.reason if ended.agent == HUMAN else event.reason

    def _on_assigned(self, event: events.EscalationAssigned) -> None:
        self.turns[event.turn].person = event.person

    def _on_resolved(self, event: events.EscalationResolved) -> None:
        self._carry(event)
        self._close(event.turn, event)
        self._enter(event)

    def _on_doubted(self, event: events.EffectDoubted) -> None:
        turn = self.turns[event.turn]
        self._settle(turn, event.report)
        turn.state, turn.since_n, turn.doubted = "doubted", event.n, event.effect.step

    def _on_frozen(self, event: events.RequestFrozen) -> None:
        self.frozen_at = event.at

    def _on_thawed(self, event: events.RequestThawed) -> None:
        for turn in self.open.values():
            if self.frozen_at is not None:
                turn.clock += event.at - max(self.frozen_at, turn.clock)
        self.frozen_at = None

    def _on_completed(self, event: events.RequestCompleted) -> None:
        if not event.control:
            self._settle(self.turns[event.turn], self.report_of(event))
        self._end(event)

    def _on_failed(self, event: events.RequestFailed) -> None:
        if event.sender is not None:
            self._settle(self.turns[event.turn], self.report_of(event))
        self._end(event)

    def _end(self, event: AnyEvent) -> None:
        self.status, self.ended = _STATUS[type(event)], event
        for turn in self.open.values():
            turn.state, turn.ended_by = "ended", event
        self.open.clear()
        self.deferred.clear()


def _work(event: AnyEvent) -> Assignment:
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
_APPLY: dict[type[events.Event], Callable[[Ledger, Any], None]] = {
    events.RequestOpened: Ledger._on_opened,
    events.RequestRefused: Ledger._on_refused_submit,
    events.HandoffAdmitted: Ledger._on_admitted,
    events.MoveRefused: Ledger._on_move_refused,
    events.MoveDeferred: Ledger._on_deferred,
    events.FactsWithheld: Ledger._on_withheld,
    events.TurnFailed: Ledger._on_failed_turn,
    events.TurnRetried: Ledger._next_round,
    events.TurnSuspended: Ledger._on_suspended,
    events.TurnResumed: Ledger._next_round,
    events.EscalationRaised: Ledger._on_escalated,
    events.EscalationAssigned: Ledger._on_assigned,
    events.EscalationResolved: Ledger._on_resolved,
    events.EffectDoubted: Ledger._on_doubted,
    events.EffectSettled: Ledger._next_round,
    events.RequestFrozen: Ledger._on_frozen,
    events.RequestThawed: Ledger._on_thawed,
    events.RequestCompleted: Ledger._on_completed,
    events.RequestFailed: Ledger._on_failed,
    events.RequestExpired: Ledger._end,
    events.RequestCancelled: Ledger._end,
}


def fold(happened: Iterable[AnyEvent]) -> Ledger:
    """Return the ledger of one request from its first event on. Raises BrokenLog."""
    ledger = Ledger()
    for event in happened:
        ledger.apply(event)
    return ledger


def fold_bodies(bodies: Iterable[bytes]) -> Ledger:
    """Return the ledger of one request from its stored events. Raises UnknownEvent, Malformed, BrokenLog."""
    ledger = Ledger()
    for body in bodies:
        ledger.apply(codec.decode_event(body), body)
    return ledger
