"""What a new move touches: one is made up in a copy of the tree, in the files that CONTRIBUTING.md lists."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.packaging.new_move.additions import ADDITIONS, Addition

ROOT = Path(__file__).parents[2]
FILES = {addition.file for addition in ADDITIONS}
MOST_FILES = 8


def add(tree: Path, addition: Addition) -> None:
    path = tree / addition.file
    before, found, rest = path.read_text().partition(addition.at)
    assert found, f"{addition.file} has no {addition.at!r} any more: say in additions.py where it goes now"
    parts = (found, addition.text) if addition.after else (addition.text, found)
    path.write_text(before + "".join(parts) + rest)


def run_with(tree: Path, additions: tuple[Addition, ...]) -> subprocess.CompletedProcess[str]:
    """Run the story of the made-up move in a copy of the tree that has these additions."""
    for room in ("protocol", "mesh", "tests/packaging/new_move"):
        shutil.copytree(ROOT / room, tree / room, ignore=shutil.ignore_patterns("__pycache__"))
    for addition in additions:
        add(tree, addition)
    story = tree / "tests/packaging/new_move/story.py"
    environment = {**os.environ, "PYTHONPATH": str(tree), "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.run(
        [sys.executable, "-P", str(story)],
        cwd=tree,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


def test_a_new_move_touches_the_listed_files_and_no_others(tmp_path: Path) -> None:
    made = run_with(tmp_path, ADDITIONS)
    assert made.returncode == 0, made.stderr


@pytest.mark.parametrize("file", sorted(FILES))
def test_no_listed_file_can_be_left_out(file: str, tmp_path: Path) -> None:
    without = tuple(addition for addition in ADDITIONS if addition.file != file)
    assert run_with(tmp_path, without).returncode != 0


def test_the_files_are_few_and_listed() -> None:
    page = (ROOT / "CONTRIBUTING.md").read_text()
    section = page.partition("\n### A new move\n")[2].partition("\n## ")[0]
    assert set(re.findall(r"^\| `([^`]+)` \|", section, re.MULTILINE)) == FILES
    assert len(FILES) <= MOST_FILES
