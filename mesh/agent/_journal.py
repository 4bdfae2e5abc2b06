"""The journal: what a turn did, step by step, so that a turn delivered again repeats nothing.

A step is recorded before its value is used; only a model's loop may read the value meanwhile. Places are
assigned in the order of the calls. When the same round runs again, each step returns its record. Any other
order is a `JournalMismatch`, never a guess. A *later* round reuses the successful steps of earlier ones
wherever it makes an equal call. Before its first own step it closes each earlier round with a fence, which
stops any instance that still runs it. Only then does it read the steps of that round.
"""

import asyncio
import itertools
import math
import time
from collections import Counter, defaultdict, deque
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any

import msgspec

from mesh.agent._ahead import Writes
from mesh.agent._fork import RecordBefore
from mesh.agent._places import Place, Places
from mesh.agent._steps import (
    NOTHING_GIVEN,
    Call,
    Earlier,
    Given,
    Named,
    Recorded,
    RoundKey,
    StoredSteps,
    type_of,
    value_of,
)
from mesh.agent._tally import Tally
from mesh.agent._telemetry import replayed
from mesh.agent.errors import Fenced, JournalFull, RoundOver, Superseded, TurnError
from mesh.bus.stores import StepStore
from mesh.service.failpoints import failpoint
from protocol.wire.commands import Usage
from protocol.wire.event_parts import RoundOutcome
from protocol.wire.records import DONE, FENCE, MOST_ARGUMENTS_BYTES, Record, Refused, place_of

MAX_STEP_BYTES = 512 * 1024
_ROUNDS_AT_ONCE = 8  # earlier rounds that are read at once

Produce = Callable[[], Awaitable[Any]]


async def never() -> bool:
    return False


class Journal:
    """The journal of one round, with those of the rounds before it.

    Args:
        nonce: unique to this instance and this delivery.
        fresh: True for the first delivery of a first round: there is nothing to read yet.
        past: how earlier rounds ended, including settled effects.
        lease_s: how long without a sign of life until another instance may have the turn.
        is_overtaken, is_over: return True if another instance has the turn; if a guard ended it.
        before: for a fork: what answers its calls.
    """

    def __init__(
        self,
        store: StepStore,
        key: RoundKey,
        *,
        nonce: str,
        version: str,
        fresh: bool = False,
        past: Iterable[RoundOutcome] = (),
        lease_s: float = math.inf,
        is_overtaken: Callable[[], Awaitable[bool]] = never,
        is_over: Callable[[], Awaitable[bool]] = never,
        before: RecordBefore | None = None,
    ) -> None:
        self.before = before
        self._made: Counter[Call] = Counter()
        """How many equal calls have a step of this turn's own."""
        self._lease_s, self._is_overtaken, self._is_over, self._nonce = lease_s, is_overtaken, is_over, nonce
        self._round = key.round
        self.steps = StoredSteps(store, key, nonce=nonce, version=version)
        self.places = Places(key.round)
        self.earlier = Earlier(past, key.round)
        self._began: deque[Any] = deque()
        """Beginnings of conversations, from earlier deliveries and rounds, in order."""
        self._kept: dict[str, list[Named]] = defaultdict(list)
        """The runtime's own notes, by kind: steps that are read without knowing their content."""
        self._is_loaded = fresh and key.round == 0
        self._loading: asyncio.Task[None] | None = None
        self._closed = False
        self._writes = Writes()
        self._called = itertools.count()
        self.effects_running = 0
        self.progressed_at = time.monotonic()
        """When the latest step of this process was stored, or the round began (monotonic seconds)."""
        self.tally = Tally()
        self.with_effect = False
        """True if any round journaled an effect."""
        self.broken: TurnError | None = None
        """The error that ended this journal. Every later step raises it again, even if the code caught it."""

    # --- reading ----------------------------------------------------------------------------------

    @property
    def has_unreported(self) -> bool:
        """True if an earlier round ended without a report."""
        return bool(self.earlier.unreported)

    async def load(self) -> None:
        """Read what earlier deliveries and rounds recorded, and close those rounds. Idempotent.

        Raises BusError.
        """
        if not self._is_loaded:
            self._loading = self._loading or asyncio.ensure_future(self._load())
            await asyncio.shield(self._loading)

    async def _load(self) -> None:
        unreported = self.earlier.unreported
        at_once = asyncio.Semaphore(_ROUNDS_AT_ONCE)

        async def closed(round_: int) -> dict[str, Record]:
            async with at_once:
                return await self.steps.close(round_)

        rounds = await asyncio.gather(*map(closed, range(self._round)))  # a lead may have many
        for round_, found in enumerate(rounds):
            self._take_in(found)
            if round_ in unreported:
                self.tally.find(found.values(), earlier=True)
            for name, record in found.items():
                self.earlier.keep(name, record)
        if self._round:
            failpoint("turn.fenced")
        own = await self.steps.read(self._round)
        self._take_in(own)
        self.tally.find(own.values(), earlier=False)
        self.places.fill(own)
        self._is_loaded = True

    def _take_in(self, steps: Mapping[str, Record]) -> None:
        beginnings = [name for name, record in steps.items() if record.began is not None]
        self._began.extend(steps[name].began for name in sorted(beginnings, key=place_of))
        for name, record in steps.items():
            self._kept[record.kind].append((name, record))
            if self.before is not None and not name.endswith(DONE):
                kind = "effect" if record.kind == "intent" else record.kind
                self._made[kind, record.name, record.digest] += 1
        self.with_effect |= any(record.kind == "intent" for record in steps.values())

    @property
    def version(self) -> str | None:
        """The agent's version that began this round's journal; None if there is none yet."""
        first = self.places.stored.get(f"{self._round}-0")
        return None if first is None else first.version

    def holds(self, call: Call) -> bool:
        """Return True if an equal step is recorded that the code has not reached. Call it after `begun`."""
        return self.earlier.holds(call) or self.places.holds(call)

    def kept(self, kind: str) -> Sequence[Named]:
        """Return the steps of a kind that existed when this journal was loaded, earlier rounds first."""
        return self._kept[kind]

    async def begun(self) -> tuple[Any, ...]:
        """Return the beginnings of conversations with a model that the code has not reached again, in order.

        Each is recorded with the first reply. Raises as `step`.
        """
        await self.begin()
        return tuple(self._began)

    def mark_reached(self, began: Any) -> None:
        """Note that the code has reached the conversation with this beginning."""
        self._began.remove(began)

    # --- the end ----------------------------------------------------------------------------------

    async def require_held(self, since: float = -math.inf) -> None:
        """Raise Fenced or Superseded if this round was taken over, or its turn ended, since (monotonic s).

        Within half a lease nothing is read: an instance that finds an intent without a result waits for a
        lease first.
        """
        while time.monotonic() - since > self._lease_s / 2:
            since = time.monotonic()
            if await self._is_overtaken() or await self._is_closed():
                raise self.stop(Fenced("another instance took this turn over while this one was held up"))
            if await self._is_over():
                raise self.stop(Superseded("the turn was ended while this instance was held up"))

    async def _is_closed(self) -> bool:
        """Return True if a later round has fenced this one, or another instance has written to it."""
        found, known = await self.steps.read(self._round), self.places.stored
        foreign = (each for name, each in found.items() if each.nonce != self._nonce and name not in known)
        return any(foreign) or any(each.kind == FENCE for each in found.values())

    def stop(self, error: TurnError) -> TurnError:
        """End this journal with an error, and return it. The first is kept, unless a fence comes later."""
        if self.broken is None or isinstance(error, Fenced):
            self.broken = error
        return error

    async def finish(self) -> None:
        """Allow no more steps, and wait for running effects: no move may overtake them.

        Raises the error that broke the journal. Raises JournalMismatch if an effect is journaled in this
        round that its code did not reach again.
        """
        self._closed = True
        await self.settled()
        if self.effects_running:
            await self.places.until(lambda: self.effects_running == 0)
        if self.broken is not None:
            raise self.broken
        self.places.require_effects_reached()

    # --- one step ---------------------------------------------------------------------------------

    async def step(
        self,
        call: Call,
        produce: Produce,
        *,
        cost: Callable[[Any], Usage] | None = None,
        on_reuse: Callable[[], None] | None = None,
        began: Any = None,
        given: Given = NOTHING_GIVEN,
        refusals: bool = False,
        ahead: bool = False,
    ) -> Any:
        """Return a step's value: as recorded, or freshly produced and recorded.

        An error of `produce` is not recorded, unless it is `Recorded`.

        Args:
            cost: returns the cost of a fresh value. It is recorded too, and counts again when this round runs
                again, but not in a later round: the report of the earlier one had it.
            on_reuse: called when the value comes from an earlier round, which has reported it.
            began: recorded with a fresh value, for `begun`.
            given: what a tool is called with.
            refusals: True to reuse an earlier round's refusal like a value; else the call is tried again.
            ahead: True if the caller only computes with the value until its next step, or until `settled`.
                It gets the value while its record is being stored.
        """
        nth = await self.begin()
        reused = self.earlier.take(call, refusals=refusals)
        if reused is not None:
            if on_reuse is not None:
                on_reuse()
            return self.recall(*reused, nth)
        place = await self.take(call)
        if place.record is not None:
            return self.reach(place.name, place.record, nth)
        try:
            answered = None if self.before is None else await self.before.step(call, self.nth_of(call))
            if answered is None:
                record = await self.produced(call, produce, given, cost=cost, began=began)
            else:
                record = self.again(answered, call, given, began=began)
                if on_reuse is not None:
                    on_reuse()
            failpoint("step.ran")
            if ahead:
                self.places.keep_open()
                self._writes.begin(self._written(place.name, record, nth))
            else:
                await self.write(place.name, record, nth)
        finally:
            await self.places.ended()
        return value_of(record)

    async def begin(self) -> int:
        """Begin a call, and return its ordinal in this round. Raises the error that ended the journal."""
        await self.settled()
        await self.load()
        if self.broken is not None:
            raise self.broken
        if self._closed:
            raise RoundOver("the round's code has returned its move already")
        return next(self._called)

    async def take(self, call: Call) -> Place:
        """Take this round's next place for a call. A step that runs there has to call `places.ended`."""
        try:
            return await self.places.take(call, with_effect=self.with_effect)
        except TurnError as error:
            raise self.stop(error) from None

    def reach(self, name: str, record: Record, nth: int) -> Any:
        """Return the value of a step of this round that its code reaches again."""
        self.tally.reach(record)
        return self.recall(name, record, nth)

    def recall(self, name: str, record: Record, nth: int) -> Any:
        """Count a step that was read and is not run again; return its value."""
        self.tally.count(name, record, nth)
        replayed(name, record)
        return value_of(record)

    def nth_of(self, call: Call) -> int:
        """Count a call that has no step of this turn's own yet; return how many equal ones came before."""
        self._made[call] += 1
        return self._made[call] - 1

    def again(
        self, answered: Record, call: Call, given: Given, *, key: str = "", began: Any = None
    ) -> Record:
        """Return the record of a call that another request's record answers: it costs nothing here."""
        return self.steps.record(
            call[0], call, given, key=key, value=answered.value, error=answered.error, began=began
        )

    async def produced(
        self,
        call: Call,
        produce: Produce,
        given: Given = NOTHING_GIVEN,
        key: str = "",
        cost: Callable[[Any], Usage] | None = None,
        began: Any = None,
    ) -> Record:
        """Produce a value, and return its record, not stored yet; a `Recorded` no is one, too."""
        try:
            value = await produce()
        except Recorded as no:
            return self.refused(call, given, no, key=key)
        usage = None if cost is None else cost(value)
        return self.steps.record(call[0], call, given, key=key, value=value, usage=usage, began=began)

    def refused(self, call: Call, given: Given, no: Recorded, *, key: str = "") -> Record:
        """Return the record of a refusal, or of an exception."""
        kind = "" if no.raised is None else type_of(no.raised)
        refused = Refused(code=no.reason, message=str(no), type=kind)
        return self.steps.record(call[0], call, given, key=key, error=refused)

    async def write(self, name: str, record: Record, nth: int) -> Record:
        """Store a step of this round, and return it. Raises Fenced if another instance has stored it."""
        body = msgspec.json.encode(record)
        if len(body) > MAX_STEP_BYTES + MOST_ARGUMENTS_BYTES:
            raise self.stop(JournalFull(f"{record.called}: {len(body)} bytes of at most {MAX_STEP_BYTES}"))
        if not await self.steps.put(name, body):
            raise self.stop(Fenced(f"another instance wrote step {name}"))
        self.progressed_at = time.monotonic()
        self.places.note_stored(name)
        self.tally.spend(record)
        if record.kind != "intent":
            failpoint("step.recorded")
            self.tally.count(name, record, nth)
        return record

    async def _written(self, name: str, record: Record, nth: int) -> None:
        try:
            await self.write(name, record, nth)
        finally:
            await self.places.ended()

    async def settled(self) -> None:
        """Wait until steps whose values were used ahead are stored. Raises what prevents it, on each call."""
        await self._writes.settled()

    def close(self) -> None:
        """Cancel the writes of values that were used ahead. Idempotent."""
        self._writes.close()
