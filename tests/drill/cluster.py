"""Three servers that keep each stream three times, in the place of a fleet's one server."""

import asyncio
import json
import os
import signal
import subprocess
import time
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from mesh.bus.roles import server_config
from mesh.errors import ServerFailed
from mesh.local.server import Lifecycle, ParentDeath, lasting_port, server_binary
from tests.drill.evidence import SERVER
from tests.drill.network import Network

SERVERS = 3
CURRENT_S = 90.0
"""How long a server may take until it has all that the others have."""
_GREETING = "authorization { timeout: 30 }"
_PATIENCE_S = 30.0
_LOOK_S = 0.1
_TIMEOUT_S = 2.0
_TAIL_LINES = 12
_TAKEN = "bind: address already in use"
_HEAP = "512MiB"


class Place(NamedTuple):
    """Where a server listens, and how a command begins that runs there."""

    clients: str
    monitor: str
    routes: str
    inside: tuple[str, ...] = ()


class Node:
    """One server of a cluster."""

    def __init__(self, name: str, place: Place, configuration: str, directory: Path) -> None:
        self.name = name
        self.place = place
        self.store = directory / name
        self.log = directory / f"{name}.log"
        self._path = directory / f"{name}.conf"
        self._path.write_text(configuration)
        self._guard = ParentDeath(signal.SIGTERM)
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        if self._process is None:
            raise ServerFailed(f"{self.name} is not started")
        return self._process.pid

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    async def start(self) -> None:
        """Start it and wait until its monitoring answers. Raises ServerFailed."""
        give_up_at = time.monotonic() + _PATIENCE_S
        self._spawn()
        while await self.seen("varz") is None:
            if not self.running and (_TAKEN not in self._tail()[-1] or time.monotonic() > give_up_at):
                raise ServerFailed(f"{self.name} ended while it was starting", self._tail())
            await asyncio.sleep(_LOOK_S)
            if not self.running:
                self._spawn()

    def _spawn(self) -> None:
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [*self.place.inside, str(server_binary()), "-c", str(self._path)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=os.environ | {"GOMEMLIMIT": _HEAP},
                start_new_session=True,
                preexec_fn=self._guard.preexec,
            )
        self._guard.watch(self._process.pid)

    def send(self, number: signal.Signals) -> None:
        if self.running:
            os.kill(self.pid, number)

    async def end(self, number: signal.Signals) -> None:
        """End it with a signal, and with SIGKILL if that is not enough. Idempotent."""
        if self._process is not None:
            self.send(number)
            self.send(signal.SIGCONT)
            try:
                await asyncio.to_thread(self._process.wait, _PATIENCE_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
                await asyncio.to_thread(self._process.wait)
        self._guard.release()

    async def seen(self, page: str) -> dict[str, Any] | None:
        """Return a page of its monitoring; None if nothing answers, or it says that something is wrong."""
        return await asyncio.to_thread(self._seen, page)

    def _seen(self, page: str) -> dict[str, Any] | None:
        try:
            with urllib.request.urlopen(f"http://{self.place.monitor}/{page}", timeout=_TIMEOUT_S) as answer:
                return dict(json.load(answer))
        except (OSError, ValueError):
            return None

    def _tail(self) -> tuple[str, ...]:
        return tuple(self.log.read_text(errors="replace").rstrip().splitlines()[-_TAIL_LINES:]) or ("",)


class Cluster(Lifecycle):
    """`async with Cluster(accounts, directory) as cluster:` then connect to `cluster.url`.

    It has what a fleet asks of its server. Without a network the servers listen on the loopback interface,
    and cannot be cut off.
    """

    def __init__(self, accounts: str, directory: Path, network: Network | None = None) -> None:
        self._accounts = accounts
        self._network = network
        self._directory = directory
        self.nodes: dict[str, Node] = {}
        self.identity = SERVER
        self.log = directory
        self._ended = asyncio.Event()

    # --- what a fleet asks ------------------------------------------------------------------------------

    @property
    def url(self) -> str:
        return ",".join(f"nats://{node.place.clients}" for node in self.nodes.values())

    @property
    def pid(self) -> int:
        return next(iter(self.nodes.values())).pid

    @property
    def running(self) -> bool:
        return any(node.running for node in self.nodes.values())

    async def ended(self) -> int:
        await self._ended.wait()
        return 0

    async def start(self) -> None:
        """Start every server and wait until they have met. Does nothing if they run."""
        if self.running:
            return
        self._directory.mkdir(parents=True, exist_ok=True)
        if self._network is not None:
            await self._network.start()
        if not self.nodes:
            self.nodes = self._make()
        await asyncio.gather(*(node.start() for node in self.nodes.values()))
        async with asyncio.timeout(CURRENT_S):
            while await self.behind():  # noqa: ASYNC110 - other processes
                await asyncio.sleep(_LOOK_S)

    async def stop(self) -> None:
        """End every server, then take the network down. Idempotent."""
        await self._end(signal.SIGTERM)

    async def kill(self) -> None:
        await self._end(signal.SIGKILL)

    async def _end(self, number: signal.Signals) -> None:
        self._ended.set()
        try:
            await asyncio.gather(*(node.end(number) for node in self.nodes.values()))
        finally:
            if self._network is not None:
                await self._network.stop()

    def _make(self) -> dict[str, Node]:
        names = [f"nats-{number + 1}" for number in range(SERVERS)]
        places = [self._place(number) for number in range(SERVERS)]
        routes = json.dumps([f"nats://{place.routes}" for place in places])
        return {
            name: Node(name, place, self._configuration(name, place, routes), self._directory)
            for name, place in zip(names, places, strict=True)
        }

    def _place(self, number: int) -> Place:
        if self._network is None:
            clients, monitor, routes = (f"127.0.0.1:{lasting_port()}" for _ in range(3))
            return Place(clients, monitor, routes)
        clients, routes = self._network.clients_host(number), self._network.routes_host(number)
        inside = self._network.inside(number)
        return Place(f"{clients}:4222", f"{clients}:8222", f"{routes}:6222", inside)

    def _configuration(self, name: str, place: Place, routes: str) -> str:
        """Return what a deployment generates for a server of three, without TLS."""
        cluster = f'cluster {{ name: drill, listen: "{place.routes}", routes: {routes}, no_advertise: true }}'
        return server_config(
            self._accounts,
            store=self._directory / name,
            listen=place.clients,
            http=place.monitor,
            server_name=name,
            extra=f"{_GREETING}\n{cluster}",
        )

    # --- faults -----------------------------------------------------------------------------------------

    async def cut(self, name: str, *, clients: bool) -> None:
        """Cut a server off from the others, and from its clients if these are to be cut off, too."""
        assert self._network is not None
        await self._network.cut(list(self.nodes).index(name), clients=clients)

    async def mend(self, name: str) -> None:
        """Undo what keeps a server away: start it, let it go on, join its links."""
        node = self.nodes[name]
        node.send(signal.SIGCONT)
        if self._network is not None:
            await self._network.heal(list(self.nodes).index(name))
        if not node.running:
            await node.start()

    # --- who has what -----------------------------------------------------------------------------------

    async def current(self) -> list[str]:
        """Wait until every server has all that the others have now; return what is missing after a while."""
        give_up_at = time.monotonic() + CURRENT_S
        least: dict[str, int] = {}
        while missing := await self.behind(least):
            if time.monotonic() > give_up_at:
                return missing
            await asyncio.sleep(_LOOK_S)
        return []

    async def behind(self, least: dict[str, int] | None = None) -> list[str]:
        """Return what servers do not have, or do not answer, in a line each.

        Args:
            least: the last sequence of each stream that each server has to have. The first look that sees all
                servers fills it.
        """
        nodes = list(self.nodes.values())
        health = await asyncio.gather(*(node.seen("healthz") for node in nodes))
        missing = [
            f"{node.name} is not healthy" for node, well in zip(nodes, health, strict=True) if not well
        ]
        if missing:
            return missing
        pages = await asyncio.gather(*(node.seen("jsz?streams=true&consumers=true") for node in nodes))
        reports = {node.name: page for node, page in zip(nodes, pages, strict=True) if page is not None}
        if len(reports) < len(nodes):
            return ["not every server answers"]
        return _missing(reports, {} if least is None else least)

    async def states(self) -> dict[str, dict[str, Mapping[str, Any]]]:
        """Return the state of each stream as each server has it, by server and stream."""
        pages = {name: await node.seen("jsz?streams=true") for name, node in self.nodes.items()}
        return {
            name: {stream: detail.get("state", {}) for stream, detail in streams(page or {}).items()}
            for name, page in pages.items()
        }


def streams(page: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """Return the streams that a server's report (`jsz`) tells of, by name."""
    accounts = page.get("account_details") or ()
    return {detail["name"]: detail for each in accounts for detail in each.get("stream_detail") or ()}


def _missing(reports: Mapping[str, Mapping[str, Any]], least: dict[str, int]) -> list[str]:
    """Return what reports of all servers say that some do not have."""
    found: list[str] = []
    leaders = {(page.get("meta_cluster") or {}).get("leader") or "" for page in reports.values()}
    if len(leaders) != 1 or not leaders <= reports.keys():
        return ["the servers do not agree on who leads them"]
    [leader] = leaders
    found += _followers("the cluster", reports[leader]["meta_cluster"], len(reports) - 1)
    held = {name: streams(page) for name, page in reports.items()}
    known = sorted({stream for each in held.values() for stream in each})
    if not least:
        least |= {
            stream: max(int(each[stream]["state"]["last_seq"]) for each in held.values() if stream in each)
            for stream in known
        }
    for stream in known:
        found += _of_stream(stream, held, least.get(stream, 0))
    return found


def _of_stream(stream: str, held: Mapping[str, Mapping[str, Any]], least: int) -> list[str]:
    found: list[str] = []
    led = False
    for name, each in held.items():
        detail = each.get(stream)
        if detail is None:
            found.append(f"{name} does not have {stream}")
            continue
        if (last := int(detail["state"]["last_seq"])) < least:
            found.append(f"{name} has {stream} up to {last} of {least}")
        if (detail.get("cluster") or {}).get("leader") == name:
            led = True
            found += _followers(stream, detail["cluster"], len(held) - 1)
        for consumer in detail.get("consumer_detail") or ():
            cluster = consumer.get("cluster") or {}
            if cluster.get("leader") == name:
                found += _followers(f"{stream}, {consumer['name']}", cluster, len(held) - 1)
    return found if led else [*found, f"{stream} has no leader"]


def _followers(what: str, group: Mapping[str, Any], count: int) -> list[str]:
    replicas: Sequence[Mapping[str, Any]] = group.get("replicas") or ()
    found = [
        f"{each['name']} is behind in {what}"
        for each in replicas
        if each.get("offline") or not each.get("current")
    ]
    return found if len(replicas) == count else [*found, f"{what} has {len(replicas) + 1} servers"]
