"""The index of decisions, made from the decisions themselves: `python -m tests.docs.adr_index` writes it."""

import re
from pathlib import Path

from tests.docs.pages import DOCS

ADR = DOCS / "adr"
INDEX = ADR / "README.md"

_HEAD = """# Decisions

Why things are as they are, where the reason is not plain from the code. A record is not rewritten: a later
one amends or supersedes it, and its line *Status* says so. An amended record holds but for what the later one
says.

Begin a record with [template.md](template.md). `python -m tests.docs.adr_index` writes this page.

| | decision | holds? | dated |
|---|---|---|---|
"""


def records() -> list[Path]:
    """Return the files of all decisions, in order of their numbers."""
    return sorted(ADR.glob("[0-9][0-9][0-9][0-9]-*.md"))


def index() -> str:
    """Return the page as it should be. Raises ValueError for a record without title or status."""
    return _HEAD + "".join(_row(path) for path in records())


def _row(path: Path) -> str:
    text = path.read_text()
    title = re.match(r"# (\d+)\. (.+)\n", text)
    status = re.search(r"^Status: (.+)$", text, re.MULTILINE)
    if title is None or status is None:
        raise ValueError(f"{path.name} has no title or no status")
    state, _, day = status[1].partition(" · ")
    return f"| {title[1]} | [{title[2]}]({path.name}) | {_holds(state)} | {day} |\n"


def _holds(state: str) -> str:
    """Return whether a decision holds, with links to the later ones that say so."""
    files = {int(path.name[:4]): path.name for path in records()}
    linked = re.sub(r"\d+", lambda number: f"[{number[0]}]({files[int(number[0])]})", state)
    return linked.replace("accepted", "yes").replace("superseded", "no, superseded")


if __name__ == "__main__":
    INDEX.write_text(index())
