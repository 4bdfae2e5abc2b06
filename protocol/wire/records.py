"""Records beside the log: steps, what conversations remember, notices, dead letters, cards and live notes.

Names of steps: `<round>-<n>` holds a value, or the intent of an effect, whose result is `<round>-<n>d`.
A conversation remembers what answers in the log left. Guards fold these into records under
`mesh.mem.<client>.`: one for each fact, one for each order to forget, and one that says how far it came. What
a request asks its client lies at `mesh.ask.<client>.<request>`; guards alone write that, too.

A notice tells a sender that its message came to nothing; the message is kept as a dead letter. A card and
live output show a running agent. No verdict rests on any of them.
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
    """A request's newest event: its number, the digest of its stored bytes, and its place in the log."""

    n: int
    digest: str
    """SHA-256, hex."""
    seq: int


class Anchor(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a guard signs of the log: the newest event of each request that was appended to lately."""

    v: int = 1
    at: int
    """UTC µs."""
    seq: int
    """The newest event's sequence in the log."""
    heads: Mapping[str, Head]
    """By request."""
    prev: str = ""
    """The SHA-256 (hex) of the stored anchor before it; empty in the first."""
    guards: Mapping[str, int] = {}
    """Up to which sequence each guard at work has anchored what it appended."""


class SignedAnchor(msgspec.Struct, frozen=True, kw_only=True):
    """An anchor as it is stored."""

    anchor: msgspec.Raw
    key: str
    """The public nkey of who signed it."""
    signature: str
    """Ed25519 over the bytes of `anchor`, base64."""


# --- steps -----------------------------------------------------------------------------------------

DONE = "d"
"""Behind the name of an effect's intent, it names the effect's result."""

FENCE = "fence"
"""The kind of the record by which a later round closes an earlier one."""


RAISED = "raised"
"""The code of a reading tool's exception: its round raises it again, and a later round tries anew."""

MOST_ARGUMENTS_BYTES: Final = 16 << 10
"""Arguments of a call that are recorded whole, as JSON."""
HEAD_BYTES: Final = 2 << 10
"""What is recorded of longer ones."""


class Refused(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A tool's recorded no, or the exception that a reading tool raised."""

    code: str
    message: str
    type: str = ""
    """Of an exception: its module and name; of Python's own only the name."""


class Cut(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What is recorded of arguments that are too long. The step's digest is of all of them."""

    bytes: int
    head: str


class PromptParts(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Digests of a prompt's parts: SHA-256 of each as canonical JSON, as ids have it (`derive`)."""

    fixed: str
    """Instructions, tools and parameters, as they lie in the stream PROMPTS."""
    brief: str
    transcript: str = ""
    """Empty where nothing was said yet."""


class Reads(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What an effect's tool read of the turn's facts."""

    call: str
    """The key that the effect would have whatever its tool read."""
    facts: dict[str, str] = {}
    """By key: SHA-256 of the value as canonical JSON, empty for a fact that was not there. Under the empty
    key: of all facts, as an object. An intent has none: nobody knows yet."""


class Record(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One step as it is stored. Fields are only ever added, at the end and with a default."""

    v: int = 1
    kind: str
    """`call`, `effect`, `intent`, `model`, `save`, `remark`, `now`, `random` or `fence`; of a lead `results`
    and `context`, of a swarm `post`."""
    name: str = ""
    digest: str = ""
    """Of the arguments."""
    version: str = ""
    """The agent's, as it wrote this."""
    nonce: str
    """The writing instance's."""
    at: int
    """UTC µs."""
    key: str = ""
    """Of an effect."""
    value: Any = None
    error: Refused | None = None
    usage: Usage | None = None
    """What the step cost, where it cost anything."""
    began: Any = None
    """Of a model's first reply in a conversation: what that began with, and every later round has to know."""
    arguments: Any = None
    """Of a tool's call (`call`, `intent`, `effect`): its arguments by name, without those that are secret."""
    secret: tuple[str, ...] = ()
    """Names of arguments that the tool keeps out of the record. The digest is of them, too."""
    cut: Cut | None = None
    """Instead of `arguments` of more than 16 KiB."""
    prompt: PromptParts | None = None
    """Of a model's reply: what was sent."""
    reads: Reads | None = None
    """Of an effect (`intent`, `effect`) whose tool takes the turn."""

    @property
    def called(self) -> str:
        return f"{self.kind} {self.name}".strip()


_RECORD = msgspec.json.Decoder(Record)


def decode_record(body: bytes) -> Record:
    """Return a stored step. Raises msgspec.MsgspecError."""
    return _RECORD.decode(body)


def place_of(name: str) -> int:
    """Return the number of a step within its round."""
    return int(name.partition("-")[2].removesuffix(DONE))


# --- what conversations remember --------------------------------------------------------------------

MOST_KEYS: Final = 64
"""Facts that a conversation remembers at most."""
MOST_BYTES: Final = 128 << 10
"""Bytes of them as JSON, at most. A record has to fit into a message."""

Place = Annotated[int, msgspec.Meta(ge=0, lt=1 << 53)]
"""The sequence of an event in the log."""


def memory_limit(max_handoff_bytes: int) -> int:
    """Return how many bytes a conversation may remember: half a handoff, so that a request has the rest."""
    return min(max_handoff_bytes // 2, MOST_BYTES)


class MemoryRecord(msgspec.Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """One fact of a conversation."""

    v: Literal[1] = 1
    conversation: str
    key: str
    fact: Fact
    seq: Place
    """The place in the log of the answer that left it. The last one of a key counts."""
    at: Moment
    """UTC µs at which that answer was stored."""
    request: str


class MemoryForgotten(msgspec.Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """Facts of a conversation are forgotten that answers left up to a place in the log."""

    v: Literal[1] = 1
    conversation: str
    keys: tuple[str, ...] = ()
    """Empty: all of them."""
    seq: Place
    """The log's last place when a guard obeyed: what an answer leaves behind it stays."""
    at: Moment
    """UTC µs at which the order was stored."""
    by: str = ""
    """Who had it forgotten: the person's name, else the sender."""
    control: str
    """The id of the order."""


class MemoryFolded(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Up to which place in the log all that a client's answers left is in its records."""

    v: Literal[1] = 1
    seq: Place


# --- what a client is asked ---------------------------------------------------------------------------

QUESTIONS_BYTES: Final = 512 << 10
"""Bytes of the questions in one document, at most; a single one may be larger."""


class OpenQuestion(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A question that waits for its reply."""

    n: int
    """Number of the `turn.suspended` event that put it."""
    turn: TurnId
    round: int
    agent: AgentName
    """Who asks."""
    ask: Ask
    expires_at: int
    """UTC µs."""


class Questions(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Every question of one request that waits for the same reader, as guards keep the list up to date."""

    v: Literal[1] = 1
    n: int
    """Number of the event up to which it is known."""
    open: tuple[OpenQuestion, ...] = ()
    """The oldest first."""
    more: int = 0
    """How many newer ones found no room; each is listed once an older one is over."""


# --- hints, and what is kept for people ------------------------------------------------------------

MAX_DATA_BYTES = 256 * 1024
"""Bytes of the original that a dead letter keeps: as much as a proposal may have."""
MAX_HEADER_CHARS = 8 * 1024
"""Characters of its headers; JSON may make six of one, and all of it has to fit."""
MAX_DETAIL_CHARS = 512
"""Characters of a reason: one that names what a sender wrote must not grow with it."""


class DeadLetter(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A message that nobody could read or act on."""

    v: Literal[1] = 1
    at: int
    """UTC µs."""
    by: str
    """Whose dead-letter list it is in: who gave up on it."""
    code: str
    """Why, for programs."""
    detail: str
    """Why, in one sentence; nothing of what the message said."""
    subject: str
    sender: str = ""
    """By the broker's word; empty where the subject names none."""
    request: str = ""
    delivered: int = 1
    headers: Mapping[str, str] = {}
    data: str = ""
    """The original bytes, base64."""
    truncated: bool = False
    """True if some of the data or of the headers was too much to keep."""
    stream_seq: int = 0
    """The message's sequence in its stream, which `subject` tells; 0 in letters of older versions."""
    stored_at: int = 0
    """When it was stored there, UTC µs. Letters of a list that agree in all three are about one message."""

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
    """Return the dead letter for `data`; only the beginning of what is too long to keep."""
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
    """Return as many headers, from the first on, as there is room for."""
    kept, room = {}, MAX_HEADER_CHARS
    for name, value in headers.items():
        room -= len(name) + len(value)
        if room < 0:
            break
        kept[name] = value
    return kept


class NoticeError(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What was wrong with a message."""

    code: str
    detail: str


class Ended(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A turn is over, or its round was decided."""

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
    """SHA-256 (hex) of the message's bytes: with every `error`, and with `ended` that answers a submit."""


class LaneAnswer(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A guard's answer to what it was asked on the lane."""

    digest: str
    """SHA-256 (hex) of the bytes that it was asked."""
    decided: bool = False
    """True: the verdict is in the log. False: the message is to be stored in its sender's queue."""


class Card(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The last one published under an agent's name, by whichever instance started last."""

    v: Literal[1] = 1
    name: str
    version: str
    description: str = ""
    prompt_version: str = ""
    tools: tuple[Mapping[str, Any], ...] = ()
    """{name, description, effect} of each."""
    instance: str = ""
    model: str = ""
    """What drives it: `scripted`, a model's id, or empty."""
    no_rules: bool = False
    """Of an agent with a model: that it has no rules which could stand in for it."""
    forks: bool = False
    """True if its turns keep what a fork says about effects (`forked_from` of their work)."""


What = Literal["model", "tool"]


class LiveNote(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One thing that happened in a running turn. Whose it is, the subject says."""

    v: Literal[1]
    turn: str
    round: int
    n: int
    """Counts the notes of one run of a round, from 0; a gap means that some were lost."""
    at: int
    """UTC µs, by the agent's clock."""
    kind: Literal["began", "step", "text", "ended"]
    what: What | Literal[""] = ""
    """Of a step: what was called."""
    name: str = ""
    """Of a step: the tool's name, or the model's."""
    state: Literal["", "called", "returned", "failed"] = ""
    """Of a step. A tool's own no is `failed`, too."""
    text: str = ""
    """Of text: what the model has said since the note before."""
    again: bool = False
    """Of text: what this reply said before is void, because another model begins anew."""
    move: str = ""
    """Of an end: the move that was proposed."""
    to: str = ""
    """Of an end: whom the move names."""
    failed: str = ""
    """Of an end without a move: why, a code."""
