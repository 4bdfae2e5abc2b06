"""The systemd units: systemd itself accepts them."""

import subprocess
from pathlib import Path

import pytest

from tests.deploy.validator import DEPLOY, complaints, run

UNITS = DEPLOY / "systemd"
INSTALLED = "/opt/handoff-mesh/bin/mesh"


def verified(unit: Path) -> subprocess.CompletedProcess[str]:
    options = ("--man=no", "--recursive-errors=no")
    return run("systemd-analyze", "verify", *options, unit, install="apt-get install systemd")


@pytest.fixture
def units(tmp_path: Path) -> Path:
    """The units as on a machine where the program is installed, which this one need not be."""
    program = tmp_path / "mesh"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    for unit in UNITS.glob("*.service"):
        text = unit.read_text()
        assert INSTALLED in text
        (tmp_path / unit.name).write_text(text.replace(INSTALLED, str(program)))
    return tmp_path


@pytest.mark.parametrize("name", ["mesh-guard.service", "mesh-agent@.service", "mesh-agent@billing.service"])
def test_systemd_accepts_the_unit(units: Path, name: str) -> None:
    finished = verified(units / name)
    assert finished.returncode == 0, complaints(finished)
    assert complaints(finished) == ""


def test_systemd_finds_a_directive_that_it_does_not_know(units: Path) -> None:
    broken = units / "mesh-guard.service"
    broken.write_text(broken.read_text().replace("TimeoutStopSec=90", "TimeoutStopSecs=90"))
    assert "TimeoutStopSecs" in complaints(verified(broken))


@pytest.mark.parametrize("unit", sorted(UNITS.glob("*.service")), ids=lambda unit: unit.name)
def test_a_unit_drains_for_90_seconds_and_always_comes_back(unit: Path) -> None:
    lines = unit.read_text().splitlines()
    assert {"TimeoutStopSec=90", "Restart=always", "DynamicUser=yes", "StartLimitIntervalSec=0"} <= set(lines)
    assert [line for line in lines if line.startswith("LoadCredential=")]
