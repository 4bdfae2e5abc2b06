"""Constants are handed in as arguments. Those that tests still patch are listed, and the list shrinks."""

import ast
import re
from collections.abc import Iterator

from tests.servers import ROOT

CONSTANT = re.compile(r"_?[A-Z][A-Z0-9_]*")
HELD = {
    *("AGAIN_S", "ASK_S", "BOUNDS", "CPU_S", "FIRST_PAUSE_S"),
    *("GUARD_HEARS", "FRESH_S", "LARGEST_AMOUNT", "LATER_S", "LEAST_S"),
    *("LOG_UNREADABLE", "MAX_MODELS", "MOST_LETTERS"),
    *("NEXT_PROBE_S", "PEERS", "POLL_S", "PROBE_S", "QUICK", "REFRESH_S", "SILENT_MOST_S"),
    *("UNKNOWN_S", "VERSION_AGAIN_S", "_APPLY", "_CLEANUP_S"),
    *("_PER_SUBJECT", "_PROPOSAL_S", "_TRACER_PROVIDER"),
}
"""Names of constants that a test sets in a module of the product."""


def patched() -> Iterator[str]:
    """Yield the name of each constant that a test sets by `setattr`."""
    for path in (ROOT / "tests").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and ast.unparse(node.func).endswith(".setattr"):
                for each in node.args[:2]:
                    if isinstance(each, ast.Constant) and isinstance(each.value, str):
                        name = each.value.rpartition(".")[2]
                        if CONSTANT.fullmatch(name):
                            yield name


def test_no_further_constant_is_patched() -> None:
    assert set(patched()) - HELD == set(), "hand it in as an argument"


def test_the_list_names_only_what_is_patched() -> None:
    assert HELD - set(patched()) == set()
