"""The drill's page: its commands can be typed, its Python notes a deed and reads what a drill has left."""

import contextlib
import io
import shlex
from pathlib import Path

import pytest

from tests.docs.pages import blocks, commands
from tests.drill.command import COMMAND, drill
from tests.drill.keep import save
from tests.drill.tests.scene import clean
from tests.servers import ROOT

PAGE = (ROOT / "tests" / "drill" / "README.md").read_text()
NOTE, REPORT = (each.text for each in blocks(PAGE) if each.language == "python")


@pytest.mark.parametrize("command", [command for command, _ in commands(PAGE)])
def test_a_command_of_the_page_can_be_typed(command: str) -> None:
    assert command.startswith(COMMAND)
    drill.make_context(COMMAND, shlex.split(command, comments=True)[3:])


def test_the_ledger_of_the_page_notes_nothing_outside_of_a_drill(tmp_path: Path) -> None:
    names: dict[str, object] = {}
    with contextlib.chdir(tmp_path):
        exec(compile(NOTE, "README.md", "exec"), names)
    assert names["refund"].name == "refund"  # type: ignore[attr-defined]
    assert list(tmp_path.iterdir()) == []


def test_what_a_drill_has_left_is_checked_again(tmp_path: Path) -> None:
    save(clean(), tmp_path / "out" / "evidence")
    with contextlib.chdir(tmp_path), contextlib.redirect_stdout(io.StringIO()) as said:
        exec(compile(REPORT, "README.md", "exec"), {})
    assert "no promise was broken" in said.getvalue()
