"""The agents' circuit breakers as a guard knows and changes them.

A guard judges by its own copies, which the wake-ups of CONF keep current, and changes an entry by
compare-and-set. It does so as well as it can and never longer than a few attempts: what cannot be
written is lost, and no decision waits for it or fails because of it.
"""

from collections.abc import Callable, Iterable
from typing import NamedTuple

from mesh.bus.connection import Bus
from mesh.bus.stores import ConfUnreadable, parse_conf, read_conf, write_conf
from mesh.errors import BusError, OutcomeUnknown, SequenceConflict
from mesh.service.conditions import Kind
from mesh.service.logs import get_logger
from protocol.domain import breaker
from protocol.domain.breaker import CLOSED, Count, Use
from protocol.wire import config, subjects
from protocol.wire.config import BreakerEntry, BreakerRules, BreakerState
from protocol.wire.ids import AgentName

_log = get_logger(__name__)

NOT_WRITTEN = Kind("breaker_not_written", "breaker_written", "failures of {} cannot be counted", blocks=False)
ATTEMPTS = 4
"""How often a lost race over an entry is met by reading it again."""
WAIT_S = 1.0
"""How long CONF may take to answer: a request that fails is in hand meanwhile."""


class _Copy(NamedTuple):
    entry: BreakerEntry
    seq: int
    """What a compare-and-set has to name."""


_NONE = _Copy(CLOSED, 0)


class Breakers:
    """One entry for each agent.

    Args:
        rules: what the fleet says of an agent.
        now: UTC µs.
    """

    def __init__(self, bus: Bus, rules: Callable[[AgentName], BreakerRules], now: Callable[[], int]) -> None:
        self._bus = bus
        self._rules = rules
        self._now = now
        self._copies: dict[str, _Copy] = {}

    # --- reading ----------------------------------------------------------------------------------

    async def read(self, agent: str) -> None:
        """Read an agent's entry again. Raises BusError.

        An entry that cannot be read counts as open from now on; the trial that follows writes it anew.
        """
        subject = subjects.breaker(agent)
        found = await read_conf(self._bus, subject, timeout_s=WAIT_S)
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

    async def ask(self, agent: AgentName, cause: str) -> Use:
        """Return by which state the message `cause` is judged; one message at a time gets the trial."""
        use = Use("closed")

        def change(entry: BreakerEntry) -> BreakerEntry | None:
            nonlocal use
            use = breaker.asked(entry, self._rules(agent), self._now(), cause)
            return use.write

        if not await self._change(agent, change) and use.write is not None:
            return Use("open", use.since, use.until)
        return use

    # --- counting ---------------------------------------------------------------------------------

    def is_touched(self, count: Count) -> bool:
        """Return False for the usual count, which changes nothing: a closed breaker, and no failure."""
        return count.how == "failed" or self.state(count.agent) != "closed"

    async def count(self, count: Count) -> None:
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
                    seq = await write_conf(self._bus, subject, wanted, after=was.seq, timeout_s=WAIT_S)
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
