"""A guard's part in what conversations remember: it recalls, folds answers into records, and forgets.

The answer in the log is the write. A recall reads the records, and behind the place in the log up to which
they are complete it reads the client's own events. So a request begins with all that earlier answers left,
whichever guard decided them, and however far the records lag behind.

Records are made from the answers in the background. Each bears the answer's place in the log, so that it does
not matter which guard writes it, when, or how often.
"""

import asyncio
import contextlib
from collections.abc import Callable, Iterable

from mesh.bus import memory as store
from mesh.bus.connection import Bus
from mesh.bus.event_log import STREAM as LOG
from mesh.bus.reader import StoredMessage, last
from mesh.errors import PASSING, BusError, LogUnreadable, SequenceConflict
from mesh.service.conditions import Kind
from mesh.service.failpoints import failpoint
from mesh.service.logs import get_logger
from protocol.domain.admission import Rejected
from protocol.domain.memory import recalled
from protocol.wire.commands import Forget
from protocol.wire.config import Fleet
from protocol.wire.errors import ProtocolError
from protocol.wire.events import AnyEvent, RequestCompleted
from protocol.wire.handoff import Fact
from protocol.wire.records import MemoryForgotten, MemoryRecord
from protocol.wire.subjects import STORED_IN

_log = get_logger(__name__)
_ALL = STORED_IN[LOG][0]

SWEEP_S = 60.0
"""How often a guard looks for answers that nobody has folded: those of guards that died."""
STRIDE = 1000
"""Events by which the log is ahead before a guard says anew how far the records reach."""

RECORD_UNREADABLE = Kind(
    "memory_unreadable",
    "memory_readable",
    "{} cannot be read: `mesh memory forget` the conversation, or remove it from its stream",
    blocks=False,
)
ANSWER_UNREADABLE = Kind(
    "answer_unreadable", "answer_readable", "what answers to {} left cannot be read", blocks=False
)
LAGS = Kind("memory_lags", "memory_current", "answers to {} are not folded into its memory", blocks=False)


class ConversationMemory:
    """What every client's conversations remember, as one guard knows it.

    Args:
        fleet: returns the fleet as it is now.
        now: returns UTC µs.
        stride: events by which the log is ahead before it is said anew how far the records reach.
    """

    def __init__(
        self, bus: Bus, fleet: Callable[[], Fleet], now: Callable[[], int], stride: int = STRIDE
    ) -> None:
        self._bus = bus
        self._stride = stride
        self._fleet = fleet
        self._now = now
        self._since_s = bus.since_s
        self._end = 0
        """A place in the log that it is known to have reached."""
        self._reached: dict[str, int] = {}
        """By client: a place up to which every answer in the log is in the records."""
        self._behind: set[str] = set()
        """Clients with answers that may not be in the records yet."""
        self._work = asyncio.Event()

    def stored(self, event: AnyEvent, seq: int) -> None:
        """Note that this guard has stored an event at a place in the log."""
        self._end = max(self._end, seq)
        if type(event) is RequestCompleted and event.conversation is not None:
            self._fold_soon(str(event.to))

    def _fold_soon(self, client: str) -> None:
        self._behind.add(client)
        self._work.set()

    # --- recalling --------------------------------------------------------------------------------

    async def recall(self, client: str, conversation: str) -> tuple[Fact, ...]:
        """Return what a request of the conversation begins with. Raises BusError, LogUnreadable."""
        after, end = await self._reached_by(client), self._end
        records, newer = await asyncio.gather(
            store.current_memory(self._bus, client, conversation),
            self._newer(client, conversation, after, end),
        )
        for subject in records.unreadable:
            self._bus.conditions.raise_(RECORD_UNREADABLE, subject)
        if records.closed:
            return ()
        return recalled((*records.entries, *newer), self._now(), self._fleet().memory_max_age_s)

    async def _reached_by(self, client: str) -> int:
        """Return a place in the log up to which the client's records are complete."""
        if self._since_s != self._bus.since_s:  # behind a new connection there may be another log
            self._since_s = self._bus.since_s
            self._reached.clear()
            self._end = 0
        if client not in self._reached:
            await self._look(client)
        return self._reached[client]

    async def _look(self, client: str) -> store.Reached:
        """Return how far the records say that they reach; further than the log does, they are set back."""
        stands = await store.reached(self._bus, client)
        if stands.seq > self._end:
            newest = await last(self._bus, LOG, _ALL, leader=True)
            end = stands.seq if newest is None else newest.seq
            if end < stands.seq:
                _log.warning("memory_set_back", client=client, reached=stands.seq, log_end=end)
                await store.set_back(self._bus, client, end)
                self._reached[client], stands = end, await store.reached(self._bus, client)
            self._end = max(self._end, end)
        self._learn(client, stands.seq)
        return stands

    def _learn(self, client: str, seq: int) -> None:
        self._reached[client] = max(seq, self._reached.get(client, 0))

    async def _newer(self, client: str, conversation: str, after: int, end: int) -> list[MemoryRecord]:
        """Return what answers behind `after` leave to a conversation.

        Args:
            end: a place that the log had reached before.
        """
        found, is_empty = list[MemoryRecord](), True
        async for each in store.newer_than(self._bus, client, after):
            is_empty = False
            found += await self._left_in(client, each, conversation) or ()
        if is_empty:
            self._learn(client, end)
        else:
            self._fold_soon(client)
        return found

    async def _left_in(
        self, client: str, stored: StoredMessage, conversation: str | None = None
    ) -> Iterable[MemoryRecord] | None:
        """Return what an event leaves, if it is to `conversation` (None: to any); None if it is unreadable.

        An answer that this guard cannot read keeps no request from beginning: it is named, and left out.
        """
        try:
            left_to = store.leaves_to(stored)
            if left_to is None or conversation not in (None, left_to):
                return ()
            return await store.left_in(self._bus, stored)
        except (ProtocolError, LogUnreadable) as error:
            self._bus.conditions.raise_(ANSWER_UNREADABLE, client, code=error.code, detail=str(error))
            return None

    # --- folding ----------------------------------------------------------------------------------

    async def keep(self) -> None:
        """Fold answers into records: soon after they are stored, and every `SWEEP_S` all. Until cancelled."""
        while True:
            await self._fold_all((*self._fleet().clients, *self._fleet().operators))
            until_s = asyncio.get_running_loop().time() + SWEEP_S
            while await self._has_work(until_s):
                behind, self._behind = self._behind, set()
                await self._fold_all(sorted(behind))

    async def _has_work(self, until_s: float) -> bool:
        """Wait for answers that may not be in the records; return False if there were none until then."""
        try:
            async with asyncio.timeout_at(until_s):
                await self._work.wait()
        except TimeoutError:
            return False
        self._work.clear()
        return True

    async def _fold_all(self, clients: Iterable[str]) -> None:
        for client in clients:
            try:
                await self._fold(client)
            except BusError as error:  # no verdict waits for it, and the next sweep comes
                if not isinstance(error, PASSING):
                    self._bus.conditions.raise_(LAGS, client, code=error.code)
            else:
                self._bus.conditions.clear(LAGS, client)

    async def _fold(self, client: str) -> None:
        """Make records from all answers to a client that are in the log; say now and then how far it came."""
        stands, end = await self._look(client), self._end
        at = self._reached[client]
        async for each in store.newer_than(self._bus, client, at):
            left = await self._left_in(client, each)
            if left is None:
                return  # a newer build may know how to read it
            for record in left:
                failpoint("guard.remembers")
                await store.write_record(self._bus, client, record)
            at = each.seq
            self._learn(client, at)
            stands = await self._say(client, at, stands)
        self._learn(client, end)
        await self._say(client, max(at, end), stands)
        self._bus.conditions.clear(ANSWER_UNREADABLE, client)

    async def _say(self, client: str, at: int, stands: store.Reached) -> store.Reached:
        """Say anew how far the records reach, if that is further by a stride; return what stands."""
        if at - stands.seq < self._stride:
            return stands
        with contextlib.suppress(SequenceConflict):  # another guard has just said it
            await store.write_reached(self._bus, client, at, stands)
        return await store.reached(self._bus, client)

    # --- forgetting -------------------------------------------------------------------------------

    async def forget(self, control: Forget, sender: str, role: str, stored_us: int) -> Rejected | None:
        """Obey an order to forget; return why not, if it may not be obeyed. Twice is the same as once.

        What answers have left up to the log's present end is forgotten, be it in the records or not yet.

        Args:
            stored_us: when the order was stored, UTC µs.

        Raises BusError.
        """
        client, fleet = str(control.client or sender), self._fleet()
        if role != "operator" and (role != "client" or client != sender):
            return Rejected("not_allowed", "a client has its own conversations forgotten only")
        if client not in (*fleet.clients, *fleet.operators):
            return Rejected("unknown_client", f"{client} is no client or operator of the fleet")
        newest = await last(self._bus, LOG, _ALL, leader=True)
        entry = MemoryForgotten(
            conversation=control.conversation,
            keys=control.keys,
            seq=0 if newest is None else newest.seq,
            at=stored_us,
            by=control.by or sender,
            control=control.id,
        )
        await store.write_forgotten(self._bus, client, sender, entry)
        return None
