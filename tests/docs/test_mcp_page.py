"""docs/mcp.md: its example runs, and its numbers and names are the code's."""

import subprocess
import sys
from pathlib import Path

import pytest

from mesh import mcp
from mesh.agent.definition import DOWN
from mesh.mcp import results, server
from mesh.mcp.results import McpRefused, McpTimedOut, McpTooLarge, McpUnreached, McpUnreadable
from tests.docs.pages import DOCS, blocks
from tests.servers import PATIENCE_S, ROOT

PAGE = (DOCS / "mcp.md").read_text()


def test_the_example_runs(tmp_path: Path) -> None:
    names = []
    for block in blocks(PAGE):
        names.append(block.kind.removeprefix('title="').removesuffix('"'))
        (tmp_path / names[-1]).write_text(block.text)
    assert names == ["papers.py", "librarian.py"]
    done = subprocess.run(
        [sys.executable, tmp_path / "librarian.py"],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
        cwd=ROOT,
    )
    assert done.returncode == 0, done.stderr


def test_the_numbers_are_those_of_the_code() -> None:
    assert f"({server.TIMEOUT_S:g} s;" in PAGE
    assert f"({results.MAX_BYTES // 1024} KiB)" in PAGE


@pytest.mark.parametrize("kind", [McpRefused, McpTimedOut, McpTooLarge, McpUnreached, McpUnreadable])
def test_each_outcome_is_named(kind: type[mcp.McpRefused]) -> None:
    assert f"`{kind.code}`" in PAGE


def test_the_trouble_is_named() -> None:
    assert f"`{DOWN.begins}`" in PAGE
