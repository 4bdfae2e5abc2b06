"""Hooks: an author's functions that watch an agent's rounds and decide nothing.

    front = ClaudeAgent("front", …, hooks=Hooks(after=log_move, on_tool=count_call))

A hook gets copies, and a turn that only reads. It runs outside the journal, for what really happens: `before`
and `after` again if a round runs again after a crash, and nothing for a call that the journal answers. A
replay calls none. What a hook raises is logged with its place (`hook_failed`), and the round goes on.
"""

import asyncio
import copy
import inspect
import traceback
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mesh.agent._watch import CalledModel, CalledTool
from mesh.service.logs import get_logger

if TYPE_CHECKING:
    from mesh.agent.turn import Turn
    from protocol.wire.moves import Move

_log = get_logger(__name__)

MOST_S = 30.0
"""How long an async hook may take (s)."""
_under_way: set[asyncio.Future[None]] = set()
"""Async hooks that run; the event loop alone would let them be collected."""


@dataclass(frozen=True, kw_only=True)
class Hooks:
    """Functions that watch an agent's rounds. Each may be async; then it runs beside the round.

    A plain function holds up its process while it runs, so it should return at once.
    """

    before: "Callable[[Turn], Any] | None" = None
    """Called when a round's code is about to run."""
    after: "Callable[[Turn, Move | Exception], Any] | None" = None
    """Called with the move that a round's code came to, or with the error that ended it."""
    on_handoff: "Callable[[Turn, Move], Any] | None" = None
    """Called with a move that gives work to other agents: a transfer, a hand-back or a plan. The guard may
    still refuse it."""
    on_tool: "Callable[[Turn, CalledTool], Any] | None" = None
    """Called after each call of a tool."""
    on_model: "Callable[[Turn, CalledModel], Any] | None" = None
    """Called after each call of a model."""


@contextmanager
def watching(hooks: Hooks | None, turn: "Turn") -> "Iterator[Callable[[Move], None]]":
    """Let hooks watch the round that runs in this block. Yields what is to be called with its move."""
    execution = turn.execution
    if hooks is None or not execution.is_watched:
        yield lambda move: None
        return
    execution.watcher = observer = Observer(hooks, turn)
    observer.tell("before", tuple)
    try:
        yield observer.moved
    except Exception as raised:
        error = raised
        observer.tell("after", lambda: (error,))
        raise


class Observer:
    """Calls the hooks of one round."""

    def __init__(self, hooks: Hooks, turn: "Turn") -> None:
        self._hooks, self._execution = hooks, turn.execution
        self._shown: Turn | None = None

    def moved(self, move: "Move") -> None:
        """Tell of the move that the round's code came to."""
        from protocol.wire.moves import Delegate, HandBack, Transfer

        if isinstance(move, Transfer | HandBack | Delegate):
            self.tell("on_handoff", lambda: (copy.deepcopy(move),))
        self.tell("after", lambda: (copy.deepcopy(move),))

    def on_tool(self, make: Callable[[], CalledTool]) -> None:
        self.tell("on_tool", lambda: (make(),))

    def on_model(self, make: Callable[[], CalledModel]) -> None:
        self.tell("on_model", lambda: (make(),))

    def tell(self, name: str, make: Callable[[], tuple[Any, ...]]) -> None:
        """Call a hook, if there is one, with the turn and with what `make` returns."""
        hook = getattr(self._hooks, name)
        if hook is None:
            return
        try:
            made = hook(self._turn(), *make())
            if inspect.isawaitable(made):
                task = asyncio.ensure_future(self._finish(name, made))
                _under_way.add(task)
                task.add_done_callback(_under_way.discard)
        except (Exception, SystemExit, asyncio.CancelledError) as error:  # its own
            self._failed(name, error)

    async def _finish(self, name: str, made: Awaitable[Any]) -> None:
        try:
            async with asyncio.timeout(MOST_S):
                await made
        except (Exception, SystemExit) as error:
            self._failed(name, error)

    def _turn(self) -> "Turn":
        """Return the turn as hooks see it: a copy that only reads."""
        if self._shown is None:
            from mesh.agent.turn import SeenTurn

            self._shown = SeenTurn(self._execution)
        return self._shown

    def _failed(self, name: str, error: BaseException) -> None:
        """Log what a hook raised, and where."""
        last = traceback.extract_tb(error.__traceback__)[-1]
        place = f"{Path(last.filename).name}:{last.lineno}"
        agent, kind = self._execution.agent, type(error).__name__
        _log.error("hook_failed", hook=name, agent=agent, place=place, error=kind, exc_info=error)
