"""What a client sees of a request: its questions, its outcome, and a feed of everything that happens.

A client may read the events addressed to it, and receive the live notes of turns. With an additional viewer's
connection it also reads the log and the journals. Events and live notes take different paths and arrive in
any order: an event may come after the first notes of the round that it opened. Each item has its time (`at`),
by which a reader can sort them. The end is always the last item.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Collection, Coroutine, Mapping
from contextlib import aclosing
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, Self

from mesh.bus.connection import Bus, Subscription
from mesh.bus.nats_protocol import Incoming
from mesh.bus.reader import batch
from mesh.bus.stores import journaled
from mesh.errors import BusError, MeshError
from protocol.views.timeline import named
from protocol.wire import codec, events, subjects
from protocol.wire.commands import Usage
from protocol.wire.ids import AgentName, RequestId
from protocol.wire.records import LiveNote, OpenQuestion, Questions, Record

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    from mesh.client.client import Client

    A = TypeVar("A", default=Any)  # so that a bare `Outcome` accepts any answer
else:
    from typing import TypeVar

    A = TypeVar("A")

MOST_WAITING = 1_000
"""Most items that wait to be read; further live notes are dropped."""
LOOK_S = 0.2
"""How often a viewer polls for more events."""
LAST_EVENTS_S = 5.0
"""How long the end waits for the events before it, in seconds."""
LAST_WORDS_S = 1.0
"""How long the end waits for notes that the bus has already taken, in seconds."""
_BATCH = 256


# --- how it ended ---------------------------------------------------------------------------------


class Requested(str, Generic[A]):
    """For type checkers: the id of a request whose answer is an `A`. It is a `RequestId` when it runs."""


class Outcome(NamedTuple, Generic[A]):
    """How a request ended."""

    request: RequestId
    status: str
    """`completed`, `refused`, `failed`, `expired` or `cancelled`."""
    event: events.AnyEvent
    """The last event."""
    answer: A = None  # type: ignore[assignment]  # so that a completed request's answer needs no check for None
    """The answer of a completed request, in the requested type; None for any other end."""

    @property
    def agent(self) -> str:
        """The agent that answered or gave up; empty if a person answered, or time was up."""
        match self.event:
            case events.RequestCompleted(control="", sender=agent) | events.RequestFailed(sender=agent):
                return agent or ""
        return ""

    @property
    def usage(self) -> Usage | None:
        """What the request was charged; None unless its policy tells clients (`tell_client`)."""
        return getattr(self.event, "usage", None)

    @property
    def path(self) -> tuple[AgentName, ...]:
        """The agents that had the request, in order, and `human` for people; empty unless its policy tells
        clients (`tell_client`)."""
        return getattr(self.event, "path", ())

    @property
    def reason(self) -> str:
        """One line that tells why the request has no answer; empty if it has one."""
        match self.event:
            case events.RequestRefused(refusal=refusal):
                return f"{refusal.rule}: {refusal.detail}"
            case events.RequestFailed(code=code, reason=reason):
                return f"{code}: {reason}" if reason else code
            case events.RequestCancelled(by=by, sender=sender, reason=reason):
                return f"cancelled by {named(by, sender)}" + (f": {reason}" if reason else "")
            case events.RequestExpired() as expired:
                return expired.explanation
        return ""


class AnswerInvalid(MeshError, code="client.answer_invalid"):
    """A completed request's answer does not match its `answer_type`. `outcome` has the unconverted answer."""

    def __init__(self, outcome: Outcome, mistakes: tuple[str, ...]) -> None:
        super().__init__(f"{outcome.request}: the answer does not fit: {'; '.join(mistakes)}")
        self.outcome, self.mistakes = outcome, mistakes


def outcome_of(event: events.Ended) -> Outcome:
    """Return the outcome in a request's last event."""
    answer = event.answer if isinstance(event, events.RequestCompleted) else None
    return Outcome(event.request, events.type_of(event).partition(".")[2], event, answer)


# --- what it asks ---------------------------------------------------------------------------------
# Tasks of a tree may ask at the same time. So questions stand side by side: each is heard once, answered by
# its own turn and round, and dropped once guards say that it is over.


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
    """The agent that asks."""
    n: int
    """Number of the event that asked. It identifies a question within a request."""


class ClientView(NamedTuple):
    """A request's state as its client can see it."""

    event: events.AnyEvent
    """The newest event addressed to the client."""
    questions: tuple[Question, ...]
    """The client's open questions, oldest first."""


def questions_in(request: RequestId, kept: Questions | None) -> tuple[Question, ...]:
    """Return a client's open questions, given the list that guards keep (None if there is no list)."""
    return () if kept is None else tuple(_question(request, each) for each in kept.open)


def _question(request: RequestId, kept: OpenQuestion) -> Question:
    ask = kept.ask
    return Question(
        request, kept.turn, kept.round, ask.question, ask.schema, kept.expires_at, kept.agent, kept.n
    )


class Replying:
    """Replies to questions as they come, each in its own task.

    Args:
        on_question: returns the reply. It is cancelled once its question is over.
    """

    def __init__(self, client: "Client", on_question: Callable[[Question], Awaitable[Any]] | None) -> None:
        self._client, self._on_question = client, on_question
        self._tasks: dict[int, asyncio.Task[None]] = {}
        """Tasks by the number of the event that asked. Finished ones stay, so that each question is handled
        once."""

    async def __aenter__(self) -> "Replying":
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._drop(self._tasks.values())

    @property
    def tasks(self) -> list[asyncio.Task[None]]:
        """The tasks that are still running."""
        return [task for task in self._tasks.values() if not task.done()]

    async def take(self, questions: Collection[Question]) -> None:
        """Start tasks for new questions, and cancel those of questions that are over."""
        if self._on_question is None:
            return
        still = {question.n for question in questions}
        await self._drop([task for n, task in self._tasks.items() if n not in still])
        for question in questions:
            if question.n not in self._tasks:
                self._tasks[question.n] = asyncio.create_task(self._reply(question, self._on_question))

    def raise_failed(self) -> None:
        """Raise the error of a reply that failed."""
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


# --- what happens ---------------------------------------------------------------------------------


class AgentNote(NamedTuple):
    """A live note."""

    agent: str
    note: LiveNote


class LogEvent(NamedTuple):
    """An event of the log. Only viewers get it."""

    event: events.AnyEvent


class JournalStep(NamedTuple):
    """A step that was in a running turn's journal when the feed began. Only viewers get it."""

    agent: str
    turn: str
    round: int
    step: Record


class Following:
    """`async for item in client.follow(request)`: the last item is an `Outcome`, and then it ends.

    Used as `async with client.follow(request) as feed:`, it listens from the beginning of the block, so it
    misses nothing of a request that is submitted inside the block.
    """

    def __init__(self, client: "Client", bus: Bus, request: str, viewer: Bus | None) -> None:
        self._client, self._bus, self._request, self._viewer = client, bus, request, viewer
        self._items: asyncio.Queue[
            AgentNote | LogEvent | JournalStep | Question | Outcome | Exception | None
        ] = asyncio.Queue()
        """None ends the iteration."""
        self._early: list[AgentNote] | None = None if viewer is None else []
        """Notes that came while the existing log was being read; None once that is done."""
        self._subscription: Subscription | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._begun = self._over = False

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> AgentNote | LogEvent | JournalStep | Question | Outcome:
        """Return the next item. Raises SubmitRejected, AnswerInvalid; BusError if a viewer cannot read."""
        await self.start()
        if self._over and self._items.empty():
            raise StopAsyncIteration
        item = await self._items.get()
        if item is None:
            raise StopAsyncIteration
        if isinstance(item, Exception | Outcome):
            await self.close()
        if isinstance(item, Exception):
            raise item
        return item

    async def start(self) -> None:
        """Begin to listen. Idempotent. Raises BusError."""
        if self._begun:
            return
        self._begun = True
        subject = subjects.live_to(self._client.name, self._request)
        self._subscription = await self._bus.subscribe(subject, self._on_note)
        reading = None if self._viewer is None else self._run(self._read(self._viewer))
        self._run(self._wait(reading))

    async def close(self) -> None:
        """Stop listening. Idempotent. Items that have arrived can still be read."""
        self._begun = self._over = True
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._items.put_nowait(None)
        subscription, self._subscription = self._subscription, None
        if subscription is not None:
            await subscription.close()

    # --- incoming items ---------------------------------------------------------------------------

    def _run(self, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
        """Start a task whose error ends the iteration."""

        async def guarded() -> None:
            try:
                await work
            except Exception as error:
                self._items.put_nowait(error)

        task = asyncio.create_task(guarded())
        self._tasks.append(task)
        return task

    def _on_note(self, message: Incoming) -> None:
        note = codec.readable(message.data, LiveNote)
        parts = message.subject.split(".")
        if note is None or len(parts) != 6 or note.turn != parts[5]:
            return
        waiting = self._items.qsize() + len(self._early or ())
        if waiting >= MOST_WAITING and note.kind != "ended":
            return
        heard = AgentNote(parts[4], note)
        if self._early is None:
            self._items.put_nowait(heard)
        else:
            self._early.append(heard)

    async def _wait(self, reading: asyncio.Task[None] | None) -> None:
        """Emit the events addressed to the client: questions, and the end."""
        heard = set[int]()
        async with aclosing(self._client.addressed(self._request)) as addressed:
            async for event, questions in addressed:
                for question in questions:
                    if question.n not in heard:
                        heard.add(question.n)
                        self._items.put_nowait(question)
                if isinstance(event, events.Ended):
                    if reading is not None:
                        await asyncio.wait({reading}, timeout=LAST_EVENTS_S)
                    with contextlib.suppress(BusError):
                        await self._bus.flush(LAST_WORDS_S)  # notes sent before the end have arrived now
                    self._items.put_nowait(self._client.as_asked(outcome_of(event)))
                    return

    # --- what a viewer may read -------------------------------------------------------------------

    async def _read(self, viewer: Bus) -> None:
        """Emit the existing events, the running journal, early notes, and then every new event."""
        running, seq = _Running(), 1
        while True:
            look = partial(batch, viewer, "LOG", subjects.evt_of(self._request), seq, _BATCH)
            part = await viewer.retry_unavailable(look)
            if not part and self._early is not None:
                await viewer.retry_unavailable(lambda: self._catch_up(viewer, running))
            for stored in part:
                seq = stored.seq + 1
                event = codec.decode_event(stored.data)
                running.take(event)
                self._items.put_nowait(LogEvent(event))
                if isinstance(event, events.Ended):
                    self._let_out({})
                    return
            if not part:
                await asyncio.sleep(LOOK_S)

    async def _catch_up(self, viewer: Bus, running: "_Running") -> None:
        """Emit the steps of the running turn, then the early notes that are not among them."""
        last: dict[tuple[str, int], int] = {}
        for journal, turn in running.journals.items():
            for step in await journaled(viewer, self._request, (running.agent,), journal):
                self._items.put_nowait(JournalStep(step.agent, journal, step.round, step.record))
                last[turn, step.round] = max(step.record.at, last.get((turn, step.round), 0))
        self._let_out(last)

    def _let_out(self, last: dict[tuple[str, int], int]) -> None:
        """Emit early notes, except those that journaled steps already covered.

        Args:
            last: UTC µs at which the newest step of a turn's round was journaled.
        """
        early, self._early = self._early or [], None
        for heard in early:
            note = heard.note
            if note.kind == "ended" or note.at > last.get((note.turn, note.round), -1):
                self._items.put_nowait(heard)


class _Running:
    """Return the running turn, by the id of its journal. At most one turn runs at a time."""

    def __init__(self) -> None:
        self.journals: dict[str, str] = {}
        self.agent = ""

    def take(self, event: events.AnyEvent) -> None:
        work = event.work
        if work is not None:
            self.agent = work.handoff.to_agent
            self.journals = {work.journal_id: work.turn}
        elif isinstance(event, events.RequestCompleted | events.RequestFailed | events.EscalationRaised):
            self.journals = {}
