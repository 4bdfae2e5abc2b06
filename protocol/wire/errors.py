"""Errors of the wire contract. Their `code` is API; their text is not.

    MeshError
    ├── ProtocolError            somebody else's bytes
    │   ├── Malformed            cannot be read as what it should be
    │   ├── UnknownEvent         an event type or version that this build does not know
    │   └── BrokenLog            an event that cannot follow those before it
    └── (mesh.errors adds those of the bus and of the runtime)

A refusal by policy is an event, not an exception; misuse by our own caller is a ValueError.
"""

from typing import ClassVar


class MeshError(Exception):
    """Root of every error that this project raises on purpose."""

    code: ClassVar[str] = "mesh.error"


class ProtocolError(MeshError):
    """Bytes from a peer that do not follow the contract."""

    code: ClassVar[str] = "protocol.error"


class Malformed(ProtocolError):
    """A message that cannot be read; `str(error)` says where, never what it held."""

    code: ClassVar[str] = "protocol.malformed"


class UnknownEvent(ProtocolError):
    """An event of a type or version that this build does not know; the guard fails closed on it."""

    code: ClassVar[str] = "protocol.unknown_event"

    def __init__(self, type_: str, version: object) -> None:
        super().__init__(f"unknown event {type_!r}, version {version!r}")
        self.type = type_
        self.version = version


class BrokenLog(ProtocolError):
    """Events that do not follow one from the other: some are missing, or no guard wrote them."""

    code: ClassVar[str] = "protocol.broken_log"
