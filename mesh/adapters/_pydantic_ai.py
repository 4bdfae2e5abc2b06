"""Runs of an agent of Pydantic AI: a capability makes its model requests and its tool calls steps."""

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from typing import Any

from pydantic import TypeAdapter
from pydantic_ai import (
    AbstractToolset,
    AgentRunError,
    ModelRetry,
    RunContext,
    ToolDefinition,
    ToolReturn,
    ToolsetTool,
    WrapperToolset,
)
from pydantic_ai import Agent as ForeignAgent
from pydantic_ai.agent import AbstractAgent
from pydantic_ai.capabilities import AbstractCapability, CapabilityOrdering
from pydantic_ai.exceptions import (
    ApprovalRequired,
    CallDeferred,
    ModelAPIError,
    ModelHTTPError,
    ModelOverloadedError,
    ModelQuotaExceededError,
    ModelRateLimitError,
    ModelRequestRejectedError,
    ToolFailed,
)
from pydantic_ai.messages import (
    ModelMessage,
    ModelMessagesTypeAdapter,
    ModelRequest,
    ModelResponse,
    PartDeltaEvent,
    PartStartEvent,
    SystemPromptPart,
    TextPart,
    TextPartDelta,
    UserPromptPart,
    tool_return_content_ta,
)
from pydantic_ai.models import CompletedStreamedResponse, Model, ModelRequestParameters, StreamedResponse
from pydantic_ai.models.wrapper import WrapperModel
from pydantic_ai.settings import ModelSettings
from pydantic_ai.toolsets.external import TOOL_SCHEMA_VALIDATOR
from pydantic_core import to_jsonable_python

from mesh.adapters._model import ForeignModel, Heard, failure_of_status, json_kind
from mesh.adapters._model import words_of as words_of_error
from mesh.adapters._round import AdaptedRound, words_of
from mesh.adapters._tool import ApprovalWanted, GaveNothing, TryAgain
from mesh.agent.errors import (
    EffectUnknown,
    Permanent,
    ToolArgumentsInvalid,
    ToolRefused,
    ToolsUnusable,
    TurnError,
)
from mesh.agent.turn import Turn
from mesh.agent.values import short
from mesh.model.loop import CUT, ModelGaveUp
from mesh.model.port import Exchange, Hear, PastReply, Prompt, Reply, ToolCall, ToolResult, ToolSpec
from mesh.model.results import as_text
from mesh.model.vendor import ModelRefused, ModelThrottled
from mesh.model.vendor import ModelRetry as AskAgain
from protocol.wire.commands import Usage
from protocol.wire.moves import Move
from protocol.wire.prices import Tokens

_WHOLE: TypeAdapter[Any] = TypeAdapter(ToolReturn)
_TRIES = 3
"""How often a model may ask for a move with arguments that do not fit."""
_HELD = ("external", "unapproved")
"""Kinds of tools that its SDK would end the run for."""
_ADDED = frozenset({"timestamp", "run_id", "conversation_id"})
"""Fields of messages that differ from run to run, and that no model reads."""


def require_agent(agent: Any) -> None:
    """Raise TypeError for what is no agent."""
    if not isinstance(agent, AbstractAgent):
        raise TypeError(f"an agent of Pydantic AI is wanted, not a {type(agent).__name__}")


async def run(
    agent: ForeignAgent[Any, Any], deps: Callable[[Turn], Any] | None, round_: AdaptedRound
) -> Move:
    """Run the agent until it comes to a move without an outcome. Raises Returned."""
    turn, history = round_.turn, None
    given = None if deps is None else deps(turn)
    prompt = (round_.how.prompt or words_of)(turn)
    steps = _JournaledRun(round_)
    while True:
        try:
            result = await agent.run(prompt, message_history=history, deps=given, capabilities=[steps])
        except AgentRunError as error:
            raise _failure(error) or ModelGaveUp(short(str(error))) from error
        output = to_jsonable_python(result.output, fallback=json_kind)
        prompt = await round_.outcome_of(round_.answered(output))
        history = result.all_messages()  # an earlier round's answer was refused: the model reads why


@dataclass
class _JournaledRun(AbstractCapability[Any]):
    """Makes a run's model requests and tool calls steps."""

    def __init__(self, round_: AdaptedRound) -> None:
        self._round = round_
        self._runs = count()

    def get_ordering(self) -> CapabilityOrdering:
        return CapabilityOrdering(position="outermost")

    def get_default_run_id(self) -> str:
        return f"{self._round.turn.id}-{next(self._runs)}"

    def get_default_conversation_id(self, run_id: str) -> str:
        return self._round.turn.request

    def get_wrapper_model(self, model: Model) -> Model:
        return _JournaledModel(model, self._round)

    def get_wrapper_toolset(self, toolset: AbstractToolset[Any]) -> AbstractToolset[Any]:
        return _JournaledToolset(toolset, self._round)


# --- the model ------------------------------------------------------------------------------------


class _JournaledModel(WrapperModel):
    """A model whose requests are steps."""

    def __init__(self, wrapped: Model, round_: AdaptedRound) -> None:
        super().__init__(wrapped)
        self._round = round_

    async def request(
        self,
        messages: list[ModelMessage],
        model_settings: ModelSettings | None,
        model_request_parameters: ModelRequestParameters,
    ) -> ModelResponse:
        ask = partial(self._ask, messages, model_settings, model_request_parameters)
        model = ForeignModel(
            self.wrapped.model_name, ask, _failure, provider=self.wrapped.system, address=self.base_url or ""
        )
        prompt = _prompt(self._round.turn.agent, messages, model_request_parameters)
        reply = await self._round.reply(model, prompt)
        (response,) = ModelMessagesTypeAdapter.validate_python(reply.blocks)
        assert isinstance(response, ModelResponse)
        return response

    @asynccontextmanager
    async def request_stream(
        self,
        messages: list[ModelMessage],
        model_settings: ModelSettings | None,
        model_request_parameters: ModelRequestParameters,
        run_context: RunContext[Any] | None = None,
    ) -> AsyncIterator[StreamedResponse]:
        """Give the whole reply as a stream: the run may be listened to, and a step is whole or not there."""
        response = await self.request(messages, model_settings, model_request_parameters)
        yield CompletedStreamedResponse(
            response, model_request_parameters=model_request_parameters, replay_events=True
        )

    async def _ask(
        self,
        messages: list[ModelMessage],
        settings: ModelSettings | None,
        parameters: ModelRequestParameters,
        hear: Hear | None,
    ) -> Reply:
        streams = getattr(self.wrapped, "stream_function", self) is not None  # a FunctionModel may have none
        if hear is not None and streams:
            heard = Heard(hear)
            try:
                async with self.wrapped.request_stream(messages, settings, parameters) as stream:
                    async for event in stream:
                        match event:
                            case PartStartEvent(part=TextPart(content=text)):
                                heard(text)
                            case PartDeltaEvent(delta=TextPartDelta(content_delta=text)):
                                heard(text)
                    return self._reply(stream.get())
            except NotImplementedError:  # a model of one's own need not stream
                if heard.anything:
                    raise  # it was paid
        return self._reply(await self.wrapped.request(messages, settings, parameters))

    def _reply(self, response: ModelResponse) -> Reply:
        used = response.usage
        cached = used.cache_read_tokens + used.cache_write_tokens
        tokens = Tokens(
            input=max(0, used.input_tokens - cached),
            cache_read=used.cache_read_tokens,
            cache_write=used.cache_write_tokens,
            output=used.output_tokens,
        )
        return Reply(
            text=response.text or "",
            calls=tuple(
                ToolCall(call.tool_call_id, call.tool_name, _arguments(call.args_as_dict))
                for call in response.tool_calls
            ),
            usage=Usage(tokens=tokens.total, model_calls=1),
            tokens=tokens,
            stop=CUT if response.finish_reason == "length" else "",
            blocks=tuple(ModelMessagesTypeAdapter.dump_python([response], mode="json")),
            model=response.model_name or "",
            asked=self.wrapped.model_name,
            id=response.provider_response_id or "",
        )


def _arguments(read: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Return a call's arguments for people; the SDK itself tells the model what is wrong with them."""
    try:
        return read()
    except ValueError:
        return {}


def _prompt(agent: str, messages: list[ModelMessage], parameters: ModelRequestParameters) -> Prompt:
    """Return what the model is asked, equal whenever the same is asked."""
    brief, transcript = "", list[Exchange]()
    whole = ModelMessagesTypeAdapter.dump_python(messages, mode="json")
    system = [
        part.content
        for message in messages
        if isinstance(message, ModelRequest)
        for part in message.parts
        if isinstance(part, SystemPromptPart)
    ]
    system += [message.instructions or "" for message in messages[-1:] if isinstance(message, ModelRequest)]
    for message, dumped in zip(messages, whole, strict=True):
        if isinstance(message, ModelResponse):
            calls = (
                ToolCall(call.tool_call_id, call.tool_name, _arguments(call.args_as_dict))
                for call in message.tool_calls
            )
            kept = _without_added(dumped) | {"parts": [_without_added(part) for part in dumped["parts"]]}
            transcript.append(PastReply(message.text or "", tuple(calls), (kept,), message.model_name or ""))
            continue
        for part, shown in zip(message.parts, dumped["parts"], strict=True):
            if isinstance(part, SystemPromptPart):
                continue
            if isinstance(part, UserPromptPart) and isinstance(part.content, str) and not brief:
                brief = part.content
                continue
            content = getattr(part, "content", None)
            text = content if isinstance(content, str) else as_text(_without_added(shown))
            call, tool = getattr(part, "tool_call_id", None), getattr(part, "tool_name", None)
            transcript.append(ToolResult(call or "", tool or part.part_kind, text))
    tools = (*parameters.function_tools, *parameters.output_tools)
    specs = (ToolSpec(tool.name, tool.description or "", tool.parameters_json_schema) for tool in tools)
    return Prompt(agent, "\n\n".join(filter(None, system)), brief, tuple(specs), tuple(transcript))


def _without_added(part: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in part.items() if name not in _ADDED}


def _failure(error: Exception) -> TurnError | None:
    """Return what an error of a model means for the turn; None for an error of something else."""
    if not isinstance(error, ModelAPIError):
        return None
    text = words_of_error(error)
    match error:
        case ModelRateLimitError() | ModelOverloadedError():
            return ModelThrottled(text, after_s=error.retry_after)
        case ModelQuotaExceededError() | ModelRequestRejectedError():
            return ModelRefused(text)
        case ModelHTTPError():
            return failure_of_status(error.status_code, text, error.retry_after)
    return AskAgain(text, after_s=error.retry_after)


# --- tools ----------------------------------------------------------------------------------------


@dataclass
class _JournaledToolset(WrapperToolset[Any]):
    """All tools of a run: their calls are steps. The moves are among them."""

    round: AdaptedRound

    async def get_tools(self, ctx: RunContext[Any]) -> dict[str, ToolsetTool[Any]]:
        own = await self.wrapped.get_tools(ctx)
        self.round.require_effects(own)
        tools = {name: self._offered(tool) for name, tool in own.items() if not self.round.forbids(name)}
        for spec in self.round.moves:
            if spec.name in own:
                raise ToolsUnusable(f"{spec.name} is the name of a move; call the tool something else")
            definition = ToolDefinition(
                name=spec.name,
                description=spec.description,
                parameters_json_schema=dict(spec.schema),
                sequential=True,
            )
            tools[spec.name] = ToolsetTool(
                toolset=self, tool_def=definition, max_retries=_TRIES, args_validator=TOOL_SCHEMA_VALIDATOR
            )
        return tools

    def _offered(self, tool: ToolsetTool[Any]) -> ToolsetTool[Any]:
        """Return a tool as the run sees it: one that the run calls itself, effects one after the other."""
        definition = tool.tool_def
        alone = definition.sequential or definition.kind in _HELD or definition.name in self.round.how.effects
        kind = "function" if definition.kind in _HELD else definition.kind
        return _Journaled(
            toolset=self,
            tool_def=replace(definition, kind=kind, sequential=alone),
            max_retries=tool.max_retries,
            args_validator=tool.args_validator,
            args_validator_func=tool.args_validator_func,
            own=tool,
        )

    async def call_tool(
        self, name: str, tool_args: dict[str, Any], ctx: RunContext[Any], tool: ToolsetTool[Any]
    ) -> Any:
        if not isinstance(tool, _Journaled):
            try:
                return await self.round.outcome_of(self.round.read(name, tool_args))
            except ToolArgumentsInvalid as wrong:
                raise ModelRetry(str(wrong)) from wrong
        arguments = to_jsonable_python(tool_args, fallback=json_kind)
        if tool.own.tool_def.kind == "external":  # whoever runs the agent has its result: the client
            question = f"{self.round.turn.agent} waits for the result of {name} {as_text(arguments)}"
            return await self.round.outcome_of(self.round.turn.ask(question))
        run = partial(self._run, tool_args, ctx, tool.own)
        held = tool.own.tool_def.kind == "unapproved"
        try:
            try:
                value = await self.round.call(name, arguments, partial(run, held), approve=held)
            except ToolRefused as no:
                if no.reason != ApprovalWanted.code:
                    raise
                value = await self.round.call(name, arguments, partial(run, True), approve=True)
        except ToolRefused as no:
            if no.reason == TryAgain.code:
                raise ModelRetry(str(no)) from no
            raise ToolFailed(str(no)) from no
        is_whole = isinstance(value, dict) and value.get("kind") == "tool-return" and "return_value" in value
        return (_WHOLE if is_whole else tool_return_content_ta).validate_python(value)

    async def _run(
        self,
        arguments: dict[str, Any],
        ctx: RunContext[Any],
        tool: ToolsetTool[Any],
        approved: bool,
    ) -> Any:
        """Run a tool in its own toolset, and return its result as JSON."""
        name = tool.tool_def.name
        context = replace(ctx, tool_call_approved=True) if approved else ctx
        try:
            value = await self.wrapped.call_tool(name, arguments, context, tool)
        except ModelRetry as retry:
            if isinstance(retry.__context__, TimeoutError) and name in self.round.how.effects:
                raise EffectUnknown(f"{name} took too long: {short(retry.message)}") from retry
            raise TryAgain(retry.message) from retry
        except ToolFailed as failed:
            raise GaveNothing(str(failed)) from failed
        except ApprovalRequired as wanted:
            raise ApprovalWanted(f"{name} needs an approval") from wanted
        except CallDeferred as deferred:
            raise Permanent(f"{name} deferred its call, and nothing here would resume it") from deferred
        adapter = _WHOLE if isinstance(value, ToolReturn) else tool_return_content_ta
        return adapter.dump_python(value, mode="json", fallback=json_kind)


@dataclass(kw_only=True)
class _Journaled(ToolsetTool[Any]):
    """A tool of the existing agent's, as its own toolset knows it."""

    own: ToolsetTool[Any]
