"""What A2A calls things: the card of a fleet, tasks of requests, submits of messages. Nothing here waits.

A2A's numbers are doubles. Whole numbers that come in one become whole numbers again. An answer that would not
come out as it went in goes as JSON text, as does a question's schema.
"""

from collections.abc import Iterator
from typing import Any

import msgspec
from a2a.types.a2a_pb2 import (
    AgentCard,
    Artifact,
    Message,
    Part,
    Role,
    Task,
    TaskArtifactUpdateEvent,
    TaskStatus,
    TaskStatusUpdateEvent,
)
from a2a.utils.constants import PROTOCOL_VERSION_1_0, TransportProtocol
from a2a.utils.errors import ContentTypeNotSupportedError, InvalidParamsError
from google.protobuf.json_format import MessageToDict, ParseDict, ParseError
from google.protobuf.message import Error as WireError
from google.protobuf.struct_pb2 import Value

from mesh.client import AgentNote
from mesh.gateway.documents import NewRequest, QuestionDocument, RequestDocument
from protocol.wire.commands import Submit
from protocol.wire.config import Fleet
from protocol.wire.handoff import Artifact as ArtifactReference
from protocol.wire.ids import derive

JSON = "application/json"
_MODES = ["text/plain", JSON]
_EXACT = 2**53
"""Whole numbers up to here are exact in a double."""
_STATES = {
    "open": "TASK_STATE_WORKING",
    "asks": "TASK_STATE_INPUT_REQUIRED",
    "completed": "TASK_STATE_COMPLETED",
    "refused": "TASK_STATE_REJECTED",
    "rejected": "TASK_STATE_REJECTED",
    "failed": "TASK_STATE_FAILED",
    "expired": "TASK_STATE_FAILED",
    "cancelled": "TASK_STATE_CANCELED",
    "unheard": "TASK_STATE_SUBMITTED",
}
"""By a request's status."""
_SAID = ("to", "intent", "policy")
"""Fields of a submit that a message's metadata may have."""


# --- the card -------------------------------------------------------------------------------------


def agent_card(fleet: Fleet, url: str, version: str) -> AgentCard:
    """Return the card of a fleet: one agent, whose skills are the intents that its agents take.

    Args:
        url: where JSON-RPC is answered.
        version: of the software that answers.
    """
    entry = fleet.agents.get(fleet.entry)
    about = entry.description if entry is not None and entry.description else "it takes any request"
    skills = [{"id": "any", "name": "any request", "description": about, "tags": [str(fleet.entry)]}]
    takers: dict[str, list[str]] = {}
    for name, agent in fleet.agents.items():
        for intent in agent.intents or ():
            takers.setdefault(intent, []).append(name)
    for intent, names in sorted(takers.items()):
        told = [fleet.agents[name].description for name in names if fleet.agents[name].description]
        text = "; ".join(told) or f"work of the kind {intent}"
        skills.append({"id": intent, "name": intent, "description": text, "tags": names})
    card = {
        "name": fleet.name,
        "description": f"A mesh of agents: {about}",
        "version": version,
        "supportedInterfaces": [
            {
                "url": url,
                "protocolBinding": TransportProtocol.JSONRPC.value,
                "protocolVersion": PROTOCOL_VERSION_1_0,
            }
        ],
        "capabilities": {"streaming": True, "pushNotifications": False, "extendedAgentCard": False},
        "securitySchemes": {"token": {"httpAuthSecurityScheme": {"scheme": "bearer"}}},
        "securityRequirements": [{"schemes": {"token": {"list": []}}}],
        "defaultInputModes": _MODES,
        "defaultOutputModes": _MODES,
        "skills": skills,
    }
    made: AgentCard = ParseDict(card, AgentCard())
    return made


# --- what comes in --------------------------------------------------------------------------------


def context_of(client: str, message: Message) -> str:
    """Return the context of a new task: the message's, or one that follows from the message's id."""
    return message.context_id or derive("a2a", client, message.message_id)


def submit_of(message: Message, context: str) -> Submit:
    """Return the submit of a message that begins a task; its context is the conversation.

    Text is the request's text, an object becomes facts by key, a URL becomes an artifact. Raises Malformed,
    and A2AError for a part that cannot be taken.
    """
    facts, artifacts = dict[str, Any](), list[ArtifactReference]()
    for n, part in enumerate(_parts(message)):
        if part.WhichOneof("content") == "url":
            name = part.filename or f"part-{n}"
            artifacts.append(ArtifactReference(name=name, uri=part.url, media_type=part.media_type))
        elif part.WhichOneof("content") == "data":
            data = _plain(MessageToDict(part.data))
            if not isinstance(data, dict):
                raise InvalidParamsError(f"parts[{n}]: data of a new task is an object, its keys are facts")
            facts |= data
    said = _plain(MessageToDict(message.metadata))
    wanted = {name: said[name] for name in _SAID if name in said}
    if wrong := [name for name, value in wanted.items() if not isinstance(value, str)]:
        raise InvalidParamsError(f"metadata: {', '.join(wrong)} is text")
    return NewRequest(
        text=_text(message), facts=facts, artifacts=tuple(artifacts), conversation=context, **wanted
    ).submit()


def replies_in(message: Message) -> Iterator[Any]:
    """Yield what a message may mean as the reply to a question, the likeliest first.

    Data is the value itself. Text is text, and, should the question not take text, the JSON in it.
    """
    parts = _parts(message)
    data = [part for part in parts if part.WhichOneof("content") == "data"]
    if data and len(parts) > 1:
        raise InvalidParamsError("a reply is text, or one part of data")
    if data:
        yield _plain(MessageToDict(data[0].data))
        return
    if not (text := _text(message)):
        raise InvalidParamsError("a reply is text, or one part of data")
    yield text
    try:
        yield msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError, UnicodeEncodeError):
        return


def number_in(message: Message) -> int | None:
    """Return the number of the question that a message says it replies to. Raises InvalidParamsError."""
    said: Any = _plain(MessageToDict(message.metadata)).get("n")
    if said is not None and (isinstance(said, bool) or not isinstance(said, int)):
        raise InvalidParamsError("metadata: n is the number of a question")
    number: int | None = said
    return number


def _parts(message: Message) -> list[Part]:
    if message.role != Role.ROLE_USER:
        raise InvalidParamsError("a client's message has the role ROLE_USER")
    for n, part in enumerate(message.parts):
        if part.WhichOneof("content") == "raw":
            raise ContentTypeNotSupportedError(f"parts[{n}]: bytes are not taken; send the URL of the data")
        if part.WhichOneof("content") is None:
            raise InvalidParamsError(f"parts[{n}] has no content")
    return list(message.parts)


def _text(message: Message) -> str:
    return "\n".join(part.text for part in message.parts if part.WhichOneof("content") == "text")


def _plain(value: Any) -> Any:
    """Return JSON whose doubles are whole numbers where they say so."""
    match value:
        case float() if value.is_integer() and abs(value) <= _EXACT:
            return int(value)
        case dict():
            return {key: _plain(each) for key, each in value.items()}
        case list():
            return [_plain(each) for each in value]
    return value


# --- what goes out --------------------------------------------------------------------------------


def task_of(document: RequestDocument, context: str) -> Task:
    """Return a request as a task."""
    task = Task(id=document.request, context_id=context, status=_status(document, context))
    if document.status == "completed":
        task.artifacts.append(_answer(document))
    usage = msgspec.to_builtins(document.usage)
    told = {"agent": document.agent, "path": list(document.path), "usage": usage}
    ParseDict({name: value for name, value in told.items() if value}, task.metadata)
    return task


def status_update(document: RequestDocument, context: str) -> TaskStatusUpdateEvent:
    """Return how a request stands now, as news of its task."""
    return TaskStatusUpdateEvent(
        task_id=document.request, context_id=context, status=_status(document, context)
    )


def answer_update(document: RequestDocument, context: str) -> TaskArtifactUpdateEvent:
    """Return the answer of a completed request as news of its task."""
    return TaskArtifactUpdateEvent(
        task_id=document.request, context_id=context, artifact=_answer(document), last_chunk=True
    )


def note_update(request: str, heard: AgentNote, context: str) -> TaskStatusUpdateEvent:
    """Return a live note as news of a task at work: words as text, anything else as data."""
    note = msgspec.to_builtins(heard.note)
    part = {"text": heard.note.text} if heard.note.kind == "text" else {"data": note}
    message = {
        "messageId": f"{request}.{heard.note.turn}.{heard.note.round}.{heard.note.n}",
        "contextId": context,
        "taskId": request,
        "role": "ROLE_AGENT",
        "parts": [part],
        "metadata": {"agent": heard.agent, "again": heard.note.again},
    }
    status = {"state": _STATES["open"], "message": message}
    news = {"taskId": request, "contextId": context, "status": status}
    made: TaskStatusUpdateEvent = ParseDict(news, TaskStatusUpdateEvent())
    return made


def _status(document: RequestDocument, context: str) -> TaskStatus:
    status: dict[str, Any] = {"state": _STATES[document.status]}
    message = {"contextId": context, "taskId": document.request, "role": "ROLE_AGENT"}
    if document.questions:
        status["message"] = message | _asked(document.request, document.questions[0])
    elif document.reason:
        reason = {"messageId": f"{document.request}.{document.n}", "parts": [{"text": document.reason}]}
        status["message"] = message | reason
    made: TaskStatus = ParseDict(status, TaskStatus())
    if document.at:
        made.timestamp.FromMicroseconds(document.at)
    return made


def _asked(request: str, question: QuestionDocument) -> dict[str, Any]:
    """Return the fields of a message that asks: the question as text, and its schema and number beside it."""
    beside: dict[str, Any] = {"n": question.n, "agent": question.agent, "expiresAt": question.expires_at}
    if question.schema is not None:
        schema = msgspec.to_builtins(question.schema)
        beside["schema"] = schema if _goes(schema) else _as_json(schema)
    return {
        "messageId": f"{request}.{question.n}",
        "parts": [{"text": question.question}],
        "metadata": beside,
    }


def _answer(document: RequestDocument) -> Artifact:
    answer = document.answer
    artifact = Artifact(artifact_id=f"{document.request}.answer", name="answer")
    if isinstance(answer, str):
        artifact.parts.append(Part(text=answer, media_type="text/plain"))
        return artifact
    if _goes(answer):
        ParseDict(answer, (part := Part(media_type=JSON)).data)
    else:
        part = Part(text=_as_json(answer), media_type=JSON)
    artifact.parts.append(part)
    return artifact


def _goes(value: Any) -> bool:
    """Return True if JSON comes out of A2A's data as it went in, with room for what is around it."""
    around, data = [[[[value]]]], Value()
    try:
        ParseDict(around, data)
        read = Value.FromString(data.SerializeToString())  # its limit is another than that of JSON
        return bool(_plain(MessageToDict(read)) == around)
    except (WireError, ParseError, ValueError, OverflowError):  # too deep, or a number beyond doubles
        return False


def _as_json(value: Any) -> str:
    return msgspec.json.encode(value).decode()
