"""The loop between a model and its tools: from one round of a turn to the move that it ends in.

The model proposes, this file disposes: a call runs only if it was offered, a move counts only if it is
well-formed, and every mistake goes back to the model as text. The loop is bounded, and what it cannot
bring to an end it gives to a person.
"""

from collections.abc import Container, Iterable

import msgspec
import structlog

from mesh.agent.tools import Tool, ToolError
from mesh.agent.turn import Turn
from mesh.errors import MeshError
from mesh.model.brief import render
from mesh.model.moves import Labels, MoveTools
from mesh.model.port import Exchange, Model, Prompt, Reply, Said, ToolCall, ToolResult, ToolSpec
from protocol.messages import Move

_log = structlog.get_logger(__name__)

MAX_CALLS = 12

_EMPTY = "An empty reply is no answer: call a tool, or say the answer."
_SECOND_MOVE = "Not looked at: of several moves in one reply only the first counts."
_TOO_EARLY = "Not taken: an earlier call of this reply failed, and this was said without knowing."


async def drive(
    turn: Turn,
    model: Model,
    *,
    instructions: str,
    tools: Iterable[Tool],
    handoffs: Container[str] | None = None,
    max_calls: int = MAX_CALLS,
    labels: Labels | None = None,
) -> Move:
    """Return the move that a model makes of this round.

    A reply without a call is the answer. Of several moves in one reply the first counts, and only if
    no call before it failed.

    Args:
        instructions: the system text.
        tools: what the agent can do; those that the turn may not call are not offered.
        handoffs: to whom it may transfer, of those whom the fleet lets it; None for all of these.
        max_calls: calls, wrong ones and empty replies included, that a round may take before its move.
        labels: labels that facts of a key have to have, whatever the model says.

    Raises Retry and Permanent, the model's or a tool's, and every other error of the mesh but
    ToolError; what else a tool raises is told to the model as the call's result.
    """
    return await _Conversation(turn, model, instructions, tools, handoffs, max_calls, labels).until_a_move()


class _Conversation:
    """One round."""

    def __init__(
        self,
        turn: Turn,
        model: Model,
        instructions: str,
        tools: Iterable[Tool],
        handoffs: Container[str] | None,
        max_calls: int,
        labels: Labels | None,
    ) -> None:
        self._turn, self._model, self._instructions = turn, model, instructions
        allowed = turn.allowed_actions
        self._tools = {tool.name: tool for tool in tools if allowed is None or tool.name in allowed}
        self._moves = MoveTools(turn, labels, handoffs)
        self._brief = render(turn)
        self._transcript: list[Exchange] = []
        self._left = self._most = max_calls

    async def until_a_move(self) -> Move:
        while True:
            reply = await self._ask()
            if not reply.calls:
                if reply.text.strip():
                    return self._turn.complete(reply.text.strip())
                if not self._take():
                    return self._given_up()
                self._transcript.append(ToolResult("", "", _EMPTY, is_error=True))
            failed = moved = False
            for call in reply.calls:
                is_move = call.name in self._moves
                found = self._read(call) if is_move and not failed and not moved else None
                if found is not None and not isinstance(found, ToolResult):
                    return found
                if not self._take():
                    return self._given_up()
                if is_move:
                    found = found or _error(call, _SECOND_MOVE if moved else _TOO_EARLY)
                else:
                    found = await self._run(call)
                self._transcript.append(found)
                failed, moved = failed or found.is_error, moved or is_move

    async def _ask(self) -> Reply:
        specs = (ToolSpec(tool.name, tool.description, tool.schema) for tool in self._tools.values())
        prompt = Prompt(
            agent=self._turn.agent,
            instructions=self._instructions,
            brief=self._brief,
            tools=(*specs, *self._moves.specs),
            transcript=tuple(self._transcript),
        )
        reply, _ = await self._turn.model(
            self._model.mode,
            prompt,
            lambda: self._model.reply(prompt),
            Reply,
            cost=lambda reply: reply.usage,
        )
        self._transcript.append(Said(reply.text, reply.calls, reply.blocks))
        return reply

    def _take(self) -> bool:
        """Count one call; say whether it may still be made."""
        self._left -= 1
        return self._left >= 0

    def _read(self, call: ToolCall) -> Move | ToolResult:
        try:
            return self._moves.read(call)
        except ToolError as wrong:
            return _error(call, str(wrong))

    async def _run(self, call: ToolCall) -> ToolResult:
        tool = self._tools.get(call.name)
        if tool is None:
            return _error(call, f"There is no tool {call.name!r} here.")
        try:
            result = await self._turn.call(tool, **call.arguments)
        except ToolError as refused:
            return _error(call, str(refused))
        except MeshError:
            raise
        except Exception as broken:
            _log.warning("tool_broke", tool=tool.name, error=type(broken).__name__, exc_info=True)
            return _error(call, f"{tool.name} broke: {type(broken).__name__}")
        return ToolResult(call.id, call.name, msgspec.json.encode(result, enc_hook=str).decode())

    def _given_up(self) -> Move:
        reason = f"{self._turn.agent} came to no move within {self._most} calls"
        return self._turn.escalate(reason) if self._turn.has_human else self._turn.fail(reason)


def _error(call: ToolCall, text: str) -> ToolResult:
    return ToolResult(call.id, call.name, text, is_error=True)
