"""Records beside the log: anchors, steps, memory, questions, notices, dead letters, cards, live notes.

A step named `<round>-<n>` holds a value, or the intent of an effect; the effect's result is `<round>-<n>d`.
A conversation remembers the facts that answers in the log left behind. Guards fold them into records under
`mesh.mem.<client>.`: one for each fact, one for each order to forget, one for who spoke last, and one for how
far they have read.
A request's open questions to its client are at `mesh.ask.<client>.<request>`. Only guards write either.

A notice tells a sender that its message had no effect; the message is kept as a dead letter. Cards and live
notes show a running agent. No verdict depends on any of them.
"""

import base64
from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal, NamedTuple

import msgspec

from protocol.wire.commands import Usage
from protocol.wire.handoff import Fact
from protocol.wire.ids import AgentName, TurnId
from protocol.wire.moves import Ask
from protocol.wire.prices import Moment

# --- anchors -------------------------------------------------------------------------------------


class Head(NamedTuple):
    """A request's newest event: its number, the digest of its stored bytes, and its sequence in the log."""

    n: int
    digest: str
    """SHA-256, hex."""
    seq: int


class Anchor(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a guard signs: the newest event of each request that was appended to since the last anchor."""

    v: int = 1
    at: int
    """UTC µs."""
    seq: int
    """Sequence of the newest event in the log."""
    heads: Mapping[str, Head]
    """By request."""
    prev: str = ""
    """SHA-256 (hex) of the previous anchor as stored; empty in the first."""
    guards: Mapping[str, int] = {}
    """By running guard: the sequence up to which it has anchored its own events."""


class SignedAnchor(msgspec.Struct, frozen=True, kw_only=True):
    """An anchor as it is stored."""

    anchor: msgspec.Raw
    key: str
    """The signer's public nkey."""
    signature: str
    """Ed25519 over the bytes of `anchor`, base64."""


# --- steps -----------------------------------------------------------------------------------------

DONE = "d"
"""Suffix that turns the name of an effect's intent into the name of its result."""

FENCE = "fence"
"""Kind of the record with which a later round closes an earlier one."""

RAISED = "raised"
"""Code of a read-only tool's exception. The same round raises it again; a later round calls the tool
again."""

MOST_ARGUMENTS_BYTES: Final = 16 << 10
"""Largest JSON size of a call's arguments that are recorded whole."""
HEAD_BYTES: Final = 2 << 10
"""How much of longer arguments is recorded."""


class Refused(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A tool's recorded refusal, or the exception that a read-only tool raised."""

    code: str
    message: str
    type: str = ""
    """Exceptions: module and name; only the name for Python's own."""


class Cut(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The recorded part of arguments that are too long. The step's digest covers all of them."""

    bytes: int
    head: str


class PromptParts(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Digests of a prompt's parts: SHA-256 of each part's canonical JSON, in the form of ids (`derive`)."""

    fixed: str
    """Instructions, tools and parameters, as stored in the stream PROMPTS."""
    brief: str
    transcript: str = ""
    """Empty before the first reply."""


class Reads(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Which of the turn's facts an effect's tool read."""

    call: str
    """The effect's key before what its tool read is mixed in."""
    facts: dict[str, str] = {}
    """By fact key: SHA-256 of the value's canonical JSON; empty for a missing fact. The empty key stands for
    all facts as one object. An intent has none, since the tool has not read anything yet."""


class Record(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One step as it is stored. New fields are added at the end, with a default."""

    v: int = 1
    kind: str
    """`call`, `effect`, `intent`, `model`, `save`, `remark`, `now`, `random` or `fence`; also `results` and
    `context` for a lead, and `post` in a swarm."""
    name: str = ""
    digest: str = ""
    """Digest of the arguments."""
    version: str = ""
    """The agent's version when it wrote this."""
    nonce: str
    """Nonce of the instance that wrote this."""
    at: int
    """UTC µs."""
    key: str = ""
    """Effects: the idempotency key."""
    value: Any = None
    error: Refused | None = None
    usage: Usage | None = None
    """What the step cost, if anything."""
    began: Any = None
    """First model reply of a conversation: its starting state, which every later round needs."""
    arguments: Any = None
    """Tool calls (`call`, `intent`, `effect`): the arguments by name, without the secret ones."""
    secret: tuple[str, ...] = ()
    """Names of arguments that the tool keeps out of the record. The digest covers them, too."""
    cut: Cut | None = None
    """Takes the place of `arguments` that exceed 16 KiB."""
    prompt: PromptParts | None = None
    """Model replies: the prompt that was sent."""
    reads: Reads | None = None
    """Effects (`intent`, `effect`) whose tool takes the turn as a parameter."""

    @property
    def called(self) -> str:
        return f"{self.kind} {self.name}".strip()


_RECORD = msgspec.json.Decoder(Record)


def decode_record(body: bytes) -> Record:
    """Return a stored step. Raises msgspec.MsgspecError."""
    return _RECORD.decode(body)


class LostTime(msgspec.Struct, frozen=True, kw_only=True):
    """A time whose steps are missing from an agent's journals, because the bus was restored from a backup.

    A restore stores it beside the journals (`subjects.lost_time`).
    """

    v: Literal[1] = 1
    since: Moment
    """UTC µs at which the lost time began."""
    until: Moment
    """UTC µs at which it ended. A request with an older id may have been at work in it."""


def place_of(name: str) -> int:
    """Return the number of a step within its round."""
    return int(name.partition("-")[2].removesuffix(DONE))


# --- what conversations remember --------------------------------------------------------------------

MOST_KEYS: Final = 64
"""Most facts that a conversation remembers."""
MOST_BYTES: Final = 128 << 10
"""Most bytes of JSON for these facts. A record must fit into a message."""

LogSequence = Annotated[int, msgspec.Meta(ge=0, lt=1 << 53)]
"""The sequence of an event in the log."""


def memory_limit(max_handoff_bytes: int) -> int:
    """Return how many bytes a conversation may remember: half a handoff, to leave room for the request."""
    return min(max_handoff_bytes // 2, MOST_BYTES)


class MemoryRecord(msgspec.Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """One fact of a conversation."""

    v: Literal[1] = 1
    conversation: str
    key: str
    fact: Fact
    seq: LogSequence
    """Log sequence of the answer that left it. For each key, the highest sequence wins."""
    at: Moment
    """UTC µs at which that answer was stored."""
    request: str


class MemoryForgotten(msgspec.Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """Forget the facts of a conversation that answers left up to a given log sequence."""

    v: Literal[1] = 1
    conversation: str
    keys: tuple[str, ...] = ()
    """Keys of the facts to forget; empty for all."""
    seq: LogSequence
    """The log's last sequence when a guard carried the order out. Facts left by later answers stay."""
    at: Moment
    """UTC µs at which the order was stored."""
    by: str = ""
    """Who gave the order: the person's name if known, otherwise the sender."""
    control: str
    """The id of the order."""


class MemorySpeaker(msgspec.Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """The agent that answered or asked last in a conversation."""

    v: Literal[1] = 1
    conversation: str
    agent: AgentName
    seq: LogSequence
    """Log sequence of the answer or question. The highest wins."""
    at: Moment
    """UTC µs at which that was stored."""
    request: str


class MemoryFolded(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How far guards have folded the log into a client's memory records."""

    v: Literal[1] = 1
    seq: LogSequence
    """Every answer up to here is in the records."""


# --- what a client is asked ---------------------------------------------------------------------------

QUESTIONS_BYTES: Final = 512 << 10
"""Most bytes of questions in one document; a single question may be larger."""


class OpenQuestion(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A question that has no reply yet."""

    n: int
    """Number of the `turn.suspended` event that asked it."""
    turn: TurnId
    round: int
    agent: AgentName
    """The agent that asks."""
    ask: Ask
    expires_at: int
    """UTC µs."""


class Questions(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The open questions of one request to the same reader. Guards keep the list up to date."""

    v: Literal[1] = 1
    n: int
    """The list is complete up to the event with this number."""
    open: tuple[OpenQuestion, ...] = ()
    """The oldest first."""
    more: int = 0
    """How many newer questions did not fit. Each is listed once an older one is answered or expires."""


# --- hints, and what is kept for people ------------------------------------------------------------

MAX_DATA_BYTES = 256 * 1024
"""Bytes of the original that a dead letter keeps: the largest size of a proposal."""
MAX_HEADER_CHARS = 8 * 1024
"""Characters of headers that it keeps. JSON may turn one into six, and all of it must fit."""
MAX_DETAIL_CHARS = 512
"""Characters of a reason. A reason may quote the sender's input, but must not grow with it."""


class DeadLetter(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A message that could not be read or acted on."""

    v: Literal[1] = 1
    at: int
    """UTC µs."""
    by: str
    """Who gave up on it, and so whose dead-letter list it is in."""
    code: str
    """The reason, for programs."""
    detail: str
    """The reason in one sentence, without any of the message's content."""
    subject: str
    sender: str = ""
    """As the broker reports it; empty if the subject names no sender."""
    request: str = ""
    delivered: int = 1
    headers: Mapping[str, str] = {}
    data: str = ""
    """The original bytes, base64."""
    truncated: bool = False
    """True if data or headers were too large and only their beginning was kept."""
    stream_seq: int = 0
    """The message's sequence in its stream (see `subject`); 0 in letters of older versions."""
    stored_at: int = 0
    """UTC µs at which it was stored there. Letters with the same subject, `stream_seq` and `stored_at` are
    about the same message."""

    @property
    def original(self) -> bytes:
        return base64.b64decode(self.data)


def dead_letter(
    *,
    at: int,
    by: str,
    code: str,
    detail: str,
    subject: str,
    data: bytes,
    headers: Mapping[str, str] | None = None,
    **known: Any,
) -> DeadLetter:
    """Return the dead letter for `data`. Data, headers and detail that are too long are cut."""
    given = headers or {}
    kept = _first(given)
    return DeadLetter(
        at=at,
        by=by,
        code=code,
        detail=detail[:MAX_DETAIL_CHARS],
        subject=subject,
        headers=kept,
        data=base64.b64encode(data[:MAX_DATA_BYTES]).decode(),
        truncated=len(data) > MAX_DATA_BYTES or kept != given,
        **known,
    )


def _first(headers: Mapping[str, str]) -> dict[str, str]:
    """Return the first headers, as many as fit."""
    kept, room = {}, MAX_HEADER_CHARS
    for name, value in headers.items():
        room -= len(name) + len(value)
        if room < 0:
            break
        kept[name] = value
    return kept


class NoticeError(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What is wrong with a message."""

    code: str
    detail: str


class Ended(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Tells that a turn is over, or that its round was decided."""

    why: str
    turn: str = ""
    round: int = 0


class Notice(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A note with a body. Exactly one of `error` and `ended` is set."""

    v: Literal[1] = 1
    request: str
    error: NoticeError | None = None
    ended: Ended | None = None
    digest: str = ""
    """SHA-256 (hex) of the message's bytes. Set with `error`, and with an `ended` that answers a submit."""


class LaneAnswer(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A guard's answer to a message on the lane."""

    digest: str
    """SHA-256 (hex) of that message's bytes."""
    decided: bool = False
    """True: the verdict is in the log. False: store the message in its sender's queue."""


class Card(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What an agent tells about itself, as published by the instance that started last."""

    v: Literal[1] = 1
    name: str
    version: str
    description: str = ""
    prompt_version: str = ""
    tools: tuple[Mapping[str, Any], ...] = ()
    """`{name, description, effect}` for each tool."""
    instance: str = ""
    model: str = ""
    """What drives it: `scripted`, a model's id, or empty."""
    no_rules: bool = False
    """Agents with a model: True if there are no scripted rules that could replace it."""
    forks: bool = False
    """True if its turns keep what a fork says about effects (`forked_from` of their work)."""


What = Literal["model", "tool"]


class LiveNote(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One thing that happened in a running turn. The subject names the agent and the request."""

    v: Literal[1]
    turn: str
    round: int
    n: int
    """Counts the notes of one run of a round, from 0. A gap means that some were lost."""
    at: int
    """UTC µs, by the agent's clock."""
    kind: Literal["began", "step", "text", "ended"]
    what: What | Literal[""] = ""
    """Steps: what was called."""
    name: str = ""
    """Steps: the name of the tool or model."""
    state: Literal["", "called", "returned", "failed"] = ""
    """Steps only. A tool's refusal is `failed`, too."""
    text: str = ""
    """Text: what the model has produced since the previous note."""
    again: bool = False
    """Text: True if earlier text of this reply is void, because another model starts over."""
    move: str = ""
    """Ends: the proposed move."""
    to: str = ""
    """Ends: the agent that the move names."""
    failed: str = ""
    """Ends without a move: the reason, as a code."""
