"""OpenAI's models, or any server of its Chat Completions API (extra `[openai]`).

    model = OpenAIModel("qwen3", base_url="http://127.0.0.1:11434/v1")

A request is stable, so that the vendor's prompt cache helps: the system text, then the tools sorted by name,
then the brief. Every call is answered in the next messages, before anything else. A call without a result
gets an error as its result. If nothing followed a reply, the model is asked to go on.
"""

import os
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import msgspec

from mesh.model import parts
from mesh.model.port import PastReply, Prompt, PromptFile, Reply, ToolCall
from mesh.model.vendor import Section, VendorModel
from protocol.wire.commands import Usage
from protocol.wire.prices import Tokens

if TYPE_CHECKING:
    from openai import AsyncOpenAI

KEY, SERVER = "OPENAI_API_KEY", "OPENAI_BASE_URL"
_NO_KEY = "none"
"""Sent to your own server, which needs no key, because the SDK demands one."""
_STOPS = {
    "stop": "end_turn",
    "tool_calls": "tool_use",
    "function_call": "tool_use",
    "length": "max_tokens",
    "content_filter": "refusal",
}
"""Reasons to stop, as `mesh.model.loop` knows them. Any other ends the turn under its own name."""

THOUGHTS = ("reasoning_content", "reasoning")
"""Fields in which servers of other models return a model's thoughts, and want them back."""

# --- what is sent ---------------------------------------------------------------------------------


class _Messages(parts.Dialogue):
    def __init__(self, prompt: Prompt, own: Callable[[PastReply], bool]) -> None:
        """Put a prompt's messages together.

        Args:
            own: returns True for a reply of the model that is asked; another model's thoughts are left out.
        """
        self._own = own
        system = prompt.instructions.strip()
        super().__init__(
            prompt, *([{"role": "system", "content": parts.encodable(system)}] if system else [])
        )

    def _add_reply(self, past: PastReply) -> None:
        calls = [
            {
                "id": call.id,
                "type": "function",
                "function": {
                    "name": parts.tool_name(call.name),
                    "arguments": msgspec.json.encode(call.arguments).decode(),
                },
            }
            for call in past.calls
        ]
        text = parts.non_empty(past.text) if past.text.strip() or not calls else None
        reply: dict[str, Any] = {"role": "assistant", "content": text}
        if self._own(past):
            for block in past.blocks:
                reply |= {name: thought for name, thought in block.items() if name in THOUGHTS}
        self.messages.append({**reply, "tool_calls": calls} if calls else reply)
        self._open = [call.id for call in past.calls]

    def _answer(self, call: str, text: str, *, is_error: bool) -> None:
        self.messages.append({"role": "tool", "tool_call_id": call, "content": parts.non_empty(text)})

    def _say(self, texts: list[str]) -> None:
        if not texts and self.messages[-1]["role"] == "assistant":
            texts = [parts.GO_ON]
        if texts:
            self.messages.append({"role": "user", "content": "\n\n".join(map(parts.non_empty, texts))})

    def _show(self, files: Sequence[PromptFile]) -> None:
        content: list[dict[str, Any]] = [{"type": "text", "text": self.messages[-1]["content"]}]
        for file in files:
            content.append({"type": "text", "text": parts.encodable(file.label)})
            if file.note:
                continue
            if file.is_picture:
                content.append({"type": "image_url", "image_url": {"url": file.data_uri}})
            else:
                named = {"filename": parts.encodable(file.artifact.name), "file_data": file.data_uri}
                content.append({"type": "file", "file": named})
        self.messages[-1]["content"] = content


# --- what comes in --------------------------------------------------------------------------------


class StreamedCompletion(parts.Streamed):
    """The chunks of one reply, assembled. It is whole once a chunk has the reason why it ended.

    Token counts come in a separate chunk after that. A server that sends none is taken to charge for calls,
    not for tokens.
    """

    def __init__(self) -> None:
        self._text: list[str] = []
        self._thoughts: dict[str, str] = {}
        """By the field that they came in."""
        self._calls: list[dict[str, str]] = []
        """Id, name, and the JSON of the arguments so far."""
        self._newest: dict[object, dict[str, str]] = {}
        """The newest call by the vendor's index; None is the key of the newest of all."""
        self._stop = ""
        self._refused = self._begun = False
        self._usage: Mapping[str, Any] = {}
        self._model: object = None
        self._id: object = None

    def _taken(self, message: Any) -> str:
        choices = [{**each, "delta": each["message"]} for each in message.get("choices") or ()]
        return self._added({**message, "choices": choices})

    def _added(self, event: Mapping[str, Any]) -> str:
        self._model = event.get("model") or self._model
        self._id = event.get("id") or self._id
        self._usage = event.get("usage") or self._usage
        pieces = [self._grown(choice) for choice in event.get("choices") or () if not choice.get("index")]
        return "".join(pieces)

    def _grown(self, choice: Mapping[str, Any]) -> str:
        self._begun = True
        delta: Mapping[str, Any] = choice.get("delta") or {}
        for part in delta.get("tool_calls") or ():
            self._grow_call(part)
        for name in THOUGHTS:
            if thought := parts.text_of({name: delta.get(name) or ""}, name):
                self._thoughts[name] = self._thoughts.get(name, "") + thought
        self._refused = self._refused or bool(delta.get("refusal"))
        if choice.get("finish_reason") is not None:
            self._stop = parts.text_of(choice, "finish_reason")
        piece = parts.text_of({"content": delta.get("content") or ""}, "content")
        self._text.append(piece)
        return piece

    def _grow_call(self, part: Mapping[str, Any]) -> None:
        """Add a piece of a call. Servers leave out the index, or give several calls the same one."""
        made = parts.text_of({"id": part.get("id") or ""}, "id")
        function = part.get("function") or {}
        name, given = parts.text_of({"name": function.get("name") or ""}, "name"), function.get("arguments")
        index = part.get("index")
        call = self._newest.get(index)
        if call is None and not (made or name):
            raise ValueError("a piece of no call")
        if call is None or _begins_another(call, made, name):
            call = {"id": made, "name": "", "arguments": ""}
            self._calls.append(call)
        self._newest[index] = self._newest[None] = call
        call["id"] = call["id"] or made
        call["name"] += name
        written = msgspec.json.encode(given).decode() if isinstance(given, Mapping) else given
        call["arguments"] += parts.text_of({"arguments": written or ""}, "arguments")

    def reply(self, *, asked: str, taken: Iterable[str]) -> Reply:
        if not self._begun:
            raise parts.Unreadable("no message in it")
        if not self._stop:
            raise parts.BrokenOff("the stream ended before the message")
        tokens = _tokens(self._usage)
        return Reply(
            text=parts.encodable("".join(self._text)),
            calls=self._made({*taken}),
            usage=Usage(tokens=tokens.total, model_calls=1),
            tokens=tokens,
            stop="refusal" if self._refused else parts.stop_of(_STOPS.get(self._stop, self._stop)),
            blocks=tuple({name: parts.encodable(text)} for name, text in self._thoughts.items()),
            model=parts.model_of(self._model, asked),
            id=parts.id_of(self._id),
        )

    def _made(self, taken: set[str]) -> tuple[ToolCall, ...]:
        made = []
        for call in self._calls:
            given = parts.value_of(call["arguments"]) if call["arguments"].strip() else {}
            made.append(parts.call_of(call["name"], call["id"], given, taken))
            taken.add(made[-1].id)
        return tuple(made)


def _begins_another(call: Mapping[str, str], made: str, name: str) -> bool:
    """Return True if a piece begins another call: it has another id, or a name after complete arguments."""
    if made and call["id"]:
        return made != call["id"]
    return bool(name and call["arguments"]) and parts.value_of(call["arguments"]) is not None


def _tokens(usage: Mapping[str, Any]) -> Tokens:
    """Return tokens by kind; an invalid count is 0. The API's `prompt_tokens` are all input tokens."""
    return limited_tokens(
        parts.count_of(usage, "prompt_tokens"),
        usage.get("prompt_tokens_details"),
        parts.count_of(usage, "completion_tokens"),
        usage.get("completion_tokens_details"),
    )


def limited_tokens(prompt: int, in_detail: object, output: int, out_detail: object) -> Tokens:
    """Return tokens by kind; no detail is more than what it is part of."""
    cached = min(prompt, parts.count_of(in_detail, "cached_tokens"))
    written = min(prompt - cached, parts.count_of(in_detail, "cache_write_tokens"))
    return Tokens(
        input=prompt - cached - written,
        cache_read=cached,
        cache_write=written,
        output=output,
        thinking=min(output, parts.count_of(out_detail, "reasoning_tokens")),
    )


# --- the model -------------------------------------------------------------------------------------


_CHUNK = {"id": "", "object": "chat.completion.chunk", "created": 0, "model": ""}
_CALL = {"index": 0, "id": "", "type": "function", "function": {"name": "", "arguments": ""}}
_DELTA = {"role": "assistant", "content": "", "tool_calls": [_CALL]}
_REHEARSAL: tuple[Mapping[str, Any], ...] = (
    {**_CHUNK, "choices": [{"index": 0, "delta": _DELTA, "finish_reason": "tool_calls"}]},
    {**_CHUNK, "choices": [], "usage": {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0}},
)
"""Chunks with everything in a reply with text and a call."""


class OpenAIModel(VendorModel):
    """A model of OpenAI, or of a compatible server.

    Its `more` are arguments of `chat.completions.create`, such as `reasoning_effort`, or `max_tokens` for a
    server that knows no other limit.
    """

    vendor = provider = "openai"
    sdk = extra = "openai"
    keys = (KEY,)
    opened_by = (KEY, SERVER)
    price_list = "openai"
    error_code = "code"
    request_header = "x-request-id"

    def request(self, prompt: Prompt, model: str | None = None) -> dict[str, Any]:
        """Return exactly the request for `prompt`."""
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
        name = model or self.mode
        asked: dict[str, Any] = {
            "model": name,
            "max_completion_tokens": self._max_tokens,
            "messages": _Messages(prompt, own=lambda past: self.asked_of(past.model) == name).messages,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        return {**asked, **({"tools": tools} if tools else {}), **self._more}

    def printed(self, request: Mapping[str, Any]) -> Iterator[Section]:
        settings = dict(request)
        tools, messages = (settings.pop(part, ()) for part in ("tools", "messages"))
        yield Section("settings", (settings,))
        if tools:
            yield Section("tools", tuple(tools))
        for message in messages:
            for part in (message["content"], *message.get("tool_calls", ())):
                if part is not None:
                    yield Section(message["role"], (part,))

    def _connected(self, **more: Any) -> "AsyncOpenAI":
        from openai import AsyncOpenAI

        own_server = self._base_url or os.environ.get(SERVER)
        return AsyncOpenAI(
            api_key=self._api_key or os.environ.get(KEY) or (_NO_KEY if own_server else None),
            base_url=self._base_url,
            timeout=self._timeout_s,
            max_retries=0,
            **more,
        )

    def _rehearsal(self, transport: Any) -> tuple["AsyncOpenAI", Iterable[Mapping[str, Any]]]:
        return self._connected(http_client=transport), _REHEARSAL

    def _streamed(self) -> parts.Streamed:
        return StreamedCompletion()

    @asynccontextmanager
    async def _stream(self, request: Mapping[str, Any]) -> AsyncIterator[Any]:
        async with await self._client.chat.completions.create(**request) as stream:
            yield stream


VENDOR = OpenAIModel
