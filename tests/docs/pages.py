"""Reading our own pages, blocks, tables and sections of Markdown, so that tests can hold them to the code."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

DOCS = Path(__file__).resolve().parents[2] / "docs"
BESIDE = tuple(
    DOCS.parent / page
    for page in (
        *("README.md", "CONTRIBUTING.md", "agents/README.md", "bench/README.md", "clients/node/README.md"),
        *("deploy/README.md", "tests/drill/README.md", "tests/drill/RESULTS.md"),
    )
)
"""Pages beside what they are about."""

MOST_CHARS = 120
"""Of a line of prose. A table's row, a line of code and a link may be longer."""
_CODE = re.compile(r"`([^`]+)`")
_BEGINS = re.compile(r"\s*([-*] |\d+\. |[#|<]|$)")
"""A line that goes on no paragraph: an item, a heading, a table's row, an empty line."""


class Block(NamedTuple):
    """One fenced block: its language, the word behind that, and where it begins."""

    language: str
    kind: str
    text: str
    line: int


def read(name: str) -> str:
    """Return a page of `docs/` with each paragraph and each item of a list on one line."""
    lines = [""]
    fenced = False
    for line in (DOCS / name).read_text().splitlines():
        fence = line.lstrip().startswith("```")
        goes_on = not (fenced or fence or _BEGINS.match(line) or _BEGINS.fullmatch(lines[-1]))
        if goes_on and not lines[-1].startswith(("#", "|", "```")):
            lines[-1] += f" {line.strip()}"
        else:
            lines.append(line)
        fenced ^= fence
    return "\n".join([*lines[1:], ""])


def prose(text: str) -> Iterator[str]:
    """Yield a page's lines of prose: no tables, no fenced blocks."""
    fenced = False
    for line in text.splitlines():
        if line.lstrip().startswith("```"):
            fenced = not fenced
        elif not fenced and not line.startswith("|"):
            yield line


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


def commands(page: str) -> list[tuple[str, list[str]]]:
    """Return each command of a page's consoles, in order, and the lines that it prints as the page has it."""
    found: list[tuple[str, list[str]]] = []
    for block in blocks(page):
        for line in block.text.splitlines() if block.language == "console" else ():
            if line.startswith("$ "):
                found.append((line.removeprefix("$ "), []))
            elif line.strip() and not line.startswith("…"):
                found[-1][1].append(line)
    return found


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
