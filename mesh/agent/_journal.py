"""The journal: what a turn did, step by step, so that a turn delivered again repeats nothing.

A step is recorded before its value is used. When the same round runs again, each step returns its
record, in the order of the calls; another order is a `JournalMismatch`, never a guess. A *later* round
takes over the successful steps of earlier ones wherever it makes an equal call. Before its first own
step it closes each earlier round with a fence, so that an instance which still runs one is stopped, and
only then reads what that round came to.

Names of steps: `<round>-<n>` holds a value, or the intent of an effect, whose result is `<round>-<n>d`. So
whatever a round wants to do next, a fence on that name is in its way.
"""

import asyncio
import itertools
import math
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any

import msgspec

from mesh.agent._step_store import Call, Earlier, Place, Places, Recorded, StoredSteps, Tally, value_of
from mesh.agent._telemetry import replayed
from mesh.agent.errors import EffectUnknown, Fenced, InDoubt, JournalFull, RoundOver, TurnError
from mesh.bus.stores import StepStore
from mesh.service.failpoints import failpoint
from protocol.wire.commands import Usage
from protocol.wire.events import RoundOutcome
from protocol.wire.journal_records import DONE, FENCE, Record, Refused, place_of

MAX_STEP_BYTES = 512 * 1024

Produce = Callable[[], Awaitable[Any]]


class Journal:
    """The journal of one round, with those of the rounds before it.

    Args:
        turn: whose journal it is; a continued turn goes on in the first one's.
        nonce: this instance's and this delivery's own.
        fresh: the first delivery of a first round: there is nothing to read yet.
        past: how earlier rounds ended; a settled effect is in it.
        lease_s: after how long without a sign of life another instance may have the turn.
        is_overtaken: says whether another instance does.
    """

    def __init__(
        self,
        store: StepStore,
        *,
        request: str,
        turn: str,
        round_: int,
        nonce: str,
        version: str,
        fresh: bool = False,
        past: Iterable[RoundOutcome] = (),
        lease_s: float = math.inf,
        is_overtaken: Callable[[], Awaitable[bool]] | None = None,
    ) -> None:
        self._lease_s, self._is_overtaken = lease_s, is_overtaken
        self._steps = StoredSteps(store, request=request, turn=turn, nonce=nonce, version=version)
        self._round, self._nonce, self._version = round_, nonce, version
        self._places = Places(round_)
        self._earlier = Earlier(past, round_)
        self._began: deque[Any] = deque()
        """What the conversations of earlier deliveries and rounds began with, in their order."""
        self._loaded = asyncio.Event()
        self._loading: asyncio.Task[None] | None = None
        if fresh and round_ == 0:
            self._loaded.set()
        self._effects_running = 0
        self._closed = False
        self._called = itertools.count()
        self.tally = Tally()
        self.with_effect = False
        """Whether any round journaled an effect."""
        self.broken: TurnError | None = None
        """What ended this journal; every later step raises it again, whatever the code caught."""

    # --- reading ----------------------------------------------------------------------------------

    @property
    def owes(self) -> bool:
        """Whether an earlier round ended without its holder's report."""
        return bool(self._earlier.unreported)

    async def load(self) -> None:
        """Read what earlier deliveries and rounds recorded; close those rounds. Idempotent.

        Raises BusError.
        """
        if self._loaded.is_set():
            return
        if self._loading is None:
            self._loading = asyncio.ensure_future(self._load())
        await asyncio.shield(self._loading)

    async def _load(self) -> None:
        unreported = self._earlier.unreported
        for round_ in range(self._round):
            found = await self._steps.close(round_)
            if round_ in unreported:
                self.tally.owe(found.values())
            self._began.extend(_began(found))
            for name, record in found.items():
                self.with_effect |= record.kind == "intent"
                self._earlier.keep(name, record)
        if self._round:
            failpoint("turn.fenced")
        own = await self._steps.read(self._round)
        self._began.extend(_began(own))
        self.tally.find(own.values())
        self._places.fill(own)
        self.with_effect |= any(record.kind == "intent" for record in own.values())
        self._loaded.set()

    @property
    def version(self) -> str | None:
        """The agent's version that began this round's journal; None if there is none yet."""
        return self._places.version

    # --- the end ----------------------------------------------------------------------------------

    def stop(self, error: TurnError) -> TurnError:
        """End this journal with an error, and return it. The first one stays, unless a fence comes later."""
        if self.broken is None or isinstance(error, Fenced):
            self.broken = error
        return error

    async def finish(self) -> None:
        """Let nothing more begin, and wait for the effects that have: no move may overtake them.

        Raises what broke the journal; and JournalMismatch where an effect is journaled in this round
        to which its code did not come again.
        """
        self._closed = True
        await self._places.until(lambda: self._effects_running == 0)
        if self.broken is not None:
            raise self.broken
        self._places.require_effects_come_to()

    # --- one step ---------------------------------------------------------------------------------

    async def begun(self) -> tuple[Any, ...]:
        """Return what conversations with a model began with that the code has not come to again, in order.

        It is recorded with each one's first reply. Raises as `step`.
        """
        await self._begin()
        return tuple(self._began)

    def take_up(self, began: Any) -> None:
        """The code has come to the conversation that began with this."""
        self._began.remove(began)

    async def _begin(self) -> None:
        await self.load()
        if self.broken is not None:
            raise self.broken
        if self._closed:
            raise RoundOver("the round's code has returned its move already")

    async def step(
        self,
        call: Call,
        produce: Produce,
        *,
        cost: Callable[[Any], Usage] | None = None,
        on_reuse: Callable[[], None] | None = None,
        began: Any = None,
        refusals: bool = False,
    ) -> Any:
        """Return a step's value: as recorded, or freshly produced and recorded.

        What `produce` raises is not recorded, unless it is a `Recorded` refusal.

        Args:
            cost: what a fresh value cost. It is recorded too, and counts again when this round runs
                again; in a later round, which was told of it in the report, it does not.
            on_reuse: called when the value is an earlier round's: it was reported then.
            began: recorded with a fresh value, for `begun`.
            refusals: whether an earlier round's refusal is taken over like a value; else it is tried anew.
        """
        await self._begin()
        nth = next(self._called)
        reused = self._earlier.take(call, refusals=refusals)
        if reused is not None:
            self._recall(*reused, nth)
            if on_reuse is not None:
                on_reuse()
            return value_of(reused[1])
        place = await self._take(call, nth)
        if place.record is not None:
            return value_of(place.record)
        try:
            record = await self._produced(call, produce, cost=cost, began=began)
            failpoint("step.ran")
            await self._write(self._places.name(place.n), record, nth)
        finally:
            await self._places.ended()
        return value_of(record)

    async def effect(
        self,
        call: Call,
        key: str,
        produce: Produce,
        *,
        again: Produce | None,
        allow: Callable[[], None] | None = None,
    ) -> Any:
        """Return an effect's value, with its intent recorded before it is tried.

        Args:
            key: the effect's own, the same in every round.
            again: what to do about an intent without a result: run it again, or reconcile. None: it is
                in doubt, and a person has to settle it.
            allow: asked before the effect is begun for the first time; it raises a `Recorded` no, which
                is the outcome then, or a TurnError that stops the round.

        An attempt that raises anything but a `Recorded` no leaves its intent without a result, and ends
        the round: no code goes on as if it had not happened. Raises InDoubt, and the TurnError that it is.
        """
        await self._begin()
        nth = next(self._called)
        name, earlier = self._earlier.effect(key)
        if earlier is not None and earlier.kind == "effect":
            self._recall(name, earlier, nth)
            return value_of(earlier)
        place = await self._take(call, nth)
        if place.record is not None:
            return value_of(place.record)
        self._effects_running += 1
        try:
            record = await self._attempted(call, key, place, (name, earlier), produce, again, allow)
        finally:
            self._effects_running -= 1
            await self._places.ended()
        return value_of(record)

    async def _attempted(
        self,
        call: Call,
        key: str,
        place: Place,
        before: tuple[str, Record | None],
        produce: Produce,
        again: Produce | None,
        allow: Callable[[], None] | None,
    ) -> Record:
        """Bring an effect about at its place, and record what came of it."""
        step = self._places.name(place.n)
        name, earlier = before
        doubtful = place.intent or earlier
        doubted = step if place.intent is not None else name
        settled = self._earlier.settled(doubted) if doubtful is not None else None
        if settled is None and place.intent is not None and earlier is not None:
            word = self._earlier.settled(name)
            settled = word if word is not None and word.settled == "done" else None  # nothing was tried since
        tries_again = doubtful is not None and settled is None
        attempt = again if tries_again else produce
        if attempt is None:
            raise self.stop(InDoubt(doubted, call[1], key))
        if tries_again:
            attempt = _to_an_end(call[1], attempt)
        if doubtful is None and allow is not None:
            refused = self._refused(call, key, allow)
            if refused is not None:
                await self._write(step, refused, place.nth)
                return refused
        began = time.monotonic()
        if place.intent is None:
            await self._write(step, self._record("intent", call, key=key), place.nth)
            failpoint("effect.intended")
        self.with_effect = True
        await self._require_unfenced(place.n)
        await self.require_held(began)
        if settled is not None and settled.settled == "done":
            record = self._record("effect", call, key=key, value=settled.reply)
        else:
            try:
                record = await self._produced(call, attempt, key=key)
            except Exception as broken:  # like a crash: nobody knows how far it came
                if again is None:
                    raise self.stop(InDoubt(step, call[1], key)) from broken
                raise self.stop(_unknown(call[1], broken)) from broken
        failpoint("effect.ran")
        await self._write(f"{step}{DONE}", record, place.nth)
        return record

    def _refused(self, call: Call, key: str, allow: Callable[[], None]) -> Record | None:
        """Return the recorded no to an effect that may not begin; None for one that may."""
        try:
            allow()
        except Recorded as no:
            error = Refused(code=no.reason, message=str(no))
            return self._record("effect", call, key=key, error=error)
        except TurnError as error:
            raise self.stop(error) from None
        return None

    async def require_held(self, since: float = -math.inf) -> None:
        """Raise Fenced if another instance has taken this round over while this one was held up.

        Whoever finds an intent without a result waits for a lease before it asks what became of it, so that
        an effect may begin within that time of its intent. Where a bus in trouble or a stopped process
        took half of that, we look whether somebody has taken over; they say so before anything else.

        Args:
            since: when the intent was begun to be written (monotonic seconds); never, to look in any case.
        """
        while self._is_overtaken is not None and time.monotonic() - since > self._lease_s / 2:
            since = time.monotonic()
            if await self._is_overtaken() or await self._is_closed():
                raise self.stop(Fenced("another instance took this turn over while this one was held up"))

    async def _is_closed(self) -> bool:
        """Say whether a later round has fenced this one."""
        return any(record.kind == FENCE for record in (await self._steps.read(self._round)).values())

    async def _require_unfenced(self, n: int) -> None:
        """Raise Fenced if a later round has closed this one beneath place `n`.

        The intent at `n` is stored. If it was stored before that round's fence, the round reads it; if
        after, the fence is on one of the places that were free beneath it.
        """
        for free in self._places.free_beneath(n):
            standing = await self._steps.get(free)
            if standing is not None and standing.kind == FENCE:
                raise self.stop(Fenced(f"a later round has fenced this one at step {free}"))

    async def _produced(
        self,
        call: Call,
        produce: Produce,
        key: str = "",
        cost: Callable[[Any], Usage] | None = None,
        began: Any = None,
    ) -> Record:
        try:
            value = await produce()
        except Recorded as no:
            return self._record(call[0], call, key=key, error=Refused(code=no.reason, message=str(no)))
        usage = None if cost is None else cost(value)
        return self._record(call[0], call, key=key, value=value, usage=usage, began=began)

    def holds(self, call: Call) -> bool:
        """Say whether an equal step is recorded that the code has not come to again; `begun` came before."""
        return self._earlier.holds(call) or self._places.holds(call)

    async def _take(self, call: Call, nth: int) -> Place:
        """Return the next place of this round; where nothing stands a step then runs, until `Places.ended`.

        Raises what ends the round there: JournalMismatch, JournalFull, Fenced.
        """
        try:
            place = await self._places.take(call, nth, with_effect=self.with_effect)
        except TurnError as error:
            raise self.stop(error) from None
        if place.record is not None:
            self.tally.come_to(place.record)
            self._recall(self._places.name(place.n), place.record, nth)
        return place

    def _recall(self, name: str, record: Record, nth: int) -> None:
        """Count a step that was read and is not done again."""
        self.tally.count(name, record, nth)
        replayed(name, record)

    # --- writing ----------------------------------------------------------------------------------

    def _record(self, kind: str, call: Call, **said: Any) -> Record:
        return Record(
            kind=kind,
            name=call[1],
            digest=call[2],
            version=self._version,
            nonce=self._nonce,
            at=time.time_ns() // 1000,
            **said,
        )

    async def _write(self, name: str, record: Record, nth: int) -> None:
        """Store a step of this round. Raises Fenced when somebody else has it."""
        body = msgspec.json.encode(record)
        if len(body) > MAX_STEP_BYTES:
            raise self.stop(JournalFull(f"{record.called}: {len(body)} bytes of at most {MAX_STEP_BYTES}"))
        if not await self._steps.put(name, body):
            raise self.stop(Fenced(f"another instance wrote step {name}"))
        self._places.stands(name)
        self.tally.spend(record)
        if record.kind != "intent":
            failpoint("step.recorded")
            self.tally.count(name, record, nth)


def _to_an_end(action: str, again: Produce) -> Produce:
    """Return another attempt at an effect, of which a no that came before it began is no outcome."""

    async def attempt() -> Any:
        try:
            return await again()
        except Recorded as no:
            if no.begun:
                raise
            raise EffectUnknown(f"{action} was tried before, and now: {no}") from no

    return attempt


def _unknown(action: str, broken: Exception) -> TurnError:
    """Return what ends a round whose effect broke, and is tried again under its key in the next."""
    if isinstance(broken, TurnError):
        return broken
    return EffectUnknown(f"{action} broke: {type(broken).__name__}")


def _began(steps: Mapping[str, Record]) -> list[Any]:
    """Return what the conversations of one round began with, in their order."""
    with_it = [name for name, record in steps.items() if record.began is not None]
    return [steps[name].began for name in sorted(with_it, key=place_of)]
