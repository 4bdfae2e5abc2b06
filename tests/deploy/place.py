"""A place of `mesh setup --out`: its files, its server, its services, and requests that go on meanwhile."""

import asyncio
import contextlib
import json
import os
import sys
import urllib.error
import urllib.request
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import click.testing

from mesh.bus.accounts import resolver_config
from mesh.bus.credentials import NO_FILES, TlsFiles, read_key, seed_file
from mesh.cli import app
from mesh.client import Client
from mesh.errors import BusError
from mesh.fleet.file import load_fleet
from mesh.fleet.handover import hand_over
from mesh.fleet.setup import ACCOUNTS, KEYS, prepare
from mesh.local.server import EmbeddedServer
from protocol.wire.commands import Submit
from tests.logs import kept_logging
from tests.servers import PATIENCE_S, ROOT, until

FLEET = """
name = "turning"
entry = "echo"
[agents.echo]
module = "tests.deploy.echo:echo"
[clients.app]
[operators.ops]
[viewers.eye]
"""


class Place:
    """A fleet file, the folder of `mesh setup --out`, and the server that runs with it."""

    def __init__(self, folder: Path, auth: str = "nkeys") -> None:
        self.file = folder / "mesh.toml"
        self.out = folder / "out"
        self.auth = auth
        self.tls = NO_FILES
        self.file.write_text(f'{FLEET}[bus]\nauth = "{auth}"\n')
        self.accounts = prepare(load_fleet(self.file), self.out).accounts

    def mesh(self, *arguments: str) -> str:
        """Run a `mesh key` command with this place's files; return what it prints."""
        words = ["key", *arguments, "--file", str(self.file), "--out", str(self.out)]
        runner = click.testing.CliRunner(env={"MESH_LOG_LEVEL": "critical"})  # else it silences this process
        with kept_logging(), ThreadPoolExecutor(1) as beside:  # one that asks the bus has a loop of its own
            done = beside.submit(runner.invoke, app, words).result()
        assert done.exit_code == 0, done.output
        return done.output

    def listed(self) -> dict[str, dict[str, Any]]:
        return {each["name"]: each for each in json.loads(self.mesh("ls", "--json"))}

    def seed(self, name: str) -> str:
        return read_key(seed_file(self.out / KEYS, name)).credential

    async def reload(self, server: EmbeddedServer) -> None:
        """Let the server know the keys that are valid now."""
        if self.auth == "jwt":
            await hand_over(server.url, self.out, self.tls)
        else:
            await server.reload((self.out / ACCOUNTS).read_text())

    @contextlib.asynccontextmanager
    async def served(self, extra: str = "") -> AsyncIterator[EmbeddedServer]:
        store = self.out / "store"
        extra += f"\n{resolver_config(store / 'accounts')}\n" if self.auth == "jwt" else ""
        async with EmbeddedServer(
            self.accounts, store, sync_always=False, probe_seed=None, extra=extra
        ) as server:
            yield server


class Service:
    """A process of `mesh agent run` or `mesh guard run`, and where it answers probes."""

    def __init__(self, process: asyncio.subprocess.Process, log: Path) -> None:
        self._process = process
        self._log = log

    def signal(self, number: int) -> None:
        self._process.send_signal(number)

    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self._log.read_text().splitlines() if line.startswith("{")]

    def logged(self, event: str) -> int:
        return sum(line.get("event") == event for line in self.lines())

    async def reasons(self) -> list[str] | None:
        """Return the codes of `/readyz`; None if it does not answer yet."""
        url = next((line["url"] for line in self.lines() if line.get("event") == "health_listening"), None)
        if url is None:
            return None
        try:
            body = await asyncio.to_thread(lambda: urllib.request.urlopen(f"{url}/readyz").read())
        except urllib.error.HTTPError as not_ready:
            body = not_ready.read()
        return [each["code"] for each in json.loads(body)["reasons"]]

    async def is_ready(self) -> bool:
        return await self.reasons() == []


@contextlib.asynccontextmanager
async def service(
    place: Place, url: str, name: str, *arguments: str, tls: TlsFiles
) -> AsyncIterator[Service]:
    environment = {
        "NATS_URL": url,
        "MESH_NAME": name,
        "MESH_CREDENTIALS": str(seed_file(place.out / KEYS, name)),
        "MESH_HEALTH": "127.0.0.1:0",
        "MESH_LOG_FORMAT": "json",
        "PYTHONPATH": str(ROOT),
        "MESH_TLS_CA": str(tls.ca),
        "MESH_TLS_CERT": str(tls.cert),
        "MESH_TLS_KEY": str(tls.key),
    }
    log = place.out / f"{name}.log"
    with log.open("wb") as sink:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "mesh", *arguments),
            env=os.environ | environment,
            cwd=place.out,
            stdout=sink,
            stderr=sink,
        )
    try:
        yield Service(process, log)
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def has(agent: Service, code: str) -> bool:
    return code in (await agent.reasons() or ())


@contextlib.asynccontextmanager
async def load(client: Client, *, through_outages: bool = False) -> AsyncIterator[list[str]]:
    """Send requests one after the other, two at a time; require that each is completed, and none twice.

    Args:
        through_outages: whether a request that could not be stored is sent again, with its id and its bytes.
    """
    served, sent, ending = list[str](), list[str](), asyncio.Event()

    async def send() -> None:
        while not ending.is_set():
            request = client.new_id()
            sent.append(request)
            while True:
                try:
                    await client.submit_whole(Submit(text="ping"), request=request)
                    outcome = await client.wait(request, timeout_s=PATIENCE_S)
                    break
                except BusError:
                    if not through_outages:
                        raise
                    await asyncio.sleep(0.1)
            assert outcome.status == "completed", outcome
            served.append(request)

    async with asyncio.TaskGroup() as group:
        for _ in range(2):
            group.create_task(send())
        try:
            yield served
        finally:
            ending.set()
    assert sorted(served) == sorted(set(sent))


async def more(served: list[str], requests: int = 4) -> None:
    """Wait until so many requests more are answered."""
    wanted = len(served) + requests
    await until(lambda: len(served) >= wanted)
