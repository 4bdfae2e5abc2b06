"""Claude through the real SDK against the loopback stub: what is sent, what comes back, what fails how."""

import random
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from typing import Any

import pytest
import pytest_asyncio

from mesh.agent._rate_limit import FIRST_PAUSE_S
from mesh.agent.tools import tool
from mesh.model.loop import drive
from mesh.model.port import PastReply, ToolResult
from mesh.model.vendor import ModelRefused, ModelRetry, ModelThrottled, ModelUnreadable
from mesh.model.vendors.claude import ClaudeModel
from mesh.testing import MemorySteps, turn
from protocol.wire.moves import Complete
from protocol.wire.prices import MTOK, Price, Tokens
from protocol.wire.records import decode_record
from tests.unit.model.vendor import MODEL, OTHER, PROMPT, claude, failing, kinds, raw, replied, sent
from tests.vendors.claude import StubClaude
from tests.vendors.stand_in import Answer, calls, fails, says, thinks


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
    reply = await replied(thinks("hm", calls(("a", {"x": 1}), text="I try.", usage=usage)))
    assert reply.text == "I try."
    assert [(call.name, dict(call.arguments)) for call in reply.calls] == [("a", {"x": 1})]
    assert reply.tokens == Tokens(input=5, cache_read=70, cache_write=10, cache_write_1h=20, output=11)
    assert reply.usage.tokens == 5 + 70 + 30 + 11
    assert (reply.usage.model_calls, reply.stop) == (1, "tool_use")
    assert reply.id.startswith("msg_stub_")
    assert [block["type"] for block in reply.blocks] == ["thinking", "text", "tool_use"]


async def test_within_a_round_a_reply_goes_back_as_it_came_and_results_follow_it() -> None:
    script = [thinks("hm", calls(("a", {}), ("z", {}))), says("done")]
    async with claude(*script) as (stub, model):
        first = await model.reply(PROMPT)
        one, other = first.calls
        transcript = (
            PastReply(first.text, first.calls, first.blocks),
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


@pytest.mark.parametrize("status", [408, 409, 429, 500, 503, 529])
async def test_what_may_pass_is_tried_again_after_the_pause_that_was_asked_for(status: int) -> None:
    async with claude(fails(status, retry_after_s=7)) as (stub, model):
        with pytest.raises(ModelRetry, match=f"status {status}.*request req_stub_1") as failed:
            await model.reply(PROMPT)
    assert 7 <= (failed.value.after_s or 0) <= 7 + FIRST_PAUSE_S
    assert len(stub.asked) == 1, "the SDK must not try again by itself"


REFUSED = {status: fails(status) for status in (400, 401, 402, 403, 404, 413, 422)}


@pytest.mark.parametrize(
    ("answer", "error", "said"),
    [
        *((answer, ModelRefused, f"status {status}") for status, answer in REFUSED.items()),
        (fails(429, error_code="enforced_spend_limit_reached"), ModelRefused, "enforced_spend_limit_reached"),
        (says("a few pieces of text", cut_after=4, broken_by=400), ModelRefused, "invalid_request_error"),
        (says("a few pieces of text", cut_after=4, broken_by=529), ModelRetry, "."),
        (says("a few pieces of text", cut_after=4), ModelRetry, "."),
        (Answer(cut_after=0), ModelRetry, "."),
        (says("late", delay_s=30), ModelRetry, r"within 0\.2 s"),
    ],
)
async def test_what_no_pause_cures_is_permanent_and_the_rest_is_tried_again(
    answer: Answer, error: type[Exception], said: str
) -> None:
    await failing(claude(answer, timeout_s=0.2 if answer.delay_s else 60), error, said)


@pytest.mark.parametrize(
    ("headers", "after_s"),
    [
        *(({"retry-after": asked}, None) for asked in ("inf", "nan", "-inf", "soon")),
        ({"retry-after": "1e308"}, 3600),
        ({"retry-after": "99999999"}, 3600),
        ({"retry-after": "-5"}, 0),
        ({"retry-after-ms": "1500", "retry-after": "7"}, 1.5),
        ({"retry-after-ms": "inf", "retry-after": "7"}, 7),
    ],
)
async def test_no_pause_is_longer_than_an_hour_and_what_is_no_number_is_none(
    headers: dict[str, str], after_s: float | None
) -> None:
    assert (await failing(claude(Answer(status=500, headers=headers)), ModelRetry)).after_s == after_s


async def test_an_empty_system_text_is_left_out() -> None:
    async with claude(says("ok")) as (stub, model):
        await model.reply(replace(PROMPT, instructions=" \n"))
    assert "system" not in stub.asked[0].body


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


async def test_that_the_first_answer_was_none_stands_too() -> None:
    await failing(claude(raw(b""), fails(404), fallback=OTHER), ModelUnreadable, "status 404")


@pytest.mark.parametrize(
    ("first", "second", "after_s"),
    [
        (fails(529, retry_after_s=7), fails(404), 7),
        (fails(529), fails(400), FIRST_PAUSE_S),
        (fails(529, retry_after_s=7), fails(529, retry_after_s=3), 3),
        (fails(529), fails(500, retry_after_s=3), FIRST_PAUSE_S),
        (fails(500), fails(529, retry_after_s=3), 3),
        (fails(500), fails(500, retry_after_s=3), 3),
        (fails(500), fails(400), None),
        (fails(529, retry_after_s=7), raw(b""), 7),
    ],
)
async def test_when_it_fails_too_the_first_error_stands(
    first: Answer, second: Answer, after_s: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(random, "uniform", lambda low, high: low)
    said = rf"^status {first.status} .*req_stub_1; its fallback: .*req_stub_2"
    failed = await failing(claude(first, second, fallback=OTHER), ModelRetry, said)
    assert failed.after_s == (None if after_s is None else pytest.approx(after_s))
    assert isinstance(failed, ModelThrottled) is (529 in {first.status, second.status})
    assert failed.__cause__ is not None


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


FAST, STRONG = "fast", "strong"
IDS = {FAST: "claude-haiku-5-5", STRONG: "claude-opus-5-5"}
PRICES = {FAST: Price(input=MTOK, output=MTOK), STRONG: Price(input=50 * MTOK, output=50 * MTOK)}
CALL_COST = {FAST: 120, STRONG: 50 * 120}
"""In nano-dollars, for the stub's usual 100 tokens in and 20 out."""


@tool
async def look(n: int) -> int:
    """Look."""
    return n


class Vendor:
    """Each model replies under its own id."""

    def __init__(self) -> None:
        self.down_at: set[int] = {0}
        """Before which of its replies the pinned one fails, once."""
        self.replies: list[Answer] = []
        self._given = 0
        self.stub = StubClaude(self._reply)

    def _reply(self, body: Mapping[str, Any]) -> Answer:
        if body["model"] == FAST and self._given in self.down_at:
            self.down_at.remove(self._given)
            return fails(500)
        made, self._given = self.replies[self._given], self._given + 1
        return Answer(made.content, made.stop_reason, model=IDS[body["model"]])

    @property
    def whom(self) -> list[str]:
        return [asked.body["model"] for asked in self.stub.asked]


@pytest_asyncio.fixture
async def vendor() -> AsyncIterator[Vendor]:
    vendor = Vendor()
    async with vendor.stub:
        yield vendor
    assert vendor.stub.refused == []


@pytest_asyncio.fixture
async def model(vendor: Vendor) -> AsyncIterator[ClaudeModel]:
    model = ClaudeModel(FAST, fallback=STRONG, base_url=vendor.stub.url, api_key="stub")
    yield model
    await model.close()


async def test_the_fallback_is_paid_as_the_fallback_and_the_pinned_one_as_itself(
    vendor: Vendor, model: ClaudeModel
) -> None:
    vendor.replies = [calls(("look", {"n": 1})), says("ok")]
    on = turn(prices=PRICES, steps=MemorySteps())
    assert await drive(on, model, instructions="Look.", tools=(look,)) == Complete(answer="ok")
    assert vendor.whom == [FAST, STRONG, FAST]
    assert on.execution.report.usage.nano_dollars == CALL_COST[STRONG] + CALL_COST[FAST]
    assert {name: spent.nano_dollars for name, spent in on.execution.report.usage.models.items()} == {
        IDS[STRONG]: CALL_COST[STRONG],
        IDS[FAST]: CALL_COST[FAST],
    }


async def test_it_is_no_other_price_when_the_reply_is_read_back(vendor: Vendor, model: ClaudeModel) -> None:
    vendor.replies = [says("ok")]
    steps = MemorySteps()
    for _ in range(2):
        on = turn(prices=PRICES, steps=steps)
        assert await drive(on, model, instructions="Look.", tools=()) == Complete(answer="ok")
        assert on.execution.report.usage.nano_dollars == CALL_COST[STRONG]
    assert vendor.whom == [FAST, STRONG]


async def test_its_thoughts_go_back_to_it_alone(vendor: Vendor, model: ClaudeModel) -> None:
    vendor.down_at = {0, 2}
    vendor.replies = [*(thinks("hm", calls(("look", {"n": n}))) for n in range(3)), says("ok")]
    on = turn(prices=PRICES, steps=MemorySteps())
    assert await drive(on, model, instructions="Look.", tools=(look,)) == Complete(answer="ok")
    thoughts = [
        [kinds(blocks)[0] for role, blocks in sent(vendor.stub, number) if role == "assistant"]
        for number in range(len(vendor.whom))
    ]
    assert list(zip(vendor.whom, thoughts, strict=True)) == [
        (FAST, []),
        (STRONG, []),
        (FAST, ["tool_use"]),  # the fallback's thought is kept from the pinned one
        (FAST, ["tool_use", "thinking"]),
        (STRONG, ["thinking", "tool_use"]),  # it gets its own, and none of the other's
        (FAST, ["tool_use", "thinking", "tool_use"]),
    ]


async def test_who_was_asked_is_recorded_only_where_the_name_does_not_tell(
    vendor: Vendor, model: ClaudeModel
) -> None:
    vendor.replies = [calls(("look", {"n": 1})), says("ok")]
    steps = MemorySteps()
    await drive(turn(prices=PRICES, steps=steps), model, instructions="Look.", tools=(look,))
    records = [decode_record(body) for body in steps.steps.values()]
    replies = [record.value for record in records if record.kind == "model"]
    assert [(reply["model"], reply.get("asked", "")) for reply in replies] == [
        (IDS[STRONG], STRONG),
        (IDS[FAST], ""),
    ]
