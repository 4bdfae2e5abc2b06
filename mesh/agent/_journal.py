"""The journal: what a turn did, step by step, so that a turn delivered again repeats nothing.

A step is recorded before its value is used; a loop with a model may read it meanwhile, and no more. When the
same round runs again, each step returns its record, in the order of the calls. A *later* round takes over the
successful steps of earlier ones wherever it makes an equal call. Before its first own step it closes each
earlier round with a fence, which stops an instance that still runs one. Only then it reads the steps of that
round.
"""

import asyncio
import itertools
import math
import time
from collections import defaultdict, deque
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any

import msgspec

from mesh.agent import errors
from mesh.agent._step_store import Call, Earlier, Named, Place, Places, Recorded, StoredSteps, Tally, value_of
from mesh.agent._telemetry import replayed
from mesh.agent.errors import EffectUnknown, Fenced, InDoubt, JournalFull, RoundOver, TurnError, effect_broke
from mesh.bus.stores import StepStore
from mesh.service.eager import eager
from mesh.service.failpoints import failpoint
from protocol.wire.commands import Usage
from protocol.wire.event_parts import RoundOutcome
from protocol.wire.records import DONE, FENCE, Record, Refused, place_of

MAX_STEP_BYTES = 512 * 1024
_ROUNDS_AT_ONCE = 8
"""Earlier rounds that are read at once."""

Produce = Callable[[], Awaitable[Any]]


async def never() -> bool:
    return False


def _anyway() -> None:
    """Allow an effect."""


class Journal:
    """The journal of one round, with those of the rounds before it.

    Args:
        turn: whose journal it is; a continued turn goes on in the first one's.
        nonce: this instance's and this delivery's own.
        fresh: the first delivery of a first round: there is nothing to read yet.
        past: how earlier rounds ended; a settled effect is in it.
        lease_s: after how long without a sign of life another instance may have the turn.
        is_overtaken, is_over: return True if another instance does; if a guard ended the turn.
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
        is_overtaken: Callable[[], Awaitable[bool]] = never,
        is_over: Callable[[], Awaitable[bool]] = never,
    ) -> None:
        self._lease_s, self._is_overtaken, self._is_over, self._nonce = lease_s, is_overtaken, is_over, nonce
        self._steps = StoredSteps(store, request=request, turn=turn, nonce=nonce, version=version)
        self._round = round_
        self._places = Places(round_)
        self._earlier = Earlier(past, round_)
        self._began: deque[Any] = deque()
        """Beginnings of the conversations of earlier deliveries and rounds, in their order."""
        self._kept: dict[str, list[tuple[str, Record]]] = defaultdict(list)
        """Notes of the runtime's own, by kind: those that are read without knowing what they say."""
        self._is_loaded = fresh and round_ == 0
        self._loading: asyncio.Task[None] | None = None
        self._effects_running = 0
        self._closed = False
        self._ahead: deque[asyncio.Future[None]] = deque()
        """Steps on their way, whose values are had already."""
        self.progressed_at = time.monotonic()
        """When the latest step of this process was stored, or the round began (monotonic seconds)."""
        self._called = itertools.count()
        self.tally = Tally()
        self.with_effect = False
        """True if any round journaled an effect."""
        self.broken: TurnError | None = None
        """The error that ended this journal; every later step raises it again, whatever the code caught."""

    # --- reading ----------------------------------------------------------------------------------

    @property
    def owes(self) -> bool:
        """True if an earlier round ended without its holder's report."""
        return bool(self._earlier.unreported)

    async def load(self) -> None:
        """Read what earlier deliveries and rounds recorded; close those rounds. Idempotent.

        Raises BusError.
        """
        if not self._is_loaded:
            self._loading = self._loading or asyncio.ensure_future(self._load())
            await asyncio.shield(self._loading)

    async def _load(self) -> None:
        unreported = self._earlier.unreported
        at_once = asyncio.Semaphore(_ROUNDS_AT_ONCE)

        async def closed(round_: int) -> dict[str, Record]:
            async with at_once:
                return await self._steps.close(round_)

        rounds = await asyncio.gather(*map(closed, range(self._round)))  # a lead may have many
        for round_, found in enumerate(rounds):
            self._take_in(found)
            if round_ in unreported:
                self.tally.find(found.values(), earlier=True)
            for name, record in found.items():
                self._earlier.keep(name, record)
        if self._round:
            failpoint("turn.fenced")
        own = await self._steps.read(self._round)
        self._take_in(own)
        self.tally.find(own.values(), earlier=False)
        self._places.fill(own)
        self._is_loaded = True

    def _take_in(self, steps: Mapping[str, Record]) -> None:
        beginnings = [name for name, record in steps.items() if record.began is not None]
        self._began.extend(steps[name].began for name in sorted(beginnings, key=place_of))
        for name, record in steps.items():
            self._kept[record.kind].append((name, record))
        self.with_effect |= any(record.kind == "intent" for record in steps.values())

    @property
    def version(self) -> str | None:
        """The agent's version that began this round's journal; None if there is none yet."""
        return self._places.version

    def holds(self, call: Call) -> bool:
        """Return True if an equal step is recorded that the code has not come to; asked after `begun`."""
        return self._earlier.holds(call) or self._places.holds(call)

    def kept(self, kind: str) -> Sequence[tuple[str, Record]]:
        """Return the steps of a kind as they stood when this journal was loaded, earlier rounds first."""
        return self._kept[kind]

    async def begun(self) -> tuple[Any, ...]:
        """Return the beginnings of conversations with a model that the code has not come to again, in order.

        Each is recorded with the first reply. Raises as `step`.
        """
        await self._begin()
        return tuple(self._began)

    def take_up(self, began: Any) -> None:
        """Take note that the code has come to the conversation that began with this."""
        self._began.remove(began)

    # --- the end ----------------------------------------------------------------------------------

    def stop(self, error: TurnError) -> TurnError:
        """End this journal with an error, and return it. The first one stays, unless a fence comes later."""
        if self.broken is None or isinstance(error, Fenced):
            self.broken = error
        return error

    async def finish(self) -> None:
        """Let nothing more begin, and wait for the effects that have: no move may overtake them.

        Raises the error that broke the journal, and JournalMismatch where an effect is journaled in this
        round to which its code did not come again.
        """
        self._closed = True
        await self.settled()
        if self._effects_running:
            await self._places.until(lambda: self._effects_running == 0)
        if self.broken is not None:
            raise self.broken
        self._places.require_effects_come_to()

    # --- one step ---------------------------------------------------------------------------------

    async def step(
        self,
        call: Call,
        produce: Produce,
        *,
        cost: Callable[[Any], Usage] | None = None,
        on_reuse: Callable[[], None] | None = None,
        began: Any = None,
        refusals: bool = False,
        ahead: bool = False,
    ) -> Any:
        """Return a step's value: as recorded, or freshly produced and recorded.

        An error of `produce` is not recorded, unless it is a `Recorded` refusal.

        Args:
            cost: returns the cost of a fresh value. It is recorded too, and counts again when this round runs
                again. In a later round it does not: the report held it.
            on_reuse: called when the value is an earlier round's: it was reported then.
            began: recorded with a fresh value, for `begun`.
            refusals: True if an earlier round's refusal is taken over like a value; else it is tried anew.
            ahead: True for a caller that only computes with the value until its next step, or `settled`. It
                has the value while its record is on its way.
        """
        await self._begin()
        nth = next(self._called)
        reused = self._earlier.take(call, refusals=refusals)
        if reused is not None:
            if on_reuse is not None:
                on_reuse()
            return self._recall(*reused, nth)

        async def run(place: Place) -> Record:
            record = await self._produced(call, produce, cost=cost, began=began)
            failpoint("step.ran")
            if not ahead:
                return await self._write(place.name, record, nth)
            self._places.goes_on()
            self._ahead.append(eager(self._written(place.name, record, nth)))
            return record

        return await self._at_its_place(call, nth, run)

    async def effect(
        self,
        call: Call,
        key: str,
        produce: Produce,
        *,
        again: Produce | None,
        allow: Callable[[], None] = _anyway,
    ) -> Any:
        """Return an effect's value, with its intent recorded before it is tried.

        Args:
            key: the effect's own, the same in every round.
            again: called for an intent without a result: it runs the effect again, or reconciles. None: the
                effect is in doubt, and a person has to settle it.
            allow: called before the effect is begun for the first time. It raises a `Recorded` no, which is
                the outcome then, or a TurnError that stops the round.

        An attempt that raises anything but a `Recorded` no leaves its intent without a result and ends the
        round. No code goes on as if the attempt had not happened. Raises InDoubt, and the TurnError that it
        is.
        """
        await self._begin()
        nth = next(self._called)
        before = self._earlier.effect(key)
        if before is not None and before[1].kind == "effect":
            return self._recall(*before, nth)

        async def run(place: Place) -> Record:
            self._effects_running += 1
            try:
                return await self._attempted(call, key, place, nth, before, produce, again, allow)
            finally:
                self._effects_running -= 1

        return await self._at_its_place(call, nth, run)

    async def settled(self) -> None:
        """Wait until the steps whose values were had ahead are stored. Raises what prevents it, each time."""
        while self._ahead:
            await asyncio.shield(writing := self._ahead[0])
            if self._ahead and self._ahead[0] is writing:
                self._ahead.popleft()

    def close(self) -> None:
        """Give up storing what was had ahead. Idempotent."""
        for writing in self._ahead:
            writing.cancel()

    async def _written(self, name: str, record: Record, nth: int) -> None:
        try:
            await self._write(name, record, nth)
        finally:
            await self._places.ended()

    async def _begin(self) -> None:
        await self.settled()
        await self.load()
        if self.broken is not None:
            raise self.broken
        if self._closed:
            raise RoundOver("the round's code has returned its move already")

    async def _at_its_place(self, call: Call, nth: int, run: Callable[[Place], Awaitable[Record]]) -> Any:
        """Return the value of the step at this round's next place; run it if nothing stands there."""
        try:
            place = await self._places.take(call, with_effect=self.with_effect)
        except TurnError as error:
            raise self.stop(error) from None
        if place.record is not None:
            self.tally.come_to(place.record)
            return self._recall(place.name, place.record, nth)
        try:
            record = await run(place)
        finally:
            await self._places.ended()
        return value_of(record)

    def _recall(self, name: str, record: Record, nth: int) -> Any:
        """Count a step that was read and is not done again; return its value."""
        self.tally.count(name, record, nth)
        replayed(name, record)
        return value_of(record)

    async def _attempted(
        self,
        call: Call,
        key: str,
        place: Place,
        nth: int,
        before: Named | None,
        produce: Produce,
        again: Produce | None,
        allow: Callable[[], None],
    ) -> Record:
        """Bring an effect about at its place, and record what came of it."""
        doubtful = before if place.intent is None else (place.name, place.intent)
        settled = None if doubtful is None else self._earlier.settled(doubtful[0])
        if settled is None and place.intent is not None and before is not None:
            word = self._earlier.settled(before[0])
            settled = word if word is not None and word.settled == "done" else None  # nothing was tried since
        attempt: Produce | None = produce
        if doubtful is not None and settled is None:
            attempt = None if again is None else _to_an_end(call[1], again)
        if attempt is None:
            assert doubtful is not None
            raise self.stop(InDoubt(doubtful[0], call[1], key))
        if doubtful is None:
            refused = self._refused(call, key, allow)
            if refused is not None:
                return await self._write(place.name, refused, nth)
        began = time.monotonic()
        if place.intent is None:
            await self._write(place.name, self._steps.record("intent", call, key=key), nth)
            failpoint("effect.intended")
        self.with_effect = True
        await self._require_unfenced(place.n)
        await self.require_held(began)
        if settled is not None and settled.settled == "done":
            record = self._steps.record("effect", call, key=key, value=settled.reply)
        else:
            try:
                record = await self._produced(call, attempt, key=key)
            except Exception as broken:  # like a crash: nobody knows how far it came
                error = effect_broke(call[1], broken)
                if again is None:
                    error = InDoubt(place.name, call[1], key, error)
                raise self.stop(error) from broken
        failpoint("effect.ran")
        return await self._write(f"{place.name}{DONE}", record, nth)

    def _refused(self, call: Call, key: str, allow: Callable[[], None]) -> Record | None:
        """Return the recorded no to an effect that may not begin; None for one that may."""
        try:
            allow()
        except Recorded as no:
            return self._no("effect", call, key, no)
        except TurnError as error:
            raise self.stop(error) from None
        return None

    async def require_held(self, since: float = -math.inf) -> None:
        """Raise Fenced or Superseded if this round was taken over, or its turn ended, since (monotonic s).

        Within half a lease there is no look: who finds an intent without a result waits for a lease first.
        """
        while time.monotonic() - since > self._lease_s / 2:
            since = time.monotonic()
            if await self._is_overtaken() or await self._is_closed():
                raise self.stop(Fenced("another instance took this turn over while this one was held up"))
            if await self._is_over():
                raise self.stop(errors.Superseded("the turn was ended while this instance was held up"))

    async def _is_closed(self) -> bool:
        """Return True if a later round has fenced this one, or another instance has written in it since."""
        found, known = await self._steps.read(self._round), self._places.stored
        strange = (each for name, each in found.items() if each.nonce != self._nonce and name not in known)
        return any(strange) or any(each.kind == FENCE for each in found.values())

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
            return self._no(call[0], call, key, no)
        usage = None if cost is None else cost(value)
        return self._steps.record(call[0], call, key=key, value=value, usage=usage, began=began)

    def _no(self, kind: str, call: Call, key: str, no: Recorded) -> Record:
        return self._steps.record(kind, call, key=key, error=Refused(code=no.reason, message=str(no)))

    async def _write(self, name: str, record: Record, nth: int) -> Record:
        """Store a step of this round, and return it. Raises Fenced when somebody else has it."""
        body = msgspec.json.encode(record)
        if len(body) > MAX_STEP_BYTES:
            raise self.stop(JournalFull(f"{record.called}: {len(body)} bytes of at most {MAX_STEP_BYTES}"))
        if not await self._steps.put(name, body):
            raise self.stop(Fenced(f"another instance wrote step {name}"))
        self.progressed_at = time.monotonic()
        self._places.stands(name)
        self.tally.spend(record)
        if record.kind != "intent":
            failpoint("step.recorded")
            self.tally.count(name, record, nth)
        return record


def _to_an_end(action: str, again: Produce) -> Produce:
    """Return another attempt at an effect. A no before it began is no outcome of the effect."""

    async def attempt() -> Any:
        try:
            return await again()
        except Recorded as no:
            if no.begun:
                raise
            raise EffectUnknown(f"{action} was tried before, and now: {no}") from no

    return attempt
