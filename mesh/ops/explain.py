"""Why a verdict came out as it did: what it rested on, and what would have been allowed.

Everything is read from the log; nothing is judged again here.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from mesh.errors import NotFound
from protocol.domain.ledger import fold
from protocol.domain.rules import RULES_FOR
from protocol.views.timeline import named, timeline
from protocol.wire import events
from protocol.wire.commands import Ask, Complete, Escalate, Fail, HandBack, Transfer
from protocol.wire.config import Policy
from protocol.wire.events import AnyEvent, Grounds, type_of

VERDICTS = (
    events.RequestOpened,
    events.RequestRefused,
    events.HandoffAdmitted,
    events.MoveRefused,
    events.MoveDeferred,
    events.TurnSuspended,
    events.EscalationRaised,
    events.RequestCompleted,
    events.RequestFailed,
)
"""Events by which a guard answered somebody who asked for something."""


class Explanation(msgspec.Struct, frozen=True, kw_only=True):
    """One verdict and its grounds."""

    request: str
    rerun_of: str | None
    """The request that this one does again."""
    n: int
    at: int
    """UTC µs."""
    type: str
    verdict: str
    """`admitted`, `refused`, `deferred` or `recorded`."""
    who: str
    to: str | None
    move: str
    summary: str
    rule: str | None
    detail: str | None
    failure: str | None
    """What the turn said of its failure, of an escalation that followed from one."""
    numbers: dict[str, Any]
    hint: str | None
    """What would be allowed instead."""
    path: tuple[str, ...]
    """The holders when it was given."""
    depth: int
    edges: tuple[tuple[str, str], ...]
    """Who gave to whom in this segment until then."""
    grounds: Grounds | None
    policy: dict[str, Any]
    """Every number of it, defaults too."""
    rules: tuple[str, ...]
    """Rules that judged the move, in order; the first that refuses names the refusal."""
    followed: str
    """What came of it."""


def explain(happened: Sequence[AnyEvent], n: int | None = None) -> Explanation:
    """Return why event `n` is what it is: by default the last refusal, else the last verdict.

    Raises NotFound when there is no such event.
    """
    event = _chosen(happened, n)
    before = fold(happened[: event.n])
    story = timeline(happened[: event.n + 1])
    told = next((move for move in story.moves if move.seq == event.n), None)
    refusal = event.refusal
    segment = before.segment if before.turns else None
    policy = before.policy
    if isinstance(event, events.RequestOpened | events.RequestRefused):
        policy = event.policy or Policy()
    grounds = before.grounds_of(event)
    return Explanation(
        request=event.request,
        rerun_of=story.rerun_of,
        n=event.n,
        at=event.at,
        type=type_of(event),
        verdict="recorded" if told is None else told.verdict,
        who="guard" if told is None else named(told.from_, told.sender),
        to=None if told is None else told.to,
        move=type_of(event) if told is None else told.move,
        summary="" if told is None else told.summary,
        rule=None if refusal is None else str(refusal.rule),
        detail=refusal.detail if refusal is not None else None if told is None else told.detail,
        failure=_failure(happened, event),
        numbers={} if refusal is None else dict(refusal.numbers),
        hint=None if refusal is None else refusal.hint or None,
        path=() if segment is None else segment.names,
        depth=0 if segment is None else segment.depth,
        edges=() if segment is None else tuple(sorted(segment.edges)),
        grounds=grounds,
        policy=msgspec.structs.asdict(policy),
        rules=_rules(event, grounds),
        followed=_followed(happened, event),
    )


def _chosen(happened: Sequence[AnyEvent], n: int | None) -> AnyEvent:
    if n is not None:
        if not 0 <= n < len(happened):
            raise NotFound(f"there is no event {n}; this request has 0 to {len(happened) - 1}")
        return happened[n]
    refused = [event for event in happened if event.refusal is not None]
    verdicts = [event for event in happened if isinstance(event, VERDICTS)]
    if not verdicts:
        raise NotFound("no verdict was given in this request yet")
    return (refused or verdicts)[-1]


def _failure(happened: Sequence[AnyEvent], event: AnyEvent) -> str | None:
    """Return the message of the failure that an escalation followed from."""
    if not isinstance(event, events.EscalationRaised):
        return None
    failed = [
        each.error
        for each in happened[: event.n]
        if isinstance(each, events.TurnFailed) and each.turn == event.turn
    ]
    return failed[-1].message or None if failed and failed[-1].code == event.reason else None


_MOVES: Mapping[type, type] = {
    events.RequestCompleted: Complete,
    events.RequestFailed: Fail,
    events.EscalationRaised: Escalate,
    events.TurnSuspended: Ask,
}
"""The move that an event admits. Of a handoff and of a refusal, the event itself says which."""


def _rules(event: AnyEvent, grounds: Grounds | None) -> tuple[str, ...]:
    """Return the rules that a move met, in order; none for what nobody proposed."""
    if isinstance(event, events.HandoffAdmitted):
        kind: type = Transfer if event.work.handoff.move == "transfer" else HandBack
    elif isinstance(event, events.MoveRefused):
        kind = type(event.move)
    elif isinstance(event, events.EscalationRaised) and event.reason != "asked":
        return ()
    elif grounds is not None:
        kind = _MOVES.get(type(event), type(None))
    else:
        return ()
    return tuple(map(str, RULES_FOR.get(kind, ())))


def _followed(happened: Sequence[AnyEvent], event: AnyEvent) -> str:
    work = event.work
    if isinstance(event, events.MoveRefused):
        if work is not None:
            return f"{event.to} ran again, in round {work.round}, and was told of it"
        return "the turn had no round left for refusals" + (
            "; it was escalated" if len(happened) > event.n + 1 else ""
        )
    if isinstance(event, events.Ended):
        return "the request ended"
    if work is not None:
        return f"{event.to} got the work"
    return ""
