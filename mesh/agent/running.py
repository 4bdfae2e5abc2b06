"""Running rounds: which rounds' code runs in this process, and what stops it from outside."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from mesh.bus.nats_protocol import Incoming
from mesh.errors import BusError
from mesh.service.logger import get_logger
from protocol.wire import codec
from protocol.wire.events import Assignment
from protocol.wire.notices import Notice

_log = get_logger(__name__)


@dataclass(slots=True)
class Running:
    """A round whose code runs."""

    request: str
    code: asyncio.Future[Any]
    over: bool = False
    """Whether it was stopped, because a guard ended the turn or a newer round of it began."""

    def stop(self) -> None:
        """Cancel the code. What it runs in a thread goes on to its end; nothing comes of its result."""
        self.over = True
        self.code.cancel()


class RunningRounds:
    """The rounds of this process, by turn and round.

    Args:
        was_ended: asks whether a guard ended a turn (request, turn), by the step that only guards can write.
    """

    def __init__(self, was_ended: Callable[[str, str], Awaitable[bool]]) -> None:
        self._was_ended = was_ended
        self.rounds: dict[tuple[str, int], Running] = {}
        self.checks: set[asyncio.Task[None]] = set()

    def begin(self, request: str, work: Assignment, code: asyncio.Future[Any]) -> Running:
        """Take in a round; an older one of its turn, whose time ran out, is stopped."""
        for (turn, round_), earlier in self.rounds.items():
            if turn == work.turn and round_ < work.round:
                earlier.stop()
        running = self.rounds[work.turn, work.round] = Running(request, code)
        return running

    def end(self, work: Assignment, running: Running) -> None:
        if self.rounds.get((work.turn, work.round)) is running:
            del self.rounds[work.turn, work.round]

    def on_note(self, message: Incoming) -> None:
        """Look whether a turn is over that a note says is: a note is a hint, which others can forge."""
        notice = codec.readable(message.data, Notice)
        if notice is None:
            return
        if notice.error is not None:
            _log.error(
                "refused_by_guard", request=notice.request, code=notice.error.code, detail=notice.error.detail
            )
        if notice.ended is not None:
            for (turn, round_), running in self.rounds.items():
                if turn == notice.ended.turn:
                    check = asyncio.create_task(self._stop_if_over(turn, round_, running))
                    self.checks.add(check)
                    check.add_done_callback(self.checks.discard)

    async def _stop_if_over(self, turn: str, round_: int, running: Running) -> None:
        with contextlib.suppress(BusError):
            over = await self._was_ended(running.request, turn)
            if over and self.rounds.get((turn, round_)) is running:
                running.stop()
