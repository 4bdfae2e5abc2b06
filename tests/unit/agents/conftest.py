"""The support fleet with a database of the test's own."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from agents.support import billing, technical, triage
from mesh.agent.definition import Agent
from mesh.fleet import FleetFile, load_fleet

SUPPORT = Path(triage.__file__).parent


@pytest.fixture
def records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where a fresh database will be."""
    file = tmp_path / "support.db"
    monkeypatch.setenv("SUPPORT_DB", str(file))
    return file


@pytest.fixture(scope="session")
def support() -> FleetFile:
    return load_fleet(SUPPORT)


@pytest.fixture(scope="session")
def agents() -> Mapping[str, Agent]:
    return {module.agent.name: module.agent for module in (triage, billing, technical)}
