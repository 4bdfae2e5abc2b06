"""What a turn's later rounds are told of an earlier one: enough to go by, and never much.

The rounds before pile up in every inbox event of a turn, while an event can be no larger than the bus
takes. The event that ended a round holds everything; here its texts are cut and a large move stands
without its load. Replies are kept whole: the code runs again with them, and they are few and limited.
"""

from msgspec import json
from msgspec.structs import replace

from protocol.wire.commands import (
    Ask,
    Complete,
    Escalate,
    Fail,
    Failure,
    HandBack,
    Move,
    Transfer,
    UnknownMove,
)
from protocol.wire.events import Past
from protocol.wire.ids import AgentName
from protocol.wire.refusals import Refusal, Rule

MAX_TEXT_CHARS = 2_000
MAX_MOVE_BYTES = 16_384
MAX_NUMBERS_BYTES = 8_192


def remembered(past: Past) -> Past:
    """Return an earlier round as later ones are told of it. Twice is the same as once."""
    move, refusal, failure = past.move, past.refusal, past.failure
    return replace(
        past,
        move=None if move is None else _move(move, refusal),
        refusal=None if refusal is None else _refusal(refusal),
        failure=None if failure is None else _failure(failure),
    )


def _move(move: Move, refusal: Refusal | None) -> Move:
    too_large = refusal is not None and refusal.rule == Rule.SIZE
    if too_large or len(json.encode(move)) > MAX_MOVE_BYTES:
        move = _without_load(move)
    return move if len(json.encode(move)) <= MAX_MOVE_BYTES else _bare(move)


def _without_load(move: Move) -> Move:
    match move:
        case Transfer() | HandBack():
            return replace(move, facts=(), artifacts=())
        case Escalate():
            return replace(move, facts=())
        case Complete():
            return replace(move, answer=None)
        case Ask():
            return replace(move, schema=None)
        case Fail() | UnknownMove():
            return move


def _bare(move: Move) -> Move:
    """Return whom a move was for and the beginning of what it said, and nothing else."""
    match move:
        case Transfer():
            return Transfer(to_agent=AgentName(_cut(move.to_agent)), summary=_cut(move.summary))
        case HandBack():
            named = None if move.to_agent is None else AgentName(_cut(move.to_agent))
            return HandBack(to_agent=named, summary=_cut(move.summary))
        case Escalate():
            return Escalate(summary=_cut(move.summary))
        case Ask():
            asked = AgentName(_cut(move.to_agent))
            return replace(move, to_agent=asked, question=_cut(move.question), schema=None)
        case Fail():
            return Fail(reason=_cut(move.reason))
        case Complete() | UnknownMove():
            return move


def _refusal(refusal: Refusal) -> Refusal:
    few = len(json.encode(refusal.numbers)) <= MAX_NUMBERS_BYTES
    return replace(
        refusal,
        detail=_cut(refusal.detail),
        hint=_cut(refusal.hint),
        numbers=refusal.numbers if few else {},
    )


def _failure(failure: Failure) -> Failure:
    return replace(failure, code=_cut(failure.code), message=_cut(failure.message))


def _cut(text: str) -> str:
    return text if len(text) <= MAX_TEXT_CHARS else f"{text[: MAX_TEXT_CHARS - 1]}…"
