"""What cases of the OpenAI SDK share: scripted models, and how cases run. The name `agents` is the SDK's."""

import asyncio
import traceback
from importlib import import_module
from types import ModuleType
from typing import Any

import pytest

from mesh.agent import Agent as MeshAgent
from mesh.agent import Turn
from mesh.testing import turn

sdk: Any = import_module("agents")
mcp: Any = import_module("agents.mcp")
testing: Any = import_module("agents.testing")
sdk.set_tracing_disabled(True)


def calls(name: str, arguments: dict[str, Any], number: int = 1) -> list[Any]:
    return [testing.function_call(name, arguments, call_id=f"{name}-{number}")]


def says(text: str) -> list[Any]:
    return [testing.assistant_message(text)]


def script(*steps: Any) -> Any:
    return testing.ScriptedModel(steps, default_usage=sdk.Usage(requests=1, input_tokens=7, output_tokens=3))


def told(model: Any) -> list[Any]:
    """Return what came of each call, as the model reads it in its last call."""
    return [item["output"] for item in model.calls[-1].input if item.get("type") == "function_call_output"]


async def raised(kind: type[BaseException], made: MeshAgent, given: Turn | None = None) -> str:
    """Return the text of the error that a round raises."""
    with pytest.raises(kind) as error:
        await made(given or turn())
    return str(error.value)


def look() -> str:
    """Look."""
    return "seen"


LOOK = sdk.function_tool(look)


async def run_all(*modules: ModuleType) -> dict[str, str]:
    """Return what went wrong in each case of some modules, by its name; empty where nothing did."""
    found = {}
    for module in modules:
        for name, case in vars(module).items():
            if asyncio.iscoroutinefunction(case) and case.__module__ == module.__name__:
                try:
                    await case()
                except Exception:
                    found[name] = traceback.format_exc()
                else:
                    found[name] = ""
    return found
