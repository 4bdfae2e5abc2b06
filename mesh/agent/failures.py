"""What a handler raises to say how it failed. Anything else that it raises is a bug, and says so."""

from typing import ClassVar

from mesh.errors import MeshError
from protocol.wire.commands import Failure


class TurnError(MeshError):
    """Root of what a handler may raise. `str(error)` goes on the bus: keep it a safe sentence."""

    code: ClassVar[str] = "turn.error"
    permanent = False
    """Whether no further round can help."""


class Retry(TurnError):
    """This round failed and the next may not: the guard tries again, with backoff.

    Args:
        after_s: not before so many seconds; the guard's own backoff if None.
    """

    code: ClassVar[str] = "retry"

    def __init__(self, message: str = "", *, after_s: float | None = None) -> None:
        super().__init__(message)
        self.after_s = after_s


class Permanent(TurnError):
    """No further round can help: the turn escalates at once."""

    code: ClassVar[str] = "permanent"
    permanent = True


class ActionNotAllowed(Permanent):
    """The turn's constraints do not allow this tool."""

    code: ClassVar[str] = "action_not_allowed"


class EffectUnknown(TurnError):
    """A tool raises it of its own effect: it was asked for, and nobody answered whether it happened.

    An effect that can be run again, or asked about, is: in the next round. Any other is in doubt.
    """

    code: ClassVar[str] = "effect_unknown"


class Superseded(TurnError):
    """The turn was ended by somebody else; there is nothing left to propose."""

    code: ClassVar[str] = "superseded"


def failure_of(error: BaseException) -> Failure:
    """Return a failure as it goes on the bus: a code and a safe sentence, never a repr."""
    match error:
        case Retry(after_s=after_s):
            return Failure(code=error.code, message=str(error), retry_after_s=after_s)
        case TurnError(permanent=permanent):
            return Failure(code=error.code, message=str(error), permanent=permanent)
        case MeshError():
            return Failure(code=error.code, message="the runtime could not go on")
    return Failure(code="bug", message=f"the handler raised {type(error).__name__}")
