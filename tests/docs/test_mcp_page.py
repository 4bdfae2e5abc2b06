"""docs/mcp.md: its example runs, and its numbers and names are the code's."""

from pathlib import Path

import pytest

from mesh import mcp
from mesh.agent.definition import DOWN
from mesh.mcp import results, server
from mesh.mcp.results import McpRefused, McpTimedOut, McpTooLarge, McpUnreached, McpUnreadable
from tests.docs.pages import blocks, read, written
from tests.servers import ran

PAGE = read("mcp.md")


def test_the_example_runs(tmp_path: Path) -> None:
    assert written(list(blocks(PAGE)), tmp_path) == ["papers.py", "librarian.py"]
    done = ran(tmp_path / "librarian.py")
    assert done.returncode == 0, done.stderr


def test_the_numbers_are_those_of_the_code() -> None:
    assert f"({server.TIMEOUT_S:g} s;" in PAGE
    assert f"({results.MAX_BYTES // 1024} KiB)" in PAGE


@pytest.mark.parametrize("kind", [McpRefused, McpTimedOut, McpTooLarge, McpUnreached, McpUnreadable])
def test_each_outcome_is_named(kind: type[mcp.McpRefused]) -> None:
    assert f"`{kind.code}`" in PAGE


def test_the_trouble_is_named() -> None:
    assert f"`{DOWN.begins}`" in PAGE
