"""What type checkers know of a user's own file: mypy, and pyright with a Node.js that its wheel brings."""

import json
import sys
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
WRONG = (
    "async def handler(turn: Turn) -> None:\n    await turn.call(pay, cents='1')\n",
    "async def handler(turn: Turn) -> None:\n    (await turn.call(find, number=1)).cents\n",
    "def script(client: mesh.sync.Client) -> None:\n"
    "    print(client.wait(client.submit('?', answer_type=Order)).answer.cents)\n",
)
MYPY = """
[mypy]
follow_imports = skip
[mypy-mesh.*,protocol.*,pydantic.*]
follow_imports = silent
"""


def complaints(checker: str, folder: Path, text: str) -> list[str]:
    """Return what a type checker finds wrong in a user's file."""
    (folder / "user.py").write_text(HEAD + text)
    if checker == "mypy":
        (folder / "mypy.ini").write_text(MYPY)
        done = ran("-m", "mypy", "--strict", "--config-file=mypy.ini", "user.py", folder=folder)
        return [line for line in done.stdout.splitlines() if ": error:" in line]
    (folder / "pyrightconfig.json").write_text(json.dumps({"typeCheckingMode": "standard"}))
    done = ran("-m", "basedpyright", "--outputjson", "--pythonpath", sys.executable, "user.py", folder=folder)
    found = json.loads(done.stdout)["generalDiagnostics"]
    return [each["message"] for each in found if each["severity"] == "error"]


@pytest.mark.parametrize("checker", ["mypy", "pyright"])
def test_a_users_file_has_the_types_that_it_says(checker: str, tmp_path: Path) -> None:
    assert complaints(checker, tmp_path, RIGHT) == []


@pytest.mark.parametrize("checker", ["mypy", "pyright"])
def test_a_users_mistakes_are_found(checker: str, tmp_path: Path) -> None:
    for text in WRONG:
        assert len(complaints(checker, tmp_path, text)) == 1, text


def test_the_names_of_the_client_without_async_are_listed() -> None:
    assert sync.__all__ == ["Client", "AgentNote", "Outcome", "Question"]
    assert all(hasattr(sync, name) for name in sync.__all__)
