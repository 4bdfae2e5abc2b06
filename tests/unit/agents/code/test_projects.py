"""The broken projects: each is broken, its solution mends it, and its repository is the same each time."""

from pathlib import Path

import pytest

from agents.code.projects import git, names, origin, project, put
from agents.code.workspace import Workspace, run_pytest
from mesh.agent import Permanent, ToolError


def test_each_is_broken_as_it_ships_and_mended_by_its_solution(tmp_path: Path) -> None:
    """All in one folder, so that pytest starts twice and not once a project."""
    assert len(names()) >= 12
    for name in names():
        for commit in project(name).commits:
            for path, text in commit.files.items():
                file = tmp_path / path.replace("tests/", f"tests/{name}/").replace("README", name)
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_text(text)
    broken = run_pytest(tmp_path)
    assert {test.split("/")[1] for test in broken["failed"]} == set(names())
    for name in names():
        mend = project(name).solution
        file = tmp_path / mend.path.replace("tests/", f"tests/{name}/")
        assert file.read_text().count(mend.old) == 1
        file.write_text(file.read_text().replace(mend.old, mend.new))
    mended = run_pytest(tmp_path)
    assert mended["passed"], mended["said"]
    assert mended["counts"].keys() == {"passed"}


def test_a_repository_has_the_commits_of_its_file_and_they_are_the_same_each_time(
    scratch: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = origin("tables")
    assert made.is_relative_to(scratch)
    said = [commit.message for commit in project("tables").commits]
    assert git(made, "log", "--reverse", "--format=%s").splitlines() == said
    monkeypatch.setenv("CODE_SCRATCH", str(tmp_path / "another"))
    assert git(origin("tables"), "rev-parse", "HEAD") == git(made, "rev-parse", "HEAD")


def test_no_commit_has_the_solution_or_what_it_is_about(scratch: Path) -> None:
    for name in names():
        told = project(name)
        for commit in told.commits:
            assert not any(told.about in text for text in commit.files.values())
        assert told.solution.new not in told.commits[-1].files.get(told.solution.path, "")


def test_of_two_that_make_the_same_folder_one_stays(tmp_path: Path) -> None:
    first, second, place = tmp_path / "a", tmp_path / "b", tmp_path / "place"
    for folder in (first, second):
        folder.mkdir()
        (folder / "there").touch()
    put(first, place)
    put(second, place)
    assert [each.name for each in sorted(tmp_path.iterdir())] == ["place"]


def test_a_project_that_does_not_ship_is_named_with_those_that_do(scratch: Path) -> None:
    for name in ("nothing", "../broken/prices", "/etc/passwd", ""):
        with pytest.raises(ToolError, match="There are: baskets, "):
            Workspace.made(name, "key")


def test_a_machine_without_git_is_told_what_it_needs(scratch: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(scratch))
    with pytest.raises(Permanent, match="the code fleet needs git"):
        origin("prices")
