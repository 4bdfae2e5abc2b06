"""A prompt as the Claude Messages API takes it, and its reply as ours: pure, without the vendor's SDK.

What is sent is stable, so that the vendor's prompt cache can help: the system text first, then the tools
sorted by name, then the brief; a marker ends the part that is the same for every turn of an agent, and
one ends what this round has said so far. Blocks of a reply go back as they came, thinking included, within
their own round only: they are bound to the very prompt that they were made under.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from mesh.model.port import Exchange, Prompt, Reply, Said, ToolCall, ToolResult
from protocol.messages import Usage
from protocol.prices import Tokens

CACHED = {"type": "ephemeral"}
_NOTHING = "(nothing)"


def request_of(prompt: Prompt, *, model: str, max_tokens: int, more: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of `messages.create`.

    Args:
        max_tokens: of the reply, thinking included.
        more: further arguments as the API has them, for instance `thinking` or `output_config`.
    """
    tools = [
        {"name": tool.name, "description": tool.description, "input_schema": dict(tool.schema)}
        for tool in sorted(prompt.tools, key=lambda tool: tool.name)
    ]
    asked: dict[str, Any] = {
        "model": model,
        "max_tokens": max_tokens,
        "system": [{"type": "text", "text": prompt.instructions, "cache_control": CACHED}],
        "messages": _messages(prompt),
        **more,
    }
    if tools:
        asked["tools"] = tools
        asked["tool_choice"] = {"type": "auto"}  # a forced choice is an error with the newer models
    return asked


def _messages(prompt: Prompt) -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = [{"role": "user", "content": [{"type": "text", "text": prompt.brief}]}]
    for each in prompt.transcript:
        role = "assistant" if isinstance(each, Said) else "user"
        blocks = _blocks(each)
        if messages[-1]["role"] == role:
            messages[-1]["content"] += blocks
        else:
            messages.append({"role": role, "content": blocks})
    last = messages[-1]["content"]
    last[-1] = {**last[-1], "cache_control": CACHED}
    return messages


def _blocks(each: Exchange) -> list[dict[str, Any]]:
    if isinstance(each, ToolResult):
        if not each.call:
            return [{"type": "text", "text": each.text}]
        result = {"type": "tool_result", "tool_use_id": each.call, "content": each.text}
        return [{**result, "is_error": True} if each.is_error else result]
    if each.blocks:
        return [dict(block) for block in each.blocks]
    said = [{"type": "text", "text": each.text}] if each.text.strip() else []
    made = [
        {"type": "tool_use", "id": call.id, "name": call.name, "input": dict(call.arguments)}
        for call in each.calls
    ]
    return [*said, *made] or [{"type": "text", "text": _NOTHING}]


def reply_of(message: Mapping[str, Any]) -> Reply:
    """Return a reply; blocks are told by their type, never by their place.

    Args:
        message: the API's message as JSON has it.
    """
    content: Sequence[Mapping[str, Any]] = message["content"]
    tokens = tokens_of(message["usage"])
    return Reply(
        text="\n".join(_texts(content)),
        calls=tuple(
            ToolCall(block["id"], block["name"], block["input"])
            for block in content
            if block["type"] == "tool_use"
        ),
        usage=Usage(tokens=tokens.total, model_calls=1),
        tokens=tokens,
        stop=message.get("stop_reason") or "",
        blocks=tuple(content),
        model=message.get("model", ""),
    )


def _texts(content: Iterable[Mapping[str, Any]]) -> Iterable[str]:
    return (block["text"] for block in content if block["type"] == "text" and block["text"].strip())


def tokens_of(usage: Mapping[str, Any]) -> Tokens:
    """Return tokens by kind. The API's `input_tokens` leaves out what the cache was read or written for."""
    written = usage.get("cache_creation_input_tokens") or 0
    long = ((usage.get("cache_creation") or {}).get("ephemeral_1h_input_tokens")) or 0
    return Tokens(
        input=usage.get("input_tokens") or 0,
        cache_read=usage.get("cache_read_input_tokens") or 0,
        cache_write=written - long,
        cache_write_1h=long,
        output=usage.get("output_tokens") or 0,
        thinking=((usage.get("output_tokens_details") or {}).get("thinking_tokens")) or 0,
    )
