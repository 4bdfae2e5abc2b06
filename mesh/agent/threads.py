"""Threads for functions that are not async: one for each call, and none that another function could take up.

A thread cannot be stopped. In a pool that everybody shares, as `asyncio.to_thread` has one, a few calls that
never come back would in the end leave no thread for anything else.
"""

import asyncio
import contextvars
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any
from weakref import WeakKeyDictionary

MOST = 32
"""Calls of one function that run at once in an event loop; the next one waits for one of them to end."""


class NoThread(Exception):
    """No thread could be had in time; nothing was run."""


class Threads:
    """The threads of one function. They are daemons: a process that leaves does not wait for them."""

    def __init__(self, most: int = MOST) -> None:
        self._most = most
        self._free: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Semaphore] = WeakKeyDictionary()

    async def run(self, timeout_s: float | None, fn: Callable[..., Any], /, *given: Any, **named: Any) -> Any:
        """Return what a function returns in a thread of its own, in this context; or raise what it raises.

        Args:
            timeout_s: how long it may take, and before that how long a thread may be waited for.

        Raises NoThread, and TimeoutError for a function that took too long: its thread goes on.
        """
        free = self._free.setdefault(asyncio.get_running_loop(), asyncio.Semaphore(self._most))
        try:
            await asyncio.wait_for(free.acquire(), timeout_s)
        except TimeoutError:
            raise NoThread(f"none of {self._most} calls came to an end") from None
        context = contextvars.copy_context()
        ended = _begun(free, lambda: context.run(fn, *given, **named))
        async with asyncio.timeout(timeout_s):
            value, error = await ended
        if error is not None:
            raise error
        return value


def _begun(
    free: asyncio.Semaphore, call: Callable[[], Any]
) -> "asyncio.Future[tuple[Any, BaseException | None]]":
    """Start a thread, and return what will be its result or its error. Raises NoThread."""
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[tuple[Any, BaseException | None]] = loop.create_future()

    def tell(value: Any, error: BaseException | None) -> None:
        free.release()
        if not ended.done():  # nobody may be waiting any more
            ended.set_result((value, error))

    def work() -> None:
        value, error = None, None
        try:
            value = call()
        except BaseException as raised:  # it is for whoever waits, as with a call in the same thread
            error = raised
        with suppress(RuntimeError):  # the loop may be closed by now
            loop.call_soon_threadsafe(tell, value, error)

    try:
        threading.Thread(target=work, name="mesh-tool", daemon=True).start()
    except RuntimeError as none:
        free.release()
        raise NoThread("the system gives no more threads") from none
    return ended
