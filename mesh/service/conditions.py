"""Conditions: what keeps a process from its work. Each is logged once as it begins and once as it ends.

Code that meets a failure calls `raise_`; code that finds the same thing working calls `clear`. A condition
ends when it was cleared and nobody raised it again for the kind's `settle_s`: one that comes and goes stays
one condition. It also ends when nobody raised it for `FORGET_S`. The probe `/readyz` answers with those that
stand (`mesh.service.probes`).
"""

import asyncio
import time
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from mesh.service.logs import get_logger

_log = get_logger(__name__)

FORGET_S = 30.0
"""A condition that nobody raised for so long has ended, though nobody cleared it: there was no more to do."""
_MOST_HELD = 10_000


class Kind(NamedTuple):
    """A kind of condition."""

    begins: str
    """The event that is logged when it begins; also its code."""
    ends: str
    text: str
    """For people; `{}` is replaced by the subject of the condition."""
    settle_s: float = 2.0
    lasts: bool = False
    """True: only `clear` ends it, however long nobody raises it."""
    blocks: bool = True
    """True: a process that has it is not ready. False: it concerns some messages and not others."""


class Reason(NamedTuple):
    """Why a process is not ready."""

    code: str
    text: str
    since_s: float = 0.0


@dataclass
class _Condition:
    kind: Kind
    about: str
    began: float
    raised_at: float
    cleared_at: float | None = None
    held: set[str] = field(default_factory=set)
    timer: asyncio.TimerHandle | None = None


class Conditions:
    """The conditions of one process. Used on one event loop.

    Args:
        said: goes into every line that is logged.
    """

    def __init__(self, **said: Any) -> None:
        self._said = said
        self._standing: dict[tuple[str, str], _Condition] = {}
        self.raised = 0
        """How often any condition was raised."""

    def raise_(self, kind: Kind, about: str = "", *, held: str = "", **said: Any) -> None:
        """Raise a condition. It is logged if it is new.

        Args:
            about: its subject, for instance a stream; each subject may have one condition of a kind.
            held: a thing that cannot go on because of it; the line that ends it has their number.
            said: goes into the line that begins it.
        """
        self.raised += 1
        now = time.monotonic()
        condition = self._standing.get((kind.begins, about))
        if condition is None:
            condition = self._standing[kind.begins, about] = _Condition(kind, about, now, now)
            named = {"about": about} if about else {}
            _log.warning(kind.begins, **self._said, **named, **said)
        condition.raised_at, condition.cleared_at = now, None
        if held:
            self.hold(kind, about, held=held)
        if condition.timer is None and not kind.lasts:
            self._look_after(condition, FORGET_S)

    def hold(self, kind: Kind, about: str = "", *, held: str) -> None:
        """Count one more thing that a condition holds up, if the condition stands."""
        condition = self._standing.get((kind.begins, about))
        if condition is not None and len(condition.held) < _MOST_HELD:
            condition.held.add(held)

    def clear(self, kind: Kind, about: str = "") -> None:
        """Clear a condition, whether or not it stands."""
        if not self._standing:
            return
        condition = self._standing.get((kind.begins, about))
        if condition is not None and condition.cleared_at is None:
            condition.cleared_at = time.monotonic()
            self._look_after(condition, kind.settle_s)

    def __bool__(self) -> bool:
        """Return True if any condition stands."""
        return bool(self._standing)

    def reasons(self) -> list[Reason]:
        """Return why the process is not ready: the blocking conditions that nobody has cleared."""
        now = time.monotonic()
        return [
            Reason(each.kind.begins, each.kind.text.format(each.about), round(now - each.began, 3))
            for each in self._standing.values()
            if each.cleared_at is None and each.kind.blocks
        ]

    def close(self) -> None:
        """Forget every condition and log nothing: the process ends."""
        for condition in self._standing.values():
            if condition.timer is not None:
                condition.timer.cancel()
        self._standing.clear()

    def _look_after(self, condition: _Condition, delay_s: float) -> None:
        if condition.timer is not None:
            condition.timer.cancel()
        loop = asyncio.get_running_loop()
        condition.timer = loop.call_later(delay_s, self._look, condition)

    def _look(self, condition: _Condition) -> None:
        """End a condition that was left alone for long enough; otherwise look again when it may be so."""
        condition.timer = None
        quiet_s = time.monotonic() - (condition.cleared_at or condition.raised_at)
        wait_s = FORGET_S if condition.cleared_at is None else condition.kind.settle_s
        if quiet_s < wait_s:
            if condition.cleared_at is not None or not condition.kind.lasts:
                self._look_after(condition, wait_s - quiet_s)
            return
        del self._standing[condition.kind.begins, condition.about]
        named: dict[str, Any] = {"about": condition.about} if condition.about else {}
        if condition.held:
            named["held_up"] = len(condition.held)
        lasted_s = round((condition.cleared_at or condition.raised_at) - condition.began, 3)
        _log.info(condition.kind.ends, **self._said, **named, lasted_s=lasted_s)
