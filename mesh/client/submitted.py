"""What a client remembers of the requests that it submitted: what it sent, and what came back of it.

A guard that cannot process a message at all tells its sender in a notice, which names the message by the
digest of its bytes. A request may be submitted more than once, also by other clients of the same name.
"""

from typing import Any, TypeVar

from mesh.agent.values import Unfit, read_as
from mesh.client.follow import AnswerInvalid, Outcome
from mesh.errors import MeshError
from mesh.service.logs import get_logger
from protocol.wire.records import Notice

_log = get_logger(__name__)
T = TypeVar("T")

_REMEMBERED = 10_000
"""Submits and rejections that a client remembers; the oldest are forgotten first."""


class SubmitRejected(MeshError, code="client.rejected"):
    """The guard could not process the message at all. `reason` is the notice's code."""

    def __init__(self, request: str, reason: str, detail: str) -> None:
        super().__init__(f"{request}: {reason}: {detail}")
        self.request = request
        self.reason = reason
        self.detail = detail


class Submitted:
    """The submits of one client object, by request."""

    def __init__(self) -> None:
        self._digests: dict[str, set[str]] = {}
        """Of the submits that were sent under an id."""
        self._rejections: dict[str, list[tuple[str, SubmitRejected]]] = {}
        """The notice of a message that the guard could not process, with the digest of its bytes."""
        self._silent: dict[str, bool] = {}
        """Requests about which nothing has been received: they cannot have an answer yet."""
        self._answer_types: dict[str, Any] = {}
        """The type of an answer, if its submit named one."""

    def __contains__(self, request: object) -> bool:
        """Return True if a request was submitted, as far as this remembers."""
        return request in self._digests

    def add(self, request: str, digest: str, answer_type: Any) -> None:
        """Note a submit that is about to be sent."""
        if answer_type is not None:
            _remember(self._answer_types, request, answer_type)
        _remember(self._digests, request, set()).add(digest)
        # A quota has room again: what it rejected may be taken now.
        told = self._rejections.get(request, [])
        told[:] = [each for each in told if (each[0], each[1].reason) != (digest, "over_quota")]

    def expect(self, request: str) -> None:
        """Note that nothing can have come yet: its id is new."""
        _remember(self._silent, request, True)

    def hear(self, request: str) -> None:
        """Note that something came about a request."""
        self._silent.pop(request, None)

    def take_silent(self, request: str) -> bool:
        """Return True if nothing has come about a new request: there is nothing to read. Only once."""
        return self._silent.pop(request, False)

    def take(self, notice: Notice) -> bool:
        """Take a guard's notice; return True if it is a rejection."""
        if notice.error is None:
            return False
        _log.warning("notice", request=notice.request, code=notice.error.code, detail=notice.error.detail)
        rejected = SubmitRejected(notice.request, notice.error.code, notice.error.detail)
        self.hear(notice.request)
        _remember(self._rejections, notice.request, []).append((notice.digest, rejected))
        return True

    def rejection(self, request: str) -> SubmitRejected | None:
        """Return the guard's rejection of our own submit, if a notice of it has come."""
        own = self._digests.get(request, set())
        return next((each for digest, each in self._rejections.get(request, ()) if digest in own), None)

    def raise_if_rejected(self, request: str, *, answered: bool) -> None:
        """Raise the guard's rejection of our own submit.

        A notice about another submit under the same id, or about a rejected control message, is not about
        ours. For a request that was submitted elsewhere, a notice is believed as long as nothing else is
        known.
        """
        own = self._digests.get(request)
        for digest, rejected in self._rejections.get(request, ()):
            if (own is None and not answered) or (own is not None and digest in own):
                raise rejected

    def as_asked(self, outcome: Outcome) -> Outcome:
        """Return an outcome with its answer converted to the submit's `answer_type`. Raises AnswerInvalid."""
        kind = self._answer_types.get(outcome.request)
        if kind is None or outcome.status != "completed":
            return outcome
        try:
            return outcome._replace(answer=read_as(kind, outcome.answer))
        except Unfit as wrong:
            raise AnswerInvalid(outcome, wrong.mistakes) from wrong


def _remember(known: dict[str, T], request: str, empty: T) -> T:
    """Return the entry of a request; if there is none, keep and return `empty`."""
    if request not in known and len(known) >= _REMEMBERED:
        known.pop(next(iter(known)))
    return known.setdefault(request, empty)
