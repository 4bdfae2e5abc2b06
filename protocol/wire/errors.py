"""Errors of the wire contract. Their `code` is part of the API; their text is not.

    MeshError
    ├── ProtocolError            a peer's bytes
    │   ├── Malformed            a message that cannot be read
    │   ├── UnknownEvent         an event type or form that this build does not know
    │   │   └── OldForm          an event of a form that this build no longer reads
    │   └── BrokenLog            an event that cannot follow those before it
    └── (mesh.errors adds the errors of the bus and of the runtime)

A refusal by policy is an event, not an exception. A caller's mistake is a ValueError.
"""

from typing import ClassVar


class MeshError(Exception):
    """Root of every error that this project raises on purpose.

    A subclass gives its code as a class argument: `class Late(MeshError, code="bus.late")`.
    """

    code: ClassVar[str] = "mesh.error"

    def __init_subclass__(cls, *, code: str | None = None) -> None:
        super().__init_subclass__()
        if code is not None:
            cls.code = code


class ProtocolError(MeshError, code="protocol.error"):
    """Bytes from a peer that break the contract."""


class Malformed(ProtocolError, code="protocol.malformed"):
    """A message that cannot be read. `str(error)` names the place, never the content."""


class UnknownEvent(ProtocolError, code="protocol.unknown_event"):
    """An event of a type or form that this build does not know. Guards fail closed on it."""

    def __init__(self, type_: str, version: object) -> None:
        super().__init__(f"unknown event {type_!r}, version {version!r}")
        self.type = type_
        self.version = version


class OldForm(UnknownEvent, code="protocol.old_form"):
    """An event of a form that an earlier build wrote and this build no longer reads.

    Args:
        version: the event's `v`.
        read: the oldest form that this build reads.
    """

    def __init__(self, type_: str, version: int, read: int) -> None:
        super().__init__(type_, version)
        self.args = (
            f"the log has events of form {version}, of an earlier build; this build reads form {read} on. "
            "Read it with the build that wrote it, and give this one a new store",
        )


class BrokenLog(ProtocolError, code="protocol.broken_log"):
    """Events that do not follow from each other: some are missing, or were not written by a guard."""
