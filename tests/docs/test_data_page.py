"""docs/artifacts.md and docs/memory.md: the examples run, and tables and numbers are the code's."""

from pathlib import Path

import pytest

import mesh.artifacts
from mesh.artifacts import ArtifactError
from mesh.artifacts.bucket import VARIABLES
from mesh.artifacts.store import LARGEST_LOAD, SCHEME
from mesh.fleet.file import MemorySection, parse_fleet
from protocol.wire.records import MOST_BYTES, MOST_KEYS, memory_limit
from tests.docs.pages import Block, blocks, codes, read, section, table
from tests.servers import ran

PAGE = read("artifacts.md") + read("memory.md")
EXAMPLES = [block for block in blocks(PAGE) if block.language == "python"]


@pytest.mark.parametrize("block", EXAMPLES, ids=lambda block: f"line-{block.line}")
def test_an_example_runs(block: Block, tmp_path: Path) -> None:
    assert "assert " in block.text
    script = tmp_path / "example.py"
    script.write_text(block.text)
    done = ran(script, folder=tmp_path, TMPDIR=str(tmp_path), MESH_ARTIFACTS="")
    assert (done.returncode, done.stdout) == (0, ""), done.stderr


def test_the_table_of_errors_is_the_codes() -> None:
    told = {codes(row[0])[0]: (codes(row[1])[0], row[3]) for row in table(PAGE, "ArtifactMissing")}
    errors = {name: getattr(mesh.artifacts, name) for name in mesh.artifacts.__all__}
    assert told == {
        name: (error.code, "no" if error.permanent else "yes")
        for name, error in errors.items()
        if issubclass(error, ArtifactError) and error is not ArtifactError
    }


def test_the_store_of_the_page_is_one_and_every_kind_is_told() -> None:
    (example,) = [block for block in blocks(section(PAGE, "The store")) if block.language == "toml"]
    file = parse_fleet(f'name = "desk"\nentry = "a"\n[agents.a]\n{example.text}')
    assert file.fleet.artifacts == "s3://our-bucket/mesh"
    assert all(f"`{kind}://" in PAGE for kind in VARIABLES)


def test_the_numbers_are_those_of_the_code() -> None:
    assert f"At most {LARGEST_LOAD >> 20} MiB" in PAGE
    assert f"`{SCHEME}:sha256/`" in PAGE


def test_the_limits_of_a_memory_are_those_that_the_page_names() -> None:
    usual = MemorySection()
    assert f"{MOST_KEYS} facts of a conversation" in PAGE
    assert f"{MOST_BYTES >> 10} KiB at most" in PAGE
    assert memory_limit(1_000) == 500
    assert f"`max_age_days` under `[memory]` in the fleet file, {usual.max_age_days:g} by default" in PAGE
    assert f"`mib` under `[memory]`, {usual.mib} by default" in PAGE
