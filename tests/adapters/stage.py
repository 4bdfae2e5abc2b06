"""A mesh with a guard, and a process with agents of another SDK that is started anew whenever it dies."""

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec

from mesh.client import Client, Outcome
from mesh.guard.service import Guard
from mesh.service.failpoints import VARIABLE
from mesh.testing import EmbeddedBus
from protocol.wire import codec
from protocol.wire.config import Policy
from protocol.wire.subjects import policy
from tests.drill.failpoints import arm, claims
from tests.servers import FLEET, PATIENCE_S, ROOT, until

LEASE_S = 3.0
"""Shorter than by default: these tests kill often. On a busy machine a shorter one ends while a turn runs."""


ELSEWHERE = {"ROOT": str(ROOT), "PYTHONPATH": "", "PYTHONSAFEPATH": "1"}
"""Of a process where the name `agents` is the OpenAI SDK's: it puts this repository's root last by itself."""


def elsewhere(*command: str | Path, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run Python with these arguments to its end, where nothing but its folder hides an installed package."""
    return subprocess.run(
        [sys.executable, *command],
        cwd=folder,
        env=os.environ | ELSEWHERE | {"PYTHONPATH": str(folder)},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )


class Stage:
    """The mesh, the process, and the world that it changes: a file with a line for each thing done."""

    def __init__(self, mesh: EmbeddedBus, folder: Path, script: Path) -> None:
        self.mesh, self._script, self._folder = mesh, script, folder
        self._ledger, self._failpoints = folder / "ledger", folder / "failpoints"
        self._failpoints.mkdir()
        self.ends: list[int] = []
        """How its processes ended, in order."""

    @property
    def world(self) -> list[str]:
        return self._ledger.read_text().splitlines() if self._ledger.exists() else []

    def forget(self) -> None:
        """Begin anew, with the process that runs."""
        self.ends.clear()
        for file in (self._ledger, *self._failpoints.iterdir()):
            file.unlink(missing_ok=True)

    async def ask(self, agent: str, text: str, *, dies_at: str = "") -> Outcome:
        """Give an agent a request, and return its outcome.

        Args:
            dies_at: the failpoint at which the agent's process is killed, once; empty for none.
        """
        if dies_at:
            arm(self._failpoints, dies_at)
        async with self.mesh.connected_as("c1") as bus:
            client = await Client.on(bus, "c1")
            request = await client.submit(text, to=agent)
            outcome = await client.wait(request, timeout_s=PATIENCE_S)
        if dies_at:
            assert [claim.failpoint for claim in claims(self._failpoints)] == [dies_at]
            await until(lambda: self.ends == [-signal.SIGKILL])
        return outcome

    async def keep_alive(self) -> None:
        seeds = {name: self.mesh.keys[name].seed for name in self.mesh.fleet.agents}
        environment = {**os.environ, "LEDGER": str(self._ledger), VARIABLE: str(self._failpoints)}
        environment |= ELSEWHERE
        while True:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                str(self._script),
                self.mesh.url,
                json.dumps(seeds),
                env=environment,
                cwd=self._folder,
            )
            try:
                self.ends.append(await process.wait())
            except asyncio.CancelledError:
                with contextlib.suppress(ProcessLookupError):
                    process.kill()
                await process.wait()
                raise


@contextlib.asynccontextmanager
async def staged(script: Path, folder: Path) -> AsyncIterator[Stage]:
    """Run a mesh, a guard, and a script that runs agents of `tests.servers.FLEET`."""
    async with EmbeddedBus(msgspec.structs.replace(FLEET, lease_s=LEASE_S), folder) as mesh:
        async with mesh.connected_as("admin") as admin:
            await admin.publish_durable(policy("default"), codec.encode(Policy()))
        made = Stage(mesh, folder, script)
        async with mesh.connected_as("guard") as bus:
            tasks = [
                asyncio.create_task(Guard(bus, identity="g").run()),
                asyncio.create_task(made.keep_alive()),
            ]
            yield made
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        await mesh.server.kill()
