"""The gateway as a service: its application, its gate and its life."""

import asyncio
import contextlib
import functools
import math
import time
from collections import Counter
from collections.abc import Callable

from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from mesh.errors import MeshError
from mesh.gateway import GatewayOptions, requests
from mesh.gateway.clients import ClientPool, ClientUnusable
from mesh.gateway.openapi import DOCUMENT
from mesh.gateway.problems import Problem, problem_of
from mesh.gateway.store import GatewayStore, HookedRequest, KeptTask, KeyedReply, KeyedRequest, TaskPage
from mesh.gateway.tokens import CallRates, TokenBook, TokenEntry
from mesh.gateway.webhooks import Webhooks
from mesh.service.logs import get_logger
from mesh.web.server import address_of, bind, serving_app
from protocol.wire.ids import RequestId

_log = get_logger(__name__)

OPENAPI = "/openapi.json"
"""A path that needs no token."""


class Gateway:
    """One gateway, from `run` to `drain`: the worker of `run_service`.

    Args:
        clients: its connections.
        on_up: called with its address when it answers.
    """

    def __init__(
        self,
        clients: ClientPool,
        options: GatewayOptions,
        tokens: TokenBook,
        on_up: Callable[[str], object] = lambda address: None,
    ) -> None:
        self.clients, self.options, self.tokens = clients, options, tokens
        self.stopping = asyncio.Event()
        """Set when the gateway ends, which ends all streams."""
        self.streams = Counter[str]()
        """Open streams by token."""
        self._on_up = on_up
        self._store: GatewayStore | None = None
        self._webhooks: Webhooks | None = None
        self.ready = False

    async def run(self) -> None:
        """Answer until cancelled. Raises UsageWrong for a port that is taken, or a store of another form."""
        with (
            contextlib.closing(bind(self.options.host, self.options.port, "the gateway")) as bound,
            contextlib.closing(GatewayStore(self.options.store)) as self._store,
        ):
            self._webhooks = Webhooks(self._store, self.clients, self.tokens, self.options.pauses)
            app = create_app(self, address_of(bound))
            async with serving_app(app, bound, self.options.limits, self.stopping.set) as address:
                _log.info("gateway_listening", url=address)
                self.ready = True
                self._on_up(address)
                await self._webhooks.run()

    async def drain(self, grace_s: float) -> None:
        """End all streams; their readers come back to another gateway, or to this one when it is back."""
        self.ready = False
        self.stopping.set()

    async def keep(self, token: TokenEntry, key: str, digest: str) -> KeyedRequest:
        """Return the request of a caller's key, which is on the disk now."""
        assert self._store is not None
        hook = "" if token.hook is None else token.id
        keep = functools.partial(self._store.keep, token.client, key, digest, time.time(), hook=hook)
        kept = await asyncio.to_thread(keep)
        if kept.is_new:
            self._watch(token, kept.request)
        return kept

    async def reply_of(self, client: str, key: str) -> KeyedReply | None:
        """Return what was kept of a reply under its caller's key; None if it is new."""
        assert self._store is not None
        return await asyncio.to_thread(self._store.reply, client, key)

    async def keep_reply(self, client: str, key: str, reply: KeyedReply) -> None:
        """Keep which question a reply answers, which is on the disk then."""
        assert self._store is not None
        await asyncio.to_thread(self._store.keep_reply, client, key, reply, time.time())

    async def keep_new(self, token: TokenEntry, request: RequestId) -> None:
        """Keep a request without a key, if its news is to be posted."""
        assert self._store is not None
        if token.hook is not None:
            hooked = HookedRequest(request, token.client, token.id)
            await asyncio.to_thread(self._store.hook, hooked)
            self._watch(token, request)

    async def keep_task(self, task: KeptTask) -> None:
        """Keep a task's context, which is on the disk then."""
        assert self._store is not None
        await asyncio.to_thread(self._store.keep_task, task)

    async def drop_task(self, request: str) -> None:
        """Forget a task that the guard did not take."""
        assert self._store is not None
        await asyncio.to_thread(self._store.drop_task, request)

    async def task_context(self, request: str) -> str | None:
        """Return the context of a task; None if it did not come here, or long ago."""
        assert self._store is not None
        return await asyncio.to_thread(self._store.task_context, request)

    async def tasks(self, client: str, context: str, after: str, size: int) -> TaskPage:
        """Return a page of a client's tasks, as the store does."""
        assert self._store is not None
        return await asyncio.to_thread(self._store.tasks, client, context, after, size)

    def _watch(self, token: TokenEntry, request: RequestId) -> None:
        assert self._webhooks is not None
        if token.hook is not None:
            self._webhooks.add(HookedRequest(request, token.client, token.id))


def create_app(gateway: Gateway, address: str) -> Starlette:
    """Return the application of a gateway that is at an address."""
    added, is_open = list[Route](), {OPENAPI}
    if gateway.options.a2a is not None:
        from mesh.gateway import a2a  # an extra: the gateway does without

        added, is_open = a2a.routes(gateway, address), {OPENAPI, a2a.CARD}

    async def known(request: Request, error: Exception) -> Response:
        assert isinstance(error, MeshError)
        problem = problem_of(error)
        if isinstance(error, ClientUnusable):
            problem = Problem(503, error.code, str(error), "tell the gateway's operator", retry_after="60")
        elif problem.status == 500:
            _log.error("gateway_failed", path=request.url.path, code=error.code, detail=str(error))
        return problem.response()

    async def refused(request: Request, error: Exception) -> Response:
        assert isinstance(error, Problem)
        return error.response()

    async def http(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        code = {404: "gateway.not_found", 405: "gateway.method"}.get(error.status_code, "gateway.http")
        headers = {"allow": allowed} if (allowed := (error.headers or {}).get("Allow")) else {}
        said = f"{request.method} is not known here" if error.status_code == 405 else error.detail
        return Problem(error.status_code, code, said, f"see {OPENAPI}", **headers).response()

    async def unknown(request: Request, error: Exception) -> Response:
        _log.error("gateway_failed", path=request.url.path, error=type(error).__name__, exc_info=error)
        return Problem(
            500, "gateway.failed", "the gateway is broken here", "tell its operator; its log says where"
        ).response()

    async def openapi(request: Request) -> Response:
        return Response(DOCUMENT, media_type="application/json")

    return Starlette(
        routes=[Route(OPENAPI, openapi), *requests.routes(gateway), *added],
        exception_handlers={
            MeshError: known,
            Problem: refused,
            HTTPException: http,
            Exception: unknown,
        },
        middleware=[Middleware(TokenGate, tokens=gateway.tokens, is_open=frozenset(is_open))],
    )


class TokenGate:
    """ASGI middleware around the whole application: no route can forget to ask for the token.

    Args:
        is_open: paths that need none.
    """

    def __init__(self, app: ASGIApp, tokens: TokenBook, is_open: frozenset[str]) -> None:
        self._app, self._tokens, self._rates, self._is_open = app, tokens, CallRates(), is_open

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        stopped = None if scope["path"] in self._is_open else self._stopped(scope)
        await (self._app if stopped is None else stopped.response())(scope, receive, send)

    def _stopped(self, scope: Scope) -> Problem | None:
        """Return why a call does not pass; None if it does."""
        kind, _, shown = Headers(scope=scope).get("authorization", "").partition(" ")
        token = self._tokens.find(shown.strip()) if kind.lower() == "bearer" else None
        if token is None:
            return Problem(
                401,
                "gateway.token",
                "no token was shown" if not shown else "this token is unknown, or was revoked",
                "send `Authorization: Bearer TOKEN`; an operator makes one with `mesh gateway token CLIENT`",
                www_authenticate='Bearer realm="handoff mesh"',
            )
        wait_s = self._rates.wait_s(token, time.monotonic())
        if wait_s:
            return Problem(
                429,
                "gateway.too_fast",
                f"this token may make {token.limits.per_second:g} calls a second",
                "wait as long as Retry-After says",
                retry_after=str(math.ceil(wait_s)),
            )
        scope["mesh.token"] = token
        return None
