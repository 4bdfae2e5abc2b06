"""Agents of the OpenAI SDK in a process: `openai_process.py URL SEEDS`. `a` is adapted, `b` bare."""

import asyncio
import os
import sys
from importlib import import_module
from typing import Any

sys.path.append(os.environ["ROOT"])

from mesh.adapters import idempotency_key
from mesh.adapters.openai_agents import mesh_agent
from mesh.agent import Move, Turn
from mesh.agent.definition import agent
from tests.adapters.served import note, serve

sdk: Any = import_module("agents")
testing: Any = import_module("agents.testing")
sdk.set_tracing_disabled(True)


def think(call: Any) -> list[Any]:
    note("model")
    if len(call.input) == 1 or isinstance(call.input, str):
        return [testing.function_call("refund", {"cents": 500}, call_id="call-1")]
    return [testing.assistant_message("Refunded.")]


def refund(cents: int) -> str:
    """Pay money back."""
    note(f"refund {cents} {idempotency_key()}".rstrip())
    return "done"


existing = sdk.Agent(
    "clerk",
    tools=[sdk.function_tool(refund)],
    model=testing.ScriptedModel([testing.ModelStep.respond(think)] * 100),
)


@agent(name="b")
async def bare(turn: Turn) -> Move:
    return turn.complete((await sdk.Runner.run(existing, turn.facts["text"])).final_output)


if __name__ == "__main__":
    adapted = mesh_agent("a", existing, effects={"refund": "idempotent"})
    asyncio.run(serve([adapted, bare], *sys.argv[1:]))
