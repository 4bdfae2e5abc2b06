"""The steps of a turn: what names them, their values, where they are stored, and what they add up to.

A step is written once and never changed. Its name begins with its round. A later round fences an earlier one:
it takes the next free place, and every free place below it. So a process that still runs the earlier round
finds each place taken.
"""

import asyncio
import contextlib
import hashlib
import inspect
import sys
import time
from collections import defaultdict, deque
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, NamedTuple

import msgspec

from mesh.agent.values import require_finite
from mesh.bus.stores import StepStore, StepTaken
from protocol.domain.budget import NOTHING, plus
from protocol.domain.timers import is_by_the_clock
from protocol.wire.commands import Usage
from protocol.wire.event_parts import Assignment, RoundOutcome
from protocol.wire.ids import derive
from protocol.wire.records import (
    DONE,
    FENCE,
    HEAD_BYTES,
    MOST_ARGUMENTS_BYTES,
    RAISED,
    Cut,
    PromptParts,
    Reads,
    Record,
    decode_record,
    place_of,
)

Call = tuple[str, str, str]
"""(kind, name, digest of the arguments): two steps are equal if these are."""
Named = tuple[str, Record]
"""A step's name and its record."""


class RoundKey(NamedTuple):
    """Names one round of a turn."""

    agent: str
    request: str
    turn: str
    round: int
    journal: str = ""
    """The turn in whose journal this one goes on; empty for its own."""

    @property
    def journal_id(self) -> str:
        """The turn under which its steps are stored."""
        return self.journal or self.turn


def key_of(agent: str, request: str, work: Assignment) -> RoundKey:
    """Return the key of the round that an event gives to an agent."""
    return RoundKey(agent, request, work.turn, work.round, work.journal_id)


_TEXT_CHARS = 2_000  # of an exception's text, in a step

# --- values ---------------------------------------------------------------------------------------


class Recorded(Exception):
    """A no that is an outcome: it is journaled, and said again when the step is replayed.

    Args:
        begun: True if it is the tool's own no. If nothing was run, it says nothing of an earlier attempt.
        raised: the exception of a reading tool, which its code may catch.
    """

    def __init__(
        self, reason: str, message: str, *, begun: bool = True, raised: Exception | None = None
    ) -> None:
        super().__init__(message)
        self.reason, self.begun, self.raised = reason, begun, raised


def value_of(record: Record) -> Any:
    """Return what a step came to. Raises Recorded where that was a no, or an exception."""
    if (error := record.error) is not None:
        raised = raised_again(error.type, error.message) if error.code == RAISED else None
        raise Recorded(error.code, error.message, raised=raised)
    return record.value


def raised_again(kind: str, message: str) -> Exception:
    """Return an exception like a recorded one: of its type, where that is loaded, with the recorded text."""
    module, _, name = kind.rpartition(".")
    found = getattr(sys.modules.get(module or "builtins"), name, None)
    if isinstance(found, type) and issubclass(found, Exception):
        with contextlib.suppress(TypeError):  # it is made of more than a text
            return found.__new__(found, message)
    return RuntimeError(message)


def text_of(error: Exception, *, otherwise: str, is_secret: bool) -> str:
    """Return the text by which an exception is made again, or what stands in for it.

    Args:
        is_secret: True if the text may tell what the tool keeps out.
    """
    text = ""
    with contextlib.suppress(Exception):  # an author's `__str__` may raise, too
        text = error.args[0] if len(error.args) == 1 and isinstance(error.args[0], str) else str(error)
    return otherwise if is_secret or not text else text[:_TEXT_CHARS]


def type_of(error: Exception) -> str:
    """Return the name by which `raised_again` finds an exception's type."""
    kind = type(error)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


class Given(NamedTuple):
    """What a tool or a model is called with, as its step records it."""

    arguments: msgspec.Raw | None = None
    secret: tuple[str, ...] = ()
    cut: Cut | None = None
    prompt: PromptParts | None = None
    reads: Reads | None = None


NOTHING_GIVEN = Given()


def given(arguments: Mapping[str, Any], secret: Iterable[str] = ()) -> Given:
    """Return arguments as a step records them.

    Args:
        secret: names of those that are kept out.
    """
    kept_out = tuple(name for name in secret if name in arguments)
    shown = {name: value for name, value in arguments.items() if name not in kept_out}
    body = msgspec.json.encode(shown, enc_hook=_argument)
    if len(body) <= MOST_ARGUMENTS_BYTES:
        return Given(msgspec.Raw(body), kept_out)
    return Given(None, kept_out, Cut(bytes=len(body), head=body[:HEAD_BYTES].decode(errors="ignore")))


def prompt_of(fixed: Any, brief: Any, transcript: Any) -> tuple[PromptParts, bytes]:
    """Return the digests of a prompt's parts, and its fixed part as it is stored."""
    body, *others = (
        msgspec.json.encode(part, order="deterministic", enc_hook=str) for part in (fixed, brief, transcript)
    )
    fixed_digest, brief_digest, said = (derive(each.decode()) for each in (body, *others))
    return PromptParts(fixed=fixed_digest, brief=brief_digest, transcript=said if transcript else ""), body


def _argument(value: Any) -> Any:
    dump = getattr(value, "model_dump", None)  # a pydantic model
    return str(value) if dump is None else dump(mode="json")


def giving(value: Any) -> Callable[[], Awaitable[Any]]:
    """Return what produces a value that is there already."""

    async def give() -> Any:
        return value

    return give


def as_json(value: Any) -> Any:
    """Return an object that JSON does not know as JSON. Raises TypeError for one that is no value."""
    dump = getattr(value, "model_dump", None)  # a pydantic model
    if dump is not None:
        return dump(mode="json")
    if inspect.isawaitable(value) or inspect.isgenerator(value) or inspect.isasyncgen(value):
        raise TypeError(f"a {type(value).__name__} is no result")
    return str(value)


def plain(value: Any) -> Any:
    """Return a value as JSON makes it: as it will be read from the journal. Raises NotFinite."""
    body = msgspec.json.encode(value, enc_hook=as_json)
    if b"null" in body:
        require_finite(msgspec.to_builtins(value, str_keys=True, enc_hook=as_json), "result")
    return msgspec.json.decode(body)


def digest_of(value: Any) -> str:
    """Return SHA-256 (hex) of a value's canonical JSON."""
    return hashlib.sha256(msgspec.json.encode(value, order="deterministic", enc_hook=str)).hexdigest()


# --- where they are stored ------------------------------------------------------------------------

WINDOW = 16
"""Steps read at once, and the most that may run at once: a gap longer than this ends a round's journal."""
MAX_STEPS = 1_000


class StoredSteps:
    """The steps of one turn."""

    def __init__(self, store: StepStore, key: RoundKey, *, nonce: str, version: str) -> None:
        self._store = store
        self._request, self._turn = key.request, key.journal_id
        self._nonce, self._version = nonce, version

    def record(self, kind: str, call: Call, given: Given = NOTHING_GIVEN, **known: Any) -> Record:
        """Return a step of ours, as of now."""
        return Record(
            kind=kind,
            name=call[1],
            digest=call[2],
            version=self._version,
            nonce=self._nonce,
            at=time.time_ns() // 1000,
            arguments=given.arguments,
            secret=given.secret,
            cut=given.cut,
            prompt=given.prompt,
            reads=given.reads,
            **known,
        )

    async def read(self, round_: int, first: int = 0) -> dict[str, Record]:
        """Return a round's steps by name, from place `first` on. Raises BusError."""
        found: dict[str, Record] = {}
        n, end = first, first + WINDOW  # behind the last step, so many places have to be free
        while n < min(end, MAX_STEPS + WINDOW):
            names = [f"{round_}-{at}{tail}" for at in range(n, end) for tail in ("", DONE)]
            records = await asyncio.gather(*map(self.get, names))
            found |= {name: each for name, each in zip(names, records, strict=True) if each is not None}
            n, end = end, max(map(place_of, found), default=first - 1) + 1 + WINDOW
        return found

    async def close(self, round_: int) -> dict[str, Record]:
        """Fence an earlier round, and return the steps that it had come to by then. Raises BusError.

        The fence stands before the last read, so nothing is missed. An effect whose intent comes later never
        begins, because its writer first looks at the free places below it.
        """
        found = await self.read(round_)
        while not _is_closed(found):
            end = max(map(place_of, found), default=-1) + 1
            free = [n for n in range(end) if f"{round_}-{n}" not in found]
            for n in (*free, end):
                fence = self.record(FENCE, (FENCE, FENCE, ""))
                await self.put(f"{round_}-{n}", msgspec.json.encode(fence))
            found |= await self.read(round_, first=min((*free, end)))
        return found

    async def put(self, name: str, body: bytes) -> bool:
        """Store a step. Return False if another instance has stored it."""
        try:
            await self._store.put(self._request, self._turn, name, body)
        except StepTaken:
            standing = await self.get(name)
            return standing is not None and standing.nonce == self._nonce
        return True

    async def get(self, name: str) -> Record | None:
        """Return one step; None if it was not written."""
        body = await self._store.get(self._request, self._turn, name)
        return None if body is None else decode_record(body)


def _is_closed(found: dict[str, Record]) -> bool:
    """Return True if a round's last place is a fence, and no place below it is free."""
    places = {place_of(name) for name in found}
    last = max(places, default=-1)
    highest = [record for name, record in found.items() if place_of(name) == last]
    return any(record.kind == FENCE for record in highest) and len(places) == last + 1


# --- what they add up to ---------------------------------------------------------------------------


class Earlier:
    """The rounds before one.

    Args:
        past: how they ended; a settled effect is in it.
        round_: the number of the round that looks back.
    """

    def __init__(self, past: Iterable[RoundOutcome], round_: int) -> None:
        self._past, self._round = tuple(past), round_
        self._steps: dict[Call, deque[Named]] = defaultdict(deque)
        self._effects: dict[str, Named] = {}
        """By key: the result, or the newest intent of one that has none."""

    @property
    def unreported(self) -> list[int]:
        """The rounds since the turn's last report: those that only the clock ended."""
        ended = {past.round: past for past in self._past}
        found: list[int] = []
        for round_ in reversed(range(self._round)):
            past = ended.get(round_)
            if past is None or past.failure is None or not is_by_the_clock(past.failure):
                break
            found.append(round_)
        return found

    def keep(self, name: str, record: Record) -> None:
        """Keep a step for an equal call.

        An effect is known by its key, which tells calls with equal arguments apart. Its result counts for
        more than its intent, and a later intent for more than an earlier one.
        """
        if record.key:
            known = self._effects.get(record.key)
            if known is None or known[1].kind == "intent":
                self._effects[record.key] = (name, record)
        elif record.kind != FENCE:
            self._steps[record.kind, record.name, record.digest].append((name, record))

    def holds(self, call: Call) -> bool:
        """Return True if an equal step waits to be taken."""
        return bool(self._steps.get(call))

    def take(self, call: Call, *, refusals: bool) -> Named | None:
        """Return the next equal step, and keep it no longer; None if there is none.

        Args:
            refusals: True if a refusal will do, too.
        """
        kept = self._steps.get(call, ())
        for at, (name, record) in enumerate(kept):
            if record.error is None or (refusals and record.error.code != RAISED):
                del self._steps[call][at]
                return name, record
        return None

    def effect(self, key: str) -> Named | None:
        """Return the result of an effect, or the intent of one without; None if no round came to it."""
        return self._effects.get(key)

    def same_calls(self, key: str) -> list[Record]:
        """Return the effects of a call whose tool takes the turn, in order, by the call's own key."""
        found = (record for _, record in self._effects.values())
        return [record for record in found if record.reads is not None and record.reads.call == key]

    def settled(self, name: str) -> RoundOutcome | None:
        """Return a person's word on the doubtful effect at a step; None if nobody gave it."""
        return next((past for past in self._past if past.how == "settled" and past.step == name), None)


class Tally:
    """The sum of a round's steps, as a report needs it, and what earlier rounds owe to a report."""

    def __init__(self) -> None:
        self.spent: Usage = NOTHING
        """Cost of earlier rounds that nobody reported, and of this one up to where its code is now.

        It is the same at the same place whenever this round runs again.
        """
        self.paid: Usage = NOTHING
        """The same, with recorded steps of this round that its code has not come to (yet)."""
        self.owed_actions: frozenset[str] = frozenset()
        """Tools that those rounds called, and earlier deliveries of this one."""
        self._lines: dict[int, str] = {}
        """Lines of the digest, by the order of the calls: side by side, steps end in any order."""

    @property
    def steps(self) -> int:
        """How many steps this round has, recorded or reused."""
        return len(self._lines)

    @property
    def digest(self) -> str:
        """SHA-256 (hex) over this round's steps, in order of their calls."""
        return hashlib.sha256("".join(self._lines[nth] for nth in sorted(self._lines)).encode()).hexdigest()

    def find(self, records: Iterable[Record], *, earlier: bool) -> None:
        """Take in recorded steps: of this round, or of an earlier one that nobody reported."""
        for record in records:
            if earlier:
                self.come_to(record)
            self.paid = plus(self.paid, record.usage or NOTHING)
            if record.kind in ("call", "effect", "intent"):
                self.owed_actions |= {record.name}

    def come_to(self, record: Record) -> None:
        """Count the cost of a step of this round that was found, and that its code comes to again."""
        if record.usage is not None:
            self.spent = plus(self.spent, record.usage)

    def spend(self, record: Record) -> None:
        """Count the cost of a fresh step."""
        if record.usage is not None:
            self.spent, self.paid = plus(self.spent, record.usage), plus(self.paid, record.usage)

    def count(self, name: str, record: Record, nth: int) -> None:
        """Count a step, which is the `nth` call of the round."""
        self._lines[nth] = f"{name.removesuffix(DONE)}\x1f{record.called}\x1f{record.digest}\x1e"
