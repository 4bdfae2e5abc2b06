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
import hashlib
import itertools
import math
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from mesh.agent.earlier import Earlier
from mesh.agent.failures import EffectUnknown, TurnError
from mesh.agent.record import DONE, Call, Record, Recorded, Refused, place_of, value_of
from mesh.agent.step_spans import replayed
from mesh.agent.stops import Fenced, InDoubt, JournalFull, JournalMismatch, RoundOver
from mesh.agent.stored import FENCE, MAX_STEPS, WINDOW, StoredSteps
from mesh.bus.steps import StepStore
from mesh.windows import reached
from protocol.budget import NOTHING, minus, plus
from protocol.events import Past
from protocol.messages import Usage

MAX_STEP_BYTES = 512 * 1024

Produce = Callable[[], Awaitable[Any]]


@dataclass(frozen=True, slots=True)
class Place:
    """Where a step is, and what is there already."""

    n: int
    nth: int
    """Which of the round's calls it is, those that were taken over counted too."""
    record: Record | None
    intent: Record | None


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
        past: Iterable[Past] = (),
        lease_s: float = math.inf,
        is_overtaken: Callable[[], Awaitable[bool]] | None = None,
    ) -> None:
        self._lease_s, self._is_overtaken = lease_s, is_overtaken
        self._steps = StoredSteps(store, request=request, turn=turn, nonce=nonce, version=version)
        self._round, self._nonce, self._version = round_, nonce, version
        self._own: dict[str, Record] = {}
        self._earlier = Earlier(past, round_)
        self._began: deque[Any] = deque()
        """What the conversations of earlier deliveries and rounds began with, in their order."""
        self._loaded = asyncio.Event()
        self._loading: asyncio.Task[None] | None = None
        if fresh and round_ == 0:
            self._loaded.set()
        self._next = 0
        self._highest = -1
        """The highest place at which a step of this round is stored."""
        self._free: set[int] = set()
        """Places that were taken and hold nothing: their steps run, or broke."""
        self._running = 0
        self._effects_running = 0
        self._moved = asyncio.Condition()
        self._order = asyncio.Lock()
        self._closed = False
        self._called = itertools.count()
        self._lines: dict[int, str] = {}
        """What the digest is made of, by the order of the calls: side by side, steps end in any order."""
        self.with_effect = False
        """Whether any round journaled an effect."""
        self.spent: Usage = NOTHING
        """What this round's steps cost, up to where its code is now; the same whenever it runs again."""
        self.owed: Usage = NOTHING
        """What rounds cost that were ended by the clock since the turn's last report."""
        self.owed_actions: frozenset[str] = frozenset()
        """Tools that those rounds called, and earlier deliveries of this one."""
        self._unseen: Usage = NOTHING
        """What recorded steps of this round cost that its code has not come to (yet)."""
        self.broken: TurnError | None = None
        """What ended this journal; every later step raises it again, whatever the code caught."""

    @property
    def digest(self) -> str:
        """SHA-256 (hex) over this round's steps, in order of their calls; empty without any."""
        lines = "".join(self._lines[nth] for nth in sorted(self._lines))
        return hashlib.sha256(lines.encode()).hexdigest() if lines else ""

    @property
    def steps(self) -> int:
        """How many steps this round has, recorded or reused."""
        return len(self._lines)

    @property
    def paid(self) -> Usage:
        """What this round's recorded steps cost, whether or not its code came to them again."""
        return plus(self.spent, self._unseen)

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
                self._owe(found.values())
                self.owed = plus(self.owed, _cost(found.values()))
            self._began.extend(_began(found))
            for name, record in found.items():
                self.with_effect |= record.kind == "intent"
                self._earlier.keep(name, record)
        if self._round:
            reached("turn.fenced")
        self._own = await self._steps.read(self._round)
        self._began.extend(_began(self._own))
        self._owe(self._own.values())
        self._unseen = _cost(self._own.values())
        self._highest = max(map(place_of, self._own), default=-1)
        self.with_effect |= any(record.kind == "intent" for record in self._own.values())
        self._loaded.set()

    def _owe(self, records: Iterable[Record]) -> None:
        called = {record.name for record in records if record.kind in ("call", "effect", "intent")}
        self.owed_actions |= called

    @property
    def version(self) -> str | None:
        """The agent's version that began this round's journal; None if there is none yet."""
        first = self._own.get(f"{self._round}-0")
        return None if first is None else first.version

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
        async with self._moved:
            await self._moved.wait_for(lambda: self._effects_running == 0)
        if self.broken is not None:
            raise self.broken
        for name, record in self._own.items():
            if record.kind == "intent" and place_of(name) >= self._next:
                raise JournalMismatch(name, f"effect {record.name}", "nothing more", with_effect=True)

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
            reached("step.ran")
            await self._write(f"{self._round}-{place.n}", record, nth)
        finally:
            await self._ended()
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
            await self._ended()
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
        step = f"{self._round}-{place.n}"
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
            reached("effect.intended")
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
        reached("effect.ran")
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
        for free in sorted(self._free):
            if free < n:
                standing = await self._steps.get(f"{self._round}-{free}")
                if standing is not None and standing.kind == FENCE:
                    raise self.stop(Fenced(f"a later round has fenced this one at step {self._round}-{free}"))

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
        unseen = (each for name, each in self._own.items() if place_of(name) >= self._next)
        return self._earlier.holds(call) or any(
            (each.kind, each.name, each.digest) == call for each in unseen
        )

    async def _take(self, call: Call, nth: int) -> Place:
        """Return the next place of this round, in the order of the calls; the step then runs, until `_ended`.

        So many places may be free beneath a stored one that reading does not take the gap for the end.
        Raises JournalMismatch, JournalFull, Fenced.
        """
        async with self._order:
            while self._next - self._highest > WINDOW:
                if self._running == 0:
                    raise self.stop(JournalFull(f"{WINDOW} steps in a row broke: nothing came of them"))
                async with self._moved:
                    await self._moved.wait()
            place = self._placed(call, nth)
            if place.record is None:
                self._running += 1
            return place

    async def _ended(self) -> None:
        self._running -= 1
        async with self._moved:
            self._moved.notify_all()

    def _placed(self, call: Call, nth: int) -> Place:
        if self._next >= MAX_STEPS:
            raise self.stop(JournalFull(f"a turn journals {MAX_STEPS} steps at most"))
        n, self._next = self._next, self._next + 1
        name = f"{self._round}-{n}"
        found = self._own.get(name)
        if found is None:
            self._free.add(n)
            return Place(n, nth, None, None)
        if found.kind == FENCE:
            raise self.stop(Fenced(f"a later round has fenced this one at step {name}"))
        kind = "effect" if found.kind == "intent" else found.kind
        if (kind, found.name, found.digest) != call:
            said = f"{call[0]} {call[1]}".strip()
            raise self.stop(
                JournalMismatch(name, f"{kind} {found.name}".strip(), said, with_effect=self.with_effect)
            )
        intent = found if found.kind == "intent" else None
        record = found if intent is None else self._own.get(f"{name}{DONE}")
        if record is not None:
            self._recall(name, record, nth)
            self.spent = plus(self.spent, record.usage or NOTHING)
            self._unseen = minus(self._unseen, record.usage or NOTHING)
        return Place(n, nth, record, intent)

    def _recall(self, name: str, record: Record, nth: int) -> None:
        """Count a step that was read and is not done again."""
        self._count(name, record, nth)
        replayed(name, record)

    def _count(self, name: str, record: Record, nth: int) -> None:
        self._lines[nth] = f"{name.removesuffix(DONE)}\x1f{record.called}\x1f{record.digest}\x1e"

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
        self._free.discard(place_of(name))
        self._highest = max(self._highest, place_of(name))
        if record.usage is not None:
            self.spent = plus(self.spent, record.usage)
        if record.kind != "intent":
            reached("step.recorded")
            self._count(name, record, nth)


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


def _cost(records: Iterable[Record]) -> Usage:
    total = NOTHING
    for record in records:
        total = plus(total, record.usage or NOTHING)
    return total


__all__ = [
    "Call",
    "Fenced",
    "InDoubt",
    "Journal",
    "JournalFull",
    "JournalMismatch",
    "Place",
    "Recorded",
    "RoundOver",
]
