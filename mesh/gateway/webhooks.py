"""Webhooks: the questions and the end of a request, posted to the URL of its token until they are taken.

What is still to be posted is kept twice over: the question or the end is in the log, and a row in the
gateway's store says that this request's news is wanted. The row goes once the end is taken. So a gateway that
is killed posts what is left when it is back; the same `webhook-id` may then come twice.

A note of the bus makes a visit at once. Without one, each request is looked at now and then, since notes may
be lost. A receiver that is away is left alone for a while, for all its requests together; one that refuses a
single post keeps getting the others. A slow one holds a few visits and no more: the rest of its requests wait
in a line of their own.
"""

import asyncio
import time
from collections import Counter, defaultdict, deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from typing import Any

import msgspec

from mesh.client import Client, SubmitRejected
from mesh.client.follow import outcome_of
from mesh.errors import BusError, MeshError, ReceiverGone
from mesh.gateway import HookPauses
from mesh.gateway.clients import ClientPool
from mesh.gateway.documents import ended_document, question_document, rejected_document
from mesh.gateway.store import GatewayStore, HookedRequest
from mesh.gateway.tokens import TokenBook, TokenHook
from mesh.ops.delivery import NotTaken, SignedPost, key_of
from mesh.service.logs import get_logger
from protocol.wire import events
from protocol.wire.ids import submitted_ms

_log = get_logger(__name__)

LOOK_S = 5.0
"""How often a new request without a note is looked at, while there are few."""
_SHARE, _LOOK_MOST_S = 0.05, 3_600.0
"""An old one is looked at after this share of its age, and at least once an hour."""
_NEVER_S = 7 * 86_400.0
"""A request of which the log has nothing after so long never reached the bus, or was rejected unheard."""
_LOOKS_PER_S = 200
_VISITS, _VISITS_OF_ONE = 32, 4
"""Visits at a time: in all, and for one receiver."""
_REJECTED = -1
"""Stands for the rejection among the numbers of the questions that were posted."""
_OF_THE_POST = frozenset(range(400, 500)) - {408, 410, 429}
"""Statuses by which a receiver refuses one post, and not all of them."""


class HookReceiver:
    """One URL, and how long it is left alone."""

    def __init__(self, hook: TokenHook, pauses: HookPauses) -> None:
        self.hook, self._pauses = hook, pauses
        self.post = SignedPost(hook.url, key_of(hook.secret), "mesh-gateway").post
        self.closed_until = 0.0
        self._pause_s = pauses.first_s

    def took(self) -> None:
        self.closed_until, self._pause_s = 0.0, self._pauses.first_s

    def failed(self, again_s: float | None) -> None:
        """Leave it alone: as long as it asks for, or longer each time."""
        now = time.monotonic()
        if self.closed_until <= now:
            self.closed_until = now + (self._pause_s if again_s is None else again_s)
            self._pause_s = min(2 * self._pause_s, self._pauses.longest_s)
        elif again_s is not None:  # posts that fail together are one failure, but what it asks for counts
            self.closed_until = max(self.closed_until, now + again_s)


class Webhooks:
    """Posts the news of hooked requests: `run` until cancelled."""

    def __init__(
        self, store: GatewayStore, clients: ClientPool, tokens: TokenBook, pauses: HookPauses
    ) -> None:
        self._store, self._clients, self._tokens, self._after = store, clients, tokens, pauses
        self._due = defaultdict[str, deque[str]](deque)
        """By the token's id: the line of its requests that are to be visited."""
        self._turns = asyncio.Queue[str]()
        """Tokens of which one more request may be visited."""
        self._visited = Counter[str]()
        """By the token's id: its visits at the moment."""
        self._open: dict[str, HookedRequest] = {}
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._waiting = set[str]()
        """Requests in `_due`."""
        self._busy = set[str]()
        """Requests that are being visited: one visit of each at a time."""
        self._again = set[str]()
        """Those of which a note came meanwhile."""
        self._pauses: dict[str, float] = {}
        """By request: the pause after its next refused post (s)."""
        self._receivers: dict[str, HookReceiver] = {}
        """By the token's id."""
        self._heard = set[str]()
        self._threads = ThreadPoolExecutor(_VISITS, thread_name_prefix="webhook")

    def add(self, hooked: HookedRequest) -> None:
        """Watch a request, which the store has."""
        if hooked.request not in self._open:
            self._open[hooked.request] = hooked
            self._now(hooked.request)  # it also begins to hear the client's notes

    async def run(self) -> None:
        for hooked in await asyncio.to_thread(self._store.hooked):
            self._open[hooked.request] = hooked
            self._now(hooked.request)
        visiting = [asyncio.create_task(self._visits()) for _ in range(_VISITS)]
        try:
            await asyncio.gather(*visiting)
        finally:
            for timer in self._timers.values():
                timer.cancel()
            for task in visiting:
                task.cancel()
            await asyncio.gather(*visiting, return_exceptions=True)
            self._threads.shutdown(wait=False, cancel_futures=True)

    # --- when to look -----------------------------------------------------------------------------

    def _now(self, request: str) -> None:
        if request in self._busy:
            self._again.add(request)
        elif request in self._open and request not in self._waiting:
            if (timer := self._timers.pop(request, None)) is not None:
                timer.cancel()
            self._waiting.add(request)
            token = self._open[request].token
            self._due[token].append(request)
            self._turns.put_nowait(token)

    def _later(self, request: str, wait_s: float) -> None:
        if request in self._open and request not in self._waiting and request not in self._timers:
            loop = asyncio.get_running_loop()
            self._timers[request] = loop.call_later(wait_s, self._now, request)

    async def _visits(self) -> None:
        while True:
            token = await self._turns.get()
            line = self._due[token]
            if line and self._visited[token] < _VISITS_OF_ONE:
                self._visited[token] += 1
                await self._take(line.popleft())
                self._visited[token] -= 1
                if line:  # a turn that found no place was dropped: this one stands for it
                    self._turns.put_nowait(token)

    async def _take(self, request: str) -> None:
        """Visit a request that was waiting, and note when to come again."""
        self._waiting.discard(request)
        self._busy.add(request)
        wait_s = await self._try(self._open[request])
        self._busy.discard(request)
        if request in self._again and wait_s is not None:
            wait_s = min(wait_s, self._after.first_s)
        self._again.discard(request)
        if wait_s is not None:
            self._later(request, wait_s)

    async def _try(self, hooked: HookedRequest) -> float | None:
        """Visit a request. An error is a reason to come again."""
        try:
            return await self._visit(hooked)
        except BusError:
            return LOOK_S
        except Exception as wrong:
            code = wrong.code if isinstance(wrong, MeshError) else type(wrong).__name__
            _log.error("webhook_failed", request=hooked.request, code=code, exc_info=wrong)
            return self._after.longest_s

    # --- one request ------------------------------------------------------------------------------

    async def _visit(self, hooked: HookedRequest) -> float | None:
        """Post the news of a request. Return when to look again (s); None if its end was taken."""
        request = hooked.request
        entry = self._tokens.entry(hooked.token)
        if entry is None and not self._tokens.is_there:
            return self._after.longest_s  # a missing file revokes no token for good
        if entry is None or entry.hook is None:
            _log.warning("webhook_dropped", request=request, token=hooked.token)
            await self._over(request)
            return None
        receiver = self._receivers.get(hooked.token)
        if receiver is None or receiver.hook != entry.hook:
            receiver = self._receivers[hooked.token] = HookReceiver(entry.hook, self._after)
        if (closed_s := receiver.closed_until - time.monotonic()) > 0:
            return closed_s
        client = await self._client(hooked.client)
        event = await client.latest(request)
        if event is None:
            if (rejected := client.rejection(request)) is not None:
                wait_s = await self._post_rejected(receiver, request, rejected)
                if wait_s is not None or request not in self._open:
                    return wait_s
        elif isinstance(event, events.Ended):
            shown: Any = ended_document(outcome_of(event))
            kind, id_ = events.type_of(event), f"{request}.{event.n}"
            return await self._post_last(receiver, request, id_, kind, event.at, shown)
        elif questions := await client.questions(request):
            posted = await asyncio.to_thread(self._store.posted, request)
            for question in questions:
                if question.n not in posted:
                    shown = {"request": request, **msgspec.to_builtins(question_document(question))}
                    id_ = f"{request}.{question.n}"
                    wait_s = await self._post(receiver, request, id_, "request.asks", event.at, shown)
                    if wait_s is not None:
                        return wait_s
                    await asyncio.to_thread(self._store.mark_posted, request, question.n)
        age_s = time.time() - submitted_ms(request) / 1000
        if event is None and age_s > _NEVER_S:
            _log.warning("webhook_dropped", request=request, token=hooked.token, why="nothing is in the log")
            await self._over(request)
            return None
        return max(LOOK_S, len(self._open) / _LOOKS_PER_S, min(age_s * _SHARE, _LOOK_MOST_S))

    async def _post_rejected(
        self, receiver: HookReceiver, request: str, rejected: SubmitRejected
    ) -> float | None:
        """Post a rejection once; it is the end, unless the caller may still repeat the request by its key.

        Return as `_post`.
        """
        if _REJECTED not in await asyncio.to_thread(self._store.posted, request):
            shown, id_ = rejected_document(request, rejected), f"{request}.rejected"
            wait_s = await self._post(receiver, request, id_, "request.rejected", 0, shown)
            if wait_s is not None:
                return wait_s
            await asyncio.to_thread(self._store.mark_posted, request, _REJECTED)
        # A quota has room again later. A request without a key is never repeated.
        if rejected.reason != "over_quota" or not await asyncio.to_thread(self._store.is_keyed, request):
            await self._over(request)
        return None

    async def _post_last(
        self, receiver: HookReceiver, request: str, id_: str, kind: str, at: int, data: object
    ) -> float | None:
        """Post a request's end, after which nothing follows. Return as `_post`."""
        wait_s = await self._post(receiver, request, id_, kind, at, data)
        if wait_s is None:
            await self._over(request)
        return wait_s

    async def _over(self, request: str) -> None:
        await asyncio.to_thread(self._store.unhook, request)
        self._open.pop(request, None)
        self._pauses.pop(request, None)

    async def _client(self, name: str) -> Client:
        client = await self._clients.get(name)
        if name not in self._heard:
            self._heard.add(name)
            client.on_news(self._now)
        return client

    async def _post(
        self, receiver: HookReceiver, request: str, id_: str, kind: str, at: int, data: object
    ) -> float | None:
        """Post once. Return None if it was taken, or the seconds until the next try."""
        stamp = datetime.fromtimestamp(at / 1e6 or time.time(), UTC).isoformat()
        body = msgspec.json.encode({"type": kind, "timestamp": stamp, "data": data})
        post: Callable[[], NotTaken | None] = lambda: receiver.post(id_, body)  # noqa: E731
        try:
            failed = await asyncio.get_running_loop().run_in_executor(self._threads, post)
        except ReceiverGone:
            failed = NotTaken("it is gone for good (HTTP 410)", self._after.gone_s, 410)
        if failed is None:
            receiver.took()
            self._pauses.pop(request, None)
            return None
        _log.warning("webhook_not_taken", id=id_, url=receiver.hook.url, detail=failed.wrong)
        if failed.status not in _OF_THE_POST:
            receiver.failed(failed.again_s)
            return max(0.0, receiver.closed_until - time.monotonic())
        pause_s = self._pauses.get(request, self._after.first_s)
        self._pauses[request] = min(2 * pause_s, self._after.longest_s)
        return pause_s
