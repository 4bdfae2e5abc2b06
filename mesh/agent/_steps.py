"""The steps of a turn: their names, their values, where they are stored, and what they add up to.

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
from protocol.domain.timers import is_by_the_clock
from protocol.wire.event_parts import Assignment, RoundOutcome
from protocol.wire.ids import NOBODY, derive
from protocol.wire.records import (
    DONE,
    FENCE,
    HEAD_BYTES,
    MOST_ARGUMENTS_BYTES,
    RAISED,
    Cut,
    LostTime,
    PromptParts,
    Reads,
    Record,
    decode_record,
    place_of,
)
from protocol.wire.subjects import KNOWN, LOST

Call = tuple[str, str, str]
"""(kind, name, digest of the arguments). Two steps are equal if these are equal."""
Named = tuple[str, Record]
"""The name of a step, and its record."""


class RoundKey(NamedTuple):
    """Names one round of a turn."""

    agent: str
    request: str
    turn: str
    round: int
    journal: str = ""
    """The turn whose journal this turn continues; empty for its own."""

    @property
    def journal_id(self) -> str:
        """The turn under which its steps are stored."""
        return self.journal or self.turn


def key_of(agent: str, request: str, work: Assignment) -> RoundKey:
    """Return the key of the round that an event gives to an agent."""
    return RoundKey(agent, request, work.turn, work.round, work.journal_id)


_TEXT_CHARS = 2_000  # limit of an exception's text in a step

# --- values ---------------------------------------------------------------------------------------


class Recorded(Exception):
    """A refusal that is an outcome: it is journaled, and raised again when the step is replayed.

    Args:
        begun: True if the tool itself refused. If nothing was run, the refusal says nothing about an earlier
            attempt.
        raised: the exception of a reading tool, which its code may catch.
    """

    def __init__(
        self, reason: str, message: str, *, begun: bool = True, raised: Exception | None = None
    ) -> None:
        super().__init__(message)
        self.reason, self.begun, self.raised = reason, begun, raised


def value_of(record: Record) -> Any:
    """Return the value of a step. Raises Recorded if the step is a refusal or an exception."""
    if (error := record.error) is not None:
        raised = raised_again(error.type, error.message) if error.code == RAISED else None
        raise Recorded(error.code, error.message, raised=raised)
    return record.value


def raised_again(kind: str, message: str) -> Exception:
    """Return an exception like a recorded one: of its type, if that is loaded, with the recorded text."""
    module, _, name = kind.rpartition(".")
    found = getattr(sys.modules.get(module or "builtins"), name, None)
    if isinstance(found, type) and issubclass(found, Exception):
        with contextlib.suppress(TypeError):  # its constructor needs more than a text
            return found.__new__(found, message)
    return RuntimeError(message)


def text_of(error: Exception, *, otherwise: str, is_secret: bool) -> str:
    """Return the text from which an exception can be made again, or a substitute for it.

    Args:
        is_secret: True if the text may reveal what the tool hides.
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
    """What a tool or a model is called with, as recorded in its step."""

    arguments: msgspec.Raw | None = None
    secret: tuple[str, ...] = ()
    cut: Cut | None = None
    prompt: PromptParts | None = None
    reads: Reads | None = None


NOTHING_GIVEN = Given()


def given(arguments: Mapping[str, Any], secret: Iterable[str] = ()) -> Given:
    """Return arguments as a step records them.

    Args:
        secret: names of those that are left out.
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
    """Return a producer of a value that is already known."""

    async def give() -> Any:
        return value

    return give


def as_json(value: Any) -> Any:
    """Return an object that JSON does not know in JSON form. Raises TypeError if it has none."""
    dump = getattr(value, "model_dump", None)  # a pydantic model
    if dump is not None:
        return dump(mode="json")
    if inspect.isawaitable(value) or inspect.isgenerator(value) or inspect.isasyncgen(value):
        raise TypeError(f"a {type(value).__name__} is no result")
    return str(value)


def to_json(value: Any) -> Any:
    """Return a value as JSON represents it, and as the journal will return it. Raises NotFinite."""
    body = msgspec.json.encode(value, enc_hook=as_json)
    if b"null" in body:
        require_finite(msgspec.to_builtins(value, str_keys=True, enc_hook=as_json), "result")
    return msgspec.json.decode(body)


def digest_of(value: Any) -> str:
    """Return the SHA-256 (hex) of a value's canonical JSON."""
    return hashlib.sha256(msgspec.json.encode(value, order="deterministic", enc_hook=str)).hexdigest()


# --- where they are stored ------------------------------------------------------------------------

WINDOW = 16
"""Steps read at once, and the most that may run at once. A longer gap ends a round's journal."""
MAX_STEPS = 1_000


class StoredSteps:
    """The steps of one turn."""

    def __init__(self, store: StepStore, key: RoundKey, *, nonce: str, version: str) -> None:
        self._store = store
        self._request, self._turn = key.request, key.journal_id
        self._nonce, self._version = nonce, version

    def record(self, kind: str, call: Call, given: Given = NOTHING_GIVEN, **known: Any) -> Record:
        """Return a new step of this instance, dated now."""
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
        n, end = first, first + WINDOW  # so many places after the last step have to be free
        while n < min(end, MAX_STEPS + WINDOW):
            names = [f"{round_}-{at}{tail}" for at in range(n, end) for tail in ("", DONE)]
            records = await asyncio.gather(*map(self.get, names))
            found |= {name: each for name, each in zip(names, records, strict=True) if each is not None}
            n, end = end, max(map(place_of, found), default=first - 1) + 1 + WINDOW
        return found

    async def close(self, round_: int) -> dict[str, Record]:
        """Fence an earlier round, and return the steps that it had reached by then. Raises BusError.

        The fence is stored before the last read, so nothing is missed. An effect whose intent comes later
        never begins, because its writer first checks the free places below it.
        """
        found = await self.read(round_)
        while not _is_fenced(found):
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
            stored = await self.get(name)
            return stored is not None and stored.nonce == self._nonce
        return True

    async def get(self, name: str) -> Record | None:
        """Return one step; None if it was not written."""
        body = await self._store.get(self._request, self._turn, name)
        return None if body is None else decode_record(body)

    async def lost_time(self) -> LostTime | None:
        """Return the time whose steps are missing from this agent's journals; None if none are missing."""
        body = await self._store.get(NOBODY, NOBODY, LOST)
        return None if body is None else msgspec.json.decode(body, type=LostTime)

    async def is_known(self) -> bool:
        """Return True if the backup from which the bus was restored had this turn."""
        return await self._store.get(self._request, self._turn, KNOWN) is not None


def _is_fenced(found: dict[str, Record]) -> bool:
    """Return True if a round's last place is a fence, and no place below it is free."""
    places = {place_of(name) for name in found}
    last = max(places, default=-1)
    highest = [record for name, record in found.items() if place_of(name) == last]
    return any(record.kind == FENCE for record in highest) and len(places) == last + 1


# --- what they add up to ---------------------------------------------------------------------------


class Earlier:
    """The rounds before the current one.

    Args:
        past: how they ended, including settled effects.
        round_: the number of the current round.
    """

    def __init__(self, past: Iterable[RoundOutcome], round_: int) -> None:
        self._past, self._round = tuple(past), round_
        self._steps: dict[Call, deque[Named]] = defaultdict(deque)
        self._effects: dict[str, Named] = {}
        """By key: the result, or the newest intent without one."""

    @property
    def unreported(self) -> list[int]:
        """The rounds since the turn's last report, which only the clock ended."""
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

        An effect is known by its key, which tells calls with equal arguments apart. Its result takes
        precedence over its intent, and a later intent over an earlier one.
        """
        if record.key:
            known = self._effects.get(record.key)
            if known is None or known[1].kind == "intent":
                self._effects[record.key] = (name, record)
        elif record.kind != FENCE:
            self._steps[record.kind, record.name, record.digest].append((name, record))

    def holds(self, call: Call) -> bool:
        """Return True if an equal step is still to be taken."""
        return bool(self._steps.get(call))

    def take(self, call: Call, *, refusals: bool) -> Named | None:
        """Return the next equal step, and forget it; None if there is none.

        Args:
            refusals: True to accept a refusal, too.
        """
        kept = self._steps.get(call, ())
        for at, (name, record) in enumerate(kept):
            if record.error is None or (refusals and record.error.code != RAISED):
                del self._steps[call][at]
                return name, record
        return None

    def effect(self, key: str) -> Named | None:
        """Return the result of an effect, or its intent if it has none; None if no round reached it."""
        return self._effects.get(key)

    def same_calls(self, key: str) -> list[Record]:
        """Return the effects of a call whose tool takes the turn, in order, by the key of the call itself."""
        found = (record for _, record in self._effects.values())
        return [record for record in found if record.reads is not None and record.reads.call == key]

    def settled(self, name: str) -> RoundOutcome | None:
        """Return how a person settled the doubtful effect at a step; None if it is not settled."""
        return next((past for past in self._past if past.how == "settled" and past.step == name), None)
