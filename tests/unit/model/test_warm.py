"""Before its first turn a model's agent loads the vendor's SDK, and not on the loop."""

import asyncio
import subprocess
import sys
import threading

import pytest

from mesh.model import ClaudeAgent
from mesh.model.agent import KEY, VARIABLE, ModelUnavailable, instead
from mesh.model.prompt import Instructions
from mesh.testing import StrictModel
from tests.servers import PATIENCE_S, ROOT

LOOKED_AT = """
import asyncio, sys, threading

class Seen:
    by = set()
    def find_spec(self, name, path=None, target=None):
        if name == "anthropic._client":
            self.by.add(threading.current_thread() is threading.main_thread())

sys.meta_path.insert(0, Seen())
from mesh.model import ClaudeAgent
from mesh.model.prompt import Instructions

agent = ClaudeAgent("a", instructions=Instructions("1", "Help."))
assert "anthropic" not in sys.modules
asyncio.run(agent.prepare())
assert "anthropic" in sys.modules
assert Seen.by == {False}, Seen.by
"""


def test_the_sdk_is_imported_in_a_thread() -> None:
    told = {VARIABLE: "claude", KEY: "none is needed to import", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", LOOKED_AT],
        env=told,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr


async def test_any_model_may_have_something_to_load() -> None:
    class Slow(StrictModel):
        def warm(self) -> None:
            loaded.append(threading.current_thread() is threading.main_thread())

    loaded: list[bool] = []
    agent = ClaudeAgent("a", instructions=Instructions("1", "Help."))
    assert agent.prepare is not None
    for model in (Slow(), StrictModel()):
        with instead(lambda *_, made=model: made):
            await agent.prepare()
    assert loaded == [False]


def test_what_is_not_there_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    agent = ClaudeAgent("a", instructions=Instructions("1", "Help."))
    assert agent.prepare is not None
    with pytest.raises(ModelUnavailable, match="has no script"):
        asyncio.run(agent.prepare())  # type: ignore[arg-type]  # a coroutine
