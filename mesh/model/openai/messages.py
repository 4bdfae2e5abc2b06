"""A prompt as the Chat Completions API takes it, and its streamed reply as ours: pure, without the SDK.

A request is stable, so that the vendor's prompt cache helps: the system text, then the tools sorted by name,
then the brief. Every call is answered in the next messages, before anything else; a call without a result
gets an error as its result, and a reply that nothing followed is asked to go on.
"""

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from mesh.model.parts import (
    GO_ON,
    NOT_DONE,
    BrokenOff,
    Unreadable,
    call_of,
    count_of,
    encodable,
    model_of,
    said_or_nothing,
    stop_of,
    text_of,
    tool_name,
    value_of,
)
from mesh.model.port import Prompt, Reply, Said, ToolCall, ToolResult
from protocol.wire.commands import Usage
from protocol.wire.prices import Tokens

_STOPS = {
    "stop": "end_turn",
    "tool_calls": "tool_use",
    "function_call": "tool_use",
    "length": "max_tokens",
    "content_filter": "refusal",
}
"""Reasons to stop, as `mesh.model.loop` knows them. Another one ends the turn under its own name."""

Message = dict[str, Any]


# --- what is sent ---------------------------------------------------------------------------------


def request_of(prompt: Prompt, *, model: str, max_tokens: int, more: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of `chat.completions.create`.

    Args:
        max_tokens: of the reply, thinking included.
        more: further arguments as the API has them, for instance `reasoning_effort`.
    """
    tools = [
        {
            "type": "function",
            "function": {
                "name": tool.name,
                "description": tool.description,
                "parameters": dict(tool.schema),
            },
        }
        for tool in sorted(prompt.tools, key=lambda tool: tool.name)
    ]
    messages = _Messages(prompt)
    for each in prompt.transcript:
        if isinstance(each, Said):
            messages.add_reply(each)
        else:
            messages.add_result(each)
    asked: dict[str, Any] = {
        "model": model,
        "max_completion_tokens": max_tokens,
        "messages": messages.whole(),
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    return {**asked, **({"tools": tools} if tools else {}), **more}


class _Messages:
    """The messages of a request while they are put together."""

    def __init__(self, prompt: Prompt) -> None:
        system = prompt.instructions.strip()
        self._messages: list[Message] = [{"role": "system", "content": encodable(system)}] if system else []
        self._texts = [prompt.brief]
        """Of the next message to the model."""
        self._open: list[str] = []
        """Ids of the last reply's calls without a result yet."""

    def add_reply(self, said: Said) -> None:
        self._end_of_message()
        calls = [
            {
                "id": call.id,
                "type": "function",
                "function": {
                    "name": tool_name(call.name),
                    "arguments": msgspec.json.encode(call.arguments).decode(),
                },
            }
            for call in said.calls
        ]
        text = said_or_nothing(said.text) if said.text.strip() or not calls else None
        reply: Message = {"role": "assistant", "content": text}
        self._messages.append({**reply, "tool_calls": calls} if calls else reply)
        self._open = [call.id for call in said.calls]

    def add_result(self, result: ToolResult) -> None:
        """Add a call's result. A result of no open call is a remark."""
        if result.call not in self._open:
            self._texts.append(result.text)
            return
        self._open.remove(result.call)
        self._add_tool(result.call, result.text)

    def whole(self) -> list[Message]:
        self._end_of_message()
        return self._messages

    def _add_tool(self, call: str, text: str) -> None:
        said = said_or_nothing(text)
        self._messages.append({"role": "tool", "tool_call_id": call, "content": said})

    def _end_of_message(self) -> None:
        """Complete what goes to the model, so that the model is next to speak."""
        for call in self._open:
            self._add_tool(call, NOT_DONE)
        if not self._texts and self._messages[-1]["role"] == "assistant":
            self._texts = [GO_ON]
        if self._texts:
            content = "\n\n".join(map(said_or_nothing, self._texts))
            self._messages.append({"role": "user", "content": content})
        self._texts, self._open = [], []


# --- what comes in --------------------------------------------------------------------------------


class StreamedCompletion:
    """The chunks of one reply, added up. It is whole once a chunk says why it ended.

    Counts of tokens come in a chunk of their own, behind that; a server that sends none is taken to be free
    of tokens, not of calls.
    """

    ended = False

    def __init__(self) -> None:
        self._text: list[str] = []
        self._calls: dict[int, dict[str, str]] = {}
        """By the vendor's index: id, name, and the JSON of the arguments so far."""
        self._stop = ""
        self._refused = self._begun = False
        self._usage: Mapping[str, Any] = {}
        self._model: object = None

    def take(self, event: Mapping[str, Any]) -> str:
        """Add a chunk; return its piece of text, empty if it has none. Raises Unreadable."""
        try:
            return self._added(event)
        except (AttributeError, KeyError, TypeError, ValueError) as wrong:
            raise Unreadable(f"a chunk that is none: {type(wrong).__name__}") from wrong

    def _added(self, chunk: Mapping[str, Any]) -> str:
        self._model = chunk.get("model") or self._model
        self._usage = chunk.get("usage") or self._usage
        pieces = [self._grown(choice) for choice in chunk.get("choices") or () if not choice.get("index")]
        return "".join(pieces)

    def _grown(self, choice: Mapping[str, Any]) -> str:
        self._begun = True
        delta: Mapping[str, Any] = choice.get("delta") or {}
        for part in delta.get("tool_calls") or ():
            call = self._calls.setdefault(int(part["index"]), {"id": "", "name": "", "arguments": ""})
            function = part.get("function") or {}
            call["id"] = call["id"] or text_of({"id": part.get("id") or ""}, "id")
            for name in ("name", "arguments"):
                call[name] += text_of({name: function.get(name) or ""}, name)
        self._refused = self._refused or bool(delta.get("refusal"))
        if choice.get("finish_reason") is not None:
            self._stop = text_of(choice, "finish_reason")
        piece = text_of({"content": delta.get("content") or ""}, "content")
        self._text.append(piece)
        return piece

    def reply(self, *, asked: str, taken: Iterable[str]) -> Reply:
        """Return the whole reply. Raises BrokenOff, Unreadable."""
        if not self._begun:
            raise Unreadable("no message in it")
        if not self._stop:
            raise BrokenOff("the stream ended before the message")
        tokens = _tokens(self._usage)
        return Reply(
            text=encodable("".join(self._text)),
            calls=self._made({*taken}),
            usage=Usage(tokens=tokens.total, model_calls=1),
            tokens=tokens,
            stop="refusal" if self._refused else stop_of(_STOPS.get(self._stop, self._stop)),
            model=model_of(self._model, asked),
        )

    def _made(self, taken: set[str]) -> tuple[ToolCall, ...]:
        made = []
        for _, said in sorted(self._calls.items()):
            given = value_of(said["arguments"]) if said["arguments"].strip() else {}
            made.append(call_of(said["name"], said["id"], given, taken))
            taken.add(made[-1].id)
        return tuple(made)


def _tokens(usage: Mapping[str, Any]) -> Tokens:
    """Return tokens by kind; an invalid count is 0. The API's `prompt_tokens` are all that went in."""
    prompt, details = count_of(usage, "prompt_tokens"), usage.get("prompt_tokens_details")
    cached = min(prompt, count_of(details, "cached_tokens"))
    written = min(prompt - cached, count_of(details, "cache_write_tokens"))
    output = count_of(usage, "completion_tokens")
    return Tokens(
        input=prompt - cached - written,
        cache_read=cached,
        cache_write=written,
        output=output,
        thinking=min(output, count_of(usage.get("completion_tokens_details"), "reasoning_tokens")),
    )
