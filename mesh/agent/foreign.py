"""Rounds that another version of an agent began, and for how long this instance leaves them to it."""

import time
from collections.abc import Callable
from dataclasses import dataclass

LOST_S = 60.0
"""How long a round that is left to others is remembered at least, though it no longer comes here."""


@dataclass(slots=True)
class _Seen:
    first: float
    last: float


class ForeignRounds:
    """When this instance saw which of them, by turn and round; mostly their own version takes them.

    Args:
        clock: monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._seen: dict[tuple[str, int], _Seen] = {}

    def __len__(self) -> int:
        return len(self._seen)

    def leaves(self, turn: str, round_: int, grace_s: float) -> bool:
        """Say whether to leave a round to its own version: for `grace_s` from when it first came here."""
        self.forget_lost(grace_s)
        now = self._clock()
        seen = self._seen.setdefault((turn, round_), _Seen(now, now))
        seen.last = now
        if now - seen.first < grace_s:
            return True
        del self._seen[turn, round_]
        return False

    def forget(self, turn: str, round_: int) -> None:
        """Forget a round that is over."""
        self._seen.pop((turn, round_), None)

    def forget_lost(self, grace_s: float) -> None:
        """Forget what has not come here for a whole grace: others have taken it, and nobody tells us so."""
        lost_before = self._clock() - max(grace_s, LOST_S)
        self._seen = {key: seen for key, seen in self._seen.items() if seen.last > lost_before}
