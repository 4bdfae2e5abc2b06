"""What calls of LangChain's chat models and tools need to be steps, wherever a graph's nodes have them from.

A compiled graph holds its models and tools in closures, and nothing hands them in from outside. So the
methods by which langchain-core calls every model and every tool look whether they run for a turn
(`journaled`). If not, they do what they did before.

A sync node runs in a thread. Its calls are awaited on the turn's loop, and the work itself is done in that
thread: a second one might not be free.
"""

import asyncio
import functools
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import contextmanager
from contextvars import ContextVar, copy_context
from queue import SimpleQueue
from typing import Any, TypeVar

from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.tracers._streaming import _StreamingCallbackHandler

from mesh.adapters._round import AdaptedRound
from mesh.agent.errors import Permanent
from mesh.model.port import Hear

T = TypeVar("T")


class GraphRound:
    """A round of a graph: what its calls need."""

    def __init__(self, round_: AdaptedRound, offered_in: frozenset[str]) -> None:
        self.steps, self.offered_in = round_, offered_in
        self.loop = asyncio.get_running_loop()
        self.tools: set[str] = set()
        """Names of the tools that models were offered or that were called."""


_round: ContextVar[GraphRound | None] = ContextVar("graph_round", default=None)
INSIDE: ContextVar[bool] = ContextVar("inside_a_tool", default=False)
HEAR: ContextVar[Hear | None] = ContextVar("hear", default=None)


@contextmanager
def journaled(round_: GraphRound) -> Iterator[None]:
    """Within this block, make calls of chat models and tools steps of a round."""
    token = _round.set(round_)
    try:
        yield
    finally:
        _round.reset(token)


def active() -> GraphRound | None:
    """Return the round whose steps calls are now; None outside of a turn, and in a tool, itself a step."""
    return None if INSIDE.get() else _round.get()


class _Live(BaseCallbackHandler, _StreamingCallbackHandler[Any]):
    """Passes a model's text on as it comes; its presence makes models stream that can."""

    run_inline = True

    def tap_output_aiter(self, run_id: Any, output: Any) -> Any:
        return output

    def tap_output_iter(self, run_id: Any, output: Any) -> Any:
        return output

    def on_llm_new_token(self, token: Any, *, chunk: Any = None, **_: Any) -> None:
        hear = HEAR.get()
        text = str(chunk.message.text) if chunk is not None else token
        if hear is not None and isinstance(text, str) and text:
            hear(text)


LIVE = _Live()


# --- from a thread --------------------------------------------------------------------------------


def from_thread(
    loop: asyncio.AbstractEventLoop,
    make: Callable[[Callable[[Callable[[], Any]], Awaitable[Any]]], Coroutine[Any, Any, T]],
) -> T:
    """Await on a loop, from another thread, what `make` returns, and do the work that it asks for here.

    Args:
        make: gets a function that has work done in this thread.

    Raises Permanent in the loop's own thread, which cannot wait for itself.
    """
    try:
        if asyncio.get_running_loop() is loop:
            raise Permanent(
                "an async node calls its models and tools with `ainvoke`: `invoke` would block it"
            )
    except RuntimeError:
        pass
    work: SimpleQueue[tuple[Callable[[], Any], asyncio.Future[Any]] | None] = SimpleQueue()

    async def here(job: Callable[[], Any]) -> Any:
        done = loop.create_future()
        work.put((functools.partial(copy_context().run, job), done))
        return await done

    awaited = asyncio.run_coroutine_threadsafe(make(here), loop)
    awaited.add_done_callback(lambda _: work.put(None))
    while (given := work.get()) is not None:
        job, done = given
        try:
            value = job()
        except BaseException as error:
            loop.call_soon_threadsafe(_settle, done, None, error)
        else:
            loop.call_soon_threadsafe(_settle, done, value, None)
    return awaited.result()


def _settle(done: asyncio.Future[Any], value: Any, error: BaseException | None) -> None:
    if done.done():
        return  # the turn was cancelled meanwhile
    if error is None:
        done.set_result(value)
    else:
        done.set_exception(error)


def on_loop(loop: asyncio.AbstractEventLoop, hear: Hear | None) -> Hear | None:
    """Return `hear` for a thread: it is called on the loop."""
    if hear is None:
        return None

    def call(text: str | None) -> None:
        loop.call_soon_threadsafe(hear, text)

    return call
