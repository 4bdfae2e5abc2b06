"""A conversation as the API demands it: the two sides alternate, and every call is answered in the next
message, its results before anything else.

What the mesh says is told in that order, whatever the order in which it was said. A call that nobody
answered is answered with an error, and a reply that nothing followed is asked to go on, unless it stopped
in the middle of the vendor's own tools: that one goes on by itself.
"""

from typing import Any

from mesh.model.claude_blocks import NOTHING, OWN_TOOLS, Block, encodable
from mesh.model.port import ToolResult

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
