"""A generated compose file of three nodes, run as processes without containers; leaders are killed."""

import asyncio
import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import urlopen

import pytest
from ruamel.yaml import YAML

from mesh.bus.connection import Bus, connect
from mesh.bus.credentials import TlsFiles, read_key
from mesh.cli.exits import Exit
from mesh.errors import BusError
from mesh.local.server import ParentDeath, lasting_port, server_binary
from tests.servers import PATIENCE_S, ROOT, eventually
from tests.system.terminal import Folder

NODES = ("nats-1", "nats-2", "nats-3")
HELLO = """
from mesh.agent import Move, Turn, agent


@agent(name="greeter")
async def greeter(turn: Turn) -> Move:
    return turn.complete(f"Hello, {turn.facts['name']}!")
"""
FLEET = """
name = "hello"
entry = "greeter"

[agents.greeter]
module = "hello:greeter"

[clients.app]
[operators.ops]
[viewers.audit]
[log]
replicas = 3
"""


class Node:
    """One server of the bus, on its generated configuration."""

    def __init__(self, config: Path, monitor: int) -> None:
        self._config = config
        self._monitor = monitor
        self._process: subprocess.Popen[bytes] | None = None
        self.log = config.with_suffix(".log")

    def start(self) -> None:
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [server_binary(), "-c", self._config],
                stdout=log,
                stderr=log,
                env=os.environ | {"GOMEMLIMIT": "256MiB"},
                preexec_fn=ParentDeath().preexec,
            )

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    async def is_healthy(self) -> bool:
        """Ask as the compose file's health check does."""
        assert self._process is not None
        assert self._process.poll() is None, self.log.read_text()[-2000:]
        try:
            with await asyncio.to_thread(urlopen, f"http://127.0.0.1:{self._monitor}/healthz") as answer:
                return bool(answer.status == 200)
        except URLError:
            return False


class Machine:
    """The containers of `out/compose.yaml` as processes: each host is a port of the loopback interface."""

    def __init__(self, folder: Path) -> None:
        self.out = folder / "out"
        self.compose: dict[str, Any] = YAML(typ="safe").load(self.out / "compose.yaml")
        self._folder = folder
        self._hosts = {
            f"{node}:{port}": f"127.0.0.1:{lasting_port()}" for node in NODES for port in (4222, 6222)
        }
        self.nodes = {node: self._node(node) for node in NODES}

    def _node(self, node: str) -> Node:
        monitor = lasting_port()
        store = self._folder / "stores" / node
        text = self._at(self.compose_file(node, "/etc/nats/nats.conf").read_text())
        for there, here in {
            '"/data"': f'"{store}"',
            "127.0.0.1:8222": f"127.0.0.1:{monitor}",
            "0.0.0.0:4222": self._hosts[f"{node}:4222"],
            "0.0.0.0:6222": self._hosts[f"{node}:6222"],
        }.items():
            assert there in text
            text = text.replace(there, here)
        for name in ("ca.pem", f"{node}.pem", f"{node}-key.pem"):
            text = text.replace(
                f"/etc/nats/tls/{name}", str(self.compose_file(node, f"/etc/nats/tls/{name}"))
            )
        assert "/etc/nats" not in text
        config = self._folder / "etc" / f"{node}.conf"
        config.parent.mkdir(exist_ok=True)
        config.write_text(text)
        shutil.copy(self.compose_file(node, "/etc/nats/accounts.conf"), config.parent)
        return Node(config, monitor)

    def compose_file(self, service: str, path: str) -> Path:
        """Return the file that a service has at this path of its container."""
        mounts = [each.split(":") for each in self.compose["services"][service]["volumes"]]
        (source,) = [mount[0] for mount in mounts if mount[1] == path]
        return self.out / str(source)

    def _at(self, text: str) -> str:
        for there, here in self._hosts.items():
            text = text.replace(there, here)
        return text

    def environment(self, service: str) -> dict[str, str]:
        """Return a service's variables, with this machine's paths and ports."""
        said = self.compose["services"][service]
        secrets = {f"/run/secrets/{name}": self.compose["secrets"][name]["file"] for name in said["secrets"]}
        variables = {
            name: str((self.out / secrets[value]).resolve()) if value in secrets else self._at(value)
            for name, value in said["environment"].items()
        }
        variables.pop("MESH_HEALTH", None)  # one port for each container is too few here
        return variables | {"PYTHONPATH": f"{self._folder}:{ROOT}"}

    def command(self, service: str) -> list[str]:
        return list(self.compose["services"][service]["command"])

    async def admin(self) -> Bus:
        at = self.environment("setup")
        tls = TlsFiles(*(Path(at[f"MESH_TLS_{name}"]) for name in ("CA", "CERT", "KEY")))
        seed = read_key(Path(at["MESH_CREDENTIALS"])).seed
        return await connect(at["NATS_URL"], name="admin", seed=seed, wait=True, tls=tls)


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    (tmp_path / "mesh.toml").write_text(FLEET)
    (tmp_path / "hello.py").write_text(HELLO)
    done = Folder(tmp_path).mesh("setup", "--out", "out", "--for", "compose", "--nodes", "3")
    assert done.status == Exit.DONE, done
    made = Machine(tmp_path)
    yield made
    for node in made.nodes.values():
        node.kill()


async def test_requests_are_answered_after_the_leader_is_killed(machine: Machine, tmp_path: Path) -> None:
    fleet, here = Folder(machine.out / "fleet"), Folder(tmp_path)
    for node in machine.nodes.values():
        node.start()
    for node in machine.nodes.values():
        await eventually(node.is_healthy)
    set_up = await asyncio.to_thread(fleet.process, *machine.command("setup"), **machine.environment("setup"))
    assert set_up.status == Exit.DONE, set_up

    with contextlib.ExitStack() as services:
        for service, ready in (("guard", "guard_ready"), ("greeter", "agent_ready")):
            running = here.running(*machine.command(service), until=ready, **machine.environment(service))
            await asyncio.to_thread(services.enter_context, running)
        app = machine.environment("setup") | {
            "MESH_NAME": "app",
            "MESH_CREDENTIALS": str(machine.out / "keys/app.nk"),
        }

        async def greeted(name: str) -> bool:
            """Send a request; False where no server led at that moment. Then its outcome is unknown."""
            sent = await asyncio.to_thread(here.process, "send", "hello", "--fact", f"name={name}", **app)
            if sent.status == Exit.UNREACHABLE:
                return False
            assert (sent.status, sent.out.strip()) == (Exit.DONE, f"Hello, {name}!"), sent
            return True

        await eventually(lambda: greeted("Ada"))
        for name in ("Bob", "Cy"):  # the second time its own leader is gone, too
            async with await machine.admin() as bus:
                leader = await leader_of(bus, "LOG")
            machine.nodes[leader].kill()
            await eventually(partial(greeted, name))
            machine.nodes[leader].start()
            await eventually(machine.nodes[leader].is_healthy)

        audit = app | {"MESH_NAME": "audit", "MESH_CREDENTIALS": str(machine.out / "keys/audit.nk")}
        verified = await asyncio.to_thread(here.process, "log", "verify", **audit)
        assert verified.status == Exit.DONE, verified

        async def all_completed() -> bool:
            """Every try is a request of its own: those of unknown outcome end, too, if they were stored."""
            listed = await asyncio.to_thread(here.process, "request", "ls", "--json", **audit)
            statuses = [each["status"] for each in listed.json]
            return len(statuses) >= 3 and set(statuses) == {"completed"}

        await eventually(all_completed)


async def leader_of(bus: Bus, stream: str) -> str:
    """Return the server that leads a stream, once one does and both others have everything."""
    found: list[str] = []

    async def led() -> bool:
        with contextlib.suppress(BusError):  # they elect
            cluster = (await bus.api(f"STREAM.INFO.{stream}"))["cluster"]
            replicas = cluster.get("replicas", [])
            if cluster.get("leader") and len(replicas) == 2 and all(each["current"] for each in replicas):
                found.append(str(cluster["leader"]))
        return bool(found)

    await eventually(led, PATIENCE_S)
    return found[-1]


async def test_a_server_without_a_certificate_of_the_authority_stays_outside(
    machine: Machine, tmp_path: Path
) -> None:
    """A member of another authority is refused by name; clear text is never sent."""
    for node in machine.nodes.values():
        node.start()
    for node in machine.nodes.values():
        await eventually(node.is_healthy)
    other = Folder(tmp_path / "other")
    other.path.mkdir()
    (other.path / "mesh.toml").write_text(FLEET)
    files = ("--out", "out", "--for", "compose", "--nodes", "3")
    made = await asyncio.to_thread(other.process, "setup", *files)
    assert made.status == Exit.DONE, made
    tls = other.path / "out/tls"
    wrong = machine.environment("setup") | {
        "MESH_TLS_CERT": str(tls / "client.pem"),
        "MESH_TLS_KEY": str(tls / "client-key.pem"),
    }
    refused = await asyncio.to_thread(Folder(machine.out / "fleet").process, "setup", **wrong)
    assert refused.status == Exit.UNREACHABLE, refused
    assert "[bus.tls]" in refused.err
