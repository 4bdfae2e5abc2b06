"""Runs of an agent of the OpenAI Agents SDK: of a copy whose model calls and function tools are steps.

The SDK owns the import name `agents`. It is loaded by that name, and never imported by a statement: in this
repository, and in many others, a folder of one's own has the name.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from copy import copy
from dataclasses import replace
from functools import partial
from importlib import import_module
from typing import Any

from pydantic import BaseModel, TypeAdapter
from pydantic_core import to_jsonable_python

from mesh.adapters._model import ForeignModel, Heard, failure_of, json_kind
from mesh.adapters._round import AdaptedRound, SdkNotInstalled, words_of
from mesh.adapters._tool import TryAgain
from mesh.agent.errors import Permanent, ToolArgumentsInvalid, ToolRefused, ToolsUnusable, TurnError
from mesh.agent.turn import Turn
from mesh.agent.values import short
from mesh.model.loop import CUT, ModelGaveUp
from mesh.model.port import Exchange, Hear, PastReply, Prompt, Reply, ToolCall, ToolResult, ToolSpec
from mesh.model.results import as_text
from mesh.model.vendor import ModelRetry
from protocol.wire.commands import Usage
from protocol.wire.moves import Move
from protocol.wire.prices import Tokens

sdk: Any = import_module("agents")
if not hasattr(sdk, "Runner"):
    raise SdkNotInstalled(
        f"the name `agents` is not the OpenAI Agents SDK's here, but {getattr(sdk, '__path__', ['?'])[0]}: "
        "run from another folder, or rename that one"
    )
_tools: Any = import_module("agents.tool")
_Model: Any = sdk.Model
_Provider: Any = sdk.ModelProvider
_Item: Any = import_module("agents.items").TResponseOutputItem
_OUTPUT: TypeAdapter[Any] = TypeAdapter(Sequence[_Item])

_LOCAL = frozenset({"ApplyPatchTool", "ComputerTool", "CustomTool", "LocalShellTool", "ShellTool"})
"""Tools that run in this process and are no functions."""


def require_usable(agent: Any) -> None:
    """Raise ToolsUnusable for a tool whose calls cannot be steps, TypeError for what is no agent."""
    if not isinstance(agent, sdk.Agent):
        raise TypeError(f"an agent of the OpenAI Agents SDK is wanted, not a {type(agent).__name__}")
    for each in _reachable(agent)[0]:
        for tool in each.tools:
            if any(kind.__name__ in _LOCAL for kind in type(tool).__mro__) and _is_here(tool):
                raise ToolsUnusable(
                    f"{tool.name} of {each.name} is a {type(tool).__name__}, whose calls cannot be "
                    "journaled: make a function tool of it"
                )


def _reachable(agent: Any) -> tuple[list[Any], bool]:
    """Return an agent and those that it can hand off to; False if a handoff hides one until it is taken."""
    found: dict[int, Any] = {id(agent): agent}
    is_whole, due = True, [agent]
    while due:
        for handoff in due.pop().handoffs:
            other = handoff
            if not isinstance(handoff, sdk.Agent):
                ref = getattr(handoff, "_agent_ref", None)
                other = None if ref is None else ref()
            if other is None:
                is_whole = False
            elif id(other) not in found:
                found[id(other)] = other
                due.append(other)
    return list(found.values()), is_whole


async def connected(agent: Any) -> None:
    """Connect the MCP servers of an agent, and of those that it hands off to, until the process ends."""
    loop = asyncio.get_running_loop()
    for each in _reachable(agent)[0]:
        for server in each.mcp_servers:
            if server not in _held and getattr(server, "session", None) is None:
                ready: asyncio.Future[None] = loop.create_future()
                _held[server] = loop.create_task(_hold(server, ready))
                await ready


async def _hold(server: Any, ready: asyncio.Future[None]) -> None:
    """Hold a connection in a task of its own: it has to be closed in the one that opened it."""
    try:
        async with server:
            ready.set_result(None)
            await asyncio.Event().wait()
    except Exception as error:
        _held.pop(server, None)
        if ready.done():
            raise
        ready.set_exception(error)


_held: dict[Any, asyncio.Task[None]] = {}


def _is_here(tool: Any) -> bool:
    """Return False for a shell that runs in the vendor's container."""
    environment = getattr(tool, "environment", None)
    return not (isinstance(environment, Mapping) and environment.get("type") != "local")


async def run(
    agent: Any,
    context: Callable[[Turn], Any] | None,
    run_config: Any,
    max_turns: int,
    round_: AdaptedRound,
) -> Move:
    """Run the agent until it comes to a move without an outcome. Raises Returned."""
    turn, copies = round_.turn, _Copies(round_)
    given = None if context is None else context(turn)
    asked: Any = (round_.how.prompt or words_of)(turn)
    config = run_config or sdk.RunConfig()
    config = replace(
        config,
        model=copies.model(config.model) if isinstance(config.model, _Model) else config.model,
        model_provider=_JournaledProvider(config.model_provider, round_),
    )
    while True:
        try:
            result = await sdk.Runner.run(
                copies.of(agent), asked, context=given, run_config=config, max_turns=max_turns
            )
        except sdk.AgentsException as error:
            raise _meaning(error) from error
        output = to_jsonable_python(result.final_output, fallback=json_kind)
        why = await round_.outcome_of(round_.answered(output))
        # An earlier round's answer was refused: the model reads why.
        asked = [*result.to_input_list(), {"role": "user", "content": why}]


def _meaning(error: Any) -> Exception:
    """Return what an error of a run means for the turn: one of ours that it wraps, or the end of it."""
    inner: BaseException | None = error
    while inner is not None:
        if isinstance(inner, TurnError):
            return inner
        inner = inner.__cause__
    if isinstance(error, sdk.UserError):
        cause = error.__cause__
        return cause if isinstance(cause, Exception) else error
    return ModelGaveUp(short(f"{type(error).__name__}: {error}"))


class _Copies:
    """Copies of agents for one round; two agents that hand off to each other get one copy each."""

    def __init__(self, round_: AdaptedRound) -> None:
        self._round = round_
        self._known: dict[int, tuple[Any, Any]] = {}

    def of(self, agent: Any) -> Any:
        """Return the copy of an agent."""
        if id(agent) not in self._known:
            model = self.model(agent.model) if isinstance(agent.model, _Model) else agent.model
            tools = [*self._usable(agent.tools), *map(self._move, self._round.moves)]
            made = agent.clone(tools=tools, handoffs=[], model=model)
            self._known[id(agent)] = (agent, made)  # the agent as well: else its id may be another's
            made.handoffs = [self._handoff(each) for each in agent.handoffs]
            listed = made.get_mcp_tools

            async def get_mcp_tools(run_context: Any) -> list[Any]:
                found = await listed(run_context)
                reachable, is_whole = _reachable(agent)
                if is_whole:
                    self._round.require_effects(
                        tool.name for tool in (*found, *(tool for each in reachable for tool in each.tools))
                    )
                return list(self._usable(found))

            made.get_mcp_tools = get_mcp_tools
        return self._known[id(agent)][1]

    def model(self, model: Any) -> Any:
        return _JournaledModel(model, self._round)

    def _handoff(self, handoff: Any) -> Any:
        if isinstance(handoff, sdk.Agent):
            return self.of(handoff)
        made, invoke = copy(handoff), handoff.on_invoke_handoff

        async def to_copy(*args: Any) -> Any:
            return self.of(await invoke(*args))

        made.on_invoke_handoff = to_copy
        return made

    def _usable(self, tools: Iterable[Any]) -> Iterable[Any]:
        for tool in tools:
            if not isinstance(tool, sdk.FunctionTool):
                yield tool  # the vendor runs it, within the model's call
            elif not self._round.forbids(tool.name):
                yield self._journaled(tool)

    def _journaled(self, tool: Any) -> Any:
        """Return a function tool whose calls are steps."""
        has_effect = tool.name in self._round.how.effects
        inner, made = copy(tool), copy(tool)
        if has_effect:  # what it did is unknown if it raises: no text for the model may hide that
            _tools.set_function_tool_failure_error_function(inner, None)
        _tools.set_function_tool_failure_error_function(made, None)

        async def invoke(context: Any, text: str) -> Any:
            arguments = _arguments(text)
            wanted = tool.needs_approval
            if callable(wanted):
                wanted = await wanted(context, arguments, context.tool_call_id)
            run_it = partial(_invoked, inner, context, text, has_effect=has_effect)
            try:
                return await self._round.call(
                    tool.name,
                    arguments,
                    run_it,
                    approve=bool(wanted),
                    timeout_s=tool.timeout_seconds if has_effect else None,
                )
            except ToolRefused as no:
                return str(no)

        made.on_invoke_tool, made.needs_approval = invoke, False
        if has_effect:
            made.timeout_seconds = None
        return made

    def _move(self, spec: ToolSpec) -> Any:
        async def invoke(_: Any, text: str) -> str:
            try:
                return await self._round.outcome_of(self._round.read(spec.name, _arguments(text)))
            except ToolArgumentsInvalid as wrong:
                return str(wrong)

        move = sdk.FunctionTool(
            name=spec.name,
            description=spec.description,
            params_json_schema=dict(spec.schema),
            on_invoke_tool=invoke,
            strict_json_schema=False,
        )
        return _tools.set_function_tool_failure_error_function(move, None)


async def _invoked(tool: Any, context: Any, text: str, *, has_effect: bool) -> Any:
    """Run a tool, and return its output as JSON: parts as they are, anything else as the SDK's text of it."""
    try:
        output = await tool.on_invoke_tool(context, text)
    except sdk.ModelBehaviorError as wrong:
        if not has_effect:
            raise
        raise TryAgain(short(str(wrong))) from wrong  # its arguments do not fit: nothing was run
    parts = output if isinstance(output, list) else [output]
    kinds = (str, dict, sdk.ToolOutputText, sdk.ToolOutputImage, sdk.ToolOutputFileContent)
    is_plain = all(isinstance(part, kinds) for part in parts) or tool._output_type_adapter is not None
    return to_jsonable_python(output, fallback=json_kind) if is_plain else str(output)


def _arguments(text: str) -> dict[str, Any]:
    """Return a call's arguments; the SDK itself tells the model what is wrong with others."""
    try:
        read = json.loads(text or "{}")
    except ValueError:
        read = None
    return read if isinstance(read, dict) else {"arguments": text}


# --- the model ------------------------------------------------------------------------------------


class _JournaledProvider(_Provider):
    """Makes every model that it provides one whose calls are steps."""

    def __init__(self, wrapped: Any, round_: AdaptedRound) -> None:
        self._wrapped, self._round = wrapped, round_

    def get_model(self, model_name: str | None) -> Any:
        return _JournaledModel(self._wrapped.get_model(model_name), self._round, model_name or "")


class _JournaledModel(_Model):
    """A model whose calls are steps."""

    def __init__(self, wrapped: Any, round_: AdaptedRound, name: str = "") -> None:
        self._wrapped, self._round = wrapped, round_
        self._name = name or str(getattr(wrapped, "model", "") or type(wrapped).__name__)

    async def get_response(
        self,
        system_instructions: str | None,
        input: str | list[Any],
        model_settings: Any,
        tools: list[Any],
        output_schema: Any,
        handoffs: list[Any],
        tracing: Any,
        **more: Any,
    ) -> Any:
        asked = (system_instructions, input, model_settings, tools, output_schema, handoffs, tracing)
        model = ForeignModel(self._name, partial(self._ask, asked, more), failure_of)
        specs = [
            ToolSpec(tool.name, tool.description, tool.params_json_schema)
            if isinstance(tool, sdk.FunctionTool)
            else ToolSpec(tool.name, type(tool).__name__, {})
            for tool in tools
        ]
        specs += [
            ToolSpec(each.tool_name, each.tool_description, each.input_json_schema) for each in handoffs
        ]
        prompt = _prompt(self._round.turn.agent, system_instructions or "", input, specs)
        reply = await self._round.reply(model, prompt)
        (kept,) = reply.blocks
        return sdk.ModelResponse(
            output=list(_OUTPUT.validate_python(kept["output"])),
            usage=_usage(kept["usage"]),
            response_id=kept["response_id"],
        )

    async def stream_response(self, *_: Any, **__: Any) -> AsyncIterator[Any]:
        raise NotImplementedError("a turn runs its agent without streaming; its client reads along live")
        yield

    async def _ask(self, asked: tuple[Any, ...], more: Mapping[str, Any], hear: Hear | None) -> Reply:
        if hear is not None:
            heard = Heard(hear)
            try:
                return await self._streamed(asked, more, heard)
            except NotImplementedError:  # a model of one's own need not stream
                if heard.anything:
                    raise  # it was paid
        return self._reply(await self._wrapped.get_response(*asked, **more))

    async def _streamed(self, asked: tuple[Any, ...], more: Mapping[str, Any], hear: Hear) -> Reply:
        items: list[Any] = []
        async for event in self._wrapped.stream_response(*asked, **more):
            match event.type:
                case "response.output_text.delta":
                    hear(event.delta)
                case "response.output_item.done":
                    items.append(event.item)
                case "response.completed":
                    whole = event.response
                    response = sdk.ModelResponse(
                        output=whole.output or items,
                        usage=_usage({} if whole.usage is None else whole.usage.model_dump()),
                        response_id=whole.id,
                    )
                    return self._reply(response)
                case "response.incomplete" | "response.failed" | "error" | "response.error":
                    raise _broken(event)
        raise ModelRetry(f"{self._name} broke off: its stream has no end")

    def _reply(self, response: Any) -> Reply:
        used = response.usage
        cached = getattr(used.input_tokens_details, "cached_tokens", None) or 0
        written = getattr(used.input_tokens_details, "cache_write_tokens", None) or 0
        thinking = getattr(used.output_tokens_details, "reasoning_tokens", None) or 0
        tokens = Tokens(
            input=max(0, used.input_tokens - cached - written),
            cache_read=cached,
            cache_write=written,
            output=used.output_tokens,
            thinking=thinking,
        )
        output = [
            item.model_dump(mode="json", exclude_unset=True, warnings=False)
            if isinstance(item, BaseModel)
            else to_jsonable_python(item, fallback=json_kind)
            for item in response.output
        ]
        kept = {
            "output": output,
            "usage": to_jsonable_python(used, fallback=json_kind),
            "response_id": response.response_id,
        }
        said, calls = _said(output)
        return Reply(
            text=said,
            calls=calls,
            usage=Usage(tokens=tokens.total, model_calls=1),
            tokens=tokens,
            stop="",
            blocks=(kept,),
            model=self._name,
            id=response.request_id or response.response_id or "",
        )


def _usage(kept: Mapping[str, Any]) -> Any:
    fields = (
        "input_tokens",
        "input_tokens_details",
        "output_tokens",
        "output_tokens_details",
        "total_tokens",
    )
    known = {name: kept[name] for name in fields if kept.get(name) is not None}
    return TypeAdapter(sdk.Usage).validate_python({"requests": 1, **known})


def _said(output: Iterable[Mapping[str, Any]]) -> tuple[str, tuple[ToolCall, ...]]:
    """Return the text of output items, and their calls, for people."""
    texts, calls = list[str](), list[ToolCall]()
    for item in output:
        match item.get("type"):
            case "message":
                texts += [part["text"] for part in item["content"] if isinstance(part.get("text"), str)]
            case "function_call":
                calls.append(ToolCall(item["call_id"], item["name"], _arguments(item["arguments"])))
    return "".join(texts), tuple(calls)


def _prompt(agent: str, instructions: str, asked: str | list[Any], tools: Iterable[ToolSpec]) -> Prompt:
    """Return what the model is asked, equal whenever the same is asked."""
    items = [{"role": "user", "content": asked}] if isinstance(asked, str) else to_jsonable_python(asked)
    brief, transcript = "", list[Exchange]()
    for item in items:
        content = item.get("content")
        if not brief and item.get("role") == "user" and isinstance(content, str):
            brief = content
        elif item.get("type") == "function_call_output":
            transcript.append(ToolResult(item["call_id"], "", as_text(item["output"])))
        elif item.get("role") == "user":
            transcript.append(ToolResult("", "user", as_text(content)))
        else:
            said, calls = _said([item])
            transcript.append(PastReply(said, calls, (item,)))
    return Prompt(agent, instructions, brief, tuple(tools), tuple(transcript))


def _broken(event: Any) -> Exception:
    """Return the error of a stream that ended without a whole reply."""
    if event.type == "response.incomplete":
        why = getattr(getattr(event.response, "incomplete_details", None), "reason", None)
        return Permanent(f"the reply was cut off: {why or CUT}")
    error = getattr(getattr(event, "response", event), "error", None) or event
    return ModelRetry(short(str(getattr(error, "message", None) or event.type)))
