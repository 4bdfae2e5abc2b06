"""A guard's part in conversations' memory: it recalls, folds answers into records, and forgets.

The answer in the log is the write. A recall reads the records, and then the client's own events after the log
sequence up to which the records are complete. So a request begins with everything that earlier answers left,
whichever guard decided them and however far the records lag.

Records are derived from the answers in the background. Each has the answer's log sequence, so it does not
matter which guard writes it, when, or how often.
"""

import asyncio
import contextlib
from collections.abc import Callable, Iterable
from typing import NamedTuple

from mesh.bus import memory as store
from mesh.bus.connection import Bus
from mesh.bus.event_log import STREAM as LOG
from mesh.bus.reader import StoredMessage, last
from mesh.errors import PASSING, BusError, LogUnreadable, SequenceConflict
from mesh.service.conditions import Kind
from mesh.service.failpoints import failpoint
from mesh.service.logs import get_logger
from protocol.domain.admission import Rejected
from protocol.domain.memory import last_speaker, recalled
from protocol.wire.commands import Forget
from protocol.wire.config import Fleet
from protocol.wire.errors import ProtocolError
from protocol.wire.events import AnyEvent, RequestCompleted, TurnSuspended
from protocol.wire.handoff import Fact
from protocol.wire.ids import AgentName
from protocol.wire.records import MemoryForgotten, MemoryRecord, MemorySpeaker
from protocol.wire.subjects import STORED_IN

_log = get_logger(__name__)
_ALL = STORED_IN[LOG][0]

SWEEP_S = 60.0
"""How often a guard searches for answers that dead guards have not folded."""
STRIDE = 1000
"""How many events the log must be ahead before a guard records again how far the records reach."""

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


Left = MemoryRecord | MemorySpeaker


class Recalled(NamedTuple):
    """What a conversation remembers."""

    facts: tuple[Fact, ...] = ()
    last: AgentName | None = None
    """The agent that answered or asked last; None if nobody did, or if that was not wanted."""


async def _nobody() -> None:
    return None


class ConversationMemory:
    """The memory of all clients' conversations, as one guard knows it.

    Args:
        fleet: returns the current fleet.
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
        """A sequence that the log is known to have reached."""
        self._reached: dict[str, int] = {}
        """By client: a log sequence up to which every answer is in the records."""
        self._behind: set[str] = set()
        """Clients with answers that may not be in the records yet."""
        self._work = asyncio.Event()

    def stored(self, event: AnyEvent, seq: int) -> None:
        """Note that this guard has stored an event at a log sequence."""
        self._end = max(self._end, seq)
        if isinstance(event, RequestCompleted | TurnSuspended) and event.conversation is not None:
            self._fold_soon(str(event.to))

    def _fold_soon(self, client: str) -> None:
        self._behind.add(client)
        self._work.set()

    # --- recalling --------------------------------------------------------------------------------

    async def recall(self, client: str, conversation: str, *, speaker: bool = False) -> Recalled:
        """Return the facts with which a request of a conversation begins.

        Args:
            speaker: also return who spoke last.

        Raises BusError, LogUnreadable.
        """
        after, end = await self._reached_by(client), self._end
        records, newer, known = await asyncio.gather(
            store.current_memory(self._bus, client, conversation),
            self._newer(client, conversation, after, end),
            store.last_speaker(self._bus, client, conversation) if speaker else _nobody(),
        )
        for subject in records.unreadable:
            self._bus.conditions.raise_(RECORD_UNREADABLE, subject)
        if records.closed:
            return Recalled()
        now, max_age_s = self._now(), self._fleet().memory_max_age_s
        facts = (each for each in newer if isinstance(each, MemoryRecord))
        remembered = recalled((*records.entries, *facts), now, max_age_s)
        if not speaker:
            return Recalled(remembered)
        spoken = [each for each in (known, *newer) if isinstance(each, MemorySpeaker)]
        last = last_speaker(spoken, records.entries, now, max_age_s)
        return Recalled(remembered, None if last is None else last.agent)

    async def _reached_by(self, client: str) -> int:
        """Return a log sequence up to which the client's records are complete."""
        if self._since_s != self._bus.since_s:  # a new connection may lead to another log
            self._since_s = self._bus.since_s
            self._reached.clear()
            self._end = 0
        if client not in self._reached:
            await self._look(client)
        return self._reached[client]

    async def _look(self, client: str) -> store.Reached:
        """Return how far the records claim to reach. If that is beyond the log's end, lower it first."""
        reached = await store.reached(self._bus, client)
        if reached.seq > self._end:
            newest = await last(self._bus, LOG, _ALL, leader=True)
            end = reached.seq if newest is None else newest.seq
            if end < reached.seq:
                _log.warning("memory_set_back", client=client, reached=reached.seq, log_end=end)
                await store.set_back(self._bus, client, end)
                self._reached[client], reached = end, await store.reached(self._bus, client)
            self._end = max(self._end, end)
        self._learn(client, reached.seq)
        return reached

    def _learn(self, client: str, seq: int) -> None:
        self._reached[client] = max(seq, self._reached.get(client, 0))

    async def _newer(self, client: str, conversation: str, after: int, end: int) -> list[Left]:
        """Return what answers and questions after `after` leave to a conversation.

        Args:
            end: a sequence that the log had already reached.
        """
        found, is_empty = list[Left](), True
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
    ) -> Iterable[Left] | None:
        """Return what an event leaves to `conversation` (None: to any); None if the event is unreadable.

        An unreadable answer does not keep requests from beginning: it is reported and left out.
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
        """Fold answers soon after they are stored, and all of them every `SWEEP_S`. Runs until cancelled."""
        while True:
            await self._fold_all((*self._fleet().clients, *self._fleet().operators))
            until_s = asyncio.get_running_loop().time() + SWEEP_S
            while await self._has_work(until_s):
                behind, self._behind = self._behind, set()
                await self._fold_all(sorted(behind))

    async def _has_work(self, until_s: float) -> bool:
        """Wait for answers that may not be in the records; return False if there were none by `until_s`."""
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
        """Write records of all answers to a client in the log, recording the progress now and then."""
        reached, end = await self._look(client), self._end
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
            reached = await self._record_progress(client, at, reached)
        self._learn(client, end)
        await self._record_progress(client, max(at, end), reached)
        self._bus.conditions.clear(ANSWER_UNREADABLE, client)

    async def _record_progress(self, client: str, at: int, reached: store.Reached) -> store.Reached:
        """Record how far the records reach if that is a stride further; return what is recorded now."""
        if at - reached.seq < self._stride:
            return reached
        with contextlib.suppress(SequenceConflict):  # another guard has just done so
            await store.write_reached(self._bus, client, at, reached)
        return await store.reached(self._bus, client)

    # --- forgetting -------------------------------------------------------------------------------

    async def forget(self, control: Forget, sender: str, role: str, stored_us: int) -> Rejected | None:
        """Carry out an order to forget, or return its rejection. Idempotent.

        Everything that answers have left up to the log's current end is forgotten, whether in the records or
        not.

        Args:
            stored_us: UTC µs at which the order was stored.

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
