"""A reply's blocks as the API takes them back: as they came, but for what it would not have.

It refuses an empty text, a name that no tool can have, a block that it does not know, and thoughts that
are unsigned, last, another model's, or moved. Thoughts are bound to all that was said before them: once a
block of a reply is left out or changed, those that follow it in that reply are left out, too.
"""

import re
from collections.abc import Mapping
from typing import Any

from mesh.model.port import Said

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
