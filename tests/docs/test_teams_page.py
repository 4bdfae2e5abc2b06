"""docs/teams.md and docs/swarm.md: their agents, and what they say of them."""

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

SHOWN = list(blocks(read("teams.md") + read("swarm.md")))
FILES = ["desk.py", "research.py", "mender.py"]
NAMES = {
    each.__name__: each
    for each in (
        AgentEntry, FleetHarness, InMemoryGuard, MemorySteps, Policy, StrictModel, calls, driven_by, fleet_of,
        says, turn,
    )
}  # fmt: skip


def test_the_checks_of_the_page_hold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert written(SHOWN, tmp_path) == FILES
    monkeypatch.syspath_prepend(tmp_path)
    for name in FILES:
        monkeypatch.delitem(sys.modules, name.removesuffix(".py"), raising=False)
    checks = [block for block in SHOWN if block.kind == "check"]
    assert len(checks) == 6
    names = {**NAMES, "asyncio": asyncio}
    for block in checks:  # each goes on where the one before it ended
        exec(compile("\n" * block.line + block.text, "teams.md", "exec"), names)


def test_the_settings_of_the_page_are_those_of_a_fleet_file() -> None:
    shown = [block.text for block in SHOWN if block.language == "toml"]
    files = [parse_fleet(f'name = "desk"\nentry = "lead"\n[agents.lead]\n{text}') for text in shown]
    assert [file.rules["default"].topology for file in files] == ["supervised", "swarm"]
