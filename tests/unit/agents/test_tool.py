"""Tools: what a model is told of them, and what reaches the function."""

import subprocess
import sys
import threading
from typing import Annotated, Any, Literal

import pytest
from pydantic import Field

from mesh.agent.errors import ToolArgumentsInvalid
from mesh.agent.tools import Tool, tool


@tool
def look_up(city: Annotated[str, Field(description="A town.")], days: int = 1) -> dict[str, Any]:
    """Say what the weather will be."""
    return {"city": city, "days": days, "thread": threading.get_ident()}


@tool(effect="idempotent", name="pay")
async def pay_out(cents: int, to: Literal["a", "b"], idempotency_key: str) -> str:
    """Pay somebody."""
    return f"{cents} to {to} under {idempotency_key}"


def test_a_function_becomes_a_tool_that_is_named_and_described_by_itself() -> None:
    assert (look_up.name, look_up.description, look_up.effect) == (
        "look_up",
        "Say what the weather will be.",
        None,
    )
    assert (pay_out.name, pay_out.effect) == ("pay", "idempotent")


def test_the_schema_says_what_the_signature_says() -> None:
    assert look_up.schema == {
        "type": "object",
        "properties": {
            "city": {"type": "string", "description": "A town."},
            "days": {"type": "integer", "default": 1},
        },
        "required": ["city"],
        "additionalProperties": False,
    }


def test_the_idempotency_key_is_not_for_the_model() -> None:
    assert set(pay_out.schema["properties"]) == {"cents", "to"}


async def test_the_runtime_fills_the_key_in() -> None:
    assert await pay_out.run({"cents": 5, "to": "a"}, idempotency_key="k1") == "5 to a under k1"


async def test_a_model_cannot_choose_the_key() -> None:
    with pytest.raises(ToolArgumentsInvalid, match="idempotency_key"):
        await pay_out.run({"cents": 5, "to": "a", "idempotency_key": "mine"}, idempotency_key="k1")


async def test_a_plain_function_runs_in_a_thread_of_its_own() -> None:
    assert (await look_up.run({"city": "delft"}))["thread"] != threading.get_ident()


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        pytest.param({}, "city", id="one-lacks"),
        pytest.param({"city": "delft", "days": "many"}, "days", id="a-wrong-type"),
        pytest.param({"city": "delft", "country": "nl"}, "country", id="one-too-many"),
    ],
)
async def test_wrong_arguments_are_named_and_nothing_is_run(arguments: dict[str, Any], named: str) -> None:
    with pytest.raises(ToolArgumentsInvalid) as caught:
        await look_up.run(arguments)
    assert any(mistake.startswith(named) for mistake in caught.value.mistakes)
    assert "look_up was not called" in str(caught.value)


def test_an_error_does_not_repeat_the_value() -> None:
    with pytest.raises(ToolArgumentsInvalid) as caught:
        look_up.check({"city": "delft", "days": "confidential"})
    assert "confidential" not in str(caught.value)


async def test_a_parameter_may_have_a_name_that_pydantic_uses() -> None:
    @tool
    def odd(schema: str, copy: int = 2, title: str = "t") -> str:
        return f"{schema} {copy} {title}"

    assert set(odd.schema["properties"]) == {"schema", "copy", "title"}
    assert await odd.run({"schema": "x", "title": "y"}) == "x 2 y"


def test_a_tool_can_be_called_as_the_function_that_it_is() -> None:
    assert look_up("gouda", days=3)["days"] == 3


def no_annotation(city):  # type: ignore[no-untyped-def]
    return city


def no_names(*cities: str) -> None: ...


def key_without_effect(idempotency_key: str) -> None: ...


@pytest.mark.parametrize("function", [no_annotation, no_names, key_without_effect])
def test_a_function_that_no_model_could_call_is_no_tool(function: Any) -> None:
    with pytest.raises(TypeError, match=function.__name__):
        tool(function)


@pytest.mark.parametrize("name", ["look up!", "n" * 65, "prüfe", "a.b", "a\n"])
def test_a_name_that_no_model_could_say_is_no_tools(name: str) -> None:
    with pytest.raises(TypeError, match=r"no model can call a tool .*1 to 64 of a-z A-Z 0-9 _ -"):
        tool(name=name)(look_up.fn)


def test_a_function_without_a_name_needs_one() -> None:
    with pytest.raises(TypeError, match="<lambda>"):
        tool(lambda: None)
    assert tool(name="n" * 64)(lambda: None).name == "n" * 64


def test_of_many_mistakes_a_few_are_told() -> None:
    with pytest.raises(ToolArgumentsInvalid) as caught:
        look_up.check({f"x{n}": n for n in range(3_000)})
    assert caught.value.mistakes[0].startswith("city: ")
    assert (len(caught.value.mistakes), caught.value.mistakes[-1]) == (6, "and 2996 more")


def test_a_long_mistake_is_cut() -> None:
    with pytest.raises(ToolArgumentsInvalid) as caught:
        look_up.check({"city": "delft", "x\n" * 50_000: 1})
    (mistake,) = caught.value.mistakes
    assert len(mistake) <= 301
    assert "\n" not in mistake


def test_an_effect_that_does_not_exist_is_refused() -> None:
    with pytest.raises(TypeError, match="sometimes"):
        tool(effect="sometimes")(key_without_effect)  # type: ignore[call-overload]


def test_defining_a_tool_does_not_import_pydantic() -> None:
    script = (
        "import sys\n"
        "from mesh.agent.tools import Tool, tool\n"
        "@tool\n"
        "def nothing(a: int) -> int: return a\n"
        "assert isinstance(nothing, Tool)\n"
        "print('pydantic' in sys.modules)"
    )
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "False"


def test_a_tool_is_a_value() -> None:
    assert look_up == Tool(look_up.name, look_up.description, None, look_up.fn)
