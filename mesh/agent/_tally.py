"""What a turn cost and did: counted step by step, checked against its budget, reported with its proposals."""

import hashlib
from collections.abc import Callable, Iterable

from msgspec.structs import replace

from mesh.agent.errors import BudgetExhausted, TurnError
from protocol.domain import budget
from protocol.domain.budget import NOTHING, plus
from protocol.wire.commands import Report, Usage
from protocol.wire.event_parts import Assignment
from protocol.wire.handoff import Budget
from protocol.wire.records import DONE, Record


class Tally:
    """The sum of a round's steps, for a report, including what earlier rounds did not report."""

    def __init__(self) -> None:
        self.spent: Usage = NOTHING
        """Unreported cost of earlier rounds, and the cost of this one up to where its code is now.

        It is the same at the same place whenever this round runs again.
        """
        self.paid: Usage = NOTHING
        """The same, plus the recorded steps of this round that its code has not reached (yet)."""
        self.owed_actions: frozenset[str] = frozenset()
        """Tools called in those rounds, and in earlier deliveries of this one."""
        self._lines: dict[int, str] = {}
        """Lines of the digest, by ordinal of the call: concurrent steps end in any order."""

    @property
    def steps(self) -> int:
        """Number of steps of this round, recorded or reused."""
        return len(self._lines)

    @property
    def digest(self) -> str:
        """SHA-256 (hex) over this round's steps, in order of their calls."""
        return hashlib.sha256("".join(self._lines[nth] for nth in sorted(self._lines)).encode()).hexdigest()

    def find(self, records: Iterable[Record], *, earlier: bool) -> None:
        """Add recorded steps: of this round, or of an earlier one that was not reported."""
        for record in records:
            if earlier:
                self.reach(record)
            self.paid = plus(self.paid, record.usage or NOTHING)
            if record.kind in ("call", "effect", "intent"):
                self.owed_actions |= {record.name}

    def reach(self, record: Record) -> None:
        """Count the cost of a recorded step of this round that its code reaches again."""
        if record.usage is not None:
            self.spent = plus(self.spent, record.usage)

    def spend(self, record: Record) -> None:
        """Count the cost of a new step."""
        if record.usage is not None:
            self.spent, self.paid = plus(self.spent, record.usage), plus(self.paid, record.usage)

    def count(self, name: str, record: Record, nth: int) -> None:
        """Count a step; `nth` is the ordinal of its call in the round."""
        self._lines[nth] = f"{name.removesuffix(DONE)}\x1f{record.called}\x1f{record.digest}\x1e"


class Account:
    """A turn's cost and work in all its rounds so far.

    Args:
        tally: what the running round's steps cost.
        stop: stops the round's journal with an error, and returns the error.
        code: what the report says of the code: its version, build and prompt.
    """

    def __init__(
        self, work: Assignment, tally: Tally, stop: Callable[[TurnError], TurnError], code: Report
    ) -> None:
        self._work, self._tally, self._stop, self._code = work, tally, stop, code
        self.actions = set(work.reported.actions)
        self.effects = set(work.reported.effects)
        self._usage = work.reported.usage
        """What earlier rounds reported, and what is in no step."""

    def spend(self, more: Usage) -> None:
        """Account for a cost that is in no step."""
        self._usage = plus(self._usage, more)

    @property
    def spent(self) -> Usage:
        """The turn's cost up to where its code is now, including what its tasks cost or still may."""
        return plus(plus(self._usage, self._tally.spent), self._work.committed)

    @property
    def left(self) -> Budget:
        return budget.left(self._work.handoff.constraints.budget or budget.UNLIMITED, self.spent)

    def require_left(self) -> None:
        """Raise BudgetExhausted if any limit of the grant is used up."""
        granted, left, spent = self._work.handoff.constraints.budget, self.left, self.spent
        gone = [
            name for name in left.__struct_fields__ if (rest := getattr(left, name)) is not None and rest <= 0
        ]
        if gone:
            used = (f"{getattr(spent, name)} of {getattr(granted, name)} {name}" for name in gone)
            raise self._stop(BudgetExhausted(f"spent {', '.join(used)}"))

    @property
    def report(self) -> Report:
        """The turn's work in all its rounds, as the guard gets it with a proposal."""
        tally, before = self._tally, self._work.reported
        digest = before.digest
        if tally.steps:
            digest = hashlib.sha256(f"{digest}{tally.digest}".encode()).hexdigest()
        return replace(
            self._code,
            usage=plus(self._usage, tally.paid),
            actions=tuple(sorted(self.actions | tally.owed_actions)),
            steps=before.steps + tally.steps,
            digest=digest,
            effects=tuple(sorted(self.effects)),
        )
