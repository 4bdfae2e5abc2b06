"""Rounds: how a turn's code gets to run again, and when."""

from msgspec.structs import replace

from protocol.domain.held import Turn, summed_up
from protocol.wire.commands import Failure, Report
from protocol.wire.config import Policy
from protocol.wire.events import Past, Work
from protocol.wire.ids import draw


def next_round(turn: Turn, past: Past | None, report: Report | None = None) -> Work:
    """Return a turn's work for its next round: the same handoff, and how the last round ended.

    Args:
        past: None where the ledger has taken that in already (a failure is an event of its own).
        report: the newest, where it comes with the very proposal that is being judged.
    """
    ended = turn.past if past is None else (*turn.past, past)
    reported = turn.report if report is None else summed_up(turn, report)
    return replace(turn.work, round=turn.round + 1, past=ended, reported=reported)


def retry_at(turn: Turn, error: Failure, policy: Policy, now: int, cause: str) -> int | None:
    """Return when (UTC µs) a failed round is tried again; None when it is not.

    Exponential backoff with "equal jitter": half the wait is fixed, half is drawn, so that turns
    which failed together do not come back together. The draw comes from the failure's own id, so
    that every guard and every replay draws the same. A `retry_after_s` can only make it later.
    """
    if error.permanent or turn.failures >= policy.max_retries:
        return None
    backoff = min(policy.retry_backoff_s * 2.0 ** min(turn.failures, 64), policy.retry_backoff_max_s)
    wait = max(backoff * (0.5 + 0.5 * draw("jitter", cause)), error.retry_after_s or 0.0)
    return now + int(wait * 1e6)
