"""Following a request: what is known of it so far, then what happens, and its end.

A client may know what is addressed to it, and hear what the turns say while they work. With a viewer's
connection beside its own, the events and the journaled steps come first, and the rest as it happens, in its
order (`mesh.client.in_order`). What is heard is never the only place of a truth: the end comes all the same.
"""

import asyncio
import contextlib
from collections import deque
from contextlib import aclosing
from types import TracebackType
from typing import TYPE_CHECKING, NamedTuple, Self

from mesh.agent.live import read_note
from mesh.agent.record import Record
from mesh.bus.connection import Bus, Subscription
from mesh.bus.nats_protocol import Incoming
from mesh.bus.reader import batch
from mesh.client.in_order import MOST_WAITING, InOrder
from mesh.client.in_order import Heard as Heard
from mesh.client.journals import journaled
from mesh.errors import OutcomeUnknown, Unreachable
from protocol.wire import codec, events, subjects
from protocol.wire.notices import LiveNote

if TYPE_CHECKING:
    from mesh.client.client import Client, Outcome, Question

LOOK_S = 0.2
"""How often a viewer looks for more events; at once, when something is heard that an event comes before."""
LAST_EVENTS_S = 5.0
"""How long the end waits for a viewer's events before it."""
_BATCH = 256
_AWAY = (OutcomeUnknown, Unreachable)


class Happened(NamedTuple):
    """An event of the log; a viewer's to see."""

    event: events.AnyEvent


class Journaled(NamedTuple):
    """A step that stood in a running turn's journal when the following began; a viewer's to see."""

    agent: str
    turn: str
    round: int
    step: Record


Followed = "Heard | Happened | Journaled | Question | Outcome"


class Following:
    """`async for item in client.follow(request)`: the last item is an `Outcome`, and then it ends.

    As `async with client.follow(request) as feed:` it listens from the beginning of the block, so that
    nothing is missed of a request that is submitted in it.
    """

    def __init__(self, client: "Client", bus: Bus, request: str, viewer: Bus | None) -> None:
        self._client, self._bus, self._request, self._viewer = client, bus, request, viewer
        self._items: deque[object] = deque()
        self._came = asyncio.Event()
        self._subscription: Subscription | None = None
        self._look = asyncio.Event()
        """Says that the log is worth a look."""
        self._order = InOrder(bus, self._put_note, reads=viewer is not None, look=self._look.set)
        self._tasks: list[asyncio.Task[None]] = []
        self._begun = self._over = False

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> "Heard | Happened | Journaled | Question | Outcome":
        """Return what comes next. Raises SubmitRejected, and BusError when a viewer cannot read."""
        from mesh.client.client import Outcome

        await self.start()
        while not self._items:
            if self._over:
                raise StopAsyncIteration
            self._came.clear()
            await self._came.wait()
        item = self._items.popleft()
        if isinstance(item, Exception):
            await self.close()
            raise item
        if isinstance(item, Outcome):
            await self.close()
        return item  # type: ignore[return-value]  # only these are put there

    async def start(self) -> None:
        """Begin to listen. Idempotent. Raises BusError."""
        if self._begun:
            return
        self._begun = True
        subject = f"mesh.live.{self._client.name}.{self._request}.>"
        self._subscription = await self._bus.subscribe(subject, self._on_note)
        reading = None
        if self._viewer is not None:
            reading = asyncio.create_task(self._guarded(self._read(self._viewer)))
            self._tasks.append(reading)
        self._tasks.append(asyncio.create_task(self._guarded(self._wait(reading))))

    async def close(self) -> None:
        """Stop listening. Idempotent; what has come already can still be taken."""
        self._begun = self._over = True
        self._came.set()
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._order.close()
        subscription, self._subscription = self._subscription, None
        if subscription is not None:
            await subscription.close()

    # --- what comes in ----------------------------------------------------------------------------

    def _put(self, item: object) -> None:
        self._items.append(item)
        self._came.set()

    async def _guarded(self, work: "asyncio.Future[None] | object") -> None:
        try:
            await work  # type: ignore[misc]  # a coroutine
        except Exception as error:
            self._put(error)

    def _on_note(self, message: Incoming) -> None:
        note = read_note(message.data)
        parts = message.subject.split(".")
        if note is None or len(parts) != 6 or note.turn != parts[5]:
            return
        self._order.hear(Heard(parts[4], note))

    def _put_note(self, heard: Heard) -> None:
        if len(self._items) < MOST_WAITING or heard.note.kind == "ended":
            self._put(heard)

    async def _wait(self, reading: "asyncio.Task[None] | None") -> None:
        """Put what is addressed to the client: questions, and the end."""
        from mesh.client.client import outcome_of, question_of

        async with aclosing(self._client.addressed(self._request)) as addressed:
            async for event in addressed:
                self._look.set()
                if reading is None:
                    await self._order.before(event)
                if isinstance(event, events.TurnSuspended):
                    self._put(question_of(event))
                elif isinstance(event, events.Ended):
                    if reading is not None:  # the log's last events are put before the end
                        await asyncio.wait({reading}, timeout=LAST_EVENTS_S)
                    self._put(outcome_of(event))
                    return

    # --- what a viewer may read -------------------------------------------------------------------

    async def _read(self, viewer: Bus) -> None:
        """Put the events so far, the journals of the turns that run, what was held, and every event since."""
        seen, seq = _Open(), 1
        told = False
        while True:
            self._look.clear()
            try:
                part = await batch(viewer, "LOG", subjects.evt_of(self._request), seq, _BATCH)
                if not part and not told:
                    await self._tell_steps(viewer, seen)
                    told = True
            except _AWAY:
                await viewer.wait_connected()  # one that is closed never comes back, which it says
                part = []
            for kept in part:
                seq = kept.seq + 1
                event = codec.decode_event(kept.data)
                await self._order.before(event)
                seen.take(event)
                self._put(Happened(event))
                self._order.after(event)
                if isinstance(event, events.Ended):
                    self._order.let_out()
                    return
            if not part:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(LOOK_S):
                        await self._look.wait()

    async def _tell_steps(self, viewer: Bus, seen: "_Open") -> None:
        """Put the steps of the turns that run, and then what was heard that is not among them."""
        newest: dict[tuple[str, int], int] = {}
        for turn in seen.journals:
            for step in await journaled(viewer, self._request, (seen.agent,), turn):
                self._put(Journaled(step.agent, turn, step.round, step.record))
                newest[turn, step.round] = max(step.record.at, newest.get((turn, step.round), 0))
        last = {(seen.journals[turn], round_): at for (turn, round_), at in newest.items()}

        def is_told(note: LiveNote) -> bool:
            return note.kind != "ended" and note.at <= last.get((note.turn, note.round), -1)

        self._order.caught_up(is_told)


class _Open:
    """Which turns run, by the id under which each is journaled."""

    def __init__(self) -> None:
        self.journals: dict[str, str] = {}
        self.agent = ""

    def take(self, event: events.AnyEvent) -> None:
        work = getattr(event, "work", None)
        if isinstance(work, events.Work):
            self.agent = work.handoff.to_agent
            self.journals = {work.continues or work.turn: work.turn}  # at most one turn is open at a time
        elif isinstance(event, events.RequestCompleted | events.RequestFailed | events.EscalationRaised):
            self.journals = {}
