"""Bytes to values and back: the one place where a message is read or written.

Reading is total: every message from a peer becomes a value or a typed error, never another exception.
Writers emit the newest form of an event. Only one form is still read, so readers know no other.
"""

import functools
import hashlib
import math
import re
from typing import Any, Literal, NoReturn, TypeVar

import msgspec

from protocol.wire import commands
from protocol.wire.commands import Control, Proposal, Report, Submit, Usage
from protocol.wire.errors import Malformed, OldForm, UnknownEvent
from protocol.wire.event import VERSION
from protocol.wire.events import TYPES, AnyEvent, TaskOffered
from protocol.wire.handoff import (
    DEEPEST,
    TEXT_FACT,
    check_artifacts,
    check_budget,
    check_facts,
    check_names,
    check_nesting,
)
from protocol.wire.ids import TurnId, is_label, is_name, is_request_id, is_token
from protocol.wire.moves import MOVES, UnknownMove
from protocol.wire.prices import READ_ERRORS, Count

T = TypeVar("T")

DEEPEST_DOCUMENT = 2 * DEEPEST
"""Deepest nesting of a whole document, which contains values."""

_events = msgspec.json.Decoder(AnyEvent)
_submits = msgspec.json.Decoder(Submit)
_proposals = msgspec.json.Decoder(Proposal)
_controls = msgspec.json.Decoder(Control)
_usages = msgspec.json.Decoder(Usage)
_types = frozenset(TYPES.values())
_OLD_FORM = 1
"""It had a different hash chain. No release has written it."""
_NOTHING = Report().usage
"""The one object that is the usage of every report without one."""


class _Head(msgspec.Struct):
    type: str = ""
    v: Any = None
    redacted: Any = None


_heads = msgspec.json.Decoder(_Head)
_STRINGS = re.compile(rb'"(?:[^"\\]|\\.)*+"', re.DOTALL)
_BRACKETS = re.compile(rb"[\[\]{}]")
_QUOTED = re.compile(r"'.*'", re.DOTALL)


def readable(body: bytes, kind: type[T]) -> T | None:
    """Return the document of type `kind` in `body`, or None if there is none.

    It reads what others put on the bus: dead letters, cards, steps, entries, notes. It never raises, even for
    bytes that are not UTF-8. A document nested too deep to be written again counts as none.
    """
    hashable: Any = kind
    try:
        document: T | None = None if _is_too_deep(body) else _decoder(hashable).decode(body)
    except READ_ERRORS:
        return None
    return document


@functools.cache
def _decoder(kind: Any) -> msgspec.json.Decoder[Any]:
    return msgspec.json.Decoder(kind)


def _is_too_deep(body: bytes) -> bool:
    """Return True if a document nests lists and objects deeper than any of ours."""
    if body.count(b"[") + body.count(b"{") <= DEEPEST_DOCUMENT:
        return False
    depth = 0
    for bracket in _BRACKETS.findall(_STRINGS.sub(b"", body)):
        depth += 1 if bracket in b"[{" else -1
        if depth > DEEPEST_DOCUMENT:
            return True
    return False


UNWRITABLE = (msgspec.MsgspecError, TypeError, ValueError, OverflowError, RecursionError)
"""What msgspec raises if a value cannot be written as JSON, or the JSON not be read again."""


def encode(message: msgspec.Struct) -> bytes:
    """Return a message's JSON."""
    return msgspec.json.encode(message)


def encode_whole(message: msgspec.Struct) -> bytes:
    """Return a message's JSON. Raises Malformed for NaN and infinity, which would become null."""
    body = encode(message)
    if b"null" in body and (place := non_finite(msgspec.to_builtins(message), "")):
        raise Malformed(f"{place}: JSON has no NaN and no infinity")
    return body


def non_finite(value: Any, path: str) -> str:
    """Return the path of the first non-finite number in a JSON value; empty if all are finite.

    Args:
        path: path of the value itself.
    """
    if isinstance(value, float):
        return "" if math.isfinite(value) else path
    if isinstance(value, dict):
        within = ((f"{path}.{key}".lstrip("."), item) for key, item in value.items())
    elif isinstance(value, list | tuple):
        within = ((f"{path}[{at}]", item) for at, item in enumerate(value))
    else:
        return ""
    return next((place for where, item in within if (place := non_finite(item, where))), "")


def equal(one: Any, other: Any) -> bool:
    """Return True if two messages, or parts of them, are the same JSON value.

    Types count at every depth: `true`, `1`, `1.0` and `"1"` are four different values, though in Python three
    of them are equal. The order of an object's keys does not count. JSON has no NaN, so every value equals
    itself.
    """
    return one is other or canonical(one) == canonical(other)


canonical = msgspec.json.Encoder(order="deterministic").encode
"""Returns a value's canonical JSON: no white space, members sorted by name."""


def body_digest(body: bytes) -> str:
    """Return SHA-256 (hex) of a message's bytes as received."""
    return hashlib.sha256(body).hexdigest()


def is_readable(event: AnyEvent) -> bool:
    """Return True if `decode_event` can read back an event that was built here.

    Only sums of reports can be out of range: everything else in the event was read from a message or
    document, where the same ranges apply. (Decoding every event completely would cost about four times as
    much.)
    """
    report, work = event.report, event.work
    sums = [] if report is None else [report.usage]
    if type(event) is TaskOffered:
        work = event.offer
    if work is not None:
        sums += [work.reported.usage, work.committed, *[result.cost for result in work.results]]
    try:
        for usage in sums:
            if usage is not _NOTHING:
                _usages.decode(msgspec.json.encode(usage))
    except (OverflowError, *READ_ERRORS):
        return False
    return True


def decode_event(body: bytes) -> AnyEvent:
    """Return the event in `body`.

    Raises:
        UnknownEvent: this build does not know its type or form (`OldForm`: no longer reads it). The caller
            must not go on.
        Malformed: it is not an event.
    """
    try:
        event: AnyEvent = _events.decode(body)
    except READ_ERRORS as error:
        _unreadable(body, error)
    return event


def _unreadable(body: bytes, error: Exception) -> NoReturn:
    """Raise UnknownEvent or Malformed, with the reason why this build cannot read `body` as an event."""
    try:
        head = _heads.decode(body)
    except READ_ERRORS as unreadable:
        raise Malformed("not an event") from unreadable
    if not isinstance(head.v, int):
        raise Malformed("an event without a version") from error
    check_form(head.type, head.v)
    if head.type not in _types or head.v != VERSION:
        raise UnknownEvent(head.type, head.v) from error
    if head.redacted is not None:
        raise Malformed(f"{head.type} is redacted: it can be verified, and no more") from error
    raise Malformed(f"{head.type}: {error}") from error


_DIGEST = re.compile("[0-9a-f]{64}")


def check_form(type_: str, version: int) -> None:
    """Raise OldForm if only earlier builds read this form of event."""
    if version == _OLD_FORM:
        raise OldForm(type_, version, VERSION)


def parse_submit(body: bytes) -> Submit:
    """Return a client's request. Raises Malformed."""
    submit: Submit = _read(_submits, body, "submit")
    if not submit.text.strip():
        raise Malformed("submit: `text` is empty")
    if submit.rerun_of is not None and not is_request_id(submit.rerun_of):
        raise Malformed("submit: `rerun_of` is not a request id")
    if submit.continue_with == "last" and submit.conversation is None:
        raise Malformed("submit: `continue_with` is `last`, and there is no `conversation`")
    if submit.forked_from is not None:
        _check_fork(submit, submit.forked_from)
    check_facts(submit.facts, reserved=TEXT_FACT)
    check_artifacts(submit.artifacts)
    check_budget(submit.constraints.budget, "constraints")
    return submit


def _check_fork(submit: Submit, fork: commands.ForkedFrom) -> None:
    if submit.rerun_of is not None:
        raise Malformed("submit: it is a rerun or a fork, and not both")
    if not is_request_id(fork.request):
        raise Malformed("submit: `forked_from.request` is no request's id")
    if _DIGEST.fullmatch(fork.digest) is None:
        raise Malformed("submit: `forked_from.digest` is no SHA-256 in hex")
    if not all(map(is_label, fork.text_labels)):
        raise Malformed("submit: `forked_from.text_labels` are no labels")
    if not all(is_name(agent) and all(map(is_token, turns)) for agent, turns in fork.journals.items()):
        raise Malformed("submit: `forked_from.journals` names no agents with their turns")


def parse_proposal(body: bytes) -> Proposal:
    """Return a turn's proposal; a move that this build lacks becomes `UnknownMove`. Raises Malformed."""
    proposal: Proposal
    try:
        proposal = _proposals.decode(body)
    except READ_ERRORS as error:
        proposal = _with_unknown_move(body, error)
    if not is_token(proposal.turn):
        raise Malformed("proposal: `turn` is not a valid id")
    match proposal:
        case commands.MoveProposed(move=move):
            move.check()
        case commands.FactsPost(facts=facts):
            check_facts(facts)
            if not facts:
                raise Malformed("post: it has no facts")
        case _:
            pass
    return proposal


class _ProposalHeader(msgspec.Struct):
    turn: str
    round: Count
    report: msgspec.Raw = msgspec.Raw()
    kind: Any = None


_proposal_headers = msgspec.json.Decoder(_ProposalHeader)
UNREADABLE = "malformed"
"""Failure code of a round whose proposal cannot be read."""
MAX_FAILURE_CHARS = 512


def failure_of(body: bytes, error: Malformed) -> commands.ReportFailure | None:
    """Return the failure of the round that sent an unreadable proposal; None if the round is unreadable, too.

    The proposal's report counts if it can be read by itself, since the money is spent either way.
    """
    try:
        header = _proposal_headers.decode(body)
    except READ_ERRORS:
        return None
    if not is_token(header.turn) or header.kind in ("claim", "post"):  # neither ends a round
        return None
    report = readable(bytes(header.report), Report) or Report()
    failure = commands.Failure(code=UNREADABLE, message=str(error)[:MAX_FAILURE_CHARS])
    return commands.ReportFailure(turn=TurnId(header.turn), round=header.round, error=failure, report=report)


def _with_unknown_move(body: bytes, error: Exception) -> commands.MoveProposed:
    """Read a proposal whose move this build does not know, so that a rule can refuse the move by name."""
    problem = Malformed(f"proposal: {_where(error)}")
    try:
        raw = msgspec.json.decode(body)
        name = raw["move"]["move"]
        if raw["kind"] != "move" or not isinstance(name, str) or name in MOVES:
            raise problem from error
        return commands.MoveProposed(
            turn=msgspec.convert(raw["turn"], str),  # type: ignore[arg-type]
            round=msgspec.convert(raw["round"], Count),
            report=msgspec.convert(raw.get("report", {}), Report),
            v=msgspec.convert(raw.get("v", 1), Literal[1]),
            move=UnknownMove(name=name),
        )
    except (KeyError, TypeError, AttributeError, *READ_ERRORS) as unreadable:
        raise problem from unreadable


def parse_control(body: bytes) -> Control:
    """Return an operator's or a client's control message. Raises Malformed."""
    control: Control = _read(_controls, body, "control")
    if not is_token(control.id):
        raise Malformed("control: `id` must be 1 to 64 characters of A-Z a-z 0-9 _ -")
    if control.turn is not None and not is_token(control.turn):
        raise Malformed("control: `turn` is not a valid id")
    match control:
        case commands.Resolve():
            check_facts(control.facts)
            check_nesting(control.answer)
            check_budget(control.budget, "control")
            if control.complete and control.budget is not None:
                raise Malformed("control: an answer needs no `budget`")
        case commands.ReplyToAsk():
            check_nesting(control.value)
        case commands.Settle():
            check_nesting(control.result)
        case commands.Forget():
            if not control.conversation:
                raise Malformed("control: `conversation` is empty")
            check_names(control.keys, "keys")
        case _:
            pass
    return control


def _read(decoder: msgspec.json.Decoder[Any], body: bytes, what: str) -> Any:
    try:
        return decoder.decode(body)
    except READ_ERRORS as error:
        raise Malformed(f"{what}: {_where(error)}") from error


def _where(error: Exception) -> str:
    """Return msgspec's description of an error, with types and paths; quoted values are removed."""
    return _QUOTED.sub("'…'", str(error)) if isinstance(error, msgspec.MsgspecError) else "cannot be read"
