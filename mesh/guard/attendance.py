"""Attendance: since when somebody serves an agent, and how the queue before it moves.

The clock of a round stands while nobody serves its agent, and while the round waits in a queue that moves.
One look when the time is up tells neither, so a guard looks at every agent again and again. It counts only
what it has seen: at its first look, and after a gap in its looks, each span begins anew. So a round may get
more time than its policy says, never less; and no span without service grows out of one missed ping.
"""

import asyncio
import bisect
from collections.abc import Callable, Iterable

from mesh.bus.connection import Bus
from mesh.bus.presence import is_served
from mesh.bus.roles import GET
from mesh.bus.streams import inbox_consumer, steps_of
from mesh.errors import ApiCode, ApiError, BusError
from mesh.service.logs import get_logger
from protocol.domain.steps import Attendance

_log = get_logger(__name__)

LOOK_S = 5.0
GAP_S = 3 * LOOK_S
"""Looks further apart than this tell nothing of the time between them."""
_ANSWER_S = 1.0
_MOST_MARKS = 1_000


class Queue:
    """How far an agent's inbox was delivered, and when a look first saw that."""

    def __init__(self) -> None:
        self._seqs: list[int] = []
        self._times: list[int] = []

    def seen(self, delivered: int, at: int) -> None:
        """Note a look: everything up to the stream sequence `delivered` was delivered at `at` (UTC µs)."""
        if self._seqs and delivered < self._seqs[-1]:  # the server crashed, and forgot its latest deliveries
            self._seqs.clear()
            self._times.clear()
        if self._seqs and delivered == self._seqs[-1]:
            return
        self._seqs.append(delivered)
        self._times.append(at)
        if len(self._seqs) > _MOST_MARKS:  # of old times a coarser record will do: it errs to later
            half = _MOST_MARKS // 2
            del self._seqs[:half:2], self._times[:half:2]

    def holds(self, seq: int) -> bool:
        """Return True if the event at `seq` was seen delivered."""
        return bool(self._seqs) and self._seqs[-1] >= seq

    def moved(self, seq: int) -> int:
        """Return when (UTC µs) the event at `seq` was seen delivered; else when the queue last moved.

        There must have been a look.
        """
        at = bisect.bisect_left(self._seqs, seq)
        return self._times[min(at, len(self._times) - 1)]


class _Agent:
    """What was seen of one agent."""

    def __init__(self) -> None:
        self.served = False
        self.since = 0
        self.looked_at = 0
        self.queue = Queue()

    def seen(self, served: bool, at: int) -> None:
        if served is not self.served or at - self.looked_at > GAP_S * 1e6:
            self.served, self.since = served, at
        self.looked_at = at


class AttendanceWatch:
    """What one guard has seen of the fleet's agents.

    Args:
        agents: returns the names of those that there are.
        now: returns UTC µs.
    """

    def __init__(self, bus: Bus, agents: Callable[[], Iterable[str]], now: Callable[[], int]) -> None:
        self._bus = bus
        self._names = agents
        self._now = now
        self._agents: dict[str, _Agent] = {}

    async def keep(self) -> None:
        """Look at every agent each `LOOK_S`. Runs until cancelled."""
        while True:
            names = tuple(self._names())
            self._agents = {name: seen for name, seen in self._agents.items() if name in names}
            await asyncio.gather(*(self._look_if_possible(name) for name in names))
            await asyncio.sleep(LOOK_S)

    async def _look_if_possible(self, agent: str) -> None:
        try:
            await self._look(agent)
        except BusError as error:  # the bus says so itself; a look that is missing is a gap
            _log.debug("agent_not_seen", agent=agent, code=error.code)

    async def of(self, agent: str, seq: int, first_step: str) -> Attendance:
        """Look at `agent` now, and return how it was served, for its round.

        Args:
            seq: where in the log the event lies that opened the round.
            first_step: the subject of the first step that the round would journal. A server that crashes
                forgets its latest deliveries, a step stands.

        Raises BusError.
        """
        step = f"{steps_of(agent)}.{first_step}"
        seen, stepped = await asyncio.gather(self._look(agent), self._is_there(step))
        since = max(seen.since, seen.queue.moved(seq)) if seen.served else seen.since
        return Attendance(seen.served, since, not (seen.queue.holds(seq) or stepped))

    async def served(self, agents: Iterable[str]) -> list[bool]:
        """Return, for each of these agents, if it is served: as the last look found it, if that was lately.

        Where nobody was found it is looked for again: an agent may just have come. Raises BusError.
        """

        async def look(agent: str) -> bool:
            seen = self._agents.get(agent)
            if seen is not None and seen.served and self._now() - seen.looked_at < GAP_S * 1e6:
                return True
            return (await self._look(agent)).served

        return await asyncio.gather(*map(look, agents))

    async def _look(self, agent: str) -> _Agent:
        served, delivered = await asyncio.gather(is_served(self._bus, agent), self._delivered(agent))
        at = self._now()
        seen = self._agents.setdefault(agent, _Agent())
        seen.seen(served, at)
        seen.queue.seen(delivered, at)
        return seen

    async def _is_there(self, step: str) -> bool:
        found = await self._bus.request(f"{GET}{step}", timeout_s=_ANSWER_S)
        return found.status != 404

    async def _delivered(self, agent: str) -> int:
        """Return up to which stream sequence the agent's inbox was delivered; 0 for one that is not there."""
        try:
            info = await self._bus.api(f"CONSUMER.INFO.LOG.{inbox_consumer(agent)}", timeout_s=_ANSWER_S)
        except ApiError as error:
            if error.err_code == ApiCode.CONSUMER_NOT_FOUND:
                return 0
            raise
        return int(info["delivered"]["stream_seq"])
