"""What all events share: the envelope, and the two kinds that most of them are of.

An event is immutable and named in the past tense. Its envelope (`v` to `to`) is in the same object as its
payload, so an exported line is complete by itself. The member named in `to` finds the event in its inbox and
acts on it. Such an event holds everything that its reader needs (as `work`), and nothing that it may not see.

New fields are added at the end, with a default. Any other change makes a new form, with its own number (`v`).
Every form that a release has written stays readable.
"""

from typing import Final, Literal

import msgspec

from protocol.wire.commands import Report
from protocol.wire.event_parts import Assignment, Grounds
from protocol.wire.freeze import Span
from protocol.wire.handoff import Refusal
from protocol.wire.ids import AgentName, Cause, EventId, RequestId, TurnId

VERSION: Final = 2
"""Form of the events that this build writes, and the oldest form that it reads."""


class Event(msgspec.Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True, tag_field="type"):
    """The envelope."""

    v: Literal[2]
    id: EventId
    request: RequestId
    n: int
    """The event's number in its request, dense from 0."""
    at: int
    """UTC µs."""
    cause: Cause
    prev: str
    """SHA-256 (hex) of the stored bytes of the previous event; 64 zeros in the first."""
    salt: str
    """Random, so that the next event's `prev` does not let anyone guess an event that they may not read."""
    to: AgentName
    """The member whose inbox it is in; `_` if it is in no inbox."""
    trace: str = ""
    """W3C `traceparent` of the span that decided it; empty if neither guard nor sender traced."""
    stood: tuple[Span, ...] = ()
    """Freezes of the whole mesh that no earlier event of the request has recorded."""

    @property
    def opens_turn(self) -> bool:
        """Return True if it opens a turn, which then has the event's id."""
        return self.work is not None and str(self.work.turn) == self.id

    # Fields that many events have. An event without one returns None, an empty value, or round -1.

    @property
    def turn(self) -> TurnId:
        return TurnId("")

    @property
    def round(self) -> int:
        return -1

    @property
    def work(self) -> Assignment | None:
        return None

    @property
    def refusal(self) -> Refusal | None:
        return None

    @property
    def report(self) -> Report | None:
        return None

    @property
    def grounds(self) -> Grounds | None:
        return None

    @property
    def sender(self) -> AgentName | None:
        return None

    @property
    def control(self) -> str:
        return ""

    @property
    def added(self) -> tuple[str, ...]:
        return ()

    @property
    def dropped(self) -> tuple[str, ...]:
        return ()


class RoundEvent(Event, frozen=True, kw_only=True):
    """Base of the outcomes of a round."""

    turn: TurnId
    round: int


class ControlEvent(Event, frozen=True, kw_only=True):
    """Base of events that a control message about the whole request leads to."""

    by: str
    sender: AgentName
    control: str
    reason: str = ""
