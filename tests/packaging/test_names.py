"""Names: public classes have one of their own, and agents' files import what `mesh.agent` lists."""

import ast
from collections import Counter
from collections.abc import Collection, Iterator
from importlib import import_module
from itertools import chain
from pathlib import Path

import pytest

import mesh.agent
from tests.docs.pages import blocks

ROOT = Path(__file__).parents[2]

ON_PURPOSE = {"Client"}
"""`mesh.sync.Client` is the client without `async`: its user has no other."""


def test_no_two_public_classes_share_a_name() -> None:
    names = Counter(
        node.name
        for room in ("mesh", "protocol")
        for file in (ROOT / room).rglob("*.py")
        for node in ast.parse(file.read_text()).body
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    )
    assert len(names) > 300
    assert {name for name, times in names.items() if times > 1} == ON_PURPOSE


PUBLIC = {"definition", "errors", "hooks", "tools", "turn", "values"}


def test_every_other_module_of_the_room_begins_with_an_underscore() -> None:
    modules = {file.stem for file in (ROOT / "mesh" / "agent").glob("*.py")}
    assert {name for name in modules if not name.startswith("_")} == PUBLIC


def test_the_room_lists_what_its_public_modules_and_the_wire_define() -> None:
    homes = {name: _home(name) for name in mesh.agent.__all__}
    for name, home in homes.items():
        is_of_models = home == "mesh.model" and name in import_module(home).__all__
        is_public = home.startswith("protocol.wire.") or home.removeprefix("mesh.agent.") in PUBLIC
        assert is_public or is_of_models, name
        assert getattr(mesh.agent, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'Journal'"):
        _ = mesh.agent.Journal


def _home(name: str) -> str:
    return next(home for home in mesh.agent._HOMES if name in vars(import_module(home)))


def test_docs_and_reference_fleets_import_what_a_room_of_mesh_lists() -> None:
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    files = [*(ROOT / "agents").rglob("*.py"), *(ROOT / "mesh/local/template").rglob("*.py")]
    taken = [*chain.from_iterable(map(_imported_by, pages)), *chain.from_iterable(map(_imports, files))]
    assert len(taken) > 150
    assert {f"{room}: {name}" for room, name in taken if name not in _listed(room)} == set()


def _imported_by(page: Path) -> Iterator[tuple[str, str]]:
    for block in blocks(page.read_text()):
        if block.language == "python":
            yield from _imports_of(block.text)


def _imports(file: Path) -> Iterator[tuple[str, str]]:
    yield from _imports_of(file.read_text())


def _imports_of(code: str) -> Iterator[tuple[str, str]]:
    """Yield what some code imports from the product: a room, and a name."""
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.ImportFrom) and _is_ours(str(node.module)):
            yield from ((str(node.module), each.name) for each in node.names)
        elif isinstance(node, ast.Import):
            yield from ((each.name, "") for each in node.names if _is_ours(each.name))


def _is_ours(module: str) -> bool:
    return module.partition(".")[0] in ("mesh", "protocol")


def _listed(room: str) -> Collection[str]:
    """Return the names that a room makes public; none of `protocol`, which is the wire."""
    return getattr(import_module(room), "__all__", ()) if room.startswith("mesh") else ()
