"""A guard's part in what conversations remember: it recalls, it has facts remembered, and it forgets.

A fact is written after the answer that it came with. A guard that dies in between leaves the write to the
next guard that takes up the request, as it leaves the rest. So a request that is submitted at once, to
another guard, may begin before that; within one guard it waits.
"""

import asyncio
from collections.abc import Callable
from weakref import WeakValueDictionary

from msgspec.structs import replace

from mesh.bus.connection import Bus
from mesh.bus.stores import read_memory, write_memory
from protocol.domain.admission import Rejected
from protocol.domain.memory import recalled
from protocol.domain.steps import Remember
from protocol.wire.commands import Forget
from protocol.wire.config import Fleet
from protocol.wire.handoff import Fact
from protocol.wire.records import MemoryRecord


class ConversationMemory:
    """The memory of every client's conversations.

    Args:
        fleet: returns the fleet as it is now.
        now: returns UTC µs.
    """

    def __init__(self, bus: Bus, fleet: Callable[[], Fleet], now: Callable[[], int]) -> None:
        self._bus = bus
        self._fleet = fleet
        self._now = now
        self._locks: WeakValueDictionary[tuple[str, str], asyncio.Lock] = WeakValueDictionary()

    def _lock(self, client: str, conversation: str) -> asyncio.Lock:
        lock = self._locks.get((client, conversation))
        if lock is None:
            lock = self._locks[client, conversation] = asyncio.Lock()
        return lock

    async def recall(self, client: str, conversation: str) -> tuple[Fact, ...]:
        """Return what a request of the conversation begins with. Raises BusError."""
        async with self._lock(client, conversation):
            records = await read_memory(self._bus, client, conversation)
        return recalled(records, self._now(), self._fleet().memory_max_age_s)

    async def remember(self, step: Remember) -> None:
        """Write what a request ended with. Twice is the same as once. Raises as `write_memory`."""
        client = str(step.event.to)
        async with self._lock(client, step.conversation):
            await write_memory(self._bus, client, step.records)

    async def forget(self, control: Forget, sender: str, role: str, stored_us: int) -> Rejected | None:
        """Obey an order to forget; return why not, if it may not be obeyed. Twice is the same as once.

        Args:
            stored_us: when the order was stored, UTC µs: what is remembered later stays.

        Raises as `write_memory`.
        """
        client, fleet = str(control.client or sender), self._fleet()
        if role != "operator" and (role != "client" or client != sender):
            return Rejected("not_allowed", "a client has its own conversations forgotten only")
        if client not in (*fleet.clients, *fleet.operators):
            return Rejected("unknown_client", f"{client} is no client or operator of the fleet")
        conversation, by = control.conversation, control.by or sender
        all_ = MemoryRecord(conversation=conversation, at=stored_us, by=by, control=control.id)
        async with self._lock(client, conversation):
            keys = control.keys
            if not keys:  # first that everything is forgotten: it holds even if this guard dies here
                await write_memory(self._bus, client, [all_])
                standing = await read_memory(self._bus, client, conversation)
                keys = tuple(record.key for record in standing if record.fact is not None)
            await write_memory(self._bus, client, [replace(all_, key=key) for key in keys])
        return None
