"""The ledger is the fold of one request's events. There is no other state.

Only `Ledger.apply` changes a ledger. It trusts its events, which guards wrote, and raises BrokenLog only for
a sequence that no guard could have written. Deciding never changes a ledger.

A ledger is mutable because folding is the hot path of the guard and of replay. For the state at an earlier
event, fold up to that event.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from msgspec import json

from protocol.domain import budget, people
from protocol.domain.memory import notes_speakers, recalled_for
from protocol.domain.request_state import RequestState
from protocol.domain.tasks import TaskState, begun, next_worker, offer_id, task_turn
from protocol.domain.turns import TurnState, remembered
from protocol.wire import codec, events
from protocol.wire.commands import Report, id_of
from protocol.wire.errors import BrokenLog
from protocol.wire.event import Event
from protocol.wire.event_parts import Candidate, RoundOutcome, TaskStatus
from protocol.wire.events import AnyEvent
from protocol.wire.freeze import Span
from protocol.wire.handoff import FALLBACK
from protocol.wire.ids import HUMAN

_DECIDES_NOTHING = (events.MoveDeferred, events.FactsWithheld)


@dataclass(slots=True, eq=False)
class Ledger(RequestState):
    """The fold of one request. Empty until its first event."""

    def apply(self, event: AnyEvent, body: bytes = b"") -> None:
        """Apply the next event.

        Args:
            body: the stored bytes, whose digest is the next event's `prev`. Callers that will not write a
                next event may leave them out; if needed, they are encoded from the event.

        Raises BrokenLog if it cannot be the next event. The ledger must not be used after that.
        """
        if event.n != self.n:
            raise BrokenLog(f"event {self.n} is missing; the next one there is {event.n}")
        kind = type(event)
        if self.head is None:
            self.began = event.at
        if event.stood:
            self.noted = (*self.noted, *event.stood)
        try:
            _APPLY[kind](self, event)
            if self.policy.human_deadline_s is not None:
                people.follow(self, event.at)
        except (LookupError, AttributeError, TypeError, AssertionError) as error:
            raise BrokenLog(f"event {event.n} does not follow from those before it") from error
        key = (event.cause, events.TYPES[kind])
        self.causes[key] = self.causes.get(key, 0) + 1
        if kind is not events.FactsWithheld:
            self.decided.add(event.cause)
        if event.grounds is not None and event.grounds.fleet > self.fleet:
            self.fleet = event.grounds.fleet
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

    def _on_opened(self, event: events.RequestOpened) -> None:
        self.request, self.client, self.status = event.request, event.client, "open"
        self.policy, self.deadline, self.conversation = event.policy, event.deadline, event.conversation
        longest_s = event.grounds.longest_s
        self.latest = None if longest_s is None else event.at + int(longest_s * 1e6)
        self.submit_digest, self.prices, self.forked_from = event.digest, event.prices, event.forked_from
        self.notes_speakers = notes_speakers(event)
        self.memory = recalled_for(event, self.kept_back(event.cause))
        self.enter(event, self.take_over(event))

    def _on_refused_submit(self, event: events.RequestRefused) -> None:
        self.request, self.client, self.submit_digest = event.request, event.client, event.digest
        self.end(event)

    def _on_admitted(self, event: events.HandoffAdmitted) -> None:
        giver, handoff = self.turns[event.turn], event.work.handoff
        segment, hidden = giver.segment, self.take_over(event)
        self.close(giver.id, event)
        if handoff.move == FALLBACK:
            self._charge_unaccounted(giver, giver.unaccounted and not giver.reported)
            segment = segment.replaced_by(self.frame_of(handoff))
        else:
            self.settle(giver, event.report)
            if handoff.move == "hand_back":
                segment = segment.pop_to(len(event.work.path) - 1)
            else:
                segment = segment.push(self.frame_of(handoff))
        turn = self.begin(event, segment, hidden)
        turn.fell_back = handoff.move == FALLBACK or event.instead_of is not None

    def _on_move_refused(self, event: events.MoveRefused) -> None:
        if event.turn in self.offers:
            return  # a refused claim: it changes nothing
        turn = self.turns[event.turn]
        self.settle(turn, event.report)
        turn.refusals += 1
        if event.work is not None:
            self.next_round(event)
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
            self.settle(turn, event.report)
        elif event.grounds is None or not event.grounds.unbegun:
            turn.unaccounted = True
        turn.failures += 1
        turn.state, turn.since_n, turn.due_at = "failed", event.n, event.retry_at
        turn.waits_since = event.at
        turn.reason = event.error.code
        past = RoundOutcome(round=event.round, how="failed", failure=event.error)
        turn.past = (*turn.past, remembered(past))

    def _on_suspended(self, event: events.TurnSuspended) -> None:
        turn = self.turns[event.turn]
        self.settle(turn, self.report_of(event))
        turn.asks += 1
        turn.state, turn.since_n, turn.due_at = "suspended", event.n, event.expires_at
        turn.waits_since = event.at
        turn.ask = event.ask
        if event.ask.to_agent != HUMAN and event.ask.to_agent not in self.readers:
            self.readers = (*self.readers, event.ask.to_agent)
        turn.approval = (event.ask.digest or "") if event.ask.action else ""

    def _on_escalated(self, event: events.EscalationRaised) -> None:
        ended = self.turns[event.turn]
        segment, hidden = ended.segment, self.take_over(event)
        self.close(ended.id, event)
        if ended.agent == HUMAN:
            instead_of = ended.instead_of
        else:
            instead_of = ended.id
            self.escalations += 1
            if event.report != Report() or event.reason == "asked":
                self.settle(ended, event.report)
            else:
                self._charge_unaccounted(ended, ended.unaccounted and not ended.reported)
        raised = self.begin(event, segment, hidden, instead_of=instead_of, tier=event.tier)
        raised.reason = ended.reason if ended.agent == HUMAN else event.reason
        raised.waits_since = ended.waits_since if ended.agent == HUMAN else event.at

    def _on_assigned(self, event: events.EscalationAssigned) -> None:
        self.turns[event.turn].person = event.person

    def _on_resolved(self, event: events.EscalationResolved) -> None:
        human = self.turns[event.turn]
        hidden = self.take_over(event)
        self.close(event.turn, event)
        turn = self.enter(event, hidden)
        turn.entry = event.grounds.target
        if event.work.continues is not None and human.instead_of is not None:
            turn.before = self.turns[human.instead_of].known_tasks

    def _on_doubted(self, event: events.EffectDoubted) -> None:
        turn = self.turns[event.turn]
        self.settle(turn, event.report)
        turn.state, turn.since_n, turn.doubted = "doubted", event.n, event.effect.step
        turn.waits_since = event.at

    def _on_frozen(self, event: events.RequestFrozen) -> None:
        self.frozen_at = event.since or event.at

    def _on_thawed(self, event: events.RequestThawed) -> None:
        if self.frozen_at is not None:
            self.thawed = (*self.thawed, Span(since=self.frozen_at, until=event.at))
        self.frozen_at = None

    def _on_completed(self, event: events.RequestCompleted) -> None:
        if not event.control:
            self.settle(self.turns[event.turn], self.report_of(event))
        self.end(event)

    def _on_failed(self, event: events.RequestFailed) -> None:
        if event.sender is not None:
            self.settle(self.turns[event.turn], self.report_of(event))
        self.end(event)

    # --- trees: plans, tasks and their ends, joins ------------------------------------------------

    def _on_delegated(self, event: events.TurnDelegated) -> None:
        turn = self.turns[event.turn]
        self.settle(turn, event.report)
        turn.state, turn.since_n, turn.due_at = "delegated", event.n, event.expires_at
        turn.waits_since = event.at
        if event.within_s is not None and self.policy.human_deadline_s is not None:
            turn.due_at = event.at + int(event.within_s * 1e6)  # the deadline that bounds it may move yet
        turn.join, turn.entry = event.join, event.grounds.sender
        for name in event.cancel:
            turn.tasks[name].called_off = True
        for task in begun(event, turn.id, len(turn.path) + 1, self.tasks):
            turn.tasks[task.name] = self.tasks[task.planned.turn] = task
            self.live[task.lead, task.name] = task
            self.history.remember(task.planned.task.facts)

    def _on_task_opened(self, event: events.TaskOpened) -> None:
        task = self.turns[event.lead].tasks[event.name]
        turn = self.enter(event, self.take_over(event), task)
        if event.grounds is not None and event.grounds.target is not None:  # a claim
            task.worker = Candidate(entry=event.grounds.target)
        task.state, task.turn = "open", turn.id
        task.agents, task.attempts = (*task.agents, turn.agent), task.attempts + 1

    def _on_offered(self, event: events.TaskOffered) -> None:
        task = self.turns[event.lead].tasks[event.name]
        task.offered_at = event.at
        if event.again:
            task.copies[event.to] = event.n
            if event.grounds is not None:
                task.asked = event.grounds.candidates
            return
        task.state, task.turn, task.offer = "offered", event.offer.turn, event.offer.turn
        task.asked, task.copies = (), {}
        self.offers[task.turn] = task

    def _on_posted(self, event: events.FactsPosted) -> None:
        for fact in event.facts:
            self.board.pop((event.sender, fact.key), None)  # the newest comes last
            self.board[event.sender, fact.key] = fact
        self.history.remember(event.facts)
        self.turns[event.turn].posts += 1
        self.posted_bytes += len(json.encode(event.facts))

    def _on_delivered(self, event: events.TaskDelivered) -> None:
        turn = self.close(event.turn, event)
        self.settle(turn, event.report)
        self.history.remember(event.facts)
        assert turn.task is not None
        self._end_task(turn.task, "delivered", event)

    def _on_task_failed(self, event: events.TaskFailed) -> None:
        task, turn = self.task_of(event.turn), self.turns.get(event.turn)
        assert task is not None
        if turn is not None:
            if event.sender is not None:
                self.settle(turn, event.report)
            self._charge_unaccounted(turn, turn.unaccounted)
            self.close(turn.id, event)
        lead = self.turns[task.lead]
        again = turn is not None and task.may_be_offered_again
        worker = None if again else next_worker(task, lead.path, lead.entry, event.grounds)
        if worker is None and not again:
            self._end_task(task, "failed", event)
            return
        task.state, task.worker, task.since_n, task.fell_back = "planned", worker, event.n, event.turn
        task.turn = (offer_id if again else task_turn)(event.request, task.lead, event.n)

    def _on_task_cancelled(self, event: events.TaskCancelled) -> None:
        task, turn = self.task_of(event.turn), self.turns.get(event.turn)
        assert task is not None
        if turn is not None:
            unbegun = event.grounds is not None and event.grounds.unbegun
            self._charge_unaccounted(turn, turn.unaccounted or (turn.state == "working" and not unbegun))
            self.close(turn.id, event)
        self._end_task(task, "cancelled", event)

    def _end_task(
        self,
        task: TaskState,
        how: TaskStatus,
        by: events.TaskDelivered | events.TaskFailed | events.TaskCancelled,
    ) -> None:
        task.state, task.ended = how, by
        self.live.pop((task.lead, task.name), None)
        self.forget(self.turns[task.lead])

    def _charge_unaccounted(self, turn: TurnState, began: bool) -> None:
        """Charge a turn everything it had left if a round of it began and never reported its cost."""
        if began:
            self.charge(turn, budget.whole(self.rest(turn)))

    def _on_resumed(self, event: events.TurnResumed) -> None:
        turn = self.turns[event.turn]
        joined = turn.state == "delegated"
        self.next_round(event)
        if not joined:
            return
        turn.waited += not event.work.results
        for result in event.work.results:
            turn.tasks[result.name].reported = True


_APPLY: dict[type[Event], Callable[[Ledger, Any], None]] = {
    events.RequestOpened: Ledger._on_opened,
    events.RequestRefused: Ledger._on_refused_submit,
    events.HandoffAdmitted: Ledger._on_admitted,
    events.MoveRefused: Ledger._on_move_refused,
    events.MoveDeferred: Ledger._on_deferred,
    events.FactsWithheld: Ledger._on_withheld,
    events.TurnFailed: Ledger._on_failed_turn,
    events.TurnRetried: Ledger.next_round,
    events.TurnSuspended: Ledger._on_suspended,
    events.EscalationRaised: Ledger._on_escalated,
    events.EscalationAssigned: Ledger._on_assigned,
    events.EscalationResolved: Ledger._on_resolved,
    events.EffectDoubted: Ledger._on_doubted,
    events.EffectSettled: Ledger.next_round,
    events.RequestFrozen: Ledger._on_frozen,
    events.RequestThawed: Ledger._on_thawed,
    events.RequestCompleted: Ledger._on_completed,
    events.RequestFailed: Ledger._on_failed,
    events.RequestExpired: Ledger.end,
    events.RequestCancelled: Ledger.end,
    events.TurnResumed: Ledger._on_resumed,
    events.TurnDelegated: Ledger._on_delegated,
    events.TaskOpened: Ledger._on_task_opened,
    events.TaskOffered: Ledger._on_offered,
    events.FactsPosted: Ledger._on_posted,
    events.TaskDelivered: Ledger._on_delivered,
    events.TaskFailed: Ledger._on_task_failed,
    events.TaskCancelled: Ledger._on_task_cancelled,
}


def fold(log: Iterable[AnyEvent]) -> Ledger:
    """Return the ledger of one request from its first event on. Raises BrokenLog."""
    ledger = Ledger()
    for event in log:
        ledger.apply(event)
    return ledger


def fold_bodies(bodies: Iterable[bytes]) -> Ledger:
    """Return the ledger of one request from its stored events. Raises UnknownEvent, Malformed, BrokenLog."""
    ledger = Ledger()
    for body in bodies:
        ledger.apply(codec.decode_event(body), body)
    return ledger
