"""What the events of a tree change: plans, tasks and their ends, and joins that close."""

from collections.abc import Callable, Mapping
from typing import Any

from protocol.domain import budget
from protocol.domain.request_state import RequestState
from protocol.domain.tasks import TaskState, begun, next_worker, offer_id, task_turn
from protocol.domain.turns import TurnState
from protocol.wire import events
from protocol.wire.assignment import TaskStatus
from protocol.wire.grounds import Candidate


def _on_delegated(state: RequestState, event: events.TurnDelegated) -> None:
    turn = state.turns[event.turn]
    state.settle(turn, event.report)
    turn.state, turn.since_n, turn.due_at = "delegated", event.n, event.expires_at
    turn.join, turn.entry = event.join, event.grounds.sender
    for name in event.cancel:
        turn.tasks[name].called_off = True
    for task in begun(event, turn.id, len(turn.work.path) + 1):
        turn.tasks[task.name] = task
        state.tasks.append(task)
        state.live[task.lead, task.name] = task
        state.history.remember(task.planned.task.facts)


def _on_opened(state: RequestState, event: events.TaskOpened) -> None:
    task = state.turns[event.lead].tasks[event.name]
    turn = state.enter(event, state.take_over(event), task)
    if event.grounds is not None and event.grounds.target is not None:  # a claim
        task.worker = Candidate(entry=event.grounds.target)
    task.state, task.turn = "open", turn.id
    task.agents, task.attempts = (*task.agents, turn.agent), task.attempts + 1


def _on_offered(state: RequestState, event: events.TaskOffered) -> None:
    task = state.turns[event.lead].tasks[event.name]
    task.state, task.turn = "offered", event.offer.turn
    task.offer, task.claim_by, task.offered_at = task.turn, event.claim_by, event.at
    state.offers[task.turn] = task


def _on_posted(state: RequestState, event: events.FactsPosted) -> None:
    for fact in event.facts:
        state.board.pop((event.sender, fact.key), None)  # the newest comes last
        state.board[event.sender, fact.key] = fact
    state.history.remember(event.facts)


def _on_delivered(state: RequestState, event: events.TaskDelivered) -> None:
    turn = state.close(event.turn, event)
    state.settle(turn, event.report)
    state.history.remember(event.facts)
    assert turn.task is not None
    _end(state, turn.task, "delivered", event)


def _on_failed(state: RequestState, event: events.TaskFailed) -> None:
    task, turn = state.task_of(event.turn), state.turns.get(event.turn)
    assert task is not None
    if turn is not None:
        if event.sender is not None:
            state.settle(turn, event.report)
        _charge_unaccounted(state, turn, turn.unaccounted)
        state.close(turn.id, event)
    lead = state.turns[task.lead]
    if turn is not None and task.may_be_offered_again:
        task.state, task.worker, task.since_n, task.fell_back = "planned", None, event.n, True
        task.turn = offer_id(event.request, task.lead, event.n)
        return
    worker = next_worker(task, lead.work.path, lead.entry, event.grounds)
    if worker is None:
        _end(state, task, "failed", event)
        return
    task.state, task.worker, task.since_n, task.fell_back = "planned", worker, event.n, True
    task.turn = task_turn(event.request, task.lead, event.n)


def _on_cancelled(state: RequestState, event: events.TaskCancelled) -> None:
    task, turn = state.task_of(event.turn), state.turns.get(event.turn)
    assert task is not None
    if turn is not None:
        unbegun = event.grounds is not None and event.grounds.unbegun
        _charge_unaccounted(state, turn, turn.unaccounted or (turn.state == "working" and not unbegun))
        state.close(turn.id, event)
    _end(state, task, "cancelled", event)


def _end(
    state: RequestState,
    task: TaskState,
    how: TaskStatus,
    by: events.TaskDelivered | events.TaskFailed | events.TaskCancelled,
) -> None:
    task.state, task.ended = how, by
    state.live.pop((task.lead, task.name), None)


def _charge_unaccounted(state: RequestState, turn: TurnState, began: bool) -> None:
    """Charge a turn all that it had left if nobody said what a round of it cost that had begun."""
    if began:
        state.charge(turn, budget.whole(state.rest(turn)))


def _on_resumed(state: RequestState, event: events.TurnResumed) -> None:
    turn = state.turns[event.turn]
    joined = turn.state == "delegated"
    state.next_round(event)
    if not joined:
        return
    turn.waited += not event.work.results
    for result in event.work.results:
        turn.tasks[result.name].told = True


APPLY: Mapping[type[events.Event], Callable[[RequestState, Any], None]] = {
    events.TurnResumed: _on_resumed,
    events.TurnDelegated: _on_delegated,
    events.TaskOpened: _on_opened,
    events.TaskOffered: _on_offered,
    events.FactsPosted: _on_posted,
    events.TaskDelivered: _on_delivered,
    events.TaskFailed: _on_failed,
    events.TaskCancelled: _on_cancelled,
}
