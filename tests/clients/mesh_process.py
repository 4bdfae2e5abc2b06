"""A mesh for the tests of clients in other languages: `DIRECTORY`; commands on standard input, one a line.

It says where it is as its first line, and `{"did": COMMAND}` after each command: `kill-server`,
`start-server`, `stop-guard`, `start-guard`. It ends with its standard input.
"""

import asyncio
import contextlib
import json
import sys
from pathlib import Path

from mesh.bus.roles import ADMIN, GUARD
from mesh.fleet.file import parse_fleet
from mesh.fleet.setup import apply
from mesh.guard.service import Guard
from mesh.service.logs import configure_logging
from mesh.testing import EmbeddedBus
from tests.servers import until

FLEET = parse_fleet("""
name = "desk"
entry = "front"
[agents.front]
actions = ["look_up", "refund"]
[agents.records]
intents = ["look_up"]
[clients.app]
[operators.ops]
[policies.default]
[policies.tree]
topology = "supervised"
[policies.hasty]
turn_timeout_s = 1.5
retry_backoff_s = 0.1
""")


def say(what: object) -> None:
    sys.stdout.write(json.dumps(what) + "\n")
    sys.stdout.flush()


class Mesh:
    """A server and a guard, either of which may be ended and started again."""

    def __init__(self, directory: Path) -> None:
        self._bus = EmbeddedBus(FLEET.fleet, directory, anonymous="app")
        self._working = contextlib.AsyncExitStack()
        """What the guard is made of."""
        self._did = {
            "kill-server": self._bus.server.kill,
            "start-server": self._bus.server.start,
            "stop-guard": self._stop_guard,
            "start-guard": self._start_guard,
        }

    async def run(self) -> None:
        await self._bus.start()
        try:
            async with self._bus.connected_as(ADMIN) as admin:
                await apply(admin, FLEET)
            await self._start_guard()
            say({"url": self._bus.url})
            while command := await asyncio.to_thread(sys.stdin.readline):
                await self._did[command.strip()]()
                say({"did": command.strip()})
            await self._stop_guard()
        finally:
            await self._bus.server.kill()

    async def _start_guard(self) -> None:
        self._working = contextlib.AsyncExitStack()
        bus = await self._working.enter_async_context(self._bus.connected_as(GUARD))
        guard = Guard(bus, identity=f"{GUARD}-1")
        task = asyncio.create_task(guard.run())
        self._working.callback(task.cancel)
        self._working.push_async_callback(guard.drain, 5.0)
        await until(lambda: guard.ready)

    async def _stop_guard(self) -> None:
        await self._working.aclose()


if __name__ == "__main__":
    configure_logging("json", "critical")
    asyncio.run(Mesh(Path(sys.argv[1])).run())
