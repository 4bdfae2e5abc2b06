"""A tool whose function only gives what has to be awaited: it is awaited, once. What is no value is none."""

import asyncio
import functools
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any

import pytest

from mesh.agent.errors import InDoubt, ToolRefused
from mesh.agent.tools import NOT_DONE, Tool, tool
from mesh.testing import MemorySteps, turn
from protocol.wire.journal_records import Record, decode_record

done: list[int] = []


@pytest.fixture(autouse=True)
def _nothing_done() -> None:
    done.clear()


def timed(function: Callable[..., Awaitable[Any]]) -> Callable[..., Any]:
    """A decorator as one finds them: it knows nothing of async functions."""

    @functools.wraps(function)
    def inner(*args: Any, **named: Any) -> Any:
        return function(*args, **named)

    return inner


@timed
async def book(n: int) -> dict[str, int]:
    """Book."""
    done.append(n)
    return {"booked": n}


@timed
async def found(key: str) -> Any:
    return {"booked": 7} if done else NOT_DONE


KINDS = [
    pytest.param(tool(book), id="reads"),
    pytest.param(tool(effect="idempotent")(book), id="idempotent"),
    pytest.param(tool(effect="reconcilable", reconcile=found)(book), id="reconcilable"),
    pytest.param(tool(effect="once")(book), id="once"),
]


def values(steps: MemorySteps) -> list[Any]:
    """Return what is recorded of calls that came to their end."""
    records: list[Record] = [decode_record(body) for body in steps.steps.values()]
    return [record.value for record in records if record.kind != "intent"]


@pytest.mark.parametrize("wrapped", KINDS)
async def test_it_is_awaited_and_its_result_is_what_is_recorded(wrapped: Tool) -> None:
    steps = MemorySteps()
    for _ in range(2):  # the second time, as after a crash
        assert await turn(steps=steps).call(wrapped, n=7) == {"booked": 7}
    assert done == [7]
    assert values(steps) == [{"booked": 7}]


async def test_so_is_a_reconcile() -> None:
    class Dies(BaseException):
        pass

    @tool(effect="reconcilable", reconcile=found)
    async def dies(n: int) -> None:
        """Book, and die."""
        done.append(n)
        raise Dies

    assert await dies.ask("key") is NOT_DONE
    with pytest.raises(Dies):
        await dies.run({"n": 7})
    assert await dies.ask("key") == {"booked": 7}


async def test_its_time_is_a_tools_time() -> None:
    @tool(timeout_s=0.01)
    @timed
    async def wait() -> None:
        """Never answer."""
        await asyncio.Event().wait()

    with pytest.raises(ToolRefused, match=r"wait gave no answer within 0\.01 s"):
        await turn().call(wait)


def counted() -> Iterator[int]:
    yield 1


async def streamed() -> AsyncIterator[int]:
    yield 1


class Pending:
    """What has to be awaited, as a coroutine has, and complains of nothing if it is not."""

    def __await__(self) -> Iterator[None]:
        yield


NO_VALUES = [
    pytest.param(counted, "generator", id="a generator"),
    pytest.param(streamed, "async_generator", id="an async generator"),
    pytest.param(lambda: [Pending()], "Pending", id="a coroutine within a list"),
    pytest.param(lambda: {"rows": counted()}, "generator", id="a generator within an object"),
]


@pytest.mark.parametrize(("give", "kind"), NO_VALUES)
async def test_what_is_no_value_is_not_recorded_as_text(give: Callable[[], Any], kind: str) -> None:
    steps = MemorySteps()
    with pytest.raises(TypeError, match=f"a {kind} is no result"):
        await turn(steps=steps).call(Tool("give", "Give.", None, give))
    assert steps.written == 0
    with pytest.raises(ToolRefused, match="give broke: TypeError"):
        await turn(steps=steps).execution.call(Tool("give", "Give.", None, give), {}, for_model=True)
    steps = MemorySteps()
    with pytest.raises(InDoubt):
        await turn(steps=steps).call(Tool("give", "Give.", "once", give))
    assert values(steps) == []
