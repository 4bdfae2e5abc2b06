"""A fallback: when it is asked, what it is told, and which error stands when it fails, too."""

import pytest

from mesh.model.anthropic.model import ClaudeModel, ModelRefused, ModelRetry, ModelUnreadable
from mesh.model.port import Exchange, ToolResult
from tests.claude_stub import Answer, StubClaude, calls, fails, says, thinks
from tests.unit.model.vendor import MODEL, OTHER, PROMPT, after, claude, kinds, raw, said, sent


def whom(stub: StubClaude) -> list[str]:
    return [asked.body["model"] for asked in stub.asked]


@pytest.mark.parametrize(
    "failing",
    [
        fails(529),
        fails(429, retry_after_s=30),
        raw(b""),
        says("Your refund of 1", cut_after=5, cut_cleanly=True),
        Answer(cut_after=0),
    ],
)
async def test_it_is_asked_once_and_the_reply_says_who_it_is_from(failing: Answer) -> None:
    async with claude(failing, says("instead"), fallback=OTHER) as (stub, model):
        reply = await model.reply(PROMPT)
    assert whom(stub) == [MODEL, OTHER]
    assert (reply.text, reply.model) == ("instead", OTHER)


async def test_what_was_heard_before_it_is_void() -> None:
    heard: list[str | None] = []
    broken = says("Your refund of 1", cut_after=5, cut_cleanly=True)
    async with claude(broken, says("instead"), fallback=OTHER) as (_, model):
        await model.reply(PROMPT, heard.append)
    assert heard[0] == "Your refund "
    assert "".join(map(str, heard[heard.index(None) + 1 :])) == "instead"


async def test_it_is_no_way_around_a_refusal() -> None:
    async with claude(fails(401), fallback=OTHER) as (stub, model):
        with pytest.raises(ModelRefused):
            await model.reply(PROMPT)
    assert whom(stub) == [MODEL]


async def test_while_the_vendor_wants_a_pause_it_is_asked_at_once() -> None:
    script = [fails(429, retry_after_s=30), says("one"), says("two")]
    async with claude(*script, fallback=OTHER) as (stub, model):
        assert (await model.reply(PROMPT)).text == "one"
        assert (await model.reply(PROMPT)).text == "two"
    assert whom(stub) == [MODEL, OTHER, OTHER]


@pytest.mark.parametrize(
    ("first", "second", "after_s"),
    [
        (fails(529, retry_after_s=7), fails(404), 7),
        (fails(529), fails(400), None),
        (fails(529, retry_after_s=7), fails(529, retry_after_s=3), 3),
        (fails(529), fails(500, retry_after_s=3), 3),
        (fails(529, retry_after_s=7), raw(b""), 7),
    ],
)
async def test_when_it_fails_too_the_first_error_stands(
    first: Answer, second: Answer, after_s: float | None
) -> None:
    async with claude(first, second, fallback=OTHER) as (_, model):
        with pytest.raises(
            ModelRetry, match=r"^status 529 .*req_stub_1; its fallback: .*req_stub_2"
        ) as failed:
            await model.reply(PROMPT)
    assert failed.value.after_s == after_s
    assert failed.value.__cause__ is not None


async def test_so_does_that_the_first_answer_was_none() -> None:
    async with claude(raw(b""), fails(404), fallback=OTHER) as (_, model):
        with pytest.raises(ModelUnreadable, match="status 404"):
            await model.reply(PROMPT)


async def test_it_gets_no_thoughts_of_the_others_and_the_other_none_of_its() -> None:
    script = [
        thinks("as the pinned one", calls(("a", {}))),
        fails(529),
        thinks("as the fallback", calls(("a", {}))),
        thinks("again", calls(("a", {}))),
        fails(529),
        says("done"),
    ]
    async with claude(*script, fallback=OTHER) as (stub, model):
        told: list[Exchange] = []
        thought = []
        for _ in range(4):
            reply = await model.reply(after(*told))
            told += [said(reply), *(ToolResult(call.id, "a", "1") for call in reply.calls)]
            thought.append([kinds(blocks)[0] for role, blocks in sent(stub) if role == "assistant"])
    assert whom(stub) == [MODEL, MODEL, OTHER, MODEL, MODEL, OTHER]
    assert thought == [
        [],
        ["tool_use"],  # the fallback is not told what the pinned one thought
        ["thinking", "tool_use"],  # nor the other way round; its own it gets
        ["tool_use", "thinking", "tool_use"],
    ]


@pytest.mark.parametrize(
    ("replied", "asked"),
    [
        ("claude-x-5", "claude-x-5"),
        ("claude-x-5-20261001", "claude-x-5"),
        ("claude-x-5-5", "claude-x-5-5"),
        ("claude-x-5-5-20261001", "claude-x-5-5"),
        ("", "claude-x-5"),
        ("somebody", "claude-x-5"),
    ],
)
def test_whose_a_reply_is_is_known_by_the_longer_name(replied: str, asked: str) -> None:
    assert ClaudeModel("claude-x-5", fallback="claude-x-5-5").asked_of(replied) == asked
    if replied.startswith("claude"):
        assert ClaudeModel("claude-x-5-5", fallback="claude-x-5").asked_of(replied) == asked
