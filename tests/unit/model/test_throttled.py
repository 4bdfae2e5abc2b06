"""A model that is asked too fast: the round waits for it, within its time, and no turn fails of it."""

import asyncio
import random
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any

import pytest

from mesh.agent import Turn
from mesh.agent import _rate_limit as rate_limit
from mesh.agent.errors import Throttled
from mesh.model.loop import drive
from mesh.model.port import Hear, Model, Prompt, Reply
from mesh.model.vendor import ModelThrottled
from mesh.model.vendors.claude import ClaudeModel
from mesh.testing import turn
from protocol.wire.config import ModelLimits
from protocol.wire.moves import Complete, Move
from tests.servers import PATIENCE_S, until
from tests.unit.model.vendor import PROMPT, claude, failing
from tests.vendors.claude import StubClaude
from tests.vendors.stand_in import Answer, fails, says

SOON = {"retry-after-ms": "1"}


@pytest.fixture(autouse=True)
def _no_jitter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(random, "uniform", lambda low, high: low)


async def driven(on: Turn, model: Model) -> Move:
    async with asyncio.timeout(PATIENCE_S):
        return await drive(on, model, instructions="Be brief.", tools=())


@pytest.mark.parametrize(
    "refusal",
    [
        pytest.param(Answer(status=429, headers=SOON), id="429"),
        pytest.param(Answer(status=529, headers=SOON), id="529"),
        pytest.param(fails(429, retry_after_s=0), id="a-pause-of-nothing"),
        pytest.param(fails(529), id="no-pause-named"),
        pytest.param(says("a few pieces of text", cut_after=4, broken_by=529), id="in-the-middle"),
    ],
)
async def test_a_refusal_is_waited_for_within_the_round(refusal: Answer) -> None:
    async with claude(refusal, says("ok")) as (stub, model):
        on = turn()
        assert await driven(on, model) == Complete(answer="ok")
    assert len(stub.asked) == 2
    assert on.execution.report.usage.model_calls == 1


async def test_what_was_heard_before_the_refusal_is_void() -> None:
    heard: list[str | None] = []
    broken = says("Your refund of 1", cut_after=5, broken_by=529)
    async with claude(broken) as (_, model):
        with pytest.raises(ModelThrottled):
            await model.reply(PROMPT, heard.append)
    assert heard[0] == "Your refund "
    assert heard[-1] is None


async def test_if_the_fallback_is_too_busy_as_well_both_are_asked_again() -> None:
    refusals = [Answer(status=429, headers={"retry-after": "3600"}), Answer(status=529, headers=SOON)]
    async with claude(*refusals, says("ok"), fallback="claude-other") as (stub, model):
        assert await driven(turn(), model) == Complete(answer="ok")
    assert [asked.body["model"] for asked in stub.asked[1:]] == ["claude-other"] * 2


async def test_a_pause_that_outlasts_the_round_is_not_waited_for_and_says_so() -> None:
    async with claude(fails(429, retry_after_s=3600)) as (stub, model):
        with pytest.raises(
            ModelThrottled, match=r"status 429 .*the round may take 900 s, and 89\d s"
        ) as failed:
            await driven(turn(), model)
        assert failed.value.after_s == pytest.approx(3600)
        assert len(stub.asked) == 1


async def test_a_round_whose_time_is_used_up_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    on = turn()
    monkeypatch.setattr(on.execution, "_patient_until", 0.0)
    async with claude(fails(429, retry_after_s=0)) as (_, model):
        with pytest.raises(ModelThrottled, match="900 s, and they are used up"):
            await driven(on, model)


class BusyModel(Model):
    """A model of somebody's own, which is busy at first."""

    mode = "busy"

    def __init__(self) -> None:
        self.asked = 0

    async def reply(self, prompt: Prompt, hear: Hear | None = None) -> Reply:
        self.asked += 1
        if self.asked < 4:
            raise Throttled("not now")
        return Reply(text="ok")


async def test_a_model_of_your_own_is_waited_for_too() -> None:
    model = BusyModel()
    assert await driven(turn(), model) == Complete(answer="ok")
    assert model.asked == 4


@pytest.mark.parametrize("has_date", [True, False])
async def test_a_pause_may_be_a_date(has_date: bool) -> None:
    now = datetime.now(UTC) + timedelta(days=3 if has_date else 0)  # the vendor's clock, where it says one
    headers = {"retry-after": format_datetime(now + timedelta(seconds=90), usegmt=True)}
    if has_date:
        headers["date"] = format_datetime(now, usegmt=True)
    failed = await failing(claude(Answer(status=429, headers=headers)), ModelThrottled)
    assert failed.after_s == pytest.approx(90, abs=60)


async def test_after_a_refusal_nothing_more_is_asked_of_this_model_and_others_are() -> None:
    async with StubClaude([fails(429, retry_after_s=3600), says("other")]) as stub:
        model = ClaudeModel("one", base_url=stub.url, api_key="stub")
        other = ClaudeModel("two", base_url=stub.url, api_key="stub")
        for said in ("status 429", "asked for a pause"):
            with pytest.raises(ModelThrottled, match=said) as refused:
                await model.reply(PROMPT)
            assert refused.value.after_s == pytest.approx(3600, abs=PATIENCE_S)
        assert len(stub.asked) == 1
        assert (await other.reply(PROMPT)).text == "other"
        await model.close()
        await other.close()


async def test_twenty_turns_at_once_do_not_run_at_the_vendor_together() -> None:
    rate_limit.configure({"one": ModelLimits(concurrency=3)})
    under_way, most, go_on = 0, 0, asyncio.Event()

    async def answer(body: Mapping[str, Any]) -> Answer:
        nonlocal under_way, most
        if body["model"] == "one":
            under_way += 1
            most = max(most, under_way)
            await go_on.wait()
            under_way -= 1
        return says("ok")

    async with StubClaude(answer) as stub:
        model = ClaudeModel("one", base_url=stub.url, api_key="stub")
        probe = ClaudeModel("probe", base_url=stub.url, api_key="stub")
        asking = [asyncio.create_task(model.reply(PROMPT)) for _ in range(20)]
        await until(lambda: under_way >= 3)
        for _ in range(5):  # whatever else was on its way arrives before these do
            await probe.reply(PROMPT)
        go_on.set()
        replies = await asyncio.gather(*asking)
        await model.close()
        await probe.close()
    assert [reply.text for reply in replies] == ["ok"] * 20
    assert most == 3
