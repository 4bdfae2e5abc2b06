"""Alarms: many calls that share one delay, nearly all of which are cancelled.

The event loop keeps its timers sorted, and those that were cancelled too. Two timers of its own would cost a
quick turn as much as its journal does. Here one timer serves all.
"""

import asyncio
from collections import deque
from collections.abc import Callable


class ArmedAlarm:
    """One call to come."""

    __slots__ = ("at", "call")

    def __init__(self, at: float, call: Callable[[], object]) -> None:
        self.at = at
        self.call: Callable[[], object] | None = call

    def cancel(self) -> None:
        """Let the call not come. Idempotent."""
        self.call = None

    def ring(self) -> None:
        if self.call is not None:
            self.call()


class Alarms:
    """Calls after the same delay, in the order in which they were set.

    Args:
        delay_s: returns the delay. If it becomes shorter, no call overtakes one that was set before.
    """

    def __init__(self, delay_s: Callable[[], float]) -> None:
        self._delay_s = delay_s
        self._alarms: deque[ArmedAlarm] = deque()
        self._timer: asyncio.TimerHandle | None = None

    def set(self, call: Callable[[], object]) -> ArmedAlarm:
        """Call `call` after the delay."""
        loop = asyncio.get_running_loop()
        alarm = ArmedAlarm(loop.time() + self._delay_s(), call)
        self._alarms.append(alarm)
        if self._timer is None:
            self._timer = loop.call_at(alarm.at, self._ring)
        return alarm

    def _ring(self) -> None:
        loop = asyncio.get_running_loop()
        while self._alarms:
            alarm = self._alarms[0]
            if alarm.call is not None:
                if alarm.at > loop.time():
                    break
                loop.call_soon(alarm.ring)
            self._alarms.popleft()
        self._timer = loop.call_at(self._alarms[0].at, self._ring) if self._alarms else None
