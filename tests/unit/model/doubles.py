"""A model that says what it is told to, and shows what it was asked."""

from collections.abc import Mapping
from typing import Any

from mesh.model.port import Hear, Model, Prompt, Reply, ToolCall
from protocol.wire.commands import Usage


class TalkingModel(Model):
    """Replies in order; `prompts` are those it got."""

    mode = "talking"

    def __init__(self, *replies: Reply) -> None:
        self._replies = list(replies)
        self.prompts: list[Prompt] = []

    async def reply(self, prompt: Prompt, hear: Hear | None = None) -> Reply:
        self.prompts.append(prompt)
        return self._replies.pop(0)


class StubbornModel(Model):
    """Gives the same reply for ever."""

    mode = "stubborn"

    def __init__(self, reply: Reply) -> None:
        self._reply = reply
        self.asked = 0

    async def reply(self, prompt: Prompt, hear: Hear | None = None) -> Reply:
        self.asked += 1
        return self._reply


def says(text: str, *, nano_dollars: int = 0, tokens: int = 0, model_calls: int = 0) -> Reply:
    usage = Usage(nano_dollars=nano_dollars, tokens=tokens, model_calls=model_calls)
    return Reply(text=text, usage=usage)


def calls(*asked: tuple[str, Mapping[str, Any]]) -> Reply:
    return Reply(calls=tuple(ToolCall(f"call_{n}", name, given) for n, (name, given) in enumerate(asked)))
