"""The rounds that run in this process, the watch on their ends, and rounds left to another version."""

import asyncio
import contextlib
import math
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from mesh.bus.nats_protocol import Incoming
from mesh.errors import BusError
from mesh.service.eager import eager
from mesh.service.logs import get_logger
from protocol.wire import codec
from protocol.wire.event_parts import Assignment
from protocol.wire.records import Notice

_log = get_logger(__name__)


_REMEMBERED = 1_000


@dataclass(slots=True)
class Running:
    """A round whose code runs, in the task of its delivery."""

    request: str
    task: asyncio.Task[Any]
    over: bool = False
    """True if it was stopped, because a guard ended the turn or a newer round of it began."""
    looks: set[asyncio.Task[None]] = field(default_factory=set)
    """Looks that are under way: whether a guard ended the turn."""

    def stop(self) -> None:
        """Cancel the code. A thread of it goes on to its end; its result is thrown away."""
        if not self.over:
            self.over = True
            self.task.cancel()


class RunningRounds:
    """The rounds of this process, by turn and round.

    Args:
        was_ended: returns True if a guard ended a turn (request, turn), by the step that only guards can
            write.
        on_notice: gets each notice, too.
    """

    def __init__(
        self,
        was_ended: Callable[[str, str], Awaitable[bool]],
        on_notice: Callable[[Notice], None] = lambda notice: None,
    ) -> None:
        self._was_ended, self._on_notice = was_ended, on_notice
        self.rounds: dict[tuple[str, int], Running] = {}
        self.called_over: dict[str, None] = {}
        """Turns that a note called over while no round of theirs ran here, the newest last."""

    @contextlib.contextmanager
    def holding(self, request: str, work: Assignment) -> Iterator[Running]:
        """Hold this task's round in this block; an older one of its turn, whose time ran out, is stopped."""
        if work.round:
            for (turn, round_), earlier in self.rounds.items():
                if turn == work.turn and round_ < work.round:
                    earlier.stop()
        task = asyncio.current_task()
        assert task is not None
        running = self.rounds[work.turn, work.round] = Running(request, task)
        try:
            yield running
        finally:
            if self.rounds.get((work.turn, work.round)) is running:
                del self.rounds[work.turn, work.round]
            if running.over:
                task.uncancel()  # only the code was to end

    def on_note(self, message: Incoming) -> None:
        """Look up a turn that a note calls over: a note is a hint, which others can forge."""
        notice = codec.readable(message.data, Notice) if message.data else None
        if notice is None:  # a wake-up mostly: the event itself comes, too
            return
        self._on_notice(notice)
        if notice.error is not None:
            _log.error(
                "refused_by_guard", request=notice.request, code=notice.error.code, detail=notice.error.detail
            )
        if notice.ended is not None:
            held = [key for key in self.rounds if key[0] == notice.ended.turn]
            for key in held:
                self._look_up(*key, self.rounds[key])
            if not held:
                self.called_over[notice.ended.turn] = None
                if len(self.called_over) > _REMEMBERED:
                    del self.called_over[next(iter(self.called_over))]

    def on_heartbeat(self, turn: str, round_: int) -> None:
        """Look up a turn that nobody calls over: a note is lost with its connection, or comes too early."""
        running = self.rounds.get((turn, round_))
        if running is not None and not running.looks:
            self._look_up(turn, round_, running)

    def _look_up(self, turn: str, round_: int, running: Running) -> None:
        look = asyncio.create_task(self._stop_if_over(turn, round_, running))
        running.looks.add(look)
        look.add_done_callback(running.looks.discard)

    async def _stop_if_over(self, turn: str, round_: int, running: Running) -> None:
        try:
            over = await self._was_ended(running.request, turn)
        except BusError as error:
            _log.warning("end_not_looked_up", request=running.request, code=error.code, detail=str(error))
            return
        if over and self.rounds.get((turn, round_)) is running:
            running.stop()


LOOK_S = 0.005
"""How long the answer of a look that began ahead counts, from its beginning: some ten round trips on one
machine, one over a network. A look that is waited for may be as old when its answer comes."""
NEXT_LOOK_S = LOOK_S / 2
"""How long after its beginning a look is taken to be in time for the next call, too."""


class EndWatch:
    """Looks if a guard ended a turn. A look can be begun ahead, so that the calls it is for need not wait.

    Args:
        was_ended: returns True if a guard ended the turn.
        open_at: when it was open for certain (monotonic seconds): a look could have said so then.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        was_ended: Callable[[], Awaitable[bool]],
        *,
        open_at: float = -math.inf,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._was_ended, self._clock = was_ended, clock
        self._open_at = open_at
        """When the latest look began that was begun ahead and found no end."""
        self._is_awaited = False
        """True if `look_ahead` was called for the next call: any other call looks anew."""
        self._begun_at = 0.0
        self._ahead: asyncio.Future[bool] | None = None

    def look_ahead(self) -> None:
        """Begin a look for the next call, unless one is begun, or the latest will serve that call, too."""
        now = self._clock()
        self._is_awaited = True
        if self._ahead is None and now - self._open_at >= NEXT_LOOK_S:
            self._begun_at = now
            self._ahead = eager(self._look())

    async def is_over(self) -> bool:
        """Return True if the turn was ended.

        A look that was begun ahead counts up to LOOK_S after its beginning, the wait for its answer included.
        After that (the bus hung, the process stood still) it is looked anew. An end is for good.
        """
        begun, self._ahead = self._ahead, None
        is_awaited, self._is_awaited = self._is_awaited, False
        if begun is not None:
            if await begun:
                return True
            self._open_at = self._begun_at
        if is_awaited and self._clock() - self._open_at < LOOK_S:
            return False
        return await self._was_ended()

    async def _look(self) -> bool:
        return await self._was_ended()

    def close(self) -> None:
        """Give up a look that was begun ahead. Idempotent."""
        if self._ahead is not None:
            self._ahead.cancel()
            self._ahead = None


LOST_S = 60.0
"""How long after its grace a round that never came back here is remembered."""


class ForeignRounds:
    """Rounds that another version began, by turn and round; mostly their own version takes them.

    Args:
        grace_s: how long each is left to that version.
        clock: monotonic seconds.
    """

    def __init__(self, grace_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._grace_s, self._clock = grace_s, clock
        self._first: dict[tuple[str, int], float] = {}
        """When this instance saw each for the first time."""

    def __len__(self) -> int:
        return len(self._first)

    def leaves(self, turn: str, round_: int) -> bool:
        """Return True if a round is left to its own version: for the grace from when it first came here."""
        now = self._clock()
        kept_s = self._grace_s + LOST_S
        self._first = {key: at for key, at in self._first.items() if now - at < kept_s}
        if now - self._first.setdefault((turn, round_), now) < self._grace_s:
            return True
        del self._first[turn, round_]
        return False
