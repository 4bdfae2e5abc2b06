"""The events of one streamed reply, added up to a message: pure, without the vendor's SDK.

The SDK adds up, too. But it takes a stream that ends early for a whole message, and loses the whole reply
over one call whose arguments are no JSON. Here a message is whole only after its `message_stop`, and the
pieces of a call's arguments are read when all of them are there.
"""

from collections.abc import Mapping
from typing import Any

import msgspec

_WRITTEN = frozenset({"tool_use", "server_tool_use"})
"""Blocks whose `input` comes as pieces of JSON."""
_AT_THE_END = ("stop_reason", "stop_sequence", "stop_details")
"""Known only when a message ends."""


class Unreadable(Exception):
    """The events are no message of the API. The text names the fault, and repeats nothing of the reply."""


class BrokenOff(Exception):
    """The stream ended before the message did."""


class Streamed:
    """One reply while it comes in."""

    def __init__(self) -> None:
        self._message: dict[str, Any] | None = None
        self._blocks: dict[Any, dict[str, Any]] = {}
        """By the vendor's index, in the order in which they began."""
        self._written: dict[Any, list[str]] = {}
        """Pieces of JSON, by the same index."""
        self.ended = False
        """True after `message_stop`."""

    def take(self, event: Mapping[str, Any]) -> str:
        """Add an event; return its piece of text, empty if it has none. Raises Unreadable."""
        kind = event.get("type")
        if kind == "message_start":
            self._begin(event.get("message"))
        elif not isinstance(kind, str):
            raise Unreadable("an event without a type")
        elif self._message is None:
            raise Unreadable("an event before the message began")
        elif kind == "content_block_start":
            self._open(event.get("index"), event.get("content_block"))
        elif kind == "content_block_delta":
            return self._add(event.get("index"), event.get("delta"))
        elif kind == "message_delta":
            self._update(self._message, event)
        elif kind == "message_stop":
            self.ended = True
        return ""

    def message(self) -> dict[str, Any]:
        """Return the message as the API gives it without a stream. Raises BrokenOff, Unreadable.

        An `input` that cannot be read is None.
        """
        if self._message is None:
            raise Unreadable("no message in it")
        if not self.ended:
            raise BrokenOff("the stream ended before the message")
        if self._message.get("stop_reason") is None:
            raise BrokenOff("the message does not say why it ended")
        content = []
        for index, block in self._blocks.items():
            written = "".join(self._written.get(index, ()))
            content.append({**block, "input": _read(written)} if written else block)
        return {**self._message, "content": content}

    def _begin(self, message: object) -> None:
        if self._message is not None:
            raise Unreadable("a second message began")
        if not isinstance(message, Mapping) or not isinstance(message.get("content"), list):
            raise Unreadable("a message without content")
        if not isinstance(message.get("usage"), Mapping):
            raise Unreadable("a message without usage")
        self._message = {**message, "usage": dict(message["usage"])}
        for index, block in enumerate(message["content"]):
            self._open(index, block)

    def _open(self, index: object, block: object) -> None:
        if not isinstance(index, int) or index in self._blocks:
            raise Unreadable("a block without an index of its own")
        if not isinstance(block, Mapping) or not isinstance(block.get("type"), str):
            raise Unreadable("a block without a type")
        self._blocks[index] = dict(block)

    def _add(self, index: object, delta: object) -> str:
        block = self._blocks.get(index) if isinstance(index, int) else None
        if block is None or not isinstance(delta, Mapping):
            raise Unreadable("a piece of no block")
        kind = delta.get("type")
        if kind == "input_json_delta" and block["type"] in _WRITTEN:
            self._written.setdefault(index, []).append(text_of(delta, "partial_json"))
        elif kind == "text_delta" and block["type"] == "text":
            piece = text_of(delta, "text")
            block["text"] = text_of(block, "text") + piece
            return piece
        elif kind == "thinking_delta" and block["type"] == "thinking":
            block["thinking"] = text_of(block, "thinking") + text_of(delta, "thinking")
        elif kind == "signature_delta" and block["type"] == "thinking":
            block["signature"] = text_of(delta, "signature")
        elif kind == "citations_delta" and block["type"] == "text":
            cited = block.get("citations")
            block["citations"] = [*(cited if isinstance(cited, list) else ()), delta.get("citation")]
        return ""

    def _update(self, message: dict[str, Any], event: Mapping[str, Any]) -> None:
        delta, usage = event.get("delta"), event.get("usage")
        if not isinstance(delta, Mapping) or not isinstance(usage, Mapping):
            raise Unreadable("an end without a reason or usage")
        message |= {name: delta[name] for name in _AT_THE_END if name in delta}
        message["usage"] |= {name: count for name, count in usage.items() if count is not None}


def text_of(part: Mapping[str, Any], name: str) -> str:
    """Return a text of a block or a message. Raises Unreadable."""
    found = part.get(name)
    if not isinstance(found, str):
        raise Unreadable(f"`{name}` is no text")
    return found


def _read(written: str) -> Any:
    """Return JSON as a value; None if it cannot be read."""
    try:
        return msgspec.json.decode(written)
    except (msgspec.MsgspecError, RecursionError, UnicodeError):
        return None
