"""What type checkers know of a user's own file: mypy, and pyright with a Node.js that its wheel brings."""

import json
import sys
from collections import Counter
from pathlib import Path

import pytest

from mesh import sync
from tests.servers import ran

HEAD = """
from typing import assert_type

from pydantic import BaseModel

import mesh.sync
from mesh import Client
from mesh.agent import Turn, tool


class Order(BaseModel):
    number: int


@tool
async def find(number: int) -> Order:
    "Find an order."
    return Order(number=number)


@tool(effect="idempotent")
def pay(cents: int, idempotency_key: str = "") -> str:
    "Pay."
    return "paid"


"""
RIGHT = """
async def handler(turn: Turn) -> None:
    assert_type(await turn.call(find, number=1), Order)
    assert_type(await turn.call(pay, cents=1), str)
    assert_type(await find(1), Order)


async def service(client: Client) -> None:
    outcome = await client.wait(await client.submit("Which?", answer_type=Order), timeout_s=60)
    assert_type(outcome.answer, Order)
    untyped = await client.wait(await client.submit("Which?"))
    print(untyped.answer["number"])


def script(client: mesh.sync.Client) -> None:
    request = client.submit("Which?", answer_type=Order, facts={"number": 7})
    assert_type(client.wait(request).answer, Order)
    print(client.wait(client.submit("Which?")).answer["number"])
    client.cancel(request)
"""
WRONG = {
    "a-wrong-argument": "async def handler(turn: Turn) -> None:\n    await turn.call(pay, cents='1')\n",
    "a-field-of-a-result": (
        "async def handler(turn: Turn) -> None:\n    (await turn.call(find, number=1)).cents\n"
    ),
    "a-field-of-an-answer": (
        "def script(client: mesh.sync.Client) -> None:\n"
        "    print(client.wait(client.submit('?', answer_type=Order)).answer.cents)\n"
    ),
}
MYPY = """
[mypy]
follow_imports = skip
[mypy-mesh.*,protocol.*,pydantic.*]
follow_imports = silent
"""


@pytest.fixture(scope="module", params=["mypy", "pyright"])
def complaints(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Counter[str]:
    """How much a type checker finds wrong in each file; it is asked once, for it reads all of mesh first."""
    checker, folder = request.param, tmp_path_factory.mktemp(request.param)
    texts = {"right": RIGHT, **WRONG}
    for name, text in texts.items():
        (folder / f"{name}.py").write_text(HEAD + text)
    files = [f"{name}.py" for name in texts]
    if checker == "mypy":
        (folder / "mypy.ini").write_text(MYPY)
        done = ran(
            "-m", "mypy", "--strict", "--config-file=mypy.ini", "--scripts-are-modules", *files, folder=folder
        )
        return Counter(line.partition(".py:")[0] for line in done.stdout.splitlines() if ": error:" in line)
    (folder / "pyrightconfig.json").write_text(json.dumps({"typeCheckingMode": "standard"}))
    done = ran("-m", "basedpyright", "--outputjson", "--pythonpath", sys.executable, *files, folder=folder)
    report = json.loads(done.stdout)
    assert report["summary"]["filesAnalyzed"] == len(files)
    return Counter(
        Path(each["file"]).stem for each in report["generalDiagnostics"] if each["severity"] == "error"
    )


def test_a_users_file_has_the_types_that_it_says(complaints: Counter[str]) -> None:
    assert complaints["right"] == 0


@pytest.mark.parametrize("mistake", WRONG)
def test_a_users_mistake_is_found(mistake: str, complaints: Counter[str]) -> None:
    assert complaints[mistake] == 1


def test_the_names_of_the_client_without_async_are_listed() -> None:
    assert sync.__all__ == ["AgentNote", "Client", "Outcome", "Question"]
    assert all(hasattr(sync, name) for name in sync.__all__)
