"""docs/adapters.md: its examples run."""

import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest
from langchain_core.language_models.fake_chat_models import FakeMessagesListChatModel
from langchain_core.messages import AIMessage
from pydantic_ai import ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import FunctionModel

from mesh.testing import FleetHarness, InMemoryGuard, fleet_of
from tests.adapters.stage import elsewhere
from tests.docs.pages import blocks, read, written

PAGE = read("adapters.md")


def module(name: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Return a module of the page. Other pages and fleets have some of the same names."""
    assert f"{name}.py" in written(list(blocks(PAGE)), folder)
    monkeypatch.syspath_prepend(folder)
    monkeypatch.delitem(sys.modules, name, raising=False)
    found = import_module(name)
    monkeypatch.delitem(sys.modules, name)
    return found


@pytest.fixture
def billing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    return module("billing", tmp_path, monkeypatch)


async def test_the_example_of_pydantic_ai_asks_for_an_approval_and_refunds(billing: ModuleType) -> None:
    call = ModelResponse(parts=[ToolCallPart("refund", {"order": 7, "cents": 500})])
    replies = iter([call, ModelResponse(parts=[TextPart("Done.")])])
    with billing.existing.override(model=FunctionModel(lambda *_: next(replies))):
        walk = FleetHarness(InMemoryGuard(fleet_of("billing", "triage")), {"billing": billing.billing})
        await walk.go("Refund order 7", replies=[True])
    assert walk.answer == "Done."
    assert 'billing asks for approval: refund {"order":7,"cents":500}' in str(walk)


CLERK = """
import sys
from importlib import import_module
sdk, testing = import_module("agents"), import_module("agents.testing")
sdk.set_tracing_disabled(True)
import asyncio, clerk
from mesh.testing import FleetHarness, InMemoryGuard, fleet_of
call = testing.function_call("refund", {"order": 7, "cents": 500}, call_id="call-1")
clerk.existing.model = testing.ScriptedModel([[call], [testing.assistant_message("Done.")]])
walk = FleetHarness(InMemoryGuard(fleet_of("clerk", "triage")), {"clerk": clerk.clerk})
asyncio.run(walk.go("Refund order 7", replies=[True]))
assert walk.answer == "Done."
assert 'clerk asks for approval: refund {"order":7,"cents":500}' in str(walk)
"""


def test_the_example_of_openai_agents_asks_for_an_approval_and_refunds(tmp_path: Path) -> None:
    assert "clerk.py" in written(list(blocks(PAGE)), tmp_path)
    done = elsewhere("-c", CLERK, folder=tmp_path)
    assert done.returncode == 0, done.stderr


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    return module("desk", tmp_path, monkeypatch)


async def test_the_example_of_langgraph_asks_and_refunds(desk: ModuleType) -> None:
    call = {"name": "refund", "args": {"order": 7, "cents": 500}, "id": "call-1"}
    vars(desk)["model"] = FakeMessagesListChatModel(
        responses=[AIMessage("", tool_calls=[call]), AIMessage("Done.")]
    )
    walk = FleetHarness(InMemoryGuard(fleet_of("desk", "triage", human=True)), {"desk": desk.desk})
    await walk.go("Refund order 7", replies=[True])
    assert walk.answer == "Done."
    assert '{"refund": 7, "cents": 500}' in str(walk)
