"""What goes back of odd replies: the vendor takes every conversation, and thoughts are where they were."""

from typing import Any

import pytest

from mesh.model.port import Exchange, PastReply, ToolCall, ToolResult
from tests.unit.model.vendor import after, begun, block, claude, ended, kinds, raw, said, sent
from tests.vendors.stand_in import Answer, calls, says, thinks

LOOKED = {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {"query": "x"}}
FOUND = {"type": "web_search_tool_result", "tool_use_id": "srvtoolu_1", "content": []}
THOUGHT = {"type": "thinking", "thinking": "hm", "signature": "x"}
HIDDEN = {"type": "redacted_thinking", "data": "x"}
BLANK = {"type": "text", "text": "\n\n"}
WORD = {"type": "text", "text": "I look."}
ODD = {"type": "hologram", "what": 1}
CALL = {"type": "tool_use", "id": "t1", "name": "a", "input": {}}
NOTHING = [{"type": "text", "text": "(nothing)"}]
GO_ON = ("user", [{"type": "text", "text": "Go on."}])


async def back(answer: Answer, *told: ToolResult) -> list[Any]:
    """Return what is sent after a reply to which this is told: its blocks, and what follows them.

    The stub refuses what the vendor would refuse, and `claude` fails then.
    """
    async with claude(answer, says("done")) as (stub, model):
        await model.reply(after(said(await model.reply(after())), *told))
        found: list[Any] = sent(stub)
    return found


REMARK = ToolResult("", "", "Say something.", is_error=True)


@pytest.mark.parametrize(
    ("content", "goes_back"),
    [
        ((), ["text"]),
        ((BLANK,), ["text"]),
        ((ODD,), ["text"]),
        ((THOUGHT,), ["text"]),
        ((HIDDEN,), ["text"]),
        (({**THOUGHT, "signature": ""},), ["text"]),
        ((WORD, THOUGHT), ["text"]),
        ((THOUGHT, WORD, THOUGHT, HIDDEN), ["thinking", "text"]),
        ((THOUGHT, HIDDEN, WORD), ["thinking", "redacted_thinking", "text"]),
        ((THOUGHT, LOOKED, FOUND, THOUGHT, WORD), ["thinking", *kinds([LOOKED, FOUND]), "thinking", "text"]),
        ((THOUGHT, BLANK, THOUGHT, WORD), ["thinking", "text"]),
        ((THOUGHT, ODD, HIDDEN, WORD), ["thinking", "text"]),
        (({**THOUGHT, "signature": ""}, THOUGHT, WORD), ["text"]),
    ],
)
async def test_what_the_vendor_would_not_have_is_left_out(
    content: tuple[Any, ...], goes_back: list[str]
) -> None:
    (role, blocks), (_, remark) = await back(Answer(content), REMARK)
    assert (role, kinds(blocks)) == ("assistant", goes_back)
    if goes_back == ["text"] and WORD not in content:
        assert blocks == NOTHING
    assert remark == [{"type": "text", "text": "Say something."}]


async def test_a_call_after_an_empty_text_keeps_its_thought() -> None:
    answer = Answer((THOUGHT, BLANK, CALL), "tool_use")
    (_, blocks), (_, results) = await back(answer, ToolResult("t1", "a", "1"))
    assert kinds(blocks) == ["thinking", "tool_use"]
    assert results == [{"type": "tool_result", "tool_use_id": "t1", "content": "1"}]


async def test_calls_of_one_id_are_told_apart() -> None:
    async with claude(Answer((CALL, CALL), "tool_use"), Answer((CALL,), "tool_use"), says("done")) as (
        stub,
        model,
    ):
        first = await model.reply(after())
        assert len({call.id for call in first.calls}) == 2
        told: list[Exchange] = [said(first), *(ToolResult(call.id, "a", "1") for call in first.calls)]
        second = await model.reply(after(*told))
        assert second.calls[0].id not in {call.id for call in first.calls}
        await model.reply(after(*told, said(second), ToolResult(second.calls[0].id, "a", "2")))
    made = [part["id"] for role, blocks in sent(stub) if role == "assistant" for part in blocks]
    answered = [part["tool_use_id"] for role, blocks in sent(stub) if role == "user" for part in blocks]
    assert made == answered


@pytest.mark.parametrize(
    "changed",
    [{"input": "[1]"}, {"input": "{"}, {"id": "a b"}, {"name": "n" * 500}, {"name": "a b"}],
    ids=str,
)
async def test_thoughts_after_a_call_that_had_to_be_changed_are_left_out(changed: dict[str, str]) -> None:
    answer = Answer((THOUGHT, {**CALL, **changed}, THOUGHT, {**CALL, "id": "t2"}), "tool_use")
    (_, blocks), (_, results) = await back(answer)
    assert kinds(blocks) == ["thinking", "tool_use", "tool_use"]
    assert kinds(results) == ["tool_result", "tool_result"]


async def test_thoughts_between_calls_stay() -> None:
    answer = Answer((THOUGHT, CALL, THOUGHT, {**CALL, "id": "t2"}), "tool_use")
    (_, blocks), _ = await back(answer)
    assert kinds(blocks) == ["thinking", "tool_use", "thinking", "tool_use"]


@pytest.mark.parametrize("made", ["", "a b", "é", "x" * 65])
async def test_an_id_that_the_vendor_would_not_take_back_is_another(made: str) -> None:
    answer = raw(begun(), block({**CALL, "id": made}), ended("tool_use"))
    async with claude(answer, says("done")) as (stub, model):
        reply = await model.reply(after())
        await model.reply(after(said(reply), ToolResult(reply.calls[0].id, "a", "1")))
    assert kinds(sent(stub)[1][1]) == ["tool_result"]


@pytest.mark.parametrize(
    ("name", "goes_back"), [("a b\n", "a_b_"), ("é", "_"), ("", "_"), ("n" * 500, "n" * 64)]
)
async def test_a_name_that_no_tool_can_have_goes_back_as_one(name: str, goes_back: str) -> None:
    answer = Answer(({**CALL, "name": name},), "tool_use")
    async with claude(answer, says("done")) as (stub, model):
        reply = await model.reply(after())
        assert reply.calls[0].name == name[:128]
        await model.reply(after(said(reply), ToolResult("t1", name, "There is none.", is_error=True)))
    assert sent(stub)[0][1][0]["name"] == goes_back


async def test_a_pause_among_the_vendors_own_tools_goes_on_with_its_own_words_and_thoughts() -> None:
    paused = thinks("hm", Answer((LOOKED, FOUND, THOUGHT), "pause_turn"))
    more = thinks("so", calls(("a", {})))
    async with claude(paused, more, says("done")) as (stub, model):
        first = await model.reply(after())
        second = await model.reply(after(said(first)))
        marked = stub.asked[1].body["messages"][-1]["content"][-1]
        (call,) = second.calls
        await model.reply(after(said(first), said(second), ToolResult(call.id, "a", "1")))
    assert (marked["type"], marked["cache_control"]) == (FOUND["type"], {"type": "ephemeral"})
    (role, blocks), (_, results) = sent(stub)
    assert (role, kinds(blocks)) == (
        "assistant",
        ["thinking", *kinds([LOOKED, FOUND]), "thinking", "tool_use"],
    )
    assert kinds(results) == ["tool_result"]


@pytest.mark.parametrize("content", [(), (THOUGHT,), (BLANK,), (THOUGHT, WORD)])
async def test_any_other_pause_is_asked_to_go_on(content: tuple[Any, ...]) -> None:
    (_, blocks), follows = await back(Answer(content, "pause_turn"))
    assert blocks == NOTHING or kinds(blocks) == ["thinking", "text"]
    assert follows == GO_ON


async def test_what_a_pause_was_asked_is_said_again_in_every_later_request() -> None:
    script = [Answer((THOUGHT, WORD), "pause_turn"), thinks("so", calls(("a", {}))), says("x")]
    async with claude(*script) as (stub, model):
        first = await model.reply(after())
        second = await model.reply(after(said(first)))
        await model.reply(after(said(first), said(second), ToolResult(second.calls[0].id, "a", "1")))
    assert sent(stub)[:2] == sent(stub, 1)
    assert [role for role, _ in sent(stub)] == ["assistant", "user", "assistant", "user"]


async def test_a_call_that_nobody_answered_is_answered_for() -> None:
    _, (role, results) = await back(Answer((WORD, CALL, {**CALL, "id": "t2"}), "pause_turn"))
    assert role == "user"
    assert [(each["tool_use_id"], each["is_error"]) for each in results] == [("t1", True), ("t2", True)]
    _, (_, results) = await back(Answer((CALL, {**CALL, "id": "t2"}), "tool_use"), ToolResult("t2", "a", "2"))
    assert sorted(each["tool_use_id"] for each in results) == ["t1", "t2"]


async def test_results_come_first_and_a_result_of_no_call_is_a_remark() -> None:
    told = (REMARK, ToolResult("t9", "a", "lost"), ToolResult("t1", "a", ""), ToolResult("t1", "a", "twice"))
    _, (_, results) = await back(Answer((CALL,), "tool_use"), *told)
    assert kinds(results) == ["tool_result", "text", "text", "text"]
    assert results[0]["content"] == "(nothing)"
    assert [each["text"] for each in results[1:]] == ["Say something.", "lost", "twice"]


async def test_a_reply_without_the_vendors_blocks_goes_back_in_plain_ones() -> None:
    made = PastReply(" ", (ToolCall("t1", "a", {"x": 1}),))
    async with claude(says("ok"), says("ok")) as (stub, model):
        await model.reply(after(made, ToolResult("t1", "a", "\ud800")))
        await model.reply(after(PastReply("")))
    (_, blocks), (_, results) = sent(stub, 0)
    assert blocks == [{"type": "tool_use", "id": "t1", "name": "a", "input": {"x": 1}}]
    assert results[0]["content"] == "\ufffd"
    assert sent(stub, 1) == [("assistant", NOTHING), GO_ON]
