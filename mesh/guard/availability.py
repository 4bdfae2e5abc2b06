"""Which agents can get work: since when each has been served, and the breakers of failing agents.

The clock of a round is stopped while its agent is not served, and while the round waits in a moving queue. A
single probe when the time is up shows neither, so a guard probes every agent regularly. It counts only what
it has seen: each span begins at the first probe, and again after a gap between probes. So a round may get
more time than its policy allows, but never less. A single missed ping does not make a span without service.

A guard judges by its own copies of the circuit breakers, which wake-ups from CONF keep current. It changes an
entry by compare-and-set, in a few attempts. A count that it cannot write is lost: no decision waits for it or
fails because of it.
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
from protocol.wire import documents, subjects
from protocol.wire.config import BreakerEntry, BreakerRules, BreakerState
from protocol.wire.ids import AgentName

_log = get_logger(__name__)

# --- attendance ----------------------------------------------------------------------------------

LOOK_S = 5.0
GAP_S = 3 * LOOK_S
"""Probes further apart than this tell nothing about the time between them."""
_MOST_MARKS = 1_000


class InboxProgress:
    """How far an agent's inbox was delivered, and when a probe first saw that."""

    def __init__(self) -> None:
        self._seqs: list[int] = []
        self._times: list[int] = []

    def seen(self, delivered: int, at: int) -> None:
        """Record a probe at `at` (UTC µs): everything up to stream sequence `delivered` was delivered."""
        if self._seqs and delivered < self._seqs[-1]:  # the server crashed and forgot its latest deliveries
            self._seqs.clear()
            self._times.clear()
        if self._seqs and delivered == self._seqs[-1]:
            return
        self._seqs.append(delivered)
        self._times.append(at)
        if len(self._seqs) > _MOST_MARKS:  # a coarse record is enough for old times, and errs to later
            half = _MOST_MARKS // 2
            del self._seqs[:half:2], self._times[:half:2]

    def holds(self, seq: int) -> bool:
        """Return True if a probe saw the event at `seq` delivered."""
        return bool(self._seqs) and self._seqs[-1] >= seq

    def moved(self, seq: int) -> int:
        """Return when (UTC µs) the event at `seq` was first seen delivered, or when the queue last moved.

        There must have been a probe.
        """
        at = bisect.bisect_left(self._seqs, seq)
        return self._times[min(at, len(self._times) - 1)]


class _Agent:
    """The probes of one agent."""

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
        agents: returns the names of the current agents.
        now: returns UTC µs.
        api: asks JetStream; by default `Bus.api`.
        answer_s: how long to wait for an answer.
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
        """Probe every agent every `LOOK_S`. Runs until cancelled."""
        while True:
            names = tuple(self._names())
            self._agents = {name: seen for name, seen in self._agents.items() if name in names}
            await asyncio.gather(*(self._look_if_possible(name) for name in names))
            await asyncio.sleep(LOOK_S)

    async def _look_if_possible(self, agent: str) -> None:
        try:
            await self._look(agent)
        except BusError as error:  # the bus reports it itself; a missing probe is a gap
            _log.debug("agent_not_seen", agent=agent, code=error.code)

    async def look_at(self, agent: str, seq: int, first_step: str) -> Attendance:
        """Probe `agent` now, and return its attendance for a round.

        Args:
            seq: log sequence of the event that opened the round.
            first_step: subject of the first step that the round would journal. A crashed server forgets its
                latest deliveries, but not a step.

        Raises BusError.
        """
        step = f"{steps_of(agent)}.{first_step}"
        seen, stepped = await asyncio.gather(self._look(agent), self._is_there(step))
        since = max(seen.since, seen.queue.moved(seq)) if seen.served else seen.since
        return Attendance(seen.served, since, not (seen.queue.holds(seq) or stepped))

    async def readers(self, placed: Mapping[AgentName, int | None]) -> tuple[Reader, ...]:
        """Probe the agents that may claim an offer. Raises BusError.

        Args:
            placed: by agent, the log sequence of the offer in its own inbox, if there is one.
        """
        seen = await asyncio.gather(*map(self._look, placed))
        return tuple(
            Reader(agent.served, agent.since, took=seq is not None and agent.queue.holds(seq))
            for agent, seq in zip(seen, placed.values(), strict=True)
        )

    async def served(self, agents: Iterable[str]) -> list[bool]:
        """Return whether each of these agents is served, according to the last probe if that is recent.

        An agent that was not served is probed again, since it may just have started. Raises BusError.
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
        """Return the stream sequence up to which the agent's inbox was delivered; 0 without an inbox."""
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
"""How often an entry is read again after a lost race."""


class _Copy(NamedTuple):
    entry: BreakerEntry
    seq: int
    """The sequence that a compare-and-set must name."""


_NONE = _Copy(CLOSED, 0)


class Breakers:
    """The circuit breakers of all agents.

    Args:
        rules: returns the breaker rules of an agent.
        now: returns UTC µs.
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

        An unreadable entry counts as open from now on; the next trial writes it again.
        """
        subject = subjects.breaker(agent)
        found = await get(self._bus, "CONF", subject, timeout_s=self._answer_s)
        seq = 0 if found is None else found.seq
        if found is not None and self.is_known(agent, seq):
            return
        try:
            entry = CLOSED if found is None else parse_conf(found, documents.read_breaker)
        except ConfUnreadable:
            entry = BreakerEntry(state="open", opened_at=self._now())
        self._copies[agent] = _Copy(entry, seq)

    def is_known(self, agent: str, seq: int) -> bool:
        """Return True if the entry with this sequence was already read or written."""
        return self._copies.get(agent, _NONE).seq == seq

    def state(self, agent: str) -> BreakerState:
        """Return the known state, for messages that cannot be a trial."""
        return self._copies.get(agent, _NONE).entry.state

    def not_open(self, agents: Iterable[AgentName]) -> tuple[AgentName, ...]:
        """Return the agents that may get work, which are those with a closed breaker."""
        return tuple(name for name in agents if self.state(name) == "closed")

    # --- judging ----------------------------------------------------------------------------------

    async def ask(self, agent: AgentName, cause: str) -> Permit:
        """Return the permit for the message `cause`. Only one message at a time gets the trial."""
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
        """Return False for the usual signal, which changes nothing: no failure, and a closed breaker."""
        return count.how == "failed" or self.state(count.agent) != "closed"

    async def count(self, count: Signal) -> None:
        """Count an event's signal about an agent. If the copy is not closed, it is read again and retried."""
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
        """Write what `change` makes of the entry; return False if that is None or could not be written."""
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
                        continue  # another guard's; our own, stored after all, counts as acknowledged
            except BusError as error:
                self._bus.conditions.raise_(NOT_WRITTEN, agent, code=error.code)
                return False
            self._bus.conditions.clear(NOT_WRITTEN, agent)
            _log_state(agent, was.entry.state, wanted)
            return True
        return False


def _log_state(agent: str, was: BreakerState, entry: BreakerEntry) -> None:
    """Log a breaker's change of state, which only the guard that wrote it does, so it is logged once."""
    if entry.state == was:
        return
    if entry.state == "open":
        _log.warning("breaker_opened", agent=agent, trial=was == "half_open")
    elif entry.state == "closed":
        _log.info("breaker_closed", agent=agent)
    else:
        _log.info("breaker_tried", agent=agent)
