"""Parameters of tools that facts give: no model sees or says them, and they count as arguments."""

from typing import Annotated

import pytest

from mesh.agent import ApprovalNeeded, FromFact, tool
from mesh.agent.errors import ToolArgumentsInvalid
from mesh.model.loop import drive
from mesh.model.port import ToolResult
from mesh.testing import StrictModel, calls, says, turn

ran: list[tuple[str, int, str]] = []


@tool(effect="idempotent", approve="human")
async def refund(
    euros: int, customer: Annotated[str, FromFact("customer_id")], idempotency_key: str = ""
) -> str:
    """Refund."""
    return idempotency_key


@tool
async def orders(
    customer: Annotated[str, FromFact("customer_id")],
    most: int = 5,
    tenant: Annotated[str, FromFact("t")] = "shop",
) -> str:
    """List the customer's orders."""
    ran.append((customer, most, tenant))
    return f"orders of {customer}"


async def test_a_model_neither_sees_nor_says_what_a_fact_gives() -> None:
    ran.clear()
    mine, another = ("orders", {"most": 2}), ("orders", {"most": 2, "customer": "someone-else"})
    with StrictModel(calls(mine), calls(another), says("done")) as model:
        await drive(turn(facts={"customer_id": "c-7"}), model, instructions="", tools=[orders])
    (spec,) = (each for each in model.prompts[0].tools if each.name == "orders")
    assert set(spec.schema["properties"]) == {"most"}
    assert ran == [("c-7", 2, "shop")]
    told = [each for each in model.prompts[-1].transcript if isinstance(each, ToolResult)]
    assert [(each.text.partition(":")[0], each.is_error) for each in told] == [
        ("orders of c-7", False),
        (told[1].text.partition(":")[0], True),
    ]
    assert "customer: not an argument of yours" in told[1].text


async def test_a_fact_that_lacks_or_is_of_another_type_is_said() -> None:
    with pytest.raises(ToolArgumentsInvalid, match="the fact customer_id is needed, and is not there"):
        await turn().call(orders)  # type: ignore[call-arg]
    with pytest.raises(ToolArgumentsInvalid, match="customer"):
        await turn(facts={"customer_id": 7}).call(orders)  # type: ignore[call-arg]


async def test_code_may_say_it_by_itself() -> None:
    assert await turn().call(orders, "c-8") == "orders of c-8"
    assert await turn(facts={"customer_id": "c-7"}).call(orders, customer="c-8") == "orders of c-8"


async def test_it_counts_in_an_effects_key_and_in_what_is_asked() -> None:
    keys = []
    for customer in ("c-7", "c-7", "c-8"):
        with pytest.raises(ApprovalNeeded) as needed:
            await turn(facts={"customer_id": customer}).call(refund, euros=5)  # type: ignore[call-arg]
        assert customer in needed.value.ask.question
        keys.append(needed.value.ask.digest)
    assert keys[0] == keys[1] != keys[2]
