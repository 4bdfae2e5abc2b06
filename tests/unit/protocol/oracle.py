"""A second opinion on every verdict, by another way.

The oracle keeps its own account of a request, from the raw events, and reads the rules as the design
states them. It shares types with the code it judges and nothing else: of `protocol` it imports only
what events are made of.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec

from protocol import events as ev
from protocol.handoff import Artifact, Budget, Constraints, Fact, Handoff
from protocol.messages import (
    Ask,
    Complete,
    Escalate,
    Fail,
    HandBack,
    Move,
    MoveProposed,
    Report,
    Transfer,
)
from protocol.policy import Policy
from protocol.world import Grounds

MOVES = {
    Transfer: "transfer",
    HandBack: "hand_back",
    Ask: "ask",
    Escalate: "escalate",
    Complete: "complete",
    Fail: "fail",
}
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
    must_carry: frozenset[str]
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
    intent: str | None = None
    past: tuple[ev.Past, ...] = ()
    stack: tuple[Holder, ...] = ()
    edges: tuple[tuple[str, str], ...] = ()
    hops: int = 0
    facts: Mapping[str, Fact] = field(default_factory=dict)
    """All that is carried, whoever sees it."""
    things: Mapping[str, Artifact] = field(default_factory=dict)
    shown: frozenset[str] = frozenset()
    """Keys that the holder sees."""
    known: frozenset[tuple[str, bytes]] = frozenset()
    """Every (key, value) that an admitted handoff held."""
    labels: Mapping[str, frozenset[str]] = field(default_factory=dict)
    usage: Mapping[str, Amounts] = field(default_factory=dict)
    """The newest report of each turn, or what it was charged instead."""
    frozen: bool = False
    over: bool = False
    escalations: int = 0
    pending: ev.FactsWithheld | None = None

    @property
    def holder(self) -> Holder:
        return self.stack[-1]

    @property
    def path(self) -> list[str]:
        return [holder.agent for holder in self.stack]


@dataclass(frozen=True)
class Opinion:
    """What the oracle holds to be right: the rule that refuses, or what is handed over."""

    rule: str | None
    handoff: Handoff | None = None


def canonical(value: Any) -> bytes:
    return msgspec.json.encode(value, order="deterministic")


def spent(account: Account) -> Amounts:
    return {name: sum(usage[name] for usage in account.usage.values()) for name in DIMENSIONS}


def amounts(report: Report) -> Amounts:
    return {name: getattr(report.usage, name) for name in DIMENSIONS}


def rest(holder: Holder, now_spent: Amounts) -> Budget:
    """Return the grant less what was spent since, by whomever."""
    since = {name: now_spent[name] - holder.spent_before[name] for name in DIMENSIONS}
    granted = {name: getattr(holder.grant, name) for name in DIMENSIONS}
    return Budget(**{name: None if most is None else most - since[name] for name, most in granted.items()})


# --- opinions -------------------------------------------------------------------------------------


def opine(account: Account, proposal: MoveProposed, grounds: Grounds, at: int) -> Opinion:
    """Say which rule refuses a move first, or what an admitted one hands over."""
    move = proposal.move
    if account.policy.topology != "handoff" or type(move) not in MOVES:
        return Opinion("known_move")
    handoff = _handoff(account, proposal, at)
    gives = isinstance(move, Transfer | HandBack)
    checks: dict[str, Callable[[], bool]] = {
        "known_agent": lambda: _unknown_agent(account, move, grounds),
        "agent_available": lambda: _unavailable(account, move, grounds),
        "depth": lambda: gives and account.hops + 1 > account.policy.max_depth,
        "cycle": lambda: isinstance(move, Transfer) and _runs_in_circles(account, move),
        "hand_back": lambda: isinstance(move, HandBack) and _goes_back_wrongly(account, move),
        "no_return": lambda: isinstance(move, Transfer | HandBack) and _breaks_a_seal(account, move),
        "asks": lambda: isinstance(move, Ask) and account.asks + 1 > account.policy.max_asks,
        "budget": lambda: isinstance(move, Transfer) and _asks_for_too_much(account, proposal, move),
        "constraints": lambda: isinstance(move, Transfer) and _widens(account, move, at),
        "must_carry": lambda: isinstance(move, Transfer | HandBack) and _loses(account, move),
        "actions": lambda: _acted_beyond(account, proposal.report, grounds),
        "size": lambda: len(canonical(handoff or move)) > account.policy.max_handoff_bytes,
    }
    for rule, refuses in checks.items():
        if refuses():
            return Opinion(rule)
    return Opinion(None, handoff)


def _back(account: Account) -> int | None:
    """Return the index on the stack that the holder hands back to."""
    below = account.path[:-1]
    if not below:
        return None
    named = account.holder.return_to
    return below.index(named) if named in below else len(below) - 1


def _unknown_agent(account: Account, move: Move, grounds: Grounds) -> bool:
    if isinstance(move, Transfer):
        target, sender = grounds.target, grounds.sender
        if move.to_agent == "human" or target is None:
            return True
        if sender is None:  # whoever left the fleet gives work to nobody
            return True
        if sender.to is not None and move.to_agent not in sender.to:
            return True
        takes = target.intents
        return move.intent is not None and takes is not None and move.intent not in takes
    if isinstance(move, HandBack):
        return _back(account) is not None and grounds.target is None
    if isinstance(move, Ask):
        return move.to_agent not in (account.client, "human") or (
            move.to_agent == "human" and not grounds.human
        )
    return isinstance(move, Escalate) and not grounds.human


def _unavailable(account: Account, move: Move, grounds: Grounds) -> bool:
    somebody = isinstance(move, Transfer) or (isinstance(move, HandBack) and _back(account) is not None)
    return somebody and grounds.breaker == "open"


def _brings_news(account: Account, move: Transfer | HandBack) -> bool:
    return any((fact.key, canonical(fact.value)) not in account.known for fact in move.facts)


def _runs_in_circles(account: Account, move: Transfer) -> bool:
    if move.to_agent in account.path:
        return True
    return (account.agent, move.to_agent) in account.edges and not _brings_news(account, move)


def _goes_back_wrongly(account: Account, move: HandBack) -> bool:
    back = _back(account)
    if back is None:
        return True
    target = account.path[back]
    if move.to_agent is not None and move.to_agent != target:
        return True
    return (account.agent, target) in account.edges and not _brings_news(account, move)


def _breaks_a_seal(account: Account, move: Transfer | HandBack) -> bool:
    """A sealed holder, or anyone above one, goes to whoever is below the sealed one."""
    back = _back(account)
    target = move.to_agent if isinstance(move, Transfer) else None if back is None else account.path[back]
    below_a_seal: set[str] = set()
    for index, holder in enumerate(account.stack):
        if holder.sealed:
            below_a_seal |= set(account.path[:index])
    return target in below_a_seal


def _asks_for_too_much(account: Account, proposal: MoveProposed, move: Transfer) -> bool:
    left = rest(account.holder, _spent_after(account, proposal))
    asked = move.constraints.budget
    return asked is not None and any(
        getattr(asked, name) is not None
        and getattr(left, name) is not None
        and getattr(asked, name) > getattr(left, name)
        for name in DIMENSIONS
    )


def _spent_after(account: Account, proposal: MoveProposed) -> Amounts:
    return spent(_with_report(account, proposal.report))


def _with_report(account: Account, report: Report) -> Account:
    """A report sums up every round, so that no amount becomes less than it was."""
    before, now = account.usage.get(account.turn, NOTHING), amounts(report)
    most = {name: max(before[name], now[name]) for name in DIMENSIONS}
    return replace(account, usage={**account.usage, account.turn: most})


def _due(asked: Constraints, at: int) -> int | None:
    ends = [asked.deadline] if asked.deadline is not None else []
    if asked.max_resolution_time_s is not None:
        ends.append(at + int(asked.max_resolution_time_s * 1e6))
    return min(ends, default=None)


def _widens(account: Account, move: Transfer, at: int) -> bool:
    due, own = _due(move.constraints, at), account.holder
    later = due is not None and own.deadline is not None and due > own.deadline
    asked = move.constraints.allowed_actions
    return later or (asked is not None and own.actions is not None and not set(asked) <= set(own.actions))


def _loses(account: Account, move: Transfer | HandBack) -> bool:
    after, _ = _merged(account, move)
    for key in account.holder.must_carry & account.facts.keys():
        if key not in after or canonical(after[key].value) != canonical(account.facts[key].value):
            return True
    asked = move.constraints.must_carry if isinstance(move, Transfer) else ()
    visible = account.shown | {fact.key for fact in move.facts}
    return not set(asked) <= after.keys() & visible


def _acted_beyond(account: Account, report: Report, grounds: Grounds) -> bool:
    limits = [account.holder.actions, None if grounds.sender is None else grounds.sender.actions]
    return any(limit is not None and not set(report.actions) <= set(limit) for limit in limits)


# --- what is handed over --------------------------------------------------------------------------


def _merged(
    account: Account, move: Transfer | HandBack | Escalate
) -> tuple[dict[str, Fact], dict[str, Artifact]]:
    """Return facts and artifacts after a move: all but the dropped, and the new ones with old labels."""
    dropped = set() if isinstance(move, Escalate) else set(move.drop) & account.shown
    facts = {key: fact for key, fact in account.facts.items() if key not in dropped}
    for fact in move.facts:
        labels = account.labels.get(fact.key, frozenset()) | set(fact.labels)
        facts[fact.key] = Fact(key=fact.key, value=fact.value, labels=tuple(sorted(labels)))
    things = dict(account.things)
    for item in () if isinstance(move, Escalate) else move.artifacts:
        former = things[item.name].labels if item.name in things else ()
        things[item.name] = msgspec.structs.replace(item, labels=tuple(sorted({*item.labels, *former})))
    return facts, things


def _shown_budget(budget: Budget) -> Budget | None:
    return budget if any(getattr(budget, name) is not None for name in DIMENSIONS) else None


def _handoff(account: Account, proposal: MoveProposed, at: int) -> Handoff | None:
    """Return the whole handoff of a move, nothing withheld; None where a move hands nothing over."""
    move, now_spent = proposal.move, _spent_after(account, proposal)
    if not isinstance(move, Transfer | HandBack | Escalate):
        return None
    back = _back(account)
    if isinstance(move, HandBack) and back is None:
        return None
    facts, things = _merged(account, move)
    left = rest(account.holder, now_spent)
    own = account.holder
    to: str = "human"
    return_to: str | None = None
    sealed, intent = False, account.intent
    if isinstance(move, Transfer):
        asked = move.constraints
        to, return_to, sealed, intent = move.to_agent, move.return_to, move.no_return, move.intent
        ends = [end for end in (own.deadline, _due(asked, at)) if end is not None]
        if asked.budget is not None:
            wanted = {name: getattr(asked.budget, name) for name in DIMENSIONS}
            left = Budget(
                **{name: getattr(left, name) if want is None else want for name, want in wanted.items()}
            )
        constraints = Constraints(
            deadline=min(ends, default=None),
            allowed_actions=own.actions
            if asked.allowed_actions is None
            else tuple(sorted(asked.allowed_actions)),
            budget=_shown_budget(left),
            must_carry=tuple(sorted(own.must_carry | set(asked.must_carry))),
        )
    else:
        if isinstance(move, HandBack) and back is not None:
            own = account.stack[back]
            to, return_to, sealed, intent = own.agent, own.return_to, own.sealed, own.intent
        constraints = Constraints(
            deadline=own.deadline,
            allowed_actions=own.actions,
            budget=_shown_budget(rest(own, now_spent)),
            must_carry=tuple(sorted(own.must_carry)),
        )
    return Handoff(
        move=MOVES[type(move)],
        from_agent=account.agent,  # type: ignore[arg-type]
        to_agent=to,  # type: ignore[arg-type]
        parent=account.turn,  # type: ignore[arg-type]
        summary=move.summary,
        intent=intent,
        facts=tuple(facts[key] for key in sorted(facts)),
        artifacts=tuple(things[name] for name in sorted(things)),
        constraints=constraints,
        return_to=return_to,  # type: ignore[arg-type]
        no_return=sealed,
    )


def as_shown(handoff: Handoff, clearance: tuple[str, ...]) -> Handoff:
    """Return what a reader with this clearance may see of a handoff."""
    cleared = set(clearance)
    hidden = {fact.key for fact in handoff.facts if not set(fact.labels) <= cleared}
    keys = tuple(key for key in handoff.constraints.must_carry if key not in hidden)
    return msgspec.structs.replace(
        handoff,
        facts=tuple(fact for fact in handoff.facts if fact.key not in hidden),
        artifacts=tuple(item for item in handoff.artifacts if set(item.labels) <= cleared),
        constraints=msgspec.structs.replace(handoff.constraints, must_carry=keys),
    )


# --- complaints -----------------------------------------------------------------------------------


def complaints(account: Account, proposal: MoveProposed, event: ev.AnyEvent) -> list[str]:
    """Return what is wrong with the verdict on a proposal; nothing if it is right."""
    if isinstance(event, ev.MoveDeferred):
        return [] if account.frozen else ["deferred, though nothing is frozen"]
    grounds = getattr(event, "grounds", None)
    if grounds is None:
        return [f"{type(event).__name__} says not what it rests on"]
    opinion = opine(account, proposal, grounds, event.at)
    if isinstance(event, ev.MoveRefused):
        if opinion.rule is None:
            return [f"refused by {event.refusal.rule}, though no rule forbids it"]
        if opinion.rule != event.refusal.rule:
            return [f"refused by {event.refusal.rule}, though {opinion.rule} comes first"]
        return []
    if opinion.rule is not None:
        return [f"{type(event).__name__}, though {opinion.rule} forbids it"]
    return [*_of_kind(account, proposal.move, event), *_of_handoff(account, opinion, event, grounds)]


def _of_kind(account: Account, move: Move, event: ev.AnyEvent) -> list[str]:
    if isinstance(move, Escalate):
        over = account.escalations >= account.policy.max_escalations
        expected: type = ev.RequestFailed if over else ev.EscalationRaised
    else:
        expected = {
            "transfer": ev.HandoffAdmitted,
            "hand_back": ev.HandoffAdmitted,
            "ask": ev.TurnSuspended,
            "complete": ev.RequestCompleted,
            "fail": ev.RequestFailed,
        }[MOVES[type(move)]]
    return [] if isinstance(event, expected) else [f"became a {type(event).__name__}"]


def _of_handoff(account: Account, opinion: Opinion, event: ev.AnyEvent, grounds: Grounds) -> list[str]:
    whole = opinion.handoff
    if whole is None or not isinstance(event, ev.HandoffAdmitted | ev.EscalationRaised):
        return []
    found: list[str] = []
    work = event.work
    to_people = isinstance(event, ev.EscalationRaised)
    clearance = () if grounds.target is None else grounds.target.clearance
    expected = whole if to_people else as_shown(whole, clearance)
    if work.handoff != expected:
        found.append(f"hands over {work.handoff}, not {expected}")
    hidden = len(whole.facts) - len(expected.facts), len(whole.artifacts) - len(expected.artifacts)
    told = (0, 0) if work.withheld is None else (work.withheld.facts, work.withheld.artifacts)
    if hidden != told:
        found.append(f"withholds {hidden} and tells of {told}")
    back = account.path.index(whole.to_agent) if whole.to_agent in account.path else None
    path = [*account.path, str(whole.to_agent)] if back is None else account.path[: back + 1]
    if list(work.path) != (account.path if to_people else path):
        found.append(f"says that the path is {work.path}")
    if work.depth != account.hops + (not to_people):
        found.append(f"says that the depth is {work.depth}")
    if str(work.turn) != event.id or work.round != 0 or event.to != whole.to_agent:
        found.append("opens another turn than its own")
    return found


# --- the account ----------------------------------------------------------------------------------


def learn(account: Account, event: ev.AnyEvent, whole: Handoff | None = None) -> Account:
    """Return the account after an event; `whole` is the handoff that the oracle held to be right."""
    if isinstance(event, ev.FactsWithheld):
        return replace(account, pending=event)
    account = _reported(account, event)
    work: ev.Work | None = getattr(event, "work", None)
    match event:
        case ev.RequestOpened():
            account = replace(account, client=event.client, policy=event.policy, deadline=event.deadline)
            given = _whole(account, event, event.work)
            account = _opened(account, event, event.work, given)
            return replace(account, stack=(_holder(account, given),), pending=None)
        case ev.HandoffAdmitted():
            assert whole is not None
            edge = (account.agent, str(whole.to_agent))
            stack, hops, edges = account.stack, account.hops + 1, (*account.edges, edge)
            account = _opened(account, event, event.work, whole)
            if whole.move == "hand_back":
                stack = stack[: [holder.agent for holder in stack].index(whole.to_agent) + 1]
            else:
                stack = (*stack, _holder(account, whole))
            return replace(account, stack=stack, hops=hops, edges=edges, pending=None)
        case ev.EscalationRaised():
            counted = account.agent != "human"
            account = _charged(account, event) if counted else account
            account = _opened(account, event, event.work, event.work.handoff)
            return replace(account, escalations=account.escalations + counted, pending=None)
        case ev.EscalationResolved():
            given = _whole(account, event, event.work)
            account = _opened(account, event, event.work, given)
            return replace(account, stack=(_holder(account, given),), edges=(), hops=0, pending=None)
        case ev.RequestFrozen():
            return replace(account, frozen=True)
        case ev.RequestThawed():
            return replace(account, frozen=False)
        case ev.TurnSuspended():
            return replace(account, asks=account.asks + 1)
    if isinstance(event, ev.Ended):
        return replace(account, over=True)
    return account if work is None else replace(account, round=work.round, past=work.past)


def _reported(account: Account, event: ev.AnyEvent) -> Account:
    """Take in what an event's turn reported, if its own holder said it."""
    by_holder = (
        isinstance(event, ev.HandoffAdmitted | ev.MoveRefused | ev.TurnSuspended | ev.EffectDoubted)
        or (isinstance(event, ev.TurnFailed | ev.RequestFailed) and event.sender is not None)
        or (isinstance(event, ev.RequestCompleted) and not event.control)
        or (isinstance(event, ev.EscalationRaised) and event.reason == "asked")
    )
    if not by_holder:
        return account
    return _with_report(account, event.report)  # type: ignore[union-attr]


def _charged(account: Account, event: ev.EscalationRaised) -> Account:
    """Charge the whole grant to a turn that never reported."""
    if account.turn in account.usage:
        return account
    left = rest(account.holder, spent(account))
    charge = {name: max(0, getattr(left, name) or 0) for name in DIMENSIONS}
    return replace(account, usage={**account.usage, account.turn: charge})


def _whole(account: Account, event: ev.AnyEvent, work: ev.Work) -> Handoff:
    """Return what an event hands over, with what was withheld just before it."""
    kept = account.pending
    if kept is None or kept.cause != event.cause:
        return work.handoff
    handoff = work.handoff
    keys = tuple(sorted({*handoff.constraints.must_carry, *kept.must_carry}))
    return msgspec.structs.replace(
        handoff,
        facts=(*handoff.facts, *kept.facts),
        artifacts=(*handoff.artifacts, *kept.artifacts),
        constraints=msgspec.structs.replace(handoff.constraints, must_carry=keys),
    )


def _opened(account: Account, event: ev.AnyEvent, work: ev.Work, whole: Handoff) -> Account:
    labels = dict(account.labels)
    for fact in whole.facts:
        labels[fact.key] = labels.get(fact.key, frozenset()) | set(fact.labels)
    return replace(
        account,
        turn=str(event.id),
        agent=str(whole.to_agent),
        round=0,
        asks=0,
        intent=whole.intent,
        past=work.past,
        facts={fact.key: fact for fact in whole.facts},
        things={item.name: item for item in whole.artifacts},
        shown=frozenset(fact.key for fact in work.handoff.facts),
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
        must_carry=frozenset(own.must_carry),
        grant=own.budget or Budget(),
        spent_before=spent(account),
    )


# --- a whole story --------------------------------------------------------------------------------


@dataclass
class Auditor:
    """Follows a story and collects complaints."""

    account: Account = field(default_factory=Account)
    found: list[str] = field(default_factory=list)
    verdicts: int = 0

    def follow(self, event: ev.AnyEvent, proposal: MoveProposed | None = None) -> None:
        """Take in the next event; with the proposal that it decides, judge it first."""
        if self.found:
            return  # what is built on a wrong verdict tells nothing
        whole = None
        if proposal is not None and not isinstance(event, ev.FactsWithheld):
            self.verdicts += 1
            self.found += [f"{event.n}: {each}" for each in complaints(self.account, proposal, event)]
            grounds = getattr(event, "grounds", None)
            if grounds is not None:
                whole = opine(self.account, proposal, grounds, event.at).handoff
        self.found += self._lost(event)
        if not self.found:
            self.account = learn(self.account, event, whole)

    def _lost(self, event: ev.AnyEvent) -> list[str]:
        """Complain of an escalation that does not carry everything, or that shows it with fewer labels."""
        if not isinstance(event, ev.EscalationRaised):
            return []
        carried = {fact.key: fact for fact in event.work.handoff.facts}
        lost = [
            key
            for key, fact in self.account.facts.items()
            if key not in carried or not set(fact.labels) <= set(carried[key].labels)
        ]
        return [f"{event.n}: loses {', '.join(lost)}"] if lost else []
