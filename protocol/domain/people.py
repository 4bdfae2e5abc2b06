"""The time that people have: while a request waits for them, its own deadline stands still.

Under a policy with `human_deadline_s`, people have that long for each decision, from when it was first put to
them. Whatever the request had left when it began to wait, it has again when the last decision is made. When
the people's time is over, a question expires, an effect in doubt goes on as after its handoff's own deadline,
and a request with an escalation expires.

The request's deadline moves twice: to the latest that it can become when the wait begins, and to what it is
when the wait ends. Every handoff that has the request's deadline moves along. A deadline that an agent set on
a handoff is its own promise, and stays. No deadline moves beyond half of what the log keeps.
"""

from msgspec.structs import replace

from protocol.domain.request_state import RequestState, Stand
from protocol.domain.turns import Segment, TurnState
from protocol.wire.event_parts import Assignment
from protocol.wire.handoff import Constraints
from protocol.wire.ids import HUMAN

URGENT_AFTER = 0.8
"""The part of their time after which a decision of people is urgent."""


def is_with_people(turn: TurnState) -> bool:
    """Return True if an open turn waits for people: an escalation, a question to them, an effect in doubt."""
    return (
        turn.agent == HUMAN or turn.state == "doubted" or (turn.state == "suspended" and turn.asked == HUMAN)
    )


def has_escalation(state: RequestState) -> bool:
    """Return True if a person has an escalation whose time the policy limits."""
    return state.policy.human_deadline_s is not None and any(
        turn.agent == HUMAN for turn in state.open.values()
    )


def ends_at(state: RequestState, turn: TurnState) -> int | None:
    """Return when (UTC µs) people's time for a turn is over; None if it waits for none, or has no end."""
    return _end(state, turn.waits_since) if is_with_people(turn) else None


def urgent_at(turn: TurnState, end: int) -> int:
    """Return from when on (UTC µs) a decision is urgent.

    Args:
        end: when the people's time is over. A question may expire before.
    """
    if turn.due_at is not None:
        end = min(end, turn.due_at)
    return turn.waits_since + int((end - turn.waits_since) * URGENT_AFTER)


def expires_at(state: RequestState) -> int | None:
    """Return when (UTC µs) the request expires, as far as is known now; None before its first event.

    An escalation has people's time even if guards, which were away, raise it after the request's deadline: it
    fell due before that.
    """
    ends = (ends_at(state, turn) for turn in state.open.values() if turn.agent == HUMAN)
    return min((end for end in ends if end is not None), default=state.deadline)


def latest_reply(state: RequestState, turn: TurnState, asked: str, now: int) -> int:
    """Return the latest time (UTC µs) for the reply to a question of a turn that is asked now."""
    own, end = turn.frame.constraints.deadline, _end(state, now) if asked == HUMAN else None
    limits = (state.deadline, own) if end is None else (end, None if own == state.deadline else own)
    return min(at for at in limits if at is not None)


def _end(state: RequestState, since: int) -> int | None:
    span = state.policy.human_deadline_s
    if span is None:
        return None
    end = since + max(1, int(span * 1e6))
    return end if state.latest is None else min(end, state.latest)


# --- the request's deadline -----------------------------------------------------------------------


def deadline_without(state: RequestState, turn: TurnState, at: int) -> int | None:
    """Return the request's deadline (UTC µs) if people are done with this turn at `at`."""
    stand = state.stand
    if stand is None or any(is_with_people(other) for other in state.open.values() if other.id != turn.id):
        return state.deadline
    return _moved(state, stand, min(at, stand.until))


def going_on(state: RequestState, turn: TurnState, at: int) -> TurnState:
    """Return a turn that waits for people as it is once they are done with it at `at` (UTC µs)."""
    before, after = state.deadline, deadline_without(state, turn, at)
    if before == after:
        return turn
    assert before is not None
    assert after is not None
    turn = replace(turn)
    _move(turn, before, after)
    return turn


def follow(state: RequestState, at: int) -> None:
    """Move the request's deadline if it began to wait for people, or waits no more.

    Called after each event under a policy with `human_deadline_s`.

    Args:
        at: UTC µs of the event.
    """
    ends = [end for turn in state.open.values() if (end := ends_at(state, turn)) is not None]
    before = state.deadline
    if before is None:
        return
    stand = state.stand or Stand(since=at, until=at, deadline=before)
    if ends:
        state.stand = stand = replace(stand, until=max(stand.until, *ends))
        after = _moved(state, stand, stand.until)
    else:
        state.stand, after = None, _moved(state, stand, min(at, stand.until))
    if after == before:
        return
    state.deadline = after
    for turn in state.open.values():
        _move(turn, before, after)
    for task in state.live.values():
        task.planned = replace(task.planned, constraints=_until(task.planned.constraints, before, after))


def _moved(state: RequestState, stand: Stand, until: int) -> int:
    after = stand.deadline + until - stand.since
    return after if state.latest is None else max(stand.deadline, min(after, state.latest))


def _move(turn: TurnState, before: int, after: int) -> None:
    """Move a turn's deadlines along, where they are the request's."""
    path = (
        replace(frame, constraints=_until(frame.constraints, before, after)) for frame in turn.segment.path
    )
    turn.segment = Segment(tuple(path), turn.segment.depth, turn.segment.edges)
    if turn.state in ("suspended", "delegated") and turn.due_at == before:
        turn.due_at = after
    turn.given = None if turn.given is None else _given(turn.given, before, after)


def _given(work: Assignment, before: int, after: int) -> Assignment:
    handoff = work.handoff
    return replace(work, handoff=replace(handoff, constraints=_until(handoff.constraints, before, after)))


def _until(constraints: Constraints, before: int, after: int) -> Constraints:
    return replace(constraints, deadline=after) if constraints.deadline == before else constraints
