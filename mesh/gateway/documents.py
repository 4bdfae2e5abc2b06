"""What callers send, and what they get: the JSON documents of the gateway."""

from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from mesh.client import Outcome, Question, SubmitRejected
from mesh.client.follow import outcome_of
from protocol.wire import codec, events
from protocol.wire.commands import Submit, Usage
from protocol.wire.errors import Malformed
from protocol.wire.handoff import Artifact, Constraints, Fact
from protocol.wire.ids import AgentName, ContinueWith, RequestId
from protocol.wire.prices import READ_ERRORS

MOST_REASON = 1_000
"""Characters of a reason or a name."""


class NewRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The body of `POST /requests`."""

    text: str
    to: str | None = None
    """The first agent; by default the fleet's entry agent."""
    intent: str | None = None
    facts: dict[str, Any] | list[Fact] = {}
    """Values by key, or facts with labels."""
    artifacts: tuple[Artifact, ...] = ()
    constraints: Constraints = Constraints()
    policy: str = "default"
    conversation: str | None = None
    continue_with: ContinueWith | None = None
    rerun_of: str | None = None

    def submit(self) -> Submit:
        """Return it as the mesh takes it. Raises Malformed, which names the place."""
        given = self.facts
        facts = [Fact(key=k, value=v) for k, v in given.items()] if isinstance(given, dict) else given
        try:
            body = codec.encode_whole(
                Submit(
                    text=self.text,
                    to=None if self.to is None else AgentName(self.to),
                    intent=self.intent,
                    facts=tuple(facts),
                    artifacts=self.artifacts,
                    constraints=self.constraints,
                    policy=self.policy,
                    conversation=self.conversation,
                    continue_with=self.continue_with,
                    rerun_of=None if self.rerun_of is None else RequestId(self.rerun_of),
                )
            )
        except codec.UNWRITABLE as wrong:
            raise Malformed("submit: it holds a number that JSON cannot carry") from wrong
        return codec.parse_submit(body)


class ReplyDocument(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The body of `POST /requests/ID/reply`."""

    value: Any
    n: int
    """The question's number. So a repeated reply never answers the next question."""
    by: str = ""
    """The name of the person who answers, for the record."""


class CancelDocument(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The body of `POST /requests/ID/cancel`."""

    reason: str = ""
    by: str = ""


class QuestionDocument(msgspec.Struct, frozen=True, kw_only=True):
    """An open question to the client."""

    n: int
    """Its number; unique within the request."""
    agent: str
    """The agent that asks."""
    question: str
    schema: Mapping[str, Any] | None
    """JSON Schema of the answer; null if any will do."""
    expires_at: int
    """UTC µs."""


RequestStatus = Literal[
    "open", "asks", "completed", "refused", "failed", "expired", "cancelled", "rejected", "unheard"
]
"""`open`: agents work on it. `asks`: questions wait for a reply. `rejected`: the guard did not take the
submit. `unheard`: nothing has come for the client yet, and this gateway did not submit it: it may be at work,
or there is no such request. The others are ends."""


class RequestDocument(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How a request stands, as far as its client may know."""

    request: str
    status: RequestStatus
    answer: Any = msgspec.UNSET
    """Only of a completed request."""
    reason: str = ""
    """Why there is no answer."""
    agent: str = ""
    """The agent that answered or gave up."""
    n: int = -1
    """The number of the last event."""
    at: int = 0
    """UTC µs of the end."""
    questions: tuple[QuestionDocument, ...] = ()
    usage: Usage | None = None
    """What it was charged, if its policy tells clients."""
    path: tuple[str, ...] = ()
    """The agents that had it, if its policy tells clients."""


def question_document(question: Question) -> QuestionDocument:
    return QuestionDocument(
        n=question.n,
        agent=question.agent,
        question=question.question,
        schema=question.schema,
        expires_at=question.expires_at,
    )


def ended_document(outcome: Outcome) -> RequestDocument:
    status: Any = outcome.status
    return RequestDocument(
        request=outcome.request,
        status=status,
        answer=outcome.answer if status == "completed" else msgspec.UNSET,
        reason=outcome.reason,
        agent=outcome.agent,
        n=outcome.event.n,
        at=outcome.event.at,
        usage=outcome.usage,
        path=outcome.path,
    )


def rejected_document(request: str, rejected: SubmitRejected) -> RequestDocument:
    reason = f"{rejected.reason}: {rejected.detail}"
    return RequestDocument(request=request, status="rejected", reason=reason)


def document_of(
    request: str, event: events.AnyEvent | None, questions: tuple[Question, ...], *, is_known: bool
) -> RequestDocument:
    """Return how a request stands.

    Args:
        event: the newest event that is addressed to the client.
        is_known: True if it is certain that there is such a request.
    """
    if isinstance(event, events.Ended):
        return ended_document(outcome_of(event))
    if questions:
        shown = tuple(map(question_document, questions))
        return RequestDocument(request=request, status="asks", questions=shown)
    return RequestDocument(request=request, status="open" if event or is_known else "unheard")


def read_document(body: bytes, kind: type[Any]) -> Any:
    """Return the document in a body. Raises Malformed, which names the place, and ValueError for no JSON."""
    try:
        document = msgspec.json.decode(body, type=kind)
    except msgspec.ValidationError as wrong:
        raise Malformed(str(wrong)) from wrong
    except READ_ERRORS as wrong:
        raise ValueError("the body is not JSON") from wrong
    for name in ("reason", "by"):
        if len(getattr(document, name, "")) > MOST_REASON:
            raise Malformed(f"`{name}` has {MOST_REASON:,} characters at most - at `$.{name}`")
    return document
