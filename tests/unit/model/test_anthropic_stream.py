"""What a reply can come to on its way: broken off, unreadable, or with calls that cannot be read."""

import json
import string
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mesh.model.parts import MOST_TOKENS, BrokenOff, Unreadable
from mesh.model.port import Prompt, ToolResult
from mesh.model.vendor import ModelRefused, ModelRetry, ModelUnreadable
from mesh.model.vendors.claude import ClaudeModel, reply_of
from mesh.model.vendors.claude import StreamedMessage as Streamed
from protocol.wire.prices import Tokens
from tests.unit.model.vendor import (
    MODEL,
    PROMPT,
    after,
    begun,
    block,
    claude,
    ended,
    event,
    failing,
    raw,
    replied,
    said,
    sent,
    text,
)
from tests.vendors.claude import StubClaude
from tests.vendors.claude_rules import violations
from tests.vendors.stand_in import Answer, calls, fails, says, thinks, writes

WHOLE = thinks("hm", calls(("a", {"path": "/srv/data/old"}), text="I delete it."))
EVENTS = 16
"""Of WHOLE, as the stub cuts it into pieces."""


@pytest.mark.parametrize("number", range(1, EVENTS))
async def test_a_stream_that_ends_early_is_no_reply_however_cleanly_it_ends(number: int) -> None:
    cut = Answer(WHOLE.content, WHOLE.stop_reason, cut_after=number, cut_cleanly=True)
    assert type(await failing(claude(cut), ModelRetry, r"broke off: .*request req_stub_1")) is ModelRetry


async def test_with_its_last_event_it_is_one() -> None:
    whole = Answer(WHOLE.content, WHOLE.stop_reason, cut_after=EVENTS, cut_cleanly=True)
    (call,) = (await replied(whole)).calls
    assert (call.arguments, call.unreadable) == ({"path": "/srv/data/old"}, "")


async def test_a_reply_that_does_not_say_why_it_ended_has_not() -> None:
    await failing(claude(says("Your refund of 1", stop_reason=None)), ModelRetry, "broke off")


DEEP = b'event: message_start\ndata: {"type": "message_start", "message": ' + b"[" * 100_000 + b"\n\n"
CALL = {"type": "tool_use", "id": "t1", "name": "a", "input": {}}
UNREADABLE = {
    "nothing": raw(b""),
    "only pings": raw(event("ping")),
    "a page": raw(b"<html>no</html>", content_type="text/html"),
    "a message at once": raw(json.dumps({"type": "message", "content": []}).encode()),
    "not what it is packed as": raw(b"x", headers={"content-encoding": "gzip"}),
    "no JSON": raw(b"event: message_start\ndata: not json\n\n"),
    "no UTF-8": raw(b"event: message_start\ndata: \xff\xfe\n\n"),
    "no object": raw(b"event: message_start\ndata: [1]\n\n"),
    "too deep": raw(DEEP),
    "no beginning": raw(text("x"), ended()),
    "two beginnings": raw(begun(), begun(), text("x"), ended()),
    "no content": raw(begun(content=...), ended()),
    "null for content": raw(begun(content=None), ended()),
    "no usage": raw(begun(usage=...), text("x"), ended()),
    "null for usage": raw(begun(usage=None), text("x"), ended()),
    "no usage at the end": raw(begun(), event("message_delta", delta={"stop_reason": "end_turn"})),
    "a reason that is none": raw(begun(), text("x"), ended(stop=["end_turn"])),
    "a block that is none": raw(begun(), block(None), ended()),
    "a block without a type": raw(begun(), block({"text": ""}), ended()),
    "a piece of no block": raw(begun(), event("content_block_delta", index=[7], delta={}), ended()),
    "a text that is none": raw(begun(), block({"type": "text", "text": 5}), ended()),
    "a call without an id": raw(begun(), block({**CALL, "id": None}), ended()),
    "a call without a name": raw(begun(), block({**CALL, "name": None}), ended()),
    "half a character thought": raw(
        begun(), block({"type": "thinking", "thinking": "\ud800", "signature": "s"}), ended()
    ),
    "the vendor's own call in pieces": raw(
        begun(),
        block({**CALL, "type": "server_tool_use"}, {"type": "input_json_delta", "partial_json": "{"}),
        ended(),
    ),
}


@pytest.mark.parametrize("answer", UNREADABLE.values(), ids=UNREADABLE.keys())
async def test_what_is_no_message_is_asked_for_again(answer: Answer) -> None:
    said = f"{MODEL} answered what cannot be read: .*req_stub_1"
    failed = await failing(claude(answer), ModelUnreadable, said)
    assert failed.code == "model.unreadable"
    assert failed.__cause__ is not None


@pytest.mark.parametrize(
    "body",
    [
        b"event: error\ndata: upstream connect error\n\n",
        event("error", error={"message": "no type"}),
        event("error", error={"type": "brand_new_error", "message": "?"}),
        event("error", error={"type": ["odd"], "message": "?"}),
        event("error", error={"type": "overloaded_error", "message": "?"}),
    ],
)
async def test_an_error_in_the_middle_of_a_stream_passes_unless_it_is_known_not_to(body: bytes) -> None:
    await failing(claude(raw(begun(), text("x"), body)), ModelRetry, "request req_stub_1")


async def test_a_whole_message_in_place_of_a_stream_is_read() -> None:
    heard: list[str | None] = []
    script = thinks("Hm.", calls(("a", {"x": 1}), text="I try it.", whole=True))
    reply = await replied(script, heard.append)
    assert (reply.text, reply.stop, dict(reply.calls[0].arguments)) == ("I try it.", "tool_use", {"x": 1})
    assert (heard, reply.tokens.total) == (["I try it."], 120)
    for wrong in (b"<html>", b"[]", b'{"type":"message"}', b'{"type":"error","error":{"message":"no"}}'):
        await failing(claude(Answer(whole=True, body=wrong)), ModelUnreadable)


async def test_what_the_vendor_says_of_a_failure_is_kept() -> None:
    said = "prompt is too long: 200001 tokens > 200000"
    refused = await failing(claude(fails(400, said)), ModelRefused)
    assert str(refused) == f"status 400 invalid_request_error: {said}, request req_stub_1"
    late = event("error", error={"type": "overloaded_error", "message": "come\nback"})
    assert "overloaded_error: come back, request" in str(
        await failing(claude(raw(begun(), late)), ModelRetry)
    )


async def test_an_error_whose_words_cannot_be_read_passes() -> None:
    await failing(claude(Answer(status=500, headers={"content-encoding": "gzip"})), ModelRetry)


async def test_what_an_error_is_called_is_said_only_if_it_is_a_name() -> None:
    odd = event("error", error={"type": "a\nb" * 99, "message": "?"})
    assert str(await failing(claude(raw(begun(), odd)), ModelRetry)) == "status 200: ?, request req_stub_1"


ODD = {
    "an array": "[1, 2]",
    "a string": '"x"',
    "null": "null",
    "no JSON": '{"what": }',
    "cut off": '{"path": "/srv/da',
    "no number": '{"what": NaN}',
    "too great a number": '{"what": 1e999}',
    "5,000 digits": '{"what": ' + "9" * 5000 + "}",
    "150 deep": '{"what": ' + "[" * 150 + "]" * 150 + "}",
    "1,500 deep": '{"what": ' + "[" * 1500 + "]" * 1500 + "}",
    "half a character": '{"what": "\\ud800"}',
}


@pytest.mark.parametrize("written", ODD.values(), ids=ODD.keys())
async def test_a_call_that_cannot_be_read_costs_only_itself(written: str) -> None:
    broken, good = writes("a", written).content[0], calls(("z", {"x": 1})).content[0]
    both = Answer((broken, good), "tool_use")
    async with claude(both, says("done")) as (stub, model):
        reply = await model.reply(PROMPT)
        odd, other = reply.calls
        assert (odd.arguments, odd.name) == ({}, "a")
        assert odd.unreadable.startswith("the arguments ")
        assert (other.arguments, other.unreadable) == ({"x": 1}, "")
        assert (reply.stop, reply.tokens.total, reply.usage.model_calls) == ("tool_use", 120, 1)
        told = (ToolResult(odd.id, "a", odd.unreadable, is_error=True), ToolResult(other.id, "z", "1"))
        await model.reply(after(said(reply), *told))
    assert [each["input"] for each in sent(stub)[0][1]] == [{}, {"x": 1}]


@pytest.mark.parametrize("given", [..., None, [1], "x", {"x": "\ud800"}])
async def test_so_does_one_whose_arguments_came_at_once(given: object) -> None:
    made = {name: it for name, it in {**CALL, "input": given}.items() if it is not ...}
    (call,) = (await replied(raw(begun(), block(made), ended("tool_use")))).calls
    assert call.arguments == {}
    assert call.unreadable


async def test_arguments_as_deep_as_the_mesh_takes_them_are_read() -> None:
    written = '{"what": ' + "[" * 64 + "]" * 64 + "}"
    (call,) = (await replied(writes("a", written))).calls
    assert call.unreadable == ""
    assert json.dumps(call.arguments) == written


async def test_halves_of_a_character_are_joined_and_one_alone_is_replaced() -> None:
    heard: list[str | None] = []
    reply = await replied(raw(begun(), text("a \ud83d", "\ude00 b \ud83d"), ended()), heard.append)
    assert reply.text == "a \U0001f600 b \ufffd"
    assert reply.blocks[0]["text"] == reply.text
    assert heard == ["a \ufffd", "\ufffd b \ufffd"]


@pytest.mark.parametrize(
    ("usage", "tokens"),
    [
        ({"input_tokens": -5}, Tokens(output=20)),
        ({"input_tokens": 10**30}, Tokens(input=MOST_TOKENS, output=20)),
        ({"input_tokens": "many"}, Tokens(output=20)),
        ({"input_tokens": 12.5}, Tokens(input=12, output=20)),
        ({"output_tokens": None, "input_tokens": None}, Tokens(output=1)),
        (
            {"cache_creation_input_tokens": 5, "cache_creation": {"ephemeral_1h_input_tokens": 500}},
            Tokens(input=100, cache_write_1h=5, output=20),
        ),
        ({"cache_creation": [7], "output_tokens_details": "?"}, Tokens(input=100, output=20)),
    ],
)
async def test_counts_that_cannot_be_are_none(usage: dict[str, Any], tokens: Tokens) -> None:
    assert (await replied(says("ok", usage=usage))).tokens == tokens


@pytest.mark.parametrize("named", ["m" * 129, "", "a b", "a\nb", "é"])
async def test_a_model_that_cannot_be_is_whoever_was_asked(named: str) -> None:
    assert (await replied(raw(begun(model=named), text("ok"), ended()))).model == MODEL


async def test_what_is_wrong_with_our_own_code_is_not_the_vendors_fault() -> None:
    def hear(said: str | None) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await replied(says("ok"), hear)
    await failing(claude(says("ok"), more={"temperature": 1}), TypeError)


async def test_a_refusal_in_the_middle_of_a_stream_is_one() -> None:
    spent = event(
        "error", error={"type": "rate_limit_error", "details": {"error_code": "enforced_spend_limit_reached"}}
    )
    await failing(claude(raw(begun(), spent), fails(500)), ModelRefused, "enforced_spend_limit_reached")


leaves = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.just("\ud800")
values = st.recursive(
    leaves,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
)
names = st.text(string.ascii_lowercase + " \n\ud800", max_size=3) | leaves
FIELDS: dict[str, dict[str, st.SearchStrategy[Any]]] = {
    "text": {"text": st.text(max_size=3) | leaves},
    "thinking": {"thinking": st.text(max_size=3) | leaves, "signature": st.text(max_size=2) | leaves},
    "redacted_thinking": {"data": st.text(max_size=2) | leaves},
    "tool_use": {"id": names, "name": names, "input": values},
    "server_tool_use": {"id": names, "name": names, "input": values},
    "hologram": {"what": values},
}
blocks = st.sampled_from(sorted(FIELDS)).flatmap(
    lambda kind: st.fixed_dictionaries({"type": st.just(kind)}, optional=FIELDS[kind])
)
deltas = st.fixed_dictionaries(
    {"type": st.sampled_from(["text_delta", "thinking_delta", "input_json_delta", "signature_delta", "x"])},
    optional={
        "text": leaves,
        "thinking": leaves,
        "signature": leaves,
        "partial_json": st.sampled_from(['{"a": ', "1}", "[", "\ud800"]) | leaves,
    },
)
indexes = st.integers(0, 2) | leaves | st.lists(leaves, max_size=1)
events = st.one_of(
    st.builds(lambda message: {"type": "message_start", "message": message}, values),
    st.builds(
        lambda index, start: {"type": "content_block_start", "index": index, "content_block": start},
        indexes,
        blocks | values,
    ),
    st.builds(
        lambda index, delta: {"type": "content_block_delta", "index": index, "delta": delta},
        indexes,
        deltas | values,
    ),
    st.builds(
        lambda delta, usage: {"type": "message_delta", "delta": delta, "usage": usage},
        values | st.just({"stop_reason": "tool_use"}),
        values,
    ),
    values.filter(lambda value: isinstance(value, dict)),
)
starts = st.builds(
    lambda content, usage: {"type": "message_start", "message": {"content": content, "usage": usage}},
    st.lists(blocks, max_size=4),
    st.dictionaries(st.sampled_from(["input_tokens", "output_tokens", "cache_creation"]), values),
)
END = ({"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {}}, {"type": "message_stop"})


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(starts, st.lists(events, max_size=5), st.booleans())
def test_whatever_comes_is_a_reply_that_can_go_back_or_none(
    start: dict[str, Any], middle: list[dict[str, Any]], answered: bool
) -> None:
    streamed = Streamed()
    try:
        for each in (start, *middle, *END):
            streamed.take(each)
        reply = reply_of(streamed.message(), asked=MODEL)
    except (Unreadable, BrokenOff):
        return
    told = [ToolResult(call.id, call.name, "1") for call in reply.calls] if answered else []
    asked = ClaudeModel(MODEL, max_tokens=9).request(after(said(reply), *told))
    wrong = [each for each in violations(asked) if "signature" not in each and "bound to" not in each]
    assert wrong == []
    json.dumps(asked, ensure_ascii=False, allow_nan=False).encode()


async def test_what_happens_behind_a_whole_message_is_nobodys_business() -> None:
    async with StubClaude([replace(says("whole"), broken_by=529)]) as stub:
        model = ClaudeModel(base_url=stub.url, api_key="stub")
        assert (await model.reply(Prompt("a", "Be brief.", "Say it."))).text == "whole"
        await model.close()
