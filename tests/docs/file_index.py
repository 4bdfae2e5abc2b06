"""The list of the product's files, from their docstrings: `python -m tests.docs.file_index` writes it."""

import ast
from itertools import groupby
from pathlib import Path

from tests.docs.pages import DOCS

ROOT = DOCS.parent
INDEX = DOCS / "files.md"

_HEAD = """# Files

Every module of the product, by room, with the first lines of its docstring. [Design](design.md) says how
they work together. This page is written by `python -m tests.docs.file_index`.
"""


def files() -> list[Path]:
    """Return the modules of the product, each room's own before those of the rooms in it."""
    found = (path for room in ("protocol", "mesh") for path in (ROOT / room).rglob("*.py"))
    product = (path for path in found if path.name != "__main__.py" and "template" not in path.parts)
    return sorted(product, key=lambda path: (path.parts[:-1], path.name != "__init__.py", path.name))


def index() -> str:
    """Return the page as it should be. Raises ValueError for a module without a docstring."""
    return _HEAD + "".join(
        _section(room, list(of)) for room, of in groupby(files(), lambda path: path.parent)
    )


def _section(room: Path, of: list[Path]) -> str:
    name = room.relative_to(ROOT)
    own, *others = of
    rows = "".join(f"| `{path.name}` | {_summary(path)} |\n" for path in others)
    table = f"\n| file | what it does |\n|---|---|\n{rows}" if rows else ""
    return f"\n## `{name}/`\n\n{_summary(own)}\n{table}"


def _summary(path: Path) -> str:
    said = ast.get_docstring(ast.parse(path.read_text()))
    if said is None:
        raise ValueError(f"{path.relative_to(ROOT)} has no docstring")
    return " ".join(said.split("\n\n")[0].split()).replace("|", "\\|")


if __name__ == "__main__":
    INDEX.write_text(index())
