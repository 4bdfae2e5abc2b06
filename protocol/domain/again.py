"""Deciding again: the decider is handed what a log recorded, and answered with what the log recorded.

Each event is derived anew from what happened before it. With nothing otherwise it comes out as it was. Under
another policy or fleet it may be another.
"""

from collections.abc import Sequence

from msgspec.structs import replace

from protocol.domain.decider import OpenDecision, RequestDecider
from protocol.domain.envelope import World
from protocol.domain.ledger import Ledger
from protocol.domain.recorded import Other, RecordedAnswers
from protocol.domain.steps import (
    NOT_STORED,
    Append,
    Appended,
    Moment,
    Settled,
    ShowQuestions,
    Stored,
    TurnOver,
)
from protocol.domain.timers import EVENT_TOO_LARGE, guard_failed, is_guard_failed
from protocol.domain.verdict import message_of
from protocol.wire import events
from protocol.wire.commands import is_control
from protocol.wire.events import AnyEvent, FactsWithheld
from protocol.wire.ids import TurnId

INCONSISTENT = (LookupError, AttributeError, TypeError, AssertionError)
"""Errors of the rules on events that no guard could have written one after the other."""


class Again:
    """One request, whose events the guards' decider derives again: each from what happened before.

    Args:
        other: what is to be otherwise than it was recorded; None: nothing.
    """

    def __init__(
        self, happened: Sequence[AnyEvent], bodies: Sequence[bytes], other: Other | None = None
    ) -> None:
        self._happened, self._bodies, self._other = happened, bodies, other
        self._decider = RequestDecider()
        self._going_on: _Deciding | None = None
        """What has appended the first event of a verdict, and is to append the second."""
        self._newest: _Deciding | None = None
        """What derived the newest event."""

    @property
    def ledger(self) -> Ledger:
        return self._decider.ledger

    def fell_due(self, index: int) -> AnyEvent | None:
        """Return what would have been written before a message was decided, if something was due by then.

        The log does not say when the message was stored: it may have come in time all the same.
        """
        event, self.ledger.mesh_thawed = self._happened[index], self._happened[index].stood
        at = None if self._going_on is not None else self._decider.quiet_until()
        if at is None or at > event.at:
            return None
        derived, self._going_on = self.derive(index, late=True), None
        is_its_own = derived is None or derived.cause == event.cause
        return None if is_its_own or self._newest is None or not self._newest.is_message else derived

    def derive(self, index: int, *, late: bool = False) -> AnyEvent | None:
        """Return what the live code makes of the state before an event, and of what that answered.

        Args:
            late: what fell due before the event comes first. Else its message came in time.
        """
        event = self._happened[index]
        self.ledger.mesh_thawed = event.stood
        if is_guard_failed(event):
            return _guard_failed(self.ledger, self._happened, event)
        going_on, self._going_on = self._going_on, None
        if going_on is None:
            verdict = self._verdict_of(index)
            if verdict is None:
                return event
            going_on = self._begin(event, verdict, late)
        derived, self._newest = going_on.next_event(), going_on
        if type(event) is FactsWithheld and derived is not None:
            self._going_on = going_on
        if derived is None or derived.trace == event.trace:
            return derived
        return replace(derived, trace=event.trace)  # whoever stores it says in which span

    def beyond(self, index: int, derived: AnyEvent) -> AnyEvent | None:
        """Return the verdict for which something would be withheld. Nothing can be derived after that."""
        event = self._happened[index]
        if not isinstance(derived, FactsWithheld) or self._newest is None:
            return derived
        self._newest.store(Stored(derived, self._bodies[index], Moment(event.at, event.salt)))
        return self._newest.next_event()

    def take(self, index: int, derived: AnyEvent | None = None) -> None:
        """Take an event into the ledger: as it is recorded, or as it was derived."""
        event, body = derived or self._happened[index], self._bodies[index]
        if self._going_on is None or type(event) is not FactsWithheld:
            self._decider.follow(event, body)
        else:
            following = self._happened[index + 1]
            self._going_on.store(Stored(event, body, Moment(following.at, following.salt)))

    def _verdict_of(self, index: int) -> AnyEvent | None:
        """Return the event that says what was known when another was written: itself, or the one after it.

        Return None for what was withheld for a verdict that was never given, or became another.
        """
        event = self._happened[index]
        if not isinstance(event, FactsWithheld):
            return event
        following = self._happened[index + 1] if index + 1 < len(self._happened) else None
        # Its reader is the one who gets the verdict.
        if following is None or following.cause != event.cause or following.to != event.target:
            return None
        return following

    def _begin(self, event: AnyEvent, verdict: AnyEvent, late: bool) -> "_Deciding":
        """Hand the decider what led to an event: a message, or the time."""
        ledger, decider = self.ledger, self._decider
        pending = ledger.pending
        if type(event) is FactsWithheld:
            ledger.pending = event  # only to read by: it is taken in when it is derived
        command, recorded = message_of(ledger, verdict), RecordedAnswers(ledger, verdict, self._other)
        ledger.pending = pending
        moment = Moment(event.at, event.salt)
        if command is None:
            gone = recorded.removed
            in_hand = None if gone is None else _in_hand(ledger, gone)
            return _Deciding(
                decider.wake(recorded.fleet, moment, deciding=in_hand), recorded, verdict, is_message=False
            )
        # An order of a person brings about its own event alone, if the whole mesh was frozen. What fell due
        # by time before a message has events of its own: as if it was stored at the beginning of time.
        alone = is_control(command.what) and not late
        command = command if alone else replace(command, stored=event.at if late else 1)
        decision = decider.handle(command, recorded.fleet, moment, mesh_frozen=alone)
        return _Deciding(decision, recorded, verdict, is_message=True)


class _Deciding:
    """A decision that is answered with what the log recorded."""

    def __init__(
        self, decision: OpenDecision, recorded: RecordedAnswers, verdict: AnyEvent, *, is_message: bool
    ) -> None:
        self.is_message = is_message
        self._decision, self._recorded, self._verdict = decision, recorded, verdict
        self._too_large = _code_of(verdict) == EVENT_TOO_LARGE
        self._append: Append | None = None

    def next_event(self) -> AnyEvent | None:
        """Return the next event that was stored; None if there is none.

        Where the log says that what was due was too large to store, it was not stored.
        """
        while not isinstance(step := self._decision.next(), Settled):
            if isinstance(step, Append):
                if not self._too_large or step.event.cause == self._verdict.cause:
                    self._append = step
                    return step.event
                step.supply(NOT_STORED)
                self._too_large = False
            elif not isinstance(step, Appended | TurnOver | ShowQuestions):
                self._recorded.supply(step)
        return None

    def store(self, stored: Stored) -> None:
        """Take into the ledger what was stored."""
        assert self._append is not None
        self._append.supply(stored)
        self._decision.next()


def _code_of(event: AnyEvent) -> str:
    if isinstance(event, events.RequestFailed):
        return event.code
    return event.error.code if isinstance(event, events.TaskFailed) else ""


def _in_hand(ledger: Ledger, gone: TurnId) -> tuple[str, int] | None:
    """Return the round that was passed over when that of `gone` ended, since its agent is not in the fleet.

    The same agent had it, and it would have ended first: its proposal was in the guard's hand.
    """
    agent = ledger.turns[gone].agent
    rounds = (turn for turn in ledger.open.values() if turn.agent == agent and turn.state == "working")
    first = next(rounds, None)
    return None if first is None or first.id == gone else (first.id, first.round)


def _guard_failed(ledger: Ledger, happened: Sequence[AnyEvent], event: AnyEvent) -> AnyEvent | None:
    """Return the end of a request that a guard failed on, as it has to be after these events.

    Whether the guard had to fail is not judged: what failed then may be mended now.
    """
    opened = next((one for one in happened[:2] if isinstance(one, events.RequestOpened)), None)
    if opened is None or ledger.head is None:
        return None
    world = World(now=event.at, salt=event.salt, trace=event.trace)
    return guard_failed(opened, ledger.head, ledger.prev, world)
