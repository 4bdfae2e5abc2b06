"""A journal that answers an agent's code from the record, and has no effects.

A call is answered by the recorded step of its kind, name and arguments; of equal ones the first unused one.
A call without a record stops the code.
"""

import itertools
import time
from collections import defaultdict, deque
from collections.abc import Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, NamedTuple

from mesh.agent._journal import Journal
from mesh.agent._places import Place
from mesh.agent._steps import MAX_STEPS, Call, Given, RoundKey
from mesh.agent.errors import JournalFull, TurnError
from protocol.wire.event_parts import Assignment
from protocol.wire.records import DONE, FENCE, Record, place_of

_MADE_UP = frozenset({"remark", "results", "context"})
"""Steps whose value the code makes itself: without a record they stop nothing."""
_ALONE = frozenset({"now", "random", "save", "post"})
"""Steps before which nothing is checked."""

_runs = itertools.count(1)
_highest: ContextVar[tuple[int, int]] = ContextVar("highest", default=(0, -1))
"""The run of a round, and the highest place that this task of its code has reached."""


class NoRecord(TurnError, code="replay.no_record"):
    """The code wants a step that was never recorded."""

    def __init__(self, wanted: "Wanted") -> None:
        super().__init__(f"{wanted.called} has no record")
        self.wanted = wanted


class Unusable(TurnError, code="replay.unusable"):
    """The round cannot be run again here, because something that it reads is missing."""


class Wanted(NamedTuple):
    """A call without a record."""

    kind: str
    name: str
    digest: str
    given: Given
    fixed: bytes = b""
    """For a model's call: the fixed part of its prompt."""

    @property
    def called(self) -> str:
        return f"{self.kind} {self.name}".strip()


@dataclass
class OwnStep:
    """A recorded step of the round."""

    n: int
    name: str
    record: Record
    """The step; for an effect its result, or its intent if it has no result."""
    intent: Record | None = None
    reached: bool = False

    @property
    def kind(self) -> str:
        return "effect" if self.record.kind == "intent" else self.record.kind


class NoStore:
    """A store that has no steps, and keeps none."""

    async def get(self, request: str, turn: str, name: str) -> bytes | None:
        return None

    async def put(self, request: str, turn: str, name: str, body: bytes) -> None:
        raise Unusable(f"step {name} would be written")


class RecordedJournal(Journal):
    """A journal that answers from the record, and has no effects.

    Args:
        steps: the turn's journal by step, up to the end of this round.
        resumed: True for a round that finds beginnings of its own conversations, as a round that is delivered
            again does.
    """

    def __init__(
        self, steps: Mapping[str, Record], key: RoundKey, work: Assignment, version: str, *, resumed: bool
    ) -> None:
        super().__init__(NoStore(), key, nonce="", version=version, past=work.past)
        rounds: list[dict[str, Record]] = [{} for _ in range(key.round + 1)]
        for name, record in sorted(steps.items(), key=lambda step: place_of(step[0])):
            round_ = int(name.partition("-")[0])
            if round_ <= key.round and record.kind != FENCE:
                rounds[round_][name] = record
        *earlier, own = rounds
        unreported = self.earlier.unreported
        for at, found in enumerate(earlier):
            self._take_in(found)
            if at in unreported:
                self.tally.find(found.values(), earlier=True)
            for name, record in found.items():
                self.earlier.keep(name, record)
        if resumed:
            self._began.extend(record.began for record in own.values() if record.began is not None)
        self._is_loaded = True
        self.own = _own_steps(own)
        self.beginnings = [each.record.began for each in self.own if each.record.began is not None]
        self.out_of_order: tuple[OwnStep, OwnStep] | None = None
        self._run, self._taken = next(_runs), 0
        self.asked: list[Record] = []
        """Models' replies that were made now, where that is allowed."""
        self.asks_anew: Call | None = None
        """A model's call that is not answered by the record, though it could be."""
        self._reached: dict[int, OwnStep] = {}
        self._by_call: dict[Call, deque[OwnStep]] = defaultdict(deque)
        for each in self.own:
            self._by_call[each.kind, each.record.name, each.record.digest].append(each)
        self._replies = {
            record.digest: record for found in rounds for record in found.values() if record.kind == "model"
        }

    def reply_to(self, digest: str) -> Record | None:
        """Return the recorded reply to a prompt; None if there is none."""
        return self._replies.get(digest)

    def step_of(self, call: Call) -> OwnStep | None:
        """Return the step of this round that the next equal call gets; None if there is none."""
        queue = self._by_call.get(call)
        return queue[0] if queue else None

    def holds(self, call: Call) -> bool:
        return self.earlier.holds(call) or bool(self._by_call.get(call))

    async def take(self, call: Call) -> Place:
        """Return the recorded step of an equal call; a place without a name if there is none."""
        self._taken += 1
        if self._taken > MAX_STEPS:
            raise self.stop(JournalFull(f"a turn journals {MAX_STEPS} steps at most"))
        queue = self._by_call.get(call)
        if queue and call == self.asks_anew:
            self._reach(queue.popleft())
            return Place(-1, "", None, None)
        if not queue:
            if call[0] in _ALONE:
                raise self.stop(NoRecord(Wanted(*call, Given())))
            return Place(-1, "", None, None)
        step = queue.popleft()
        self._reach(step)
        if step.record.kind == "intent":
            return Place(step.n, step.name, None, step.record)
        return Place(step.n, step.name, step.record, step.intent)

    def _reach(self, step: OwnStep) -> None:
        """Note that the code has reached a step. Order counts only within a task: tasks run concurrently."""
        step.reached = True
        run, highest = _highest.get()
        before = highest if run == self._run else -1
        if step.n < before and self.out_of_order is None:
            self.out_of_order = (step, self._reached[before])
        self._reached[step.n] = step
        _highest.set((self._run, max(step.n, before)))

    def reach(self, name: str, record: Record, nth: int) -> Any:
        self.tally.spend(record)  # as when the step was made
        return self.recall(name, record, nth)

    async def write(self, name: str, record: Record, nth: int) -> Record:
        """Count a step whose value the code makes itself. Raises NoRecord for any other step."""
        if record.kind in _MADE_UP:
            self.tally.count(name, record, nth)
            return record
        if record.kind == "model":  # the execution lets none be made but where it is allowed
            self.asked.append(record)
            self.tally.spend(record)
            self.tally.count(name, record, nth)
            self.progressed_at = time.monotonic()
            return record
        kind = "effect" if record.kind == "intent" else record.kind
        shown = Given(record.arguments, record.secret, record.cut)
        raise self.stop(NoRecord(Wanted(kind, record.name, record.digest, shown)))


def _own_steps(own: Mapping[str, Record]) -> list[OwnStep]:
    """Return a round's steps in order, each effect once."""
    found: dict[int, OwnStep] = {}
    for name, record in own.items():
        n = place_of(name)
        known = found.get(n)
        if known is None:
            found[n] = OwnStep(n, name.removesuffix(DONE), record)
        elif record.kind == "intent":
            known.intent = record
        else:
            known.intent, known.record = known.record, record
    return [found[n] for n in sorted(found)]
