"""The tally of a round: how many steps it has, their digest, what they cost. It is what a report says."""

import hashlib
from collections.abc import Iterable

from mesh.agent.record import DONE, Record
from protocol.domain.budget import NOTHING, minus, plus
from protocol.wire.commands import Usage


class Tally:
    """What a round's steps add up to, and what earlier rounds owe to a report."""

    def __init__(self) -> None:
        self.spent: Usage = NOTHING
        """What this round's steps cost, up to where its code is now; the same whenever it runs again."""
        self.owed: Usage = NOTHING
        """What rounds cost that were ended by the clock since the turn's last report."""
        self.owed_actions: frozenset[str] = frozenset()
        """Tools that those rounds called, and earlier deliveries of this one."""
        self._unseen: Usage = NOTHING
        """What recorded steps of this round cost that its code has not come to (yet)."""
        self._lines: dict[int, str] = {}
        """What the digest is made of, by the order of the calls: side by side, steps end in any order."""

    @property
    def steps(self) -> int:
        """How many steps this round has, recorded or reused."""
        return len(self._lines)

    @property
    def digest(self) -> str:
        """SHA-256 (hex) over this round's steps, in order of their calls; empty without any."""
        lines = "".join(self._lines[nth] for nth in sorted(self._lines))
        return hashlib.sha256(lines.encode()).hexdigest() if lines else ""

    @property
    def paid(self) -> Usage:
        """What this round's recorded steps cost, whether or not its code came to them again."""
        return plus(self.spent, self._unseen)

    def owe(self, records: Iterable[Record]) -> None:
        """Take in the steps of an earlier round that nobody reported."""
        for record in records:
            self.owed = plus(self.owed, record.usage or NOTHING)
            self._owe_action(record)

    def find(self, records: Iterable[Record]) -> None:
        """Take in the steps that earlier deliveries of this round recorded."""
        for record in records:
            self._unseen = plus(self._unseen, record.usage or NOTHING)
            self._owe_action(record)

    def _owe_action(self, record: Record) -> None:
        if record.kind in ("call", "effect", "intent"):
            self.owed_actions |= {record.name}

    def come_to(self, record: Record) -> None:
        """Count the cost of a step of this round that was found, and that its code comes to again."""
        self.spend(record)
        self._unseen = minus(self._unseen, record.usage or NOTHING)

    def spend(self, record: Record) -> None:
        """Count the cost of a step."""
        if record.usage is not None:
            self.spent = plus(self.spent, record.usage)

    def count(self, name: str, record: Record, nth: int) -> None:
        """Count a step, which is the `nth` call of the round."""
        self._lines[nth] = f"{name.removesuffix(DONE)}\x1f{record.called}\x1f{record.digest}\x1e"
