"""Tools: what a model is told of them, and what reaches the function."""

import asyncio
import datetime
import functools
import json
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, Field, SecretStr

from mesh.agent import ApprovalNeeded
from mesh.agent.definition import unpacked
from mesh.agent.errors import InDoubt, ResultUnusable, ToolArgumentsInvalid, ToolRefused, ToolsUnusable
from mesh.agent.tools import NOT_DONE, Tool, tool
from mesh.model.loop import drive
from mesh.testing import MemorySteps, StrictModel, calls, says, turn
from protocol.wire.records import Record, decode_record


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


@pytest.mark.parametrize("name", ["", "look up!", "n" * 65, "é", "a\n"])
async def test_a_tool_that_no_model_could_call_is_refused_when_the_tools_are_known(name: str) -> None:
    with pytest.raises(ToolsUnusable, match=r"no model can call a tool .*1 to 64 of a-z A-Z 0-9 _ -"):
        await unpacked([Tool(name, "Do it.", None, dict)])


async def test_the_longest_name_will_do() -> None:
    longest = Tool("n" * 64, "Do it.", None, lambda: None)
    assert await unpacked([longest]) == (longest,)


done: list[int] = []


@pytest.fixture(autouse=True)
def _nothing_done() -> None:
    done.clear()


def timed(function: Callable[..., Awaitable[Any]]) -> Callable[..., Any]:
    """A decorator as one finds them: it knows nothing of async functions."""

    @functools.wraps(function)
    def inner(*args: Any, **named: Any) -> Any:
        return function(*args, **named)

    return inner


@timed
async def book(n: int) -> dict[str, int]:
    """Book."""
    done.append(n)
    return {"booked": n}


@timed
async def found(key: str) -> Any:
    return {"booked": 7} if done else NOT_DONE


KINDS = [
    pytest.param(tool(book), id="reads"),
    pytest.param(tool(effect="idempotent")(book), id="idempotent"),
    pytest.param(tool(effect="reconcilable", reconcile=found)(book), id="reconcilable"),
    pytest.param(tool(effect="once")(book), id="once"),
]


def values(steps: MemorySteps) -> list[Any]:
    """Return what is recorded of calls that came to their end."""
    records: list[Record] = [decode_record(body) for body in steps.steps.values()]
    return [record.value for record in records if record.kind != "intent"]


@pytest.mark.parametrize("wrapped", KINDS)
async def test_it_is_awaited_and_its_result_is_what_is_recorded(wrapped: Tool) -> None:
    steps = MemorySteps()
    for _ in range(2):  # the second time, as after a crash
        assert await turn(steps=steps).call(wrapped, n=7) == {"booked": 7}
    assert done == [7]
    assert values(steps) == [{"booked": 7}]


async def test_so_is_a_reconcile() -> None:
    class Dies(BaseException):
        pass

    @tool(effect="reconcilable", reconcile=found)
    async def dies(n: int) -> None:
        """Book, and die."""
        done.append(n)
        raise Dies

    assert await dies.ask("key") is NOT_DONE
    with pytest.raises(Dies):
        await dies.run({"n": 7})
    assert await dies.ask("key") == {"booked": 7}


async def test_its_time_is_a_tools_time() -> None:
    @tool(timeout_s=0.01)
    @timed
    async def wait() -> None:
        """Never answer."""
        await asyncio.Event().wait()

    with pytest.raises(ToolRefused, match=r"wait gave no answer within 0\.01 s"):
        await turn().call(wait)


def counted() -> Iterator[int]:
    yield 1


async def streamed() -> AsyncIterator[int]:
    yield 1


class Pending:
    """What has to be awaited, as a coroutine has, and complains of nothing if it is not."""

    def __await__(self) -> Iterator[None]:
        yield


NO_VALUES = [
    pytest.param(counted, "generator", id="a generator"),
    pytest.param(streamed, "async_generator", id="an async generator"),
    pytest.param(lambda: [Pending()], "Pending", id="a coroutine within a list"),
    pytest.param(lambda: {"rows": counted()}, "generator", id="a generator within an object"),
]


@pytest.mark.parametrize(("give", "kind"), NO_VALUES)
async def test_what_is_no_value_is_not_recorded_as_text(give: Callable[[], Any], kind: str) -> None:
    steps = MemorySteps()
    with pytest.raises(TypeError, match=f"a {kind} is no result"):
        await turn(steps=steps).call(Tool("give", "Give.", None, give))
    (record,) = map(decode_record, steps.steps.values())
    assert record.value is None
    assert record.error is not None
    assert record.error.code == "raised"
    with pytest.raises(ToolRefused, match="give broke: TypeError"):
        await turn().execution.call(Tool("give", "Give.", None, give), {}, for_model=True)
    steps = MemorySteps()
    with pytest.raises(InDoubt):
        await turn(steps=steps).call(Tool("give", "Give.", "once", give))
    assert values(steps) == []


class Parcel(BaseModel):
    number: int
    sent: datetime.date


@tool
def find_parcels(number: int) -> list[Parcel]:
    """Find parcels."""
    return [Parcel(number=number, sent=datetime.date(2026, 11, 23))]


@tool
def find_wrongly() -> Parcel:
    """Find something else than it says."""
    return {"number": "seven"}  # type: ignore[return-value]


async def test_a_result_is_what_the_tool_says_the_first_time_and_from_the_journal() -> None:
    steps = MemorySteps()
    for _ in range(2):
        found = await turn(steps=steps).call(find_parcels, number=7)
        assert found == [Parcel(number=7, sent=datetime.date(2026, 11, 23))]


async def test_a_result_that_is_not_what_the_tool_says_names_tool_and_mistakes() -> None:
    with pytest.raises(ResultUnusable, match=r"the result of find_wrongly .*number: .*integer"):
        await turn().call(find_wrongly)
