"""The oracle's opinion on the time that people have, and on the request's deadline meanwhile."""

from dataclasses import replace

from protocol.wire import events as ev
from tests.unit.protocol.oracle.account import Account


def end(account: Account) -> int | None:
    """Return when people's time for what they have is over; None if they have nothing, or no such time."""
    span = account.policy.human_deadline_s
    if span is None or account.stood_since is None:
        return None
    return int(min(account.decision_since + max(1, int(span * 1e6)), account.latest))


def expiry(account: Account) -> int:
    """Return the earliest time at which the request may expire."""
    over = end(account)
    if over is None or account.stood_since is None:
        return account.deadline
    return over if account.agent == "human" else _later(account, over)


def complaints_of_deadlines(account: Account, event: ev.AnyEvent) -> list[str]:
    """Return what is wrong with the deadline of work that people gave back, or of what is put to them."""
    over = end(account)
    if isinstance(event, ev.TurnSuspended):
        return _of_question(account, event)
    if over is None or not isinstance(event, ev.EscalationResolved | ev.TurnResumed | ev.EffectSettled):
        return []
    now, own = _later(account, min(event.at, over)), account.holder.deadline
    passed = isinstance(event, ev.EscalationResolved) and own is not None and own <= event.at
    right = now if own == account.deadline or passed else own
    given = event.work.handoff.constraints.deadline
    return [] if given == right else [f"goes on until {given}, not {right}"]


def _of_question(account: Account, event: ev.TurnSuspended) -> list[str]:
    own, span, ask = account.holder.deadline, account.policy.human_deadline_s, event.ask
    if span is None or ask.to_agent != "human":
        ends = [account.deadline, own]
    else:
        last = min(event.at + max(1, int(span * 1e6)), account.latest)
        ends = [int(last), None if own == account.deadline else own]
    if ask.expires_s is not None:
        ends.append(event.at + int(ask.expires_s * 1e6))
    right = min(each for each in ends if each is not None)
    return [] if event.expires_at == right else [f"expires at {event.expires_at}, not {right}"]


def with_deadlines(before: Account, account: Account, event: ev.AnyEvent) -> Account:
    """Return the account after an event, with its deadlines moved on if people are done.

    Args:
        before: as it was before the event.
    """
    if account.policy.human_deadline_s is None or isinstance(event, ev.FactsWithheld):
        return account
    asks = isinstance(event, ev.TurnSuspended) and event.ask.to_agent == "human"
    if asks or isinstance(event, ev.EscalationRaised | ev.EffectDoubted):
        raised_again = isinstance(event, ev.EscalationRaised) and before.agent == "human"
        begun = before.decision_since if raised_again else event.at
        since = event.at if before.stood_since is None else before.stood_since
        return replace(account, stood_since=since, decision_since=begun)
    over = end(before)
    if over is None or (event.work is None and not isinstance(event, ev.Ended)):
        return account
    moved = _later(before, min(event.at, over))
    stack = tuple(
        replace(holder, deadline=moved) if holder.deadline == before.deadline else holder
        for holder in account.stack
    )
    return replace(account, deadline=moved, stack=stack, stood_since=None)


def _later(account: Account, at: int) -> int:
    """Return the request's deadline if people were done with it at `at`."""
    assert account.stood_since is not None
    return int(max(account.deadline, min(account.deadline + at - account.stood_since, account.latest)))
