"""The rules (depth, cycle, budget and others) that may refuse a move, as an ordered table.

Each rule is a function from a `Case` to a `Refusal` or None. The first refusal counts. `RULES_FOR` lists the
rules for each move; docs and tests read the same table.
"""

import datetime as dt
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from protocol.domain import budget, task_rules
from protocol.domain.carried import lost
from protocol.domain.case import Case, outlined, passed, too_large, unknown_agent
from protocol.domain.guardrails import guardrail
from protocol.domain.labels import unseen
from protocol.domain.memory import unfit
from protocol.wire.event_parts import Grounds
from protocol.wire.forms import FormInvalid, read_form
from protocol.wire.handoff import Constraints, Refusal, Rule
from protocol.wire.ids import HUMAN
from protocol.wire.moves import (
    TOPOLOGIES,
    Ask,
    Complete,
    Delegate,
    Deliver,
    Escalate,
    Fail,
    HandBack,
    Transfer,
    UnknownMove,
)

_MOST_MISTAKES = 5


def _path(case: Case) -> str:
    return " → ".join(case.segment.names)


def known_move(case: Case) -> Refusal | None:
    """Refuse a move that the request's topology does not have, or this kind of turn."""
    policy, name, turn = case.policy, case.move.name, "root" if case.turn.task is None else "task"
    holders = TOPOLOGIES.get(policy.topology, {})
    mine = [move for move, holder in holders.items() if holder in ("any", turn)]
    if name in mine and type(case.move) is not UnknownMove:
        return None
    hint, numbers = f"one of: {', '.join(mine)}", {"move": name}
    if name in holders and name not in mine:
        detail = f"{name!r} is no move of {'a root turn' if turn == 'root' else 'a task'}"
    else:
        detail = f"topology {policy.topology!r} of the request's policy {policy.name!r} has no move {name!r}"
        numbers |= {"policy": policy.name, "topology": policy.topology}
        others = [topology for topology, known in TOPOLOGIES.items() if name in known]
        if others and name not in holders:
            hint += f"; {name!r} takes a submit with a policy whose topology is {' or '.join(others)}"
    return Refusal(rule=Rule.KNOWN_MOVE, detail=detail, numbers=numbers, hint=hint)


def known_agent(case: Case) -> Refusal | None:
    if type(case.move) is Transfer:
        return _may_be_given(case, case.move)
    match case.move:
        case Delegate():
            return task_rules.known_agents(case)
        case HandBack():
            if case.target is None or case.target == HUMAN or case.world.grounds.target is not None:
                return None  # a missing frame is refused by `hand_back`
            return unknown_agent(
                case, f"{case.target!r} is not in the fleet any more", "transfer or escalate"
            )
        case Ask(to_agent=asked):
            if asked == HUMAN and not case.world.grounds.human:
                return unknown_agent(
                    case, "this fleet has no `human` queue", "ask the client, or decide without"
                )
            if asked not in (HUMAN, case.ledger.client):
                return unknown_agent(
                    case, f"{asked!r} is neither the client nor `human`", f"ask {case.ledger.client}"
                )
            return None
        case Escalate():
            if case.world.grounds.human:
                return None
            return unknown_agent(case, "this fleet has no `human` queue", "complete or fail the request")
    return None


def _may_be_given(case: Case, move: Transfer) -> Refusal | None:
    sender, target = case.world.grounds.sender, case.world.grounds.target
    allowed = None if sender is None else sender.to
    hint = f"may hand to: {', '.join(allowed)}" if allowed else ""
    if move.to_agent == HUMAN:
        return unknown_agent(case, "`human` is reached by `escalate` and `ask` only", "use escalate")
    if sender is None:
        return unknown_agent(case, f"{case.turn.agent} is not in the fleet any more", "escalate")
    if target is None:
        return unknown_agent(case, f"{move.to_agent!r} is not in the fleet", hint)
    if allowed is not None and target.name not in allowed:
        return unknown_agent(case, f"{case.turn.agent} may not give work to {target.name}", hint)
    if not target.takes(move.intent):
        return unknown_agent(
            case,
            f"{target.name} does not take the intent {move.intent!r}",
            f"intents of {target.name}: {', '.join(target.intents or ())}",
        )
    return None


def agent_available(case: Case) -> Refusal | None:
    if case.target is None or case.world.grounds.breaker != "open":
        return None
    peers = [name for name in case.world.grounds.peers if case.segment.index(name) is None]
    another = f"another agent ({', '.join(peers)})" if peers else "another agent"
    return breaker_open(case.target, case.world.grounds, f"{another}, or escalate")


def _moment(at: int) -> str:
    """Return a time (UTC µs) in the form for sentences."""
    try:
        whole = dt.datetime.fromtimestamp(at // 1_000_000, dt.UTC)
    except (OverflowError, ValueError, OSError):  # an entry written by hand may contain anything
        return f"{at} µs"
    return whole.isoformat().replace("+00:00", "Z")


def breaker_open(target: str | None, grounds: Grounds, instead: str) -> Refusal:
    """Return the refusal of work for an agent that fails too often.

    Args:
        instead: what could be done now.
    """
    since, until = grounds.breaker_since, grounds.breaker_until
    numbers: dict[str, Any] = {"target": target, "since": since, "until": until}
    return Refusal(
        rule=Rule.AGENT_AVAILABLE,
        detail=f"{target} has failed too often of late; its breaker is open"
        + ("" if since is None else f" since {_moment(since)}"),
        numbers={name: number for name, number in numbers.items() if name == "target" or number is not None},
        hint=instead if until is None else f"{instead}; {target} is tried again from {_moment(until)} on",
    )


def depth(case: Case) -> Refusal | None:
    hop = case.segment.depth + 1
    if hop <= case.policy.max_depth:
        return None
    return Refusal(
        rule=Rule.DEPTH,
        detail=f"this would be hop {hop} of at most {case.policy.max_depth}; path: {_path(case)}",
        numbers={"depth": hop, "max_depth": case.policy.max_depth, "path": list(case.segment.names)},
        hint="complete, fail or escalate",
    )


def cycle(case: Case) -> Refusal | None:
    if type(case.move) is Delegate:
        return task_rules.cycle(case)
    if type(case.move) is not Transfer:
        return None
    target = case.move.to_agent
    if case.segment.index(target) is not None:
        back = case.segment.resumed()
        way = back is not None and case.segment.path[back].agent == target
        return Refusal(
            rule=Rule.CYCLE,
            detail=f"{target} is on the path already: {_path(case)}",
            numbers=_edge(case, target),
            hint=f"hand_back goes to {target}" if way else "complete, escalate, or an agent not on the path",
        )
    return _repeated_edge(case, Rule.CYCLE, target)


def _edge(case: Case, target: str) -> dict[str, Any]:
    return {"path": list(case.segment.names), "edge": [case.turn.agent, target]}


def _repeated_edge(case: Case, rule: Rule, target: str) -> Refusal | None:
    """Refuse an edge that this segment has taken before, unless the move adds a new fact."""
    if (case.turn.agent, target) not in case.segment.edges or _adds_new_fact(case):
        return None
    return Refusal(
        rule=rule,
        detail=f"{case.turn.agent} → {target} was taken already and this brings no new fact; {_path(case)}",
        numbers=_edge(case, target),
        hint="bring a fact that is new to the request, or complete or escalate",
    )


def _adds_new_fact(case: Case) -> bool:
    sender = case.world.grounds.sender
    cleared = () if sender is None else sender.clearance
    return any(case.ledger.history.is_new(fact, cleared) for fact in case.move.facts)


def hand_back(case: Case) -> Refusal | None:
    if type(case.move) is not HandBack:
        return None
    back = case.segment.resumed()
    if back is None:
        return Refusal(
            rule=Rule.HAND_BACK,
            detail=f"{case.turn.agent} is the first holder; there is nobody to hand back to",
            numbers={"path": list(case.segment.names)},
            hint="complete, transfer or escalate",
        )
    target = case.segment.path[back].agent
    if case.move.to_agent not in (None, target):
        return Refusal(
            rule=Rule.HAND_BACK,
            detail=f"the work goes back to {target}, not to {case.move.to_agent}; path: {_path(case)}",
            numbers={"path": list(case.segment.names)},
            hint=f"hand_back to {target}, or leave the target out",
        )
    return _repeated_edge(case, Rule.HAND_BACK, target)


def no_return(case: Case) -> Refusal | None:
    at = case.segment.index(case.target) if case.target is not None else None
    if at is None or at >= case.segment.seal:
        return None
    sealer = case.segment.path[case.segment.seal]
    return Refusal(
        rule=Rule.NO_RETURN,
        detail=f"{sealer.agent} got it with no_return: nothing goes back to {case.target}; {_path(case)}",
        numbers={"path": list(case.segment.names), "sealed_at": case.segment.seal},
        hint="complete, escalate, or an agent not on the path",
    )


def asks(case: Case) -> Refusal | None:
    if type(case.move) is Delegate:
        return task_rules.waits(case)
    if type(case.move) is not Ask or case.turn.asks < case.policy.max_asks:
        return None
    return Refusal(
        rule=Rule.ASKS,
        detail=f"this turn has asked {case.turn.asks} times of at most {case.policy.max_asks}",
        numbers={"asks": case.turn.asks + 1, "max_asks": case.policy.max_asks},
        hint="decide with what is known, or escalate",
    )


def within_budget(case: Case) -> Refusal | None:
    if type(case.move) is Delegate:
        return task_rules.budgets(case)
    if type(case.move) is not Transfer or case.rest == budget.UNLIMITED:
        return None
    overdrawn = budget.overdrawn(case.rest)
    if overdrawn:
        amounts = ", ".join(f"{name}: {more} too many" for name, more in overdrawn.items())
        return Refusal(
            rule=Rule.BUDGET,
            detail=f"{case.turn.agent} has spent more than it may ({amounts}): nothing is left to give on",
            numbers={name: {"left": -more} for name, more in overdrawn.items()},
            hint="complete, hand_back or escalate: a person may grant more",
        )
    over = budget.excess(case.move.constraints.budget, case.rest)
    if not over:
        return None
    amounts = ", ".join(f"{name}: {want} asked, {have} left" for name, (want, have) in over.items())
    return Refusal(
        rule=Rule.BUDGET,
        detail=f"more is asked for than {case.turn.agent} has left ({amounts})",
        numbers={name: {"asked": want, "left": have} for name, (want, have) in over.items()},
        hint="ask for less, or leave the budget out to give all that is left",
    )


def constraints(case: Case) -> Refusal | None:
    if type(case.move) is Delegate:
        found = (_beyond(case, work.task.constraints, {"task": work.task.name}) for work in case.plan)
        return next((refusal for refusal in found if refusal is not None), None)
    return _beyond(case, case.move.constraints, {}) if type(case.move) is Transfer else None


def _beyond(case: Case, asked: Constraints, numbers: dict[str, Any]) -> Refusal | None:
    """Refuse constraints that are wider than the proposer's own; `numbers` names the task, if any."""
    own = case.own
    deadline = asked.ends_at(case.world.now)
    if deadline is not None and deadline <= case.world.now:
        return passed(deadline, case.world.now, numbers)
    if deadline is not None and own.deadline is not None and deadline > own.deadline:
        return Refusal(
            rule=Rule.CONSTRAINTS,
            detail=f"the deadline is {(deadline - own.deadline) / 1e6:.1f} s after the proposer's own",
            numbers={**numbers, "deadline": deadline, "own_deadline": own.deadline},
            hint="the same deadline or an earlier one",
        )
    if asked.allowed_actions is not None and own.allowed_actions is not None:
        more = sorted(set(asked.allowed_actions) - set(own.allowed_actions))
        if more:
            return Refusal(
                rule=Rule.CONSTRAINTS,
                detail=f"actions that the proposer itself may not take: {', '.join(more)}",
                numbers={**numbers, "more": more, "own": list(own.allowed_actions)},
                hint="a part of the proposer's own actions",
            )
    return None


def must_carry(case: Case) -> Refusal | None:
    if type(case.move) is Delegate:
        return task_rules.must_carry(case)
    if case.handoff is None:
        return None
    asked = case.move.constraints.must_carry if type(case.move) is Transfer else ()
    if case.carried is case.before and not asked:
        return None
    given = case.given
    missing = [key for key in asked if key not in given]
    keys = sorted({*missing, *lost(case.before, case.carried, case.own.must_carry)})
    if not keys:
        return None
    return Refusal(
        rule=Rule.MUST_CARRY,
        detail=f"facts that must be carried are gone or changed: {', '.join(keys)}",
        numbers={"keys": keys},
        hint="carry them unchanged; put another finding under another key",
    )


def form(case: Case) -> Refusal | None:
    """Refuse a transfer whose facts do not fit its edge's form. What the giver may not see is let pass."""
    wanted = case.world.grounds.form
    if wanted is None or case.known is None:
        return None
    try:
        read = read_form(wanted)
    except FormInvalid:
        return None  # a log of a newer guard, whose forms say more
    facts = {fact.key: fact.value for fact in case.known.facts}
    mistakes = read.mistakes(facts, case.turn.hidden.facts)
    if not mistakes:
        return None
    shown = mistakes[:_MOST_MISTAKES]
    more = f"; and {len(mistakes) - len(shown)} more" if len(mistakes) > len(shown) else ""
    return Refusal(
        rule=Rule.FORM,
        detail=f"what {case.turn.agent} hands to {case.target} has another form: {'; '.join(shown)}{more}",
        numbers={"target": case.target, "mistakes": shown},
        hint=f"facts as this edge carries them: {', '.join(sorted({*read.required, *read.fields}))}",
    )


def actions(case: Case) -> Refusal | None:
    if not case.report.actions:
        return None
    sender = case.world.grounds.sender
    limits = [
        case.own.allowed_actions,
        () if sender is None else sender.actions,
    ]  # (): not in the fleet any more
    over = sorted(
        {name for limit in limits if limit is not None for name in set(case.report.actions) - set(limit)}
    )
    if not over:
        return None
    allowed = set.intersection(*(set(limit) for limit in limits if limit is not None))
    gone = f", and {case.turn.agent} is not in the fleet any more" if sender is None else ""
    return Refusal(
        rule=Rule.ACTIONS,
        detail=f"the turn reports actions that are not allowed: {', '.join(over)}{gone}",
        numbers={"over": over, "allowed": sorted(allowed)},
        hint="these effects may have happened already: escalate",
    )


def read_only(case: Case) -> Refusal | None:
    if not case.own.read_only or not case.report.effects:
        return None
    return Refusal(
        rule=Rule.READ_ONLY,
        detail=f"the turn may only read, and reports effects: {', '.join(case.report.effects)}",
        numbers={"effects": list(case.report.effects)},
        hint="these effects may have happened already: fail, or escalate",
    )


def size(case: Case) -> Refusal | None:
    """Refuse what is too large as its giver knows it, so that sizes reveal nothing that is withheld."""
    if case.oversized:
        return outlined(case)
    if type(case.move) is Delegate:
        return task_rules.size(case)
    if type(case.move) is Deliver:
        return too_large(case.move, case.policy) or task_rules.join_size(case)
    what: msgspec.Struct = case.known if case.known is not None else case.move
    return too_large(what, case.policy)


def memory(case: Case) -> Refusal | None:
    """Refuse an answer that asks to remember too much, or facts that the turn did not get."""
    assert isinstance(case.move, Complete)
    sender = case.world.grounds.sender
    clearance = frozenset(() if sender is None else sender.clearance)
    known = (fact for fact in case.ledger.memory if clearance.issuperset(fact.labels))
    return unfit(case.move, case.turn.work.handoff.facts, known, case.policy.max_handoff_bytes)


RuleFunction = Callable[[Case], Refusal | None]

RULES: Mapping[Rule, RuleFunction] = {
    Rule.KNOWN_MOVE: known_move,
    Rule.KNOWN_AGENT: known_agent,
    Rule.AGENT_AVAILABLE: agent_available,
    Rule.LABELS: unseen,
    Rule.DEPTH: depth,
    Rule.LEVELS: task_rules.levels,
    Rule.KNOWN_TASK: task_rules.known_task,
    Rule.FAN_OUT: task_rules.fan_out,
    Rule.CAPABLE: task_rules.capable,
    Rule.CYCLE: cycle,
    Rule.REVISIONS: task_rules.revisions,
    Rule.HAND_BACK: hand_back,
    Rule.NO_RETURN: no_return,
    Rule.ASKS: asks,
    Rule.OPEN_TASKS: task_rules.open_tasks,
    Rule.BUDGET: within_budget,
    Rule.CONSTRAINTS: constraints,
    Rule.MUST_CARRY: must_carry,
    Rule.FORM: form,
    Rule.ACTIONS: actions,
    Rule.READ_ONLY: read_only,
    Rule.SIZE: size,
    Rule.GUARDRAIL: guardrail,
    Rule.MEMORY: memory,
}
"""All rules for moves, in order. (`known_policy` is for submits: see `protocol.domain.submit`.)"""

_OF_ANY_MOVE = (Rule.KNOWN_MOVE,)
_OF_OUTLINES = (Rule.KNOWN_MOVE, Rule.SIZE)
_OF_WORK = (Rule.ACTIONS, Rule.READ_ONLY, Rule.SIZE, Rule.GUARDRAIL)
_OF_PLANS = (
    Rule.LEVELS, Rule.KNOWN_TASK, Rule.FAN_OUT, Rule.CAPABLE, Rule.REVISIONS, Rule.OPEN_TASKS,
)  # fmt: skip
_OF_TRANSFERS = tuple(rule for rule in RULES if rule not in (*_OF_PLANS, Rule.ASKS, Rule.MEMORY))
_OF_HANDOFFS = tuple(rule for rule in _OF_TRANSFERS if rule != Rule.FORM)

RULES_FOR: Mapping[type, tuple[Rule, ...]] = {
    Transfer: _OF_TRANSFERS,
    HandBack: _OF_HANDOFFS,
    Ask: (Rule.KNOWN_MOVE, Rule.KNOWN_AGENT, Rule.ASKS, *_OF_WORK),
    Escalate: (Rule.KNOWN_MOVE, Rule.KNOWN_AGENT, Rule.LABELS, Rule.MUST_CARRY, *_OF_WORK),
    Complete: (Rule.KNOWN_MOVE, Rule.LABELS, Rule.OPEN_TASKS, *_OF_WORK, Rule.MEMORY),
    Fail: (Rule.KNOWN_MOVE, *_OF_WORK),
    Delegate: (
        Rule.KNOWN_MOVE, Rule.KNOWN_AGENT, Rule.LABELS, Rule.LEVELS, Rule.KNOWN_TASK, Rule.FAN_OUT,
        Rule.CAPABLE, Rule.CYCLE, Rule.REVISIONS, Rule.ASKS, Rule.BUDGET, Rule.CONSTRAINTS, Rule.MUST_CARRY,
        *_OF_WORK,
    ),
    Deliver: (Rule.KNOWN_MOVE, Rule.LABELS, Rule.OPEN_TASKS, *_OF_WORK),
}  # fmt: skip
"""The rules for each move. A move that no topology has is checked by `known_move` alone."""


def judge(case: Case) -> Refusal | None:
    """Return the refusal of the first rule that refuses; None if the move is admitted."""
    for rule in _OF_OUTLINES if case.oversized else RULES_FOR.get(type(case.move), _OF_ANY_MOVE):
        refusal = RULES[rule](case)
        if refusal is not None:
            return refusal
    return None
