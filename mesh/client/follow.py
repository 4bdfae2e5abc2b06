"""Following a request: its history so far, each new event and live note, and its end.

A client may know the events addressed to it, and hear the live notes of turns. With a viewer's
connection beside its own it reads the log and the journals, too. Events and live notes travel on different
ways, and arrive in any order. An event may come after the first notes of the round that it opened. Each item
has its time (`at`), by which a reader can sort them. The end is always the last item.
"""

import asyncio
import contextlib
from collections.abc import Coroutine
from contextlib import aclosing
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, Self

from mesh.bus.connection import Bus, Subscription
from mesh.bus.nats_protocol import Incoming
from mesh.bus.reader import batch
from mesh.client.journals import journaled
from mesh.errors import BusError
from protocol.wire import codec, events, subjects
from protocol.wire.records import LiveNote, Record

if TYPE_CHECKING:
    from mesh.client.client import Client
    from mesh.client.outcome import Outcome
    from mesh.client.questions import Question

MOST_WAITING = 1_000
"""Items that wait to be taken; live notes beyond them are dropped."""
LOOK_S = 0.2
"""How often a viewer looks for more events."""
LAST_EVENTS_S = 5.0
"""How long the end waits for the events before it, in seconds."""
LAST_WORDS_S = 1.0
"""How long the end waits for notes that the bus has already taken, in seconds."""
_BATCH = 256


class Heard(NamedTuple):
    """A live note."""

    agent: str
    note: LiveNote


class Happened(NamedTuple):
    """An event of the log; a viewer's to see."""

    event: events.AnyEvent


class Journaled(NamedTuple):
    """A step that stood in a running turn's journal when the following began; a viewer's to see."""

    agent: str
    turn: str
    round: int
    step: Record


class Following:
    """`async for item in client.follow(request)`: the last item is an `Outcome`, and then it ends.

    As `async with client.follow(request) as feed:` it listens from the beginning of the block. So it misses
    nothing of a request that is submitted in the block.
    """

    def __init__(self, client: "Client", bus: Bus, request: str, viewer: Bus | None) -> None:
        self._client, self._bus, self._request, self._viewer = client, bus, request, viewer
        self._items: asyncio.Queue[Heard | Happened | Journaled | Question | Outcome | Exception | None] = (
            asyncio.Queue()
        )
        """None ends the iteration."""
        self._early: list[Heard] | None = None if viewer is None else []
        """Notes that came while the log up to now was read; None once that is done."""
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

    async def __anext__(self) -> "Heard | Happened | Journaled | Question | Outcome":
        """Return what comes next. Raises SubmitRejected, AnswerInvalid; BusError if a viewer cannot read."""
        from mesh.client.outcome import Outcome

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
        """Stop listening. Idempotent; what has come already can still be taken."""
        self._begun = self._over = True
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._items.put_nowait(None)
        subscription, self._subscription = self._subscription, None
        if subscription is not None:
            await subscription.close()

    # --- what comes in ----------------------------------------------------------------------------

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
        heard = Heard(parts[4], note)
        if self._early is None:
            self._items.put_nowait(heard)
        else:
            self._early.append(heard)

    async def _wait(self, reading: asyncio.Task[None] | None) -> None:
        """Give out the events addressed to the client: questions, and the end."""
        from mesh.client.outcome import outcome_of

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
                        await self._bus.flush(LAST_WORDS_S)  # notes sent before the end are here now
                    self._items.put_nowait(self._client.as_asked(outcome_of(event)))
                    return

    # --- what a viewer may read -------------------------------------------------------------------

    async def _read(self, viewer: Bus) -> None:
        """Give out the events so far, the running journal, early notes, and then every event since."""
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
                self._items.put_nowait(Happened(event))
                if isinstance(event, events.Ended):
                    self._let_out({})
                    return
            if not part:
                await asyncio.sleep(LOOK_S)

    async def _catch_up(self, viewer: Bus, running: "_Running") -> None:
        """Give out the steps of the turn that runs, then the early notes that are not among them."""
        last: dict[tuple[str, int], int] = {}
        for journal, turn in running.journals.items():
            for step in await journaled(viewer, self._request, (running.agent,), journal):
                self._items.put_nowait(Journaled(step.agent, journal, step.round, step.record))
                last[turn, step.round] = max(step.record.at, last.get((turn, step.round), 0))
        self._let_out(last)

    def _let_out(self, last: dict[tuple[str, int], int]) -> None:
        """Give out early notes, but for those that journaled steps have told.

        Args:
            last: when the newest step of a turn's round was journaled (UTC µs).
        """
        early, self._early = self._early or [], None
        for heard in early:
            note = heard.note
            if note.kind == "ended" or note.at > last.get((note.turn, note.round), -1):
                self._items.put_nowait(heard)


class _Running:
    """The turn that runs, by the id under which it is journaled; at most one runs at a time."""

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
