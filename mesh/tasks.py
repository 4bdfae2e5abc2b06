"""Tools for asyncio: alarms that share one delay, and tasks that begin at once."""

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Generator
from typing import Any, TypeVar

T = TypeVar("T")

# --- alarms ---------------------------------------------------------------------------------------
# The event loop keeps its timers sorted, and those that were cancelled too. Two timers of its own would cost
# a quick turn as much as its journal does. So calls with one delay share one timer; nearly all are cancelled.


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


# --- tasks that begin at once ---------------------------------------------------------------------
# A task of Python 3.11 runs nothing before the loop's next pass. What it says on the bus would wait until its
# maker waits for something, too. (Tasks of Python 3.12 can begin so by themselves.)


def eager(work: Coroutine[Any, Any, T]) -> "asyncio.Future[T]":
    """Run a coroutine up to its first wait, and return what will be its result. The rest is a task.

    That first part runs in the caller's task: it may open no time limit and no group of tasks. An error is
    the result's; it is not reported if the result is never asked for.
    """
    result: asyncio.Future[T] = asyncio.get_running_loop().create_future()
    try:
        awaited = work.send(None)
    except StopIteration as done:
        result.set_result(done.value)
    except Exception as error:
        result.set_exception(error)
    else:
        result = asyncio.get_running_loop().create_task(_Rest(work, awaited))
    result.add_done_callback(_nobody_asks)
    return result


def _nobody_asks(result: asyncio.Future[Any]) -> None:
    if not result.cancelled():
        result.exception()


class _Rest(Coroutine[Any, Any, T]):
    """A coroutine that waits for something already.

    An object and no generator: a task that is cancelled before its first step throws into what never ran. The
    work would not hear of that.
    """

    def __init__(self, work: Coroutine[Any, Any, T], awaited: Any) -> None:
        self._work, self._awaited, self._has_begun = work, awaited, False

    def send(self, value: Any) -> Any:
        if self._has_begun:
            return self._work.send(value)
        self._has_begun = True
        return self._awaited

    def throw(self, *error: Any) -> Any:
        self._has_begun = True
        return self._work.throw(*error)

    def close(self) -> None:
        self._work.close()

    def __await__(self) -> Generator[Any, Any, T]:
        return self._work.__await__()
