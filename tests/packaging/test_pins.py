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
DEMO = ROOT / "requirements-demo.txt"

ADAPTERS = {"langgraph", "openai-agents", "pydantic-ai"}
"""Extras for other SDKs of agents, which the image does not have."""

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


def asked_for(*groups: str, extras: tuple[str, ...] = ()) -> list[Requirement]:
    """Return what the project, the named extras (all by default) and dependency groups ask for."""
    project = PYPROJECT["project"]
    known = project["optional-dependencies"]
    wanted = [text for extra in extras or known for text in known[extra]]
    grouped = [
        text for group in groups for text in PYPROJECT["dependency-groups"][group] if isinstance(text, str)
    ]
    return [Requirement(text) for text in (*project["dependencies"], *wanted, *grouped)]


IN_IMAGE = tuple(PYPROJECT["project"]["optional-dependencies"].keys() - ADAPTERS)


@pytest.mark.parametrize(
    ("path", "groups", "extras"),
    [
        pytest.param(DEVELOPMENT, ("build", "dev"), (), id="development"),
        pytest.param(IMAGE, ("build",), IN_IMAGE, id="image"),
        pytest.param(DEMO, ("build",), ("server",), id="demo"),
    ],
)
def test_whatever_is_asked_for_is_pinned_to_a_version_that_will_do(
    path: Path, groups: tuple[str, ...], extras: tuple[str, ...]
) -> None:
    pinned = pins(path)
    for requirement in asked_for(*groups, extras=extras):
        name = canonicalize_name(requirement.name)
        assert name in pinned, f"{name} is not pinned: run make constraints"
        assert requirement.specifier.contains(pinned[name]), f"{name}: run make constraints"


def test_the_build_backend_is_pinned_so_that_building_fetches_nothing() -> None:
    backend = [Requirement(text) for text in PYPROJECT["build-system"]["requires"]]
    assert backend == [Requirement(text) for text in PYPROJECT["dependency-groups"]["build"]]


@pytest.mark.parametrize("path", [IMAGE, DEMO], ids=["image", "demo"])
def test_the_versions_are_those_that_are_tested(path: Path) -> None:
    assert pins(path).items() <= pins(DEVELOPMENT).items()


def test_the_image_has_no_other_sdk_of_agents() -> None:
    known = PYPROJECT["project"]["optional-dependencies"]
    sdks = {canonicalize_name(Requirement(text).name) for extra in ADAPTERS for text in known[extra]}
    assert not sdks & pins(IMAGE).keys()


def test_the_image_is_made_with_every_other_extra() -> None:
    _, _, rest = (ROOT / "Makefile").read_text().replace("\\\n", "").partition("\nIMAGE := ")
    assert set(re.findall(r"--extra (\S+)", rest.partition("\n")[0])) == set(IN_IMAGE)


def test_the_demo_takes_no_tools() -> None:
    tools = {
        canonicalize_name(Requirement(text).name)
        for text in PYPROJECT["dependency-groups"]["dev"]
        if isinstance(text, str)
    }
    assert not tools & pins(DEMO).keys()


@pytest.mark.parametrize("path", [DEVELOPMENT, IMAGE, DEMO], ids=["development", "image", "demo"])
def test_the_pins_name_no_package_index(path: Path) -> None:
    text = path.read_text()
    assert "://" not in text
    assert "--index-url" not in text
    assert "--find-links" not in text
