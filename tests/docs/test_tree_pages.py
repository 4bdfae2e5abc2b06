"""docs/supervised.md and docs/swarm.md: their agents and what they say of them."""

import asyncio
import sys
from pathlib import Path

import pytest

from mesh.fleet.file import parse_fleet
from mesh.testing import (
    FleetHarness,
    InMemoryGuard,
    MemorySteps,
    StrictModel,
    calls,
    driven_by,
    fleet_of,
    says,
    turn,
)
from protocol.wire.config import AgentEntry, Policy
from tests.docs.pages import blocks, read, written

FILES = {"supervised.md": ["desk.py", "research.py"], "swarm.md": ["mender.py"]}
NAMES = {
    each.__name__: each
    for each in (
        AgentEntry, FleetHarness, InMemoryGuard, MemorySteps, Policy, StrictModel, calls, driven_by, fleet_of,
        says, turn,
    )
}  # fmt: skip


@pytest.mark.parametrize("page", FILES)
def test_the_checks_of_the_page_hold(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shown = list(blocks(read(page)))
    assert written(shown, tmp_path) == FILES[page]
    monkeypatch.syspath_prepend(tmp_path)
    for name in FILES[page]:
        monkeypatch.delitem(sys.modules, name.removesuffix(".py"), raising=False)
    checks = [block for block in shown if block.kind == "check"]
    assert len(checks) == 3
    names = {**NAMES, "asyncio": asyncio}
    for block in checks:  # each goes on where the one before it ended
        exec(compile("\n" * block.line + block.text, page, "exec"), names)


@pytest.mark.parametrize(("page", "topology"), [("supervised.md", "supervised"), ("swarm.md", "swarm")])
def test_the_settings_of_the_page_are_those_of_a_fleet_file(page: str, topology: str) -> None:
    (shown,) = (block.text for block in blocks(read(page)) if block.language == "toml")
    file = parse_fleet(f'name = "desk"\nentry = "lead"\n[agents.lead]\n{shown}')
    assert file.rules["default"].topology == topology
