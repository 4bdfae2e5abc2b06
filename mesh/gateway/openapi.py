"""The gateway's OpenAPI document (3.1). Its schemas come from the documents that are read and written."""

from typing import Any

import msgspec

from mesh.gateway.documents import (
    CancelDocument,
    NewRequest,
    QuestionDocument,
    ReplyDocument,
    RequestDocument,
)
from mesh.gateway.problems import PROBLEM_JSON, ProblemDocument

_REF = "#/components/schemas/{name}"
_SHOWN = (NewRequest, ReplyDocument, CancelDocument, RequestDocument, QuestionDocument, ProblemDocument)


def _schemas() -> dict[str, Any]:
    return msgspec.json.schema_components(_SHOWN, ref_template=_REF)[1]


def _ref(kind: type) -> dict[str, Any]:
    return {"$ref": _REF.format(name=kind.__name__)}


def _body(kind: type, *, required: bool = True) -> dict[str, Any]:
    return {"required": required, "content": {"application/json": {"schema": _ref(kind)}}}


def _answers(status: int, what: str, schema: dict[str, Any] | None, *problems: int) -> dict[str, Any]:
    """Return the answers of an operation; each may also refuse the token, its rate, or find no bus."""
    content = {} if schema is None else {"content": {"application/json": {"schema": schema}}}
    named = sorted({401, 429, 500, 503, *problems})
    problem = {"$ref": "#/components/responses/Problem"}
    return {str(status): {"description": what, **content}, **{str(each): problem for each in named}}


_STORED = {"type": "object", "properties": {"request": {"type": "string"}}, "required": ["request"]}
_ID = {"name": "request", "in": "path", "required": True, "schema": {"type": "string"}}


def _header(name: str, what: str) -> dict[str, Any]:
    return {"name": name, "in": "header", "description": what, "schema": {"type": "string"}}


_STREAM = {
    "description": (
        "Server-sent events: `note`, a live note of a running turn (some may be lost); `question`, a "
        "QuestionDocument; `ended`, a RequestDocument; `rejected`, a ProblemDocument. The last two end it."
    ),
    "content": {"text/event-stream": {"schema": {"type": "string"}}},
}
_PATHS: dict[str, Any] = {
    "/requests": {
        "post": {
            "operationId": "submit",
            "summary": "Submit a request.",
            "parameters": [
                _header("Idempotency-Key", "The same key with the same content is the same request.")
            ],
            "requestBody": _body(NewRequest),
            "responses": _answers(202, "It is stored.", _ref(RequestDocument), 400, 403, 409, 413, 415, 422),
        }
    },
    "/requests/{request}": {
        "parameters": [_ID],
        "get": {
            "operationId": "look",
            "summary": "How a request stands.",
            "responses": _answers(200, "Its state.", _ref(RequestDocument), 404),
        },
    },
    "/requests/{request}/events": {
        "parameters": [_ID],
        "get": {
            "operationId": "follow",
            "summary": "What happens in a request, until its end.",
            "parameters": [_header("Last-Event-ID", "The newest id that was seen.")],
            "responses": _answers(204, "The reader has seen the end.", None, 400, 404) | {"200": _STREAM},
        },
    },
    "/requests/{request}/reply": {
        "parameters": [_ID],
        "post": {
            "operationId": "reply",
            "summary": "Answer a question.",
            "requestBody": _body(ReplyDocument),
            "responses": _answers(202, "It is stored.", _STORED, 400, 404, 409, 413, 415, 422),
        },
    },
    "/requests/{request}/cancel": {
        "parameters": [_ID],
        "post": {
            "operationId": "cancel",
            "summary": "Give a request up.",
            "requestBody": _body(CancelDocument, required=False),
            "responses": _answers(202, "It is stored.", _STORED, 400, 404, 409, 413, 415, 422),
        },
    },
}

DOCUMENT: bytes = msgspec.json.encode(
    {
        "openapi": "3.1.0",
        "info": {
            "title": "Handoff Mesh gateway",
            "version": "1",
            "description": "Requests of a mesh of agents: submit, follow, reply, cancel.",
        },
        "security": [{"token": []}],
        "paths": _PATHS,
        "components": {
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
            "schemas": _schemas(),
            "responses": {
                "Problem": {
                    "description": "It was not done: why, and what to do (RFC 9457).",
                    "content": {PROBLEM_JSON: {"schema": _ref(ProblemDocument)}},
                }
            },
        },
    }
)
