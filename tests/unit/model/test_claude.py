"""Claude through the real SDK against the loopback stub: what is sent, what comes back, what fails how."""

from dataclasses import replace

import pytest

from mesh.model.anthropic.model import ModelRefused, ModelRetry
from mesh.model.port import Said, ToolCall, ToolResult
from protocol.wire.prices import Tokens
from tests.claude_stub import Answer, calls, fails, says, thinks
from tests.unit.model.vendor import PROMPT, claude


async def test_the_prompt_is_sent_in_a_stable_order_with_the_cache_marked() -> None:
    async with claude(says("ok")) as (stub, model):
        await model.reply(PROMPT)
    body = stub.asked[0].body
    assert body["system"] == [{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}]
    assert [tool["name"] for tool in body["tools"]] == ["a", "z"]
    assert body["tool_choice"] == {"type": "auto"}
    assert [message["role"] for message in body["messages"]] == ["user"]
    assert body["messages"][0]["content"][-1]["cache_control"] == {"type": "ephemeral"}
    assert "temperature" not in body


async def test_a_reply_comes_with_its_calls_its_tokens_and_the_parts_it_was_made_of() -> None:
    usage = {
        "input_tokens": 5,
        "cache_read_input_tokens": 70,
        "cache_creation_input_tokens": 30,
        "cache_creation": {"ephemeral_5m_input_tokens": 10, "ephemeral_1h_input_tokens": 20},
        "output_tokens": 11,
    }
    async with claude(thinks("hm", calls(("a", {"x": 1}), text="I try.", usage=usage))) as (_, model):
        reply = await model.reply(PROMPT)
    assert reply.text == "I try."
    assert [(call.name, dict(call.arguments)) for call in reply.calls] == [("a", {"x": 1})]
    assert reply.tokens == Tokens(input=5, cache_read=70, cache_write=10, cache_write_1h=20, output=11)
    assert reply.usage.tokens == 5 + 70 + 30 + 11
    assert (reply.usage.model_calls, reply.stop) == (1, "tool_use")
    assert [block["type"] for block in reply.blocks] == ["thinking", "text", "tool_use"]


async def test_within_a_round_a_reply_goes_back_as_it_came_and_results_follow_it() -> None:
    script = [thinks("hm", calls(("a", {}), ("z", {}))), says("done")]
    async with claude(*script) as (stub, model):
        first = await model.reply(PROMPT)
        one, other = first.calls
        transcript = (
            Said(first.text, first.calls, first.blocks),
            ToolResult(one.id, "a", "1"),
            ToolResult(other.id, "z", "no", is_error=True),
            ToolResult("", "", "Go on."),
        )
        await model.reply(replace(PROMPT, transcript=transcript))
    sent = stub.asked[1].body["messages"]
    assert [message["role"] for message in sent] == ["user", "assistant", "user"]
    assert [block["type"] for block in sent[1]["content"]] == ["thinking", "tool_use", "tool_use"]
    assert sent[1]["content"][0]["signature"]
    results = sent[2]["content"]
    assert [block["type"] for block in results] == ["tool_result", "tool_result", "text"]
    assert results[1]["is_error"]
    assert [block.get("tool_use_id") for block in results[:2]] == [one.id, other.id]


async def test_a_transcript_without_the_models_own_parts_is_told_in_plain_blocks() -> None:
    said = Said("I look.", (ToolCall("t1", "a", {"x": 1}),))
    async with claude(says("ok")) as (stub, model):
        await model.reply(replace(PROMPT, transcript=(said, ToolResult("t1", "a", "2"))))
    assert stub.asked[0].body["messages"][1]["content"] == [
        {"type": "text", "text": "I look."},
        {"type": "tool_use", "id": "t1", "name": "a", "input": {"x": 1}},
    ]


async def test_text_is_heard_while_it_comes() -> None:
    heard: list[str | None] = []
    async with claude(says("one two three four five six")) as (_, model):
        reply = await model.reply(PROMPT, heard.append)
    assert len(heard) > 1
    assert "".join(map(str, heard)) == reply.text


@pytest.mark.parametrize("status", [408, 409, 429, 500, 503, 529])
async def test_what_may_pass_is_tried_again_after_the_pause_that_was_asked_for(status: int) -> None:
    async with claude(fails(status, retry_after_s=7)) as (stub, model):
        with pytest.raises(ModelRetry, match=f"status {status}.*request req_stub_1") as failed:
            await model.reply(PROMPT)
    assert failed.value.after_s == 7
    assert len(stub.asked) == 1, "the SDK must not try again by itself"


@pytest.mark.parametrize("status", [400, 401, 402, 403, 404, 413, 422])
async def test_what_no_pause_cures_is_permanent(status: int) -> None:
    async with claude(fails(status)) as (_, model):
        with pytest.raises(ModelRefused, match=f"status {status}"):
            await model.reply(PROMPT)


async def test_a_spent_limit_is_permanent_though_its_status_says_later() -> None:
    async with claude(fails(429, error_code="enforced_spend_limit_reached")) as (_, model):
        with pytest.raises(ModelRefused, match="enforced_spend_limit_reached"):
            await model.reply(PROMPT)


@pytest.mark.parametrize(
    "broken",
    [
        Answer(cut_after=0),
        says("a few pieces of text", cut_after=4),
        says("a few pieces of text", cut_after=4, broken_by=529),
    ],
)
async def test_a_connection_that_breaks_is_tried_again(broken: Answer) -> None:
    async with claude(broken) as (_, model):
        with pytest.raises(ModelRetry):
            await model.reply(PROMPT)


async def test_an_answer_that_never_comes_is_given_up() -> None:
    async with claude(says("late", delay_s=30), timeout_s=0.2) as (_, model):
        with pytest.raises(ModelRetry, match=r"within 0\.2 s"):
            await model.reply(PROMPT)


@pytest.mark.parametrize("asked", ["inf", "nan", "-inf", "soon"])
async def test_a_pause_that_is_no_number_is_none(asked: str) -> None:
    async with claude(Answer(status=500, headers={"retry-after": asked})) as (_, model):
        with pytest.raises(ModelRetry) as failed:
            await model.reply(PROMPT)
    assert failed.value.after_s is None


@pytest.mark.parametrize(
    ("headers", "after_s"),
    [
        ({"retry-after": "1e308"}, 3600),
        ({"retry-after": "99999999"}, 3600),
        ({"retry-after": "-5"}, 0),
        ({"retry-after-ms": "1500", "retry-after": "7"}, 1.5),
        ({"retry-after-ms": "inf", "retry-after": "7"}, 7),
    ],
)
async def test_no_pause_is_longer_than_an_hour(headers: dict[str, str], after_s: float) -> None:
    async with claude(Answer(status=500, headers=headers)) as (_, model):
        with pytest.raises(ModelRetry) as failed:
            await model.reply(PROMPT)
    assert failed.value.after_s == after_s


async def test_why_the_model_stopped_is_kept() -> None:
    refusal = says("I will not", stop_reason="refusal", stop_details={"type": "refusal"})
    async with claude(refusal) as (_, model):
        reply = await model.reply(PROMPT)
    assert reply.stop == "refusal"


async def test_an_error_in_the_middle_of_a_stream_counts_by_what_it_is_called() -> None:
    async with claude(says("a few pieces of text", cut_after=4, broken_by=400)) as (_, model):
        with pytest.raises(ModelRefused, match="invalid_request_error"):
            await model.reply(PROMPT)


async def test_an_empty_system_text_is_left_out() -> None:
    async with claude(says("ok")) as (stub, model):
        await model.reply(replace(PROMPT, instructions=" \n"))
    assert "system" not in stub.asked[0].body
