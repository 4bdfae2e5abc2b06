"""Names: a public class of mesh and protocol has a name of its own: a reader need not ask which one."""

import ast
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[2]

SHARED = {
    "Finding",
    "Frozen",
    "Kind",
    "Link",
    "Member",
    "Place",
    "Queue",
    "Refusal",
    "Reply",
    "Report",
    "Role",
    "Rule",
    "Said",
    "Sent",
    "Service",
    "Settings",
    "Shown",
    "Stored",
}
"""Names that two classes have until one of them gets a better one. This set only ever shrinks."""


def test_no_two_public_classes_share_a_name() -> None:
    names = Counter(
        node.name
        for room in ("mesh", "protocol")
        for file in (ROOT / room).rglob("*.py")
        for node in ast.parse(file.read_text()).body
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    )
    assert len(names) > 300
    assert {name for name, times in names.items() if times > 1} <= SHARED
