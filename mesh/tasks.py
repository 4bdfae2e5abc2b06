"""Tools for asyncio: alarms that share one delay, tasks that begin at once, a loop in its own thread."""

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Coroutine, Generator
from typing import Any, TypeVar

T = TypeVar("T")

# --- alarms ---------------------------------------------------------------------------------------
# The event loop keeps its timers sorted, even cancelled ones. Two own timers would cost a quick turn as much
# as its journal. So calls with one delay share one timer; nearly all of them are cancelled.


class ArmedAlarm:
    """A call that will be made."""

    __slots__ = ("at", "call")

    def __init__(self, at: float, call: Callable[[], object]) -> None:
        self.at = at
        self.call: Callable[[], object] | None = call

    def cancel(self) -> None:
        """Prevent the call. Idempotent."""
        self.call = None

    def ring(self) -> None:
        if self.call is not None:
            self.call()


class Alarms:
    """Calls after the same delay, in the order in which they were set.

    Args:
        delay_s: returns the delay. If it becomes shorter, no call overtakes an earlier one.
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
# A task of Python 3.11 runs nothing before the loop's next pass. What it sends on the bus would wait until
# its maker waits for something, too. (Tasks of Python 3.12 have eager start built in.)


def eager(work: Coroutine[Any, Any, T]) -> "asyncio.Future[T]":
    """Run a coroutine up to its first wait, and return a future of its result. The rest is a task.

    That first part runs in the caller's task: it may open no time limit and no group of tasks. An error
    becomes the result's; it is not reported if the result is never asked for.
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
    result.add_done_callback(_retrieve_error)
    return result


def _retrieve_error(result: asyncio.Future[Any]) -> None:
    if not result.cancelled():
        result.exception()


class _Rest(Coroutine[Any, Any, T]):
    """A coroutine that is already waiting for something.

    It is an object and not a generator: a task that is cancelled before its first step throws into a
    coroutine that never ran. The work would not notice that.
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


# --- a loop in a thread -----------------------------------------------------------------------------


class LoopThread:
    """An event loop in its own thread, for callers without `async` or with a running loop.

    Work sees the context variables of its caller.

    Args:
        name: name of the thread.
        owner: what is closed with it, in words.
    """

    def __init__(self, name: str, owner: str) -> None:
        self._loop, self._owner = asyncio.new_event_loop(), owner
        self._thread = threading.Thread(target=self._loop.run_forever, name=name, daemon=True)
        self._thread.start()
        self._closed = False

    @property
    def closed(self) -> bool:
        return self._closed

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Return the result of a coroutine; an interrupt here cancels it there.

        Raises RuntimeError once this is closed.
        """
        if self._closed:
            work.close()
            raise RuntimeError(f"{self._owner} is closed")
        running = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return running.result()
        except BaseException:
            running.cancel()
            raise

    def close(self) -> None:
        """Let cancelled work end, then end the loop and its thread. Idempotent."""
        if not self._closed:
            try:
                self.run(_cancelled())
            finally:
                self._closed = True
                self._loop.call_soon_threadsafe(self._loop.stop)
                self._thread.join()
                self._loop.close()


async def _cancelled() -> None:
    """Cancel all other tasks of this loop, and wait for them to end."""
    left = asyncio.all_tasks() - {asyncio.current_task()}
    for task in left:
        task.cancel()
    await asyncio.gather(*left, return_exceptions=True)
