"""Claude through the real SDK against the loopback stub, and prompts to ask it with."""

import contextlib
import json
from collections.abc import AsyncIterator, Iterable
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from typing import Any, TypeVar

import pytest

from mesh.model.port import Exchange, Hear, Model, PastReply, Prompt, Reply, ToolSpec
from mesh.model.vendors.claude import ClaudeModel
from tests.vendors.claude import StubClaude
from tests.vendors.stand_in import Answer

E = TypeVar("E", bound=Exception)
MODEL, OTHER = "claude-haiku-5-5", "claude-sonnet-5-5"
PROMPT = Prompt(
    agent="triage",
    instructions="Be brief.",
    brief="You are: triage",
    tools=(ToolSpec("z", "last", {"type": "object"}), ToolSpec("a", "first", {"type": "object"})),
)


@contextlib.asynccontextmanager
async def claude(*script: Answer, **more: Any) -> AsyncIterator[tuple[StubClaude, ClaudeModel]]:
    """Yield a stub and a model that asks it; what the stub refuses, the vendor would."""
    async with StubClaude(script) as stub:
        model = ClaudeModel(MODEL, base_url=stub.url, api_key="stub", **more)
        try:
            yield stub, model
            assert stub.refused == []
        finally:
            await model.close()


async def replied(answer: Answer, hear: Hear | None = None, **more: Any) -> Reply:
    """Return the reply that a model makes of an answer."""
    async with claude(answer, **more) as (_, model):
        return await model.reply(PROMPT, hear)


async def failing(
    asking: AbstractAsyncContextManager[tuple[Any, Model]], error: type[E], said: str | None = None
) -> E:
    """Ask a model, and return the error that it has to fail with, which says this."""
    async with asking as (_, model):
        with pytest.raises(error, match=said) as failed:
            await model.reply(PROMPT)
    return failed.value


def after(*exchanges: Exchange) -> Prompt:
    """Return the prompt in the middle of a conversation."""
    return replace(PROMPT, transcript=exchanges)


def said(reply: Reply) -> PastReply:
    return PastReply(reply.text, reply.calls, reply.blocks, reply.model)


def sent(stub: StubClaude, number: int = -1) -> list[Any]:
    """Return what a request says after the brief: pairs of a role and its blocks, without the markers."""
    messages = stub.asked[number].body["messages"][1:]
    return [(message["role"], list(map(_unmarked, message["content"]))) for message in messages]


def _unmarked(block: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in block.items() if name != "cache_control"}


def event(kind: str, **data: object) -> bytes:
    """Return one event of a stream."""
    return f"event: {kind}\ndata: {json.dumps({'type': kind, **data})}\n\n".encode()


def begun(**more: object) -> bytes:
    """Return how a stream begins; a value of None is sent, one that is `...` is left out."""
    message: dict[str, object] = {"id": "m", "type": "message", "role": "assistant", "model": MODEL}
    usage = {"input_tokens": 10, "output_tokens": 1}
    message |= {"content": [], "stop_reason": None, "usage": usage, **more}
    return event("message_start", message={name: it for name, it in message.items() if it is not ...})


def block(start: object, *deltas: object, index: object = 0) -> bytes:
    """Return one block of a stream."""
    pieces = (event("content_block_delta", index=index, delta=delta) for delta in deltas)
    first = event("content_block_start", index=index, content_block=start)
    return b"".join([first, *pieces, event("content_block_stop", index=index)])


def text(*pieces: str) -> bytes:
    deltas = ({"type": "text_delta", "text": piece} for piece in pieces)
    return block({"type": "text", "text": ""}, *deltas)


def ended(stop: object = "end_turn", usage: object = None) -> bytes:
    """Return how a stream ends."""
    delta = {"stop_reason": stop, "stop_sequence": None}
    return event("message_delta", delta=delta, usage=usage or {"output_tokens": 5}) + event("message_stop")


def raw(*events: bytes, **more: Any) -> Answer:
    return Answer(body=b"".join(events), **more)


def kinds(blocks: Iterable[Any]) -> list[str]:
    return [each["type"] for each in blocks]
