"""The oracle's opinion on fallbacks: who gets work in another one's place, with what, and when people do."""

from protocol.wire import events as ev
from protocol.wire.event_parts import Candidate, Grounds
from protocol.wire.handoff import Constraints, Handoff
from tests.unit.protocol.oracle.account import DIMENSIONS, Account, rest, same, spent, told
from tests.unit.protocol.oracle.giving import as_shown, differing, shown_budget

HOPELESS = ("", "deadline", "budget_exhausted", "refusals")
"""What a turn ends with whose work no second agent gets; empty: its newest round did not fail."""


def is_fallback(event: ev.AnyEvent) -> bool:
    """Return True for work that a guard gave to a failed turn's fallback."""
    return isinstance(event, ev.HandoffAdmitted) and event.work.handoff.move == "fallback"


def could_have(account: Account, one: Candidate, intent: str | None) -> bool:
    """Return True if a fallback may have work, as the guard found it."""
    entry = one.entry
    takes = intent is None or entry.intents is None or intent in entry.intents
    return one.served and one.breaker != "open" and takes and entry.name not in account.path


def complaints_of_fallback(account: Account, event: ev.HandoffAdmitted) -> list[str]:
    """Return what is wrong with the work of a failed turn that went to a fallback."""
    grounds, to = event.grounds, str(event.to)
    found = [] if may_go_on(account, grounds) is not None else [f"{to} gets work that a person is to have"]
    sender = grounds.sender
    if sender is None or (sender.name, sender.fallback) != (account.agent, to):
        found.append(f"{to} is no fallback of {account.agent}")
    own = account.holder
    whole = Handoff(
        move="fallback",
        from_agent=account.agent,  # type: ignore[arg-type]
        to_agent=to,  # type: ignore[arg-type]
        parent=account.turn,  # type: ignore[arg-type]
        summary=event.work.handoff.summary,
        intent=account.intent,
        facts=tuple(account.facts[key] for key in sorted(account.facts)),
        artifacts=tuple(account.things[name] for name in sorted(account.things)),
        constraints=Constraints(
            deadline=own.deadline,
            allowed_actions=own.actions,
            budget=shown_budget(rest(own, spent(account))),
            must_carry=tuple(sorted(own.bound)),
        ),
        return_to=own.return_to,  # type: ignore[arg-type]
        no_return=own.sealed,
    )
    if not same(told(account, event, event.work), whole):
        found.append(f"hands over another {differing(told(account, event, event.work), whole)}")
    clearance = next((one.entry.clearance for one in grounds.candidates if one.entry.name == to), ())
    if not same(event.work.handoff, as_shown(whole, clearance)):
        found.append("shows what its reader may not see, or hides what it may")
    if list(event.work.path) != [*account.path[:-1], to] or event.work.depth != account.hops + 1:
        found.append(f"says that the path is {event.work.path}, and the depth {event.work.depth}")
    return found


def complaints_of_people(account: Account, event: ev.AnyEvent) -> list[str]:
    """Complain of work that a person gets, or of an end, though a fallback could have had it."""
    grounds = event.grounds
    if account.agent == "human" or grounds is None or not isinstance(event, ev.EscalationRaised):
        return []
    if event.reason in ("asked", *HOPELESS):
        return []
    one = may_go_on(account, grounds)
    return [] if one is None else [f"a person is asked, though {one.entry.name} could have it"]


def may_go_on(account: Account, grounds: Grounds) -> Candidate | None:
    """Return the fallback that a failed turn's work may go to; None if a person is to have it."""
    sender, policy = grounds.sender, account.policy
    if policy.topology != "handoff" or account.agent == "human" or account.second or sender is None:
        return None
    if account.failure in HOPELESS or account.hops + 1 > policy.max_depth:
        return None
    left = rest(account.holder, spent(account))
    limits = [getattr(left, name) for name in DIMENSIONS]
    if any(limit is not None for limit in limits):
        untold = account.unaccounted and account.turn not in account.usage
        if untold or any(limit is not None and limit <= 0 for limit in limits):
            return None
    able = (one for one in grounds.candidates if could_have(account, one, account.intent))
    return next((one for one in able if one.entry.name == sender.fallback), None)
