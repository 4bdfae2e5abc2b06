"""What the runtime needs to execute a round: rounds under way, attempts, other versions, proposals.

`RunningRounds` stops a round's code from outside. `Attempts` tells a turn that kills its process from one
that was merely moved: from the second delivery on, `<round>-a<k>` is written before the handler runs and
`<round>-b<k>` when the turn is given back in good order. The server's count of deliveries would count drains
and frozen pulls too. An instance that was held up finds in the same steps that another one has taken over.
"""

import asyncio
import contextlib
import sys
import threading
import time
import traceback
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import msgspec

from mesh.bus.connection import Bus
from mesh.bus.nats_protocol import Incoming
from mesh.bus.stores import StepStore, StepTaken
from mesh.errors import PASSING, ApiCode, ApiError, BusError, Denied, Malformed, MeshError, TooLarge
from mesh.service import tracing
from mesh.service.conditions import Kind
from mesh.service.logs import get_logger
from protocol.wire import codec, subjects
from protocol.wire.commands import Failure, Proposal, Report, ReportFailure
from protocol.wire.events import Assignment
from protocol.wire.ids import TurnId
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


CRASHES = 5
"""More attempts than were given back: the turn kills whoever runs it."""
_MOST = 1_000


class Attempts:
    """The attempts at one round of a turn."""

    def __init__(self, store: StepStore, *, request: str, turn: str, round_: int) -> None:
        self._store = store
        self._request, self._turn, self._round = request, turn, round_
        self._own = -1
        """The number of this attempt; the first one is not counted."""

    async def is_crash_loop(self) -> bool:
        """Count this attempt in; say whether so many before it never came back. Raises BusError."""
        begun = self._own = await self._write_next("a")
        returned = await self._count("b")
        return begun - returned >= CRASHES

    async def is_overtaken(self) -> bool:
        """Say whether a later attempt has begun. Raises BusError."""
        later = f"{self._round}-a{self._own + 1}"
        return await self._store.get(self._request, self._turn, later) is not None

    async def given_back(self) -> None:
        """Note that this attempt ended in good order. Raises BusError."""
        await self._write_next("b")

    async def _write_next(self, kind: str) -> int:
        """Write the next step of a kind; return how many there were before."""
        k = await self._count(kind)
        while True:
            try:
                await self._store.put(self._request, self._turn, f"{self._round}-{kind}{k}", b"{}")
            except StepTaken:
                k += 1
            else:
                return k

    async def _count(self, kind: str) -> int:
        for k in range(_MOST):
            if await self._store.get(self._request, self._turn, f"{self._round}-{kind}{k}") is None:
                return k
        return _MOST


LOST_S = 60.0
"""How long a round that is left to others is remembered at least, though it no longer comes here."""


@dataclass(slots=True)
class _Seen:
    first: float
    last: float


class ForeignRounds:
    """When this instance saw which of them, by turn and round; mostly their own version takes them.

    Args:
        clock: monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._seen: dict[tuple[str, int], _Seen] = {}

    def __len__(self) -> int:
        return len(self._seen)

    def leaves(self, turn: str, round_: int, grace_s: float) -> bool:
        """Say whether to leave a round to its own version: for `grace_s` from when it first came here."""
        self.forget_lost(grace_s)
        now = self._clock()
        seen = self._seen.setdefault((turn, round_), _Seen(now, now))
        seen.last = now
        if now - seen.first < grace_s:
            return True
        del self._seen[turn, round_]
        return False

    def forget(self, turn: str, round_: int) -> None:
        """Forget a round that is over."""
        self._seen.pop((turn, round_), None)

    def forget_lost(self, grace_s: float) -> None:
        """Forget what has not come here for a whole grace: others have taken it, and nobody tells us so."""
        lost_before = self._clock() - max(grace_s, LOST_S)
        self._seen = {key: seen for key, seen in self._seen.items() if seen.last > lost_before}


BLOCKED_S = 1.0
"""Half of the heartbeat's period: there is still time to notice before a lease is lost."""


class Watchdog:
    """`with Watchdog():` inside a running loop. Logs `loop_blocked` once for each time it is blocked."""

    def __init__(self, blocked_s: float = BLOCKED_S) -> None:
        self._blocked_s = blocked_s
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self.found = 0
        """How often the loop was blocked."""

    def __enter__(self) -> Self:
        loop, watched = asyncio.get_running_loop(), threading.get_ident()
        self._thread = threading.Thread(
            target=self._watch, args=(loop, watched), name="loop-watchdog", daemon=True
        )
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join()

    def _watch(self, loop: asyncio.AbstractEventLoop, watched: int) -> None:
        while not self._stop.is_set():
            answered = threading.Event()
            try:
                loop.call_soon_threadsafe(answered.set)
            except RuntimeError:
                return  # the loop is closed
            if not answered.wait(self._blocked_s) and not self._stop.is_set():
                self.found += 1
                frame = sys._current_frames().get(watched)
                stack = traceback.format_stack(frame)[-4:] if frame is not None else []
                _log.error("loop_blocked", for_s=self._blocked_s, stack="".join(stack))
                while not answered.wait(0.1) and not self._stop.is_set():
                    pass
            self._stop.wait(self._blocked_s)


STORE_AGAIN_S = (0.05, 0.1, 0.2, 0.5, 1.0)
NOT_STORED = Kind("proposal_not_stored", "proposal_stored", "proposals are not stored: {}")
MESSAGE_CHARS = 512
_UNSOUND = (MeshError, msgspec.MsgspecError, TypeError, ValueError, OverflowError, RecursionError)
"""What encoding a handler's move may raise, and reading it as the guard will."""


def sound(proposal: Proposal) -> Proposal:
    """Return the proposal, or where the guard could not read it, the failure that says so.

    The guard would fail the round, too, but not with the reason that names the handler.
    """
    try:
        codec.parse_proposal(codec.encode(proposal))
    except _UNSOUND as error:
        reason = str(error) if isinstance(error, Malformed) else type(error).__name__
        _log.error("proposal_unsound", turn=proposal.turn, reason=reason)
        failure = Failure(code="bug", message=f"the handler's move cannot be read: {reason}"[:MESSAGE_CHARS])
        return ReportFailure(
            turn=proposal.turn, round=proposal.round, error=failure, report=_readable(proposal.report)
        )
    return proposal


def _readable(report: Report) -> Report:
    """Return the report if it can be read by itself, else an empty one."""
    try:
        alone = ReportFailure(turn=TurnId("turn"), round=0, error=Failure(code="bug"), report=report)
        codec.parse_proposal(codec.encode(alone))
    except _UNSOUND:
        return Report()
    return report


def _too_large(proposal: Proposal) -> ReportFailure:
    """Return the failure that stands in for a proposal which the bus cannot hold."""
    failure = Failure(
        code="proposal_too_large",
        message="too large for the bus; pass large things on as artifacts",
        permanent=True,
    )
    spent = Report(usage=proposal.report.usage)  # the rest may be what is too large
    return ReportFailure(turn=proposal.turn, round=proposal.round, error=failure, report=spent)


async def store(bus: Bus, agent: str, request: str, proposal: Proposal, trace: str = "") -> None:
    """Store a proposal, for as long as it takes: the guard knows a second one for the first.

    Args:
        trace: the `traceparent` of what is answered; passed on if it is one, and nothing is traced here.

    Raises Denied.
    """
    subject = subjects.prop(agent, request)
    headers = tracing.headers(otherwise=tracing.sound(trace)) or None
    attempt = 0
    while True:
        try:
            await bus.publish_durable(subject, codec.encode(proposal), headers)
        except TooLarge:
            proposal = _too_large(proposal)
        except Denied:
            raise
        except PASSING:  # the bus has said it
            await asyncio.sleep(STORE_AGAIN_S[min(attempt, len(STORE_AGAIN_S) - 1)])
            attempt += 1
        except ApiError as error:
            if error.err_code != ApiCode.MESSAGE_EXCEEDS_MAXIMUM:
                bus.conditions.raise_(NOT_STORED, error.code, held=subject, err_code=error.err_code)
                await asyncio.sleep(STORE_AGAIN_S[-1])
            else:
                proposal = _too_large(proposal)
        else:
            return
