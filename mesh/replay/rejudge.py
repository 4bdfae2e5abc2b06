"""Rejudging: the guards' decider decides each recorded message again, and appends again what fell due.

It is handed what the log recorded and answered with what the log recorded. An event must come out the same to
the letter, id, number and chain included. What another policy or fleet would have changed says `whatif`.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec

from mesh.errors import MeshError, OldForm
from protocol.domain import hash_chain
from protocol.domain.again import INCONSISTENT, Again
from protocol.domain.hash_chain import Break
from protocol.wire import codec
from protocol.wire.errors import BrokenLog
from protocol.wire.events import AnyEvent, type_of


class Difference(NamedTuple):
    """An event that does not come out as recorded."""

    n: int
    type: str
    """As recorded."""
    recorded: Any
    """The fields that differ."""
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


def rejudge(bodies: Sequence[bytes]) -> Rejudged:
    """Judge one request again, given its stored events in order from the first. Raises OldForm."""
    differences: list[Difference] = []
    happened: list[AnyEvent] = []
    unreadable = "" if bodies else "there are no events"
    try:
        happened = [codec.decode_event(body) for body in bodies]
    except OldForm:
        raise
    except MeshError as error:
        unreadable = str(error)
    request = happened[0].request if happened else ""
    again, judged, holds = Again(happened, bodies), 0, True
    for index, event in enumerate(happened):
        try:
            holds = holds and event.prev == again.ledger.prev
            derived = again.derive(index) if event.n == index else None
            again.take(index)
        except BrokenLog as error:
            unreadable = str(error)
            break
        except INCONSISTENT:
            unreadable = f"event {index} does not follow from those before it"
            break
        written = _letters(derived)  # nearly always the very bytes of the log
        if written != bodies[index] and written != _letters(event):
            differences.append(_difference(event, derived))
        judged += 1
    breaks = [] if holds and not unreadable else hash_chain.breaks(bodies)
    return Rejudged(request, judged, tuple(differences), tuple(breaks), unreadable)


def _letters(value: Any) -> bytes:
    """Return a value as it is written: Python takes `True` for `1`, a log does not."""
    return msgspec.json.encode(value)


def _difference(event: AnyEvent, derived: AnyEvent | None) -> Difference:
    """Return only the fields that differ, the type among them where it does."""
    one: dict[str, Any] = msgspec.to_builtins(event)
    other: dict[str, Any] = {} if derived is None else msgspec.to_builtins(derived)
    names = [name for name in (*one, *other) if _letters(one.get(name)) != _letters(other.get(name))]
    return Difference(
        event.n,
        type_of(event),
        {name: one[name] for name in names if name in one},
        {name: other[name] for name in names if name in other}
        or {"type": "nothing" if derived is None else type_of(derived)},
    )
