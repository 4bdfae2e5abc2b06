"""Tools in pydantic's words: defaults that are fields, results and arguments that are models."""

import json
from typing import Annotated, Any

import pytest
from pydantic import BaseModel, Field, SecretStr

from mesh.agent import ApprovalNeeded
from mesh.agent.errors import ToolArgumentsInvalid
from mesh.agent.tools import tool
from mesh.model.loop import drive
from mesh.testing import MemorySteps, StrictModel, calls, says, turn


class Customer(BaseModel):
    id: int
    tier: str = "gold"
    secret: SecretStr = SecretStr("s3cret")


ADA = {"id": 7, "tier": "gold", "secret": "**********"}


@pytest.mark.parametrize(
    ("result", "plain"),
    [
        pytest.param(Customer(id=7), ADA, id="a model"),
        pytest.param([Customer(id=7), Customer(id=7)], [ADA, ADA], id="in a list"),
        pytest.param({"found": (Customer(id=7),)}, {"found": [ADA]}, id="in an object"),
    ],
)
async def test_a_result_is_recorded_and_told_as_json(result: Any, plain: Any) -> None:
    @tool
    async def find() -> Any:
        """Find."""
        return result

    steps = MemorySteps()
    for _ in range(2):
        assert await turn(steps=steps).call(find) == plain
    with StrictModel(calls(("find", {})), says("found")) as model:
        await drive(turn(), model, instructions="", tools=(find,))
    assert json.loads(model.prompts[-1].transcript[-1].text) == plain


seen: list[Any] = []


@pytest.fixture(autouse=True)
def _nothing_seen() -> None:
    seen.clear()


@tool
async def search(
    words: str = Field(description="what for"),
    limit: int = Field(5, ge=1, description="how many"),
    shelves: list[int] = Field(default_factory=lambda: [len(seen)]),  # noqa: B008  # a default as pydantic has it
) -> None:
    """Search."""
    seen.append((words, limit, shelves))


def test_a_field_as_a_default_is_told_with_all_that_it_says() -> None:
    assert search.schema["properties"]["limit"] == {
        "type": "integer",
        "default": 5,
        "minimum": 1,
        "description": "how many",
    }
    assert search.schema["properties"]["words"] == {"type": "string", "description": "what for"}
    assert search.schema["required"] == ["words"]


async def test_the_function_gets_its_value() -> None:
    await turn().call(search, words="x")
    await turn().call(search, words="x", limit=2, shelves=[9])
    assert seen == [("x", 5, [0]), ("x", 2, [9])]


async def test_a_factory_makes_a_value_for_each_call() -> None:
    for _ in range(2):
        await search.run({"words": "x"})
    assert [shelves for _, _, shelves in seen] == [[0], [1]]


@pytest.mark.parametrize(
    ("given", "mistake"),
    [
        pytest.param({"words": "x", "limit": 0}, "limit: .*greater than or equal to 1", id="out of bounds"),
        pytest.param({}, "words: Field required", id="without a default"),
    ],
)
async def test_it_is_a_check_too(given: dict[str, Any], mistake: str) -> None:
    with pytest.raises(ToolArgumentsInvalid, match=mistake):
        await search.run(given)


async def test_both_ways_of_saying_it_come_to_the_same() -> None:
    @tool
    async def one(n: int = Field(5, ge=1)) -> int:
        """Say it."""
        return n

    @tool
    async def other(n: Annotated[int, Field(ge=1)] = 5) -> int:
        """Say it."""
        return n

    assert one.schema == other.schema
    assert await one.run({}) == await other.run({}) == 5


async def test_an_approval_shows_defaults_as_json() -> None:
    @tool(effect="once", approve="human")
    async def order(
        sku: str,
        n: int = Field(1, ge=1),
        to: Customer = Customer(id=7),  # noqa: B008
        more: list[Customer] = [Customer(id=8)],  # noqa: B006, B008
    ) -> None:
        """Order."""

    with pytest.raises(ApprovalNeeded) as needed:
        await turn(steps=MemorySteps()).call(order, sku="a")
    shown = needed.value.ask.question.partition(" order ")[2]
    assert json.loads(shown) == {"sku": "a", "n": 1, "to": ADA, "more": [{**ADA, "id": 8}]}
