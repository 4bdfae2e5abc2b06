"""docs/memory.md: its example runs, and its numbers are the code's."""

from pathlib import Path

from mesh.fleet.file import MemorySection
from protocol.wire.records import MOST_BYTES, MOST_KEYS, memory_limit
from tests.docs.pages import blocks, read
from tests.servers import ran

PAGE = read("memory.md")


def test_the_example_runs(tmp_path: Path) -> None:
    (example,) = (block for block in blocks(PAGE) if block.language == "python")
    script = tmp_path / "example.py"
    script.write_text(example.text)
    done = ran(script, folder=tmp_path)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr


def test_the_limits_are_those_that_the_page_names() -> None:
    said = MemorySection()
    assert f"{MOST_KEYS} facts of a conversation" in PAGE
    assert f"{MOST_BYTES >> 10} KiB at most" in PAGE
    assert memory_limit(1_000) == 500
    assert f"`max_age_days` under `[memory]` in the fleet file, {said.max_age_days:g} by default" in PAGE
    assert f"`mib` under `[memory]`, {said.mib} by default" in PAGE
