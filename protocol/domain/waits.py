"""Waits: what a request waits for, when each falls due, and which one fell due first."""

from collections.abc import Collection, Iterator, Mapping
from types import MappingProxyType
from typing import Literal, NamedTuple

from msgspec.structs import replace

from protocol.domain import plans
from protocol.domain.admission import may_post
from protocol.domain.envelope import World
from protocol.domain.ledger import Ledger
from protocol.domain.tasks import TaskState, busy_with
from protocol.domain.turns import TurnState
from protocol.wire import events
from protocol.wire.commands import FactsPost
from protocol.wire.config import Fleet
from protocol.wire.event_parts import Grounds
from protocol.wire.ids import HUMAN, TurnId

LEAST_PERIOD_US = 1_000_000
"""Looks in vain are at least a second apart, however short a policy's times are."""
_DEADLINE_HOLDS = ("working", "failed", "doubted", "delegated")
"""In which states a handoff's own deadline falls due. (No ask outlives it, and what is refused escalates.)"""
Looks = Mapping[TurnId, Grounds]
"""By turn or offer: what a look found of who serves it."""
NOT_LOOKED: Looks = MappingProxyType({})
_NOTHING_SEEN = Grounds()
_NOBODY = frozenset[TurnId]()
_CALLS_OVER = frozenset(
    {"timeout", "unattended", "abandoned", "deadline", "expire", "expire_ask", "sla", "unclaim", "join"}
)

OfTask = Literal["cancel", "open", "join", "unclaim"]
Clock = Literal["timeout", "unattended", "abandoned", "removed", "deadline"]
"""What ends a round by the clock; also the code of its failure."""


class Wait(NamedTuple):
    """Something that comes by itself."""

    at: int
    """UTC µs; of a wait with a `period`, the earliest time at which it can fall due."""
    what: Clock | OfTask | Literal["expire", "decide", "escalate", "retry", "expire_ask", "sla"]
    turn: TurnState | None = None
    """None: the wait is the request's own expiry."""
    period: int | None = None
    """µs that it has to be served without a gap (`timeout`, `unclaim`), or not at all (all others)."""
    task: TaskState | None = None
    """What is called off, opened, or offered in vain. (Then `unattended` means: nobody could claim it.)"""
    deferred: events.MoveDeferred | None = None
    """What is decided."""

    @property
    def about(self) -> TurnId | None:
        """The turn or offer that what a guard has seen speaks of."""
        if self.task is not None and self.task.state == "offered":
            return self.task.turn
        return None if self.turn is None else self.turn.id

    @property
    def calls_over(self) -> bool:
        """Return True if somebody's word counts for nothing once this has fallen due."""
        return self.what == "removed" or (self.what in _CALLS_OVER and self.at > 0)

    def falls_due(self, grounds: Grounds) -> int | None:
        """Return when (UTC µs) it falls due by what a guard knows; None while its time stands."""
        if self.period is None:
            return self.at
        if self.what == "removed":
            return self.at if grounds.removed else None
        if self.what == "unclaim" and grounds.removed:
            return self.at
        if grounds.served is not (self.what in ("timeout", "unclaim")):
            return None
        return max(self.at, (grounds.served_since or 0) + self.period)


def _waits(ledger: Ledger) -> list[Wait]:
    """Return everything that this request waits for; nothing once it is over."""
    waits: list[Wait] = []
    if not ledger.is_open:
        return waits
    if ledger.deadline is not None:
        waits.append(Wait(ledger.deadline, "expire"))
    if ledger.frozen_at is not None:
        return waits
    for deferred in ledger.deferred:
        turn, task = ledger.turns.get(deferred.turn), ledger.offers.get(deferred.turn)
        if turn is not None and type(deferred.proposal) is FactsPost:
            if may_post(turn, deferred.request):
                waits.append(Wait(0, "decide", turn, deferred=deferred))
        elif turn is not None and turn.state == "working" and turn.round == deferred.round:
            waits.append(Wait(0, "decide", turn, deferred=deferred))
        elif task is not None and task.may_be_claimed(deferred.turn) and not _is_busy(ledger, task, deferred):
            waits.append(Wait(0, "decide", ledger.turns[task.lead], deferred=deferred))
    if ledger.tasks:
        waits += _waits_of_tasks(ledger)
    for turn in ledger.open.values():
        waits += _waits_of(ledger, turn)
    return waits


def _is_busy(ledger: Ledger, task: TaskState, claim: events.MoveDeferred) -> bool:
    """Return True if a deferred claim has to wait: its claimant has another task of the lead in hand."""
    return bool(busy_with(ledger.turns[task.lead].tasks.values(), claim.sender))


def _waits_of_tasks(ledger: Ledger) -> Iterator[Wait]:
    for task in plans.to_cancel(ledger):
        yield Wait(0, "cancel", ledger.turns.get(task.turn) or ledger.turns[task.lead], task=task)
    for task in plans.unopened(ledger):
        yield Wait(0, "open", ledger.turns[task.lead], task=task)
    for task in ledger.live.values():
        if task.state == "offered" and task.next_asked is not None:
            yield Wait(0, "open", ledger.turns[task.lead], task=task)
        elif task.state == "offered":
            yield from _waits_of_an_offer(ledger, task)
    for lead in plans.joined(ledger):
        yield Wait(0, "join", lead)


def _waits_of_an_offer(ledger: Ledger, task: TaskState) -> Iterator[Wait]:
    lead, policy, deadline = ledger.turns[task.lead], ledger.policy, task.planned.constraints.deadline
    if deadline is not None and deadline != ledger.deadline:
        yield Wait(deadline, "unclaim", lead, task=task)
    clocks: tuple[tuple[Literal["unclaim", "unattended"], float | None], ...] = (
        ("unclaim", policy.claim_within_s),
        ("unattended", policy.unattended_after_s),
    )
    for what, within_s in clocks:
        if within_s is not None:
            period = _us(within_s)
            at = ledger.runs_out(task.offered_at, task.offered_at + period)
            yield Wait(at, what, lead, period, task)


def _waits_of(ledger: Ledger, turn: TurnState) -> Iterator[Wait]:
    policy = ledger.policy
    if turn.agent == HUMAN:
        if policy.escalation_sla_s is not None and turn.state == "working":
            yield Wait(_round_ends(ledger, turn, _us(policy.escalation_sla_s)), "sla", turn)
        return
    deadline = turn.frame.constraints.deadline
    if deadline is not None and deadline != ledger.deadline and turn.state in _DEADLINE_HOLDS:
        yield Wait(deadline, "deadline", turn)
    match turn.state:
        case "refused":
            yield Wait(0, "escalate", turn)
        case "failed" if turn.due_at is not None:
            yield Wait(ledger.runs_out(turn.waits_since, turn.due_at), "retry", turn)
        case "failed":
            yield Wait(0, "escalate", turn)
        case "suspended" | "delegated" if turn.due_at is not None:
            at = ledger.runs_out(turn.waits_since, turn.due_at, ledger.deadline, deadline)
            yield Wait(at, "expire_ask" if turn.state == "suspended" else "join", turn)
        case "working":
            period = _us(policy.turn_timeout_s)
            yield Wait(_round_ends(ledger, turn, period), "timeout", turn, period)
            if policy.unattended_after_s is not None:
                period = _us(policy.unattended_after_s)
                yield Wait(_round_ends(ledger, turn, period), "unattended", turn, period)
            if turn.task is not None and turn.task.may_be_offered_again:
                period = _us(policy.claim_within_s)  # as long as it may lie with nobody before a claim
                yield Wait(_round_ends(ledger, turn, period), "abandoned", turn, period)


def _round_ends(ledger: Ledger, turn: TurnState, period: int) -> int:
    return ledger.runs_out(turn.clock, turn.clock + period)


def _removals(ledger: Ledger) -> list[Wait]:
    """Return the rounds that end at once if their agent is not in the fleet; the ledger cannot tell."""
    if not ledger.is_open or ledger.frozen_at is not None:
        return []
    working = (turn for turn in ledger.open.values() if turn.state == "working" and turn.agent != HUMAN)
    return [Wait(0, "removed", turn, 0) for turn in working]


def removed(ledger: Ledger, fleet: Fleet, deciding: tuple[str, int] | None = None) -> frozenset[TurnId]:
    """Return the turns whose round ends at once, since their agents are not in the fleet.

    An older fleet than one that the request was judged by may not know a new agent: it removes nobody.

    Args:
        deciding: as for `due`.
    """
    if fleet.revision < ledger.fleet:
        return _NOBODY
    turns = [turn for turn in ledger.open.values() if turn.agent not in fleet.agents]
    if not turns or not ledger.is_open or ledger.frozen_at is not None:
        return _NOBODY
    return frozenset(
        turn.id
        for turn in turns
        if turn.state == "working" and turn.agent != HUMAN and deciding != (turn.id, turn.round)
    )


def _us(seconds: float) -> int:
    return max(1, int(seconds * 1e6))


def next_due(ledger: Ledger, now: int, looks: Looks = NOT_LOOKED) -> int | None:
    """Return when (UTC µs) this request is to be looked at next; None once it is over.

    Args:
        looks: what the last look found of turns and offers, where what has come hangs on who serves: when its
            time is up, by that; where its time stands, one period from `now`.
    """
    return min((_look_at(wait, now, _seen(wait, looks)) for wait in _waits(ledger)), default=None)


def _seen(wait: Wait, looks: Looks) -> Grounds:
    return _NOTHING_SEEN if wait.about is None else looks.get(wait.about, _NOTHING_SEEN)


def _look_at(wait: Wait, now: int, grounds: Grounds) -> int:
    if wait.period is None or wait.at > now:
        return wait.at
    at = wait.falls_due(grounds)
    if at is None or at <= now:
        at = now + wait.period
    return max(at, now + LEAST_PERIOD_US)


def first_wait(ledger: Ledger) -> int | None:
    """Return the time (UTC µs) from which on something may be due; None if nothing will ever be.

    It depends on the ledger alone, and `next_due` gives the same until that time has come.
    """
    return min([wait.at for wait in _waits(ledger)], default=None)


def by_the_clock(
    ledger: Ledger,
    now: int,
    deciding: tuple[str, int] | None = None,
    gone: Collection[TurnId] = (),
) -> list[TurnState]:
    """Return the turns whose round may have to end now without its holder's word.

    Who serves its agent, and whether the round has begun, has to be known for that.

    Args:
        deciding: as for `due`.
        gone: those whose agents are not in the fleet (`removed`).
    """
    found = {turn: ledger.turns[turn] for turn in ledger.open if turn in gone}
    for wait in _waits(ledger):
        turn = wait.turn
        if turn is None or turn.state != "working" or wait.at > now:
            continue
        if wait.what == "deadline" or (wait.period is not None and deciding != (turn.id, turn.round)):
            found[turn.id] = turn
        elif wait.what == "cancel" and turn.task is wait.task:
            return [turn]  # it comes before all that has a time
    return list(found.values())


def offers_by_the_clock(ledger: Ledger, now: int) -> list[TaskState]:
    """Return the tasks whose offer may be over now; who could claim each has to be known for that."""
    waits = (wait for wait in _waits(ledger) if wait.period is not None and wait.at <= now)
    found = {wait.about: wait.task for wait in waits if wait.task is not None}
    return list(found.values())


class Due(NamedTuple):
    """A wait whose time has come."""

    at: int
    """UTC µs at which it fell due."""
    wait: Wait
    world: World
    """What its event rests on."""


def next_wait(
    ledger: Ledger,
    world: World,
    deciding: tuple[str, int] | None = None,
    looks: Looks | None = None,
    by: int | None = None,
) -> Due | None:
    """Return the wait that fell due first; None when none has.

    Args:
        deciding: the (turn, round) whose proposal is in hand: its own timeout is not due.
        looks: what is known of the turns that were looked at; None: the world's grounds speak of every turn.
        by: UTC µs until which it has fallen due; by default `world.now`.
    """
    came: list[tuple[int, Grounds, Wait]] = []
    for wait in (*_waits(ledger), *_removals(ledger)):
        grounds = world.grounds if looks is None else _seen(wait, looks)
        at = wait.falls_due(grounds)
        if at is not None:
            came.append((at, grounds, wait))
    for at, grounds, wait in sorted(came, key=lambda one: one[0]):
        if at > (world.now if by is None else by):
            return None
        if (
            wait.period is None
            or wait.turn is None
            or wait.task
            or deciding != (wait.turn.id, wait.turn.round)
        ):
            looked = looks is not None and wait.about in looks
            return Due(at, wait, replace(world, grounds=grounds) if looked else world)
    return None
