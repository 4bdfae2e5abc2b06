"""The shadow judge: beside its own verdicts, a guard judges commands by the shadows of policies.

A verdict is in the log before its event comes here, and nothing here comes back to it. A limited number of
events wait. They are judged one at a time, while the guard has nothing else in hand. What finds no room is
dropped and counted. An error costs the shadow this one command. If it takes too long, this guard judges by
that shadow no more.
"""

import asyncio
import contextlib
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping
from typing import Literal, NamedTuple

import msgspec
from msgspec.structs import replace

from mesh.bus.connection import Bus
from mesh.bus.event_log import JetStreamLog
from mesh.errors import BusError, Denied
from mesh.guard.cache import weight
from mesh.guard.observer import VerdictTooLong, VerdictWatchdog
from mesh.service.logs import get_logger, place_of
from mesh.telemetry import export as telemetry
from mesh.telemetry import tracing
from protocol.domain.ledger import Ledger
from protocol.domain.shadow import ShadowedRequest, ShadowVerdict
from protocol.wire import codec, subjects
from protocol.wire.commands import Command, Submit, is_control
from protocol.wire.config import Policy, policy_hash
from protocol.wire.events import AnyEvent, FactsWithheld
from protocol.wire.shadow import Disagreement, ShadowCounts

_log = get_logger(__name__)

WITHIN_S = 0.2
"""CPU seconds that a shadow may take over one command. For so long it could hold up this guard, once."""
MOST_WAITING = 1_000
"""Events that wait to be judged."""
_MANY_WAITING = 200
"""Events that are judged though more of them keep coming."""
_QUIET_S = 0.01
"""How long no event may have come before others are judged."""
_MOST_READ = 1_000
"""Events of a request that are read again for the sake of a shadow."""
_MOST_BYTES = 32 << 20
"""Bytes of memory, about, of requests that are judged as their events come."""
_MOST_A_SECOND = 20
"""Disagreements that are stored: each is a write that the bus has to keep."""
TELL_S = 2.0
"""Seconds between two counts that are stored, if anything was counted."""

What = Literal["agreed", "disagreed", "dropped", "failed"]


class Shadow(NamedTuple):
    """A shadow as it stands in CONF."""

    rev: int
    policy: Policy

    @property
    def digest(self) -> str:
        return policy_hash(self.policy)


Shadows = Mapping[str, Shadow]
"""By the name of the policy."""


class _Waiting(NamedTuple):
    policy: str
    event: AnyEvent
    body: bytes
    counts: bool
    """True if the event decides a command: what comes of it is counted."""


class _Followed(NamedTuple):
    rev: int
    request: ShadowedRequest
    weighs: list[int]


class AtWork:
    """What a guard has in hand: entered for each message and timer. `idle` is set while there is nothing."""

    def __init__(self) -> None:
        self.idle = asyncio.Event()
        self.idle.set()
        self._in_hand = 0

    def __enter__(self) -> None:
        self._in_hand += 1
        self.idle.clear()

    def __exit__(self, *_: object) -> None:
        self._in_hand -= 1
        if not self._in_hand:
            self.idle.set()


class ShadowJudge:
    """Judges by shadows what one guard decides, from `keep` on until `leave`.

    Args:
        name: this guard's among the others, as `<identity>/<something by chance>`.
        shadows: returns those that stand now.
        now: returns UTC µs.
        within_s: CPU seconds that one command may take.
    """

    def __init__(
        self,
        bus: Bus,
        name: str,
        shadows: Callable[[], Shadows],
        now: Callable[[], int],
        *,
        most_waiting: int = MOST_WAITING,
        within_s: float = WITHIN_S,
    ) -> None:
        self._bus, self._log = bus, JetStreamLog(bus)
        self._name = name
        self._shadows = shadows
        self._now = now
        self.at_work = AtWork()
        self._most_waiting = most_waiting
        self._watchdog = VerdictWatchdog(within_s)
        self._waiting = deque[_Waiting]()
        self._newest = 0
        """How many events have come to wait so far."""
        self._some = asyncio.Event()
        """Set while any wait."""
        self._followed = OrderedDict[str, _Followed]()
        self._weighs = 0
        self._counts: dict[str, ShadowCounts] = {}
        """By policy, of the shadow that stands."""
        self._untold = asyncio.Event()
        """Set while there are counts that are not stored."""
        self._stored_in = (0, 0)
        """A second, and how many disagreements were stored in it."""
        self._denied = 0
        """Shadows up to this revision are judged no more: the bus takes nothing that comes of them."""

    def stored(self, event: AnyEvent, body: bytes, ledger: Ledger, command: Command | None) -> None:
        """Note an event that is in the log now.

        Args:
            ledger: the request before it.
            command: what it decides; None for a consequence.
        """
        shadows = self._shadows()
        if not shadows:
            return
        what = None if command is None else command.what
        policy = what.policy if type(what) is Submit else ledger.policy.name
        if policy not in shadows or shadows[policy].rev <= self._denied:
            return
        counts = what is not None and not is_control(what) and type(event) is not FactsWithheld
        if len(self._waiting) >= self._most_waiting:
            if counts:
                self._count(policy, shadows[policy], "dropped")
            return
        self._waiting.append(_Waiting(policy, event, body, counts))
        self._newest += 1
        self._some.set()

    # --- judging ----------------------------------------------------------------------------------

    async def keep(self) -> None:
        """Judge what waits, and store what comes of it. Runs until cancelled; raises nothing else."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._judge_all())
            tasks.create_task(self._tell_all())

    async def _judge_all(self) -> None:
        while True:
            await self._until_quiet()
            for _ in range(len(self._waiting)):
                await self._until_idle()
                if not self._waiting:
                    break  # this guard leaves
                waiting = self._waiting.popleft()
                if not self._waiting:
                    self._some.clear()
                began = time.perf_counter()
                await self._judge(waiting)
                await asyncio.sleep(time.perf_counter() - began)  # half of the idle time at most

    async def _until_quiet(self) -> None:
        """Wait until something waits, and nothing has come for a moment. If many wait, do not wait for that.

        The hops of a request follow each other within milliseconds. What is judged between two of them keeps
        the next one waiting.
        """
        await self._some.wait()
        while len(self._waiting) < _MANY_WAITING:
            newest = self._newest
            await asyncio.sleep(_QUIET_S)
            if self._newest == newest:
                return

    async def _until_idle(self) -> None:
        await self.at_work.idle.wait()
        await asyncio.sleep(0)  # whoever waits for the loop goes first
        while not self.at_work.idle.is_set():
            await self.at_work.idle.wait()
            await asyncio.sleep(0)

    async def _judge(self, waiting: _Waiting) -> None:
        """Judge one event. Whatever goes wrong is counted, and goes no further."""
        policy, event, _, counts = waiting
        shadow = self._shadows().get(policy)
        if shadow is None or self._tally(policy, shadow).stopped:
            return
        what: What = "failed"
        try:
            await self._compare(policy, shadow, waiting)
            return
        except BusError as error:
            _log.debug("shadow_cannot_read", code=error.code, request=event.request)
            what = "dropped"
        except VerdictTooLong as late:  # it would again
            tally = self._tally(policy, shadow)
            self._counts[policy] = replace(tally, stopped=late.code)
            _log.error("shadow_stopped", policy=policy, request=event.request, place=place_of(late))
        except Exception as broken:
            if not self._tally(policy, shadow).failed:  # one line says where
                _log.error("shadow_failed", policy=policy, request=event.request, place=place_of(broken))
        self._forget(event.request)
        if counts:
            self._count(policy, shadow, what)

    async def _compare(self, policy: str, shadow: Shadow, waiting: _Waiting) -> None:
        """Judge one event, and count and store what comes of it."""
        event = waiting.event
        followed = await self._follow(shadow, event)
        compared = None
        if followed is not None:
            compared = self._taken(event.request, followed, event, waiting.body)
        if not waiting.counts or (followed is not None and compared is None):
            return
        if compared is None:
            self._count(policy, shadow, "dropped")
        elif compared.agrees:
            self._count(policy, shadow, "agreed")
        else:
            self._count(policy, shadow, "disagreed")
            await self._keep(policy, shadow, compared)

    async def _follow(self, shadow: Shadow, event: AnyEvent) -> _Followed | None:
        """Return the request as it was before an event; None if it is too long to be read for this."""
        followed = self._followed.get(event.request)
        if followed is not None and followed.rev == shadow.rev and followed.request.n == event.n:
            self._followed.move_to_end(event.request)
            return followed
        self._forget(event.request)
        if event.n > _MOST_READ:
            return None
        followed = _Followed(shadow.rev, ShadowedRequest(shadow.policy), [])
        self._followed[event.request] = followed
        if event.n:
            for stored in (await self._log.read(event.request))[: event.n]:
                self._taken(event.request, followed, codec.decode_event(stored.data), stored.data)
                await asyncio.sleep(0)
                await self.at_work.idle.wait()
        return followed

    def _taken(self, request: str, followed: _Followed, event: AnyEvent, body: bytes) -> ShadowVerdict | None:
        with self._watchdog.watching():
            compared = followed.request.take(event, body)
        followed.weighs.append(weight(body))
        self._weighs += followed.weighs[-1]
        if followed.request.is_over:
            self._forget(request)
        while self._weighs > _MOST_BYTES:
            self._forget(next(iter(self._followed)))
        return compared

    def _forget(self, request: str) -> None:
        followed = self._followed.pop(request, None)
        if followed is not None:
            self._weighs -= sum(followed.weighs)

    # --- what comes of it -------------------------------------------------------------------------

    def _tally(self, policy: str, shadow: Shadow) -> ShadowCounts:
        found = self._counts.get(policy)
        if found is None or found.rev != shadow.rev:
            now = self._now()
            found = self._counts[policy] = ShadowCounts(
                rev=shadow.rev, digest=shadow.digest, guard=self._name, since=now, at=now
            )
        return found

    def _count(self, policy: str, shadow: Shadow, what: What | Literal["unkept"]) -> None:
        tally = self._tally(policy, shadow)
        self._counts[policy] = replace(tally, **{what: getattr(tally, what) + 1})
        self._untold.set()
        if what != "unkept":
            telemetry.shadow_verdicts.add(1, {tracing.POLICY: policy, tracing.OUTCOME: what})

    async def _keep(self, policy: str, shadow: Shadow, found: ShadowVerdict) -> None:
        """Store a disagreement, unless there are too many to store."""
        second = int(time.monotonic())
        so_far = self._stored_in[1] if self._stored_in[0] == second else 0
        self._stored_in = (second, so_far + 1)
        event = found.event
        body = msgspec.json.encode(
            Disagreement(
                request=event.request,
                n=event.n,
                at=event.at,
                rev=shadow.rev,
                digest=shadow.digest,
                client=found.client,
                agent=found.agent,
                to=found.to,
                was=found.was,
                would=found.would,
                detail=found.detail,
                numbers=found.numbers,
            )
        )
        kept = so_far < _MOST_A_SECOND
        if kept:
            kept = await self._publish(subjects.shadow_differs(policy, event.request, event.n), body)
        if not kept:
            self._count(policy, shadow, "unkept")

    async def _tell_all(self) -> None:
        while True:
            await self._untold.wait()
            await self._tell()
            await asyncio.sleep(TELL_S)

    async def _tell(self) -> None:
        """Store the counts. What cannot be stored is in the next ones."""
        self._untold.clear()
        now, own = self._now(), self._name.rpartition("/")[2]
        for policy, counts in tuple(self._counts.items()):
            body = msgspec.json.encode(replace(counts, at=now))
            if not await self._publish(subjects.shadow_counts(policy, own, now), body):
                self._untold.set()

    async def _publish(self, subject: str, body: bytes) -> bool:
        """Store a message; return False if it could not be, and log why."""
        try:
            await self._bus.publish_durable(subject, body)
        except Denied:  # a server that was set up by an older version
            _log.warning("shadow_not_kept", hint="run `mesh setup`, and reload the server")
            self._denied = max((each.rev for each in self._shadows().values()), default=0)
        except BusError as error:
            _log.debug("shadow_not_kept", code=error.code)
        else:
            return True
        return False

    async def leave(self) -> None:
        """Count what was never judged as dropped, and store the counts."""
        shadows = self._shadows()
        for policy, _, _, counts in self._waiting:
            if counts and policy in shadows:
                self._count(policy, shadows[policy], "dropped")
        self._waiting.clear()
        self._some.clear()
        if self._counts:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(TELL_S):
                    await self._tell()
