"""The oracle's opinion on what comes by itself: nothing comes too early, and no turn loses a round."""

from dataclasses import dataclass
from typing import Literal

from protocol.wire import events as ev
from tests.unit.protocol.oracle import people
from tests.unit.protocol.oracle.account import Account


@dataclass(frozen=True)
class Waiting:
    """What the newest turn waits for by itself, and until when. Times in UTC µs."""

    opened_at: int = 0
    """When its newest round was opened."""
    what: Literal["", "retry", "reply", "escalation", "settlement"] = ""
    until: int = 0


def waiting_after(waiting: Waiting, event: ev.AnyEvent) -> Waiting:
    """Return what is waited for once an event is in the log."""
    if event.work is not None:
        return Waiting(event.at)
    match event:
        case ev.MoveRefused() | ev.TurnFailed(retry_at=None):
            return Waiting(waiting.opened_at, "escalation")
        case ev.TurnFailed(retry_at=int(at)):
            return Waiting(waiting.opened_at, "retry", at)
        case ev.TurnSuspended(expires_at=at):
            return Waiting(waiting.opened_at, "reply", at)
        case ev.EffectDoubted():
            return Waiting(waiting.opened_at, "settlement")
    return waiting


def consequence_complaints(account: Account, waiting: Waiting, event: ev.AnyEvent) -> list[str]:
    """Return what is wrong with an event that nobody asked for; nothing if it is right, or was asked for."""
    match event:
        case ev.TurnRetried():
            return _came(waiting, "retry", event.at)
        case ev.TurnResumed(control=""):
            return _came(waiting, "reply", event.at)
        case ev.EscalationRaised(reason=reason) if account.agent == "human":
            sla = account.policy.escalation_sla_s
            return _past(None if sla is None else waiting.opened_at + int(sla * 1e6), event.at, reason)
        case ev.EscalationRaised(reason=reason) if reason != "asked":
            return _no_round_is_left(account, waiting, event.at, reason)
        case ev.RequestFailed(sender=None, code=code, reason=reason) if code != "event_too_large":
            return _no_round_is_left(account, waiting, event.at, reason.removeprefix("failed with "))
        case ev.HandoffAdmitted(work=work) if work.handoff.move == "fallback":
            return _came(waiting, "escalation", event.at)
        case ev.RequestExpired():
            return _past(people.expiry(account), event.at, "expiry")
        case ev.TurnFailed(sender=None, error=error, grounds=grounds) if error.code == "agent_removed":
            return [] if grounds is not None and grounds.removed else ["nothing says that the agent left"]
        case ev.TurnFailed(sender=None, error=error):
            return _past(_ends(account, waiting, error.code), event.at, error.code)
    return []


def _no_round_is_left(account: Account, waiting: Waiting, at: int, reason: str) -> list[str]:
    """Complain of the end of a turn that has a round left.

    The handoff's own deadline leaves none to a turn that waits for a retry or for a settled doubt.
    """
    if waiting.what in ("retry", "settlement") and reason == "deadline":
        ends = [account.holder.deadline, people.end(account) if waiting.what == "settlement" else None]
        return _past(min((end for end in ends if end is not None), default=None), at, reason)
    return _came(waiting, "escalation", at)


def _came(waiting: Waiting, what: str, at: int) -> list[str]:
    if waiting.what != what:
        return [f"{what} comes, and {waiting.what or 'nothing'} is waited for"]
    return _past(waiting.until, at, what)


def _past(due_at: int | None, at: int, what: str) -> list[str]:
    """Complain of what comes before its time, or of what has none."""
    if due_at is None:
        return [f"{what} comes, and there is none"]
    return [f"{what} comes {(due_at - at) / 1e6:.1f} s too early"] if at < due_at else []


def _ends(account: Account, waiting: Waiting, code: str) -> int | None:
    """Return the earliest time at which a guard may end a round by itself; None if it may not."""
    policy = account.policy
    match code:
        case "timeout":
            return waiting.opened_at + int(policy.turn_timeout_s * 1e6)
        case "unattended" if policy.unattended_after_s is not None:
            return waiting.opened_at + int(policy.unattended_after_s * 1e6)
        case "deadline":
            return account.holder.deadline
    return None
