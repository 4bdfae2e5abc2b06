"""Ids: their forms, how each is derived, and which strings are valid.

Every id except a request's is *derived* from what it names. So two guards that do the same work, or one guard
that does it twice, write the same id. Nothing here reads a clock or draws a random number: callers pass in
time and entropy.
"""

import hashlib
import re
from collections.abc import Iterator
from functools import lru_cache
from typing import Literal, NewType

AgentName = NewType("AgentName", str)
"""A name that owns credentials: an agent, client, operator or viewer. `[a-z0-9-]{1,24}`."""

RequestId = NewType("RequestId", str)
"""`<submitter>_<ULID>`: the id alone tells who submitted the request, and when."""

EventId = NewType("EventId", str)
TurnId = NewType("TurnId", str)
"""The id of the event that opened the turn."""

ProposalId = NewType("ProposalId", str)
Cause = NewType("Cause", str)
"""What caused an event: the id of a proposal, of a control message or of a due time."""

SenderRole = Literal["agent", "client", "operator", "viewer", "nobody"]
"""A sender's role in the fleet file; `nobody` if it is not listed there."""
ContinueWith = Literal["last", "entry"]
HUMAN = AgentName("human")
NOBODY = AgentName("_")
"""The addressee of an event that requires no action. It is not a valid name."""
ANYBODY = "any-"
"""Prefix of the name of an intent's inbox. No member's name may begin with it."""

NAME_RULE = "1 to 24 characters of a-z 0-9 -, not `human`, and not beginning with `any-`"
MAX_ID_CHARS = 64
_NAME = re.compile(r"[a-z0-9-]{1,24}")
_TOKEN = re.compile(r"[A-Za-z0-9_-]{1,64}")
_LABEL = re.compile(r"[A-Za-z0-9_.:/-]{1,64}")
"""Readers see the labels of what is withheld from them, so a label has no room for anything else."""
_BASE32 = b"abcdefghijklmnopqrstuvwxyz234567"
_ALPHABET = _BASE32 + bytes(256 - len(_BASE32))
_sha256 = hashlib.sha256
_CROCKFORD = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"  # the ULID alphabet: base32 without I, L, O, U
_ULID = re.compile(r"[0-7][0-9A-HJKMNP-TV-Z]{25}")  # 128 bits in 26 times 5 bits: the first is at most 7


def derive(*parts: str | int) -> str:
    """Return 26 lower-case base32 characters (RFC 4648; 130 bits) of SHA-256 over `parts` joined by 0x1f."""
    return _base32(_joined(*parts))


def _joined(*parts: str | int) -> str:
    return "\x1f".join(map(str, parts))


def _base32(text: str) -> str:
    value = int.from_bytes(_sha256(text.encode()).digest()[:17]) >> 6  # the first 130 of 136 bits
    for low, high, shift in _SPREAD:
        value = value & low | (value & high) << shift
    return value.to_bytes(32)[-26:].translate(_ALPHABET).decode()


def _spread() -> Iterator[tuple[int, int, int]]:
    """Yield the steps that spread 32 five-bit digits until each has a byte of its own.

    Each step halves the blocks of adjacent digits: `low` masks the lower half of each block, which stays, and
    `high` the upper half, which moves up by `shift` bits. (Morton codes spread their bits the same way.)
    """
    for half in (16, 8, 4, 2, 1):
        digits = (1 << 5 * half) - 1
        low = sum(digits << at for at in range(0, 256, 16 * half))
        yield low, low << 5 * half, 3 * half


_SPREAD = tuple(_spread())


def draw(*parts: str | int) -> float:
    """Return a pseudo-random number in [0, 1) that depends on `parts` alone."""
    return int.from_bytes(_sha256(_joined(*parts).encode()).digest()[:4]) / (1 << 32)


@lru_cache(maxsize=4096)  # a guard asks several times during one decision
def proposal_id(request: str, turn: str, round_: int) -> ProposalId:
    """Return the id of the proposal of `turn` in `round_`; a submit has turn "" and round 0."""
    return ProposalId(_base32(f"p\x1f{request}\x1f{turn}\x1f{round_}"))


def claim_id(request: str, offer: str, agent: str) -> ProposalId:
    """Return the id of `agent`'s claim to an offered task."""
    return ProposalId(derive("claim", request, offer, agent))


def post_id(request: str, turn: str, round_: int, post: int) -> ProposalId:
    """Return the id of one of the posts that `turn` makes in `round_`."""
    return ProposalId(derive("post", request, turn, round_, post))


def event_id(cause: str, type_: str, index: int) -> EventId:
    """Return an event's id; `index` counts the events of this cause and type before it."""
    return EventId(_base32(f"e\x1f{cause}\x1f{type_}\x1f{index}"))


def control_cause(request: str, sender: str, control_id: str) -> Cause:
    """Return the cause of the events that a control message leads to."""
    return Cause(derive("c", request, sender, control_id))


def due_cause(request: str, type_: str, turn: str, n: int) -> Cause:
    """Return the cause of a consequence; `n` is the number of the event that led to it."""
    return Cause(derive("due", request, type_, turn, n))


def ulid(at_ms: int, entropy: bytes) -> str:
    """Return a ULID for `at_ms` (Unix milliseconds, 48 bits) and ten bytes of entropy."""
    if not 0 <= at_ms < 1 << 48 or len(entropy) != 10:
        raise ValueError("a ULID takes 48 bits of milliseconds and 10 bytes of entropy")
    value = at_ms << 80 | int.from_bytes(entropy)
    return "".join(_CROCKFORD[value >> shift & 31] for shift in range(125, -1, -5))


def ulid_ms(text: str) -> int:
    """Return the Unix milliseconds in a ULID that `is_request_id` accepted."""
    value = 0
    for char in text[:10]:
        value = value << 5 | _CROCKFORD.index(char)
    return value


def entropy_of(*parts: str | int) -> bytes:
    """Return the ten bytes of a ULID that depend on `parts` alone."""
    return _sha256(_joined(*parts).encode()).digest()[:10]


def request_id(submitter: str, at_ms: int, entropy: bytes) -> RequestId:
    """Return a fresh request id of `submitter`."""
    return RequestId(f"{submitter}_{ulid(at_ms, entropy)}")


def is_name(text: str) -> bool:
    """Return True if `text` may name a member: not `human`, and not an intent's inbox."""
    return _NAME.fullmatch(text) is not None and text != HUMAN and not text.startswith(ANYBODY)


def is_token(text: str) -> bool:
    """Return True if `text` is safe as one token of a subject and as an id."""
    return _TOKEN.fullmatch(text) is not None


def is_label(text: str) -> bool:
    """Return True if `text` may be a label of a fact or an artifact."""
    return _LABEL.fullmatch(text) is not None


def is_request_id(text: str) -> bool:
    """Return True if `text` is a canonical request id: a name, `_`, an upper-case ULID."""
    submitter, _, tail = text.rpartition("_")
    return _NAME.fullmatch(submitter) is not None and _ULID.fullmatch(tail) is not None


def submitter_of(request: str) -> AgentName:
    """Return the submitter that a request id names."""
    return AgentName(request.rpartition("_")[0])


def submitted_ms(request: str) -> int:
    """Return the Unix milliseconds that a request id claims."""
    return ulid_ms(request.rpartition("_")[2])
