"""OpenAI's models over its Responses API (extra `[openai]`).

A model that reasons wants its thoughts back with the calls that they led to. The vendor encrypts them; they
travel in the reply's blocks, so the journal keeps them like everything else that a model replied. Nothing is
stored at the vendor, and `previous_response_id` is never sent: it would be state outside the log.
"""

from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import msgspec

from mesh.model import parts
from mesh.model.port import PastReply, Prompt, PromptFile, Reply, ToolCall
from mesh.model.vendor import Section
from mesh.model.vendors.openai import OpenAIModel, limited_tokens
from protocol.wire.commands import Usage
from protocol.wire.prices import Tokens

if TYPE_CHECKING:
    from openai import AsyncOpenAI

MESSAGE, REASONING, CALL = "message", "reasoning", "function_call"
"""Types of output items. Items of any other type are left out: no tool of the vendor's own is offered."""
_SEALED = "encrypted_content"
"""Field of a reasoning item with what the vendor reads of it again."""
_ENDS = frozenset({"response.completed", "response.incomplete", "response.failed"})
"""Events that bring the whole response; nothing follows."""
_CUT = {"max_output_tokens": "max_tokens", "content_filter": "refusal"}
"""Reasons of an incomplete response, as `mesh.model.loop` knows them."""

# --- what is sent ---------------------------------------------------------------------------------


class _Items(parts.Dialogue):
    def __init__(self, prompt: Prompt, own: Callable[[PastReply], bool]) -> None:
        """Put a prompt's input items together.

        Args:
            own: returns True for a reply of the model that is asked; another model's thoughts are left out.
        """
        self._own = own
        super().__init__(prompt)

    def _add_reply(self, said: PastReply) -> None:
        calls = {call.id: call for call in said.calls}
        kept = said.blocks if self._own(said) else ()
        items = [item for block in kept if (item := _again(block, calls)) is not None]
        while items and items[-1].get("type") == REASONING:  # the vendor refuses thoughts that led to nothing
            items.pop()
        if not items:
            text = [_assistant(said.text)] if said.text.strip() or not calls else []
            items = [*text, *map(_call, said.calls)]
        self.messages += items
        self._open = list(calls)

    def _answer(self, call: str, text: str, *, is_error: bool) -> None:
        output = parts.non_empty(text)
        self.messages.append({"type": "function_call_output", "call_id": call, "output": output})

    def _say(self, texts: list[str]) -> None:
        if not texts and self.messages[-1].get("role") == "assistant":
            texts = [parts.GO_ON]
        if texts:
            self.messages.append({"role": "user", "content": "\n\n".join(map(parts.non_empty, texts))})

    def _show(self, files: Sequence[PromptFile]) -> None:
        content: list[dict[str, Any]] = [{"type": "input_text", "text": self.messages[-1]["content"]}]
        for file in files:
            content.append({"type": "input_text", "text": parts.encodable(file.label)})
            if file.note:
                continue
            if file.is_picture:
                content.append({"type": "input_image", "image_url": file.data_uri, "detail": "auto"})
            else:
                name = parts.encodable(file.artifact.name)
                content.append({"type": "input_file", "filename": name, "file_data": file.data_uri})
        self.messages[-1]["content"] = content


def _again(block: Mapping[str, Any], calls: Mapping[str, ToolCall]) -> dict[str, Any] | None:
    """Return a block of a reply as an input item; None for one that cannot go back."""
    match block.get("type"):
        case "reasoning":
            return dict(block)
        case "message":
            return _assistant(str(block.get("text", "")))
        case "function_call" if (call := calls.get(str(block.get("call_id")))) is not None:
            return _call(call)
    return None


def _assistant(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": parts.non_empty(text)}


def _call(call: ToolCall) -> dict[str, Any]:
    arguments = msgspec.json.encode(call.arguments).decode()
    return {"type": CALL, "call_id": call.id, "name": parts.tool_name(call.name), "arguments": arguments}


# --- what comes in --------------------------------------------------------------------------------


class StreamedResponse(parts.Streamed):
    """One response. Its text comes in pieces; the event that ends it has the whole response once more."""

    def __init__(self) -> None:
        self._whole: Mapping[str, Any] | None = None

    def _taken(self, message: Any) -> str:
        self._whole = message
        return "\n".join(_texts(message))

    def _added(self, event: Mapping[str, Any]) -> str:
        if event["type"] == "response.output_text.delta":
            return parts.text_of(event, "delta")
        if event["type"] in _ENDS:
            self._taken(event["response"])
            self.ended = True
        return ""

    def reply(self, *, asked: str, taken: Iterable[str]) -> Reply:
        if self._whole is None:
            raise parts.BrokenOff("the stream ended before the response")
        try:
            return _reply_of(self._whole, asked, {*taken})
        except (AttributeError, KeyError, TypeError, ValueError) as wrong:
            raise parts.Unreadable(f"a response that is none: {type(wrong).__name__}") from wrong


def _reply_of(response: Mapping[str, Any], asked: str, taken: set[str]) -> Reply:
    if response.get("status") == "failed":
        error = response.get("error") or {}
        raise parts.BrokenOff(f"it failed: {parts.stop_of(str(error.get('code') or 'without a code'))}")
    calls: list[ToolCall] = []
    blocks: list[Mapping[str, Any]] = []
    for item in response["output"]:
        if item["type"] == REASONING and item.get(_SEALED):
            seal = {name: parts.encodable(parts.text_of(item, name)) for name in ("id", _SEALED)}
            blocks.append({"type": REASONING, "summary": [], **seal})
        elif item["type"] == MESSAGE:
            blocks.append({"type": MESSAGE, "text": "\n".join(_texts({"output": [item]}))})
        elif item["type"] == CALL:
            given = parts.value_of(item["arguments"]) if item["arguments"].strip() else {}
            calls.append(parts.call_of(item["name"], item["call_id"], given, taken))
            taken.add(calls[-1].id)
            blocks.append({"type": CALL, "call_id": calls[-1].id})
    tokens = _tokens(response.get("usage"))
    return Reply(
        text="\n".join(_texts(response)),
        calls=tuple(calls),
        usage=Usage(tokens=tokens.total, model_calls=1),
        tokens=tokens,
        stop=_stop(response, bool(calls)),
        blocks=tuple(blocks),
        model=parts.model_of(response.get("model"), asked),
        id=parts.id_of(response.get("id")),
    )


def _texts(response: Mapping[str, Any]) -> Iterator[str]:
    for content in _contents(response):
        if content["type"] == "output_text" and content["text"].strip():
            yield parts.encodable(content["text"])


def _contents(response: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    for item in response["output"]:
        if item["type"] == MESSAGE:
            yield from item["content"]


def _stop(response: Mapping[str, Any], has_calls: bool) -> str:
    """Return why the model stopped, as `mesh.model.loop` knows it."""
    if response.get("status") == "incomplete":
        reason = str((response.get("incomplete_details") or {}).get("reason") or "incomplete")
        return _CUT.get(reason, parts.stop_of(reason))
    if any(content["type"] == "refusal" for content in _contents(response)):
        return "refusal"
    return "tool_use" if has_calls else "end_turn"


def _tokens(usage: Any) -> Tokens:
    """Return tokens by kind; an invalid count is 0. The API's `input_tokens` are all that went in."""
    counts = usage if isinstance(usage, Mapping) else {}
    return limited_tokens(
        parts.count_of(counts, "input_tokens"),
        counts.get("input_tokens_details"),
        parts.count_of(counts, "output_tokens"),
        counts.get("output_tokens_details"),
    )


# --- the model -------------------------------------------------------------------------------------


_RESPONSE = {
    "id": "",
    "object": "response",
    "created_at": 0,
    "model": "",
    "status": "completed",
    "parallel_tool_calls": True,
    "tool_choice": "auto",
    "tools": [],
    "output": [
        {
            "type": MESSAGE,
            "id": "",
            "role": "assistant",
            "status": "completed",
            "content": [{"type": "output_text", "text": "", "annotations": []}],
        },
        {"type": CALL, "id": "", "call_id": "", "name": "", "arguments": "{}", "status": "completed"},
    ],
}
_TEXT = {"item_id": "", "output_index": 0, "content_index": 0, "logprobs": [], "delta": ""}
_REHEARSAL: tuple[Mapping[str, Any], ...] = (
    {"type": "response.output_text.delta", "sequence_number": 0, **_TEXT},
    {"type": "response.completed", "sequence_number": 1, "response": _RESPONSE},
)
"""Events with all that a response of words and a call has."""


class ResponsesModel(OpenAIModel):
    """One model, asked over the Responses API.

    Its `more` are arguments of `responses.create`, as `reasoning={"effort": "low"}`.
    """

    vendor = "openai_responses"

    def request(self, prompt: Prompt, model: str | None = None) -> dict[str, Any]:
        """Return exactly the request for `prompt`."""
        tools = [
            {
                "type": "function",
                "name": tool.name,
                "description": tool.description,
                "parameters": dict(tool.schema),
                "strict": False,
            }
            for tool in sorted(prompt.tools, key=lambda tool: tool.name)
        ]
        name, system = model or self.mode, prompt.instructions.strip()
        asked: dict[str, Any] = {
            "model": name,
            "max_output_tokens": self._max_tokens,
            "input": _Items(prompt, own=lambda said: self.asked_of(said.model) == name).messages,
            "store": False,
            "include": [f"{REASONING}.{_SEALED}"],
            "stream": True,
        }
        instructions = {"instructions": parts.encodable(system)} if system else {}
        return {**asked, **instructions, **({"tools": tools} if tools else {}), **self._more}

    def printed(self, request: Mapping[str, Any]) -> Iterator[Section]:
        settings = dict(request)
        tools, items = (settings.pop(part, ()) for part in ("tools", "input"))
        system = settings.pop("instructions", "")
        yield Section("settings", (settings,))
        if tools:
            yield Section("tools", tuple(tools))
        if system:
            yield Section("system", (system,))
        for item in items:
            yield (
                Section(item["role"], (item["content"],))
                if "role" in item
                else Section(item["type"], (item,))
            )

    def _rehearsal(self, transport: Any) -> tuple["AsyncOpenAI", Iterable[Mapping[str, Any]]]:
        return self._connected(http_client=transport), _REHEARSAL

    def _streamed(self) -> parts.Streamed:
        return StreamedResponse()

    @asynccontextmanager
    async def _stream(self, request: Mapping[str, Any]) -> AsyncIterator[Any]:
        async with await self._client.responses.create(**request) as stream:
            yield stream


VENDOR = ResponsesModel
