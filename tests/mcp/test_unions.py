"""A union at the top of a server's schema: the vendor takes none, so the model is told of it in words."""

from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from mesh.agent.errors import ToolArgumentsInvalid
from mesh.agent.tools import Tool
from mesh.mcp.server import McpTool
from mesh.model.loop import drive
from mesh.model.vendors.claude import ClaudeModel
from mesh.testing import turn
from protocol.wire.moves import Complete
from tests.vendors.claude import StubClaude
from tests.vendors.stand_in import calls, says

ID, NAME = {"type": "integer"}, {"type": "string"}
BY_EITHER = {"properties": {"id": ID, "name": NAME}, "anyOf": [{"required": ["id"]}, {"required": ["name"]}]}
UNIONS = [
    pytest.param(BY_EITHER, id="anyOf"),
    pytest.param(
        {"$defs": {"i": {"required": ["id"]}}, "properties": {"id": ID, "name": NAME}}
        | {"oneOf": [{"$ref": "#/$defs/i"}, {"required": ["name"]}]},
        id="oneOf",
    ),
    pytest.param({"allOf": [BY_EITHER, {"properties": {"more": NAME}}]}, id="allOf"),
    pytest.param(BY_EITHER | {"allOf": [{"not": {"required": ["secret"]}}]}, id="two"),
    pytest.param(
        {"anyOf": [{"properties": {"id": ID}, "required": ["id"]}, {"required": ["name"]}]}, id="all"
    ),
]


def made(schema: dict[str, Any], **more: Any) -> McpTool:
    async def run(**arguments: Any) -> Any:
        return arguments

    whole = {"type": "object", **schema}
    how = {"name": "find", "description": "Find.", "effect": None, "remote": "find"} | more
    found = McpTool(fn=run, input_schema=whole, **how)
    found.require_sense()
    return found


class Talk:
    """A model through the vendor's SDK, against a stub as strict as the vendor."""

    def __init__(self) -> None:
        self.stub = StubClaude([calls(("find", {})), calls(("find", {"id": 7})), says("found")])

    async def about(self, tool: Tool) -> Any:
        model = ClaudeModel(base_url=self.stub.url, api_key="stub")
        try:
            return await drive(turn(), model, instructions="Find.", tools=(tool,))
        finally:
            await model.close()


@pytest_asyncio.fixture
async def talk() -> AsyncIterator[Talk]:
    talk = Talk()
    async with talk.stub:
        yield talk


@pytest.mark.parametrize("schema", UNIONS)
async def test_the_vendor_takes_it_and_the_whole_schema_checks_the_arguments(
    schema: dict[str, Any], talk: Talk
) -> None:
    assert await talk.about(made(schema)) == Complete(answer="found")
    assert talk.stub.refused == []
    (shown,) = (each for each in talk.stub.asked[0].body["tools"] if each["name"] == "find")
    assert shown["input_schema"]["type"] == "object"
    assert shown["input_schema"]["properties"] == schema.get("properties", {})
    (wrong,), (right,) = (asked.body["messages"][-1]["content"] for asked in talk.stub.asked[1:])
    assert wrong["is_error"]
    assert "find was not called" in str(wrong["content"])
    assert not right.get("is_error")


def test_it_is_told_in_words_behind_those_of_the_schema() -> None:
    told = made(BY_EITHER | {"description": "By either."}).schema["description"]
    assert told == 'By either. Has to fit, too: {"anyOf":[{"required":["id"]},{"required":["name"]}]}'
    assert made(BY_EITHER).schema["description"].startswith("Has to fit, too: ")


def test_a_schema_without_one_is_told_as_it_is() -> None:
    plain = {"type": "object", "properties": {"id": {"anyOf": [ID, NAME]}}, "description": "Plain."}
    assert made(plain).schema == plain


def test_nothing_else_is_taken_from_it() -> None:
    schema = made(BY_EITHER | {"required": ["id"], "additionalProperties": False}).schema
    assert (schema["required"], schema["additionalProperties"]) == (["id"], False)
    assert made(BY_EITHER).input_schema["anyOf"] == BY_EITHER["anyOf"]


def test_the_key_is_the_runtimes_there_too() -> None:
    keyed = {"idempotency_key": NAME, **BY_EITHER["properties"]}  # type: ignore[dict-item]
    pay = made(BY_EITHER | {"properties": keyed, "required": ["idempotency_key"]}, effect="idempotent")
    assert (list(pay.schema["properties"]), pay.schema["required"]) == (["id", "name"], [])
    assert pay.check({"id": 7}) == {"id": 7}
    with pytest.raises(ToolArgumentsInvalid):
        pay.check({})
