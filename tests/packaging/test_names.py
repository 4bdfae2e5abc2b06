"""Names: public classes have one of their own, and agents' files import what `mesh.agent` lists."""

import ast
import re
from collections import Counter
from importlib import import_module
from pathlib import Path

import pytest

import mesh.agent

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


PUBLIC = {"definition", "errors", "tools", "turn", "values"}
BEHIND = re.compile(r"^\s*(?:from|import) mesh\.agent\.\w+", re.MULTILINE)


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


def test_reference_agents_and_docs_import_from_the_room_alone() -> None:
    files = [*(ROOT / "agents").rglob("*.py"), ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    reaching = {str(file.relative_to(ROOT)): BEHIND.findall(file.read_text()) for file in files}
    assert {name: found for name, found in reaching.items() if found} == {}
