"""Reading our own pages, blocks, tables and sections of Markdown, so that tests can hold them to the code."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

DOCS = Path(__file__).resolve().parents[2] / "docs"

_CODE = re.compile(r"`([^`]+)`")


class Block(NamedTuple):
    """One fenced block: its language, the word behind that, and where it begins."""

    language: str
    kind: str
    text: str
    line: int


def blocks(page: str) -> Iterator[Block]:
    """Yield every fenced block of a page. Raises ValueError for one that never ends."""
    language: str | None = None
    kind, begun, collected = "", 0, list[str]()
    for number, line in enumerate(page.splitlines(), 1):
        if language is None:
            if line.startswith("```"):
                language, _, kind = line[3:].strip().partition(" ")
                begun, collected = number, []
        elif line.strip() == "```":
            yield Block(language, kind, "\n".join(collected), begun)
            language = None
        else:
            collected.append(line)
    if language is not None:
        raise ValueError(f"the block that begins in line {begun} never ends")


def section(page: str, heading: str) -> str:
    """Return what lies under a heading (its text without the signs), up to the next of no lower rank."""
    found = re.search(rf"^(#+) {re.escape(heading)}$", page, re.MULTILINE)
    assert found is not None, f"there is no heading {heading!r}"
    rest = page[found.end() :]
    end = re.search(rf"^#{{1,{len(found[1])}}} ", rest, re.MULTILINE)
    return rest[: end.start()] if end else rest


def tables(text: str) -> Iterator[list[list[str]]]:
    """Yield each table as rows of cells, without its head."""
    rows: list[list[str]] = []
    for line in [*text.splitlines(), ""]:
        if line.startswith("|"):
            rows.append([cell.strip() for cell in line.strip().strip("|").split(" | ")])
        elif rows:
            yield [[cell.strip("| ") for cell in row] for row in rows[2:]]
            rows = []


def table(text: str, first: str) -> list[list[str]]:
    """Return the table whose first row begins with the code `first`."""
    return next(rows for rows in tables(text) if rows and codes(rows[0][0])[:1] == [first])


def codes(text: str) -> list[str]:
    """Return what stands in backticks."""
    return _CODE.findall(text)


def written(blocks: list[Block], folder: Path) -> list[str]:
    """Write each block that has a title into a folder; return the titles."""
    titled = {
        block.kind.removeprefix('title="').removesuffix('"'): block.text
        for block in blocks
        if block.kind.startswith("title=")
    }
    for name, text in titled.items():
        (folder / name).write_text(text)
    return list(titled)
