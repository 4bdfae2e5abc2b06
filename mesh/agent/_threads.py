"""Threads for functions that are not async: one for each call, and none that another function could take up.

A thread cannot be stopped. In a pool that everybody shares, as `asyncio.to_thread` has one, a few calls that
never come back would in the end leave no thread for anything else.
"""

import asyncio
import contextvars
import threading
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any
from weakref import WeakKeyDictionary

MOST = 32
"""Calls of one function that run at once in an event loop; the next one waits for one of them to end."""

_Ended = asyncio.Future[tuple[Any, BaseException | None]]


class NoThread(Exception):
    """There is no thread for a call; nothing was run."""


class Threads:
    """The threads of one function. They are daemons: a process that leaves does not wait for them."""

    def __init__(self, most: int = MOST) -> None:
        self._most = most
        self._free: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Semaphore] = WeakKeyDictionary()
        self.under_way: set[str] = set()
        """Names of the calls whose threads have not ended, whoever still waits for them."""

    async def begin(
        self, call: Callable[[], Any], *, name: str = "", within_s: float | None = None
    ) -> Awaitable[Any]:
        """Begin a call in a thread of its own, in this context; return what waits for its end.

        Whoever waits no longer leaves it alone: the thread goes on.

        Args:
            name: the call's, for `under_way`.
            within_s: how long a thread may be waited for; None for as long as it takes.

        Raises NoThread.
        """
        free = self._free.setdefault(asyncio.get_running_loop(), asyncio.Semaphore(self._most))
        try:
            async with asyncio.timeout(within_s):
                await free.acquire()
        except TimeoutError:
            raise NoThread(f"{self._most} calls are under way, and none of them ends") from None
        context = contextvars.copy_context()

        def named() -> Any:
            try:
                return context.run(call)
            finally:
                self.under_way.discard(name)

        self.under_way.add(name)
        try:
            return _end_of(_begun(free, named))
        except NoThread:
            self.under_way.discard(name)
            raise


async def _end_of(ended: _Ended) -> Any:
    value, error = await ended
    if error is not None:
        raise error
    return value


def _begun(free: asyncio.Semaphore, call: Callable[[], Any]) -> _Ended:
    """Start a thread, and return what will be its result and its error. Raises NoThread."""
    loop = asyncio.get_running_loop()
    ended: _Ended = loop.create_future()

    def tell(value: Any, error: BaseException | None) -> None:
        free.release()
        if not ended.done():  # nobody waits any more
            ended.set_result((value, error))

    def work() -> None:
        value, error = None, None
        try:
            value = call()
        except BaseException as raised:  # whoever waits for it gets it
            error = raised
        with suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(tell, value, error)

    try:
        threading.Thread(target=work, name="mesh-tool", daemon=True).start()
    except RuntimeError:
        free.release()
        raise NoThread("the system gives no more threads") from None
    return ended
