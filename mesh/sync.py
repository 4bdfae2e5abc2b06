"""The client without `async`, for scripts and notebooks: its connection runs in its own thread.

    with Client.from_env() as client:
        request = client.submit("Where is my parcel?", answer_type=Parcel)
        print(client.wait(request, timeout_s=60).answer)

It also works inside a running event loop, as in a notebook, and blocks that loop meanwhile. An async program
uses `mesh.Client`.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from typing import Any, Self, TypeVar, overload

from mesh.client import Client as AsyncClient
from mesh.client import Outcome, Question
from mesh.client.follow import AgentNote, Requested
from mesh.tasks import LoopThread
from protocol.wire.events import AnyEvent
from protocol.wire.ids import RequestId

__all__ = ["AgentNote", "Client", "Outcome", "Question"]

T = TypeVar("T")
_END = object()


class Client:
    """A client's connection. Made by `from_env` or `connect`; `with` closes it. Threads may share it.

    Arguments and errors are those of `mesh.Client`.
    """

    def __init__(self, connecting: Callable[[], Coroutine[Any, Any, AsyncClient]]) -> None:
        self._loop = LoopThread("mesh-client", "the client")
        try:
            self._client = self._run(connecting())
        except BaseException:
            self._loop.close()
            raise

    @classmethod
    def from_env(cls, *, name: str | None = None, wait: bool = False) -> Self:
        """Return a client with the bus and the key that commands use here."""
        return cls(lambda: AsyncClient.from_env(name=name, wait=wait))

    @classmethod
    def connect(cls, url: str, **more: Any) -> Self:
        """Return a client; `more` as in `mesh.Client.connect`."""
        return cls(lambda: AsyncClient.connect(url, **more))

    @property
    def name(self) -> str:
        """The name of the client's credentials."""
        return self._client.name

    @overload
    def submit(self, text: str, *, answer_type: type[T], **more: Any) -> Requested[T]: ...

    @overload
    def submit(self, text: str, *, answer_type: None = None, **more: Any) -> RequestId: ...

    def submit(self, text: str, **more: Any) -> Any:
        """Store a request and return its id; `more` as in `mesh.Client.submit`."""
        return self._run(self._client.submit(text, **more))

    @overload
    def wait(
        self,
        request: Requested[T],
        *,
        timeout_s: float | None = None,
        on_question: Callable[[Question], Any] | None = None,
    ) -> Outcome[T]: ...

    @overload
    def wait(
        self,
        request: RequestId,
        *,
        timeout_s: float | None = None,
        on_question: Callable[[Question], Any] | None = None,
    ) -> Outcome: ...

    def wait(
        self,
        request: Any,
        *,
        timeout_s: float | None = None,
        on_question: Callable[[Question], Any] | None = None,
    ) -> Outcome:
        """Return how a request ended; `on_question` is a plain function, run in a thread, one at a time."""
        one_by_one = asyncio.Lock()

        async def answer(question: Question) -> Any:
            assert on_question is not None
            async with one_by_one:
                return await asyncio.to_thread(on_question, question)

        asked = None if on_question is None else answer
        return self._run(self._client.wait(request, timeout_s=timeout_s, on_question=asked))

    def follow(self, request: str) -> Iterator[AgentNote | Question | Outcome]:
        """Yield what happens in a request as it happens, its `Outcome` last."""

        async def items() -> AsyncIterator[Any]:
            async with self._client.follow(request) as feed:
                async for item in feed:
                    yield item

        feed = items()

        async def following() -> Any:
            return await anext(feed, _END)

        async def leaving() -> None:
            await feed.aclose()  # type: ignore[attr-defined]  # it is a generator

        try:
            while (item := self._run(following())) is not _END:
                yield item
        finally:
            self._run(leaving())

    def latest(self, request: str) -> AnyEvent | None:
        """Return the last event addressed to this client in a request; None if there is none yet."""
        return self._run(self._client.latest(request))

    def questions(self, request: str) -> tuple[Question, ...]:
        """Return this client's open questions in a request, oldest first."""
        return self._run(self._client.questions(request))

    def reply(self, question: Question, value: Any, *, by: str = "") -> None:
        """Answer an ask."""
        self._run(self._client.reply(question, value, by=by))

    def cancel(self, request: str, reason: str = "", *, by: str = "") -> None:
        """Ask for one of this client's own requests to be ended."""
        self._run(self._client.cancel(request, reason, by=by))

    def close(self) -> None:
        """Close the connection and end the thread. Idempotent."""
        if not self._loop.closed:
            try:
                self._run(self._client.close())
            finally:
                self._loop.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        """Return the result of a coroutine in the client's own loop."""
        return self._loop.run(work)
