"""A workspace: a scratch clone of one project, the only place where anything is read, run or changed.

Its id comes from the idempotency key of the call that made it, so a repeated call finds it. A change is a
commit, and the commit names the key of its call: git itself remembers what was done.

The test runner is pytest in a separate process, with a time limit. It gets no variable of ours but the path
and no plugins that happen to be installed, and writes nothing beside the code. It is not a sandbox: a
project's tests may do anything that the agent's user may.
"""

import hashlib
import os
import re
import signal
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path, PurePosixPath
from typing import Any

from agents.code.projects import git, origin, put, scratch
from mesh.agent import Permanent, ToolError

ID = re.compile(r"w-[0-9a-f]{16}")
MOST_BYTES = 64_000
"""Largest size of a file that is read or written."""
PROTECTED = ("tests",)
"""Folders that are never changed: they define what should be."""
_KEY = "Idempotency-Key"


class Workspace:
    """A scratch clone. Raises ToolError for an unknown id."""

    def __init__(self, workspace: str) -> None:
        if ID.fullmatch(workspace) is None:
            raise ToolError(f"{workspace[:40]!r} is no workspace: an id is w- and 16 hexadecimal digits.")
        self.id = workspace
        self.folder = scratch() / "workspaces" / workspace
        if not self.folder.is_dir():
            raise ToolError(f"There is no workspace {workspace}: check a project out first.")

    @classmethod
    def made(cls, project: str, key: str) -> "Workspace":
        """Return the clone of a project that this key stands for, made if it does not exist.

        Raises ToolError for a project that does not exist.
        """
        source = origin(project)
        workspace = f"w-{hashlib.sha256(f'{project}/{key}'.encode()).hexdigest()[:16]}"
        place = scratch() / "workspaces" / workspace
        if not place.is_dir():
            place.parent.mkdir(exist_ok=True)
            with tempfile.TemporaryDirectory(dir=place.parent, prefix=".making-") as making:
                fresh = Path(making) / workspace
                git(Path(making), "clone", "--quiet", str(source), str(fresh))
                git(fresh, "remote", "remove", "origin")
                put(fresh, place)
        return cls(workspace)

    def file(self, path: str) -> Path:
        """Return a file's place in the clone. Raises ToolError for one outside it, or in .git."""
        named = PurePosixPath(path)
        found = (self.folder / named).resolve()  # follows links, too
        if named.is_absolute() or ".." in named.parts or not found.is_relative_to(self.folder):
            raise ToolError(f"{path!r} leads out of the workspace: give a path inside it, like pkg/file.py.")
        if ".git" in (part.lower() for part in found.relative_to(self.folder).parts):
            raise ToolError(f"{path!r} is git's own: nobody reads or changes it.")
        return found

    def text(self, path: str) -> str:
        """Return a file's text. Raises ToolError if there is none, or it is too large or not text."""
        file = self.file(path)
        if not file.is_file():
            raise ToolError(f"There is no file {path!r}. There are: {', '.join(self.files())}.")
        if file.stat().st_size > MOST_BYTES:
            raise ToolError(f"{path!r} has more than {MOST_BYTES} bytes.")
        try:
            return file.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            raise ToolError(f"{path!r} is no text.") from None

    def files(self) -> list[str]:
        """Return the paths of all files that git knows."""
        return git(self.folder, "ls-files").splitlines()

    @property
    def head(self) -> str:
        """The newest commit."""
        return git(self.folder, "rev-parse", "HEAD").strip()[:12]

    def done(self, key: str) -> str | None:
        """Return the commit that a call with this key made; None if there is none."""
        form = f"--format=%h %(trailers:key={_KEY},valueonly,separator=%x20)"
        commits = (line.split() for line in git(self.folder, "log", form, "--abbrev=12").splitlines())
        return next((commit for commit, *keys in commits if key in keys), None)

    def edit(self, path: str, old: str, new: str, key: str) -> str:
        """Replace a text that occurs once in a file, and commit it under a key; return the commit.

        Raises ToolError if nothing can be replaced there.
        """
        file = self._writable(path)
        self._clean()  # a call that died before its commit left the file half done
        text = self.text(path)
        if text.count(old) != 1:
            raise ToolError(
                f"The text to replace stands {text.count(old)} times in {path}; it has to be once."
            )
        if old == new:
            raise ToolError("The new text is the old one: nothing would change.")
        if len(changed := text.replace(old, new)) > MOST_BYTES:
            raise ToolError(f"{path!r} would have more than {MOST_BYTES} bytes.")
        file.write_text(changed, encoding="utf-8")
        return self._committed(f"Change {path}", key)

    def undo(self, commit: str, key: str) -> str:
        """Revert the newest edit; return the commit that does. Raises ToolError for any other edit."""
        self._clean()
        newest = git(self.folder, "log", "-1", f"--format=%(trailers:key={_KEY})")
        if commit != self.head or not newest.strip():
            raise ToolError(f"{commit[:40]!r} is not the newest edit: only that one can be undone.")
        git(self.folder, "revert", "--no-commit", "HEAD")
        return self._committed(f"Undo {commit}", key)

    def _writable(self, path: str) -> Path:
        file = self.file(path)
        if file.relative_to(self.folder).parts[:1] in [(each,) for each in PROTECTED]:
            raise ToolError(f"{path!r} is a test: tests say what should be, and are not changed here.")
        return file

    def _clean(self) -> None:
        git(self.folder, "reset", "--quiet", "--hard", "HEAD")

    def _committed(self, subject: str, key: str) -> str:
        git(self.folder, "commit", "--quiet", "--all", "--message", f"{subject}\n\n{_KEY}: {key}")
        return self.head


# --- the real test runner --------------------------------------------------------------------------

LIMIT_S = 30.0
"""How long one run may take (s); then it is ended, with everything that it started."""
_SAID_CHARS = 4_000
_WHERE = re.compile(r"^(?P<path>[\w./-]+\.py):(?P<line>\d+): (?:in \S+|(?P<error>\w+))", re.MULTILINE)
_ERROR = re.compile(
    r"^E +(?P<error>\w+(?:\.\w+)*(?:Error|Exception|Warning))(?:: (?P<why>.*))?$", re.MULTILINE
)
_ASSERTED = re.compile(r"^E +(?P<why>assert .*)$", re.MULTILINE)
_FAILED = re.compile(r"^(?:FAILED|ERROR) (?P<test>\S+)", re.MULTILINE)
_COUNTED = re.compile(r"(?P<number>\d+) (?P<what>passed|failed|errors?)")


def run_pytest(folder: Path) -> dict[str, Any]:
    """Run all tests under a folder; return whether they passed, and if not, which failed, why and where.

    Raises Permanent where pytest is not installed.
    """
    if find_spec("pytest") is None:
        raise Permanent("the code fleet runs tests with pytest: pip install pytest")
    options = ("-q", "--tb=short", "--import-mode=importlib", "--continue-on-collection-errors")
    own = ("-p", "no:cacheprovider", "-c", os.devnull, "--rootdir", str(folder))
    command = (sys.executable, "-P", "-m", "pytest", *options, *own, "tests")
    environment = {
        "PATH": os.environ.get("PATH", os.defpath),
        "PYTHONPATH": str(folder),
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
    }
    process = subprocess.Popen(
        command,
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    with process:
        try:
            said, _ = process.communicate(timeout=LIMIT_S)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)  # what it started is in its session, too
            said, _ = process.communicate()
            return _parsed(said, passed=False) | {"error": "Timeout", "why": f"no end within {LIMIT_S:g} s"}
    return _parsed(said, passed=process.returncode == 0)


def _parsed(said: str, *, passed: bool) -> dict[str, Any]:
    """Return pytest's output in parts: a model need not read the rest."""
    counts = {each["what"].rstrip("s"): int(each["number"]) for each in _COUNTED.finditer(said)}
    told: dict[str, Any] = {"passed": passed, "counts": counts, "said": said[-_SAID_CHARS:]}
    if passed:
        return told
    error, asserted = _ERROR.search(said), _ASSERTED.search(said)
    if error is not None:
        named, why = error["error"], error["why"] or ""
    else:
        named, why = ("AssertionError", asserted["why"]) if asserted is not None else ("", "")
    places = [each for each in _WHERE.finditer(said) if not Path(each["path"]).is_absolute()]
    path, line = (places[-1]["path"], int(places[-1]["line"])) if places else ("", 0)
    failed = [each["test"] for each in _FAILED.finditer(said)]
    return told | {"failed": failed, "error": named, "why": why, "path": path, "line": line}
