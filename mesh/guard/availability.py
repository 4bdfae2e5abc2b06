"""Which agents can get work: since when each is served, and the breakers of those that fail.

The clock of a round stands while nobody serves its agent, and while the round waits in a queue that moves.
One look when the time is up shows neither, so a guard looks at every agent again and again. It counts only
what it has seen: each span begins anew at its first look, and after a gap in its looks. So a round may get
more time than its policy says, never less. One missed ping makes no span without service.

A guard judges by its own copies of the circuit breakers, which the wake-ups of CONF keep current. It changes
an entry by compare-and-set, in a few attempts. A count that it cannot write is lost: no decision waits for it
or fails because of it.
"""

import asyncio
import bisect
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, NamedTuple

from mesh.bus.connection import Bus
from mesh.bus.lane import is_served
from mesh.bus.reader import get
from mesh.bus.roles import GET
from mesh.bus.stores import ConfUnreadable, parse_conf, write_conf
from mesh.bus.streams import inbox_consumer, steps_of
from mesh.errors import ApiCode, ApiError, BusError, OutcomeUnknown, SequenceConflict
from mesh.service.conditions import Kind
from mesh.service.logs import get_logger
from protocol.domain import breaker
from protocol.domain.breaker import CLOSED, Permit, Signal
from protocol.domain.steps import Attendance, Reader
from protocol.wire import config, subjects
from protocol.wire.config import BreakerEntry, BreakerRules, BreakerState
from protocol.wire.ids import AgentName

_log = get_logger(__name__)

# --- attendance ----------------------------------------------------------------------------------

LOOK_S = 5.0
GAP_S = 3 * LOOK_S
"""Looks further apart than this tell nothing of the time between them."""
_MOST_MARKS = 1_000


class InboxProgress:
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
        if len(self._seqs) > _MOST_MARKS:  # old times need only a coarse record, which errs to later
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
    """The sightings of one agent."""

    def __init__(self) -> None:
        self.served = False
        self.since = 0
        self.looked_at = 0
        self.queue = InboxProgress()

    def seen(self, served: bool, at: int) -> None:
        if served is not self.served or at - self.looked_at > GAP_S * 1e6:
            self.served, self.since = served, at
        self.looked_at = at


class AttendanceWatch:
    """What one guard has seen of the fleet's agents.

    Args:
        agents: returns the names of those that there are.
        now: returns UTC µs.
        api: asks JetStream, as `Bus.api` does by default.
        answer_s: how long an answer is waited for.
    """

    def __init__(
        self,
        bus: Bus,
        agents: Callable[[], Iterable[str]],
        now: Callable[[], int],
        api: Callable[..., Awaitable[dict[str, Any]]] | None = None,
        answer_s: float = 1.0,
    ) -> None:
        self._bus = bus
        self._answer_s = answer_s
        self._api = api or bus.api
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

    async def look_at(self, agent: str, seq: int, first_step: str) -> Attendance:
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

    async def readers(self, placed: Mapping[AgentName, int | None]) -> tuple[Reader, ...]:
        """Look at the agents that may claim an offer now. Raises BusError.

        Args:
            placed: by agent, where in the log the event lies that offers it the task in its own inbox, if any
                does.
        """
        seen = await asyncio.gather(*map(self._look, placed))
        return tuple(
            Reader(one.served, one.since, took=seq is not None and one.queue.holds(seq))
            for one, seq in zip(seen, placed.values(), strict=True)
        )

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
        found = await self._bus.request(f"{GET}{step}", timeout_s=self._answer_s)
        return found.status != 404

    async def _delivered(self, agent: str) -> int:
        """Return up to which stream sequence the agent's inbox was delivered; 0 for one that is not there."""
        try:
            info = await self._api(f"CONSUMER.INFO.LOG.{inbox_consumer(agent)}", timeout_s=self._answer_s)
        except ApiError as error:
            if error.err_code == ApiCode.CONSUMER_NOT_FOUND:
                return 0
            raise
        return int(info["delivered"]["stream_seq"])


# --- breakers ------------------------------------------------------------------------------------

NOT_WRITTEN = Kind("breaker_not_written", "breaker_written", "failures of {} cannot be counted", blocks=False)
ATTEMPTS = 4
"""How often a lost race over an entry is met by reading it again."""


class _Copy(NamedTuple):
    entry: BreakerEntry
    seq: int
    """The sequence that a compare-and-set has to name."""


_NONE = _Copy(CLOSED, 0)


class Breakers:
    """One entry for each agent.

    Args:
        rules: what the fleet says of an agent.
        now: UTC µs.
        answer_s: how long CONF may take to answer.
    """

    def __init__(
        self,
        bus: Bus,
        rules: Callable[[AgentName], BreakerRules],
        now: Callable[[], int],
        answer_s: float = 1.0,
    ) -> None:
        self._bus = bus
        self._answer_s = answer_s
        self._rules = rules
        self._now = now
        self._copies: dict[str, _Copy] = {}

    # --- reading ----------------------------------------------------------------------------------

    async def read(self, agent: str) -> None:
        """Read an agent's entry again. Raises BusError.

        An entry that cannot be read counts as open from now on; the trial that follows writes it anew.
        """
        subject = subjects.breaker(agent)
        found = await get(self._bus, "CONF", subject, timeout_s=self._answer_s)
        seq = 0 if found is None else found.seq
        if found is not None and self.is_known(agent, seq):
            return
        try:
            entry = CLOSED if found is None else parse_conf(found, config.read_breaker)
        except ConfUnreadable:
            entry = BreakerEntry(state="open", opened_at=self._now())
        self._copies[agent] = _Copy(entry, seq)

    def is_known(self, agent: str, seq: int) -> bool:
        """Return True if the entry of this sequence was read or written already."""
        return self._copies.get(agent, _NONE).seq == seq

    def state(self, agent: str) -> BreakerState:
        """Return the state as it is known, for what takes no trial."""
        return self._copies.get(agent, _NONE).entry.state

    def not_open(self, agents: Iterable[AgentName]) -> tuple[AgentName, ...]:
        """Return those that may be given work."""
        return tuple(name for name in agents if self.state(name) == "closed")

    # --- judging ----------------------------------------------------------------------------------

    async def ask(self, agent: AgentName, cause: str) -> Permit:
        """Return by which state the message `cause` is judged; one message at a time gets the trial."""
        use = Permit("closed")

        def change(entry: BreakerEntry) -> BreakerEntry | None:
            nonlocal use
            use = breaker.asked(entry, self._rules(agent), self._now(), cause)
            return use.write

        if not await self._change(agent, change) and use.write is not None:
            return Permit("open", use.since, use.until)
        return use

    # --- counting ---------------------------------------------------------------------------------

    def is_touched(self, count: Signal) -> bool:
        """Return False for the usual count, which changes nothing: a closed breaker, and no failure."""
        return count.how == "failed" or self.state(count.agent) != "closed"

    async def count(self, count: Signal) -> None:
        """Take in what an event says of an agent; a copy that is not closed is looked at twice."""
        agent = count.agent

        def change(entry: BreakerEntry) -> BreakerEntry | None:
            return breaker.counted(entry, self._rules(agent), count, self._now())

        if await self._change(agent, change) or self.state(agent) == "closed":
            return
        try:
            await self.read(agent)
        except BusError:
            return
        await self._change(agent, change)

    # --- writing ----------------------------------------------------------------------------------

    async def _change(self, agent: str, change: Callable[[BreakerEntry], BreakerEntry | None]) -> bool:
        """Write what `change` makes of the entry; False if that is nothing, or could not be written."""
        for _ in range(ATTEMPTS):
            was = self._copies.get(agent, _NONE)
            wanted = change(was.entry)
            if wanted is None:
                return False
            subject = subjects.breaker(agent)
            try:
                try:
                    seq = await write_conf(
                        self._bus, subject, wanted, after=was.seq, timeout_s=self._answer_s
                    )
                    self._copies[agent] = _Copy(wanted, seq)
                except (SequenceConflict, OutcomeUnknown):
                    await self.read(agent)
                    if self._copies[agent].entry != wanted:
                        continue  # somebody else's; our own, stored after all, counts as acknowledged
            except BusError as error:
                self._bus.conditions.raise_(NOT_WRITTEN, agent, code=error.code)
                return False
            self._bus.conditions.clear(NOT_WRITTEN, agent)
            _say(agent, was.entry.state, wanted)
            return True
        return False


def _say(agent: str, was: BreakerState, entry: BreakerEntry) -> None:
    """Log a breaker's change of state. Only the guard that wrote it does, so that it is logged once."""
    if entry.state == was:
        return
    if entry.state == "open":
        _log.warning("breaker_opened", agent=agent, trial=was == "half_open")
    elif entry.state == "closed":
        _log.info("breaker_closed", agent=agent)
    else:
        _log.info("breaker_tried", agent=agent)
