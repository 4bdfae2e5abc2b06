"""Which model drives an agent, and from which instructions."""

from pathlib import Path

import pytest

from mesh.model.choose import ModelUnavailable, mode, model_for
from mesh.model.instructions import Instructions, load_instructions, parse_instructions
from mesh.model.script import ScriptInvalid

SCRIPT = '[a]\nfallback = { answer = "No." }\n'


@pytest.fixture
def script(tmp_path: Path) -> Path:
    file = tmp_path / "rules.toml"
    file.write_text(SCRIPT)
    return file


@pytest.fixture(autouse=True)
def _nothing_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MESH_MODEL", raising=False)


def test_it_is_the_scripted_one_unless_another_is_asked_for(script: Path) -> None:
    assert mode() == "scripted"
    assert model_for("a", script=script).mode == "scripted"


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
