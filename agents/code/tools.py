"""What the code agents can do in a workspace: read, search, look back, run the tests; and one edits.

Readers get the tools that only read. `check_out`, `edit_file` and `undo_edit` are effects: the runtime
refuses them in a turn that is read-only.
"""

import ast
import difflib
import itertools
import re
from collections.abc import Iterator
from contextlib import suppress
from typing import Annotated, Any

from pydantic import Field

from agents.code.projects import git
from agents.code.workspace import ID, Workspace, run_pytest
from mesh.agent import ToolError, tool

WorkspaceId = Annotated[str, Field(pattern=f"^{ID.pattern}$", description="As check_out gave it.")]
Path = Annotated[str, Field(min_length=1, max_length=200, description="In the workspace, like pkg/file.py.")]
CommitId = Annotated[str, Field(pattern=r"^[0-9a-f]{12}$")]
_MOST_HITS = 50
_MISSING = (
    re.compile(r"name '(?P<name>\w+)' is not defined"),
    re.compile(r"object has no attribute '(?P<name>\w+)'"),
    re.compile(r"cannot import name '(?P<name>\w+)'"),
)


@tool
def list_files(workspace: WorkspaceId) -> list[str]:
    """List the paths of a workspace's files."""
    return Workspace(workspace).files()


@tool
def read_file(workspace: WorkspaceId, path: Path) -> dict[str, Any]:
    """Read a file."""
    return {"path": path, "text": Workspace(workspace).text(path)}


@tool
def search_code(workspace: WorkspaceId, words: Annotated[str, Field(min_length=2)]) -> list[dict[str, Any]]:
    """Find the lines that have a text, in any file."""
    there = Workspace(workspace)
    hits = (
        {"path": path, "line": number, "text": line.strip()}
        for path, text in _texts(there)
        for number, line in enumerate(text.splitlines(), start=1)
        if words in line
    )
    return list(itertools.islice(hits, _MOST_HITS))


@tool
def read_history(workspace: WorkspaceId, commits: Annotated[int, Field(ge=1, le=20)] = 5) -> dict[str, Any]:
    """Read the newest commits, the newest first, and what they changed in the code.

    Each of `changes` is the edit that would take it back. Tests and words for people are left out of them.
    """
    there = Workspace(workspace)
    newest = git(there.folder, "log", f"-{commits}", "--format=%h%x09%s", "--abbrev=12").splitlines()
    newest_commits = [dict(zip(("commit", "message"), line.split("\t", 1), strict=True)) for line in newest]
    return {
        "commits": newest_commits,
        "changes": [change for each in newest_commits for change in _changes(there, each["commit"])],
    }


def _changes(there: Workspace, commit: str) -> Iterator[dict[str, str]]:
    """Yield each change of a commit that replaces code, as the edit that would take it back."""
    shown = git(there.folder, "show", "--format=", "--unified=0", "--diff-filter=M", commit, "--", "*.py")
    path = ""
    for line in re.split(r"(?m)^(?=diff |@@ )", shown):
        if named := re.search(r"^\+\+\+ b/(.+)$", line, re.MULTILINE):
            path = named[1]
        if line.startswith("@@ ") and not path.startswith("tests/"):
            body = line.split("\n")[1:]
            before = "\n".join(each[1:] for each in body if each.startswith("-"))
            after = "\n".join(each[1:] for each in body if each.startswith("+"))
            yield {"commit": commit, "path": path, "old": after, "new": before}


@tool
def run_tests(workspace: WorkspaceId, commit: CommitId) -> dict[str, Any]:
    """Run all tests of a workspace at its newest commit, which has to be named.

    If they do not pass: `failed` (tests), `error` (the exception), `why` (its words), and where it was raised
    (`path`, `line`). `said` is the end of all that pytest printed.
    """
    there = Workspace(workspace)
    if commit != there.head:
        raise ToolError(f"{commit} is not the workspace's newest commit: that is {there.head}.")
    return run_pytest(there.folder) | {"commit": commit}


@tool
def find_misspelling(workspace: WorkspaceId, path: Path, line: int, why: str) -> dict[str, Any]:
    """For an error about a name that does not exist: find the name that is near, and the edits that use it.

    Args are those that run_tests gave: `path`, `line` and `why`. Looks at all names in the project's code.
    """
    there = Workspace(workspace)
    named = next((found["name"] for each in _MISSING if (found := each.search(why))), None)
    if named is None:
        raise ToolError("That error is not about a name that does not exist.")
    lines = there.text(path).splitlines()
    if not 1 <= line <= len(lines) or named not in lines[line - 1]:
        raise ToolError(f"Line {line} of {path} does not have {named!r}.")
    code = [text for path, text in _texts(there) if path.endswith(".py") and not path.startswith("tests/")]
    known = {name for text in code for name in _names(text)} - {named}
    near = difflib.get_close_matches(named, sorted(known), n=1, cutoff=0.75)
    if not near:
        raise ToolError(f"No name in the project is near {named!r}.")
    was = lines[line - 1]
    mended = re.sub(rf"\b{named}\b", near[0], was)
    return {"near": near[0], "edits": [{"path": path, "old": was, "new": mended}]}


def _texts(there: Workspace) -> Iterator[tuple[str, str]]:
    """Yield every readable file, with its text."""
    for path in there.files():
        with suppress(ToolError):
            yield path, there.text(path)


def _names(text: str) -> Iterator[str]:
    """Yield every name that a file defines, sets or reads; none if it is not Python."""
    try:
        parsed = ast.parse(text)
    except (SyntaxError, ValueError):
        return
    for node in ast.walk(parsed):
        match node:
            case ast.Name(id=name) | ast.Attribute(attr=name) | ast.arg(arg=name):
                yield name
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                yield name


# --- effects ----------------------------------------------------------------------------------------


@tool(effect="idempotent")
def check_out(project: str, idempotency_key: str = "") -> dict[str, Any]:
    """Make a scratch clone of a project, to read, run and change; gives its workspace and newest commit."""
    there = Workspace.made(project, idempotency_key)
    return {"workspace": there.id, "project": project, "commit": there.head, "files": there.files()}


@tool(effect="idempotent")
def edit_file(
    workspace: WorkspaceId,
    path: Path,
    old: Annotated[str, Field(min_length=1)],
    new: str,
    idempotency_key: str = "",
) -> dict[str, Any]:
    """Replace a text in a file, which has to stand there once, and commit it. Tests are never changed."""
    there = Workspace(workspace)
    commit = there.done(idempotency_key) or there.edit(path, old, new, idempotency_key)
    return {"commit": commit, "path": path}


@tool(effect="idempotent")
def undo_edit(workspace: WorkspaceId, commit: CommitId, idempotency_key: str = "") -> dict[str, Any]:
    """Take back the newest edit, by its commit."""
    there = Workspace(workspace)
    return {"commit": there.done(idempotency_key) or there.undo(commit, idempotency_key), "undone": commit}
