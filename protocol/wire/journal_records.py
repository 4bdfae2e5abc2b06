"""Step records: what an agent's journal holds of a turn, one record a step.

Names of steps: `<round>-<n>` holds a value, or the intent of an effect, whose result is `<round>-<n>d`.
"""

from typing import Any

import msgspec

from protocol.wire.commands import Usage

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
