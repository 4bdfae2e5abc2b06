"""OpenAI's Responses API through the real SDK against the loopback stub: what is sent and comes back."""

import contextlib
import json
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest

from mesh.agent.tools import tool
from mesh.model import ClaudeAgent, PastReply, Reply, ResponsesModel
from mesh.model.loop import drive
from mesh.model.port import ToolResult
from mesh.model.prompt import Instructions
from mesh.model.vendor import ModelRefused, ModelRetry, ModelThrottled, ModelUnreadable
from mesh.model.vendors import VENDORS, pinned
from mesh.testing import turn
from protocol.wire.moves import Complete
from protocol.wire.prices import Tokens
from tests.unit.model.vendor import PROMPT, failing
from tests.vendors.openai_responses import SEALED, StubResponses
from tests.vendors.stand_in import Answer, calls, fails, says, thinks, writes

MODEL, OTHER = "gpt-6-astra", "gpt-6-luna"


@contextlib.asynccontextmanager
async def responses(*script: Answer, **more: Any) -> AsyncIterator[tuple[StubResponses, ResponsesModel]]:
    """Yield a stub and a model that asks it; what the stub refuses, the vendor would."""
    async with StubResponses(script) as stub:
        model = ResponsesModel(MODEL, base_url=stub.url, api_key="stub", **more)
        try:
            yield stub, model
            assert stub.refused == []
        finally:
            await model.close()


def past(reply: Reply, **changed: Any) -> PastReply:
    return replace(reply.in_transcript(), **changed)


async def test_the_prompt_is_sent_in_a_stable_order_and_nothing_is_stored_there() -> None:
    async with responses(says("ok"), more={"reasoning": {"effort": "low"}}) as (stub, model):
        await model.reply(PROMPT)
    body = stub.asked[0].body
    assert body["instructions"] == "Be brief."
    assert body["input"] == [{"role": "user", "content": "You are: triage"}]
    assert [(tool["name"], tool["strict"]) for tool in body["tools"]] == [("a", False), ("z", False)]
    assert (body["model"], body["max_output_tokens"]) == (MODEL, 16_000)
    assert (body["store"], body["include"]) == (False, ["reasoning.encrypted_content"])
    assert body["reasoning"] == {"effort": "low"}
    assert not body.keys() & {"temperature", "tool_choice", "previous_response_id", "conversation"}


async def test_a_reply_comes_with_its_calls_its_tokens_and_piece_by_piece() -> None:
    usage = {
        "input_tokens": 105,
        "input_tokens_details": {"cached_tokens": 70},
        "output_tokens": 11,
        "output_tokens_details": {"reasoning_tokens": 4},
    }
    heard: list[str | None] = []
    script = calls(("a", {"x": "a text of some length"}), ("z", {}), text="I try both of them.", usage=usage)
    async with responses(thinks("hm", script)) as (_, model):
        reply = await model.reply(PROMPT, heard.append)
    assert (reply.text, reply.stop, reply.model) == ("I try both of them.", "tool_use", MODEL)
    assert reply.id.startswith("resp_stub_")
    assert len(heard) > 1
    assert "".join(map(str, heard)) == reply.text
    assert [(call.name, dict(call.arguments)) for call in reply.calls] == [
        ("a", {"x": "a text of some length"}),
        ("z", {}),
    ]
    assert reply.tokens == Tokens(input=35, cache_read=70, output=11, thinking=4)
    assert [block["type"] for block in reply.blocks] == [
        "reasoning",
        "message",
        "function_call",
        "function_call",
    ]


async def test_thoughts_go_back_with_what_they_led_to_and_only_to_the_model_that_had_them() -> None:
    script = (thinks("hm", calls(("a", {"x": 1}))), says("ok"), says("ok"))
    async with responses(*script, fallback=OTHER) as (stub, model):
        first = await model.reply(PROMPT)
        result = ToolResult(first.calls[0].id, "a", "done")
        await model.reply(replace(PROMPT, transcript=(past(first), result)))
        await model.reply(replace(PROMPT, transcript=(past(first, model=OTHER), result)))
    own, others = (asked.body["input"][1:] for asked in stub.asked[1:])
    call = first.calls[0].id
    called = {"type": "function_call", "call_id": call, "name": "a", "arguments": '{"x":1}'}
    answered = {"type": "function_call_output", "call_id": call, "output": "done"}
    assert own == [
        {"type": "reasoning", "summary": [], "id": "rs_1_0", "encrypted_content": f"{SEALED}hm"},
        called,
        answered,
    ]
    assert others == [called, answered]


async def test_a_conversation_goes_back_with_each_call_answered() -> None:
    transcript = (
        PastReply("Hm."),
        ToolResult("", "", "Go on with it."),
        PastReply(""),
        PastReply("", blocks=({"type": "reasoning", "id": "r", "summary": [], "encrypted_content": SEALED},)),
    )
    async with responses(calls(("a", {}), ("a", {})), says("ok"), says("ok")) as (stub, model):
        first = await model.reply(PROMPT)
        await model.reply(replace(PROMPT, transcript=(past(first), ToolResult(first.calls[1].id, "a", ""))))
        await model.reply(replace(PROMPT, transcript=transcript))
    answers = [item for item in stub.asked[1].body["input"] if item.get("type") == "function_call_output"]
    assert [item["output"] for item in answers] == [
        "(nothing)",
        "Not done. Ask for it again if it is still wanted.",
    ]
    assert stub.asked[2].body["input"][1:] == [
        {"role": "assistant", "content": "Hm."},
        {"role": "user", "content": "Go on with it."},
        {"role": "assistant", "content": "(nothing)"},
        {"role": "user", "content": "Go on."},
        {"role": "assistant", "content": "(nothing)"},
        {"role": "user", "content": "Go on."},
    ]


@pytest.mark.parametrize(
    ("answer", "stop"),
    [
        (says("ok"), "end_turn"),
        (says("o", stop_reason="max_tokens"), "max_tokens"),
        (says("o", stop_reason="refusal"), "refusal"),
        (Answer(content=({"type": "refusal", "refusal": "no"},)), "refusal"),
        (calls(("a", {})), "tool_use"),
    ],
)
async def test_why_it_stopped_is_named_in_the_words_of_the_loop(answer: Answer, stop: str) -> None:
    async with responses(answer) as (_, model):
        assert (await model.reply(PROMPT)).stop == stop


async def test_arguments_that_cannot_be_read_are_reported_with_the_call() -> None:
    async with responses(writes("a", '{"x":'), writes("a", "[1]")) as (_, model):
        for _ in range(2):
            (call,) = (await model.reply(PROMPT)).calls
            assert (call.name, dict(call.arguments)) == ("a", {})
            assert call.unreadable


async def test_a_whole_response_in_place_of_a_stream_is_read() -> None:
    async with responses(replace(says("all at once"), whole=True)) as (_, model):
        reply = await model.reply(PROMPT)
    assert (reply.text, reply.stop) == ("all at once", "end_turn")


@pytest.mark.parametrize(
    ("answer", "error", "text"),
    [
        (fails(400, "prompt is too long"), ModelRefused, "prompt is too long"),
        (fails(429, retry_after_s=7), ModelThrottled, "status 429"),
        (fails(500), ModelRetry, "status 500"),
        (replace(says("a long text"), cut_after=2), ModelRetry, "broke off|cannot be reached"),
        (replace(says("a long text"), cut_after=2, cut_cleanly=True), ModelRetry, "ended before"),
        (says("", stop_reason="failed"), ModelRetry, "it failed: server_error"),
        (
            Answer(body=b'data: {"type": "response.completed", "response": {"output": 7}}\n\n'),
            ModelUnreadable,
            "none|no message|cannot be read",
        ),
        (Answer(body=b'data: {"type": "response.completed"}\n\n'), ModelUnreadable, "is none"),
        (Answer(whole=True, body=b"<html>", content_type="application/json"), ModelUnreadable, "no JSON"),
    ],
)
async def test_a_failure_is_typed_and_keeps_the_vendors_words(
    answer: Answer, error: type[Exception], text: str
) -> None:
    await failing(responses(answer), error, text)


async def test_a_turn_goes_as_with_any_model() -> None:
    found: list[int] = []

    @tool
    async def look_up(number: int) -> str:
        """Find an order."""
        found.append(number)
        return "shipped"

    script = (thinks("hm", calls(("look_up", {"number": 7}))), says("It was shipped."))
    async with responses(*script) as (stub, model):
        move = await drive(turn(), model, instructions="Be brief.", tools=(look_up,))
    assert (move, found) == (Complete(answer="It was shipped."), [7])
    kinds = [item.get("type") for item in stub.asked[1].body["input"]]
    assert kinds == [None, "reasoning", "function_call", "function_call_output"]


def test_a_prefix_pins_an_agent_to_it() -> None:
    assert pinned("openai_responses:gpt-6-astra") == (ResponsesModel, MODEL)
    assert VENDORS["openai_responses"].extra == "openai"
    agent = ClaudeAgent(
        "clerk", instructions=Instructions("1", "Be brief."), model=f"openai_responses:{MODEL}"
    )
    assert agent.name == "clerk"


async def test_the_request_is_printed_in_the_order_in_which_it_is_read() -> None:
    async with responses(calls(("a", {}))) as (_, model):
        first = await model.reply(PROMPT)
        request = model.request(replace(PROMPT, transcript=(past(first),)))
    headings = [section.heading for section in model.printed(request)]
    assert headings == ["settings", "tools", "system", "user", "function_call", "function_call_output"]
    assert json.dumps(request)
