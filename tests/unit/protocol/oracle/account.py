"""The oracle's own account of a request: what the raw events tell, folded another way than the ledger."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec

from protocol.wire import event_parts as wk
from protocol.wire import events as ev
from protocol.wire.commands import MoveProposed, Report
from protocol.wire.config import Policy
from protocol.wire.event_parts import Grounds
from protocol.wire.handoff import Artifact, Budget, Fact, Handoff

DIMENSIONS = ("nano_dollars", "tokens", "model_calls")
Amounts = Mapping[str, int]
NOTHING: Amounts = dict.fromkeys(DIMENSIONS, 0)


@dataclass(frozen=True)
class Holder:
    """Somebody on the stack of holders, with what they got."""

    agent: str
    intent: str | None
    return_to: str | None
    sealed: bool
    deadline: int | None
    actions: tuple[str, ...] | None
    bound: frozenset[str]
    """Keys of what must be carried."""
    grant: Budget
    spent_before: Amounts
    """What the request had spent when this was granted."""


@dataclass(frozen=True)
class Account:
    """What the oracle knows of a request."""

    client: str = ""
    policy: Policy = field(default_factory=Policy)
    deadline: int = 0
    turn: str = ""
    agent: str = ""
    round: int = 0
    asks: int = 0
    refusals: int = 0
    """Of the turn, as are the failures."""
    failures: int = 0
    intent: str | None = None
    past: tuple[wk.RoundOutcome, ...] = ()
    stack: tuple[Holder, ...] = ()
    edges: tuple[tuple[str, str], ...] = ()
    hops: int = 0
    facts: Mapping[str, Fact] = field(default_factory=dict)
    """All that is carried, whoever sees it."""
    things: Mapping[str, Artifact] = field(default_factory=dict)
    sees: Mapping[str, Fact] = field(default_factory=dict)
    """What the holder sees."""
    sees_things: Mapping[str, Artifact] = field(default_factory=dict)
    known: frozenset[tuple[str, bytes]] = frozenset()
    """Every key and value that an admitted handoff held."""
    labels: Mapping[str, frozenset[str]] = field(default_factory=dict)
    """By key, every label that it ever had."""
    usage: Mapping[str, Amounts] = field(default_factory=dict)
    """The newest report of each turn, or what it was charged instead."""
    unaccounted: bool = False
    """Whether the clock ended a round of the newest turn that had begun."""
    frozen: bool = False
    over: bool = False
    escalations: int = 0
    pending: ev.FactsWithheld | None = None
    failure: str = ""
    """With which code the turn's newest round failed; empty if it did not."""
    second: bool = False
    """Whether the holder got the work as another one's fallback."""
    memory: tuple[Fact, ...] = ()
    """What the request began with of its conversation, whoever sees it."""
    latest: float = math.inf
    """UTC µs beyond which no deadline moves."""
    stood_since: int | None = None
    """UTC µs since when people have had the request, in one go; None while they have not."""
    decision_since: int = 0
    """UTC µs at which they were given what they have to decide now."""

    @property
    def shown(self) -> set[str]:
        """Keys that the holder sees."""
        return set(self.sees)

    @property
    def holder(self) -> Holder:
        return self.stack[-1]

    @property
    def path(self) -> list[str]:
        return [holder.agent for holder in self.stack]

    @property
    def back(self) -> int | None:
        """The index on the stack that the holder hands back to."""
        below = self.path[:-1]
        if not below:
            return None
        named = self.holder.return_to
        return below.index(named) if named in below else len(below) - 1


def canonical(value: Any) -> bytes:
    return msgspec.json.encode(value, order="deterministic")


def same(one: Any, other: Any) -> bool:
    """Return True if two values are one as JSON, in which `true` is not `1`."""
    return canonical(one) == canonical(other)


def spent(account: Account) -> Amounts:
    return {name: sum(usage[name] for usage in account.usage.values()) for name in DIMENSIONS}


def amounts(report: Report) -> Amounts:
    return {name: getattr(report.usage, name) for name in DIMENSIONS}


def rest(holder: Holder, now_spent: Amounts) -> Budget:
    """Return the grant less what was spent since, by whomever."""
    since = {name: now_spent[name] - holder.spent_before[name] for name in DIMENSIONS}
    granted = {name: getattr(holder.grant, name) for name in DIMENSIONS}
    return Budget(**{name: None if most is None else most - since[name] for name, most in granted.items()})


def with_report(account: Account, report: Report) -> Account:
    """A report sums up every round, so that no amount becomes less than it was."""
    before, now = account.usage.get(account.turn, NOTHING), amounts(report)
    most = {name: max(before[name], now[name]) for name in DIMENSIONS}
    return replace(account, usage={**account.usage, account.turn: most})


def spent_after(account: Account, proposal: MoveProposed) -> Amounts:
    return spent(with_report(account, proposal.report))


def remembered_in(account: Account, event: ev.AnyEvent) -> tuple[Fact, ...]:
    """Return the facts of its conversation that the decision on a submit shows or keeps back."""
    kept = account.pending if account.pending and account.pending.cause == event.cause else None
    hidden = () if kept is None else kept.facts
    if not isinstance(event, ev.RequestOpened):
        return hidden
    return tuple(fact for fact in (*event.work.handoff.facts, *hidden) if fact.key in event.remembered)


def learn(account: Account, event: ev.AnyEvent, whole: Handoff | None = None) -> Account:
    """Return the account after an event.

    Args:
        whole: the handoff that the oracle held to be right, nothing withheld.
    """
    if isinstance(event, ev.FactsWithheld):
        return replace(account, pending=event)
    account = _reported(account, event)
    work: wk.Assignment | None = event.work
    match event:
        case ev.RequestOpened():
            account = replace(account, memory=remembered_in(account, event))
            account = replace(account, client=event.client, policy=event.policy, deadline=event.deadline)
            if event.grounds.longest_s is not None:
                account = replace(account, latest=event.at + int(event.grounds.longest_s * 1e6))
            given = told(account, event, event.work)
            account = _opened(account, event, event.work, given)
            return replace(account, stack=(_holder(account, given),), pending=None)
        case ev.HandoffAdmitted(work=opened) if opened.handoff.move == "fallback":
            edge, given = (account.agent, str(event.to)), told(account, event, event.work)
            stack, hops, edges = account.stack[:-1], account.hops + 1, (*account.edges, edge)
            account = replace(_opened(account, event, event.work, given), second=True)
            stack = (*stack, _holder(account, given))
            return replace(account, stack=stack, hops=hops, edges=edges, pending=None)
        case ev.HandoffAdmitted():
            assert whole is not None
            edge = (account.agent, str(whole.to_agent))
            stack, hops, edges = account.stack, account.hops + 1, (*account.edges, edge)
            account = _opened(account, event, event.work, whole)
            account = replace(account, second=event.instead_of is not None)
            if whole.move == "hand_back":
                stack = stack[: [holder.agent for holder in stack].index(whole.to_agent) + 1]
            else:
                stack = (*stack, _holder(account, whole))
            return replace(account, stack=stack, hops=hops, edges=edges, pending=None)
        case ev.EscalationRaised():
            counted = account.agent != "human"
            account = _charged(account, event) if counted else account
            given = told(account, event, event.work) if whole is None else whole
            account = _opened(account, event, event.work, given)
            return replace(account, escalations=account.escalations + counted, pending=None)
        case ev.EscalationResolved():
            given = told(account, event, event.work)
            account = _opened(account, event, event.work, given)
            return replace(account, stack=(_holder(account, given),), edges=(), hops=0, pending=None)
        case ev.RequestFrozen():
            return replace(account, frozen=True)
        case ev.RequestThawed():
            return replace(account, frozen=False)
        case ev.TurnSuspended():
            return replace(account, asks=account.asks + 1)
        case ev.MoveRefused():
            account = replace(account, refusals=account.refusals + 1, failure="")
        case ev.TurnFailed():
            lay_there = event.sender is not None or (event.grounds is not None and event.grounds.unbegun)
            account = replace(
                account,
                failures=account.failures + 1,
                failure=event.error.code,
                unaccounted=account.unaccounted or not lay_there,
            )
    if isinstance(event, ev.Ended):
        return replace(account, over=True)
    return account if work is None else replace(account, round=work.round, past=work.past)


TOLD_BESIDE = ev.RequestRefused | ev.TurnSuspended | ev.RequestCompleted | ev.RequestFailed
"""Events that do not say what they rest on: their reader may not know."""


def grounds_of(account: Account, event: ev.AnyEvent) -> Grounds | None:
    """Return what an event rests on, by itself or by what was kept back just before it."""
    kept = account.pending
    if not isinstance(event, TOLD_BESIDE):
        return event.grounds
    return None if kept is None or kept.cause != event.cause else kept.grounds


def _reported(account: Account, event: ev.AnyEvent) -> Account:
    """Take in what an event's turn reported, if its own holder said it."""
    kept = account.pending
    match event:
        case ev.HandoffAdmitted(work=opened) if opened.handoff.move == "fallback":
            return account
        case ev.HandoffAdmitted() | ev.MoveRefused() | ev.EffectDoubted():
            return with_report(account, event.report)
        case ev.TurnFailed(sender=str()) | ev.EscalationRaised(reason="asked"):
            return with_report(account, event.report)
        case ev.TurnSuspended() | ev.RequestFailed(sender=str()) | ev.RequestCompleted(control=""):
            beside = Report() if kept is None or kept.cause != event.cause else kept.report
            return with_report(account, beside)
    return account


def _charged(account: Account, event: ev.EscalationRaised) -> Account:
    """Charge the whole grant to a turn that began and never reported."""
    if account.turn in account.usage or not account.unaccounted:
        return account
    left = rest(account.holder, spent(account))
    charge = {name: max(0, getattr(left, name) or 0) for name in DIMENSIONS}
    return replace(account, usage={**account.usage, account.turn: charge})


def told(account: Account, event: ev.AnyEvent, work: wk.Assignment) -> Handoff:
    """Return what an event hands over, with what was withheld just before it."""
    kept = account.pending
    if kept is None or kept.cause != event.cause:
        return work.handoff
    handoff = work.handoff
    return msgspec.structs.replace(
        handoff,
        facts=tuple(sorted((*handoff.facts, *kept.facts), key=lambda fact: fact.key)),
        artifacts=tuple(sorted((*handoff.artifacts, *kept.artifacts), key=lambda item: item.name)),
    )


def _opened(account: Account, event: ev.AnyEvent, work: wk.Assignment, whole: Handoff) -> Account:
    labels = dict(account.labels)
    for fact in whole.facts:
        labels[fact.key] = labels.get(fact.key, frozenset()) | set(fact.labels)
    return replace(
        account,
        turn=str(event.id),
        agent=str(whole.to_agent),
        round=work.round,  # a turn that a person takes up again goes on counting
        unaccounted=False,
        asks=0,
        refusals=0,
        failures=0,
        failure="",
        second=False,
        intent=whole.intent,
        past=work.past,
        facts={fact.key: fact for fact in whole.facts},
        things={item.name: item for item in whole.artifacts},
        sees={fact.key: fact for fact in work.handoff.facts},
        sees_things={item.name: item for item in work.handoff.artifacts},
        known=account.known | {(fact.key, canonical(fact.value)) for fact in whole.facts},
        labels=labels,
    )


def _holder(account: Account, whole: Handoff) -> Holder:
    own = whole.constraints
    return Holder(
        agent=str(whole.to_agent),
        intent=whole.intent,
        return_to=whole.return_to,
        sealed=whole.no_return,
        deadline=own.deadline,
        actions=own.allowed_actions,
        bound=frozenset(own.must_carry),
        grant=own.budget or Budget(),
        spent_before=spent(account),
    )
