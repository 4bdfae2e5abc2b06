"""Threads for functions that are not async: one for each call, and not more than so many at once."""

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
    """The threads of one function that is not async: one for each call, which no other function takes up.

    A thread cannot be stopped. In a shared pool, such as that of `asyncio.to_thread`, a few calls that never
    return would in the end leave no thread for anything else. They are daemons: a process that leaves does
    not wait for them.
    """

    def __init__(self, most: int = MOST) -> None:
        self._most = most
        self._free: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Semaphore] = WeakKeyDictionary()
        self.under_way: set[str] = set()
        """Names of the calls whose threads have not ended, even if nobody waits for them."""

    async def begin(
        self, call: Callable[[], Any], *, name: str = "", within_s: float | None = None
    ) -> Awaitable[Any]:
        """Begin a call in a thread of its own, in this context; return an awaitable of its result.

        If nobody awaits it any more, the thread goes on.

        Args:
            name: the call's, for `under_way`.
            within_s: how long a thread may be waited for; None for as long as it takes.

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

        def tell(value: Any, error: BaseException | None) -> None:
            free.release()
            if not ended.done():  # nobody waits any more
                ended.set_result((value, error))

        def work() -> None:
            value, error = None, None
            try:
                value = context.run(call)
            except BaseException as raised:  # the awaiter of the result gets it
                error = raised
            self.under_way.discard(name)
            with suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(tell, value, error)

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
