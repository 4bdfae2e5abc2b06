"""A prompt as the Claude Messages API takes it, and its streamed reply as ours: pure, without the SDK.

A request is stable, so that the vendor's prompt cache helps: the system text first, then the tools sorted by
name, then the brief. One marker ends the part that is the same for every turn of an agent, another one the
conversation so far.

In a conversation the two sides alternate, and every call is answered in the next message, before anything
else. A call without a result gets an error as its result. A reply that nothing followed is asked to go on,
unless it stopped among the vendor's own tools: then it goes on by itself.

A reply goes back as it came, without the blocks that the API refuses: an empty text, an unknown block, and
thoughts that are unsigned, last, another model's, or moved. Thoughts are bound to all that was said before
them: once a block of a reply is left out or changed, later thoughts of that reply are left out, too.
"""

import re
from collections.abc import Callable, Container, Mapping, Sequence
from typing import Any

import msgspec

from mesh.model.port import Prompt, Reply, Said, ToolCall, ToolResult
from protocol.wire.codec import check_nesting
from protocol.wire.commands import MAX_MODEL_CHARS, Usage
from protocol.wire.errors import Malformed
from protocol.wire.prices import Tokens

CACHED = {"type": "ephemeral"}
MOST_TOKENS = 10**9
"""Of one kind in one reply: a thousand times the longest context. A larger count is cut to it."""
LONGEST_NAME = 128
"""Twice as long as a tool's name may be: a longer one names no tool, and is not repeated whole."""
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
_LONGEST_STOP = 64
_LONGEST_TOOL = 64
_MODEL = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/@-]*")
_ID = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_NO_NAME = re.compile(r"[^a-zA-Z0-9_-]")
_UNKEPT = (msgspec.MsgspecError, RecursionError, TypeError, ValueError, OverflowError)
"""Raised where a value cannot be written as JSON, or not be read again."""
_NO_JSON = "the arguments are no JSON that can be read"
_NO_OBJECT = "the arguments are no object"
_NOT_DONE = "Not done. Ask for it again if it is still wanted."
_GO_ON = "Go on."
_NOTHING = "(nothing)"
"""Stands for an empty text, and for a reply of which nothing can go back."""

Block = dict[str, Any]


# --- what is sent ---------------------------------------------------------------------------------


def request_of(
    prompt: Prompt,
    *,
    model: str,
    max_tokens: int,
    more: Mapping[str, Any],
    own: Callable[[Said], bool] = lambda said: True,
) -> dict[str, Any]:
    """Return the arguments of `messages.create`.

    Args:
        max_tokens: of the reply, thinking included.
        more: further arguments as the API has them, for instance `thinking` or `output_config`.
        own: returns True for a reply of the model that is asked; another model's thoughts are left out.
    """
    tools = [
        {"name": tool.name, "description": tool.description, "input_schema": dict(tool.schema)}
        for tool in sorted(prompt.tools, key=lambda tool: tool.name)
    ]
    messages = _Messages(prompt.brief)
    for each in prompt.transcript:
        if isinstance(each, Said):
            messages.add_reply(_blocks_back(each, with_thoughts=own(each)))
        else:
            messages.add_result(each)
    asked: dict[str, Any] = {"model": model, "max_tokens": max_tokens, "messages": messages.marked(), **more}
    if prompt.instructions.strip():  # an empty text is an error
        asked["system"] = [{"type": "text", "text": encodable(prompt.instructions), "cache_control": CACHED}]
    if tools:
        asked["tools"] = tools
        asked["tool_choice"] = {"type": "auto"}  # a forced choice is an error with the newer models
    return asked


class _Messages:
    """The messages of a request while they are put together."""

    def __init__(self, brief: str) -> None:
        self._messages: list[dict[str, Any]] = []
        self._results: list[Block] = []
        self._texts = [_text(brief)]
        """With `_results`: the next message to the model."""
        self._open: list[str] = []
        """Ids of the last reply's calls without a result yet."""
        self._goes_on = False
        """True if the last reply used the vendor's own tools."""

    def add_reply(self, blocks: list[Block]) -> None:
        self._end_of_message()
        if self._messages[-1]["role"] == "assistant":
            self._messages[-1]["content"] += blocks
        else:
            self._messages.append({"role": "assistant", "content": blocks})
        self._open = [block["id"] for block in blocks if block["type"] == "tool_use"]
        self._goes_on = any(block["type"] in OWN_TOOLS for block in blocks)

    def add_result(self, result: ToolResult) -> None:
        """Add a call's result. A result of no open call is a remark."""
        if result.call not in self._open:
            self._texts.append(_text(result.text))
            return
        self._open.remove(result.call)
        self._results.append(_result(result.call, result.text, is_error=result.is_error))

    def marked(self) -> list[dict[str, Any]]:
        """Return the messages, with a cache marker on the last block that can have one."""
        self._end_of_message()
        last: list[Block] = self._messages[-1]["content"]
        at = max(index for index, block in enumerate(last) if block["type"] not in THOUGHTS)
        last[at] = {**last[at], "cache_control": CACHED}
        return self._messages

    def _end_of_message(self) -> None:
        """Complete the message to the model, so that the model is next to speak."""
        self._results += (_result(call, _NOT_DONE, is_error=True) for call in self._open)
        content = [*self._results, *self._texts]
        if not content and not self._goes_on:
            content = [_text(_GO_ON)]
        if content:
            self._messages.append({"role": "user", "content": content})
        self._results, self._texts, self._open = [], [], []


def _text(text: str) -> Block:
    return {"type": "text", "text": encodable(text) if text.strip() else _NOTHING}


def _result(call: str, text: str, *, is_error: bool) -> Block:
    result = {"type": "tool_result", "tool_use_id": call, "content": _text(text)["text"]}
    return {**result, "is_error": True} if is_error else result


def _blocks_back(said: Said, *, with_thoughts: bool) -> list[Block]:
    """Return a reply as it goes back: at least one block, and no thought at the end."""
    blocks: list[Block] = []
    unchanged = True
    for came in said.blocks or _plain(said):
        back = _block_back(came)
        if came.get("type") in THOUGHTS and not (with_thoughts and unchanged):
            back = None
        unchanged = unchanged and back == came
        if back is not None:
            blocks.append(back)
    while blocks and blocks[-1]["type"] in THOUGHTS:
        blocks.pop()
    return blocks or [_text("")]


def _plain(said: Said) -> list[Block]:
    made = [
        {"type": "tool_use", "id": call.id, "name": call.name, "input": dict(call.arguments)}
        for call in said.calls
    ]
    return [{"type": "text", "text": said.text}, *made]


def _block_back(block: Mapping[str, Any]) -> Block | None:
    """Return a block as the API takes it; None for one that it refuses."""
    match block.get("type"):
        case "text" if not block["text"].strip():
            return None
        case "tool_use":
            name = _NO_NAME.sub("_", block["name"])[:_LONGEST_TOOL] or "_"
            given = block["input"]
            return {**block, "name": name, "input": dict(given) if isinstance(given, Mapping) else {}}
        case "thinking" if not block.get("signature"):
            return None
        case "redacted_thinking" if not block.get("data"):
            return None
        case kind if kind in _KNOWN:
            return dict(block)
    return None


def encodable(text: str) -> str:
    """Return a text that UTF-8 can encode: surrogate pairs are joined, a lone surrogate is replaced."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text


# --- what comes in ------------------------------------------------------------------------------------


class Unreadable(Exception):
    """The events are no message of the API. The text names the fault, and repeats nothing of the reply."""


class BrokenOff(Exception):
    """The stream ended before the message did."""


class Streamed:
    """The events of one reply, added up to its message.

    The SDK adds up, too. But it takes a stream that ends early for a whole message, and loses the whole reply
    over one call whose arguments are no JSON. Here a message is whole only after its `message_stop`, and the
    pieces of a call's arguments are read when all of them are there.
    """

    def __init__(self) -> None:
        self._message: dict[str, Any] | None = None
        self._blocks: dict[int, Block] = {}
        """By the vendor's index, in the order in which they began."""
        self._written: dict[int, str] = {}
        """The JSON of calls' arguments so far, by the same index."""
        self.ended = False
        """True after `message_stop`."""

    def take(self, event: Mapping[str, Any]) -> str:
        """Add an event; return its piece of text, empty if it has none. Raises Unreadable."""
        try:
            return self._added(event)
        except (AttributeError, KeyError, TypeError, ValueError) as wrong:
            raise Unreadable(f"an event that is none: {type(wrong).__name__}") from wrong

    def message(self) -> Block:
        """Return the message as the API gives it without a stream. Raises BrokenOff, Unreadable.

        An `input` that cannot be read is None.
        """
        if self._message is None:
            raise Unreadable("no message in it")
        if not self.ended:
            raise BrokenOff("the stream ended before the message")
        if self._message.get("stop_reason") is None:
            raise BrokenOff("the message does not say why it ended")
        content = [
            {**block, "input": _value(written)} if (written := self._written.get(index)) else block
            for index, block in self._blocks.items()
        ]
        return {**self._message, "content": content}

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
        self._blocks[index] = {**block, "type": text_of(block, "type")}

    def _grow(self, index: int, delta: Mapping[str, Any]) -> str:
        block = self._blocks[index]
        match delta["type"], block["type"]:
            case "text_delta", "text":
                piece = text_of(delta, "text")
                block["text"] = text_of(block, "text") + piece
                return piece
            case "thinking_delta", "thinking":
                block["thinking"] = text_of(block, "thinking") + text_of(delta, "thinking")
            case "signature_delta", "thinking":
                block["signature"] = text_of(delta, "signature")
            case "citations_delta", "text":
                block["citations"] = [*(block.get("citations") or ()), delta.get("citation")]
            case "input_json_delta", "tool_use" | "server_tool_use":
                self._written[index] = self._written.get(index, "") + text_of(delta, "partial_json")
        return ""


def text_of(part: Mapping[str, Any], name: str) -> str:
    """Return a text of a block or a message. Raises Unreadable."""
    found = part.get(name)
    if not isinstance(found, str):
        raise Unreadable(f"`{name}` is no text")
    return found


def _value(written: str) -> Any:
    """Return JSON as a value; None if it cannot be read."""
    try:
        return msgspec.json.decode(written)
    except (msgspec.MsgspecError, RecursionError, UnicodeError):
        return None


# --- what it says ---------------------------------------------------------------------------------


def reply_of(message: Mapping[str, Any], *, asked: str, taken: Container[str] = ()) -> Reply:
    """Return a reply. Raises Unreadable.

    Args:
        message: the API's message as JSON has it, with None for an `input` that cannot be read.
        asked: the model that was asked, for a reply that names none.
        taken: ids of calls that another reply of the same conversation made.
    """
    blocks, calls = _parts(message["content"], taken)
    tokens = _tokens(message["usage"])
    named = message.get("model")
    is_model = isinstance(named, str) and len(named) <= MAX_MODEL_CHARS and _MODEL.fullmatch(named)
    return Reply(
        text="\n".join(each["text"] for each in blocks if each["type"] == "text" and each["text"].strip()),
        calls=calls,
        usage=Usage(tokens=tokens.total, model_calls=1),
        tokens=tokens,
        stop=encodable(text_of(message, "stop_reason"))[:_LONGEST_STOP],
        blocks=blocks,
        model=str(named) if is_model else asked,
    )


def _parts(
    content: Sequence[Any], taken: Container[str]
) -> tuple[tuple[Mapping[str, Any], ...], tuple[ToolCall, ...]]:
    """Return a reply's blocks, which can be written and read again, and the calls among them.

    No thought is kept after a block that had to be changed.
    """
    blocks: list[Mapping[str, Any]] = []
    calls: list[ToolCall] = []
    unchanged = True
    for came in content:
        kept: Mapping[str, Any] = came
        match came["type"]:
            case "text":
                kept = {**came, "text": encodable(text_of(came, "text"))}
            case "tool_use":
                call = _call(came, taken, {call.id for call in calls})
                calls.append(call)
                kept = {**came, "id": call.id, "name": call.name, "input": dict(call.arguments)}
            case "server_tool_use" if not isinstance(came.get("input"), Mapping):
                raise Unreadable("a call of the vendor's own without arguments")
            case "thinking":
                text_of(came, "thinking")
                text_of({"signature": "", **came}, "signature")  # a thought that was cut off may have none
            case "redacted_thinking":
                text_of(came, "data")
        if unchanged or came["type"] not in THOUGHTS:
            blocks.append(kept)
        unchanged = unchanged and kept == came
    try:
        return tuple(msgspec.json.decode(msgspec.json.encode(blocks))), tuple(calls)
    except _UNKEPT as error:
        raise Unreadable("a block that cannot be kept") from error


def _call(block: Mapping[str, Any], taken: Container[str], here: Container[str]) -> ToolCall:
    """Return a call, with an id that no other of the conversation has."""
    name, made = encodable(text_of(block, "name"))[:LONGEST_NAME], text_of(block, "id")
    number = 0
    while not _ID.fullmatch(made) or made in here or made in taken:
        number += 1
        made = f"call_{number}"
    arguments, why = _arguments(block.get("input"))
    return ToolCall(made, name, arguments, why)


def _arguments(given: object) -> tuple[Mapping[str, Any], str]:
    """Return a call's arguments; or none, and why."""
    if given is None:
        return {}, _NO_JSON
    if not isinstance(given, Mapping):
        return {}, _NO_OBJECT
    try:
        for value in given.values():
            check_nesting(value)
        return msgspec.json.decode(msgspec.json.encode(given)), ""
    except Malformed as deep:
        return {}, f"the arguments cannot be used: {deep}"
    except _UNKEPT:
        return {}, _NO_JSON


def _tokens(usage: Mapping[str, Any]) -> Tokens:
    """Return tokens by kind, each from 0 to MOST_TOKENS; an invalid count is 0.

    The API's `input_tokens` leaves out tokens that the cache was read or written for.
    """
    written = _count(usage, "cache_creation_input_tokens")
    output = _count(usage, "output_tokens")
    long = min(written, _count(usage.get("cache_creation"), "ephemeral_1h_input_tokens"))
    return Tokens(
        input=_count(usage, "input_tokens"),
        cache_read=_count(usage, "cache_read_input_tokens"),
        cache_write=written - long,
        cache_write_1h=long,
        output=output,
        thinking=min(output, _count(usage.get("output_tokens_details"), "thinking_tokens")),
    )


def _count(counts: object, name: str) -> int:
    found = counts.get(name) if isinstance(counts, Mapping) else None
    if not isinstance(found, int | float) or not found >= 0:  # NaN is no count, either
        return 0
    return int(min(found, MOST_TOKENS))
