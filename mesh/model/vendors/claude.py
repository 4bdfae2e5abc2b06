"""Claude: prompts for the Messages API, its streamed replies read back, and the SDK.

A request is stable, so that the vendor's prompt cache helps: the system text first, then the tools sorted by
name, then the brief. One marker ends the part that is equal for every turn of an agent; another one ends the
conversation so far.

In a conversation the two sides alternate, and every call is answered in the next message, before anything
else. A call without a result gets an error as its result. If nothing followed a reply, the model is asked to
go on, unless it stopped among the vendor's own tools: then it continues by itself.

A reply goes back as it came, without the blocks that the API refuses. These are empty texts, unknown blocks,
and thoughts that are unsigned, last, moved or another model's. Thoughts are bound to all text before them.
Once a block of a reply is left out or changed, its later thoughts are left out.
"""

import os
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import msgspec

from mesh.model import parts
from mesh.model.port import PastReply, Prompt, PromptFile, Reply, ToolCall
from mesh.model.vendor import Section, VendorModel
from mesh.telemetry import tracing
from protocol.wire import codec
from protocol.wire.commands import Usage
from protocol.wire.prices import Tokens

if TYPE_CHECKING:
    from anthropic import AsyncAnthropic, AsyncMessageStream, AsyncStream
    from anthropic.types import RawMessageStreamEvent

    _AnyStream = AsyncStream[RawMessageStreamEvent] | AsyncMessageStream[None]

ROUTING = "claude-haiku-5-5"
"""Cheap and quick: for agents that route."""
WORK = "claude-sonnet-5-5"
HARD = "claude-opus-5-5"

KEY = "ANTHROPIC_API_KEY"
CACHED = {"type": "ephemeral"}
THOUGHTS = frozenset({"thinking", "redacted_thinking"})
OWN_TOOLS = frozenset(
    {
        "server_tool_use",
        "web_search_tool_result",
        "web_fetch_tool_result",
        "code_execution_tool_result",
        "bash_code_execution_tool_result",
        "text_editor_code_execution_tool_result",
        "tool_search_tool_result",
    }
)
"""The vendor's own tools, which it runs in the middle of a reply."""
_KNOWN = frozenset({"text", "tool_use", "container_upload", *THOUGHTS, *OWN_TOOLS})
_AT_THE_END = ("stop_reason", "stop_sequence", "stop_details")
"""Known only when a message ends."""

Block = dict[str, Any]


# --- what is sent ---------------------------------------------------------------------------------


class _Messages(parts.Dialogue):
    def __init__(self, prompt: Prompt, own: Callable[[PastReply], bool]) -> None:
        """Put a prompt's messages together.

        Args:
            own: returns True for a reply of the model that is asked; another model's thoughts are left out.
        """
        self._own = own
        self._results: list[Block] = []
        self._goes_on = False
        """True if the last reply used the vendor's own tools."""
        super().__init__(prompt)

    def _add_reply(self, past: PastReply) -> None:
        blocks = _blocks_back(past, with_thoughts=self._own(past))
        if self.messages[-1]["role"] == "assistant":
            self.messages[-1]["content"] += blocks
        else:
            self.messages.append({"role": "assistant", "content": blocks})
        self._open = [block["id"] for block in blocks if block["type"] == "tool_use"]
        self._goes_on = any(block["type"] in OWN_TOOLS for block in blocks)

    def _answer(self, call: str, text: str, *, is_error: bool) -> None:
        result = {"type": "tool_result", "tool_use_id": call, "content": parts.non_empty(text)}
        self._results.append({**result, "is_error": True} if is_error else result)

    def _say(self, texts: list[str]) -> None:
        content = [*self._results, *map(_text, texts)]
        if not content and not self._goes_on:
            content = [_text(parts.GO_ON)]
        if content:
            self.messages.append({"role": "user", "content": content})
        self._results = []

    def _show(self, files: Sequence[PromptFile]) -> None:
        for file in files:
            self.messages[-1]["content"].append(_text(parts.encodable(file.label)))
            if not file.note:
                self.messages[-1]["content"].append(_file(file))

    def marked(self) -> list[dict[str, Any]]:
        """Return the messages, with a cache marker on the last block that can have one."""
        last: list[Block] = self.messages[-1]["content"]
        at = max(index for index, block in enumerate(last) if block["type"] not in THOUGHTS)
        last[at] = {**last[at], "cache_control": CACHED}
        return self.messages


def _text(text: str) -> Block:
    return {"type": "text", "text": parts.non_empty(text)}


def _file(file: PromptFile) -> Block:
    source = {"type": "base64", "media_type": file.artifact.media_type, "data": file.base64}
    return {"type": "image" if file.is_picture else "document", "source": source}


def _blocks_back(past: PastReply, *, with_thoughts: bool) -> list[Block]:
    """Return a reply as it is sent back: at least one block, and no thought at the end."""
    blocks: list[Block] = []
    unchanged = True
    for came in past.blocks or _plain(past):
        back = _block_back(came)
        if came.get("type") in THOUGHTS and not (with_thoughts and unchanged):
            back = None
        unchanged = unchanged and back == came
        if back is not None:
            blocks.append(back)
    while blocks and blocks[-1]["type"] in THOUGHTS:
        blocks.pop()
    return blocks or [_text("")]


def _plain(past: PastReply) -> list[Block]:
    made = [
        {"type": "tool_use", "id": call.id, "name": call.name, "input": dict(call.arguments)}
        for call in past.calls
    ]
    return [{"type": "text", "text": past.text}, *made]


def _block_back(block: Mapping[str, Any]) -> Block | None:
    """Return a block as the API accepts it; None if it refuses it."""
    match block.get("type"):
        case "text" if not block["text"].strip():
            return None
        case "tool_use":
            name, given = parts.tool_name(block["name"]), block["input"]
            return {**block, "name": name, "input": dict(given) if isinstance(given, Mapping) else {}}
        case "thinking" if not block.get("signature"):
            return None
        case "redacted_thinking" if not block.get("data"):
            return None
        case kind if kind in _KNOWN:
            return dict(block)
    return None


# --- what comes in ------------------------------------------------------------------------------------


class StreamedMessage(parts.Streamed):
    """The events of one reply, assembled into its message.

    The SDK assembles them, too. But it takes a stream that ends early for a whole message, and it loses the
    whole reply if one call's arguments are not JSON. Here a message is whole only after its `message_stop`,
    and a call's arguments are parsed once all pieces have arrived.
    """

    def __init__(self) -> None:
        self._message: dict[str, Any] | None = None
        self._blocks: dict[int, Block] = {}
        """By the vendor's index, in order of their beginning."""
        self._written: dict[int, str] = {}
        """The JSON of calls' arguments so far, by the same index."""

    def reply(self, *, asked: str, taken: Iterable[str]) -> Reply:
        return reply_of(self.message(), asked=asked, taken=taken)

    def message(self) -> Block:
        """Return the message as the API gives it without a stream. Raises BrokenOff, Unreadable.

        An unreadable `input` is None.
        """
        if self._message is None:
            raise parts.Unreadable("no message in it")
        if not self.ended:
            raise parts.BrokenOff("the stream ended before the message")
        if self._message.get("stop_reason") is None:
            raise parts.BrokenOff("the message does not say why it ended")
        content = [
            {**block, "input": parts.value_of(written)} if (written := self._written.get(index)) else block
            for index, block in self._blocks.items()
        ]
        return {**self._message, "content": content}

    def _taken(self, message: Any) -> str:
        self._added({"type": "message_start", "message": message})
        self.ended = True
        texts = (block.get("text", "") for block in self._blocks.values() if block["type"] == "text")
        return "".join(parts.text_of({"text": text}, "text") for text in texts)

    def _added(self, event: Mapping[str, Any]) -> str:
        kind, message = event["type"], self._message
        if (message is None) is not (kind == "message_start"):
            raise ValueError("a message begins with its only `message_start`")
        if message is None:
            begun = event["message"]
            self._message = {**begun, "usage": dict(begun["usage"])}
            for index, block in enumerate(begun["content"]):
                self._open(index, block)
        elif kind == "content_block_start":
            self._open(event["index"], event["content_block"])
        elif kind == "content_block_delta":
            return self._grow(event["index"], event["delta"])
        elif kind == "message_delta":
            message |= {name: event["delta"][name] for name in _AT_THE_END if name in event["delta"]}
            message["usage"] |= {name: count for name, count in event["usage"].items() if count is not None}
        elif kind == "message_stop":
            self.ended = True
        return ""

    def _open(self, index: int, block: Mapping[str, Any]) -> None:
        if index in self._blocks:
            raise ValueError("a block without an index of its own")
        self._blocks[index] = {**block, "type": parts.text_of(block, "type")}

    def _grow(self, index: int, delta: Mapping[str, Any]) -> str:
        block = self._blocks[index]
        match delta["type"], block["type"]:
            case "text_delta", "text":
                piece = parts.text_of(delta, "text")
                block["text"] = parts.text_of(block, "text") + piece
                return piece
            case "thinking_delta", "thinking":
                block["thinking"] = parts.text_of(block, "thinking") + parts.text_of(delta, "thinking")
            case "signature_delta", "thinking":
                block["signature"] = parts.text_of(delta, "signature")
            case "citations_delta", "text":
                block["citations"] = [*(block.get("citations") or ()), delta.get("citation")]
            case "input_json_delta", "tool_use" | "server_tool_use":
                self._written[index] = self._written.get(index, "") + parts.text_of(delta, "partial_json")
        return ""


# --- what it says ---------------------------------------------------------------------------------


def reply_of(message: Mapping[str, Any], *, asked: str, taken: Iterable[str] = ()) -> Reply:
    """Return a reply. Raises Unreadable.

    Args:
        message: the API's message as JSON, with None for an unreadable `input`.
        asked: the model that was asked, for a reply that names none.
        taken: ids of calls in other replies of the same conversation.
    """
    blocks, calls = _parts(message["content"], taken)
    tokens = _tokens(message["usage"])
    return Reply(
        text="\n".join(each["text"] for each in blocks if each["type"] == "text" and each["text"].strip()),
        calls=calls,
        usage=Usage(tokens=tokens.total, model_calls=1),
        tokens=tokens,
        stop=parts.stop_of(parts.text_of(message, "stop_reason")),
        blocks=blocks,
        model=parts.model_of(message.get("model"), asked),
        id=parts.id_of(message.get("id")),
    )


def _parts(
    content: Sequence[Any], taken: Iterable[str]
) -> tuple[tuple[Mapping[str, Any], ...], tuple[ToolCall, ...]]:
    """Return a reply's blocks, in a form that can be stored and read back, and the calls among them.

    No thought is kept after a block that had to be changed.
    """
    blocks: list[Mapping[str, Any]] = []
    calls: list[ToolCall] = []
    unchanged = True
    for came in content:
        kept: Mapping[str, Any] = came
        match came["type"]:
            case "text":
                kept = {**came, "text": parts.encodable(parts.text_of(came, "text"))}
            case "tool_use":
                known = {*taken, *(call.id for call in calls)}
                call = parts.call_of(
                    parts.text_of(came, "name"), parts.text_of(came, "id"), came.get("input"), known
                )
                calls.append(call)
                kept = {**came, "id": call.id, "name": call.name, "input": dict(call.arguments)}
            case "server_tool_use" if not isinstance(came.get("input"), Mapping):
                raise parts.Unreadable("a call of the vendor's own without arguments")
            case "thinking":
                parts.text_of(came, "thinking")
                # A thought that was cut off may have no signature.
                parts.text_of({"signature": "", **came}, "signature")
            case "redacted_thinking":
                parts.text_of(came, "data")
        if unchanged or came["type"] not in THOUGHTS:
            blocks.append(kept)
        unchanged = unchanged and kept == came
    try:
        return tuple(msgspec.json.decode(msgspec.json.encode(blocks))), tuple(calls)
    except codec.UNWRITABLE as error:
        raise parts.Unreadable("a block that cannot be kept") from error


def _tokens(usage: Mapping[str, Any]) -> Tokens:
    """Return tokens by kind, each from 0 to MOST_TOKENS; an invalid count is 0.

    The API's `input_tokens` leaves out tokens that were read from or written to the cache.
    """
    written = parts.count_of(usage, "cache_creation_input_tokens")
    output = parts.count_of(usage, "output_tokens")
    long = min(written, parts.count_of(usage.get("cache_creation"), "ephemeral_1h_input_tokens"))
    return Tokens(
        input=parts.count_of(usage, "input_tokens"),
        cache_read=parts.count_of(usage, "cache_read_input_tokens"),
        cache_write=written - long,
        cache_write_1h=long,
        output=output,
        thinking=min(output, parts.count_of(usage.get("output_tokens_details"), "thinking_tokens")),
    )


# --- the model -------------------------------------------------------------------------------------

_EMPTY = {"id": "", "type": "message", "role": "assistant", "model": "", "content": []}
_REHEARSAL: tuple[Block, ...] = (
    {"type": "message_start", "message": {**_EMPTY, "usage": {"input_tokens": 0, "output_tokens": 0}}},
    {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
    {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": ""}},
    {"type": "content_block_stop", "index": 0},
    {
        "type": "content_block_start",
        "index": 1,
        "content_block": {"type": "tool_use", "id": "", "name": "", "input": {}},
    },
    {"type": "content_block_delta", "index": 1, "delta": {"type": "input_json_delta", "partial_json": ""}},
    {"type": "content_block_stop", "index": 1},
    {"type": "message_delta", "delta": {"stop_reason": "tool_use"}, "usage": {"output_tokens": 0}},
    {"type": "message_stop"},
)
"""Every kind of event in a reply with text and a call."""


class ClaudeModel(VendorModel):
    """One of Anthropic's models.

    Its `more` are arguments of `messages.create`, such as `thinking` and `output_config`.
    """

    vendor = "claude"
    provider = "anthropic"
    sdk, extra = "anthropic", "claude"
    keys = (KEY, "ANTHROPIC_AUTH_TOKEN")
    opened_by = (KEY,)
    price_list = "anthropic"
    makes_spans = True
    error_code = "error_code"
    request_header = "request-id"

    def __init__(self, model: str = WORK, **more: Any) -> None:
        super().__init__(model, **more)

    def request(self, prompt: Prompt, model: str | None = None) -> dict[str, Any]:
        """Return exactly the request for `prompt`."""
        name = model or self.mode
        tools = [
            {"name": tool.name, "description": tool.description, "input_schema": dict(tool.schema)}
            for tool in sorted(prompt.tools, key=lambda tool: tool.name)
        ]
        messages = _Messages(prompt, own=lambda past: self.asked_of(past.model) == name)
        asked: dict[str, Any] = {"model": name, "max_tokens": self._max_tokens, "messages": messages.marked()}
        asked |= self._more
        if prompt.instructions.strip():  # an empty text is an error
            text = parts.encodable(prompt.instructions)
            asked["system"] = [{"type": "text", "text": text, "cache_control": CACHED}]
        if tools:
            asked["tools"] = tools
            asked["tool_choice"] = {"type": "auto"}  # a forced choice is an error with the newer models
        return asked

    def printed(self, request: Mapping[str, Any]) -> Iterator[Section]:
        settings = dict(request)
        system, tools, messages = (settings.pop(part, ()) for part in ("system", "tools", "messages"))
        yield Section("settings", (settings,))
        for block in system:
            yield _printed("system", block)
        if tools:
            yield Section("tools", tuple(tools))
        for message in messages:
            for block in message["content"]:
                yield _printed(message["role"], block)

    def _connected(self, **more: Any) -> "AsyncAnthropic":
        from anthropic import AsyncAnthropic

        return AsyncAnthropic(
            api_key=self._api_key or os.environ.get(KEY),
            base_url=self._base_url,
            timeout=self._timeout_s,
            max_retries=0,
            **more,
        )

    def _rehearsal(self, transport: Any) -> tuple["AsyncAnthropic", Iterable[Block]]:
        import opentelemetry.propagate  # noqa: F401  # the span of a request would import it

        return self._connected(http_client=transport, open_telemetry={"traces": False}), _REHEARSAL

    def _on_record(self) -> "AsyncAnthropic":
        """Return the client; if its spans are kept, one whose spans name the request."""
        client: AsyncAnthropic = self._client
        request = tracing.conversation.get()
        if not request or not tracing.traced():
            return client
        return client.with_options(open_telemetry={**client.open_telemetry, "conversation_id": request})

    def _streamed(self) -> StreamedMessage:
        return StreamedMessage()

    @asynccontextmanager
    async def _stream(self, request: Mapping[str, Any]) -> "AsyncIterator[_AnyStream]":
        """Ask for a stream, and yield it.

        The SDK's helper breaks on a call whose arguments are not JSON. But only the helper puts the content
        into a span. So it is used only where spans have content, which is for close inspection.
        """
        client = self._on_record()
        if client.open_telemetry.get("traces", {}).get("content_mode") == "content":
            async with client.messages.stream(**request) as helped:
                yield helped
        else:
            async with await client.messages.create(**request, stream=True) as plain:
                yield plain


def _printed(role: str, block: Block) -> Section:
    heading = f"{role} (cached up to here)" if "cache_control" in block else role
    return Section(heading, (block["text"] if block["type"] == "text" else block,))


VENDOR = ClaudeModel
