"""How a request ended, and the type of its answer."""

from typing import TYPE_CHECKING, Any, Generic, NamedTuple

from mesh.errors import MeshError
from protocol.views.timeline import named
from protocol.wire import events
from protocol.wire.ids import RequestId

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    A = TypeVar("A", default=Any)  # so that `Outcome` alone is one of any answer
else:
    from typing import TypeVar

    A = TypeVar("A")


class Requested(str, Generic[A]):
    """For type checkers: the id of a request whose answer is an `A`. It is a `RequestId` when it runs."""


class Outcome(NamedTuple, Generic[A]):
    """How a request ended."""

    request: RequestId
    status: str
    """`completed`, `refused`, `failed`, `expired` or `cancelled`."""
    event: events.AnyEvent
    """The last event."""
    answer: A = None  # type: ignore[assignment]  # so that a completed request's needs no check for None
    """The answer of a completed request, as the type that was asked for; None for every other end."""

    @property
    def reason(self) -> str:
        """Why a request has no answer, in one line; empty if it has an answer."""
        match self.event:
            case events.RequestRefused(refusal=refusal):
                return f"{refusal.rule}: {refusal.detail}"
            case events.RequestFailed(code=code, reason=reason):
                return f"{code}: {reason}" if reason else code
            case events.RequestCancelled(by=by, sender=sender, reason=reason):
                return f"cancelled by {named(by, sender)}" + (f": {reason}" if reason else "")
            case events.RequestExpired():
                return "the request's deadline passed"
        return ""


class AnswerInvalid(MeshError, code="client.answer_invalid"):
    """A completed request's answer is not of its `answer_type`; `outcome` has it as it is."""

    def __init__(self, outcome: Outcome, mistakes: tuple[str, ...]) -> None:
        super().__init__(f"{outcome.request}: the answer does not fit: {'; '.join(mistakes)}")
        self.outcome, self.mistakes = outcome, mistakes


def outcome_of(event: events.Ended) -> Outcome:
    """Return what a request's last event says."""
    answer = event.answer if isinstance(event, events.RequestCompleted) else None
    return Outcome(event.request, events.type_of(event).partition(".")[2], event, answer)
