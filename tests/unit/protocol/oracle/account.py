"""The oracle's own account of a request: what the raw events tell, folded another way than the ledger."""

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
Bound = frozenset[tuple[str, int]]
Layers = Mapping[str, tuple[Fact, ...]]
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
    bound: Bound
    """What must be carried, by key and layer."""
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
    facts: Mapping[str, tuple[Fact, ...]] = field(default_factory=dict)
    """All that is carried, whoever sees it: by key, what lies on top first."""
    things: Mapping[str, tuple[Artifact, ...]] = field(default_factory=dict)
    sees: Mapping[str, Fact] = field(default_factory=dict)
    """What the holder sees."""
    sees_things: Mapping[str, Artifact] = field(default_factory=dict)
    known: frozenset[tuple[str, bytes, frozenset[str]]] = frozenset()
    """Every key, value and labels that an admitted handoff held."""
    own: Mapping[tuple[str, str], tuple[Fact, ...]] = field(default_factory=dict)
    """By agent and key, what it brought and may not see."""
    labels: Mapping[str, frozenset[str]] = field(default_factory=dict)
    usage: Mapping[str, Amounts] = field(default_factory=dict)
    """The newest report of each turn, or what it was charged instead."""
    unaccounted: bool = False
    """Whether the clock ended a round of the newest turn that had begun."""
    bound: Bound = frozenset()
    """What the newest handoff must carry on, by key and layer."""
    frozen: bool = False
    over: bool = False
    escalations: int = 0
    pending: ev.FactsWithheld | None = None
    memory: tuple[Fact, ...] = ()
    """What the request began with of its conversation, whoever sees it."""

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
    hidden = () if kept is None else tuple(kept.facts[place] for place in kept.remembered)
    if not isinstance(event, ev.RequestOpened):
        return hidden
    return (*(fact for fact in event.work.handoff.facts if fact.key in event.remembered), *hidden)


def learn(
    account: Account, event: ev.AnyEvent, whole: Handoff | None = None, bound: Bound = frozenset()
) -> Account:
    """Return the account after an event.

    Args:
        whole: the handoff that the oracle held to be right, in layers.
        bound: what of it must be carried.
    """
    if isinstance(event, ev.FactsWithheld):
        return replace(account, pending=event)
    account = _reported(account, event)
    work: wk.Assignment | None = event.work
    match event:
        case ev.RequestOpened():
            account = replace(account, memory=remembered_in(account, event))
            account = replace(account, client=event.client, policy=event.policy, deadline=event.deadline)
            given = told(account, event, event.work)
            account = replace(account, bound=told_bound(account, event, event.work))
            account = _opened(account, event, event.work, given)
            return replace(account, stack=(_holder(account, given),), pending=None)
        case ev.HandoffAdmitted():
            assert whole is not None
            edge = (account.agent, str(whole.to_agent))
            account = _noted(account, event, whole)
            stack, hops, edges = _carried_on(account, whole), account.hops + 1, (*account.edges, edge)
            account = replace(_opened(account, event, event.work, whole), bound=bound)
            if whole.move == "hand_back":
                stack = stack[: [holder.agent for holder in stack].index(whole.to_agent) + 1]
            else:
                stack = (*stack, _holder(account, whole))
            return replace(account, stack=stack, hops=hops, edges=edges, pending=None)
        case ev.EscalationRaised():
            counted = account.agent != "human"
            account = _charged(account, event) if counted else account
            if whole is not None:
                account = _noted(account, event, whole)
                account = replace(account, stack=_carried_on(account, whole), bound=bound)
            given = told(account, event, event.work) if whole is None else whole
            account = _opened(account, event, event.work, given)
            return replace(account, escalations=account.escalations + counted, pending=None)
        case ev.EscalationResolved():
            given = told(account, event, event.work)
            account = replace(account, bound=told_bound(account, event, event.work))
            account = _opened(account, event, event.work, given)
            return replace(account, stack=(_holder(account, given),), edges=(), hops=0, pending=None)
        case ev.RequestFrozen():
            return replace(account, frozen=True)
        case ev.RequestThawed():
            return replace(account, frozen=False)
        case ev.TurnSuspended():
            return replace(account, asks=account.asks + 1)
        case ev.MoveRefused():
            account = replace(account, refusals=account.refusals + 1)
        case ev.TurnFailed():
            lay_there = event.sender is not None or (event.grounds is not None and event.grounds.unbegun)
            account = replace(
                account, failures=account.failures + 1, unaccounted=account.unaccounted or not lay_there
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
    """Return what an event hands over, in layers, with what was withheld just before it."""
    kept: ev.FactsWithheld | wk.Beneath | None = account.pending
    if isinstance(kept, ev.FactsWithheld) and kept.cause != event.cause:
        kept = None
    kept = kept or work.beneath or wk.Beneath()
    handoff = work.handoff
    hidden, names = {fact.key for fact in kept.facts}, {item.name for item in kept.artifacts}
    return msgspec.structs.replace(
        handoff,
        facts=(*(fact for fact in handoff.facts if fact.key not in hidden), *kept.facts),
        artifacts=(*(item for item in handoff.artifacts if item.name not in names), *kept.artifacts),
    )


def told_bound(account: Account, event: ev.AnyEvent, work: wk.Assignment) -> Bound:
    """Return what an event says must be carried on."""
    kept: ev.FactsWithheld | wk.Beneath | None = account.pending
    if isinstance(kept, ev.FactsWithheld) and kept.cause != event.cause:
        kept = None
    kept = kept or work.beneath or wk.Beneath()
    keys = [fact.key for fact in kept.facts]
    deep = {(keys[at], keys[:at].count(keys[at])) for at in kept.must_carry}
    shown = {(key, 0) for key in work.handoff.constraints.must_carry if key not in keys}
    return frozenset(deep | shown)


def changed_at(before: tuple[Fact, ...], after: tuple[Fact, ...]) -> int | None:
    """Return which layer under a key was replaced or dropped."""
    if len(after) > len(before):
        return None
    rest_ = [canonical(layer) for layer in after] + [b""] * (len(before) - len(after))
    return next((at for at, old in enumerate(before) if canonical(old) != rest_[at]), None)


def shifted(bound: Bound, before: Layers, after: Layers) -> Bound:
    """Return what must be carried once layers were dropped: those beneath move up."""
    found = set()
    for key, place in bound:
        gone = len(after.get(key, ())) < len(before.get(key, ()))
        at = changed_at(before.get(key, ()), after.get(key, ())) if gone else None
        if at is None or place < at:
            found.add((key, place))
        elif place > at:
            found.add((key, place - 1))
    return frozenset(found)


def _carried_on(account: Account, whole: Handoff) -> tuple[Holder, ...]:
    after = {key: tuple(f for f in whole.facts if f.key == key) for key in _keys(whole)}
    return tuple(replace(each, bound=shifted(each.bound, account.facts, after)) for each in account.stack)


def _noted(account: Account, event: ev.HandoffAdmitted | ev.EscalationRaised, whole: Handoff) -> Account:
    """Take down what the giver brought and is not cleared to see."""
    sender = None if event.grounds is None else event.grounds.sender
    cleared = set(() if sender is None else sender.clearance)
    own = dict(account.own)
    after: dict[str, list[Fact]] = {}
    for fact in whole.facts:
        after.setdefault(fact.key, []).append(fact)
    for key, layers in after.items():
        before = [canonical(layer) for layer in account.facts.get(key, ())]
        before += [b""] * (len(layers) - len(before))
        for layer, old in zip(layers, before, strict=False):
            is_new = len(layers) >= len(account.facts.get(key, ())) and canonical(layer) != old
            if is_new and not set(layer.labels) <= cleared:
                own[account.agent, key] = (*own.get((account.agent, key), ()), layer)
    return replace(account, own=own)


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
        intent=whole.intent,
        past=work.past,
        facts={key: tuple(f for f in whole.facts if f.key == key) for key in sorted(_keys(whole))},
        things={
            item.name: tuple(other for other in whole.artifacts if other.name == item.name)
            for item in whole.artifacts
        },
        sees={fact.key: fact for fact in work.handoff.facts},
        sees_things={item.name: item for item in work.handoff.artifacts},
        known=account.known
        | {(fact.key, canonical(fact.value), frozenset(fact.labels)) for fact in whole.facts},
        labels=labels,
    )


def _keys(handoff: Handoff) -> set[str]:
    return {fact.key for fact in handoff.facts}


def _holder(account: Account, whole: Handoff) -> Holder:
    own = whole.constraints
    return Holder(
        agent=str(whole.to_agent),
        intent=whole.intent,
        return_to=whole.return_to,
        sealed=whole.no_return,
        deadline=own.deadline,
        actions=own.allowed_actions,
        bound=account.bound,
        grant=own.budget or Budget(),
        spent_before=spent(account),
    )
