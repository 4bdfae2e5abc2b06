"""A crew: the services of one test as processes of their own, what they log, and the audit at the end."""

import asyncio
import contextlib
import json
import os
import signal
import sys
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from mesh.agent import _executor
from mesh.bus import consumer, link, stores
from mesh.bus.connection import Bus
from mesh.bus.credentials import seed_file
from mesh.bus.event_log import JetStreamLog
from mesh.bus.streams import DEFAULT_STORAGE, Storage
from mesh.client import Client, Outcome
from mesh.guard import context, service
from mesh.testing import EmbeddedBus
from protocol.wire import subjects
from protocol.wire.config import AgentEntry, Fleet, Policy
from protocol.wire.ids import AgentName, RequestId
from tests.guard.stage import check
from tests.servers import PATIENCE_S, ROOT, eventually, queues, until

FLEET = Fleet(
    name="trouble",
    entry=AgentName("a"),
    agents={name: AgentEntry(name=AgentName(name)) for name in "ab"},
    clients=(AgentName("c1"),),
    human=True,
    lease_s=2.0,
    guard_lease_s=1.5,
)
STEADY = msgspec.structs.replace(FLEET, lease_s=60.0, guard_lease_s=60.0)
"""For tests that count turns: on a busy machine a process may sleep through a lease of 2 s and begin anew."""
PATIENT = msgspec.structs.replace(FLEET, lease_s=10.0, guard_lease_s=10.0)
"""For a test that waits for leases to end, and counts what is said because of them."""
KINDS = (
    *(link.DISCONNECTED, link.FULL, link.ABSENT, link.SILENT),
    *(consumer.PULL_REFUSED, consumer.PULL_SILENT),
    *(stores.NO_FLEET, context.UNREACHABLE, service.NOT_NOW, _executor.NOT_STORED),
)
TROUBLES = {kind.begins for kind in KINDS}


class Service:
    """A guard's or an agent's process, started as users start it."""

    def __init__(self, identity: str, log: Path, process: asyncio.subprocess.Process) -> None:
        self.identity = identity
        self._log = log
        self._process = process

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def running(self) -> bool:
        return self._process.returncode is None

    def lines(self) -> list[dict[str, Any]]:
        """Return what it has logged; a line that is not whole yet is left out."""
        text = self._log.read_bytes()
        return [json.loads(line) for line in text[: text.rfind(b"\n") + 1].splitlines() if line[:1] == b"{"]

    def said(self, event: str) -> list[dict[str, Any]]:
        return [line for line in self.lines() if line["event"] == event]

    async def says(self, event: str, count: int = 1) -> list[dict[str, Any]]:
        """Wait until it has logged an event so often."""
        await until(lambda: len(self.said(event)) >= count or not self.running, PATIENCE_S)
        found = self.said(event)
        assert len(found) >= count, (self.identity, event, self._log.read_text()[-2000:])
        return found

    async def probe(self, path: str = "/readyz") -> tuple[int, dict[str, Any]]:
        """Return status and body of a page."""
        url = (await self.says("health_listening"))[0]["url"]
        host, port = url.removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(f"GET {path} HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
        head, _, body = (await reader.read()).partition(b"\r\n\r\n")
        writer.close()
        return int(head.split()[1]), json.loads(body)

    async def reasons(self) -> list[str]:
        """Return the codes of why it is not ready."""
        return [each["code"] for each in (await self.probe())[1]["reasons"]]

    async def ready(self) -> None:
        await self.stands(lambda status, codes: status == 200)

    async def stands(self, enough: Callable[[int, list[str]], bool]) -> None:
        """Wait until `/readyz` is as wanted: status and the reasons' codes."""

        async def now() -> bool:
            status, body = await self.probe()
            return enough(status, [each["code"] for each in body["reasons"]])

        await eventually(now, PATIENCE_S)

    def signal(self, number: int) -> None:
        self._process.send_signal(number)

    async def ended(self) -> int:
        async with asyncio.timeout(PATIENCE_S):
            return await self._process.wait()

    async def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()
        await self._process.wait()

    def conditions(self) -> Counter[str]:
        """Count the beginnings of conditions in its log: each is logged once."""
        return Counter(line["event"] for line in self.lines() if line["event"] in TROUBLES)


class Crew:
    """Everybody who works on one server."""

    def __init__(self, mesh: EmbeddedBus, directory: Path) -> None:
        self.mesh = mesh
        self.directory = directory
        self.ledger = directory / "ledger"
        self.services: dict[str, Service] = {}
        self.environment: dict[str, str] = {}
        """Added to what every service gets."""
        self._stack = contextlib.AsyncExitStack()
        self._starts = 0

    # --- who is there -----------------------------------------------------------------------------

    async def guard(self, identity: str, *, url: str = "") -> Service:
        arguments = ("guard", "run", "--identity", identity, "--health", "127.0.0.1:0")
        return await self.start("guard", identity, arguments, url=url, MESH_HEALTH="127.0.0.1:1")

    async def agent(self, name: str, identity: str = "", *, url: str = "", **environment: str) -> Service:
        reference = f"tests.trouble.agents:{name}"
        return await self.start(name, identity or name, ("agent", "run", reference), url=url, **environment)

    async def start(
        self,
        name: str,
        identity: str,
        arguments: Sequence[str],
        *,
        url: str = "",
        module: str = "mesh",
        **environment: str,
    ) -> Service:
        """Start a service; it need not be ready when this returns. `module` is run in place of `mesh`."""
        self._starts += 1
        log = self.directory / f"{self._starts}-{identity}.log"
        inherited = {key: value for key, value in os.environ.items() if not key.startswith("MESH_")}
        own = {
            "NATS_URL": url or self.mesh.url,
            "MESH_NAME": name,
            "MESH_CREDENTIALS": str(seed_file(self.directory / "mesh" / "keys", name)),
            "MESH_LOG_FORMAT": "json",
            "MESH_HEALTH": "127.0.0.1:0",
            "LEDGER": str(self.ledger),
        }
        with log.open("wb") as errors:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", module, *arguments),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=errors,
                stderr=errors,
                cwd=ROOT,
                env=inherited | own | self.environment | environment,
            )
        self.services[identity] = Service(identity, log, process)
        return self.services[identity]

    async def all_ready(self) -> None:
        await asyncio.gather(*(each.ready() for each in self.services.values() if each.running))

    async def has_waited(self) -> bool:
        """Return True if a call of a service has timed out, and nothing was answered since.

        The log does not tell: a condition that comes back before it has settled is not logged again.
        """
        reasons = await asyncio.gather(*(each.reasons() for each in self.services.values()))
        return any(link.SILENT.begins in each for each in reasons)

    async def bus(self, name: str) -> Bus:
        return await self._stack.enter_async_context(self.mesh.connected_as(name))

    async def client(self) -> Client:
        return await Client.on(await self.bus("c1"), "c1")

    # --- load -------------------------------------------------------------------------------------

    @contextlib.asynccontextmanager
    async def load(self, client: Client, *, callers: int = 8) -> AsyncIterator["Load"]:
        """Keep so many requests under way for as long as the block lasts; then wait for all of them."""
        load = Load(client)
        tasks = [asyncio.create_task(load.call()) for _ in range(callers)]
        try:
            yield load
            load.enough = True
            async with asyncio.timeout(PATIENCE_S):
                await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    # --- what came of it --------------------------------------------------------------------------

    def world(self) -> list[str]:
        return self.ledger.read_text().splitlines() if self.ledger.exists() else []

    async def paid(self, request: RequestId) -> None:
        """Wait until `a` has done its effect for a request."""
        await until(lambda: any(line.startswith(f"pay {request} ") for line in self.world()))

    async def audit(self, outcomes: Sequence[Outcome]) -> None:
        """Assert that every request ended rightly, that each effect happened once, and every log holds."""
        assert outcomes
        assert Counter(each.status for each in outcomes) == {"completed": len(outcomes)}
        done = Counter(tuple(line.split()[:2]) for line in self.world() if line[:4] in ("pay ", "ship"))
        for each in outcomes:
            assert done[("pay", each.request)] == done[("ship", each.request)] == 1, each.request
        assert len(done) == 2 * len(outcomes)
        log = JetStreamLog(await self.bus("admin"))
        for each in outcomes:
            check(each.request, [stored.data for stored in await log.read(each.request)])

    async def drained_of_proposals(self) -> None:
        """Wait until every proposal is decided."""
        admin = await self.bus("admin")

        async def empty() -> bool:
            names = await queues(admin, "PROP")
            return not any([(await admin.api(f"STREAM.INFO.{each}"))["state"]["messages"] for each in names])

        await eventually(empty, PATIENCE_S)

    async def drained(self) -> None:
        """Wait until no proposal waits and no inbox event is unacknowledged."""
        admin = await self.bus("admin")

        await self.drained_of_proposals()

        async def empty() -> bool:
            infos = [await admin.api(f"CONSUMER.INFO.LOG.in-{name}") for name in "ab"]
            return not any(info["num_pending"] + info["num_ack_pending"] for info in infos)

        await eventually(empty, PATIENCE_S)

    # --- life -------------------------------------------------------------------------------------

    async def close(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.mesh.server.pid, signal.SIGCONT)
        await asyncio.gather(*(each.kill() for each in self.services.values()))
        await self._stack.aclose()
        await self.mesh.server.kill()


class Load:
    """A closed loop of callers, each with one request under way."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self.enough = False
        self.submitted: list[RequestId] = []
        self.outcomes: list[Outcome] = []

    async def call(self) -> None:
        while not self.enough:
            request = self._client.new_id()
            self.submitted.append(request)
            self.outcomes.append(await self.once(request))

    async def once(self, request: RequestId) -> Outcome:
        """Submit a request, again while nobody can say whether it was stored, and wait for its end."""
        await persist(lambda: self._client.submit("please", request=request))
        return await self._client.wait(request, timeout_s=PATIENCE_S)

    async def reaches(self, count: int) -> None:
        """Wait until so many more requests than now have ended."""
        wanted = len(self.outcomes) + count
        await until(lambda: len(self.outcomes) >= wanted, PATIENCE_S)


async def persist(attempt: Callable[[], Awaitable[Any]]) -> None:
    """Do something that may be done twice until it worked."""
    from mesh.errors import PASSING

    while True:
        try:
            await attempt()
        except PASSING:
            await asyncio.sleep(0.1)  # as a client would: the bus is away, and the test's own time ends it
        else:
            return


@contextlib.asynccontextmanager
async def crew(
    directory: Path,
    *,
    fleet: Fleet = FLEET,
    storage: Storage = DEFAULT_STORAGE,
    provision: bool = True,
    sync_always: bool = False,
) -> AsyncIterator[Crew]:
    """Give an empty crew on a server of its own; one that is to be killed needs `sync_always`."""
    mesh = EmbeddedBus(fleet, directory / "mesh", storage=storage, sync_always=sync_always)
    if provision:
        await mesh.start()
        await furnish(mesh)
    own = Crew(mesh, directory)
    try:
        yield own
    finally:
        await own.close()


async def furnish(mesh: EmbeddedBus) -> None:
    """Write the policy that requests name when they name none."""
    async with mesh.connected_as("admin") as admin:
        await admin.publish_durable(subjects.policy("default"), msgspec.json.encode(Policy()))
