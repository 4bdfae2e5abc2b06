"""Entries of CONF: read the last one of a subject, check it, write after the one that was read."""

from typing import ClassVar, TypeVar

import msgspec
import structlog

from mesh.bus.connection import TIMEOUT_S, Bus
from mesh.bus.log import CONFLICTS
from mesh.bus.roles import GET
from mesh.bus.wire import Incoming
from mesh.errors import MeshError, NoResponders, PublishRefused
from protocol import subjects
from protocol.codec import LONGEST_S
from protocol.fleet import Fleet
from protocol.ids import is_name
from protocol.policy import Policy

_log = structlog.get_logger(__name__)

_UNREADABLE = (msgspec.MsgspecError, RecursionError, UnicodeError, ValueError)
T = TypeVar("T")


class ConfUnreadable(MeshError):
    """An entry of CONF is needed, cannot be read, and never could be; an admin has to write it anew."""

    code: ClassVar[str] = "conf.unreadable"


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
    """Return what a compare-and-set on an entry has to name; 0 where there is none."""
    return 0 if message is None else int(message.headers["Nats-Sequence"])


def decoded(subject: str, message: Incoming, type_: type[T]) -> T | None:
    """Return what an entry says; None, and a line in the log, where it cannot be read."""
    try:
        return msgspec.json.decode(message.data, type=type_)
    except _UNREADABLE:
        _log.error("conf_unreadable", entry=subject)
        return None


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
    except PublishRefused as refused:
        if refused.err_code in CONFLICTS:
            raise ConfChanged(f"{subject} is not at {after}") from None
        raise


def can_be(fleet: Fleet) -> bool:
    """Say whether guards can work with a fleet: names that subjects can hold, times that end."""
    spans = [fleet.log_max_age_s, fleet.lease_s, fleet.guard_lease_s]
    for breaker in (fleet.breaker, *fleet.breakers.values()):
        spans += (breaker.window_s, breaker.open_s, breaker.trial_s)
    good = all(map(is_name, fleet.agents)) and all(0 < span <= LONGEST_S for span in spans)
    if not good:
        _log.error("conf_unreadable", entry=subjects.FLEET)
    return good


def can_rule(policy: Policy) -> bool:
    """Say whether every time in a policy is one that clocks can hold."""
    spans = [getattr(policy, name) for name in policy.__struct_fields__ if name.endswith(("_s", "_max_s"))]
    good = all(0 <= span <= LONGEST_S for span in spans if span is not None)
    if not good:
        _log.error("conf_unreadable", entry=subjects.policy(policy.name))
    return good
