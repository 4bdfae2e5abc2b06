"""A tool of another SDK as a step: the SDK has checked its arguments, and runs it."""

from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from mesh.agent.errors import ToolError
from mesh.agent.tools import Approver, Effect, Tool
from mesh.agent.turn import Turn

_key: ContextVar[str] = ContextVar("idempotency_key", default="")
_turn: ContextVar[Turn | None] = ContextVar("turn", default=None)


def current_turn() -> Turn:
    """Return the turn that an existing agent works on, for its tools and instructions. It only reads.

    What a tool with an effect reads of the facts counts in the effect's key.

    Raises RuntimeError outside of a turn.
    """
    turn = _turn.get()
    if turn is None:
        raise RuntimeError("there is no turn: this code runs outside of a mesh agent")
    return turn


@contextmanager
def reading(turn: Turn) -> Iterator[None]:
    """Within this block, let `current_turn` return a turn."""
    token = _turn.set(turn)
    try:
        yield
    finally:
        _turn.reset(token)


def idempotency_key() -> str:
    """Return the key of the effect that runs now: the same however often it runs. Empty elsewhere.

    Called in a tool with an effect. Pass it to the system that the tool calls, if that takes one.
    """
    return _key.get()


class ApprovalWanted(ToolError, code="adapter.approval_wanted"):
    """A tool asked for an approval once it ran, as its SDK lets it, and did nothing yet."""


class TryAgain(ToolError, code="adapter.try_again"):
    """A tool did nothing, and told the model what to call it with instead."""


class GaveNothing(ToolError, code="adapter.gave_nothing"):
    """A tool told the model that it failed for good."""


class ForeignTool(Tool):
    """A tool whose arguments its SDK has checked. Made anew for each call."""

    def check(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments as they are."""
        return dict(arguments)


def foreign_tool(
    name: str,
    run: Callable[[], Awaitable[Any]],
    *,
    effect: Effect | None,
    reconcile: Callable[[str], Any] | None,
    approve: Approver | None,
    timeout_s: float | None = None,
) -> ForeignTool:
    """Return the tool of one call.

    Args:
        run: runs the tool in its SDK; what it returns has to be JSON.
    """

    async def call(turn: Turn, idempotency_key: str = "", **_: Any) -> Any:
        token = _key.set(idempotency_key)
        try:
            with reading(turn):
                return await run()
        finally:
            _key.reset(token)

    return ForeignTool(
        name=name,
        description="",
        effect=effect,
        fn=call,
        reconcile=reconcile,
        approve=approve,
        timeout_s=timeout_s,
    )
