"""The routes: submit, look, follow, reply, cancel. Each caller sees the requests of its own client alone."""

import contextlib
from collections.abc import AsyncGenerator, Mapping
from typing import TYPE_CHECKING, Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from mesh.client import AgentNote, Client, Outcome, Question, SubmitRejected
from mesh.errors import BusError
from mesh.gateway.documents import (
    CancelDocument,
    NewRequest,
    ReplyDocument,
    RequestDocument,
    document_of,
    ended_document,
    question_document,
    read_document,
    rejected_document,
)
from mesh.gateway.problems import Problem, problem_of
from mesh.gateway.tokens import TokenEntry
from mesh.web.bodies import BodyCutShort, BodyTooLarge, read_body
from mesh.web.streams import BEAT, CountedStream, server_sent, with_beats
from protocol.wire import codec, events
from protocol.wire.errors import Malformed
from protocol.wire.ids import RequestId, is_request_id, submitter_of

if TYPE_CHECKING:
    from mesh.gateway.server import Gateway

KEY = "idempotency-key"
MOST_KEY = 255
"""Characters of a caller's key."""
LAST_SEEN = "last-event-id"
_AGAIN_MS = 1_000
"""How long a reader waits before it comes back."""


def routes(gateway: "Gateway") -> list[Route]:
    """Return the routes about requests."""

    async def submit(request: Request) -> Response:
        token, client = await _caller(gateway, request)
        key = _key_of(request.headers.getlist(KEY))
        wanted = (await _document(request, token, NewRequest)).submit()
        name = client.new_id()
        if key is None:
            await gateway.keep_new(token, name)
        else:
            digest = codec.body_digest(codec.encode_whole(wanted))
            name, kept, _ = await gateway.keep(token, key, digest)
            if kept != digest:
                raise Problem(
                    422,
                    "gateway.key_reused",
                    f"this {KEY} stands for another request, {name}",
                    "use a new Idempotency-Key for a new request",
                )
        made = await client.submit_whole(wanted, request=name)
        if (rejected := client.rejection(made)) is not None:
            raise rejected
        place = f"/requests/{made}"
        return _json(RequestDocument(request=made, status="open"), 202, location=place)

    async def look(request: Request) -> Response:
        _, client = await _caller(gateway, request)
        return _json(await request_state(client, _id_of(request, client)))

    async def reply(request: Request) -> Response:
        token, client = await _caller(gateway, request)
        name = _id_of(request, client)
        said: ReplyDocument = await _document(request, token, ReplyDocument)
        question = _asked(await client.questions(name), said.n)
        try:
            await client.reply(question, said.value, by=said.by)
        except codec.UNWRITABLE as wrong:
            raise Malformed("the value cannot be written as JSON - at `$.value`") from wrong
        return _json({"request": name, "n": question.n}, 202)

    async def cancel(request: Request) -> Response:
        token, client = await _caller(gateway, request)
        name = _id_of(request, client)
        said: CancelDocument = await _document(request, token, CancelDocument, empty=b"{}")
        if isinstance(event := await client.latest(name), events.Ended):
            status = events.type_of(event).partition(".")[2]
            raise Problem(409, "gateway.ended", f"{name} is over: {status}", "there is nothing to cancel")
        await client.cancel(name, said.reason, by=said.by)
        return _json({"request": name}, 202)

    async def follow(request: Request) -> Response:
        token, client = await _caller(gateway, request)
        name, seen = _id_of(request, client), _last_seen(request.headers)
        if seen >= 0 and isinstance(event := await client.latest(name), events.Ended) and event.n <= seen:
            return Response(status_code=204)  # the reader has seen the end, and shall not come again
        limits = gateway.options.limits
        full = Problem(
            429,
            "gateway.too_many_streams",
            f"this token has {token.limits.streams} open streams at most, and the gateway {limits.streams}",
            "close a stream, or ask with GET",
            retry_after="10",
        )
        return CountedStream(
            _happenings(gateway, token, client, name, seen),
            gateway.streams,
            token.id,
            most=(limits.streams, token.limits.streams),
            full=full.response(),
        )

    one = "/requests/{request}"
    return [
        Route("/requests", submit, methods=["POST"]),
        Route(one, look, methods=["GET"]),
        Route(f"{one}/events", follow, methods=["GET"]),
        Route(f"{one}/reply", reply, methods=["POST"]),
        Route(f"{one}/cancel", cancel, methods=["POST"]),
    ]


async def request_state(client: Client, request: RequestId) -> RequestDocument:
    """Return how a request of a client stands. Raises BusError."""
    event = await client.latest(request)
    if event is None and (rejected := client.rejection(request)) is not None:
        return rejected_document(request, rejected)
    questions = await client.questions(request) if isinstance(event, events.TurnSuspended) else ()
    return document_of(request, event, questions, is_known=client.has_submitted(request))


async def _happenings(
    gateway: "Gateway", token: TokenEntry, client: Client, request: str, seen: int
) -> AsyncGenerator[bytes]:
    """Yield what `Client.follow` tells, as server-sent events: `note`, `question`, then the end.

    A question and the end have their event's number as id; notes have none, since they are not stored. A
    reader that names the last id gets what is newer. If the bus is away, the stream ends, and the reader
    comes back.
    """
    yield b"retry: %d\n\n" % _AGAIN_MS
    with contextlib.suppress(BusError):
        async with (
            client.follow(request) as feed,
            contextlib.aclosing(
                with_beats(feed.__anext__, gateway.stopping, gateway.options.limits.beat_s)
            ) as items,
        ):
            try:
                async for item in items:
                    if gateway.tokens.entry(token.id) is None:
                        return  # it was revoked
                    match item:
                        case None:
                            yield BEAT
                        case AgentNote(agent=agent, note=note):
                            yield server_sent("note", {"agent": agent, **msgspec.to_builtins(note)})
                        case Question(n=n) if n > seen:
                            yield server_sent("question", question_document(item), id_=n)
                        case Outcome(event=event):
                            yield server_sent("ended", ended_document(item), id_=event.n)
                            return
            except SubmitRejected as rejected:
                yield server_sent("rejected", problem_of(rejected).document)


# --- what callers send --------------------------------------------------------------------------


async def _caller(gateway: "Gateway", request: Request) -> tuple[TokenEntry, Client]:
    """Return the token of a call, which the gate has checked, and its client."""
    token: TokenEntry = request.scope["mesh.token"]
    return token, await gateway.clients.get(token.client)


def _id_of(request: Request, client: Client) -> RequestId:
    """Return the request in the path. Raises Problem unless it is one of this client's."""
    name = request.path_params["request"]
    if not is_request_id(name) or submitter_of(name) != client.name:
        raise Problem(
            404,
            "gateway.not_found",
            f"there is no such request of {client.name}",
            "use an id that POST /requests returned under a token of the same client",
        )
    return RequestId(name)


def _key_of(given: list[str]) -> str | None:
    """Return a caller's key. Raises Problem."""
    if not given:
        return None
    key = given[0].strip()
    if len(given) > 1 or not 1 <= len(key) <= MOST_KEY or not key.isascii() or not key.isprintable():
        raise Problem(
            400,
            "gateway.key_invalid",
            f"{KEY} is one header of 1 to {MOST_KEY} printable ASCII characters",
            "use a UUID",
        )
    return key


def _last_seen(headers: Mapping[str, str]) -> int:
    """Return the number of the newest event that a reader has seen; -1 for none. Raises Problem."""
    given = headers.get(LAST_SEEN, "").strip()
    if not given:
        return -1
    if not (given.isascii() and given.isdecimal() and len(given) <= 10):
        raise Problem(
            400, "gateway.last_event_id", f"{LAST_SEEN} is not an id of this stream", "leave the header out"
        )
    return int(given)


async def bounded_body(request: Request, token: TokenEntry) -> bytes:
    """Return the body of a call. Raises Problem if it is larger than the token allows, or not whole."""
    try:
        return await read_body(request.receive, token.limits.body_kib << 10)
    except BodyTooLarge:
        raise Problem(
            413,
            "gateway.body_too_large",
            f"a body has {token.limits.body_kib} KiB at most",
            "put large data into an artifact, and name it",
            connection="close",
        ) from None
    except BodyCutShort:
        raise Problem(400, "gateway.body_cut_short", "the body was not sent whole", "send it again") from None


async def _document(request: Request, token: TokenEntry, kind: type[Any], empty: bytes = b"") -> Any:
    """Return the body as a document. Raises Problem, Malformed."""
    body = await bounded_body(request, token)
    if not body and empty:
        body = empty
    elif request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
        raise Problem(
            415, "gateway.not_json", "the body is not application/json", "send JSON with that Content-Type"
        )
    try:
        return read_document(body, kind)
    except ValueError as wrong:
        raise Problem(400, "gateway.not_json", str(wrong), "send one JSON object in UTF-8") from wrong


def _asked(questions: tuple[Question, ...], n: int) -> Question:
    """Return the question that a reply is for. Raises Problem."""
    for each in questions:
        if each.n == n:
            return each
    raise Problem(
        409,
        "gateway.no_question",
        "no such question is open: it was answered, or its time is over",
        "look at the request with GET",
    )


def _json(document: object, status: int = 200, **headers: str) -> Response:
    body = msgspec.json.encode(document)
    return Response(body, status, {"cache-control": "no-store", **headers}, "application/json")
