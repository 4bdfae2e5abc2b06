"""The index of decisions, made from the decisions themselves: `python -m tests.docs.adr_index` writes it."""

import re
from pathlib import Path

from tests.docs.pages import DOCS

ADR = DOCS / "adr"
INDEX = ADR / "README.md"

_HEAD = """# Decisions

Why things are as they are, where the reason is not plain from the code. A decision is not changed: another
one follows it, and *Status* says so. [template.md](template.md) is how to begin one. This page is written by
`python -m tests.docs.adr_index`.

| | decision | status |
|---|---|---|
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
    return f"| {title[1]} | [{title[2]}]({path.name}) | {status[1]} |\n"


if __name__ == "__main__":
    INDEX.write_text(index())
