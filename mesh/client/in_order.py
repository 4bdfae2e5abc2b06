"""What is heard of a request and what its log says, in one order.

Live notes come at once, events when somebody looks for them. So a note of a round that no event has opened
yet waits for that event, and an event waits for the end of the round that it follows from, if that round
was heard at all. Both only for so long: a note may be lost, and a log may be out of reach.
"""

import asyncio
import contextlib
from collections.abc import Callable
from typing import NamedTuple

from mesh.bus.connection import Bus
from mesh.errors import BusError
from protocol.wire import events
from protocol.wire.notices import LiveNote

MOST_WAITING = 1_000
"""Live notes that wait; those that come then are lost, or let out."""
HELD_S = 2.0
"""How long a note waits for the event that opened its round."""
LAST_WORDS_S = 1.0
"""How long an event waits for the end of a round that was heard."""

Round = tuple[str, int]
"""A turn and a round of it."""


class Heard(NamedTuple):
    """A live note."""

    agent: str
    note: LiveNote


class InOrder:
    """Takes live notes as they come, and gives them out in their place.

    Args:
        bus: what the notes come over.
        put: takes a note when it is its turn.
        reads: whether the log is read too; otherwise every note is given out at once.
        look: called when a round is heard of that the log has not opened yet.
    """

    def __init__(
        self, bus: Bus, put: Callable[[Heard], None], *, reads: bool, look: Callable[[], None]
    ) -> None:
        self._bus, self._put, self._look = bus, put, look
        self._reads = reads
        self._catching_up = reads
        """While the log up to now is being read, everything that is heard waits."""
        self.held: list[Heard] = []
        self._opened: set[Round] = set()
        self._speaking: set[Round] = set()
        """Rounds that were heard, and not their end."""
        self._current: Round = ("", 0)
        self._ended = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None

    def hear(self, heard: Heard) -> None:
        """Take a note."""
        note = heard.note
        key = (note.turn, note.round)
        _bounded(self._speaking).add(key)
        if note.kind == "ended":
            self._speaking.discard(key)
            self._ended.set()
        if self._catching_up:
            if len(self.held) < MOST_WAITING:
                self.held.append(heard)
        elif not self._reads or key in self._opened:
            self._put(heard)
        else:
            self._hold(heard, key)

    async def before(self, event: events.AnyEvent) -> None:
        """Wait until what led to an event has been given out, if it was heard."""
        key = self._ends(event)
        if key is None:
            return
        if self._catching_up:
            self._give_out(key)
            return
        with contextlib.suppress(BusError, TimeoutError):
            async with asyncio.timeout(LAST_WORDS_S):
                await self._bus.flush(LAST_WORDS_S)  # what was said before the event was stored has come
                while key in self._speaking:
                    self._ended.clear()
                    await self._ended.wait()
        self._speaking.discard(key)

    def after(self, event: events.AnyEvent) -> None:
        """Give out what waited for an event."""
        work = getattr(event, "work", None)
        if isinstance(work, events.Work):
            self._current = (work.turn, work.round)
            _bounded(self._opened).add(self._current)
            if not self._catching_up:
                self._give_out(self._current)

    def caught_up(self, is_told: Callable[[LiveNote], bool]) -> None:
        """Give out what waited while the log was read, without what has been told already."""
        self._catching_up = False
        held, self.held = self.held, []
        for heard in held:
            if is_told(heard.note):
                continue
            key = (heard.note.turn, heard.note.round)
            if key in self._opened:
                self._put(heard)
            else:
                self._hold(heard, key)

    def let_out(self) -> None:
        """Give out everything, in the order in which it came."""
        self._catching_up = False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        held, self.held = self.held, []
        for heard in held:
            _bounded(self._opened).add((heard.note.turn, heard.note.round))
            self._put(heard)

    def close(self) -> None:
        """Give out nothing any more."""
        self.held.clear()
        if self._timer is not None:
            self._timer.cancel()

    def _hold(self, heard: Heard, key: Round) -> None:
        first = all((each.note.turn, each.note.round) != key for each in self.held[-1:])
        self.held.append(heard)
        if len(self.held) >= MOST_WAITING:
            self.let_out()
            return
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(HELD_S, self.let_out)
        if first:
            self._look()

    def _give_out(self, key: Round) -> None:
        """Give out what is held of a round."""
        held, self.held = self.held, []
        for heard in held:
            if (heard.note.turn, heard.note.round) == key:
                self._put(heard)
            else:
                self.held.append(heard)
        if not self.held and self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _ends(self, event: events.AnyEvent) -> Round | None:
        """Return the round that an event follows from by its agent's own word; None if from none."""
        match event:
            case events.FactsWithheld():
                return self._current  # the next event is the handoff that it is about
            case events.TurnFailed(sender=None):
                return None  # by the clock
        turn, round_ = getattr(event, "turn", None), getattr(event, "round", None)
        return (turn, round_) if isinstance(turn, str) and isinstance(round_, int) else None


def _bounded(known: set[Round]) -> set[Round]:
    """Return a set of rounds that does not grow for ever: any agent can name any number of them."""
    if len(known) >= MOST_WAITING:
        known.clear()
    return known
