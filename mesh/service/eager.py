"""Tasks that begin at once: their first part has run when they are returned.

A task of Python 3.11 runs nothing before the loop's next pass. What it says on the bus would wait until its
maker waits for something, too. (Tasks of Python 3.12 can begin so by themselves.)
"""

import asyncio
import types
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
        result = asyncio.ensure_future(_rest(work, awaited))
    result.add_done_callback(_nobody_asks)
    return result


def _nobody_asks(result: asyncio.Future[Any]) -> None:
    if not result.cancelled():
        result.exception()


async def _rest(work: Coroutine[Any, Any, T], awaited: Any) -> T:
    return await _going_on(work, awaited)


@types.coroutine
def _going_on(work: Coroutine[Any, Any, T], awaited: Any) -> Generator[Any, None, T]:
    while True:
        try:
            yield awaited
        except BaseException as error:  # what it waited for failed, or the task is cancelled
            resume, given = work.throw, error
        else:
            resume, given = work.send, None  # type: ignore[assignment]
        try:
            awaited = resume(given)
        except StopIteration as done:
            value: T = done.value
            return value
