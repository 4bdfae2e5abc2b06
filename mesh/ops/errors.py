"""What commands raise by themselves.

MeshError
├── UsageWrong        what was asked for makes no sense; exit status 2
├── NotFound          there is no such request, event, message …; exit status 1
├── Impossible        it is there, and as things stand this cannot be done to it; exit status 1
└── ControlRefused    the guard did not do what a person asked; exit status 3
"""

from typing import ClassVar

from protocol.wire.errors import MeshError


class UsageWrong(MeshError):
    """The arguments make no sense together, or name something that is not there."""

    code: ClassVar[str] = "cli.usage"


class NotFound(MeshError):
    """What was asked for by name or number is not in the mesh."""

    code: ClassVar[str] = "cli.not_found"


class Impossible(MeshError):
    """What was asked for cannot be done as things stand; the text says why, and what can be."""

    code: ClassVar[str] = "cli.impossible"


class ControlRefused(MeshError):
    """A control message was not obeyed; `reason` is the notice's code."""

    code: ClassVar[str] = "cli.refused"

    def __init__(self, request: str, reason: str, detail: str = "") -> None:
        super().__init__(f"{request}: {reason}" + (f": {detail}" if detail else ""))
        self.reason = reason
