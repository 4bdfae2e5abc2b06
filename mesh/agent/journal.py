"""The journal: what a turn did, step by step, so that a turn delivered again repeats nothing.

A step is recorded before its value is used. When the same round runs again, each step returns its
record, in the order of the calls; another order is a `JournalMismatch`, never a guess. A *later* round
takes over the successful steps of earlier ones wherever it makes an equal call. Before its first own
step it writes a `fence` behind each earlier round, so that an instance which still runs one is stopped.

Names of steps: `<round>-<n>` holds a value, or the intent of an effect, whose result is `<round>-<n>d`. So
whatever a round wants to do next, a fence on that name is in its way.
"""

import asyncio
import hashlib
import time
from collections import defaultdict, deque
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Any, ClassVar

import msgspec

from mesh.agent.failures import Permanent, TurnError
from mesh.bus.steps import StepStore, StepTaken
from mesh.errors import OutcomeUnknown, Unreachable
from protocol.events import Past

WINDOW = 16
"""Steps read at once, and the most that may run at once: a gap longer than this ends a round's journal."""
DONE = "d"
MAX_STEPS = 1_000
MAX_STEP_BYTES = 512 * 1024
_AGAIN_S = (0.05, 0.1, 0.2, 0.5, 1.0)


class Fenced(TurnError):
    """Another instance, or a later round, has this turn; nothing may be done or proposed any more."""

    code: ClassVar[str] = "journal.fenced"


class JournalMismatch(TurnError):
    """The code does not do what its journal says it did."""

    code: ClassVar[str] = "journal_mismatch"

    def __init__(self, step: str, recorded: str, called: str, *, with_effect: bool) -> None:
        super().__init__(f"step {step} was {recorded}, the code now calls {called}")
        self.step = step
        self.permanent = with_effect  # with an effect in the journal no fresh round may be tried


class InDoubt(TurnError):
    """An effect has an intent and no result, and nobody but a person can say what became of it."""

    code: ClassVar[str] = "effect_in_doubt"

    def __init__(self, step: str, action: str, key: str) -> None:
        super().__init__(f"{action} at step {step}")
        self.step, self.action, self.key = step, action, key


class JournalFull(Permanent):
    """More steps, or a larger value, than a turn may journal."""

    code: ClassVar[str] = "journal_full"


class Refused(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A tool's recorded no."""

    code: str
    message: str


class Record(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One step as it is stored."""

    v: int = 1
    kind: str
    """`call`, `effect`, `intent`, `model`, `remark`, `now`, `random` or `fence`."""
    name: str = ""
    digest: str = ""
    """Of the arguments."""
    version: str = ""
    """The agent's, as it wrote this."""
    nonce: str
    """The writing instance's."""
    at: int
    """UTC µs."""
    key: str = ""
    """Of an effect."""
    value: Any = None
    error: Refused | None = None

    @property
    def called(self) -> str:
        return f"{self.kind} {self.name}".strip()


_RECORD = msgspec.json.Decoder(Record)
Call = tuple[str, str, str]
"""(kind, name, digest of the arguments): what makes two steps equal."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a step is, and what is there already."""

    n: int
    record: Record | None
    intent: Record | None


class Journal:
    """The journal of one round, with those of the rounds before it.

    Args:
        turn: whose journal it is; a continued turn goes on in the first one's.
        nonce: this instance's and this delivery's own.
        fresh: the first delivery of a first round: there is nothing to read yet.
        past: how earlier rounds ended; a settled effect is in it.
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
    ) -> None:
        self._store = store
        self._request, self._turn, self._round = request, turn, round_
        self._nonce, self._version = nonce, version
        self._past = tuple(past)
        self._own: dict[str, Record] = {}
        self._reusable: dict[Call, deque[tuple[str, Record]]] = defaultdict(deque)
        self._effects: dict[str, tuple[str, Record]] = {}
        """Of earlier rounds, by key: the result, or the newest intent of one that has none."""
        self._loaded = asyncio.Event()
        self._loading: asyncio.Task[None] | None = None
        if fresh and round_ == 0:
            self._loaded.set()
        self._fenced_earlier = round_ == 0
        self._ends: dict[int, int] = {}
        self._next = 0
        self._digest = hashlib.sha256()
        self.steps = 0
        """Steps of this round, recorded or reused."""
        self.with_effect = False
        """Whether any round journaled an effect."""
        self.broken: TurnError | None = None
        """What ended this journal; every later step raises it again, whatever the code caught."""

    @property
    def digest(self) -> str:
        """SHA-256 (hex) over this round's steps, in order of their calls; empty without any."""
        return self._digest.hexdigest() if self.steps else ""

    # --- reading ----------------------------------------------------------------------------------

    async def load(self) -> None:
        """Read what earlier deliveries and rounds recorded. Idempotent. Raises BusError."""
        if self._loaded.is_set():
            return
        if self._loading is None:
            self._loading = asyncio.ensure_future(self._load())
        await asyncio.shield(self._loading)

    async def _load(self) -> None:
        for round_ in range(self._round):
            for name, record in (await self._read_round(round_)).items():
                self._offer(name, record)
        self._own = await self._read_round(self._round)
        self._loaded.set()

    async def _read_round(self, round_: int) -> dict[str, Record]:
        found: dict[str, Record] = {}
        n = 0
        while n < MAX_STEPS + WINDOW:
            names = [f"{round_}-{at}{tail}" for at in range(n, n + WINDOW) for tail in ("", DONE)]
            reads = (self._store.get(self._request, self._turn, name) for name in names)
            bodies = await asyncio.gather(*reads)
            part = {name: _RECORD.decode(body) for name, body in zip(names, bodies, strict=True) if body}
            found |= part
            self._ends[round_] = max((_place_of(name) + 1 for name in found), default=0)
            self.with_effect |= any(record.kind in ("effect", "intent") for record in part.values())
            if not part:
                break
            n += WINDOW
        return found

    def _offer(self, name: str, record: Record) -> None:
        """Keep a step of an earlier round for an equal call of this one.

        An effect is known by its key, which tells calls with equal arguments apart; its result counts for
        more than its intent, and a later intent for more than an earlier one.
        """
        if record.key:
            known = self._effects.get(record.key)
            if known is None or known[1].kind == "intent":
                self._effects[record.key] = (name, record)
        elif record.kind != "fence" and record.error is None:
            self._reusable[record.kind, record.name, record.digest].append((name, record))

    @property
    def version(self) -> str | None:
        """The agent's version that began this round's journal; None if there is none yet."""
        first = self._own.get(f"{self._round}-0")
        return None if first is None else first.version

    def _settled(self, name: str) -> Past | None:
        return next((past for past in self._past if past.how == "settled" and past.step == name), None)

    # --- one step ---------------------------------------------------------------------------------

    async def _begin(self) -> None:
        await self.load()
        if self.broken is not None:
            raise self.broken

    def _break(self, error: TurnError) -> TurnError:
        self.broken = error
        return error

    async def step(
        self,
        call: Call,
        produce: Callable[[], Awaitable[Any]],
        *,
        on_reuse: Callable[[], None] | None = None,
    ) -> Any:
        """Return a step's value: as recorded, or freshly produced and recorded.

        What `produce` raises is not recorded, unless it is a `Recorded` refusal.

        Args:
            on_reuse: called when the value is an earlier round's: it was reported then.
        """
        await self._begin()
        reused = self._reuse(call)
        if reused is not None:
            if on_reuse is not None:
                on_reuse()
            return _value(reused)
        place = self._take(call)
        if place.record is not None:
            return _value(place.record)
        record = await self._produced(call, produce)
        await self._write(f"{self._round}-{place.n}", record)
        return _value(record)

    async def effect(
        self,
        call: Call,
        key: str,
        produce: Callable[[], Awaitable[Any]],
        *,
        again: Callable[[], Awaitable[Any]] | None,
    ) -> Any:
        """Return an effect's value, with its intent recorded before it is tried.

        Args:
            key: the effect's own, the same in every round.
            again: what to do about an intent without a result: run it again, or reconcile. None: it is
                in doubt, and a person has to settle it.

        Raises InDoubt.
        """
        await self._begin()
        name, earlier = self._effects.get(key, ("", None))
        if earlier is not None and earlier.kind == "effect":
            self._count(name, earlier)
            return _value(earlier)
        place = self._take(call)
        if place.record is not None:
            return _value(place.record)
        step = f"{self._round}-{place.n}"
        doubtful = place.intent or earlier
        doubted = step if place.intent is not None else name
        settled = self._settled(doubted) if doubtful is not None else None
        attempt: Callable[[], Awaitable[Any]] | None = produce
        if doubtful is not None and settled is None:
            attempt = again
        if attempt is None:
            raise self._break(InDoubt(doubted, call[1], key))
        if place.intent is None:
            await self._write(step, self._record("intent", call, key=key))
        self.with_effect = True
        if settled is not None and settled.settled == "done":
            record = self._record("effect", call, key=key, value=settled.reply)
        else:
            record = await self._produced(call, attempt, key=key)
        await self._write(f"{step}{DONE}", record)
        return _value(record)

    async def _produced(self, call: Call, produce: Callable[[], Awaitable[Any]], key: str = "") -> Record:
        try:
            value = await produce()
        except Recorded as no:
            return self._record(call[0], call, key=key, error=Refused(code=no.reason, message=str(no)))
        return self._record(call[0], call, key=key, value=value)

    def _reuse(self, call: Call) -> Record | None:
        kept = self._reusable.get(call)
        if not kept:
            return None
        name, record = kept.popleft()
        self._count(name, record)
        return record

    def _take(self, call: Call) -> Place:
        """Return the next place of this round. Raises JournalMismatch, JournalFull."""
        if self._next >= MAX_STEPS:
            raise self._break(JournalFull(f"a turn journals {MAX_STEPS} steps at most"))
        n, self._next = self._next, self._next + 1
        name = f"{self._round}-{n}"
        found = self._own.get(name)
        if found is None:
            return Place(n, None, None)
        if found.kind == "fence":
            raise self._break(Fenced(f"a later round has fenced this one at step {name}"))
        kind = "effect" if found.kind == "intent" else found.kind
        if (kind, found.name, found.digest) != call:
            said = f"{call[0]} {call[1]}".strip()
            raise self._break(
                JournalMismatch(name, f"{kind} {found.name}".strip(), said, with_effect=self.with_effect)
            )
        intent = found if found.kind == "intent" else None
        record = found if intent is None else self._own.get(f"{name}{DONE}")
        if record is not None:
            self._count(name, record)
        return Place(n, record, intent)

    def _count(self, name: str, record: Record) -> None:
        self.steps += 1
        self._digest.update(f"{name.removesuffix(DONE)}\x1f{record.called}\x1f{record.digest}\x1e".encode())

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

    async def _write(self, name: str, record: Record) -> None:
        """Store a step of this round, the fences first. Raises Fenced when somebody else has it."""
        if not self._fenced_earlier:
            self._fenced_earlier = True
            for round_ in range(self._round):
                await self._fence(round_)
        body = msgspec.json.encode(record)
        if len(body) > MAX_STEP_BYTES:
            raise JournalFull(f"{record.called}: {len(body)} bytes of at most {MAX_STEP_BYTES}")
        if not await self._put(name, body):
            raise self._break(Fenced(f"another instance wrote step {name}"))
        if record.kind != "intent":
            self._count(name, record)

    async def _fence(self, round_: int) -> None:
        """Take the next free place of an earlier round, so that whoever still runs it finds it taken."""
        n = self._ends.get(round_, 0)
        while n < MAX_STEPS + WINDOW:
            fence = self._record("fence", ("fence", "", ""))
            if await self._put(f"{round_}-{n}", msgspec.json.encode(fence)):
                return
            standing = await self._get(f"{round_}-{n}")
            if standing is not None and _RECORD.decode(standing).kind == "fence":
                return
            n += 1

    async def _put(self, name: str, body: bytes) -> bool:
        """Store a step; say whether the one that stands there is ours."""
        attempt = 0
        while True:
            try:
                await self._store.put(self._request, self._turn, name, body)
            except StepTaken:
                standing = await self._get(name)
                return standing is not None and _RECORD.decode(standing).nonce == self._nonce
            except (OutcomeUnknown, Unreachable):
                await asyncio.sleep(_AGAIN_S[min(attempt, len(_AGAIN_S) - 1)])
                attempt += 1
            else:
                return True

    async def _get(self, name: str) -> bytes | None:
        attempt = 0
        while True:
            try:
                return await self._store.get(self._request, self._turn, name)
            except (OutcomeUnknown, Unreachable):
                await asyncio.sleep(_AGAIN_S[min(attempt, len(_AGAIN_S) - 1)])
                attempt += 1


class Recorded(Exception):
    """A no that is an outcome: it is journaled, and said again when the step is replayed."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


def _value(record: Record) -> Any:
    if record.error is not None:
        raise Recorded(record.error.code, record.error.message)
    return record.value


def _place_of(name: str) -> int:
    return int(name.partition("-")[2].removesuffix(DONE))
