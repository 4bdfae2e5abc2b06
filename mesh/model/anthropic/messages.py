"""A prompt as the Claude Messages API takes it, and its reply as ours: pure, without the vendor's SDK.

What is sent is stable, so that the vendor's prompt cache can help: the system text first, then the tools
sorted by name, then the brief; a marker ends the part that is the same for every turn of an agent, and
one ends what this round has said so far.

A reply's blocks as the API takes them back: as they came, but for what it would not have.

It refuses an empty text, a name that no tool can have, a block that it does not know, and thoughts that
are unsigned, last, another model's, or moved. Thoughts are bound to all that was said before them: once a
block of a reply is left out or changed, those that follow it in that reply are left out, too.

A conversation as the API demands it: the two sides alternate, and every call is answered in the next
message, its results before anything else.

What the mesh says is told in that order, whatever the order in which it was said. A call that nobody
answered is answered with an error, and a reply that nothing followed is asked to go on, unless it stopped
in the middle of the vendor's own tools: that one goes on by itself.
"""

import re
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from typing import Any

import msgspec

from mesh.model.anthropic.stream import Unreadable
from mesh.model.port import Prompt, Reply, Said, ToolCall, ToolResult
from protocol.wire.codec import DEEPEST, MAX_MODEL_CHARS
from protocol.wire.commands import Usage
from protocol.wire.prices import Tokens

CACHED = {"type": "ephemeral"}
MOST_TOKENS = 10**9
"""Of one kind in one reply: a thousand times what the longest context holds. No count is taken for more."""
LONGEST_NAME = 128
"""Twice what a tool's name may have: a longer one names none, and is not worth repeating whole."""
_LONGEST_STOP = 64
_MODEL = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/@-]*")
_ID = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_UNKEPT = (msgspec.MsgspecError, RecursionError, TypeError, ValueError, OverflowError)
"""What writing a value as JSON, or reading it again, can raise."""
_NO_JSON = "the arguments are no JSON that can be read"
_NO_OBJECT = "the arguments are no object"
_TOO_DEEP = f"the arguments have more than {DEEPEST} lists and objects within each other"


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
        own: whether the model that is asked said it; another's thoughts are left out.
    """
    tools = [
        {"name": tool.name, "description": tool.description, "input_schema": dict(tool.schema)}
        for tool in sorted(prompt.tools, key=lambda tool: tool.name)
    ]
    asked: dict[str, Any] = {
        "model": model,
        "max_tokens": max_tokens,
        "messages": _messages(prompt, own),
        **more,
    }
    if prompt.instructions.strip():  # an empty text is an error
        asked["system"] = [{"type": "text", "text": encodable(prompt.instructions), "cache_control": CACHED}]
    if tools:
        asked["tools"] = tools
        asked["tool_choice"] = {"type": "auto"}  # a forced choice is an error with the newer models
    return asked


def _messages(prompt: Prompt, own: Callable[[Said], bool]) -> list[dict[str, Any]]:
    talk = Talk(prompt.brief)
    for each in prompt.transcript:
        if isinstance(each, Said):
            talk.said(as_sent(each, thoughts=own(each)))
        else:
            talk.told(each)
    messages = talk.messages()
    last: list[dict[str, Any]] = messages[-1]["content"]
    at = max(index for index, block in enumerate(last) if cacheable(block))
    last[at] = {**last[at], "cache_control": CACHED}
    return messages


def reply_of(message: Mapping[str, Any], *, asked: str, taken: Container[str] = ()) -> Reply:
    """Return a reply; blocks are told by their type, never by their place. Raises Unreadable.

    Args:
        message: the API's message as JSON has it, but for an `input` of None: one that cannot be read.
        asked: which model was asked, for a reply that does not say whom it is from.
        taken: ids of calls that another reply of the same conversation made.
    """
    blocks, calls = _parts(message["content"], taken)
    tokens = tokens_of(message["usage"])
    stop = message.get("stop_reason")
    if not isinstance(stop, str):
        raise Unreadable("a reason to stop that is no text")
    return Reply(
        text="\n".join(_texts(blocks)),
        calls=calls,
        usage=Usage(tokens=tokens.total, model_calls=1),
        tokens=tokens,
        stop=encodable(stop)[:_LONGEST_STOP],
        blocks=blocks,
        model=_model(message.get("model")) or asked,
    )


def _model(named: object) -> str:
    """Return whom a reply names as its model; empty for what is no model's id."""
    if isinstance(named, str) and len(named) <= MAX_MODEL_CHARS and _MODEL.fullmatch(named):
        return named
    return ""


def _parts(
    content: Sequence[Any], taken: Container[str]
) -> tuple[tuple[Mapping[str, Any], ...], tuple[ToolCall, ...]]:
    """Return a reply's blocks, which can be written and read again, and the calls among them.

    Thoughts are bound to what was said before them: none is kept after a block that had to be changed.
    """
    blocks: list[Mapping[str, Any]] = []
    calls: list[ToolCall] = []
    untouched = True
    for came in content:
        kept: Mapping[str, Any] = came
        match came["type"]:
            case "text":
                kept = {**came, "text": encodable(_string(came, "text"))}
            case "tool_use":
                call = _call(came, taken, {call.id for call in calls})
                calls.append(call)
                kept = {**came, "id": call.id, "name": call.name, "input": dict(call.arguments)}
            case "server_tool_use" if not isinstance(came.get("input"), Mapping):
                raise Unreadable("a call of the vendor's own without arguments")
            case "thinking":
                _string(came, "thinking")
                _string({"signature": "", **came}, "signature")  # one that was cut off need have none
            case "redacted_thinking":
                _string(came, "data")
        if untouched or came["type"] not in THOUGHTS:
            blocks.append(kept)
        untouched = untouched and kept == came
    try:
        again: list[Mapping[str, Any]] = msgspec.json.decode(msgspec.json.encode(blocks))
    except (
        msgspec.MsgspecError,
        RecursionError,
        UnicodeError,
        TypeError,
        ValueError,
        OverflowError,
    ) as error:
        raise Unreadable("a block that cannot be kept") from error
    return tuple(again), tuple(calls)


def _call(block: Mapping[str, Any], taken: Container[str], here: Container[str]) -> ToolCall:
    """Return a call, with an id that no other of the conversation has."""
    name, made = encodable(_string(block, "name"))[:LONGEST_NAME], _string(block, "id")
    number = 0
    wanted = made
    while not _ID.fullmatch(wanted) or wanted in here or wanted in taken:
        number += 1
        wanted = f"call_{number}"
    arguments, why = _arguments(block.get("input"))
    return ToolCall(wanted, name, arguments, why)


def _arguments(given: object) -> tuple[Mapping[str, Any], str]:
    """Return a call's arguments; or none, and why."""
    if given is None:
        return {}, _NO_JSON
    if not isinstance(given, Mapping):
        return {}, _NO_OBJECT
    try:
        if _deeper(given, DEEPEST + 1):
            return {}, _TOO_DEEP
        arguments: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(given))
    except _UNKEPT:
        return {}, _NO_JSON
    return arguments, ""


def _deeper(value: object, most: int) -> bool:
    """Say whether there are more than so many lists and objects within each other."""
    level = [value]
    for _ in range(most):
        level = [item for node in level if isinstance(node, dict | list) for item in _items(node)]
        if not level:
            return False
    return any(isinstance(node, dict | list) for node in level)


def _items(node: dict[str, Any] | list[Any]) -> Iterable[Any]:
    return node.values() if isinstance(node, dict) else node


def _string(block: Mapping[str, Any], name: str) -> str:
    found = block.get(name)
    if not isinstance(found, str):
        raise Unreadable(f"a block's `{name}` is no text")
    return found


def _texts(content: Iterable[Mapping[str, Any]]) -> Iterable[str]:
    return (block["text"] for block in content if block["type"] == "text" and block["text"].strip())


def tokens_of(usage: Mapping[str, Any]) -> Tokens:
    """Return tokens by kind, each from 0 to MOST_TOKENS; what is no count is none.

    The API's `input_tokens` leaves out what the cache was read or written for.
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
    if not isinstance(found, int | float) or not found >= 0:  # what is no number is not, either
        return 0
    return int(min(found, MOST_TOKENS))


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
NOTHING = "(nothing)"
"""Stands for a reply of which nothing can go back."""
_NO_NAME = re.compile(r"[^a-zA-Z0-9_-]")
_LONGEST_NAME = 64

Block = dict[str, Any]


def as_sent(said: Said, *, thoughts: bool) -> list[Block]:
    """Return a reply as it goes back; at least one block, and no thought at the end.

    Args:
        thoughts: whether it is the same model's that they go to.
    """
    blocks: list[Block] = []
    untouched = True
    for came in said.blocks or _plain(said):
        sent = _sent(came)
        if came.get("type") in THOUGHTS and not (thoughts and untouched):
            sent = None
        untouched = untouched and sent == came
        if sent is not None:
            blocks.append(sent)
    while blocks and blocks[-1]["type"] in THOUGHTS:
        blocks.pop()
    return blocks or [{"type": "text", "text": NOTHING}]


def cacheable(block: Mapping[str, Any]) -> bool:
    """Say whether a cache may end with a block."""
    return block["type"] not in THOUGHTS


def encodable(text: str) -> str:
    """Return a text as UTF-8 can have it: halves of a character are joined; one alone is replaced."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text


def _plain(said: Said) -> list[Block]:
    made = [
        {"type": "tool_use", "id": call.id, "name": call.name, "input": dict(call.arguments)}
        for call in said.calls
    ]
    return [{"type": "text", "text": said.text}, *made]


def _sent(block: Mapping[str, Any]) -> Block | None:
    """Return a block as the API takes it; None for one that it would not."""
    match block.get("type"):
        case "text" if not block["text"].strip():
            return None
        case "tool_use":
            name = _NO_NAME.sub("_", block["name"])[:_LONGEST_NAME] or "_"
            given = block["input"]
            return {**block, "name": name, "input": dict(given) if isinstance(given, Mapping) else {}}
        case "thinking" if not block.get("signature"):
            return None
        case "redacted_thinking" if not block.get("data"):
            return None
        case str(kind) if kind in _KNOWN:
            return dict(block)
    return None


_NOT_DONE = "Not done. Ask for it again if it is still wanted."
_GO_ON = "Go on."


class Talk:
    """Messages while they are put together.

    Args:
        brief: what the conversation begins with.
    """

    def __init__(self, brief: str) -> None:
        self._messages: list[dict[str, Any]] = []
        self._results: list[Block] = []
        self._texts: list[Block] = [_text(brief)]
        """With `_results`: what is said to the model next."""
        self._open: list[str] = []
        """Ids of the last reply's calls without a result yet."""
        self._goes_on = False
        """Whether the last reply stopped, if at all, among the vendor's own tools."""

    def said(self, blocks: list[Block]) -> None:
        """Add a reply of the model's."""
        self._turn_to_the_model()
        if self._messages[-1]["role"] == "assistant":
            self._messages[-1]["content"] += blocks
        else:
            self._messages.append({"role": "assistant", "content": blocks})
        self._open = [block["id"] for block in blocks if block["type"] == "tool_use"]
        self._goes_on = any(block["type"] in OWN_TOOLS for block in blocks)

    def told(self, result: ToolResult) -> None:
        """Add what the model is told. A result of no call that is open is a remark."""
        if result.call not in self._open:
            self._texts.append(_text(result.text))
            return
        self._open.remove(result.call)
        self._results.append(_result(result.call, result.text, is_error=result.is_error))

    def messages(self) -> list[dict[str, Any]]:
        """Return the conversation so far, ready to be answered."""
        self._turn_to_the_model()
        return self._messages

    def _turn_to_the_model(self) -> None:
        """End what is said to the model, so that it is its turn."""
        self._results += (_result(call, _NOT_DONE, is_error=True) for call in self._open)
        self._open = []
        content = [*self._results, *self._texts]
        if not content:
            if self._goes_on:
                return
            content = [_text(_GO_ON)]
        self._messages.append({"role": "user", "content": content})
        self._results, self._texts = [], []


def _text(text: str) -> Block:
    return {"type": "text", "text": _said(text)}


def _result(call: str, text: str, *, is_error: bool) -> Block:
    result = {"type": "tool_result", "tool_use_id": call, "content": _said(text)}
    return {**result, "is_error": True} if is_error else result


def _said(text: str) -> str:
    return encodable(text) if text.strip() else NOTHING
