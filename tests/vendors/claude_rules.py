"""The rules of the Claude Messages API: a stand-in refuses what the vendor would refuse.

Thoughts are signed. A `thinking` block may come back only unchanged, to the same model, under the same system
text and tools, and after the same messages. Its signature covers all of that, so that one stand-in can judge
what another one signed. One rule is stricter than the vendor's: the vendor lets a caller leave out the first
thoughts of a conversation and keep later ones.
"""

import hashlib
import itertools
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

Block = Mapping[str, Any]
Body = Mapping[str, Any]

MOST_MARKERS = 4
_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_ID = re.compile(r"[a-zA-Z0-9_-]+")
_NEVER = ("temperature", "top_p", "top_k")
_UNIONS = ("anyOf", "oneOf", "allOf")
_THOUGHTS = frozenset({"thinking", "redacted_thinking"})
# Written again, not imported from the code under test: a mistake there must not be one here, too.
_OWN_TOOLS = frozenset(
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
_KINDS = {
    "user": frozenset({"text", "image", "document", "search_result", "tool_result", "container_upload"}),
    "assistant": frozenset({"text", "tool_use", "container_upload", *_THOUGHTS, *_OWN_TOOLS}),
}
_FIELDS = {
    "text": {"type", "text", "citations", "cache_control"},
    "tool_use": {"type", "id", "name", "input", "caller", "toolset_name", "cache_control"},
    "tool_result": {"type", "tool_use_id", "content", "is_error", "toolset_name", "cache_control"},
    "thinking": {"type", "thinking", "signature"},
    "redacted_thinking": {"type", "data"},
}


def violations(body: Body) -> list[str]:
    """Return what is wrong with a request, the first thing first; nothing if the vendor would take it."""
    wrong = itertools.chain(_settings(body), _tools(body), _markers(body), _dialogue(body))
    try:
        return list(wrong) or list(_bindings(body))  # a signature says nothing about a request that is none
    except (AttributeError, KeyError, TypeError) as error:
        return [f"the request lacks something, or it is of another kind: {error!r}"]


def signed(body: Body, content: Iterable[Block]) -> tuple[Block, ...]:
    """Return a reply's blocks with the thoughts among them bound to the request that they answer.

    A thought without a signature stays without one.
    """
    made: list[Block] = []
    before = _before(body)
    for block in content:
        name = "data" if block["type"] == "redacted_thinking" else "signature"
        bound = block["type"] in _THOUGHTS and block.get(name)
        made.append({**block, name: _signature(block, before)} if bound else block)
        before = _digest(before, "assistant", made[-1])
    return tuple(made)


# --- rules ------------------------------------------------------------------------------------------


def _settings(body: Body) -> Iterator[str]:
    for name in _NEVER:
        if name in body:
            yield f"{name}: no longer supported"
    if not isinstance(body.get("max_tokens"), int) or body["max_tokens"] < 1:
        yield "max_tokens: must be a number from 1 on"
    if (body.get("tool_choice") or {}).get("type") in ("tool", "any"):
        yield "tool_choice: a forced choice is not supported by this model"
    for at, block in enumerate(_blocks(body.get("system", ()))):
        if not block["text"].strip():
            yield f"system.{at}: text content blocks must be non-empty"


def _tools(body: Body) -> Iterator[str]:
    names = [tool["name"] for tool in body.get("tools", ())]
    if len(set(names)) != len(names):
        yield "tools: tool names must be unique"
    for tool in body.get("tools", ()):
        if not _NAME.fullmatch(tool["name"]):
            yield f"tools: {tool['name']!r} does not match {_NAME.pattern}"
        schema = tool["input_schema"]
        if schema.get("type") != "object":
            yield f"tools.{tool['name']}.input_schema.type: must be object"
        if any(union in schema for union in _UNIONS):
            yield f"tools.{tool['name']}.input_schema: no {', '.join(_UNIONS)} at the top level"


def _markers(body: Body) -> Iterator[str]:
    blocks = [block for message in body["messages"] for block in _blocks(message["content"])]
    marked = [body, *_blocks(body.get("system", ())), *body.get("tools", ()), *blocks]
    if sum(each.get("cache_control") is not None for each in marked) > MOST_MARKERS:
        yield f"cache_control: at most {MOST_MARKERS} blocks may have one"
    for block in blocks:
        if block.get("type") in _THOUGHTS and "cache_control" in block:
            yield f"{block['type']}: cache_control cannot be set for thinking blocks"


def _dialogue(body: Body) -> Iterator[str]:
    messages: Sequence[Body] = body["messages"]
    made: set[str] = set()
    wanted: list[str] = []
    if not messages:
        yield "messages: at least one message is required"
    for at, message in enumerate(messages):
        role, content = message["role"], _blocks(message["content"])
        if role != ("assistant" if at % 2 else "user"):
            yield f"messages.{at}: roles must alternate, beginning with user"
        if not content:
            yield f"messages.{at}: must have content"
        for index, block in enumerate(content):
            yield from _block(f"messages.{at}.content.{index}", role, block)
        yield from _answers(at, content, wanted)
        wanted = [block["id"] for block in content if block.get("type") == "tool_use"]
        for call in wanted:
            if call in made:
                yield f"messages.{at}: `tool_use` ids must be unique, {call} is not"
            made.add(call)
        if role == "assistant" and content and content[-1].get("type") in _THOUGHTS:
            yield f"messages.{at}: the final block in an assistant message cannot be `thinking`"
    if wanted:
        yield f"messages: `tool_use` ids without `tool_result` blocks: {', '.join(wanted)}"
    elif messages and messages[-1]["role"] == "assistant":
        last = _blocks(messages[-1]["content"])
        if not any(block.get("type") in _OWN_TOOLS for block in last):
            yield "messages: this model does not support prefill; the conversation must end with user"


def _answers(at: int, content: Sequence[Block], wanted: Sequence[str]) -> Iterator[str]:
    """Yield where a message does not answer the calls before it, each once and before all else."""
    is_result = [block.get("type") == "tool_result" for block in content]
    got = [block["tool_use_id"] for block in content if block.get("type") == "tool_result"]
    for call in wanted:
        if call not in got:
            yield f"messages.{at}: `tool_use` ids without `tool_result` blocks immediately after: {call}"
    for call in got:
        if call not in wanted or got.count(call) > 1:
            yield f"messages.{at}: unexpected `tool_use_id` in `tool_result` blocks: {call}"
    if is_result != sorted(is_result, reverse=True):
        yield f"messages.{at}: `tool_result` blocks must come first"


def _block(where: str, role: str, block: Block) -> Iterator[str]:
    kind = block.get("type")
    if kind not in _KINDS.get(role, ()):
        yield f"{where}: {kind!r} is no block that {role} can have"
        return
    extra = set(block) - _FIELDS.get(str(kind), set(block))
    if extra:
        yield f"{where}: extra inputs are not permitted: {', '.join(sorted(extra))}"
    match kind:
        case "text" if not block["text"].strip():
            yield f"{where}: text content blocks must contain non-whitespace text"
        case "tool_use":
            if not _ID.fullmatch(block["id"]):
                yield f"{where}.id: does not match {_ID.pattern}"
            if not _NAME.fullmatch(block["name"]):
                yield f"{where}.name: does not match {_NAME.pattern}"
            if not isinstance(block["input"], dict):
                yield f"{where}.input: must be an object"
        case "tool_result" if block.get("is_error") and not block.get("content"):
            yield f"{where}: content cannot be empty if `is_error` is true"
        case "thinking" if not block.get("signature"):
            yield f"{where}.signature: must be there"
        case "redacted_thinking" if not block.get("data"):
            yield f"{where}.data: must be there"


def _bindings(body: Body) -> Iterator[str]:
    """Yield the thoughts that were not made here."""
    before = _before({**body, "messages": ()})
    for at, message in enumerate(body["messages"]):
        for index, block in enumerate(_blocks(message["content"])):
            if block["type"] in _THOUGHTS:
                yield from _binding(f"messages.{at}.content.{index}", block, before)
            before = _digest(before, message["role"], block)


def _binding(where: str, block: Block, before: str) -> Iterator[str]:
    content, _, conversation = str(block.get("signature") or block.get("data")).partition(".")
    if block["type"] == "thinking" and content != _of(block["thinking"]):
        yield f"{where}: invalid `signature` in `thinking` block"
    elif conversation != before:
        yield f"{where}: the block is bound to a different conversation"


# --- signatures ---------------------------------------------------------------------------------------


def _signature(block: Block, before: str) -> str:
    return f"{_of(block.get('thinking') or block['data'])}.{before}"


def _before(body: Body) -> str:
    """Return the digest of all that a reply to a request is bound to."""
    system = [block["text"] for block in _blocks(body.get("system", ()))]
    tools = [_unmarked(tool) for tool in body.get("tools", ())]
    digest = _of([body.get("model"), system, tools])
    for message in body["messages"]:
        for block in _blocks(message["content"]):
            digest = _digest(digest, message["role"], block)
    return digest


def _digest(before: str, role: str, block: Block) -> str:
    return _of([before, role, _unmarked(block)])


def _unmarked(block: Block) -> Block:
    return {name: value for name, value in block.items() if name != "cache_control"}


def _of(value: object) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:32]


def _blocks(content: Any) -> Sequence[Block]:
    return [{"type": "text", "text": content}] if isinstance(content, str) else content
