"""Waits: what a request waits for, when each wait falls due, and which one fell due first."""

from collections.abc import Collection, Iterator, Mapping
from types import MappingProxyType
from typing import Literal, NamedTuple

from msgspec.structs import replace

from protocol.domain import people, plans
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

MIN_PROBE_PERIOD_US = 1_000_000
"""Probes without a result are at least a second apart, however short a policy's times are."""
_DEADLINE_HOLDS = ("working", "failed", "doubted", "delegated")
"""States in which a handoff's own deadline applies. (No ask outlives it, and a refused turn escalates.)"""
Probed = Mapping[TurnId, Grounds]
"""By turn or offer: what a probe found of the agents that serve it."""
NOT_PROBED: Probed = MappingProxyType({})
_NOTHING_SEEN = Grounds()
_NOBODY = frozenset[TurnId]()
_CALLS_OVER = frozenset(
    {"timeout", "unattended", "abandoned", "deadline", "expire", "expire_ask", "sla", "unclaim", "join"}
)

OfTask = Literal["cancel", "open", "join", "unclaim"]
Clock = Literal["timeout", "unattended", "abandoned", "removed", "deadline"]
"""Reasons for which a guard ends a round; also the code of its failure."""


class Wait(NamedTuple):
    """Something that falls due without a message."""

    at: int
    """UTC µs at which it falls due; with a `period`, the earliest such time."""
    what: Clock | OfTask | Literal["expire", "decide", "escalate", "retry", "expire_ask", "sla", "urgent"]
    """`urgent`: people have used up most of their time. Nothing follows from it but an alarm."""
    turn: TurnState | None = None
    """None: the wait is the request's own expiry."""
    period: int | None = None
    """µs for which the agent must be served without a gap (`timeout`, `unclaim`), or unserved (all
    others)."""
    task: TaskState | None = None
    """The task to cancel, open or end unclaimed. (`unattended` then means that no agent could claim it.)"""
    deferred: events.MoveDeferred | None = None
    """The proposal to decide."""

    @property
    def about(self) -> TurnId | None:
        """The turn or offer whose agents a guard has to probe."""
        if self.task is not None and self.task.state == "offered":
            return self.task.turn
        return None if self.turn is None else self.turn.id

    @property
    def outdates_messages(self) -> bool:
        """Return True if a message stored after this fell due no longer counts."""
        return self.what == "removed" or (self.what in _CALLS_OVER and self.at > 0)

    def falls_due(self, grounds: Grounds) -> int | None:
        """Return when (UTC µs) it falls due, given what a guard knows; None while its clock is stopped."""
        if self.what == "urgent":
            return None
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
    """Return everything that this request waits for: nothing once it is over."""
    waits: list[Wait] = []
    if not ledger.is_open:
        return waits
    expires_at = people.expires_at(ledger)
    if expires_at is not None:
        waits.append(Wait(expires_at, "expire"))
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
    """Return True if a deferred claim must wait, because its sender is busy with another task of the lead."""
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
    policy, limit = ledger.policy, people.ends_at(ledger, turn)
    if limit is not None:
        yield Wait(people.urgent_at(turn, limit), "urgent", turn)
    if turn.agent == HUMAN:
        if policy.escalation_sla_s is not None and turn.state == "working":
            yield Wait(_round_ends(ledger, turn, _us(policy.escalation_sla_s)), "sla", turn)
        return
    deadline = turn.frame.constraints.deadline
    if deadline is not None and deadline != ledger.deadline and turn.state in _DEADLINE_HOLDS:
        yield Wait(deadline, "deadline", turn)
    match turn.state:
        case "doubted" if limit is not None:
            yield Wait(limit, "deadline", turn)
        case "refused":
            yield Wait(0, "escalate", turn)
        case "failed" if turn.due_at is not None:
            yield Wait(ledger.runs_out(turn.waits_since, turn.due_at), "retry", turn)
        case "failed":
            yield Wait(0, "escalate", turn)
        case "suspended" | "delegated" if turn.due_at is not None:
            most = ledger.deadline if limit is None else limit
            at = ledger.runs_out(turn.waits_since, turn.due_at, most, deadline)
            yield Wait(at, "expire_ask" if turn.state == "suspended" else "join", turn)
        case "working":
            period = _us(policy.turn_timeout_s)
            yield Wait(_round_ends(ledger, turn, period), "timeout", turn, period)
            if policy.unattended_after_s is not None:
                period = _us(policy.unattended_after_s)
                yield Wait(_round_ends(ledger, turn, period), "unattended", turn, period)
            if turn.task is not None and turn.task.may_be_offered_again:
                period = _us(policy.claim_within_s)  # the same time as for an unclaimed offer
                yield Wait(_round_ends(ledger, turn, period), "abandoned", turn, period)


def _round_ends(ledger: Ledger, turn: TurnState, period: int) -> int:
    return ledger.runs_out(turn.clock, turn.clock + period)


def _removals(ledger: Ledger) -> list[Wait]:
    """Return waits for rounds that end at once if their agent is not in the fleet; the ledger cannot tell."""
    if not ledger.is_open or ledger.frozen_at is not None:
        return []
    working = (turn for turn in ledger.open.values() if turn.state == "working" and turn.agent != HUMAN)
    return [Wait(0, "removed", turn, 0) for turn in working]


def removed(ledger: Ledger, fleet: Fleet, deciding: tuple[str, int] | None = None) -> frozenset[TurnId]:
    """Return the turns whose round ends at once because their agents are not in the fleet.

    A fleet older than one that has judged the request may lack a new agent, so it removes none.

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


def next_due(ledger: Ledger, now: int, probed: Probed = NOT_PROBED) -> int | None:
    """Return when (UTC µs) to wake this request next; None once it is over.

    Args:
        probed: the last probes of turns and offers. They tell when a wait with a period falls due; if its
            clock is stopped, it is checked again one period from `now`.
    """
    waits = (wait for wait in _waits(ledger) if wait.what != "urgent" or wait.at > now)
    return min((_next_probe(wait, now, _seen(wait, probed)) for wait in waits), default=None)


def _seen(wait: Wait, probed: Probed) -> Grounds:
    return _NOTHING_SEEN if wait.about is None else probed.get(wait.about, _NOTHING_SEEN)


def _next_probe(wait: Wait, now: int, grounds: Grounds) -> int:
    if wait.period is None or wait.at > now:
        return wait.at
    at = wait.falls_due(grounds)
    if at is None or at <= now:
        at = now + wait.period
    return max(at, now + MIN_PROBE_PERIOD_US)


def first_wait(ledger: Ledger) -> int | None:
    """Return the time (UTC µs) from which on something may be due; None if nothing ever will be.

    It depends on the ledger alone. Until that time, `next_due` returns the same.
    """
    return min([wait.at for wait in _waits(ledger)], default=None)


def may_time_out(
    ledger: Ledger,
    now: int,
    deciding: tuple[str, int] | None = None,
    gone: Collection[TurnId] = (),
) -> list[TurnState]:
    """Return the turns whose round may have to end now, without a proposal from its holder.

    To decide that, a guard must know if the agent is served and if the round has begun.

    Args:
        deciding: as for `due`.
        gone: turns whose agents are not in the fleet (`removed`).
    """
    found = {turn: ledger.turns[turn] for turn in ledger.open if turn in gone}
    for wait in _waits(ledger):
        turn = wait.turn
        if turn is None or turn.state != "working" or wait.at > now:
            continue
        if wait.what == "deadline" or (wait.period is not None and deciding != (turn.id, turn.round)):
            found[turn.id] = turn
        elif wait.what == "cancel" and turn.task is wait.task:
            return [turn]  # it comes before everything that has a time
    return list(found.values())


def offers_that_may_end(ledger: Ledger, now: int) -> list[TaskState]:
    """Return the tasks whose offer may be over now. Their possible claimants have to be probed."""
    waits = (wait for wait in _waits(ledger) if wait.period is not None and wait.at <= now)
    found = {wait.about: wait.task for wait in waits if wait.task is not None}
    return list(found.values())


class Due(NamedTuple):
    """A wait whose time has come."""

    at: int
    """UTC µs at which it fell due."""
    wait: Wait
    world: World
    """What its event depends on."""


def next_wait(
    ledger: Ledger,
    world: World,
    deciding: tuple[str, int] | None = None,
    probed: Probed | None = None,
    by: int | None = None,
) -> Due | None:
    """Return the wait that fell due first; None if none has.

    Args:
        deciding: the (turn, round) whose proposal is being decided: its own timeout is not due.
        probed: grounds of the probed turns and offers; None if the world's grounds hold for every turn.
        by: UTC µs by which it must have fallen due; by default `world.now`.
    """
    reached: list[tuple[int, Grounds, Wait]] = []
    for wait in (*_waits(ledger), *_removals(ledger)):
        grounds = world.grounds if probed is None else _seen(wait, probed)
        at = wait.falls_due(grounds)
        if at is not None:
            reached.append((at, grounds, wait))
    for at, grounds, wait in sorted(reached, key=lambda item: item[0]):
        if at > (world.now if by is None else by):
            return None
        if (
            wait.period is None
            or wait.turn is None
            or wait.task
            or deciding != (wait.turn.id, wait.turn.round)
        ):
            own = probed is not None and wait.about in probed
            return Due(at, wait, replace(world, grounds=grounds) if own else world)
    return None
