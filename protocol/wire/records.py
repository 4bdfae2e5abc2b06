"""Records beside the log: the steps of a turn in its agent's journal, and what a conversation remembers.

Names of steps: `<round>-<n>` holds a value, or the intent of an effect, whose result is `<round>-<n>d`.
A conversation has a record a fact, at `mesh.mem.<client>.<conversation>.<key>`, which guards alone write. The
newest one of a key counts.
"""

from typing import Any, Final, Literal

import msgspec

from protocol.wire.commands import Usage
from protocol.wire.handoff import Fact
from protocol.wire.prices import Moment

DONE = "d"
"""Behind the name of an effect's intent, it names the effect's result."""

FENCE = "fence"
"""The kind of the record by which a later round closes an earlier one."""


class Refused(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A tool's recorded no."""

    code: str
    message: str


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


def memory_limit(max_handoff_bytes: int) -> int:
    """Return how many bytes a conversation may remember: half a handoff, so that a request has the rest."""
    return min(max_handoff_bytes // 2, MOST_BYTES)


class MemoryRecord(msgspec.Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """One fact of a conversation, or that it is forgotten."""

    v: Literal[1] = 1
    conversation: str
    key: str = ""
    """Empty in the record that all earlier facts of the conversation are forgotten."""
    fact: Fact | None = None
    """None: it is forgotten."""
    at: Moment
    """UTC µs of the answer that it came with, or at which the order to forget it was stored."""
    request: str = ""
    """The request that ended with it; empty where it was forgotten."""
    by: str = ""
    """Who had it forgotten: the person's name, else the sender."""
    control: str = ""
    """The id of the order to forget it."""
