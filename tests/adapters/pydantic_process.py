"""Agents of Pydantic AI in a process: `pydantic_process.py URL SEEDS`. `a` is adapted, `b` bare."""

import asyncio
import os
import sys

sys.path.append(os.environ["ROOT"])

from pydantic_ai import Agent, ModelMessage, ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import AgentInfo, FunctionModel

from mesh.adapters import idempotency_key
from mesh.adapters.pydantic_ai import mesh_agent
from mesh.agent import Move, Turn
from mesh.agent.definition import agent
from tests.adapters.served import note, serve


def think(messages: list[ModelMessage], _: AgentInfo) -> ModelResponse:
    note("model")
    if len(messages) == 1:
        return ModelResponse(parts=[ToolCallPart("refund", {"cents": 500})])
    return ModelResponse(parts=[TextPart("Refunded.")])


existing = Agent(FunctionModel(think))


@existing.tool_plain
def refund(cents: int) -> str:
    """Pay money back."""
    note(f"refund {cents} {idempotency_key()}".rstrip())
    return "done"


@agent(name="b")
async def bare(turn: Turn) -> Move:
    return turn.complete((await existing.run(turn.facts["text"])).output)


if __name__ == "__main__":
    adapted = mesh_agent("a", existing, effects={"refund": "idempotent"})
    asyncio.run(serve([adapted, bare], *sys.argv[1:]))
