"""Records: what one step of a journal looks like as it is stored."""

import inspect
from typing import Any

import msgspec

from protocol.wire.commands import Usage

DONE = "d"
"""Behind the name of an effect's intent, it names the effect's result."""

Call = tuple[str, str, str]
"""(kind, name, digest of the arguments): what makes two steps equal."""


class Recorded(Exception):
    """A no that is an outcome: it is journaled, and said again when the step is replayed.

    Args:
        begun: whether it is the tool's own no. If nothing was run, it says nothing of an earlier attempt.
    """

    def __init__(self, reason: str, message: str, *, begun: bool = True) -> None:
        super().__init__(message)
        self.reason, self.begun = reason, begun


class Refused(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A tool's recorded no."""

    code: str
    message: str


class Record(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One step as it is stored. Fields are only ever added, at the end and with a default."""

    v: int = 1
    kind: str
    """`call`, `effect`, `intent`, `model`, `remark`, `now`, `random` or `fence`."""
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


def decode(body: bytes) -> Record:
    return _RECORD.decode(body)


def value_of(record: Record) -> Any:
    """Return what a step came to. Raises Recorded where that was a no."""
    if record.error is not None:
        raise Recorded(record.error.code, record.error.message)
    return record.value


def place_of(name: str) -> int:
    """Return the number of a step within its round."""
    return int(name.partition("-")[2].removesuffix(DONE))


def as_json(value: Any) -> Any:
    """Return what JSON makes of an object that it does not know. Raises TypeError for what is no value."""
    dump = getattr(value, "model_dump", None)  # a pydantic model
    if dump is not None:
        return dump(mode="json")
    if inspect.isawaitable(value) or inspect.isgenerator(value) or inspect.isasyncgen(value):
        raise TypeError(f"a {type(value).__name__} is no result")
    return str(value)
