"""An agent that a model drives: what it is made of, what it loads as it starts, and which model it asks."""

from __future__ import annotations

import datetime as dt
import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
import pytest_asyncio
from pydantic import BaseModel

from mesh.agent import Agent
from mesh.agent.definition import key_suffices
from mesh.agent.errors import ToolsUnusable, failure_of
from mesh.agent.tools import Tool, tool
from mesh.model import ClaudeAgent, Swarm
from mesh.model.choice import VARIABLE, ModelUnavailable, close_models, mode, model_for
from mesh.model.port import Prompt, Reply, ToolResult
from mesh.model.prompt import Instructions, load_instructions
from mesh.model.scripted import ScriptInvalid
from mesh.model.vendors.claude import KEY
from mesh.testing import (
    Conversations,
    FleetHarness,
    InMemoryGuard,
    StrictModel,
    calls,
    driven_by,
    fleet_of,
    says,
    turn,
)
from protocol.wire.config import AgentEntry, Policy
from protocol.wire.handoff import Fact
from protocol.wire.ids import AgentName
from tests.certain import is_
from tests.logs import captured_logs
from tests.servers import ran
from tests.vendors.claude import StubClaude
from tests.vendors.stand_in import says as stub_says
from tests.warm import COLD

if TYPE_CHECKING:
    from pathlib import Path as Nowhere

WORDS = Instructions("1", "Be kind.")
SCRIPT = '[a]\nfallback = { answer = "No." }\n'


@pytest.fixture
def script(tmp_path: Path) -> Path:
    file = tmp_path / "rules.toml"
    file.write_text(SCRIPT)
    return file


@pytest.fixture(autouse=True)
def _nothing_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.delenv(KEY, raising=False)


class Connection:
    """No type that JSON has."""


@tool
async def find(name: str) -> str:
    """Find."""
    return name


@tool
async def over(name: str, connection: Connection) -> str:
    """Find over a connection."""
    return name


@tool
async def astray(path: Nowhere) -> str:
    """Find beneath a path."""
    return str(path)


@tool
async def back(call: Callable[[], int]) -> str:
    """Find, and call back."""
    return str(call())


class Box:
    """A box that holds the tools it is given."""

    name = "things"

    def __init__(self, *tools: Tool) -> None:
        self._tools = tools

    async def tools(self) -> tuple[Tool, ...]:
        return self._tools

    async def close(self) -> None: ...


def named(name: str, description: str = "Do it.") -> Tool:
    return tool(name=name, description=description)(lambda: None)


async def prepared(*tools: Tool | Box, model: StrictModel | None = None) -> None:
    agent = ClaudeAgent("a", instructions=WORDS, tools=tools)
    assert agent.prepare is not None
    with driven_by(model or StrictModel()):
        await agent.prepare()


@pytest.mark.parametrize("name", ["complete", "ask", "escalate", "hand_back", "transfer_to_billing"])
async def test_no_tool_stands_beside_the_move_of_its_name(name: str) -> None:
    with pytest.raises(ToolsUnusable, match=f"{name} is the name of a move"):
        ClaudeAgent("a", instructions=WORDS, tools=[named(name)])
    with pytest.raises(ToolsUnusable, match=f"{name} is the name of a move"):
        await prepared(Box(named("fine"), named(name)))


@pytest.mark.parametrize("description", ["", " \n"])
def test_a_model_is_told_of_every_tool_what_it_does(description: str) -> None:
    silent = Tool("silent", description, None, lambda: None)
    with pytest.raises(ToolsUnusable, match="silent says nothing of what it does: give it a docstring"):
        ClaudeAgent("a", instructions=WORDS, tools=[silent])


@pytest.mark.parametrize(
    ("how", "why"),
    [
        pytest.param({"handoffs": "billing"}, "a list of agents", id="one peer as text"),
        pytest.param({"handoffs": ["Billing "]}, "not an agent's name", id="no name"),
        pytest.param({"labels": {"email": ["two words"]}}, "not a label: 'two words'", id="no label"),
    ],
)
def test_what_cannot_be_meant_is_refused_at_once(how: dict[str, Any], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        ClaudeAgent("a", instructions=WORDS, **how)


@pytest.mark.parametrize(
    ("version", "text", "why"),
    [
        *(("1", text, "blank") for text in ("", " \n")),
        *((version, "Be kind.", "not a version of instructions") for version in ("", "two words", "v" * 33)),
    ],
)
def test_instructions_have_a_version_and_a_text(version: str, text: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        Instructions(version, text)


def test_a_file_of_instructions_begins_with_the_version(tmp_path: Path) -> None:
    file = tmp_path / "a.md"
    file.write_text("<!-- version: 2026-11.1 -->\n\nBe kind.\n\nBe brief.\n")
    assert load_instructions(file) == Instructions("2026-11.1", "Be kind.\n\nBe brief.")


@pytest.mark.parametrize("text", ["Be kind.", "<!-- version: 1 -->\n\n", ""])
def test_a_file_without_a_version_or_a_text_is_refused(text: str, tmp_path: Path) -> None:
    file = tmp_path / "a.md"
    file.write_text(text)
    with pytest.raises(ValueError, match=r"a\.md"):
        load_instructions(file)


@pytest.mark.parametrize(("handoffs", "missing"), [(["b", "biling"], ["biling"]), (["b"], None)])
async def test_a_peer_that_is_out_of_reach_is_said_once(
    script: Path, handoffs: list[str], missing: list[str] | None
) -> None:
    made = ClaudeAgent("a", instructions=WORDS, script=script, handoffs=handoffs)
    with captured_logs() as logs:
        for _ in range(2):
            await made(turn(agent="a", peers=["b", "c"]))
    told = {"event": "handoffs_out_of_reach", "log_level": "warning", "agent": "a", "names": missing}
    assert [entry for entry in logs if entry["log_level"] == "warning"] == ([told] if missing else [])


@pytest.mark.parametrize(
    ("unusable", "why"),
    [
        pytest.param(over, "Unable to generate pydantic-core schema for <class .*Connection'>", id="a class"),
        pytest.param(astray, "name 'Nowhere' is not defined", id="a hint that leads nowhere"),
        pytest.param(back, "Cannot generate a JsonSchema for .*CallableSchema", id="a function"),
    ],
)
async def test_a_tool_that_no_model_can_be_told_of_is_named_in_one_sentence(unusable: Tool, why: str) -> None:
    said = rf"^the arguments of {unusable.name} have no JSON schema \({why}.*\): annotate them"
    with pytest.raises(ToolsUnusable, match=said) as raised:
        await prepared(find, unusable)
    assert raised.value.code == "tools.unusable"
    assert ". " not in str(raised.value)
    assert "\n" not in str(raised.value)


async def test_the_schemas_are_made_before_the_first_turn_and_not_on_its_loop() -> None:
    where: list[bool] = []

    class Made(Tool):
        @property
        def schema(self) -> dict[str, Any]:
            where.append(threading.current_thread() is threading.main_thread())
            return {"type": "object", "properties": {}}

    await prepared(Made("look", "Look.", None, dict))
    assert where == [False]


@pytest.mark.parametrize("tools", [(), (find, Box(over))], ids=["no tools", "a box answers for its own"])
async def test_it_starts(tools: tuple[Tool | Box, ...]) -> None:
    await prepared(*tools)


async def test_any_model_may_have_something_to_load() -> None:
    class Slow(StrictModel):
        def warm(self) -> None:
            loaded.append(threading.current_thread() is threading.main_thread())

    loaded: list[bool] = []
    await prepared(model=Slow())
    assert loaded == [False]


LOOKED_AT = """
import asyncio, sys, threading

class Seen:
    by = set()
    def find_spec(self, name, path=None, target=None):
        if name == "anthropic._client":
            self.by.add(threading.current_thread() is threading.main_thread())

sys.meta_path.insert(0, Seen())
from mesh.model import ClaudeAgent
from mesh.model.port import Prompt, Reply, ToolResult
from mesh.model.prompt import Instructions

agent = ClaudeAgent("a", instructions=Instructions("1", "Help."))
assert "anthropic" not in sys.modules
asyncio.run(agent.prepare())
assert "anthropic" in sys.modules
assert Seen.by == {False}, Seen.by
"""


def test_the_sdk_is_imported_in_a_thread(tmp_path: Path) -> None:
    (tmp_path / "looked_at.py").write_text(LOOKED_AT)
    told = {VARIABLE: "claude", KEY: "none is needed to import", COLD: "1"}
    done = ran(tmp_path / "looked_at.py", folder=tmp_path, **told)
    assert done.returncode == 0, done.stderr


@pytest_asyncio.fixture
async def vendor(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[StubClaude]:
    """Where the SDK would go by itself: a developer's shell, with a key in it."""
    async with StubClaude(lambda body: stub_says("That cost you money.")) as stub:
        monkeypatch.setenv(KEY, "sk-of-a-developer")
        monkeypatch.setenv("ANTHROPIC_BASE_URL", stub.url)
        yield stub
        await close_models()


class Parcel(BaseModel):
    sent: dt.date


async def test_an_answer_of_another_type_is_told_to_the_model_and_the_right_one_is_handed_on() -> None:
    agent = ClaudeAgent("a", instructions=WORDS, output_type=Parcel)
    wrong = calls(("complete", {"answer": {"sent": "soon"}}))
    right = calls(("complete", {"answer": {"sent": "2026-11-22"}}))
    with driven_by(StrictModel(wrong, right)) as model:
        move = await agent(turn(agent="a"))
    assert getattr(move, "answer", None) == {"sent": "2026-11-22"}
    told = is_(model.prompts[1].transcript[-1], ToolResult)
    assert told.is_error
    assert "answer.sent: Input should be a valid date" in told.text


@pytest.mark.parametrize("swarm", [False, True], ids=["alone", "writer-of-a-swarm"])
async def test_what_a_models_answer_leaves_is_what_the_next_request_begins_with(swarm: bool) -> None:
    memory, fleet = Conversations(), fleet_of("desk")
    desk: Agent = ClaudeAgent("desk", instructions=WORDS, remembers=True)
    if swarm:
        desk = Swarm(desk, reads=lambda turn: [])
    rules = {"default": Policy(topology="swarm" if swarm else "handoff")}
    left = {"answer": "It is on its way.", "remember": [{"key": "order", "value": 4711}]}
    with driven_by(StrictModel(calls(("complete", left)), says("Still on its way."))) as model:
        for number in (1, 2):
            guard = InMemoryGuard(fleet, rules, memory=memory, number=number)
            walk = await FleetHarness(guard, {"desk": desk}).go("Where is my parcel?", conversation="c")
    assert (walk.answer, walk.turns[-1].facts["order"]) == ("Still on its way.", 4711)
    assert "4711" in model.prompts[1].brief


async def test_a_model_is_told_that_a_key_is_taken_and_uses_another() -> None:
    payout = AgentEntry(name=AgentName("payout"), clearance=("pii",))
    made = fleet_of("calc")
    guard = InMemoryGuard(msgspec.structs.replace(made, agents={**made.agents, "payout": payout}))

    def hands_on(key: str) -> Reply:
        facts = [{"key": key, "value": 75}]
        return calls(("transfer_to_payout", {"summary": "pay it", "facts": facts}))

    def heeds(prompt: Prompt) -> Reply:
        told = is_(prompt.transcript[-1], ToolResult).text
        assert "the key `amount` is taken by a fact that calc may not see" in told
        assert "Allowed instead: use another key." in told
        return hands_on("net_amount")

    agents = {name: ClaudeAgent(name, instructions=WORDS) for name in ("calc", "payout")}
    with driven_by(StrictModel(hands_on("amount"), heeds, says("Paid."))):
        amount = Fact(key="amount", value=100, labels=("pii",))
        walk = await FleetHarness(guard, agents).go("Pay it", facts=(amount,), to="calc")
    assert walk.turns[-1].facts == {"amount": 100, "net_amount": 75, "text": "Pay it"}


async def test_a_key_in_the_shell_spends_nothing_in_a_test(vendor: StubClaude, script: Path) -> None:
    agent = ClaudeAgent("a", instructions=WORDS, script=script)
    walk = await FleetHarness(InMemoryGuard(fleet_of("a")), {"a": agent}).go("Where is it?")
    assert walk.answer == "No."
    move = await agent(turn(agent="a", summary="Where is it?"))
    assert getattr(move, "answer", None) == "No."
    assert vendor.asked == []


async def test_without_rules_it_is_said_what_to_do_and_nobody_is_asked(vendor: StubClaude) -> None:
    agent = ClaudeAgent("a", instructions=WORDS)
    assert agent.prepare is not None
    for asking in (agent(turn(agent="a", summary="Where is it?")), agent.prepare()):
        with pytest.raises(ModelUnavailable, match=r"has no script.*driven_by.*MESH_MODEL=claude"):
            await asking
    assert vendor.asked == []


def test_where_work_is_done_a_key_will_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(KEY, "sk-of-a-service")
    with key_suffices():
        assert mode() == "claude"
        monkeypatch.setenv(VARIABLE, "scripted")
        assert mode() == "scripted"
        monkeypatch.delenv(VARIABLE)
        monkeypatch.delenv(KEY)
        assert mode() == "scripted"


@pytest.mark.parametrize("name", ["claude", "parrot"])
def test_what_is_not_there_is_said_to_be_not_there(
    name: str, script: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, name)
    with pytest.raises(ModelUnavailable, match=name) as lacking:
        model_for("a", script=script)
    assert (failure_of(lacking.value).code, failure_of(lacking.value).permanent) == (
        "model.unavailable",
        True,
    )
    with pytest.raises(ModelUnavailable):
        mode()


def test_an_agent_has_to_have_a_part_in_the_script(script: Path, tmp_path: Path) -> None:
    with pytest.raises(ScriptInvalid, match="'b'"):
        model_for("b", script=script)
    with pytest.raises(ScriptInvalid, match=r"absent\.toml"):
        model_for("a", script=tmp_path / "absent.toml")
