"""The broken projects that ship: each is a git repository, made from one file of `broken/`.

A history cannot ship as a folder, and readers check it first: which commit broke the code. So each file has
the commits one by one. Author and dates are fixed, so that the same file gives the same commits.
"""

import os
import shutil
import subprocess
import tempfile
import tomllib
from collections.abc import Mapping
from pathlib import Path

import msgspec

from mesh.agent import Permanent, Retry, ToolError

BROKEN = Path(__file__).with_name("broken")
SCRATCH = "CODE_SCRATCH"
"""The environment variable for the folder in which everything is made and changed."""
GIT_S = 30.0
_BEGAN = 1_767_225_600  # 2026-01-01, the first commit's; each later one is a day after
_DAY_S = 86_400
_WHO = {"name": "Ada Example", "email": "ada@code.example"}


class Commit(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One commit: its message, and the files that it writes."""

    message: str
    files: dict[str, str]


class Edit(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A text in a file, and its replacement."""

    path: str
    old: str
    new: str


class Project(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A broken project. `about` and `solution` are for people and tests: no commit has them."""

    about: str
    solution: Edit
    commits: tuple[Commit, ...]


def names() -> list[str]:
    """Return the names of the projects that ship."""
    return sorted(file.stem for file in BROKEN.glob("*.toml"))


def project(name: str) -> Project:
    """Return a project. Raises ToolError if there is none of that name."""
    if name not in names():
        raise ToolError(f"There is no project {name!r}. There are: {', '.join(names())}.")
    content = tomllib.loads((BROKEN / f"{name}.toml").read_text(encoding="utf-8"))
    return msgspec.convert(content, Project)


def scratch() -> Path:
    """Return the folder for everything: the variable's, or this user's own among the temporary ones."""
    named = os.environ.get(SCRATCH)
    folder = Path(named) if named else Path(tempfile.gettempdir()) / f"handoff-mesh-{os.getuid()}" / "code"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return folder.resolve()


def git(folder: Path, *arguments: str, dated: int | None = None) -> str:
    """Run git in a folder with only our configuration; return its output.

    Args:
        dated: seconds since 1970 that a commit gets as its date; by default the clock's.

    Raises Retry if it takes too long, Permanent if it is not installed or fails.
    """
    own = {
        f"GIT_{who}_{what.upper()}": value for who in ("AUTHOR", "COMMITTER") for what, value in _WHO.items()
    }
    dates = {} if dated is None else {f"GIT_{who}_DATE": f"{dated} +0000" for who in ("AUTHOR", "COMMITTER")}
    alone = {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1", "GIT_TERMINAL_PROMPT": "0"}
    environment = {"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C", **alone, **own, **dates}
    command = ("git", "-c", "core.hooksPath=/dev/null", "-c", "gc.auto=0", *arguments)
    try:
        done = subprocess.run(
            command, cwd=folder, env=environment, capture_output=True, text=True, timeout=GIT_S, check=False
        )
    except FileNotFoundError as missing:
        raise Permanent("the code fleet needs git: install it") from missing
    except subprocess.TimeoutExpired as late:
        raise Retry(f"git {arguments[0]} took more than {GIT_S:g} s") from late
    if done.returncode:
        raise Permanent(f"git {arguments[0]} failed: {done.stderr.strip()[-300:]}")
    return done.stdout


def origin(name: str) -> Path:
    """Return a project's repository, made on first use. Raises ToolError, Retry, Permanent."""
    content = project(name)
    made = scratch() / "origins" / name
    if not made.is_dir():
        made.parent.mkdir(exist_ok=True)
        with tempfile.TemporaryDirectory(dir=made.parent, prefix=".making-") as making:
            fresh = Path(making) / name
            _make(fresh, content)
            put(fresh, made)
    return made


def put(fresh: Path, place: Path) -> None:
    """Move a finished folder to its place, unless another process was faster: then it is the same there."""
    try:
        fresh.rename(place)
    except OSError:
        if not place.is_dir():
            raise
        shutil.rmtree(fresh)


def _make(folder: Path, content: Project) -> None:
    folder.mkdir()
    git(folder, "init", "--quiet", "--initial-branch=main")
    for number, commit in enumerate(content.commits):
        write(folder, commit.files)
        git(folder, "add", "--all")
        git(folder, "commit", "--quiet", "--message", commit.message, dated=_BEGAN + number * _DAY_S)


def write(folder: Path, files: Mapping[str, str]) -> None:
    """Write files under a folder."""
    for name, text in files.items():
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
