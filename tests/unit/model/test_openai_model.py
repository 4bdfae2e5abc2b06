"""OpenAI's API through the real SDK against the loopback stub: what is sent, comes back, and fails how."""

import contextlib
import json
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mesh.agent._rate_limit import FIRST_PAUSE_S
from mesh.agent.definition import key_suffices
from mesh.agent.tools import tool
from mesh.model import ClaudeAgent, Model, OpenAIModel, Prompt, Reply, parts
from mesh.model.choice import VARIABLE, ModelUnavailable, close_models, driven_by, model_for
from mesh.model.loop import drive
from mesh.model.port import Hear, PastReply, ToolResult
from mesh.model.prompt import Instructions
from mesh.model.vendor import ModelRefused, ModelRetry, ModelUnreadable
from mesh.testing import MemorySteps, turn
from protocol.wire.handoff import Budget, Constraints
from protocol.wire.moves import Complete
from protocol.wire.prices import MTOK, Price, Tokens
from tests.unit.model.vendor import PROMPT, failing
from tests.vendors.openai import StubOpenAI
from tests.vendors.stand_in import Answer, calls, fails, says, thinks, writes

MODEL, OTHER = "gpt-6-astra", "gpt-6-luna"


@contextlib.asynccontextmanager
async def openai(*script: Answer, **more: Any) -> AsyncIterator[tuple[StubOpenAI, OpenAIModel]]:
    """Yield a stub and a model that asks it; what the stub refuses, the vendor would."""
    async with StubOpenAI(script) as stub:
        model = OpenAIModel(MODEL, base_url=stub.url, api_key="stub", **more)
        try:
            yield stub, model
            assert stub.refused == []
        finally:
            await model.close()


def chunk(*, choices: object = (), **more: object) -> bytes:
    """Return one chunk of a stream."""
    return f"data: {json.dumps({'id': 'c', 'model': MODEL, 'choices': choices, **more})}\n\n".encode()


def delta(stop: str | None = None, **said: object) -> bytes:
    return chunk(choices=[{"index": 0, "delta": said, "finish_reason": stop}])


def raw(*chunks: bytes) -> Answer:
    return Answer(body=b"".join((*chunks, b"data: [DONE]\n\n")))


async def test_the_prompt_is_sent_in_a_stable_order_as_a_stream_that_counts() -> None:
    async with openai(says("ok"), more={"reasoning_effort": "low"}) as (stub, model):
        await model.reply(PROMPT)
    body = stub.asked[0].body
    assert body["messages"] == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "You are: triage"},
    ]
    assert [tool["function"]["name"] for tool in body["tools"]] == ["a", "z"]
    assert (body["model"], body["max_completion_tokens"], body["reasoning_effort"]) == (MODEL, 16_000, "low")
    assert (body["stream"], body["stream_options"]) == (True, {"include_usage": True})
    assert not body.keys() & {"temperature", "tool_choice"}
    assert stub.asked[0].headers["authorization"] == "Bearer stub"


async def test_a_reply_comes_with_its_calls_its_tokens_and_piece_by_piece() -> None:
    usage = {
        "prompt_tokens": 105,
        "prompt_tokens_details": {"cached_tokens": 70, "cache_write_tokens": 30},
        "completion_tokens": 11,
        "completion_tokens_details": {"reasoning_tokens": 4},
    }
    heard: list[str | None] = []
    script = calls(("a", {"x": "a text of some length"}), ("z", {}), text="I try both of them.", usage=usage)
    async with openai(script) as (_, model):
        reply = await model.reply(PROMPT, heard.append)
    assert (reply.text, reply.stop, reply.model) == ("I try both of them.", "tool_use", MODEL)
    assert reply.id.startswith("chatcmpl-stub-")
    assert len(heard) > 1
    assert "".join(map(str, heard)) == reply.text
    assert [(call.name, dict(call.arguments)) for call in reply.calls] == [
        ("a", {"x": "a text of some length"}),
        ("z", {}),
    ]
    assert reply.tokens == Tokens(input=5, cache_read=70, cache_write=30, output=11, thinking=4)
    assert (reply.usage.tokens, reply.usage.model_calls) == (116, 1)


async def test_a_conversation_goes_back_with_each_call_answered_at_once() -> None:
    async with openai(calls(("a", {"x": 1}), ("z", {})), says("done")) as (stub, model):
        first = await model.reply(PROMPT)
        transcript = (
            PastReply(first.text, first.calls),
            ToolResult(first.calls[0].id, "a", "1"),
            ToolResult("", "", "Go on."),  # and the other call was not done
            PastReply("Hm."),
            PastReply(""),
        )
        await model.reply(replace(PROMPT, transcript=transcript))
    said = stub.asked[1].body["messages"][2:]
    assert [(each["role"], each["content"]) for each in said] == [
        ("assistant", None),
        ("tool", "1"),
        ("tool", "Not done. Ask for it again if it is still wanted."),
        ("user", "Go on."),
        ("assistant", "Hm."),
        ("user", "Go on."),
        ("assistant", "(nothing)"),
        ("user", "Go on."),
    ]
    assert [call["function"] for call in said[0]["tool_calls"]] == [
        {"name": "a", "arguments": '{"x":1}'},
        {"name": "z", "arguments": "{}"},
    ]


@pytest.mark.parametrize(
    ("answer", "stop"),
    [
        (says("x"), "end_turn"),
        (says("x", stop_reason="max_tokens"), "max_tokens"),
        (says("x", stop_reason="refusal"), "refusal"),
        (says("x", stop_reason="something new"), "something new"),
        (raw(delta(refusal="I will not."), delta("stop")), "refusal"),
    ],
)
async def test_why_it_stopped_is_said_in_the_words_of_the_loop(answer: Answer, stop: str) -> None:
    async with openai(answer) as (_, model):
        assert (await model.reply(PROMPT)).stop == stop


async def test_calls_that_cannot_be_read_are_told_and_ids_are_made_unique() -> None:
    part = {"index": 0, "id": "", "function": {"name": "a", "arguments": "{}"}}
    twice = raw(delta(tool_calls=[part]), delta(tool_calls=[{**part, "index": 1}]), delta("tool_calls"))
    async with openai(writes("a", "{no json"), writes("a", "[1]"), twice) as (_, model):
        assert (await model.reply(PROMPT)).calls[0].unreadable == "the arguments are no JSON that can be read"
        assert (await model.reply(PROMPT)).calls[0].unreadable == "the arguments are no object"
        reply = await model.reply(PROMPT)
    assert [call.id for call in reply.calls] == ["call_1", "call_2"]
    assert reply.tokens == Tokens()  # this server counts nothing


PIECES = {
    "without an index": [
        [{"id": "1", "function": {"name": "a", "arguments": '{"x":'}}],
        [{"function": {"arguments": "1}"}}],
        [{"id": "2", "function": {"name": "z", "arguments": "{}"}}],
    ],
    "two under one index": [
        [{"index": 0, "id": "1", "function": {"name": "a", "arguments": '{"x":1}'}}],
        [{"index": 0, "id": "2", "function": {"name": "z", "arguments": "{}"}}],
    ],
    "two under one index, without ids": [
        [
            {"index": 0, "function": {"name": "a", "arguments": '{"x":1}'}},
            {"index": 0, "function": {"name": "z", "arguments": "{}"}},
        ]
    ],
    "an object": [
        [
            {"index": 0, "id": "1", "function": {"name": "a", "arguments": {"x": 1}}},
            {"index": 1, "id": "2", "function": {"name": "z", "arguments": {}}},
        ]
    ],
    "in turns": [
        [
            {"index": 0, "id": "1", "function": {"name": "a", "arguments": ""}},
            {"index": 1, "id": "2", "function": {"name": "z", "arguments": "{"}},
        ],
        [
            {"index": 0, "function": {"arguments": '{"x":1}'}},
            {"index": 1, "id": "2", "function": {"arguments": "}"}},
        ],
    ],
}


@pytest.mark.parametrize("pieces", PIECES.values(), ids=PIECES)
async def test_calls_are_read_however_a_server_numbers_and_writes_them(pieces: list[Any]) -> None:
    answer = raw(*(delta(tool_calls=each) for each in pieces), delta("tool_calls"))
    async with openai(answer) as (_, model):
        reply = await model.reply(PROMPT)
    assert [(call.name, dict(call.arguments)) for call in reply.calls] == [("a", {"x": 1}), ("z", {})]


async def test_a_whole_message_in_place_of_a_stream_is_read() -> None:
    heard: list[str | None] = []
    script = calls(("a", {"x": 1}), ("a", {"x": 2}), text="I try both.", whole=True)
    async with openai(script, Answer(whole=True, body=b"<html>"), Answer(whole=True, body=b"[]")) as (
        _,
        model,
    ):
        reply = await model.reply(PROMPT, heard.append)
        for _wrong in range(2):
            with pytest.raises(ModelUnreadable):
                await model.reply(PROMPT)
    assert ([dict(call.arguments) for call in reply.calls], reply.stop) == ([{"x": 1}, {"x": 2}], "tool_use")
    assert heard == ["I try both."]
    assert reply.tokens.total == 120


async def test_thoughts_go_back_to_the_model_that_had_them_and_to_no_other() -> None:
    script = [thinks("It may be a.", calls(("a", {"x": 1}))), says("done"), says("done")]
    async with openai(*script, fallback=OTHER) as (stub, model):
        first = await model.reply(PROMPT)
        said = PastReply(first.text, first.calls, first.blocks, first.model)
        for each in (said, replace(said, model=OTHER)):
            await model.reply(replace(PROMPT, transcript=(each, ToolResult(first.calls[0].id, "a", "1"))))
    own, others = (asked.body["messages"][2] for asked in stub.asked[1:])
    assert own["reasoning_content"] == "It may be a."
    assert "reasoning_content" not in others


async def test_what_the_vendor_says_of_a_failure_is_kept_without_the_key() -> None:
    said = "prompt is too long: 200001 tokens > 200000"
    refused = await failing(openai(fails(400, said)), ModelRefused)
    assert str(refused) == f"status 400 invalid_request_error: {said}, request req_stub_1"
    wrong = await failing(openai(fails(401, "no such key: stub\n" + "x" * 999)), ModelRefused)
    assert "no such key: [key] x" in str(wrong)
    assert len(str(wrong)) < 400


@pytest.mark.parametrize("status", [408, 409, 429, 500, 503])
async def test_what_may_pass_is_tried_again_after_the_pause_that_was_asked_for(status: int) -> None:
    async with openai(fails(status, retry_after_s=7)) as (stub, model):
        with pytest.raises(ModelRetry, match=f"status {status}.*request req_stub_1") as failed:
            await model.reply(PROMPT)
    assert 7 <= (failed.value.after_s or 0) <= 7 + FIRST_PAUSE_S
    assert len(stub.asked) == 1, "the SDK must not try again by itself"


@pytest.mark.parametrize(
    ("answer", "error", "said"),
    [
        *((fails(status), ModelRefused, f"status {status}") for status in (400, 401, 403, 404, 422)),
        (fails(400, error_code="context_length_exceeded"), ModelRefused, "context_length_exceeded"),
        (fails(429, error_code="insufficient_quota"), ModelRefused, "insufficient_quota"),
        (says("a few pieces of text", cut_after=3, broken_by=400), ModelRefused, "invalid_request_error"),
        (says("a few pieces of text", cut_after=3, broken_by=503), ModelRetry, "server_error"),
        (says("a few pieces of text", cut_after=3), ModelRetry, "broke off|cannot be reached"),
        (says("a few pieces of text", cut_after=3, cut_cleanly=True), ModelRetry, "ended before the message"),
        (Answer(cut_after=0), ModelRetry, "."),
        (says("late", delay_s=30), ModelRetry, r"within 0\.2 s"),
        (raw(), ModelUnreadable, "no message in it"),
        (raw(b"data: no json\n\n"), ModelUnreadable, "the SDK cannot read it"),
        (raw(chunk(choices=[{"delta": {"content": 7}}])), ModelUnreadable, "`content` is no text"),
        (raw(chunk(choices=[{"delta": {"tool_calls": [{}]}}])), ModelUnreadable, "an event that is none"),
    ],
)
async def test_what_no_pause_cures_is_permanent_and_the_rest_is_tried_again(
    answer: Answer, error: type[Exception], said: str
) -> None:
    await failing(openai(answer, timeout_s=0.2 if answer.delay_s else 60), error, said)


async def test_a_fallback_is_asked_once_and_what_was_heard_before_is_void() -> None:
    heard: list[str | None] = []
    broken = says("Your refund of 1", cut_after=3, broken_by=503)
    async with openai(broken, says("instead"), fallback=OTHER) as (stub, model):
        reply = await model.reply(PROMPT, heard.append)
    assert [asked.body["model"] for asked in stub.asked] == [MODEL, OTHER]
    assert (reply.text, reply.model) == ("instead", OTHER)
    assert "".join(map(str, heard[heard.index(None) + 1 :])) == "instead"


# --- behind an agent ------------------------------------------------------------------------------


@tool
async def look(n: int) -> int:
    """Look."""
    return n


PRICES = {MODEL: Price(input=MTOK, output=2 * MTOK)}


async def test_a_turn_goes_as_with_any_model_and_is_paid_once() -> None:
    steps = MemorySteps()
    async with openai(calls(("look", {"n": 1})), says("ok")) as (stub, model):
        for _ in range(2):  # the second delivery reads the journal
            on = turn(prices=PRICES, steps=steps)
            move = await drive(on, model, instructions="Look.", tools=(look,))
            assert move == Complete(answer="ok")
            assert on.execution.report.usage.nano_dollars == 2 * (100 + 2 * 20)
    assert len(stub.asked) == 2
    assert stub.asked[1].body["messages"][-1]["content"] == "1"


async def test_a_budget_counts_its_tokens() -> None:
    limits = Constraints(budget=Budget(tokens=100))
    async with openai(calls(("look", {"n": 1}))) as (_, model):
        with pytest.raises(Exception, match="spent 120 of 100 tokens"):
            await drive(turn(constraints=limits), model, instructions="Look.", tools=(look,))


# --- which model ----------------------------------------------------------------------------------

WORDS = Instructions("1", "Be kind.")


@pytest.fixture(autouse=True)
def _nothing_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (VARIABLE, "ANTHROPIC_API_KEY", "OPENAI_API_KEY", "OPENAI_BASE_URL"):
        monkeypatch.delenv(name, raising=False)


async def test_a_prefix_pins_an_agent_to_it_and_only_if_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    agent = ClaudeAgent("a", instructions=WORDS, model=f"openai:{MODEL}")
    async with StubOpenAI(lambda body: says("paid for")) as stub:
        monkeypatch.setenv("OPENAI_API_KEY", "sk-of-a-developer")
        monkeypatch.setenv("OPENAI_BASE_URL", stub.url)
        with pytest.raises(ModelUnavailable, match="set MESH_MODEL=openai and OPENAI_API_KEY"):
            await agent(turn(agent="a"))
        assert stub.asked == []
        with key_suffices():
            assert driven_by(agent) == MODEL
            assert await agent(turn(agent="a", prices=PRICES)) == Complete(answer="paid for")
        monkeypatch.setenv(VARIABLE, "openai")
        assert await agent(turn(agent="a", prices=PRICES)) == Complete(answer="paid for")
        assert [asked.body["model"] for asked in stub.asked] == [MODEL, MODEL]
        await close_models()


def test_another_vendors_models_are_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk")
    monkeypatch.setenv(VARIABLE, "claude")
    with pytest.raises(ModelUnavailable, match=f"openai:{MODEL} is another vendor's: say MESH_MODEL=openai"):
        model_for("a", model=f"openai:{MODEL}")
    monkeypatch.setenv(VARIABLE, "openai")
    with pytest.raises(ModelUnavailable, match="set OPENAI_API_KEY or OPENAI_BASE_URL"):
        model_for("a", model=f"openai:{MODEL}")
    with pytest.raises(ValueError, match="no fallback: a model has one of its own vendor"):
        ClaudeAgent("a", instructions=WORDS, model=f"openai:{MODEL}", fallback="claude-haiku-5-5")


async def test_a_server_of_ones_own_wants_no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    async with StubOpenAI([says("mine")]) as stub:
        model = OpenAIModel("qwen3", base_url=stub.url)
        assert (await model.reply(PROMPT)).text == "mine"
        await model.close()
    assert stub.asked[0].headers["authorization"] == "Bearer none"


async def test_an_object_that_asks_a_vendor_is_asked_only_if_it_may_be(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    script = tmp_path / "rules.toml"
    script.write_text('[a]\nfallback = { answer = "by the rules" }\n')
    async with StubOpenAI([says("mine")]) as stub:
        model = OpenAIModel("qwen3", base_url=stub.url)
        agent = ClaudeAgent("a", instructions=WORDS, model=model, script=script)
        assert await agent(turn(agent="a")) == Complete(answer="by the rules")
        monkeypatch.setenv(VARIABLE, "openai")
        monkeypatch.setenv("OPENAI_BASE_URL", stub.url)
        assert driven_by(agent) == "qwen3"
        free = {"qwen3": Price(input=0, output=0)}
        assert await agent(turn(agent="a", prices=free)) == Complete(answer="mine")
        await model.close()


class Echo(Model):
    """A model of one's own."""

    mode = "echo"

    async def reply(self, prompt: Prompt, hear: Hear | None = None) -> Reply:
        return Reply(text=prompt.brief.partition("\n")[0])


@pytest.mark.parametrize("said", ["", "claude", "openai", "scripted"])
async def test_a_model_of_ones_own_replies_by_itself_unless_its_rules_are_asked_for(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, said: str
) -> None:
    monkeypatch.setenv(VARIABLE, said)
    agent = ClaudeAgent("a", instructions=WORDS, model=Echo())
    assert driven_by(agent) == "echo"
    assert await agent(turn(agent="a")) == Complete(answer="You are: a")
    script = tmp_path / "rules.toml"
    script.write_text('[a]\nfallback = { answer = "by the rules" }\n')
    ruled = ClaudeAgent("a", instructions=WORDS, model=Echo(), script=script)
    answer = "by the rules" if said == "scripted" else "You are: a"
    assert await ruled(turn(agent="a")) == Complete(answer=answer)


@pytest.mark.parametrize("strange", [None, 7, "", "two words", "x" * 129, "\x1b[2J"])
def test_an_id_of_a_reply_that_could_not_be_looked_up_is_left_out(strange: object) -> None:
    assert parts.id_of(strange) == ""
    assert parts.id_of("chatcmpl-9.a:b/c") == "chatcmpl-9.a:b/c"
