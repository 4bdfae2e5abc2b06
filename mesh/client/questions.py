"""The questions that a request asks its client, and the replies that a waiting client gives.

Tasks of a tree may ask at the same time. So questions stand side by side: each is heard once, answered by
its own turn and round, and dropped once guards say that it is over.
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from protocol.wire import events
from protocol.wire.ids import RequestId
from protocol.wire.records import OpenQuestion, Questions

if TYPE_CHECKING:
    from mesh.client.client import Client


class Question(NamedTuple):
    """An ask that waits for this client's reply."""

    request: RequestId
    turn: str
    round: int
    question: str
    schema: Mapping[str, Any] | None
    expires_at: int
    """UTC µs."""
    agent: str
    """Who asks."""
    n: int
    """Number of the event that asked. It tells questions of one request apart."""


class ClientView(NamedTuple):
    """What a request has told its client so far."""

    event: events.AnyEvent
    """The newest event that is addressed to it."""
    questions: tuple[Question, ...]
    """Those that wait for its reply, the oldest first."""


def questions_in(request: RequestId, kept: Questions | None) -> tuple[Question, ...]:
    """Return what waits for a client's reply, by the list that guards keep (None: they have none)."""
    return () if kept is None else tuple(_question(request, each) for each in kept.open)


def _question(request: RequestId, kept: OpenQuestion) -> Question:
    ask = kept.ask
    return Question(
        request, kept.turn, kept.round, ask.question, ask.schema, kept.expires_at, kept.agent, kept.n
    )


class Replying:
    """Replies to questions as they are asked, each in a task of its own.

    Args:
        on_question: returns the reply. It is cancelled once its question is over.
    """

    def __init__(self, client: "Client", on_question: Callable[[Question], Awaitable[Any]] | None) -> None:
        self._client, self._on_question = client, on_question
        self._tasks: dict[int, asyncio.Task[None]] = {}
        """By the number of the event that asked. Those that are done stay: each question is heard once."""

    async def __aenter__(self) -> "Replying":
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._drop(self._tasks.values())

    @property
    def tasks(self) -> list[asyncio.Task[None]]:
        """Those that are at work."""
        return [task for task in self._tasks.values() if not task.done()]

    async def take(self, questions: Collection[Question]) -> None:
        """Hear the new ones of these questions, and drop those that are no longer among them."""
        if self._on_question is None:
            return
        still = {question.n for question in questions}
        await self._drop([task for n, task in self._tasks.items() if n not in still])
        for question in questions:
            if question.n not in self._tasks:
                self._tasks[question.n] = asyncio.create_task(self._reply(question, self._on_question))

    def raise_failed(self) -> None:
        """Raise what kept a reply from being given."""
        for task in self._tasks.values():
            if task.done() and not task.cancelled():
                task.result()

    async def _reply(self, question: Question, on_question: Callable[[Question], Awaitable[Any]]) -> None:
        await self._client.reply(question, await on_question(question))

    async def _drop(self, tasks: Collection[asyncio.Task[None]]) -> None:
        running = [task for task in tasks if not task.done()]
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
