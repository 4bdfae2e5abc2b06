"""The README does what it says: its commands exist, and its file of two agents prints what it says."""

import re
import shlex
from pathlib import Path
from typing import Any

import mesh
from tests.docs.pages import blocks, commands, section
from tests.docs.reader import require_installed
from tests.servers import ROOT
from tests.system.terminal import Folder

HELLO = "hello.py"
README = (ROOT / "README.md").read_text()
START = [shlex.split(command, comments=True) for command, _ in commands(section(README, "Start a project"))]
"""Typed in `tests/packaging/test_wheel.py`, where nothing but the wheel is installed."""


def test_it_begins_with_what_a_checkout_can_do() -> None:
    begins, *_ = (block for block in blocks(README) if block.language == "console")
    typed = [command.split("#")[0].split() for command, _ in commands(README)]
    assert typed[: len(begins.text.splitlines())] == [["make", "demo"], ["make", "test"]]
    for _, target in typed[:2]:
        assert re.search(rf"^{target}:", (ROOT / "Makefile").read_text(), re.MULTILINE)


def test_what_it_installs_is_what_the_suite_runs_with() -> None:
    require_installed(START[0][2:])


def test_its_file_of_two_agents_prints_what_it_says(tmp_path: Path) -> None:
    told = section(README, "Two agents in one file")
    (file,) = (block for block in blocks(told) if block.language == "python")
    assert file.kind == f'title="{HELLO}"'
    assert len(file.text.splitlines()) <= 12
    (tmp_path / HELLO).write_text(file.text)
    ((command, printed),) = commands(told)
    words = shlex.split(command)
    assert words[:2] == ["mesh", "run"]
    assert Folder(tmp_path).process(*words[1:]).out.splitlines() == printed


def test_its_line_for_a_notebook_does_the_same() -> None:
    (file,) = (block for block in blocks(README) if block.language == "python")
    names: dict[str, Any] = {"mesh": mesh}
    exec(compile(file.text, HELLO, "exec"), names)
    (call,) = re.findall(r"`(mesh\.run_sync\(.*?\))`", " ".join(README.split()))
    assert eval(call, names).answer == "Hello, Ada!"


def test_every_link_leads_to_a_file() -> None:
    for target in re.findall(r"\]\((?!http)([^)#]+)", README):
        assert (ROOT / target).exists(), target
