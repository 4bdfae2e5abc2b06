"""Troubles: each is said once when it begins and once when it is over, however often it is met meanwhile.

Whoever meets one says `hit`; whoever finds that the very thing works again says `well`. A trouble is over
when it was found well and nobody met it for the kind's `settle_s` after that, so that one which comes
and goes is still one trouble; or when nobody met it for `FORGET_S`. What stands is what a process
answers when it is asked whether it is ready (`mesh.service.probes`).
"""

import asyncio
import time
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import structlog

_log = structlog.get_logger(__name__)

FORGET_S = 30.0
"""A trouble that nobody met for so long is over, though nobody found it well: there was no more to do."""
_MOST_HELD = 10_000


class Kind(NamedTuple):
    """A kind of trouble."""

    begins: str
    """The line that is logged when it begins; also its code."""
    ends: str
    text: str
    """What it is, for people; `{}` is replaced by what it is about."""
    settle_s: float = 2.0
    lasts: bool = False
    """Whether only `well` ends it, however long nobody meets it."""
    blocks: bool = True
    """Whether a process that has it is not ready; else it concerns some messages and not others."""


class Reason(NamedTuple):
    """Why a process is not ready."""

    code: str
    text: str
    since_s: float = 0.0


@dataclass
class _Standing:
    kind: Kind
    about: str
    began: float
    hit_at: float
    well_at: float | None = None
    held: set[str] = field(default_factory=set)
    timer: asyncio.TimerHandle | None = None


class Troubles:
    """What is wrong at the moment with what a process works with. Used on one event loop."""

    def __init__(self, **said: Any) -> None:
        """`said` goes into every line."""
        self._said = said
        self._standing: dict[tuple[str, str], _Standing] = {}
        self.met = 0
        """How often any trouble was met."""

    def hit(self, kind: Kind, about: str = "", *, held: str = "", **said: Any) -> None:
        """Meet a trouble: it is logged if it is new.

        Args:
            about: what is in trouble, a stream for instance; of each there may be one trouble of a kind.
            held: what cannot go on because of it; the line that ends it says of how many.
            said: goes into the line that begins it.
        """
        self.met += 1
        now = time.monotonic()
        trouble = self._standing.get((kind.begins, about))
        if trouble is None:
            trouble = self._standing[kind.begins, about] = _Standing(kind, about, now, now)
            named = {"about": about} if about else {}
            _log.warning(kind.begins, **self._said, **named, **said)
        trouble.hit_at, trouble.well_at = now, None
        if held:
            self.hold(kind, about, held=held)
        if trouble.timer is None and not kind.lasts:
            self._look_after(trouble, FORGET_S)

    def hold(self, kind: Kind, about: str = "", *, held: str) -> None:
        """Count one thing more that a trouble holds up, if it stands."""
        trouble = self._standing.get((kind.begins, about))
        if trouble is not None and len(trouble.held) < _MOST_HELD:
            trouble.held.add(held)

    def well(self, kind: Kind, about: str = "") -> None:
        """Find that it works, whether it ever did not."""
        if not self._standing:
            return
        trouble = self._standing.get((kind.begins, about))
        if trouble is not None and trouble.well_at is None:
            trouble.well_at = time.monotonic()
            self._look_after(trouble, kind.settle_s)

    def __bool__(self) -> bool:
        """Whether any stands."""
        return bool(self._standing)

    def reasons(self) -> list[Reason]:
        """Return what keeps the process from its work: what stands and was not found well since."""
        now = time.monotonic()
        return [
            Reason(each.kind.begins, each.kind.text.format(each.about), round(now - each.began, 3))
            for each in self._standing.values()
            if each.well_at is None and each.kind.blocks
        ]

    def close(self) -> None:
        """Forget everything without a word: the process ends."""
        for trouble in self._standing.values():
            if trouble.timer is not None:
                trouble.timer.cancel()
        self._standing.clear()

    def _look_after(self, trouble: _Standing, delay_s: float) -> None:
        if trouble.timer is not None:
            trouble.timer.cancel()
        loop = asyncio.get_running_loop()
        trouble.timer = loop.call_later(delay_s, self._look, trouble)

    def _look(self, trouble: _Standing) -> None:
        """End a trouble that was left alone for long enough; else look again when that may be so."""
        trouble.timer = None
        quiet_s = time.monotonic() - (trouble.well_at or trouble.hit_at)
        wait_s = FORGET_S if trouble.well_at is None else trouble.kind.settle_s
        if quiet_s < wait_s:
            if trouble.well_at is not None or not trouble.kind.lasts:
                self._look_after(trouble, wait_s - quiet_s)
            return
        del self._standing[trouble.kind.begins, trouble.about]
        named: dict[str, Any] = {"about": trouble.about} if trouble.about else {}
        if trouble.held:
            named["held_up"] = len(trouble.held)
        lasted_s = round((trouble.well_at or trouble.hit_at) - trouble.began, 3)
        _log.info(trouble.kind.ends, **self._said, **named, lasted_s=lasted_s)
