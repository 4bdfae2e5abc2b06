"""Calls of LangChain's tools as steps."""

import functools
import json
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from langchain_core.messages import (
    BaseMessage,
    ToolMessage,
    message_to_dict,
    messages_from_dict,
)
from langchain_core.tools import BaseTool, StructuredTool, Tool, ToolException
from langgraph.config import get_config
from langgraph.errors import GraphInterrupt
from langgraph.types import Command, Interrupt, Send
from pydantic import BaseModel
from pydantic_core import to_jsonable_python

from mesh.adapters._langchain import INSIDE, GraphRound, active, from_thread
from mesh.adapters._model import json_kind
from mesh.agent.errors import Permanent, ToolError, ToolRefused


class Interrupted(ToolError, code="adapter.interrupted"):
    """A tool asked by `interrupt`, and did nothing yet. The text is what it asked, as JSON."""


class _ToolCall:
    """One call of a tool: a step."""

    def __init__(self, tool: BaseTool, round_: GraphRound, given: Any) -> None:
        self._tool, self._round = tool, round_
        round_.tools.add(tool.name)
        is_call = isinstance(given, dict) and given.get("type") == "tool_call"
        self._id: str | None = given["id"] if is_call else None
        arguments = given["args"] if is_call else given
        if isinstance(arguments, dict):  # without what a graph injects: its state, its store
            own = tool.args
            arguments = {name: value for name, value in arguments.items() if name in own}
        else:
            arguments = {"input": arguments}
        self._given = arguments
        self._arguments: dict[str, Any] = to_jsonable_python(arguments, fallback=json_kind)

    async def result(self, run: Callable[[], Awaitable[Any]]) -> Any:
        steps, tool = self._round.steps, self._tool
        form = tool.tool_call_schema
        if tool.name in steps.how.effects and isinstance(form, type) and issubclass(form, BaseModel):
            form.model_validate(self._given)  # the graph tells the model what does not fit: nothing was run

        async def as_json() -> Any:
            try:
                return _encoded(tool.name, await run())
            except GraphInterrupt as asked:
                shown = [to_jsonable_python(each.value, fallback=json_kind) for each in asked.args[0]]
                raise Interrupted(json.dumps(shown)) from asked

        try:
            return _decoded(await steps.call(tool.name, self._arguments, as_json), self._id)
        except ToolRefused as no:
            if no.reason == Interrupted.code:
                namespace = get_config()["configurable"]["checkpoint_ns"]
                asked = [Interrupt.from_ns(value, namespace) for value in json.loads(str(no))]
                raise GraphInterrupt(asked) from no
            if self._id is None:
                raise ToolException(str(no)) from no
            return ToolMessage(str(no), tool_call_id=self._id, name=tool.name, status="error")


def _encoded(tool: str, value: Any) -> Any:
    """Return a tool's result as JSON. Raises Permanent for one that has no JSON form."""
    if isinstance(value, ToolMessage):
        return {"tool_message": to_jsonable_python(message_to_dict(value), fallback=json_kind)}
    if isinstance(value, Command):
        ways: Any = [value.goto] if isinstance(value.goto, str | Send) else value.goto
        if not all(isinstance(each, str) for each in ways):
            raise Permanent(f"{tool} returned a Command with a Send, which cannot be journaled")
        update = value.update if isinstance(value.update, dict) else {}
        return {
            "command": {
                "goto": value.goto,
                "graph": value.graph,
                "resume": to_jsonable_python(value.resume, fallback=json_kind),
                "update": {name: _encoded_update(each) for name, each in update.items()},
            }
        }
    return {"value": to_jsonable_python(value, fallback=json_kind)}


def _encoded_update(value: Any) -> Any:
    if isinstance(value, list) and value and all(isinstance(each, BaseMessage) for each in value):
        return {"messages": [to_jsonable_python(message_to_dict(each), fallback=json_kind) for each in value]}
    return {"value": to_jsonable_python(value, fallback=json_kind)}


def _decoded(kept: Mapping[str, Any], call: str | None) -> Any:
    """Return a tool's result from its record; a message answers this call, whichever was recorded."""
    if "tool_message" in kept:
        (message,) = messages_from_dict([kept["tool_message"]])
        assert isinstance(message, ToolMessage)
        return message.model_copy(update={"tool_call_id": call}) if call else message
    if "command" in kept:
        told = kept["command"]
        update = {
            name: messages_from_dict(each["messages"]) if "messages" in each else each["value"]
            for name, each in told["update"].items()
        }
        return Command(update=update or None, goto=told["goto"], graph=told["graph"], resume=told["resume"])
    return kept["value"]


# --- where they are called ---


def watch_tools() -> None:
    """Let langchain-core's calls of tools look for a turn."""
    for kind in (BaseTool, StructuredTool, Tool):
        _watch(kind)


def _watch(kind: type[BaseTool]) -> None:
    if "ainvoke" in vars(kind):
        asynchronous: Any = vars(kind)["ainvoke"]

        @functools.wraps(asynchronous)
        async def ainvoke(self: BaseTool, input: Any, config: Any = None, **more: Any) -> Any:
            async def run() -> Any:
                token = INSIDE.set(True)
                try:
                    return await asynchronous(self, input, config, **more)
                finally:
                    INSIDE.reset(token)

            round_ = active()
            if round_ is None:
                return await asynchronous(self, input, config, **more)
            return await _ToolCall(self, round_, input).result(run)

        kind.ainvoke = ainvoke  # type: ignore[method-assign]
    if "invoke" in vars(kind):
        synchronous: Any = vars(kind)["invoke"]

        @functools.wraps(synchronous)
        def invoke(self: BaseTool, input: Any, config: Any = None, **more: Any) -> Any:
            def work() -> Any:
                token = INSIDE.set(True)
                try:
                    return synchronous(self, input, config, **more)
                finally:
                    INSIDE.reset(token)

            round_ = active()
            if round_ is None:
                return synchronous(self, input, config, **more)
            call = _ToolCall(self, round_, input)
            return from_thread(round_.loop, lambda here: call.result(lambda: here(work)))

        kind.invoke = invoke  # type: ignore[method-assign]
