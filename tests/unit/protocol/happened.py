"""What happened, read from events: of which kinds they are; a move admitted, or refused and why."""

from collections.abc import Iterable

from protocol.wire.events import AnyEvent, HandoffAdmitted, MoveRefused
from protocol.wire.handoff import Refusal, Rule
from tests.certain import is_


def kinds(events: Iterable[AnyEvent]) -> list[type]:
    return [type(event) for event in events]


def refused(event: AnyEvent) -> Refusal:
    """Return why a move was refused, which it has to be."""
    return is_(event, MoveRefused).refusal


def admitted(event: AnyEvent) -> HandoffAdmitted:
    """Return the event of a handoff, which has to be admitted."""
    return is_(event, HandoffAdmitted)


def rule_of(event: AnyEvent) -> Rule | None:
    """Return the rule that refused a move, or None if none did."""
    return event.refusal.rule if isinstance(event, MoveRefused) else None
