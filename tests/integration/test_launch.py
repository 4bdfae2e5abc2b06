"""A mesh of processes: what dies is started again, also when that cannot be done at once."""

import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest
import pytest_asyncio

from mesh.bus.roles import GET
from mesh.fleet.file import parse_fleet
from mesh.local import fleet as launch
from mesh.local.fleet import LocalFleet
from mesh.model import ROUTING
from protocol.wire import subjects
from protocol.wire.notices import Card
from tests.servers import ROOT, until

GUARD = "guard-1"
FLEET = """
name = "alone"
entry = "front"
[agents.front]
[clients.app]
"""


class Kept(LocalFleet):
    """A server and a guard that are started again, and what is said of that."""

    def __init__(self, directory: Path) -> None:
        self.said: list[str] = []
        super().__init__(
            parse_fleet(FLEET), directory, sync_always=False, restart=True, on_trouble=self.said.append
        )

    async def says(self, what: str, times: int = 1) -> None:
        await until(lambda: sum(what in line for line in self.said) >= times)


@pytest_asyncio.fixture
async def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Kept]:
    monkeypatch.setattr(launch, "_RESTART_S", (0.01, 0.02))
    async with Kept(tmp_path / "mesh") as mesh:
        yield mesh


async def test_a_service_that_cannot_be_started_is_named_and_tried_again_until_it_runs(kept: Kept) -> None:
    guard = kept.services[GUARD]
    log = guard.log
    guard.log = kept.directory / "nowhere" / "guard.log"
    os.kill(guard.pid, signal.SIGKILL)
    await kept.says("guard-1 cannot be started, and is tried again: [Errno 2]", times=3)
    assert not guard.running
    guard.log = log
    await kept.says("guard-1 runs again as process")
    assert guard.running
    assert sum("was killed by SIGKILL" in line for line in kept.said) == 1


async def test_a_server_that_cannot_be_started_is_named_and_tried_again_until_it_runs(kept: Kept) -> None:
    accounts = kept.server._accounts
    kept.server._accounts = "nonsense {"
    os.kill(kept.server.pid, signal.SIGKILL)
    await kept.says("nats-server cannot be started, and is tried again: nats-server does not accept", times=2)
    kept.server._accounts = accounts
    await kept.says("nats-server runs again as process")
    async with await kept.connect_as("app"):
        assert kept.server.running


DRIVEN = """
name = "driven"
entry = "a"
[agents.a]
module = "tests.live.prompted:agent"
[clients.app]
[viewers.audit]
"""


async def test_services_do_not_share_what_is_of_one_process_and_a_key_lets_an_agent_ask(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MESH_HEALTH", "127.0.0.1:1")  # nobody may listen there
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-of-a-service")
    monkeypatch.delenv("MESH_MODEL", raising=False)
    file = parse_fleet(DRIVEN)
    async with LocalFleet(file, tmp_path / "mesh", sync_always=False, search=[ROOT]) as mesh:
        assert set(mesh.services) == {GUARD, "a"}
        async with await mesh.connect_as("audit") as audit:
            kept = await audit.request(f"{GET}CARDS.{subjects.card('a')}")
        assert msgspec.json.decode(kept.data, type=Card).model == ROUTING
