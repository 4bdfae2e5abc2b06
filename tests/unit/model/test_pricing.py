"""What a model costs that has no price: nothing is called blindly on a budget of dollars, nothing is free."""

import pytest

from mesh.agent.turn import Turn
from mesh.model import pricing
from mesh.model.loop import drive
from mesh.model.port import Model, Reply
from mesh.model.pricing import BudgetUnpriced
from mesh.model.vendor import ModelRetry
from mesh.model.vendors.claude import ROUTING, WORK, ClaudeModel
from mesh.testing import MemorySteps, turn
from protocol.wire.commands import Usage
from protocol.wire.handoff import Budget, Constraints
from protocol.wire.moves import Complete, Move
from protocol.wire.prices import MTOK, Price, Tokens
from tests.logs import captured_logs
from tests.unit.model.doubles import TalkingModel, says
from tests.vendors.claude import StubClaude
from tests.vendors.stand_in import fails
from tests.vendors.stand_in import says as answers

PRICE = Price(input=MTOK, output=5 * MTOK)
DOLLARS = Constraints(budget=Budget(nano_dollars=1_000_000))


class Pinned(TalkingModel):
    """A vendor's model under its pinned id, with another to fall back to."""

    mode = "big"
    is_billed = True

    def asked_of(self, replied: str) -> str:
        return "small" if replied.startswith("small") else "big"


@pytest.fixture(autouse=True)
def _nothing_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pricing, "_reported", set())


def reply(model: str) -> Reply:
    return Reply(
        text="ok", usage=Usage(tokens=12, model_calls=1), tokens=Tokens(input=10, output=2), model=model
    )


async def driven(on: Turn, model: Model) -> Move:
    return await drive(on, model, instructions="Be brief.", tools=())


@pytest.mark.parametrize(
    ("replied", "prices", "nano_dollars"),
    [
        ("big-20261101", {"big": PRICE}, 20),
        ("eu.big-v2", {"big": PRICE}, 20),
        ("small@latest", {"big": Price(input=0, output=0), "small": PRICE}, 20),
        ("other", {"big": Price(input=0, output=0), "other": PRICE}, 20),
    ],
)
async def test_a_reply_under_another_id_costs_what_the_model_costs_that_was_asked(
    replied: str, prices: dict[str, Price], nano_dollars: int
) -> None:
    on = turn(prices=prices, constraints=DOLLARS)
    assert await driven(on, Pinned(reply(replied))) == Complete(answer="ok")
    assert on.execution.report.usage.nano_dollars == nano_dollars
    assert list(on.execution.report.usage.models) == [replied]


async def test_a_model_that_is_known_to_have_no_price_is_not_asked_on_a_budget_of_dollars() -> None:
    model = Pinned(reply("big"))
    with pytest.raises(BudgetUnpriced, match=r"big has no price: add it to \[prices\]") as raised:
        await driven(turn(prices={"small": PRICE}, constraints=DOLLARS), model)
    assert (raised.value.code, raised.value.permanent) == ("budget_unpriced", True)
    assert model.prompts == []
    assert "run `mesh request rerun`: this request keeps the prices that it began with" in str(raised.value)


async def test_a_reply_that_turns_out_to_have_no_price_is_the_last_and_its_tokens_count() -> None:
    model, steps = TalkingModel(*[reply("mystery")] * 2), MemorySteps()
    on = turn(prices={"big": PRICE}, constraints=DOLLARS, steps=steps)
    with pytest.raises(BudgetUnpriced, match="mystery has no price"):
        await driven(on, model)
    assert len(model.prompts) == 1
    assert (on.execution.report.usage.tokens, on.execution.report.usage.model_calls) == (12, 1)


async def test_a_model_without_a_price_is_asked_on_a_budget_of_tokens() -> None:
    on = turn(constraints=Constraints(budget=Budget(tokens=100)))
    assert await driven(on, Pinned(reply("big"))) == Complete(answer="ok")


async def test_what_costs_nothing_needs_no_price_on_a_budget_of_dollars() -> None:
    assert await driven(turn(constraints=DOLLARS), TalkingModel(says("ok"))) == Complete(answer="ok")


async def test_a_model_without_a_price_is_named_in_the_log_once() -> None:
    with captured_logs() as said:
        for _ in range(2):
            await driven(turn(), Pinned(reply("big")))
        await driven(turn(prices={"big": PRICE}), Pinned(reply("big")))
        await driven(turn(), TalkingModel(says("ok")))
    assert [(each["event"], each["model"]) for each in said] == [("model_unpriced", "big")]


async def test_through_the_vendors_sdk_nothing_is_asked_unpriced_and_an_alias_costs_its_model() -> None:
    async with StubClaude(lambda body: answers("ok", model=f"{body['model']}@eu")) as stub:
        model = ClaudeModel(ROUTING, fallback=WORK, base_url=stub.url, api_key="stub")
        with pytest.raises(BudgetUnpriced, match=f"{ROUTING} has no price"):
            await driven(turn(prices={WORK: PRICE}, constraints=DOLLARS), model)
        assert stub.asked == []
        on = turn(prices={ROUTING: PRICE}, constraints=DOLLARS)
        await driven(on, model)
        await model.close()
    assert on.execution.report.usage.nano_dollars > 0


async def overloaded(stub: StubClaude, prices: dict[str, Price], constraints: Constraints | None) -> Move:
    """Ask a model that is overloaded, and has another to fall back to."""
    model = ClaudeModel(ROUTING, fallback=WORK, base_url=stub.url, api_key="stub")
    try:
        return await driven(turn(prices=prices, constraints=constraints), model)
    finally:
        await model.close()


async def test_on_a_budget_of_dollars_a_fallback_without_a_price_is_not_asked() -> None:
    with captured_logs() as said:
        for _ in range(2):
            async with StubClaude([fails(500)]) as stub:
                with pytest.raises(ModelRetry, match="status 500"):
                    await overloaded(stub, {ROUTING: PRICE}, DOLLARS)
            assert [asked.body["model"] for asked in stub.asked] == [ROUTING]
    unpriced = [each for each in said if each["event"] == "model_unpriced"]
    assert [each["model"] for each in unpriced] == [WORK]
    assert "on a budget of dollars it is not asked" in unpriced[0]["hint"]


@pytest.mark.parametrize(
    ("prices", "constraints"),
    [
        pytest.param({ROUTING: PRICE}, None, id="no budget"),
        pytest.param({ROUTING: PRICE}, Constraints(budget=Budget(tokens=10_000)), id="one of tokens"),
        pytest.param({ROUTING: PRICE, WORK: PRICE}, DOLLARS, id="a price"),
    ],
)
async def test_otherwise_it_is(prices: dict[str, Price], constraints: Constraints | None) -> None:
    async with StubClaude([fails(529), answers("ok")]) as stub:
        assert await overloaded(stub, prices, constraints) == Complete(answer="ok")
    assert [asked.body["model"] for asked in stub.asked] == [ROUTING, WORK]


async def test_without_its_fallback_a_model_answers_on_the_same_connections() -> None:
    async with StubClaude([answers("ok")] * 2) as stub:
        model = ClaudeModel(ROUTING, fallback=WORK, base_url=stub.url, api_key="stub")
        on = turn(prices={ROUTING: PRICE}, constraints=DOLLARS)
        assert await driven(on, model) == Complete(answer="ok")
        assert (model.fallback, model.alone().fallback) == (WORK, None)
        assert model.alone()._client is model._client
        await model.close()


async def test_a_reply_that_is_read_back_is_no_cheaper() -> None:
    """A process that dies between the record and the proposal changes nothing about it."""
    steps = MemorySteps()
    for replies in ([reply("small-1")], []):
        given = turn(prices={"big": PRICE}, constraints=DOLLARS, steps=steps)
        with pytest.raises(BudgetUnpriced, match="small-1 has no price"):
            await driven(given, Pinned(*replies))
