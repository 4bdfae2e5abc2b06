"""A2A 1.0 beside the gateway's own routes: the card of the fleet, and JSON-RPC at `/a2a`.

A task is a request, and its id the request's. A message without a task submits; one to a task that asks
replies. Whoever calls is the client of the token, as everywhere here. Tasks live in the log: a gateway tells
them as they stand, whoever was killed, and a client that lost its stream subscribes again.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncGenerator, Iterator, Sequence
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
from a2a.server.context import ServerCallContext
from a2a.server.request_handlers import RequestHandler
from a2a.server.request_handlers.request_handler import validate_request_params
from a2a.server.routes import ServerCallContextBuilder, create_agent_card_routes, create_jsonrpc_routes
from a2a.types import a2a_pb2 as wire
from a2a.utils.constants import (
    DEFAULT_LIST_TASKS_PAGE_SIZE,
    JSONRPC_PARSE_ERROR_CODE,
    MAX_LIST_TASKS_PAGE_SIZE,
)
from a2a.utils.errors import (
    A2AError,
    InternalError,
    InvalidParamsError,
    PushNotificationNotSupportedError,
    TaskNotCancelableError,
    TaskNotFoundError,
    UnsupportedOperationError,
)
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import Message as AsgiMessage

from mesh.client import AgentNote, Client, Outcome, Question, SubmitRejected
from mesh.errors import BusError, MeshError
from mesh.gateway.a2a_documents import (
    agent_card,
    answer_update,
    context_of,
    note_update,
    number_in,
    replies_in,
    status_update,
    submit_of,
    task_of,
)
from mesh.gateway.documents import RequestDocument, ended_document, question_document, rejected_document
from mesh.gateway.problems import Problem, problem_of
from mesh.gateway.requests import bounded_body, request_state
from mesh.gateway.store import KeptTask, KeyedReply
from mesh.gateway.tokens import TokenEntry
from mesh.service.logs import get_logger
from mesh.web.streams import with_beats
from protocol.wire import codec
from protocol.wire.ids import RequestId, is_request_id, submitter_of
from protocol.wire.prices import READ_ERRORS

if TYPE_CHECKING:
    from mesh.gateway.server import Gateway

_log = get_logger(__name__)

RPC = "/a2a"
CARD = "/.well-known/agent-card.json"
"""Needs no token: others find the agent by it."""
MOST_MESSAGE_ID = 200
"""Characters of a message's id."""
BLOCKING_S = 120.0
"""How long a call waits for the end of a task. Then it returns the task as it stands."""
_CANCEL_S = 10.0
"""How long a call waits for the end of a task that it has cancelled."""
_NOBODY = 499
"""Status of an answer that nobody gets, as in other servers' logs."""
_NOT_JSON = {"code": JSONRPC_PARSE_ERROR_CODE, "message": "the body is not JSON"}
_OVER = ("completed", "refused", "rejected", "failed", "expired", "cancelled")


def routes(gateway: "Gateway", address: str) -> list[Route]:
    """Return the routes of A2A.

    Args:
        address: of this gateway, unless the options name a public one.
    """
    wanted = gateway.options.a2a
    assert wanted is not None
    url = (wanted.url or address).rstrip("/") + RPC
    card = agent_card(wanted.fleet, url, version("handoff-mesh"))
    # The SDK logs a traceback for each body that it cannot read. What fails here is logged here.
    logging.getLogger("a2a").setLevel(logging.CRITICAL)
    (made,) = create_jsonrpc_routes(TaskHandler(gateway), RPC, _TokenContext())

    async def call(request: Request) -> Response:
        body = await bounded_body(request, request.scope["mesh.token"])
        try:
            msgspec.json.decode(body)
        except READ_ERRORS:  # the SDK fails on these itself
            return JSONResponse({"jsonrpc": "2.0", "id": None, "error": _NOT_JSON})
        answering = asyncio.ensure_future(made.endpoint(Request(request.scope, _Replayed(request, body))))
        gone = asyncio.ensure_future(_hung_up(request))
        try:
            await asyncio.wait({answering, gone}, return_when=asyncio.FIRST_COMPLETED)
            return answering.result() if answering.done() else Response(status_code=_NOBODY)
        finally:  # a call that waits for nobody would keep its place among the streams
            for each in (answering, gone):
                each.cancel()
            await asyncio.gather(answering, gone, return_exceptions=True)

    return [
        *create_agent_card_routes(card, card_url=CARD, cache_control="public, max-age=300"),
        Route(RPC, call, methods=["POST"]),
    ]


async def _hung_up(request: Request) -> None:
    """Return once the caller, whose body was read, has gone."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


class _Replayed:
    """Receives a body that was read already, then what the connection says."""

    def __init__(self, request: Request, body: bytes) -> None:
        self._receive, self._body = request.receive, [body]

    async def __call__(self) -> AsgiMessage:
        if self._body:
            return {"type": "http.request", "body": self._body.pop(), "more_body": False}
        return await self._receive()


class _TokenContext(ServerCallContextBuilder):
    """Hands the token of a call, which the gate has checked, to the handler."""

    def build(self, request: Request) -> ServerCallContext:
        return ServerCallContext(
            state={"headers": dict(request.headers), "token": request.scope["mesh.token"]}
        )


class _Sent(NamedTuple):
    """What became of a message: the task that it is about."""

    request: RequestId
    context: str
    answered: int | None
    """The number of the question that it answered, which may be listed for another moment."""


class TaskHandler(RequestHandler):
    """Answers the calls of A2A for one gateway. Each method raises A2AError."""

    def __init__(self, gateway: "Gateway") -> None:
        self._gateway = gateway

    # --- messages ---------------------------------------------------------------------------------

    @validate_request_params
    async def on_message_send(self, params: wire.SendMessageRequest, context: ServerCallContext) -> wire.Task:
        """Submit or reply, and return the task: at its end, when it asks, or at once if the call says so."""
        with _as_a2a():
            token, client = await self._caller(context)
            with self._stream_of(token):
                sent = await self._take(params, token, client)
                if not params.configuration.return_immediately:
                    async with contextlib.aclosing(self._news(token, client, sent)) as news:
                        with contextlib.suppress(TimeoutError):
                            async with asyncio.timeout(BLOCKING_S):
                                async for _ in news:
                                    pass
                return await self._task(client, sent)

    @validate_request_params
    async def on_message_send_stream(
        self, params: wire.SendMessageRequest, context: ServerCallContext
    ) -> AsyncGenerator[Any]:
        """Submit or reply, and yield the task, then its news until it ends or asks."""
        with _as_a2a():
            token, client = await self._caller(context)
            with self._stream_of(token):
                sent = await self._take(params, token, client)
                async with contextlib.aclosing(self._news(token, client, sent)) as news:
                    async for each in news:
                        yield each

    @validate_request_params
    async def on_subscribe_to_task(
        self, params: wire.SubscribeToTaskRequest, context: ServerCallContext
    ) -> AsyncGenerator[Any]:
        """Yield a task as it stands, then its news until it ends or asks."""
        with _as_a2a():
            token, client = await self._caller(context)
            with self._stream_of(token):
                kept = await self._kept(client, params.id)
                if (await self._state(client, kept)).status in _OVER:
                    raise UnsupportedOperationError("the task is over: get it")
                async with contextlib.aclosing(self._news(token, client, kept)) as news:
                    async for each in news:
                        yield each

    async def _take(self, params: wire.SendMessageRequest, token: TokenEntry, client: Client) -> _Sent:
        """Submit a message, or give it as a reply."""
        message = params.message
        if params.configuration.HasField("task_push_notification_config"):
            raise PushNotificationNotSupportedError
        if len(message.message_id) > MOST_MESSAGE_ID:
            raise InvalidParamsError(f"messageId has {MOST_MESSAGE_ID} characters at most")
        if message.task_id:
            return await self._reply(message, client)
        context = context_of(client.name, message)
        wanted = submit_of(message, context)
        digest = codec.body_digest(codec.encode_whole(wanted))
        request, kept, _ = await self._gateway.keep(token, f"a2a/{message.message_id}", digest)
        if kept != digest:
            raise InvalidParamsError(f"this messageId stands for another task, {request}")
        await self._gateway.keep_task(KeptTask(request, client.name, context, int(time.time() * 1000)))
        await client.submit_whole(wanted, request=request)
        if (rejected := client.rejection(request)) is not None:
            await self._gateway.drop_task(request)
            raise rejected
        return _Sent(request, context, None)

    async def _reply(self, message: wire.Message, client: Client) -> _Sent:
        """Answer a question. The same message again answers the same one, though the task may ask anew."""
        kept = await self._kept(client, message.task_id)
        if message.context_id not in ("", kept.context):
            raise InvalidParamsError(f"the task's context is {kept.context}")
        key = f"a2a/{message.message_id}"
        digest = codec.body_digest(message.SerializeToString(deterministic=True))
        earlier = await self._gateway.reply_of(client.name, key)
        if earlier is not None and earlier.digest != digest:
            raise InvalidParamsError("this messageId stands for another message")
        open_ = await client.questions(kept.request)
        if earlier is not None and all(each.n != earlier.n for each in open_):
            return kept._replace(answered=earlier.n)
        question = _asked(open_, number_in(message) if earlier is None else earlier.n)
        await self._gateway.keep_reply(client.name, key, KeyedReply(kept.request, question.n, digest))
        # A gateway that did not keep it may take a later question: a guard takes one reply of an id.
        id_ = codec.body_digest(f"{client.name}/{key}".encode())[:32]
        refused: MeshError | None = None
        for value in replies_in(message):
            try:
                await client.reply(question, value, id_=id_)
            except MeshError as wrong:
                if wrong.code != "client.reply_invalid":
                    raise
                refused = refused or wrong
            else:
                return kept._replace(answered=question.n)
        assert refused is not None
        raise refused

    # --- tasks ------------------------------------------------------------------------------------

    @validate_request_params
    async def on_get_task(self, params: wire.GetTaskRequest, context: ServerCallContext) -> wire.Task:
        with _as_a2a():
            _, client = await self._caller(context)
            return await self._task(client, await self._kept(client, params.id))

    @validate_request_params
    async def on_cancel_task(self, params: wire.CancelTaskRequest, context: ServerCallContext) -> wire.Task:
        """Cancel a task, and return it: usually cancelled, or at work still if that takes long."""
        with _as_a2a():
            _, client = await self._caller(context)
            kept = await self._kept(client, params.id)
            if (await self._state(client, kept)).status in _OVER:
                raise TaskNotCancelableError
            await client.cancel(kept.request, "cancelled over A2A")
            with contextlib.suppress(TimeoutError):
                await client.wait(kept.request, timeout_s=_CANCEL_S)
            return await self._task(client, kept)

    @validate_request_params
    async def on_list_tasks(
        self, params: wire.ListTasksRequest, context: ServerCallContext
    ) -> wire.ListTasksResponse:
        """Return the client's tasks that this gateway took, the newest first, as they stand.

        A page is cut before tasks of another status are left out, so it may have fewer.
        """
        with _as_a2a():
            _, client = await self._caller(context)
            size = params.page_size if params.HasField("page_size") else DEFAULT_LIST_TASKS_PAGE_SIZE
            if not 1 <= size <= MAX_LIST_TASKS_PAGE_SIZE:
                raise InvalidParamsError(f"pageSize is 1 to {MAX_LIST_TASKS_PAGE_SIZE}")
            page = await self._gateway.tasks(client.name, params.context_id, params.page_token, size)
            found = []
            for kept in page.tasks:
                task = await self._task(client, _Sent(kept.request, kept.context, None))
                since = params.status_timestamp_after
                is_older = params.HasField("status_timestamp_after") and (
                    not task.status.HasField("timestamp")
                    or task.status.timestamp.ToMicroseconds() < since.ToMicroseconds()
                )
                wanted = (wire.TaskState.TASK_STATE_UNSPECIFIED, task.status.state)
                if params.status in wanted and not is_older:
                    found.append(task)
            return wire.ListTasksResponse(
                tasks=found, next_page_token=page.after, page_size=size, total_size=page.total
            )

    # --- what this agent does not do --------------------------------------------------------------

    async def on_create_task_push_notification_config(self, params: Any, context: ServerCallContext) -> Any:
        raise PushNotificationNotSupportedError

    async def on_get_task_push_notification_config(self, params: Any, context: ServerCallContext) -> Any:
        raise PushNotificationNotSupportedError

    async def on_list_task_push_notification_configs(self, params: Any, context: ServerCallContext) -> Any:
        raise PushNotificationNotSupportedError

    async def on_delete_task_push_notification_config(self, params: Any, context: ServerCallContext) -> Any:
        raise PushNotificationNotSupportedError

    async def on_get_extended_agent_card(self, params: Any, context: ServerCallContext) -> Any:
        raise UnsupportedOperationError("the public card says everything")

    # --- how a request stands ---------------------------------------------------------------------

    async def _caller(self, context: ServerCallContext) -> tuple[TokenEntry, Client]:
        token: TokenEntry = context.state["token"]
        return token, await self._gateway.clients.get(token.client)

    async def _kept(self, client: Client, id_: str) -> _Sent:
        """Return a task of this client. Raises TaskNotFoundError."""
        if not is_request_id(id_) or submitter_of(id_) != client.name:
            raise TaskNotFoundError
        request = RequestId(id_)
        context = await self._gateway.task_context(request)
        if context is None and (await request_state(client, request)).status == "unheard":
            raise TaskNotFoundError
        return _Sent(request, context or request, None)

    async def _state(self, client: Client, sent: _Sent) -> RequestDocument:
        """Return how a request stands, without the question that was just answered."""
        document = await request_state(client, sent.request)
        if document.status != "asks":
            return document
        left = tuple(each for each in document.questions if each.n != sent.answered)
        return msgspec.structs.replace(document, questions=left, status="asks" if left else "open")

    async def _task(self, client: Client, sent: _Sent) -> wire.Task:
        return task_of(await self._state(client, sent), sent.context)

    async def _news(self, token: TokenEntry, client: Client, sent: _Sent) -> AsyncGenerator[Any]:
        """Yield a task, then its news, until it ends or asks.

        If the bus is away, or this gateway ends, or the token is revoked, it ends before that: the caller
        subscribes again.
        """
        gateway, (request, context, answered) = self._gateway, sent
        async with (
            client.follow(request) as feed,
            contextlib.aclosing(
                with_beats(feed.__anext__, gateway.stopping, gateway.options.limits.beat_s)
            ) as items,
        ):
            first = await self._state(client, sent)
            yield task_of(first, context)
            if first.status == "asks" or first.status in _OVER:
                return
            with contextlib.suppress(BusError):
                try:
                    async for item in items:
                        if gateway.tokens.entry(token.id) is None:
                            return
                        match item:
                            case AgentNote():
                                yield note_update(request, item, context)
                            case Question(n=n) if n != answered:
                                asked = (question_document(item),)
                                document = RequestDocument(request=request, status="asks", questions=asked)
                                yield status_update(document, context)
                                return
                            case Outcome():
                                document = ended_document(item)
                                if document.status == "completed":
                                    yield answer_update(document, context)
                                yield status_update(document, context)
                                return
                except SubmitRejected as rejected:
                    yield status_update(rejected_document(request, rejected), context)

    @contextlib.contextmanager
    def _stream_of(self, token: TokenEntry) -> Iterator[None]:
        """Count an open stream, or a call that waits. Raises Problem if there are too many."""
        gateway = self._gateway
        limits, streams = gateway.options.limits, gateway.streams
        if streams.total() >= limits.streams or streams[token.id] >= token.limits.streams:
            raise Problem(
                429,
                "gateway.too_many_streams",
                f"this token has {token.limits.streams} open streams at most, the gateway {limits.streams}",
                "close a stream, or send with returnImmediately",
            )
        streams[token.id] += 1
        try:
            yield
        finally:
            streams[token.id] -= 1
            if not streams[token.id]:
                del streams[token.id]


def _asked(open_: Sequence[Question], n: int | None) -> Question:
    """Return the open question of a number, or the only one. Raises A2AError."""
    found = [each for each in open_ if n in (None, each.n)]
    if len(found) > 1:
        which = ", ".join(str(each.n) for each in found)
        raise InvalidParamsError(f"several questions are open: name one as `n` in metadata ({which})")
    if not found:
        raise UnsupportedOperationError("the task asks nothing now")
    return found[0]


@contextlib.contextmanager
def _as_a2a() -> Iterator[None]:
    """Raise what goes wrong as an A2AError, with the gateway's code and remedy as data."""
    try:
        yield
    except A2AError:
        raise
    except (Problem, MeshError) as wrong:
        problem = wrong if isinstance(wrong, Problem) else problem_of(wrong)
        if problem.status == 500:
            _log.error("gateway_failed", path=RPC, code=problem.code, detail=str(wrong))
        told = {"code": problem.code, "remedy": problem.remedy}
        kind = InternalError if problem.status >= 500 or problem.status == 429 else InvalidParamsError
        raise kind(problem.detail, told) from wrong
    except Exception as wrong:
        _log.error("gateway_failed", path=RPC, error=type(wrong).__name__, exc_info=wrong)
        raise InternalError("the gateway is broken here") from wrong
