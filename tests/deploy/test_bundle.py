"""`mesh agent add --bundle`: an agent runs on another machine from what one file holds."""

import asyncio
import contextlib
import os
import shutil
import stat
import subprocess
import sys
import tarfile
from collections.abc import AsyncIterator
from pathlib import Path

import click.testing
import pytest

from mesh.bus.connection import connect
from mesh.bus.roles import ADMIN
from mesh.client import Client
from mesh.fleet.deployment import CA, CLIENT, TLS
from mesh.fleet.file import load_fleet
from mesh.fleet.setup import apply
from tests.archives import unpack
from tests.certificates import Authority
from tests.deploy.place import Place, service
from tests.integration.test_tls import block
from tests.servers import PATIENCE_S, ROOT, eventually
from tests.system.terminal import in_process

OTHERS = """
name = "turning"
entry = "other"
[agents.other]
[clients.app]
"""


@pytest.fixture
def place(tmp_path: Path) -> Place:
    made = Place(tmp_path)
    made.file.write_text(OTHERS)
    return made


def add(place: Place, url: str, *more: str) -> click.testing.Result:
    bundle = str(place.out / "echo.tgz")
    words = ["agent", "add", "echo", "--file", str(place.file), "--out", str(place.out), "--bundle", bundle]
    return in_process(*words, "--url", url, *more)


def unpacked(place: Place, folder: Path) -> Path:
    with tarfile.open(place.out / "echo.tgz") as archive:
        unpack(archive, folder)
    return folder / "echo"


async def test_an_agent_runs_from_its_bundle_against_a_bus_with_tls(place: Place, tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    tls = authority.sign("member")
    (place.out / TLS).mkdir()
    for source, name in ((tls.ca, CA), (tls.cert, f"{CLIENT}.pem"), (tls.key, f"{CLIENT}-key.pem")):
        assert source is not None
        shutil.copy(source, place.out / TLS / name)
    async with place.served(block(authority.sign("server"), verify=True)) as server:
        url = server.url.replace("nats", "tls")
        done = await asyncio.to_thread(add, place, url, "--module", "tests.deploy.echo:echo")
        assert done.exit_code == 0, done.output
        await place.reload(server)
        async with await connect(server.url, name=ADMIN, seed=place.seed(ADMIN), tls=tls) as admin:
            await apply(admin, load_fleet(place.file))
        folder = unpacked(place, tmp_path / "far")
        async with (
            service(place, server.url, "guard", "guard", "run", tls=tls) as guard,
            started(folder, "tests.deploy.echo:echo"),
            await Client.connect(server.url, name="app", seed=place.seed("app"), tls=tls) as client,
        ):
            await eventually(guard.is_ready)
            outcome = await client.wait(await client.submit("ping", to="echo"), timeout_s=PATIENCE_S)
            assert (outcome.status, outcome.answer) == ("completed", "pong")


@contextlib.asynccontextmanager
async def started(folder: Path, module: str) -> AsyncIterator[None]:
    """Start an agent as its README does."""
    inherited = {key: each for key, each in os.environ.items() if not key.startswith(("MESH_", "NATS_"))}
    run = f"set -a; . ./agent.env; exec {sys.executable} -m mesh agent run {module}"
    process = await asyncio.create_subprocess_exec(
        *("sh", "-c", run), cwd=folder, env=inherited | {"PYTHONPATH": str(ROOT)}
    )
    try:
        yield
    finally:
        process.kill()
        await process.wait()


def test_what_it_holds_is_its_owners_alone_and_the_same_each_time(place: Place, tmp_path: Path) -> None:
    assert add(place, "nats://bus.example:4222", "--module", "tests.deploy.echo:echo").exit_code == 0
    bundle = place.out / "echo.tgz"
    first = bundle.read_bytes()
    assert stat.S_IMODE(bundle.stat().st_mode) == 0o600
    folder = unpacked(place, tmp_path / "far")
    for path in folder.rglob("*"):
        assert path.is_dir() or stat.S_IMODE(path.stat().st_mode) == 0o600, path
    assert len((folder / "README").read_text().splitlines()) == 5
    assert add(place, "nats://bus.example:4222").exit_code == 0
    assert bundle.read_bytes() == first
    place.mesh("rotate", "echo")
    assert add(place, "nats://bus.example:4222").exit_code == 0
    assert (unpacked(place, tmp_path / "again") / "keys/echo.nk").read_text().strip() == place.seed("echo")


def test_its_installer_installs_the_agent_and_nothing_else(place: Place, tmp_path: Path) -> None:
    add(place, "nats://bus.example:4222", "--module", "tests.deploy.echo:echo")
    folder = unpacked(place, tmp_path / "far")
    unknown = subprocess.run(["sh", folder / "systemd/install.sh", "other"], capture_output=True, check=False)
    assert unknown.returncode == 2
    assert (
        "AGENT_MODULE=tests.deploy.echo:echo"
        in (folder / "systemd/mesh-agent@echo.service.d/agent.conf").read_text()
    )
    assert "NATS_URL=nats://bus.example:4222" in (folder / "systemd/mesh.env").read_text()


@pytest.mark.parametrize(
    ("more", "remedy"), [((), "module"), (("--module", "tests.deploy.echo:echo"), "client.pem")]
)
def test_what_is_missing_is_named(place: Place, more: tuple[str, ...], remedy: str) -> None:
    (place.out / TLS).mkdir()
    done = add(place, "tls://bus.example:4222", *more)
    assert done.exit_code != 0
    assert remedy in done.output + str(done.exception)
