"""Two versions side by side: this checkout, and the one that was landed before it."""

from pathlib import Path

import pytest

from tests.upgrade.versions import NOW, Version, built


@pytest.fixture(scope="session")
def before(tmp_path_factory: pytest.TempPathFactory) -> Version:
    """The previous version, built and installed once for a run."""
    return built(tmp_path_factory.mktemp("previous"))


@pytest.fixture(scope="session")
def now() -> Version:
    return NOW


@pytest.fixture
def ledger(tmp_path: Path) -> Path:
    """The file in which an effect leaves a line."""
    return tmp_path / "ledger"
