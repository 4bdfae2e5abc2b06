"""Rejudging: the guards' decider decides each recorded message again, and appends again what fell due.

It is handed what the log recorded and answered with what the log recorded. With the recorded policy an event
must come out the same to the letter, id, number and chain included. With another policy only verdicts are
compared: which would have been others, each judged on the events that really happened before it.
"""

from collections.abc import Sequence
from copy import copy
from typing import Any, NamedTuple

import msgspec
from msgspec.structs import replace

from mesh.errors import MeshError, OldForm
from mesh.replay.answers import RecordedAnswers
from protocol.domain import hash_chain
from protocol.domain.decider import OpenDecision, RequestDecider
from protocol.domain.envelope import World
from protocol.domain.guard_failed import guard_failed, is_guard_failed
from protocol.domain.hash_chain import Break
from protocol.domain.ledger import Ledger
from protocol.domain.steps import NOT_STORED, Append, Appended, Moment, Settled, ShowQuestions, TurnOver
from protocol.domain.timers import EVENT_TOO_LARGE
from protocol.domain.verdict import message_of
from protocol.wire import codec, events
from protocol.wire.commands import is_control
from protocol.wire.config import Policy
from protocol.wire.errors import BrokenLog
from protocol.wire.events import AnyEvent, FactsWithheld, type_of
from protocol.wire.ids import TurnId

_INCONSISTENT = (LookupError, AttributeError, TypeError, AssertionError)
"""Errors of the rules on events that no guard could have written one after the other."""


class Difference(NamedTuple):
    """An event that does not come out as recorded."""

    n: int
    type: str
    """As recorded."""
    recorded: Any
    """For a changed policy `{type, rule}`; otherwise the fields that differ."""
    rederived: Any


class Rejudged(NamedTuple):
    """The result of judging one request again."""

    request: str
    events: int
    differences: tuple[Difference, ...]
    breaks: tuple[Break, ...]
    """Places where the hash chain does not hold."""
    unreadable: str = ""
    """Why reading stopped, if it did: an event of a newer version, no event at all, or a missing one."""

    @property
    def same(self) -> bool:
        return not self.differences and not self.breaks and not self.unreadable


def rejudge(bodies: Sequence[bytes], policy: Policy | None = None) -> Rejudged:
    """Judge one request again.

    Args:
        bodies: its stored events, in order from the first.
        policy: judge by this one instead of the recorded one, and compare verdicts only.

    Raises OldForm.
    """
    differences: list[Difference] = []
    ledger = Ledger()
    happened: list[AnyEvent] = []
    unreadable = "" if bodies else "there are no events"
    try:
        happened = [codec.decode_event(body) for body in bodies]
    except OldForm:
        raise
    except MeshError as error:
        unreadable = str(error)
    request = happened[0].request if happened else ""
    judged = 0
    for index, event in enumerate(happened):
        try:
            ledger.mesh_thawed = event.stood
            derived = _derive(ledger, happened, index, policy) if event.n == index else None
            ledger.apply(event, bodies[index])
        except BrokenLog as error:
            unreadable = str(error)
            break
        except _INCONSISTENT:
            unreadable = f"event {index} does not follow from those before it"
            break
        difference = None
        written = _letters(derived)  # nearly always the very bytes of the log
        if policy is None and written != bodies[index] and written != _letters(event):
            difference = _difference(event, derived)
        elif policy is not None and _verdict(derived) != _verdict(event):
            difference = Difference(event.n, type_of(event), _verdict(event), _verdict(derived))
        if difference is not None:
            differences.append(difference)
        judged += 1
    return Rejudged(request, judged, tuple(differences), tuple(hash_chain.breaks(bodies)), unreadable)


def _derive(
    ledger: Ledger, happened: Sequence[AnyEvent], index: int, policy: Policy | None
) -> AnyEvent | None:
    """Return what the live code makes of the state before an event and of what it answered.

    What was withheld for a verdict is none itself: with another policy it is not compared.
    """
    event = verdict = happened[index]
    if is_guard_failed(event):
        return _guard_failed(ledger, happened, event)
    before = ledger
    if isinstance(event, FactsWithheld):
        following = happened[index + 1] if index + 1 < len(happened) else None
        if policy is not None or following is None or not _is_for(event, following):
            return event  # its own verdict was never given, or became another: nothing to judge it by
        verdict, before = following, _with(ledger, event)
    if policy is not None:
        ledger = copy(ledger)
        ledger.policy = policy
    derived = _decided(ledger, before, event, verdict, policy)
    if policy is not None and isinstance(derived, FactsWithheld):
        return _decided(_with(ledger, derived), before, event, verdict, policy)
    return derived


def _decided(
    ledger: Ledger, before: Ledger, event: AnyEvent, verdict: AnyEvent, policy: Policy | None
) -> AnyEvent | None:
    """Return what the guards' decider appends first; None if that is nothing.

    Args:
        before: what the recorded message is read by: the ledger, and what was withheld for the verdict.
        event: what it has to be.
        verdict: the event that says what was known then: `event`, or the one that it belongs to.
    """
    command = message_of(before, verdict)
    recorded = RecordedAnswers(before, verdict, policy)
    decider, moment = RequestDecider(ledger), Moment(event.at, event.salt)
    if command is None:
        gone = recorded.removed
        in_hand = None if gone is None else _in_hand(ledger, gone)
        decision = decider.wake(recorded.fleet, moment, deciding=in_hand)
    else:
        # An order of a person brings about its own event alone, if the whole mesh was frozen. What fell due
        # by time before a message has events of its own: as if it was stored at the beginning of time.
        alone = is_control(command.what)
        command = command if alone else replace(command, stored=1)
        decision = decider.handle(command, recorded.fleet, moment, mesh_frozen=alone)
    derived = _first_event(decision, recorded, verdict)
    if derived is None or derived.trace == event.trace:
        return derived
    return replace(derived, trace=event.trace)  # whoever stores it says in which span


def _first_event(decision: OpenDecision, recorded: RecordedAnswers, verdict: AnyEvent) -> AnyEvent | None:
    """Return the first event of a decision that was stored; None if it has none.

    Where the log says that what was due was too large to store, it was not stored.
    """
    too_large = _code_of(verdict) == EVENT_TOO_LARGE
    while not isinstance(step := decision.next(), Settled):
        if isinstance(step, Append):
            if not too_large or step.event.cause == verdict.cause:
                return step.event
            step.supply(NOT_STORED)
            too_large = False
        elif not isinstance(step, Appended | TurnOver | ShowQuestions):
            recorded.supply(step)
    return None


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


def _is_for(withheld: FactsWithheld, following: AnyEvent) -> bool:
    """Return True if `following` is the verdict that something was withheld for: its reader gets it."""
    return following.cause == withheld.cause and following.to == withheld.target


def _guard_failed(ledger: Ledger, happened: Sequence[AnyEvent], event: AnyEvent) -> AnyEvent | None:
    """Return the end of a request that a guard failed on, as it has to be after these events.

    Whether the guard had to fail is not judged: what failed then may be mended now.
    """
    opened = next((one for one in happened[:2] if isinstance(one, events.RequestOpened)), None)
    if opened is None or ledger.head is None:
        return None
    world = World(now=event.at, salt=event.salt, trace=event.trace)
    return guard_failed(opened, ledger.head, ledger.prev, world)


def _with(ledger: Ledger, withheld: FactsWithheld) -> Ledger:
    """Return the ledger as it is judged by once something is withheld for the next event."""
    after = copy(ledger)
    after.pending = withheld
    return after


def _letters(value: Any) -> bytes:
    """Return a value as it is written: Python takes `True` for `1`, a log does not."""
    return msgspec.json.encode(value)


def _verdict(event: AnyEvent | None) -> dict[str, str]:
    if event is None:
        return {"type": "nothing"}
    refusal = event.refusal
    said = {"type": type_of(event)}
    if refusal is not None:
        said["rule"] = str(refusal.rule)
    if isinstance(event, events.TurnFailed):
        said["retried"] = "no" if event.retry_at is None else "yes"
    if isinstance(event, events.MoveRefused):
        said["next"] = "round" if event.work is not None else "escalation"
    return said


def _difference(event: AnyEvent, derived: AnyEvent | None) -> Difference:
    """Return only the fields that differ, the type among them where it does."""
    one: dict[str, Any] = msgspec.to_builtins(event)
    other: dict[str, Any] = {} if derived is None else msgspec.to_builtins(derived)
    names = [name for name in (*one, *other) if _letters(one.get(name)) != _letters(other.get(name))]
    return Difference(
        event.n,
        type_of(event),
        {name: one[name] for name in names if name in one},
        {name: other[name] for name in names if name in other} or _verdict(derived),
    )
