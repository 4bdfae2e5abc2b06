"""The tool calls of one round: whether each may run, under which key, and what becomes of it after a crash.

The journal decides whether a call runs at all; this says what running, asking and running again mean for
a tool of its kind.
"""

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from mesh.agent import _approvals as approvals
from mesh.agent._journal import MAX_STEP_BYTES
from mesh.agent._step_store import Recorded, as_json
from mesh.agent._telemetry import tool_span
from mesh.agent.errors import ActionNotAllowed, EffectUnknown
from mesh.agent.tools import NOT_DONE, NotBegun, ToolError, ToolRefused
from mesh.errors import MeshError
from mesh.service.logs import get_logger
from protocol.wire.events import Assignment
from protocol.wire.ids import derive

if TYPE_CHECKING:
    from mesh.agent._journal import Journal
    from mesh.agent.tools import Tool
    from mesh.agent.turn import Turn

_log = get_logger(__name__)

MAX_RESULT_BYTES = MAX_STEP_BYTES - 4096
"""Of a result that a model is told; the rest of a step's room is for what is recorded beside it."""
_BROKE, _TOO_LARGE = "tool.broke", "tool.too_large"

Produce = Callable[[], Awaitable[Any]]


class ToolCalls:
    """Runs a round's tool calls. Made by its `Turn`."""

    def __init__(
        self, turn: "Turn", work: Assignment, actions: set[str], journal: "Journal | None", lease_s: float
    ) -> None:
        """`actions` gets the name of each tool that is called; the turn reports them."""
        self._turn = turn
        self._continues = work.continues or work.turn
        self._actions = actions
        self._journal = journal
        self._lease_s = lease_s
        self._ordinals: dict[tuple[str, str], int] = {}

    def require_allowed(self, tool: "Tool") -> None:
        """Raise ActionNotAllowed for a tool that this turn may not call."""
        if not self._may_call(tool):
            raise ActionNotAllowed(_not_allowed(tool))

    def _may_call(self, tool: "Tool") -> bool:
        allowed = self._turn.allowed_actions
        return allowed is None or tool.name in allowed

    async def call(self, tool: "Tool", arguments: Mapping[str, Any], *, for_model: bool) -> Any:
        """Return a tool's result, recorded or new. Raises as `Turn.call` and `Turn.outcome` do."""
        tool.check(arguments)
        digest = digest_of(arguments)
        key = self._key(tool.name, digest)
        run = self._running(tool, arguments, key, for_model=for_model)
        allow = self._allowing(tool, arguments, key)
        if self._may_call(tool):
            self._actions.add(tool.name)
        else:
            run, allow = _refusing(tool)
        try:
            if self._journal is None:
                if allow is not None:
                    allow()
                return await run()
            if tool.effect is None:
                call = ("call", tool.name, digest)
                return await self._journal.step(call, self._while_open(run), refusals=for_model)
            await self._turn.require_open()
            again = self._again(tool, run, key) if self._may_call(tool) else None
            call = ("effect", tool.name, digest)
            return await self._journal.effect(call, key, run, again=again, allow=allow)
        except Recorded as no:
            raise ToolRefused(no.reason, str(no)) from None

    def _running(self, tool: "Tool", arguments: Mapping[str, Any], key: str, *, for_model: bool) -> Produce:
        """Return what runs the tool; its no becomes an outcome that can be recorded."""
        reads_for_model = for_model and tool.effect is None

        async def run() -> Any:
            try:
                with (
                    self._turn.live.doing("tool", tool.name),
                    tool_span(self._turn.agent, self._turn.request, tool.name),
                ):
                    value = plain(await tool.run(arguments, idempotency_key=key))
            except ToolError as no:
                raise Recorded(no.code, str(no), begun=not isinstance(no, NotBegun)) from no
            except Exception as broken:
                if isinstance(broken, MeshError) or not reads_for_model:
                    raise
                _log.warning("tool_broke", tool=tool.name, error=type(broken).__name__, exc_info=True)
                raise Recorded(_BROKE, f"{tool.name} broke: {type(broken).__name__}") from broken
            if reads_for_model and (size := len(msgspec.json.encode(value))) > MAX_RESULT_BYTES:
                told = f"{tool.name} returned {size} bytes; at most {MAX_RESULT_BYTES} can be told"
                raise Recorded(_TOO_LARGE, f"{told}. Ask for less.")
            return value

        return run

    def _allowing(self, tool: "Tool", arguments: Mapping[str, Any], key: str) -> Callable[[], None] | None:
        """Return what says whether this effect may begin; None for one that needs nobody's yes."""
        if tool.approve is None:
            return None
        ask = approvals.approval_of(tool, arguments, key, agent=self._turn.agent, client=self._turn.client)
        return lambda: approvals.require(ask, self._turn.past)

    def _again(self, tool: "Tool", run: Produce, key: str) -> Produce | None:
        """Return what to do about this effect after a crash in the middle of it; None: nobody can say."""
        if tool.effect == "once":
            return None
        if tool.effect == "idempotent":

            async def once_more() -> Any:
                if tool.is_under_way(key):  # side by side, two would both look for the key and find nothing
                    raise EffectUnknown(f"{tool.name} is still under way")
                return await run()

            return once_more

        async def reconcile() -> Any:
            # Whoever began it may still be at it until their lease has ended.
            await asyncio.sleep(self._lease_s)
            if tool.is_under_way(key):
                raise EffectUnknown(f"{tool.name} is still under way")
            found = await tool.ask(key)
            if found is not NOT_DONE:
                return plain(found)
            if self._journal is not None:
                await self._journal.require_held()
            return await run()

        return reconcile

    def _key(self, tool: str, digest: str) -> str:
        """Return the key under which this call's effect happens once, in whatever round it is made.

        The ordinal tells calls with equal arguments apart; the round is no part of the key.
        """
        ordinal = self._ordinals.get((tool, digest), 0)
        self._ordinals[tool, digest] = ordinal + 1
        return derive(self._turn.request, self._continues, tool, digest, ordinal)

    def _while_open(self, run: Produce) -> Produce:
        """Return what runs a reading tool, unless the turn was ended; a recorded result needs no look."""

        async def checked() -> Any:
            await self._turn.require_open()
            return await run()

        return checked


def _not_allowed(tool: "Tool") -> str:
    return f"{tool.name} is not among the allowed actions"


def _refusing(tool: "Tool") -> tuple[Produce, Callable[[], None]]:
    """Return what is done instead of running a tool, and instead of asking for a yes: a recorded no."""

    def refuse() -> None:
        raise Recorded(ActionNotAllowed.code, _not_allowed(tool), begun=False)

    async def run() -> None:
        refuse()

    return run, refuse


def digest_of(value: Any) -> str:
    """Return SHA-256 (hex) of a value's canonical JSON."""
    return hashlib.sha256(msgspec.json.encode(value, order="deterministic", enc_hook=str)).hexdigest()


def plain(value: Any) -> Any:
    """Return a value as JSON makes it, the first time as every time that it is read from the journal."""
    return msgspec.json.decode(msgspec.json.encode(value, enc_hook=as_json))
