"""A workspace: nothing outside of it is read or changed, and an edit that is repeated happens once."""

from pathlib import Path

import pytest

from agents.code.projects import git
from agents.code.tools import (
    check_out,
    edit_file,
    find_misspelling,
    list_files,
    read_file,
    read_history,
    run_tests,
    search_code,
    undo_edit,
)
from agents.code.workspace import Workspace
from mesh.agent import ToolError

WRONG, RIGHT = "return int(cents)", "return round(cents)"


@pytest.fixture
def prices(scratch: Path) -> Workspace:
    """A clone of `prices`, whose newest commit broke it."""
    return Workspace.made("prices", "key")


OUTSIDE = ("../outside.py", "/etc/passwd", "prices/../../outside.py", "..", "prices/../..", "link/outside.py")


@pytest.mark.parametrize("path", OUTSIDE)
def test_a_path_that_climbs_out_is_refused_and_nothing_is_touched(prices: Workspace, path: str) -> None:
    secret = prices.folder.parent / "outside.py"
    secret.write_text("secret = 1\n")
    (prices.folder / "link").symlink_to(prices.folder.parent)
    with pytest.raises(ToolError, match="leads out of the workspace"):
        read_file(prices.id, path)
    with pytest.raises(ToolError, match="leads out of the workspace"):
        edit_file(prices.id, path, "secret", "mine", idempotency_key="k")
    assert secret.read_text() == "secret = 1\n"


@pytest.mark.parametrize("path", [".git/config", ".git", "prices/../.git/config", "./.GIT/config"])
def test_git_itself_is_neither_read_nor_changed(prices: Workspace, path: str) -> None:
    before = (prices.folder / ".git" / "config").read_bytes()
    with pytest.raises(ToolError, match=r"git's own|leads out"):
        edit_file(prices.id, path, "core", "mine", idempotency_key="k")
    assert (prices.folder / ".git" / "config").read_bytes() == before


@pytest.mark.parametrize(
    "workspace", ["w-0", "../origins/prices", "w-0123456789abcdeg", "w-0123456789abcdef/.."]
)
def test_an_id_that_is_none_leads_nowhere(scratch: Path, workspace: str) -> None:
    with pytest.raises(ToolError, match="is no workspace"):
        list_files(workspace)
    with pytest.raises(ToolError, match="check a project out first"):
        list_files("w-0123456789abcdef")


@pytest.mark.parametrize(
    "path", ["tests/test_total.py", "./tests/test_total.py", "prices/../tests/test_total.py"]
)
def test_tests_are_not_changed(prices: Workspace, path: str) -> None:
    with pytest.raises(ToolError, match=r"is a test|leads out"):
        edit_file(prices.id, path, "849", "848", idempotency_key="k")
    assert Workspace.made("prices", "key").head == prices.head


def test_a_call_that_is_repeated_finds_its_clone_and_another_gets_one_of_its_own(prices: Workspace) -> None:
    assert check_out("prices", idempotency_key="key")["workspace"] == prices.id
    edited = edit_file(prices.id, "prices/total.py", WRONG, RIGHT, idempotency_key="edit")
    other = check_out("prices", idempotency_key="other")
    assert other["workspace"] != prices.id
    assert other["commit"] != edited["commit"]
    assert WRONG in read_file(other["workspace"], "prices/total.py")["text"]


def test_an_edit_happens_once_however_often_it_is_asked_for(prices: Workspace) -> None:
    first = edit_file(prices.id, "prices/total.py", WRONG, RIGHT, idempotency_key="edit")
    assert edit_file(prices.id, "prices/total.py", WRONG, RIGHT, idempotency_key="edit") == first
    assert first["commit"] == prices.head
    assert git(prices.folder, "rev-list", "--count", "HEAD").strip() == "3"
    with pytest.raises(ToolError, match="stands 0 times"):
        edit_file(prices.id, "prices/total.py", WRONG, RIGHT, idempotency_key="another edit")


def test_an_edit_that_died_before_its_commit_is_done_whole_by_the_next_try(prices: Workspace) -> None:
    (prices.folder / "prices" / "total.py").write_text("half a fi")
    edit_file(prices.id, "prices/total.py", WRONG, RIGHT, idempotency_key="edit")
    assert RIGHT in prices.text("prices/total.py")
    assert git(prices.folder, "status", "--porcelain") == ""


def test_the_newest_edit_can_be_undone_and_nothing_else(prices: Workspace) -> None:
    before = prices.head
    with pytest.raises(ToolError, match="only that one can be undone"):
        undo_edit(prices.id, before, idempotency_key="never")  # a commit of the project's own
    edit = edit_file(prices.id, "prices/total.py", WRONG, RIGHT, idempotency_key="edit")["commit"]
    undone = undo_edit(prices.id, edit, idempotency_key="undo")
    assert undo_edit(prices.id, edit, idempotency_key="undo") == undone
    assert git(prices.folder, "diff", before, "HEAD") == ""


def test_an_edit_has_to_be_of_one_place_and_of_a_file_that_is_there(prices: Workspace) -> None:
    for path, old, why in (
        ("prices/total.py", "cents", "stands 3 times"),
        ("prices/none.py", "cents", "There is no file 'prices/none.py'. There are: README.md"),
        ("prices", "cents", "There is no file 'prices'"),
    ):
        with pytest.raises(ToolError, match=why):
            edit_file(prices.id, path, old, "euros", idempotency_key="k")
    with pytest.raises(ToolError, match="nothing would change"):
        edit_file(prices.id, "prices/total.py", WRONG, WRONG, idempotency_key="k")


def test_a_file_that_is_large_or_no_text_is_not_read(prices: Workspace) -> None:
    (prices.folder / "large.py").write_text("x" * 64_001)
    (prices.folder / "bytes.py").write_bytes(b"\xff\xfe")
    for path, why in (("large.py", "more than 64000 bytes"), ("bytes.py", "is no text")):
        with pytest.raises(ToolError, match=why):
            read_file(prices.id, path)


def test_the_history_gives_each_change_of_code_as_the_edit_that_takes_it_back(prices: Workspace) -> None:
    told = read_history(prices.id)
    assert [each["message"] for each in told["commits"]] == [
        "Return a plain number",
        "Add totals with a discount",
    ]
    (change,) = told["changes"]
    assert (change["path"], change["old"].strip(), change["new"].strip()) == ("prices/total.py", WRONG, RIGHT)
    edit_file(prices.id, change["path"], change["old"], change["new"], idempotency_key="edit")


def test_files_that_cannot_be_read_hide_no_other(scratch: Path) -> None:
    slugs = Workspace.made("slugs", "key")
    (slugs.folder / "bytes.py").write_bytes(b"\xff\xfe")
    (slugs.folder / "broken.py").write_text("def (:\n")
    git(slugs.folder, "add", "--all")
    assert search_code(slugs.id, "wrods")[0]["path"] == "slugs/slug.py"
    assert find_misspelling(slugs.id, "slugs/slug.py", 7, "name 'wrods' is not defined")["near"] == "words"


def test_text_is_found_in_any_file(prices: Workspace) -> None:
    hits = search_code(prices.id, "int(cents)")
    assert hits == [{"path": "prices/total.py", "line": 4, "text": WRONG}]


def test_a_misspelled_name_is_found_by_the_names_that_there_are(scratch: Path) -> None:
    stacks = Workspace.made("stacks", "key")
    why = "'Stack' object has no attribute 'itmes'"
    found = find_misspelling(stacks.id, "stacks/stack.py", 14, why)
    assert (found["near"], found["edits"][0]["new"].strip()) == ("items", "return self.items.pop()")
    with pytest.raises(ToolError, match="not about a name"):
        find_misspelling(stacks.id, "stacks/stack.py", 14, "assert 1 == 2")
    with pytest.raises(ToolError, match="does not have 'itmes'"):
        find_misspelling(stacks.id, "stacks/stack.py", 99, why)
    with pytest.raises(ToolError, match="No name in the project is near 'OverflowError'"):
        find_misspelling(stacks.id, "stacks/stack.py", 10, "name 'OverflowError' is not defined")


def test_tests_run_at_the_newest_commit_alone(prices: Workspace) -> None:
    old = git(prices.folder, "rev-parse", "--short=12", "HEAD~1").strip()
    with pytest.raises(ToolError, match=f"{old} is not the workspace's newest commit"):
        run_tests(prices.id, old)
    failing = run_tests(prices.id, prices.head)
    assert (failing["passed"], failing["error"], failing["why"]) == (
        False,
        "AssertionError",
        "assert 95 == 96",
    )
    assert failing["failed"] == ["tests/test_total.py::test_a_discount_is_rounded_to_the_nearest_cent"]
    assert git(prices.folder, "status", "--porcelain", "--ignored") == "", "a run leaves nothing behind"
