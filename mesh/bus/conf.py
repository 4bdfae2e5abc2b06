"""Entries of CONF: read the last one of a subject, check it, write after the one that was read."""

from collections.abc import Callable
from typing import ClassVar, TypeVar

import msgspec

from mesh.bus.connection import TIMEOUT_S, Bus
from mesh.bus.nats_protocol import Incoming
from mesh.bus.roles import GET
from mesh.errors import MeshError, NoResponders, WrongLastSequence
from mesh.service.conditions import Kind
from mesh.service.logs import get_logger
from protocol.wire.documents import DocumentInvalid

_log = get_logger(__name__)

NO_FLEET = Kind("fleet_missing", "fleet_found", "there is no fleet yet: run `mesh setup`")
UNREADABLE = Kind("entry_unreadable", "entry_readable", "{} cannot be read: run `mesh doctor`", lasts=True)
CODES = frozenset({"policy_unreadable", "fleet_unreadable", "prices_unreadable"})
"""Under which a submit is refused that rests on an entry which cannot be read."""
T = TypeVar("T")


class ConfUnreadable(MeshError):
    """An entry of CONF is needed and cannot be read; an admin has to write it anew.

    `refusal` is the code, of `CODES`, under which a submit that needs it is refused.
    """

    code: ClassVar[str] = "conf.unreadable"

    def __init__(self, entry: str, reason: str) -> None:
        super().__init__(f"{entry} cannot be read: {reason}; an admin has to write it anew (`mesh setup`)")
        self.entry = entry
        self.reason = reason
        self.refusal = f"{entry.split('.')[2]}_unreadable"


class ConfChanged(MeshError):
    """Somebody else wrote the entry first: read it again."""

    code: ClassVar[str] = "conf.changed"


async def read(bus: Bus, subject: str, *, timeout_s: float = TIMEOUT_S) -> Incoming | None:
    """Return the entry of a subject; None if there is none. Raises BusError."""
    message = await bus.request(f"{GET}CONF.{subject}", timeout_s=timeout_s)
    if message.status == 404:
        return None
    if message.status:
        raise NoResponders(f"CONF does not answer: {message.status}")
    return message


def sequence(message: Incoming | None) -> int:
    """Return the sequence that a compare-and-set on an entry names; 0 if there is no entry."""
    return 0 if message is None else int(message.headers["Nats-Sequence"])


def parsed(subject: str, message: Incoming, parse: Callable[[bytes], T]) -> T:
    """Return the parsed entry. If `parse` finds it invalid, log it and raise ConfUnreadable."""
    try:
        return parse(message.data)
    except DocumentInvalid as invalid:
        _log.error("conf_unreadable", entry=subject, reason=str(invalid))
        raise ConfUnreadable(subject, str(invalid)) from invalid


async def write(
    bus: Bus, subject: str, entry: msgspec.Struct, *, after: int, timeout_s: float = TIMEOUT_S
) -> int:
    """Write an entry if the one of sequence `after` still stands; return its own.

    Raises ConfChanged, and BusError.
    """
    expected = {"Nats-Expected-Last-Subject-Sequence": str(after)}
    try:
        body = msgspec.json.encode(entry)
        return (await bus.publish_durable(subject, body, expected, timeout_s=timeout_s)).seq
    except WrongLastSequence:
        raise ConfChanged(f"{subject} is not at {after}") from None
