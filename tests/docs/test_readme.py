"""The README does what it says: its files are written, its commands typed, against a mesh of their own."""

import contextlib
import re
import shlex
from pathlib import Path

from tests.docs.pages import commands, section
from tests.docs.reader import Reader, require_installed
from tests.servers import ROOT

README = (ROOT / "README.md").read_text()
START = [shlex.split(command, comments=True) for command, _ in commands(section(README, "Start"))]
"""Typed in `tests/packaging/test_wheel.py`, where nothing but the wheel is installed."""
DESK = section(README, "Five minutes to an agent of your own")


def test_the_desk_does_what_the_page_says(tmp_path: Path) -> None:
    (tmp_path / "p.toml").write_text('topology = "supervised"\n')
    with contextlib.closing(Reader(DESK, tmp_path, differs="--policy")) as reader:
        assert reader.type_all() == 7
    assert len(START) + 7 == len(commands(README))


def test_what_the_first_line_installs_is_what_the_suite_runs_with() -> None:
    require_installed(START[0][2:])


def test_every_target_of_make_is_there() -> None:
    for target in ("demo", "test"):
        assert f"`make {target}`" in README
        assert re.search(rf"^{target}:", (ROOT / "Makefile").read_text(), re.MULTILINE)


def test_every_link_leads_to_a_file() -> None:
    for target in re.findall(r"\]\((?!http)([^)#]+)", README):
        assert (ROOT / target).exists(), target
