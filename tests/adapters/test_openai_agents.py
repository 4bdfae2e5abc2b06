"""Agents of the OpenAI SDK: their calls are steps, their handoffs moves, their approvals questions.

The SDK owns the name `agents`, and so does a folder of this repository, which this process has. Its cases
(`openai_cases.py`, `openai_move_cases.py`) run in a process where the name is the SDK's.
"""

import ast
import json
from pathlib import Path

import pytest

from tests.adapters.stage import elsewhere

CASES = Path(__file__).with_name("openai_cases.py")
NAMES = [
    node.name
    for file in (CASES, CASES.with_name("openai_move_cases.py"))
    for node in ast.parse(file.read_text()).body
    if isinstance(node, ast.AsyncFunctionDef)
]


@pytest.fixture(scope="module")
def cases(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What went wrong in each case: all of them run in one process."""
    done = elsewhere(CASES, folder=tmp_path_factory.mktemp("elsewhere"))
    assert done.returncode == 0, done.stderr
    found: dict[str, str] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.parametrize("name", NAMES)
def test_it_is_so_that(name: str, cases: dict[str, str]) -> None:
    assert not cases[name], cases[name]
