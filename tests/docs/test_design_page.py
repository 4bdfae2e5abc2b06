"""docs/design.md and docs/source.md: what they point to is there."""

import re
from pathlib import Path

import pytest

from tests.docs.pages import DOCS, codes, read, section, tables

ROOT = DOCS.parent
PAGE = read("design.md") + read("source.md")
[WALK] = tables(section(PAGE, "The walk of one request"))
ORDER, PLACES = tables(section(PAGE, "Where to begin reading"))
ROOMS = ("protocol/domain", "mesh", "mesh/bus", "mesh/guard", "mesh/agent")


@pytest.mark.parametrize("row", WALK, ids=[row[0] for row in WALK])
def test_each_step_names_files_and_what_stands_in_them(row: list[str]) -> None:
    named = codes(row[2])
    files = [_found(name) for name in named if name.endswith(".py")]
    assert files
    text = "".join(file.read_text() for file in files)
    for name in named:
        if not name.endswith(".py"):
            assert re.search(rf"\b{re.escape(name.rpartition('.')[2])}\b", text), name


@pytest.mark.parametrize("row", ORDER, ids=[row[0] for row in ORDER])
def test_each_order_of_reading_names_modules_of_its_room(row: list[str]) -> None:
    room, *modules = codes(row[1])
    assert modules
    assert [name for name in modules if not (ROOT / room / f"{name}.py").is_file()] == []


def test_each_place_names_a_file() -> None:
    for row in PLACES:
        assert any((ROOT / name).is_file() for name in codes(row[1])), row[0]


def _found(name: str) -> Path:
    """Return a file that the page names by its whole path, or by its name in one of the rooms."""
    places = [ROOT / name] if "/" in name else [ROOT / room / name for room in ROOMS]
    [found] = [place for place in places if place.is_file()]
    return found
