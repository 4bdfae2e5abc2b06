"""Tasks that begin at once: their first part has run when they are returned.

A task of Python 3.11 runs nothing before the loop's next pass. What it says on the bus would wait until its
maker waits for something, too. (Tasks of Python 3.12 can begin so by themselves.)
"""

import asyncio
from collections.abc import Coroutine, Generator
from typing import Any, TypeVar

T = TypeVar("T")


def eager(work: Coroutine[Any, Any, T]) -> "asyncio.Future[T]":
    """Run a coroutine up to its first wait, and return what will be its result. The rest is a task.

    That first part runs in the caller's task: it may open no time limit and no group of tasks. An error is
    the result's; of one that nobody asks for nothing is said.
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
