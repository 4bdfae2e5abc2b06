"""The pinned set: complete, hashed, in step with pyproject.toml, and tied to no package index."""

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).parents[2]
DEVELOPMENT = ROOT / "constraints.txt"
IMAGE = ROOT / "deploy" / "requirements.txt"

with (ROOT / "pyproject.toml").open("rb") as _file:
    PYPROJECT: dict[str, Any] = tomllib.load(_file)


def pins(path: Path) -> dict[str, Version]:
    """Return name → version of every pin. A line that pins nothing, or has no hash, fails the test."""
    found = {}
    for entry in re.split(r"\n(?=\S)", path.read_text().strip()):
        if entry.startswith(("#", " ")):
            continue
        requirement = re.fullmatch(r"([a-z0-9-]+)==(\S+)( ; .*)? \\", entry.splitlines()[0])
        assert requirement is not None, entry.splitlines()[0]
        assert "--hash=sha256:" in entry, requirement[1]
        found[requirement[1]] = Version(requirement[2])
    return found


def asked_for(*groups: str) -> list[Requirement]:
    """Return what the project itself, all its extras and the named dependency groups ask for."""
    project = PYPROJECT["project"]
    extras = [text for extra in project["optional-dependencies"].values() for text in extra]
    grouped = [
        text for group in groups for text in PYPROJECT["dependency-groups"][group] if isinstance(text, str)
    ]
    return [Requirement(text) for text in (*project["dependencies"], *extras, *grouped)]


@pytest.mark.parametrize(
    ("path", "groups"), [(DEVELOPMENT, ("build", "dev")), (IMAGE, ("build",))], ids=["development", "image"]
)
def test_whatever_is_asked_for_is_pinned_to_a_version_that_will_do(
    path: Path, groups: tuple[str, ...]
) -> None:
    pinned = pins(path)
    for requirement in asked_for(*groups):
        name = canonicalize_name(requirement.name)
        assert name in pinned, f"{name} is not pinned: run make constraints"
        assert requirement.specifier.contains(pinned[name]), f"{name}: run make constraints"


def test_the_build_backend_is_pinned_so_that_building_fetches_nothing() -> None:
    backend = [Requirement(text) for text in PYPROJECT["build-system"]["requires"]]
    assert backend == [Requirement(text) for text in PYPROJECT["dependency-groups"]["build"]]


def test_the_image_gets_the_versions_that_are_tested() -> None:
    tested = pins(DEVELOPMENT)
    assert pins(IMAGE).items() <= tested.items()


@pytest.mark.parametrize("path", [DEVELOPMENT, IMAGE], ids=["development", "image"])
def test_the_pins_name_no_package_index(path: Path) -> None:
    text = path.read_text()
    assert "://" not in text
    assert "--index-url" not in text
    assert "--find-links" not in text
