"""Queued messages: parsed as commands, rejected without the log, kept as dead letters, still undecided."""

import asyncio
from collections import defaultdict
from typing import Any, NamedTuple

import msgspec

from mesh.bus.connection import Bus
from mesh.bus.consumer import Message
from mesh.bus.reader import every, following, last
from mesh.bus.roles import GUARD
from mesh.bus.stores import store_dead_letter
from mesh.bus.streams import CONTROLS, MOST_LETTERS, controls_of, proposals_of
from mesh.errors import ApiCode, ApiError, SequenceConflict
from protocol.domain.admission import Rejected
from protocol.domain.steps import NeedUndecided
from protocol.wire import codec, subjects
from protocol.wire.commands import Command, Control, Proposal, Submit, id_of, is_control, submit_id
from protocol.wire.errors import Malformed
from protocol.wire.ids import (
    MAX_ID_CHARS,
    NOBODY,
    AgentName,
    Cause,
    SenderRole,
    control_cause,
    is_request_id,
    submitted_ms,
    submitter_of,
)
from protocol.wire.prices import READ_ERRORS
from protocol.wire.records import DeadLetter


class Sent(NamedTuple):
    """A message as it is in its sender's queue."""

    sender: str
    """The name that the broker put into the subject."""
    request: str
    data: bytes
    role: SenderRole
    """The sender's role in the fleet file."""
    trace: str = ""
    """Its `traceparent`; well-formed or empty."""
    stored_us: int = 0
    """UTC µs at which the bus stored it."""

    def command(self, what: Submit | Proposal | Control, cause: Cause, digest: str = "") -> Command:
        sender = AgentName(self.sender)
        return Command(self.request, sender, what, cause, self.role, digest, self.trace, self.stored_us)


def proposal_of(sent: Sent) -> Command | Rejected:
    """Return the command in a PROP message, which is a submit if it has no `kind`. Raises Malformed."""
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
    """Return the command in a CTL message about one request. Raises Malformed."""
    control = codec.parse_control(sent.data)
    rejected = unusable(sent.request)
    return rejected or sent.command(control, control_cause(sent.request, sent.sender, control.id))


def failure_of(sent: Sent, error: Malformed) -> Command | None:
    """Return the failure of the round that sent an unreadable PROP message; None if it names no round."""
    failed = codec.failure_of(sent.data, error)
    return None if failed is None else sent.command(failed, Cause(id_of(sent.request, failed, sent.sender)))


def unusable(request: str) -> Rejected | None:
    """Reject a request id that cannot be valid; None if it can."""
    if len(request) > MAX_ID_CHARS or not is_request_id(request):
        return Rejected("unusable_id", "a request id is `<submitter>_<ULID>`, the ULID in upper case")
    return None


def may_have_overtaken(command: Command, now: int, within_s: float) -> bool:
    """Return True for a control message that may have overtaken its submit.

    The request id must be new. A client can know only its own ids before they are in the log; an operator may
    have been given one.

    Args:
        now: UTC µs.
        within_s: greatest age of the id.
    """
    may_know = command.role == "operator" or submitter_of(command.request) == command.sender
    is_new = submitted_ms(command.request) >= now // 1000 - int(within_s * 1000)
    return is_control(command.what) and may_know and is_new


class _Kind(msgspec.Struct, frozen=True):
    kind: Any = None


_KIND = msgspec.json.Decoder(_Kind)


def is_submit(body: bytes) -> bool:
    """Return True if a message in PROP is a submit: it has no `kind`, or it cannot be read."""
    try:
        return _KIND.decode(body).kind is None
    except READ_ERRORS:
        return True


# --- the dead letters that guards keep ------------------------------------------------------------
# There is one list for each sender, and each message is in it only once. If a guard dies or freezes between
# storing a letter and acknowledging the message, the message comes to another guard. So a letter is stored
# only after a completely known list: the bus refuses it if another letter came in between, and then the rest
# of the list is read.

_STREAM = "DEAD"
_PAUSE_S = 0.02

About = tuple[str, int, int]
"""Identifies a letter's message: its subject, and its sequence and time in its own stream."""


class _List:
    """One sender's list, as far as it was read."""

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.read_up_to = 0
        self.known: dict[About, None] = {}
        """The messages of its letters up to `read_up_to`, oldest first."""
        self.tail: int | None = None
        """Sequence of the last letter, which the next one must name; None if it has to be read."""

    def take(self, seq: int, about: About) -> None:
        self.read_up_to = seq
        self.known[about] = None
        if len(self.known) > MOST_LETTERS:
            self.known.pop(next(iter(self.known)))


class DeadLetters:
    """Stores dead letters, one at a time for each sender."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self._lists = defaultdict[str, _List](_List)

    async def keep(self, sender: str, message: Message, **fields: Any) -> bool:
        """Store the letter of a message unless it exists; return False if it could not be stored.

        Args:
            sender: empty for messages without a sender.
            fields: fields of the letter.

        Raises BusError if the list cannot be read.
        """
        subject, kept = subjects.dead_from(sender or NOBODY), self._lists[sender]
        about = (message.subject, message.stream_seq, message.stored_us)
        async with kept.lock:
            while True:
                if kept.tail is None:
                    kept.tail = await self._read_on(subject, kept)
                if about in kept.known:
                    return True
                tail, kept.tail = kept.tail, None
                try:
                    seq = await store_dead_letter(
                        self._bus, subject, message, by=GUARD, sender=sender, after=tail, **fields
                    )
                except SequenceConflict:
                    await asyncio.sleep(_PAUSE_S)  # lets a lagging replica catch up
                    continue
                if seq is not None:
                    kept.tail = seq
                    kept.take(seq, about)
                return seq is not None

    async def _read_on(self, subject: str, kept: _List) -> int:
        """Read the list's new letters; return the sequence of the last one."""
        newest = await last(self._bus, _STREAM, subject, leader=False)
        async for each in every(self._bus, _STREAM, subject, kept.read_up_to + 1):
            letter = codec.readable(each.data, DeadLetter)
            about = (letter.subject, letter.stream_seq, letter.stored_at) if letter else ("", each.seq, 0)
            kept.take(each.seq, about)
        return 0 if newest is None else kept.read_up_to  # 0: all of them were too old


# --- undecided messages about a request -----------------------------------------------------------
# A message that came in time counts, however late it is read. The queues are work queues: a message stays
# there until it is decided. So before a guard ends anything, it asks the leaders of the queues whether a
# message stored before that time is still there. Later messages hold nothing up, so no one can postpone an
# end for ever.


async def unheard(
    bus: Bus, request: str, need: NeedUndecided, in_hand: Command | None, partitions: int
) -> bool:
    """Return True if an undecided message about the request was stored in time. Raises BusError.

    Args:
        in_hand: the command that is being decided, which stays in its queue until it is acknowledged.
        partitions: how many the mesh has.
    """
    queues = [
        *(
            (proposals_of(agent), subjects.queued("prop", agent, request, partitions))
            for agent in need.agents
        ),
        *(
            (controls_of(client), subjects.queued("ctl", client, request, partitions))
            for client in need.clients
        ),
        (CONTROLS, subjects.queued("ctl", None, request, partitions)),
    ]
    waits = [_waits(bus, queue, subject, need.before, in_hand) for queue, subject in queues]
    return any(await asyncio.gather(*waits))


async def _waits(bus: Bus, queue: str, subject: str, before: int, in_hand: Command | None) -> bool:
    seq = 1
    while True:
        try:
            found = await following(bus, queue, subject, seq)
        except ApiError as error:
            if error.err_code == ApiCode.STREAM_NOT_FOUND:  # its sender has left the fleet
                return False
            raise
        if found is None:
            return False
        stored = found.at
        if stored >= before:
            return False
        sender = subjects.parse_queued(found.subject).sender
        if in_hand is None or (sender, stored) != (in_hand.sender, in_hand.stored):
            return True
        seq = found.seq + 1
