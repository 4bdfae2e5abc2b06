"""Queued messages as commands, and the rejection of those that no log is needed to reject."""

from typing import Any, NamedTuple

import msgspec

from protocol.domain.admission import Rejected
from protocol.wire import codec
from protocol.wire.commands import Command, Control, Proposal, Submit, id_of, is_control, submit_id
from protocol.wire.errors import Malformed
from protocol.wire.ids import (
    MAX_ID_CHARS,
    AgentName,
    Cause,
    SenderRole,
    control_cause,
    is_request_id,
    submitted_ms,
    submitter_of,
)
from protocol.wire.prices import READ_ERRORS


class Sent(NamedTuple):
    """A message as its sender's queue holds it."""

    sender: str
    """As the broker says, in the subject."""
    request: str
    data: bytes
    role: SenderRole
    """What the fleet file says the sender is."""
    trace: str = ""
    """The `traceparent` that it brought; well-formed or empty."""
    stored_us: int = 0
    """When the bus stored it, UTC µs."""

    def command(self, what: Submit | Proposal | Control, cause: Cause, digest: str = "") -> Command:
        sender = AgentName(self.sender)
        return Command(self.request, sender, what, cause, self.role, digest, self.trace, self.stored_us)


def proposal_of(sent: Sent) -> Command | Rejected:
    """Return what a message in PROP asks for: a submit if it has no `kind`. Raises Malformed."""
    if (rejected := unusable(sent.request)) is not None:
        return rejected
    if not is_submit(sent.data):
        proposal = codec.parse_proposal(sent.data)
        return sent.command(proposal, Cause(id_of(sent.request, proposal, sent.sender)))
    submit = codec.parse_submit(sent.data)
    if submitter_of(sent.request) != sent.sender:
        return Rejected("unusable_id", f"a request of {sent.sender} has an id that begins with it")
    return sent.command(submit, Cause(submit_id(sent.request)), codec.body_digest(sent.data))


def control_of(sent: Sent) -> Command | Rejected:
    """Return what a message in CTL about one request asks for. Raises Malformed."""
    control = codec.parse_control(sent.data)
    rejected = unusable(sent.request)
    return rejected or sent.command(control, control_cause(sent.request, sent.sender, control.id))


def failure_of(sent: Sent, error: Malformed) -> Command | None:
    """Return the failure of the round that an unreadable message in PROP names; None if it names none."""
    failed = codec.failure_of(sent.data, error)
    return None if failed is None else sent.command(failed, Cause(id_of(sent.request, failed, sent.sender)))


def unusable(request: str) -> Rejected | None:
    """Refuse what no request can be called."""
    if len(request) > MAX_ID_CHARS or not is_request_id(request):
        return Rejected("unusable_id", "a request id is `<submitter>_<ULID>`, the ULID in upper case")
    return None


def may_have_overtaken(command: Command, now: int, within_s: float) -> bool:
    """Return True for a control message that may have overtaken its submit.

    Its request's id must be new. A client knows of no id but its own before the log does; an operator may
    have been told one.

    Args:
        now: UTC µs.
        within_s: how old the id may be at most.
    """
    is_told = command.role == "operator" or submitter_of(command.request) == command.sender
    is_new = submitted_ms(command.request) >= now // 1000 - int(within_s * 1000)
    return is_control(command.what) and is_told and is_new


class _Kind(msgspec.Struct, frozen=True):
    kind: Any = None


_KIND = msgspec.json.Decoder(_Kind)


def is_submit(body: bytes) -> bool:
    """Return True if a message in PROP is a submit: it has no `kind`, or it cannot be read."""
    try:
        return _KIND.decode(body).kind is None
    except READ_ERRORS:
        return True
