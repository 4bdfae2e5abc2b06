"""A fork's turn: calls that its agent made in the original request are answered from the record of that
request.

The agent reads only its own journals of that request, which are in its own stream. An answer is recorded in
this turn's journal like a new one, so whatever dies, the turn continues like any other. The n-th of equal
calls gets the n-th record, counted over all rounds of this turn.
"""

import asyncio
from collections import defaultdict
from collections.abc import Callable
from typing import Final

from mesh.agent._steps import Call, RoundKey, StoredSteps
from mesh.bus.stores import StepStore
from protocol.wire.commands import ForkedFrom
from protocol.wire.event_parts import Assignment
from protocol.wire.ids import AgentName
from protocol.wire.records import Reads, Record, Refused, place_of

NOT_RECORDED: Final = "fork.not_recorded"
EFFECTS_REFUSED: Final = "fork.effects_refused"
_ANSWERED: Final = frozenset({"call", "model", "now", "random"})
"""Kinds of steps, besides effects, that the record answers."""


class RecordBefore:
    """What one agent recorded in the request that was forked."""

    def __init__(self, store: StepStore, agent: str, fork: ForkedFrom) -> None:
        self._store, self._agent, self._fork = store, agent, fork
        self._steps: defaultdict[Call, list[Record]] = defaultdict(list)
        self._effects: defaultdict[Call, dict[str, Record]] = defaultdict(dict)
        """By key, in the order of their beginning: results, or the intent of an effect without one."""
        self._loading: asyncio.Task[None] | None = None

    async def step(self, call: Call, nth: int) -> Record | None:
        """Return the record of the n-th equal call; None if there is none. Raises BusError."""
        if call[0] not in _ANSWERED:
            return None
        await self._load()
        known = self._steps.get(call) or []
        return known[nth] if nth < len(known) else None

    async def effect(self, call: Call, nth: int, reads_the_same: Callable[[Reads], bool]) -> Record | Refused:
        """Return the record of the n-th equal effect, or the reason why it has no answer. Raises BusError.

        Args:
            reads_the_same: returns True if the facts that an effect read then are unchanged. Otherwise it is
                another effect.
        """
        await self._load()
        known = list(self._effects[call].values()) if call in self._effects else []
        where = f"in the record of {self._fork.request}, from which this request was forked"
        if nth >= len(known):
            return Refused(
                code=NOT_RECORDED, message=f"{call[1]} with these arguments is not {where}: it is not run"
            )
        record = known[nth]
        if record.kind == "intent":
            return Refused(
                code=NOT_RECORDED, message=f"{call[1]} began {where}, and what came of it is not known"
            )
        if record.reads is not None and not reads_the_same(record.reads):
            return Refused(code=NOT_RECORDED, message=f"{call[1]} read other facts {where}: it is not run")
        return record

    async def _load(self) -> None:
        self._loading = self._loading or asyncio.ensure_future(self._read())
        await asyncio.shield(self._loading)

    async def _read(self) -> None:
        for turn in self._fork.journals.get(AgentName(self._agent), ()):
            key = RoundKey(self._agent, self._fork.request, turn, 0)
            journal, round_ = StoredSteps(self._store, key, nonce="", version=""), 0
            while found := await journal.read(round_):  # a later round fences each before it
                self._keep(found)
                round_ += 1

    def _keep(self, round_: dict[str, Record]) -> None:
        for name in sorted(round_, key=place_of):
            record = round_[name]
            call = ("effect" if record.kind == "intent" else record.kind, record.name, record.digest)
            if call[0] != "effect":
                self._steps[call].append(record)
            elif record.kind == "effect":
                self._effects[call][record.key] = record
            else:
                self._effects[call].setdefault(record.key, record)


def record_before(store: StepStore, agent: str, work: Assignment) -> RecordBefore | None:
    """Return the record that answers a turn's calls; None if there is none."""
    fork = work.forked_from
    return None if fork is None or fork.effects != "recorded" else RecordBefore(store, agent, fork)
