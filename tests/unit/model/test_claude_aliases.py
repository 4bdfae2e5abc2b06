"""A model that is asked under an alias, and replies under an id that tells nobody which of two was asked."""

from collections.abc import AsyncIterator, Mapping
from typing import Any

import pytest_asyncio

from mesh.agent.tools import tool
from mesh.model.anthropic.model import ClaudeModel
from mesh.model.loop import drive
from mesh.testing import MemorySteps, turn
from protocol.wire.commands import Complete
from protocol.wire.journal_records import decode_record
from protocol.wire.prices import MTOK, Price
from tests.claude_stub import Answer, StubClaude, calls, fails, says, thinks
from tests.unit.model.vendor import kinds, sent

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
        """Before which of its replies the pinned one is overloaded, once."""
        self.replies: list[Answer] = []
        self._given = 0
        self.stub = StubClaude(self._reply)

    def _reply(self, body: Mapping[str, Any]) -> Answer:
        if body["model"] == FAST and self._given in self.down_at:
            self.down_at.remove(self._given)
            return fails(529)
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
