"""Threads for functions that are not async: one for each call, up to a limit."""

import asyncio
import contextvars
import threading
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any
from weakref import WeakKeyDictionary

MOST = 32
"""Calls of one function that run at once in an event loop; the next call waits for one of them to end."""

_Ended = asyncio.Future[tuple[Any, BaseException | None]]


class NoThread(Exception):
    """There is no thread for a call; nothing was run."""


class Threads:
    """The threads of one function that is not async: one for each call, and no other function uses them.

    A thread cannot be stopped. In a shared pool, such as that of `asyncio.to_thread`, a few calls that never
    return would in the end leave no thread for anything else. They are daemons: a process that leaves does
    not wait for them.
    """

    def __init__(self, most: int = MOST) -> None:
        self._most = most
        self._free: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Semaphore] = WeakKeyDictionary()
        self.under_way: set[str] = set()
        """Names of calls whose threads have not ended, even if nothing waits for them."""

    async def begin(
        self, call: Callable[[], Any], *, name: str = "", within_s: float | None = None
    ) -> Awaitable[Any]:
        """Begin a call in a thread of its own, in this context; return an awaitable of its result.

        The thread goes on even if its result is no longer awaited.

        Args:
            name: the call's, for `under_way`.
            within_s: how long to wait for a free thread; None for as long as it takes.

        Raises NoThread.
        """
        loop, context = asyncio.get_running_loop(), contextvars.copy_context()
        free = self._free.setdefault(loop, asyncio.Semaphore(self._most))
        try:
            async with asyncio.timeout(within_s):
                await free.acquire()
        except TimeoutError:
            raise NoThread(f"{self._most} calls are under way, and none of them ends") from None
        ended: _Ended = loop.create_future()

        def set_result(value: Any, error: BaseException | None) -> None:
            free.release()
            if not ended.done():  # nothing waits any more
                ended.set_result((value, error))

        def work() -> None:
            value, error = None, None
            try:
                value = context.run(call)
            except BaseException as raised:  # raised to the awaiter of the result
                error = raised
            self.under_way.discard(name)
            with suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(set_result, value, error)

        self.under_way.add(name)
        try:
            threading.Thread(target=work, name="mesh-tool", daemon=True).start()
        except RuntimeError:
            self.under_way.discard(name)
            free.release()
            raise NoThread("the system gives no more threads") from None
        return _result_of(ended)


async def _result_of(ended: _Ended) -> Any:
    value, error = await ended
    if error is not None:
        raise error
    return value
