"""What a queued message says, and what is objected to before any log is read."""

from collections.abc import Callable
from typing import Any

import msgspec

from mesh.bus.consumer import Message
from mesh.service import tracing
from protocol.domain.admission import Rejected
from protocol.wire import codec, subjects
from protocol.wire.commands import Control, Hearing, Submit, id_of, submit_id
from protocol.wire.errors import Malformed
from protocol.wire.ids import (
    MAX_ID_CHARS,
    AgentName,
    Cause,
    control_cause,
    is_request_id,
    submitted_ms,
    submitter_of,
)


def proposal_of(message: Message, role_of: Callable[[str], Any]) -> Hearing:
    """Return what a message in PROP says: a submit if it has no `kind`. Raises Malformed."""
    sender, request = subjects.parse_queued(message.subject)
    role, trace = role_of(sender), tracing.brought(message.headers)
    if is_submit(message.data):
        submit = codec.parse_submit(message.data)
        digest = codec.body_digest(message.data)
        return Hearing(request, AgentName(sender), submit, Cause(submit_id(request)), role, digest, trace)
    proposal = codec.parse_proposal(message.data)
    return Hearing(request, AgentName(sender), proposal, Cause(id_of(request, proposal)), role, trace=trace)


def failure_of(message: Message, role_of: Callable[[str], Any], error: Malformed) -> Hearing | None:
    """Return the failure of the round that an unreadable message in PROP names; None if it names none."""
    sender, request = subjects.parse_queued(message.subject)
    failed = codec.failure_of(message.data, error)
    if failed is None:
        return None
    cause, trace = Cause(id_of(request, failed)), tracing.brought(message.headers)
    return Hearing(request, AgentName(sender), failed, cause, role_of(sender), trace=trace)


def control_of(message: Message, control: Control, role: Any) -> Hearing:
    sender, request = subjects.parse_queued(message.subject)
    cause, trace = control_cause(request, sender, control.id), tracing.brought(message.headers)
    return Hearing(request, AgentName(sender), control, cause, role, trace=trace)


def unusable(request: str) -> Rejected | None:
    """Refuse what no request can be called."""
    if len(request) > MAX_ID_CHARS or not is_request_id(request):
        return Rejected("unusable_id", "a request id is `<submitter>_<ULID>`, the ULID in upper case")
    return None


def foreign(hearing: Hearing) -> Rejected | None:
    """Refuse a submit under an id that another submitter made."""
    if isinstance(hearing.what, Submit) and submitter_of(hearing.request) != hearing.sender:
        return Rejected("unusable_id", f"a request of {hearing.sender} has an id that begins with it")
    return None


def may_come_yet(hearing: Hearing, now: int, within_s: float) -> bool:
    """Return True if a control message may have overtaken its submit.

    Its request's id must be new. A client knows of no id but its own before the log does; an operator may
    have been told one.

    Args:
        now: UTC µs.
        within_s: how old the id may be at most.
    """
    is_told = hearing.role == "operator" or submitter_of(hearing.request) == hearing.sender
    return is_told and submitted_ms(hearing.request) >= now // 1000 - int(within_s * 1000)


class _Kind(msgspec.Struct, frozen=True):
    kind: Any = None


_KIND = msgspec.json.Decoder(_Kind)


def is_submit(body: bytes) -> bool:
    """Say whether a message in PROP is a submit: it has no `kind`. What cannot be read is one too."""
    try:
        return _KIND.decode(body).kind is None
    except (msgspec.DecodeError, RecursionError, UnicodeError, ValueError):
        return True
