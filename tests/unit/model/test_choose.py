"""Which model drives an agent, and from which instructions."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from mesh.model import ClaudeAgent
from mesh.model.agent import KEY, ModelUnavailable, close_models, key_will_do, mode, model_for
from mesh.model.prompt import Instructions, load_instructions, parse_instructions
from mesh.model.scripted import ScriptInvalid
from mesh.testing import FleetHarness, InMemoryGuard, fleet_of, turn
from mesh.testing.claude_stub import StubClaude, says

SCRIPT = '[a]\nfallback = { answer = "No." }\n'


@pytest.fixture
def script(tmp_path: Path) -> Path:
    file = tmp_path / "rules.toml"
    file.write_text(SCRIPT)
    return file


@pytest.fixture(autouse=True)
def _nothing_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MESH_MODEL", raising=False)
    monkeypatch.delenv(KEY, raising=False)


def test_it_is_the_scripted_one_unless_another_is_asked_for(script: Path) -> None:
    assert mode() == "scripted"
    assert model_for("a", script=script).mode == "scripted"


@pytest_asyncio.fixture
async def vendor(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[StubClaude]:
    """Where the SDK would go by itself: a developer's shell, with a key in it."""
    async with StubClaude(lambda body: says("That cost you money.")) as stub:
        monkeypatch.setenv(KEY, "sk-of-a-developer")
        monkeypatch.setenv("ANTHROPIC_BASE_URL", stub.url)
        yield stub
        await close_models()


async def test_a_key_in_the_shell_spends_nothing_in_a_test(vendor: StubClaude, script: Path) -> None:
    agent = ClaudeAgent("a", instructions=Instructions("1", "Help."), script=script)
    walk = await FleetHarness(InMemoryGuard(fleet_of("a")), {"a": agent}).go("Where is it?")
    assert walk.answer == "No."
    move = await agent(turn(agent="a", summary="Where is it?"))
    assert getattr(move, "answer", None) == "No."
    assert vendor.asked == []


async def test_without_rules_it_is_said_what_to_do_and_nobody_is_asked(vendor: StubClaude) -> None:
    agent = ClaudeAgent("a", instructions=Instructions("1", "Help."))
    with pytest.raises(ModelUnavailable, match=r"has no script.*driven_by.*MESH_MODEL=claude"):
        await agent(turn(agent="a", summary="Where is it?"))
    assert vendor.asked == []


async def test_whoever_asks_for_the_real_one_gets_it(
    vendor: StubClaude, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = ClaudeAgent("a", instructions=Instructions("1", "Help."))
    monkeypatch.setenv("MESH_MODEL", "claude")
    await agent(turn(agent="a", summary="Where is it?"))
    assert len(vendor.asked) == 1


def test_where_work_is_done_a_key_will_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(KEY, "sk-of-a-service")
    with key_will_do():
        assert mode() == "claude"
        monkeypatch.setenv("MESH_MODEL", "scripted")
        assert mode() == "scripted"
        monkeypatch.delenv("MESH_MODEL")
        monkeypatch.delenv(KEY)
        assert mode() == "scripted"


@pytest.mark.parametrize("name", ["claude", "parrot"])
def test_what_is_not_there_is_said_to_be_not_there(
    name: str, script: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MESH_MODEL", name)
    with pytest.raises(ModelUnavailable, match=name):
        model_for("a", script=script)
    with pytest.raises(ModelUnavailable):
        mode()


def test_an_agent_has_to_have_a_part_in_the_script(script: Path, tmp_path: Path) -> None:
    with pytest.raises(ScriptInvalid, match="'b'"):
        model_for("b", script=script)
    with pytest.raises(ScriptInvalid, match=r"absent\.toml"):
        model_for("a", script=tmp_path / "absent.toml")


def test_instructions_are_a_version_and_a_text(tmp_path: Path) -> None:
    file = tmp_path / "a.md"
    file.write_text("<!-- version: 2026-11.1 -->\n\nBe kind.\n\nBe brief.\n")
    assert load_instructions(file) == Instructions("2026-11.1", "Be kind.\n\nBe brief.")


@pytest.mark.parametrize("text", ["Be kind.", "<!-- version: 1 -->\n\n", ""])
def test_instructions_without_a_version_or_a_text_are_none(text: str) -> None:
    with pytest.raises(ValueError, match=r"a\.md"):
        parse_instructions(text, "a.md")
