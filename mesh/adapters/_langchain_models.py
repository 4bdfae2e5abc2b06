"""Calls of LangChain's chat models as steps, with the moves among their tools."""

import functools
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from typing import Any

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import (
    AIMessage,
    BaseMessage,
    HumanMessage,
    SystemMessage,
    ToolMessage,
    message_to_dict,
    messages_from_dict,
)
from langchain_core.outputs import ChatGeneration, ChatResult
from pydantic_core import to_jsonable_python

from mesh.adapters._langchain import HEAR, GraphRound, active, from_thread, on_loop
from mesh.adapters._model import ForeignModel, failure_of, json_kind
from mesh.agent.errors import ToolArgumentsInvalid, ToolsUnusable
from mesh.model.loop import MAX_CALLS, ModelGaveUp
from mesh.model.port import Exchange, Hear, PastReply, Prompt, Reply, ToolCall, ToolResult, ToolSpec
from mesh.model.results import as_text
from protocol.wire.commands import Usage
from protocol.wire.prices import Tokens

Ask = Callable[[list[BaseMessage], dict[str, Any]], Awaitable[ChatResult]]

_TOGETHER = "Not done: it was said together with a move."


class _ModelCall:
    """One call of a chat model: a step, and another one after each move that an earlier round made."""

    def __init__(self, model: BaseChatModel, round_: GraphRound, run_manager: Any, ask: Ask) -> None:
        self._model, self._round, self._ask = model, round_, ask
        metadata = getattr(run_manager, "metadata", None) or {}
        self._node = str(metadata.get("langgraph_node", ""))

    async def result(self, messages: list[BaseMessage], options: dict[str, Any]) -> ChatResult:
        steps = self._round.steps
        if tools := options.get("tools"):
            self._round.tools |= {_spec(each).name for each in tools}
            options = options | {"tools": [each for each in tools if not steps.forbids(_spec(each).name)]}
        if steps.moves and self._is_offered(options):
            options = options | {"tools": [*options.get("tools", ()), *self._moves()]}
        for _ in range(MAX_CALLS):
            said = await self._reply(messages, options)
            move = next((call for call in said.tool_calls if steps.is_move(call["name"])), None)
            if move is None:
                return ChatResult(generations=[ChatGeneration(message=said)])
            try:
                text = await steps.outcome_of(steps.read(move["name"], move["args"]))
            except ToolArgumentsInvalid as wrong:
                text = str(wrong)
            results = [
                ToolMessage(text if call is move else _TOGETHER, tool_call_id=call["id"], name=call["name"])
                for call in said.tool_calls
            ]
            messages = [*messages, said, *results]
        raise ModelGaveUp(f"{steps.turn.agent} came to no move within {MAX_CALLS} calls")

    def _is_offered(self, options: Mapping[str, Any]) -> bool:
        if self._round.offered_in:
            return self._node in self._round.offered_in
        return bool(options.get("tools"))

    def _moves(self) -> list[Any]:
        """Return the moves as tools in the form that this model's vendor takes."""
        specs = [{"type": "function", "function": _function(spec)} for spec in self._round.steps.moves]
        try:
            return list(self._model.bind_tools(specs).kwargs["tools"])  # type: ignore[attr-defined]
        except (NotImplementedError, AttributeError, KeyError) as unable:
            raise ToolsUnusable(
                f"{type(self._model).__name__} takes no tools: it cannot hand off"
            ) from unable

    async def _reply(self, messages: list[BaseMessage], options: dict[str, Any]) -> AIMessage:
        async def ask(hear: Hear | None) -> Reply:
            token = HEAR.set(hear)
            try:
                found = await self._ask(messages, options)
            finally:
                HEAR.reset(token)
            return _reply_of(found.generations[0].message, name)

        model = self._model
        name = str(getattr(model, "model_name", "") or getattr(model, "model", "") or model._llm_type)
        prompt = _prompt(self._round.steps.turn.agent, messages, options.get("tools", ()))
        reply = await self._round.steps.reply(ForeignModel(name, ask, failure_of), prompt)
        (said,) = messages_from_dict([dict(block) for block in reply.blocks])
        assert isinstance(said, AIMessage)
        return said


def _function(spec: ToolSpec) -> dict[str, Any]:
    return {"name": spec.name, "description": spec.description, "parameters": dict(spec.schema)}


def _reply_of(said: BaseMessage, name: str) -> Reply:
    used: Mapping[str, Any] = getattr(said, "usage_metadata", None) or {}
    details = used.get("input_token_details") or {}
    read, written = details.get("cache_read") or 0, details.get("cache_creation") or 0
    tokens = Tokens(
        input=max(0, used.get("input_tokens", 0) - read - written),
        cache_read=read,
        cache_write=written,
        output=used.get("output_tokens", 0),
    )
    return Reply(
        text=str(said.text),
        calls=_calls(said),
        usage=Usage(tokens=tokens.total, model_calls=1),
        tokens=tokens,
        blocks=(to_jsonable_python(message_to_dict(said), fallback=json_kind),),
        model=str(said.response_metadata.get("model_name") or name),
        asked=name,
        id=said.id or "",
    )


def _calls(said: BaseMessage) -> tuple[ToolCall, ...]:
    made = getattr(said, "tool_calls", ())
    return tuple(ToolCall(call["id"] or "", call["name"], call["args"]) for call in made)


def _prompt(agent: str, messages: Sequence[BaseMessage], tools: Sequence[Any]) -> Prompt:
    """Return what the model is asked, equal whenever the same is asked."""
    system, brief, transcript = list[str](), "", list[Exchange]()
    for message in messages:
        if isinstance(message, SystemMessage):
            system.append(str(message.text))
        elif isinstance(message, ToolMessage):
            shown = to_jsonable_python(message.content, fallback=json_kind)
            failed = message.status == "error"
            transcript.append(ToolResult(message.tool_call_id, message.name or "", as_text(shown), failed))
        elif isinstance(message, HumanMessage) and not brief and isinstance(message.content, str):
            brief = message.content
        else:
            kept = to_jsonable_python(message_to_dict(message), fallback=json_kind)
            kept["data"].pop("id", None)  # LangGraph gives every message one of its own in each run
            transcript.append(PastReply(str(message.text), _calls(message), (kept,)))
    return Prompt(agent, "\n\n".join(system), brief, tuple(map(_spec, tools)), tuple(transcript))


def _spec(tool: Any) -> ToolSpec:
    """Return a tool that is bound to a model in its vendor's form."""
    shown = to_jsonable_python(tool, fallback=json_kind)
    inner = shown.get("function", shown) if isinstance(shown, dict) else {}
    if isinstance(inner, dict) and isinstance(inner.get("name"), str):
        schema = inner.get("parameters") or inner.get("input_schema") or {}
        return ToolSpec(inner["name"], str(inner.get("description", "")), schema)
    return ToolSpec("", "", {"tool": shown})


# --- where they are called ---


def watch_models() -> None:
    """Let langchain-core's calls of chat models look for a turn."""
    asynchronous, synchronous = BaseChatModel._agenerate_with_cache, BaseChatModel._generate_with_cache

    @functools.wraps(asynchronous)
    async def agenerate(
        self: BaseChatModel,
        messages: list[BaseMessage],
        stop: Any = None,
        run_manager: Any = None,
        **options: Any,
    ) -> ChatResult:
        async def ask(asked: list[BaseMessage], given: dict[str, Any]) -> ChatResult:
            return await asynchronous(self, asked, stop=stop, run_manager=run_manager, **given)

        round_ = active()
        if round_ is None:
            return await ask(messages, options)
        return await _ModelCall(self, round_, run_manager, ask).result(messages, options)

    @functools.wraps(synchronous)
    def generate(
        self: BaseChatModel,
        messages: list[BaseMessage],
        stop: Any = None,
        run_manager: Any = None,
        **options: Any,
    ) -> ChatResult:
        def asked_here(asked: list[BaseMessage], given: dict[str, Any]) -> ChatResult:
            return synchronous(self, asked, stop=stop, run_manager=run_manager, **given)

        round_ = active()
        if round_ is None:
            return asked_here(messages, options)

        def call(here: Callable[[Callable[[], Any]], Awaitable[Any]]) -> Coroutine[Any, Any, ChatResult]:
            async def ask(asked: list[BaseMessage], given: dict[str, Any]) -> ChatResult:
                hear = HEAR.get()

                def work() -> ChatResult:
                    token = HEAR.set(on_loop(round_.loop, hear))
                    try:
                        return asked_here(asked, given)
                    finally:
                        HEAR.reset(token)

                result: ChatResult = await here(work)
                return result

            return _ModelCall(self, round_, run_manager, ask).result(messages, options)

        return from_thread(round_.loop, call)

    BaseChatModel._agenerate_with_cache = agenerate  # type: ignore[method-assign]
    BaseChatModel._generate_with_cache = generate  # type: ignore[method-assign]
