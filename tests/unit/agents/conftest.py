"""The reference fleets, with databases of the test's own."""

from pathlib import Path

import pytest

from tests.unit.agents.crews import CREWS


@pytest.fixture
def records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory of fresh databases, one a fleet: `support.db`, `recruiting.db`."""
    for crew in CREWS:
        monkeypatch.setenv(f"{crew.name.upper()}_DB", str(tmp_path / f"{crew.name}.db"))
    return tmp_path


@pytest.fixture
def scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder under which the code fleet makes and changes everything."""
    folder = tmp_path / "scratch"
    monkeypatch.setenv("CODE_SCRATCH", str(folder))
    return folder
