"""What a turn's earlier rounds recorded and how they ended, for a later one to take over."""

from collections import defaultdict, deque
from collections.abc import Iterable

from mesh.agent.record import Call, Record
from mesh.agent.stored import FENCE
from protocol.domain.timers import is_by_the_clock
from protocol.wire.events import RoundOutcome

Named = tuple[str, Record]
"""A step's name and what it holds."""


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

        An effect is known by its key, which tells calls with equal arguments apart; its result counts for
        more than its intent, and a later intent for more than an earlier one.
        """
        if record.key:
            known = self._effects.get(record.key)
            if known is None or known[1].kind == "intent":
                self._effects[record.key] = (name, record)
        elif record.kind != FENCE:
            self._steps[record.kind, record.name, record.digest].append((name, record))

    def holds(self, call: Call) -> bool:
        """Say whether an equal step waits to be taken."""
        return bool(self._steps.get(call))

    def take(self, call: Call, *, refusals: bool) -> Named | None:
        """Return the next equal step, and keep it no longer; None if there is none.

        Args:
            refusals: whether a refusal will do, too.
        """
        kept = self._steps.get(call, ())
        for at, (name, record) in enumerate(kept):
            if refusals or record.error is None:
                del self._steps[call][at]
                return name, record
        return None

    def effect(self, key: str) -> tuple[str, Record | None]:
        """Return what is known of an effect: its result, or the intent of one without; ("", None) of none."""
        return self._effects.get(key, ("", None))

    def settled(self, name: str) -> RoundOutcome | None:
        """Return what a person said of the doubtful effect at a step; None if nobody did."""
        return next((past for past in self._past if past.how == "settled" and past.step == name), None)
