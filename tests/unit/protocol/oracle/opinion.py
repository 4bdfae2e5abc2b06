"""A second opinion on every verdict, by another way.

The oracle keeps its own account of a request, from the raw events, and reads the rules as the design
states them. It shares types with the code it judges and nothing else: of `protocol` it imports only
what events are made of.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import msgspec
from jsonschema.validators import Draft202012Validator, extend  # type: ignore[import-untyped]

from protocol.wire.commands import MoveProposed, Report
from protocol.wire.event_parts import Grounds
from protocol.wire.handoff import Fact, Handoff
from protocol.wire.moves import Ask, Complete, Escalate, HandBack, Move, Transfer
from tests.unit.protocol.oracle.account import (
    DIMENSIONS,
    Account,
    canonical,
    rest,
    same,
    spent_after,
)
from tests.unit.protocol.oracle.giving import MOVES, as_known, ends_at, merged, whole_handoff
from tests.unit.protocol.oracle.guardrails import Given, is_against
from tests.unit.protocol.oracle.second import could_have

_JUDGE = extend(
    Draft202012Validator,
    type_checker=Draft202012Validator.TYPE_CHECKER.redefine("integer", lambda _, value: type(value) is int),
)
"""By the letter of JSON Schema, but 1.0 is no integer on the wire."""


@dataclass(frozen=True)
class Opinion:
    """What the oracle holds to be right: the rule that refuses, or what is handed over."""

    rule: str | None
    handoff: Handoff | None = None
    instead_of: str | None = None
    """The agent that a transfer named, where its fallback gets the work."""
    clearance: tuple[str, ...] = ()
    """Of who gets it."""


def opine(account: Account, proposal: MoveProposed, grounds: Grounds, at: int) -> Opinion:
    """Say which rule refuses a move first, or what an admitted one hands over, and to whom."""
    found, move = _opine(account, proposal, grounds, at), proposal.move
    if found.rule != "agent_available" or not isinstance(move, Transfer):
        return found
    for one in grounds.candidates:
        if could_have(account, one, move.intent):
            to = msgspec.structs.replace(
                proposal, move=msgspec.structs.replace(move, to_agent=one.entry.name)
            )
            known = msgspec.structs.replace(grounds, target=one.entry, breaker=one.breaker)
            second = _opine(account, to, known, at)
            return found if second.rule is not None else replace(second, instead_of=move.to_agent)
    return found


def _opine(account: Account, proposal: MoveProposed, grounds: Grounds, at: int) -> Opinion:
    move = proposal.move
    if account.policy.topology != "handoff" or type(move) not in MOVES:
        return Opinion("known_move")
    cleared = set(() if grounds.sender is None else grounds.sender.clearance)
    handoff = whole_handoff(account, proposal, at)
    known = move
    if handoff is not None and isinstance(move, Transfer | HandBack | Escalate):
        known = as_known(account, move, handoff)  # type: ignore[assignment]
    gives = isinstance(move, Transfer | HandBack)
    checks: dict[str, Callable[[], bool]] = {
        "known_agent": lambda: _unknown_agent(account, move, grounds),
        "agent_available": lambda: _unavailable(account, move, grounds),
        "labels": lambda: _touches_what_it_may_not_see(account, move, cleared),
        "depth": lambda: gives and account.hops + 1 > account.policy.max_depth,
        "cycle": lambda: isinstance(move, Transfer) and _runs_in_circles(account, move, cleared),
        "hand_back": lambda: isinstance(move, HandBack) and _goes_back_wrongly(account, move, cleared),
        "no_return": lambda: isinstance(move, Transfer | HandBack) and _breaks_a_seal(account, move),
        "asks": lambda: isinstance(move, Ask) and account.asks + 1 > account.policy.max_asks,
        "budget": lambda: isinstance(move, Transfer) and _asks_for_too_much(account, proposal, move),
        "constraints": lambda: isinstance(move, Transfer) and _widens(account, move, at),
        "must_carry": lambda: isinstance(move, Transfer | HandBack | Escalate) and _loses(account, move),
        "form": lambda: isinstance(move, Transfer) and _has_another_form(account, known, grounds),
        "actions": lambda: _acted_beyond(account, proposal.report, grounds),
        "size": lambda: len(canonical(known)) > account.policy.max_handoff_bytes,
        "guardrail": lambda: _meets_a_guardrail(account, move, known, handoff),
        "memory": lambda: isinstance(move, Complete) and _leaves_too_much(account, move, cleared),
    }
    for rule, refuses in checks.items():
        if refuses():
            return Opinion(rule)
    clearance = () if grounds.target is None else grounds.target.clearance
    return Opinion(None, handoff, clearance=clearance)


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
        return account.back is not None and grounds.target is None
    if isinstance(move, Ask):
        return move.to_agent not in (account.client, "human") or (
            move.to_agent == "human" and not grounds.human
        )
    return isinstance(move, Escalate) and not grounds.human


def _unavailable(account: Account, move: Move, grounds: Grounds) -> bool:
    somebody = isinstance(move, Transfer) or (isinstance(move, HandBack) and account.back is not None)
    return somebody and grounds.breaker == "open"


def _brings_news(account: Account, move: Transfer | HandBack, cleared: set[str]) -> bool:
    """Something is new that no handoff held. Of a key with labels beyond its bringer's, its name counts."""
    held = {key for key, _ in account.known}
    return any(
        fact.key not in held
        or (
            account.labels.get(fact.key, frozenset()) <= cleared
            and (fact.key, canonical(fact.value)) not in account.known
        )
        for fact in move.facts
    )


def _touches_what_it_may_not_see(account: Account, move: Move, cleared: set[str]) -> bool:
    """A name stands for something that is carried, and that the mover was not shown or may not see now."""
    facts, things, keys = set[str](), set[str](), set[str]()
    if isinstance(move, Transfer | HandBack):
        keys, things = set(move.drop), {item.name for item in move.artifacts}
    if isinstance(move, Transfer | HandBack | Escalate):
        facts = {fact.key for fact in move.facts}
    if isinstance(move, Complete):
        facts, keys = {fact.key for fact in move.remember}, set(move.remember_keys)
    blind = {
        key
        for key, fact in account.facts.items()
        if key not in account.sees or not set(fact.labels) <= cleared
    }
    unnamed = {
        name
        for name, item in account.things.items()
        if name not in account.sees_things or not set(item.labels) <= cleared
    }
    return bool((facts | keys) & blind or things & unnamed)


def _runs_in_circles(account: Account, move: Transfer, cleared: set[str]) -> bool:
    if move.to_agent in account.path:
        return True
    return (account.agent, move.to_agent) in account.edges and not _brings_news(account, move, cleared)


def _goes_back_wrongly(account: Account, move: HandBack, cleared: set[str]) -> bool:
    back = account.back
    if back is None:
        return True
    target = account.path[back]
    if move.to_agent is not None and move.to_agent != target:
        return True
    return (account.agent, target) in account.edges and not _brings_news(account, move, cleared)


def _breaks_a_seal(account: Account, move: Transfer | HandBack) -> bool:
    """A sealed holder, or anyone above one, goes to whoever is below the sealed one."""
    back = account.back
    target = move.to_agent if isinstance(move, Transfer) else None if back is None else account.path[back]
    below_a_seal: set[str] = set()
    for index, holder in enumerate(account.stack):
        if holder.sealed:
            below_a_seal |= set(account.path[:index])
    return target in below_a_seal


def _asks_for_too_much(account: Account, proposal: MoveProposed, move: Transfer) -> bool:
    left = rest(account.holder, spent_after(account, proposal))
    if any((getattr(left, name) or 0) < 0 for name in DIMENSIONS):
        return True  # who has overdrawn gives nothing on
    asked = move.constraints.budget
    return asked is not None and any(
        getattr(asked, name) is not None
        and getattr(left, name) is not None
        and getattr(asked, name) > getattr(left, name)
        for name in DIMENSIONS
    )


def _widens(account: Account, move: Transfer, at: int) -> bool:
    due, own = ends_at(move.constraints, at), account.holder
    if due is not None and due <= at:
        return True
    later = due is not None and own.deadline is not None and due > own.deadline
    asked = move.constraints.allowed_actions
    return later or (asked is not None and own.actions is not None and not set(asked) <= set(own.actions))


def _loses(account: Account, move: Transfer | HandBack | Escalate) -> bool:
    after, _ = merged(account, move)
    for key in account.holder.bound & set(account.facts):
        if key not in after or not same(account.facts[key].value, after[key].value):
            return True
    asked = move.constraints.must_carry if isinstance(move, Transfer) else ()
    gone = set() if isinstance(move, Escalate) else set(move.drop)
    return not set(asked) <= (account.shown - gone) | {fact.key for fact in move.facts}


def _has_another_form(account: Account, known: Any, grounds: Grounds) -> bool:
    """The facts that the giver knows of do not fit the form; those that it may not see are taken to fit."""
    if grounds.form is None:
        return False
    unseen = account.facts.keys() - set(account.sees)
    required = [key for key in grounds.form.get("required", ()) if key not in unseen]
    judge = _JUDGE({**grounds.form, "required": required})
    return not judge.is_valid({fact.key: msgspec.to_builtins(fact.value) for fact in known.facts})


def _meets_a_guardrail(account: Account, move: Move, known: Any, whole: Handoff | None) -> bool:
    """A guardrail of the policy is against the words of a move, or against facts that its mover knows of."""
    facts: tuple[Fact, ...] = ()
    hidden: tuple[Fact, ...] = ()
    to = account.client
    if whole is not None:
        facts, to = known.facts, whole.to_agent
        hidden = tuple(fact for fact in whole.facts if fact not in facts)
    elif isinstance(move, Ask):
        to = move.to_agent
    given = Given(MOVES[type(move)], to, move, facts, hidden, tuple(account.sees.values()))
    return any(is_against(each, given) for each in account.policy.guardrails)


def _acted_beyond(account: Account, report: Report, grounds: Grounds) -> bool:
    limits = [account.holder.actions, () if grounds.sender is None else grounds.sender.actions]
    return any(limit is not None and not set(report.actions) <= set(limit) for limit in limits)


def _leaves_too_much(account: Account, move: Complete, cleared: set[str]) -> bool:
    """The answer leaves more to its conversation than fits, or what its agent never saw."""
    own = {fact.key: fact for fact in move.remember}
    if "text" in {*own, *move.remember_keys} or not set(move.remember_keys) <= account.shown:
        return True
    seen = {fact.key: fact for fact in account.memory if set(fact.labels) <= cleared}
    left = seen | {key: account.sees[key] for key in move.remember_keys} | own
    most = min(account.policy.max_handoff_bytes // 2, 131_072)
    leaves = bool(own or move.remember_keys)
    return leaves and (len(left) > 64 or len(canonical(tuple(left.values()))) > most)
