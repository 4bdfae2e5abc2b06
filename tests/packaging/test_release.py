"""What a release takes: a tag that names the tree's version, its entry in the changelog, and the workflow."""

import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from ruamel.yaml import YAML

ROOT = Path(__file__).parents[2]
WORKFLOW = ROOT / ".github" / "workflows" / "release.yml"
VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
ENTRY = f"## {VERSION} - 2026-12-01\n\n* The first one.\n"


def test_the_workflow_is_one_by_the_published_schema_of_workflows() -> None:
    checked: list[str | Path] = [
        Path(sys.executable).parent / "check-jsonschema",
        "--builtin-schema",
        "vendor.github-workflows",
    ]
    ended = subprocess.run([*checked, WORKFLOW], capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout


def test_only_the_job_that_publishes_may_say_who_it_is_and_it_runs_no_code_of_ours() -> None:
    flow = YAML(typ="safe").load(WORKFLOW)
    assert flow["permissions"] == {}
    jobs = {name: job["permissions"] for name, job in flow["jobs"].items()}
    assert jobs == {"build": {"contents": "read"}, "publish": {"id-token": "write"}}
    publish = flow["jobs"]["publish"]
    assert (publish["needs"], publish["environment"]) == ("build", "release")
    assert all("run" not in step for step in publish["steps"])
    assert not any("password" in step.get("with", {}) for step in publish["steps"])


def test_every_command_of_the_workflow_is_there() -> None:
    steps = YAML(typ="safe").load(WORKFLOW)["jobs"]["build"]["steps"]
    typed = [step["run"].split()[:2] for step in steps if "run" in step]
    assert [words[0] for words in typed] == [".ci/release", ".ci/run", "make"]
    assert all((ROOT / words[0]).is_file() for words in typed[:2])
    assert f"{typed[2][1]}:" in (ROOT / "Makefile").read_text()


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """What `.ci/release` looks at, with an entry for the version."""
    (tmp_path / ".ci").mkdir()
    shutil.copy(ROOT / ".ci" / "release", tmp_path / ".ci")
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    (tmp_path / "CHANGELOG.md").write_text(f"# Changelog\n\n## Unreleased\n\n{ENTRY}")
    return tmp_path


def said(tree: Path, *tag: str) -> str:
    """Return what is wrong with a tag; nothing if it can be released."""
    command = [sys.executable, str(tree / ".ci" / "release"), *tag]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (ended.returncode == 0) == (ended.stderr == "")
    return ended.stderr.strip()


def test_a_tag_has_to_name_the_version_of_the_tree(tree: Path) -> None:
    assert said(tree, f"v{VERSION}") == ""
    assert said(tree, "v9.9.9") == f"the tag is v9.9.9, and pyproject.toml says version {VERSION}"
    assert said(tree) == "which tag?"


@pytest.mark.parametrize(
    "entry", ["", f"## {VERSION} - 2026-12-01\n\n", f"## {VERSION}\n\n* The first one.\n"]
)
def test_a_version_without_an_entry_in_the_changelog_is_not_released(tree: Path, entry: str) -> None:
    (tree / "CHANGELOG.md").write_text(f"# Changelog\n\n## Unreleased\n\n{entry}")
    assert said(tree, f"v{VERSION}").startswith("CHANGELOG.md has no entry")
