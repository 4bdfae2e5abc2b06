"""Rejudging: the guard's code derives each recorded event anew from the events before it.

With the recorded policy and the recorded world an event must come out the same to the letter, id, number
and chain included. With another policy only verdicts are compared: which would have been others, each judged
on the events that really happened before it.
"""

from collections.abc import Iterable, Sequence
from copy import copy
from typing import Any, NamedTuple

import msgspec
from msgspec.structs import replace

from mesh.errors import MeshError, OldForm
from protocol.domain import hash_chain
from protocol.domain.breaker import Use
from protocol.domain.decider import RequestDecider
from protocol.domain.envelope import World
from protocol.domain.guard_failed import guard_failed, is_guard_failed
from protocol.domain.hash_chain import Break
from protocol.domain.ledger import Ledger
from protocol.domain.memory import recalled_for
from protocol.domain.recorded import message_of
from protocol.domain.steps import (
    AgentStanding,
    Append,
    Moment,
    NeedCandidates,
    NeedMoment,
    NeedPeers,
    NeedVerdictContext,
    Step,
    VerdictContext,
)
from protocol.domain.timers import EVENT_TOO_LARGE, due, too_large
from protocol.wire import codec, events
from protocol.wire.commands import Command, is_control
from protocol.wire.config import AgentEntry, Fleet, Policy
from protocol.wire.errors import BrokenLog
from protocol.wire.event_parts import Grounds
from protocol.wire.events import AnyEvent, type_of
from protocol.wire.ids import AgentName

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
    event = happened[index]
    if is_guard_failed(event):
        return _guard_failed(ledger, happened, event)
    belongs_to, before = event, ledger
    if isinstance(event, events.FactsWithheld):
        if policy is not None:
            return event
        following = happened[index + 1] if index + 1 < len(happened) else None
        if following is None or following.cause != event.cause or not _is_withheld_for(following):
            return (
                event  # its own verdict was never given, or became another: there is nothing to judge it by
            )
        belongs_to = following
        before = _with(ledger, event)
    command = message_of(before, belongs_to)
    world = World(
        now=event.at,
        salt=event.salt,
        grounds=before.grounds_of(belongs_to) or Grounds(),
        trace=event.trace,
    )
    if isinstance(belongs_to, events.RequestOpened | events.RequestRefused):
        named = belongs_to.policy  # None: there was none of the name, and no other policy makes one
        prices = belongs_to.prices if isinstance(belongs_to, events.RequestOpened) else None
        memory = recalled_for(belongs_to, before.kept_back(belongs_to.cause))
        world = replace(world, policy=named and (policy or named), prices=prices, memory=memory)
    if policy is not None:
        ledger = copy(ledger)
        ledger.policy = policy
    if command is None:
        return _consequence(ledger, event, belongs_to, policy, world)
    derived = _decided(ledger, command, world)
    if policy is not None and isinstance(derived, events.FactsWithheld):
        return _decided(_with(ledger, derived), command, world)
    return derived


def _decided(ledger: Ledger, command: Command, world: World) -> AnyEvent | None:
    """Return what the guards' decider appends for a message; None if it is late or rejected.

    The decider is answered with what the log recorded. What fell due by time has events of its own; of a
    message stored at the beginning of time, the decider finds none of that before it.
    """
    frozen = is_control(command.what)  # it brings about its own event alone
    command = replace(command, stored=command.stored if frozen else 1)
    steps = RequestDecider(ledger).handle(command, _fleet(ledger, world.grounds), mesh_frozen=frozen)
    said: Any = None
    try:
        while not isinstance(step := steps.send(said), Append):
            said = _answer(step, world)
    except StopIteration:
        return None
    finally:
        steps.close()
    event = step.event  # whoever stores it says in which span
    return event if event.trace == world.trace else replace(event, trace=world.trace)


def _answer(step: Step, world: World) -> Any:
    """Return the answer to a decider's need by what an event rested on."""
    grounds = world.grounds
    match step:
        case NeedMoment():
            return Moment(world.now, world.salt)
        case NeedVerdictContext():
            use = Use(grounds.breaker, grounds.breaker_since, grounds.breaker_until)
            return VerdictContext(use, world.policy, world.prices, world.memory)
        case NeedPeers():
            return grounds.peers
        case NeedCandidates(agents=names):
            known = {one.entry.name: one for one in grounds.candidates}
            found = [known[name] for name in names]
            return tuple(AgentStanding(Use(one.breaker, one.since, one.until), one.served) for one in found)
        case _:
            return None


class _Recorded(dict[str, AgentEntry]):
    """The agents that an event recorded. Who holds a turn is in the fleet, too; more is not known of them."""

    def __init__(self, entries: Iterable[AgentEntry | None], ledger: Ledger) -> None:
        super().__init__((entry.name, entry) for entry in entries if entry is not None)
        self._ledger = ledger

    def __contains__(self, name: object) -> bool:
        return super().__contains__(name) or any(turn.agent == name for turn in self._ledger.open.values())


def _fleet(ledger: Ledger, grounds: Grounds) -> Fleet:
    """Return the fleet as far as an event recorded it. That an agent left it has an event of its own."""
    entries = (*(one.entry for one in grounds.candidates), grounds.sender, grounds.target)
    return Fleet(
        name="recorded",
        entry=AgentName("") if grounds.target is None else grounds.target.name,
        agents=_Recorded(entries, ledger),
        human=grounds.human,
        revision=grounds.fleet,
        log_max_age_s=2 * (grounds.longest_s or 0),
    )


def _guard_failed(ledger: Ledger, happened: Sequence[AnyEvent], event: AnyEvent) -> AnyEvent | None:
    """Return the end of a request that a guard failed on, as it has to be after these events.

    Whether the guard had to fail is not judged: what failed then may be mended now.
    """
    opened = next((one for one in happened[:2] if isinstance(one, events.RequestOpened)), None)
    if opened is None or ledger.head is None:
        return None
    world = World(now=event.at, salt=event.salt, trace=event.trace)
    return guard_failed(opened, ledger.head, ledger.prev, world)


def _with(ledger: Ledger, withheld: events.FactsWithheld) -> Ledger:
    """Return the ledger as it is judged by once something is withheld for the next event."""
    after = copy(ledger)
    after.pending = withheld
    return after


def _letters(value: Any) -> bytes:
    """Return a value as it is written: Python takes `True` for `1`, a log does not."""
    return msgspec.json.encode(value)


def _is_withheld_for(event: AnyEvent) -> bool:
    """Return True if something may be withheld from its reader: it opens a turn, or a client reads it."""
    read = events.RequestRefused | events.TurnSuspended | events.RequestCompleted | events.RequestFailed
    return isinstance(event, read) or event.opens_turn


def _consequence(
    ledger: Ledger, event: AnyEvent, belongs_to: AnyEvent, policy: Policy | None, world: World
) -> AnyEvent | None:
    """Return the event that is due, also where a round's timeout had to wait for its proposal's verdict.

    A request that ended because what followed was too large ended by that very consequence.
    """
    ended_by_size = (
        belongs_to.code
        if isinstance(belongs_to, events.RequestFailed)
        else isinstance(belongs_to, events.TaskFailed) and belongs_to.error.code
    ) == EVENT_TOO_LARGE
    about = belongs_to.offer.turn if isinstance(belongs_to, events.TaskOffered) else belongs_to.turn
    looks = {} if belongs_to.grounds is None else {about: belongs_to.grounds}
    deciding = [None, *((turn.id, turn.round) for turn in ledger.open.values())]
    first: AnyEvent | None = None
    for round_ in deciding:
        follows = due(ledger, world, round_, looks)
        if ended_by_size and follows is not None:
            follows = too_large(ledger, world, follows)
        if policy is not None and isinstance(follows, events.FactsWithheld):
            follows = due(_with(ledger, follows), world, round_, looks)
        if isinstance(follows, Command):
            continue
        if _letters(follows) == _letters(event):
            return follows
        first = first or follows
    return first


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
