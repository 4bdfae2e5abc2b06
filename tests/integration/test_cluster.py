"""Three servers and what doctor says of them; a member that joins while the others work."""

import asyncio
import contextlib
import os
import re
import shutil
import signal
from collections.abc import AsyncIterator, Sequence, Set
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest
import pytest_asyncio

from mesh.bus.connection import Bus, connect
from mesh.bus.consumer import Message, Puller
from mesh.bus.credentials import KeyPair, keyring, new_key
from mesh.bus.event_log import JetStreamLog
from mesh.bus.lane import is_served, statistics
from mesh.bus.nats_protocol import Incoming
from mesh.bus.provision import provision
from mesh.bus.reader import StoredMessage, bounds
from mesh.bus.roles import GET, accounts_config, names
from mesh.bus.streams import GUARD_GROUP, Storage, inbox_consumer, proposals_of, queue_consumers
from mesh.errors import PASSING, ApiError, BusError, NoResponders, ServerFailed
from mesh.local.server import EmbeddedServer, lasting_port
from mesh.ops.health import Finding, Look, examine, run
from mesh.ops.servers import jsz_of, varz_of
from mesh.settings import Access
from mesh.testing import EmbeddedBus
from protocol.wire.config import AgentEntry
from protocol.wire.ids import AgentName
from protocol.wire.subjects import card, evt, live, note, prop
from tests.servers import FLEET, PATIENCE_S, eventually, fresh, until

NODES = ("n1", "n2", "n3")


class Cluster:
    """Three servers that keep each stream three times; n3 does not sync each message."""

    def __init__(self, servers: Sequence[EmbeddedServer], keys: dict[str, KeyPair], directory: Path) -> None:
        self.servers = servers
        self.keys = keys
        self.directory = directory

    def monitors(self, *nodes: int) -> str:
        return ",".join(self.servers[node].monitor_url for node in nodes)

    async def connect(self, name: str = "admin", node: int = 0) -> Bus:
        return await connect(self.servers[node].url, name=name, seed=self.keys[name].credential, wait=True)

    async def told(self, *nodes: int) -> list[Finding]:
        """Return what is said with the monitoring of some servers."""
        async with await self.connect() as bus:
            return await run("durability", Look(bus, await varz_of(self.monitors(*nodes))))


async def started(
    stack: contextlib.AsyncExitStack, accounts: str, directory: Path, extra: str = ""
) -> list[EmbeddedServer]:
    """Start the servers of a cluster; anew, if another process took a port that was free.

    Args:
        extra: more lines for each configuration; `{store}` in them is the server's folder.
    """
    while True:
        ports = [lasting_port() for _ in NODES]
        routes = ", ".join(f"nats://127.0.0.1:{port}" for port in ports)
        servers = [
            EmbeddedServer(
                accounts,
                directory / name,
                sync_always=name != "n3",
                name=name,
                # Members go where their URL says, as with the files that `mesh setup` writes.
                extra=f"cluster {{ name: c, no_advertise: true, listen: 127.0.0.1:{port}, "
                f"routes: [{routes}] }}\n" + extra.replace("{store}", str(directory / name)),
            )
            for name, port in zip(NODES, ports, strict=True)
        ]
        came = await asyncio.gather(*(server.start() for server in servers), return_exceptions=True)
        wrong = [each for each in came if isinstance(each, BaseException)]
        if not wrong:
            for server in servers:
                stack.push_async_exit(server)
            return servers
        await asyncio.gather(*(server.kill() for server in servers))
        if not all(isinstance(each, ServerFailed) and each.code == "server.port_taken" for each in wrong):
            raise wrong[0]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def cluster(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Cluster]:
    directory = tmp_path_factory.mktemp("cluster")
    keys = keyring(directory / "keys", names(FLEET))
    accounts = accounts_config(FLEET, {name: key.public for name, key in keys.items()})
    async with contextlib.AsyncExitStack() as stack:
        servers = await started(stack, accounts, directory)
        mine = Cluster(servers, keys, directory)
        bus = await stack.enter_async_context(await mine.connect())

        async def provisioned() -> bool:
            try:
                await provision(bus, FLEET, Storage(replicas=3))
            except BusError:  # the servers have not met yet, or elect
                return False
            return True

        await eventually(provisioned)

        async def current() -> bool:
            return [each.state for each in await run("durability", Look(bus))] == ["unknown"]

        await eventually(current)
        yield mine
        await asyncio.gather(*(server.kill() for server in servers))


async def test_everything_crosses_between_accounts_on_different_servers(cluster: Cluster) -> None:
    async with contextlib.AsyncExitStack() as stack:
        members = (("c1", 0), ("guard", 1), ("a", 2), ("op", 0), ("b", 1))
        await crosses(*[await stack.enter_async_context(await cluster.connect(*each)) for each in members])


async def crosses(client: Bus, guard: Bus, agent: Bus, operator: Bus, other: Bus) -> None:
    request, shown, told, changed = fresh(), list[Incoming](), list[Incoming](), list[Incoming]()
    work: asyncio.Queue[Message] = asyncio.Queue()

    async def take(message: Message) -> None:
        await message.ack_sync()
        work.put_nowait(message)

    await client.subscribe("mesh.live.c1.>", shown.append)
    await client.subscribe("mesh.note.c1.*", told.append)
    await other.subscribe("mesh.changed.card.*", changed.append)
    await agent.subscribe("$SRV.PING.a", lambda m: agent.send(m.reply, b'{"name":"a"}') and None)
    await agent.subscribe("$SRV.STATS.a", lambda m: agent.send(m.reply, b'{"name":"a"}') and None)
    puller = Puller(agent, "LOG", inbox_consumer("a"), take, slots=1, expires_s=4.0)
    await agent.retry_unavailable(puller.start)

    await client.publish_durable(prop("c1", request), b"{}")
    opened = await JetStreamLog(guard).append("a", request, b'{"n":0}', after=0)
    assert (await asyncio.wait_for(work.get(), PATIENCE_S)).stream_seq == opened
    await agent.publish_durable(prop("a", request), b"{}")
    await agent.publish_durable(card("a"), b"{}")
    await JetStreamLog(guard).append("c1", request, b'{"n":1}', after=opened)

    async def answered() -> bool:
        return (await client.request(GET + "LOG." + evt("c1", request))).data == b'{"n":1}'

    await eventually(answered)
    await until(lambda: note("c1", request) in [message.subject for message in told])
    await until(lambda: [message.subject for message in changed] == ["mesh.changed.card.a"])

    async def heard() -> bool:
        await agent.publish(live("c1", request, "a", "t"), b"a token")
        await agent.flush()
        return bool(shown)

    await eventually(heard)  # what a client listens to becomes known to the other servers in a moment
    await eventually(lambda: is_served(guard, "a"))
    assert not await is_served(guard, "e")

    async def told_of() -> bool:
        return await statistics(operator, "a") == [b'{"name":"a"}']

    await eventually(told_of)
    await puller.close()


async def test_without_monitoring_nothing_is_said_to_be_durable(cluster: Cluster) -> None:
    [finding] = await cluster.told()
    assert finding.state == "unknown"
    assert "kept by 3 servers" in finding.text
    assert "durable" not in finding.text


async def test_servers_that_were_not_seen_are_named(cluster: Cluster) -> None:
    [finding] = await cluster.told(0)
    assert finding.state == "unknown"
    assert "sync_interval is always on n1" in finding.text
    unseen = finding.text.partition("not seen: ")[2]
    assert "n2" in unseen
    assert "n3" in unseen
    assert "durable" not in finding.text


async def test_one_server_that_does_not_sync_is_found_and_named(cluster: Cluster) -> None:
    [finding] = await cluster.told(0, 1, 2)
    assert finding.state == "found"
    assert "not fsynced before it is acknowledged (sync_interval of n3 (120 s))" in finding.text
    assert "not seen" not in finding.text
    [finding] = await cluster.told(2)
    assert finding.state == "found"
    assert "not seen: " in finding.text


async def test_the_whole_check_goes_through_a_cluster(cluster: Cluster) -> None:
    access = Access(cluster.servers[1].url, "op", cluster.directory / "keys" / "op.nk")
    findings = await examine(access, None, cluster.monitors(0, 1, 2))
    [told] = [finding for finding in findings if finding.check == "durability"]
    assert told.state == "found"
    assert "n3 (120 s)" in told.text


async def test_a_server_whose_disk_lost_events_is_named_until_it_has_them_again(cluster: Cluster) -> None:
    """It is healthy, and the others take it for current."""
    hurt, monitors = cluster.servers[1], cluster.monitors(0, 1, 2)

    async def told() -> list[str]:
        async with await cluster.connect() as bus:
            look = Look(bus, await varz_of(monitors), stores=await jsz_of(monitors))
            return [finding.text for finding in await run("durability", look)]

    async with await cluster.connect("guard") as guard:
        log = JetStreamLog(guard)

        async def append(request: str) -> int:
            return await log.append("a", request, b"{" + b" " * 60_000 + b"}", after=0)

        for request in [fresh() for _ in range(200)]:  # more than a block of the server's store has room for
            await guard.retry_unavailable(partial(append, request))
    await hurt.stop()  # it writes down how far it has come, and will ask the others for nothing older
    first, *others = sorted(hurt.store.glob("jetstream/*/streams/LOG/msgs/*.blk"))
    assert others
    stored = bytearray(first.read_bytes())
    stored[len(stored) // 2] ^= 1
    first.write_bytes(stored)
    first.with_name("index.db").unlink()  # else it does not look into the block
    await hurt.start()
    lacks = re.compile(r"n2 lacks \d+ events of the log: its disk was damaged; .* an empty store, ")

    async def named() -> bool:
        return any(lacks.match(each) for each in await told())

    await eventually(named)
    await hurt.stop()
    shutil.rmtree(hurt.store / "jetstream")
    await hurt.start()

    async def mended() -> bool:
        found = await told()
        return len(found) == 1 and "n3 (120 s)" in found[0]

    await eventually(mended)


async def test_a_stream_on_fewer_servers_and_a_server_that_is_away_are_found(cluster: Cluster) -> None:
    fewer = "kept by fewer servers than the log (3): STEPS-a (1); run `mesh setup`"

    async def told(bus: Bus) -> list[str]:
        return [finding.text for finding in await run("durability", Look(bus))]

    async with await cluster.connect() as bus:
        config = (await bus.api("STREAM.INFO.STEPS-a"))["config"]
        await bus.api("STREAM.UPDATE.STEPS-a", {**config, "num_replicas": 1})
        assert fewer in await told(bus)

        async def alone() -> bool:
            with contextlib.suppress(BusError):  # they elect
                return "replicas" not in (await bus.api("STREAM.INFO.STEPS-a"))["cluster"]
            return False

        await eventually(alone)
        holder = NODES.index((await bus.api("STREAM.INFO.STEPS-a"))["cluster"]["leader"])
    await cluster.servers[holder].kill()
    async with await cluster.connect(node=(holder + 1) % len(NODES)) as bus:
        silent = "nobody answers for STEPS-a: no server of theirs is up, or they elect"
        away = f"away, or without everything yet: {NODES[holder]}"

        async def found() -> bool:
            return {silent, away} <= set(await told(bus))

        await eventually(found)

    viewing = await cluster.connect("audit", (holder + 1) % len(NODES))
    async with viewing as viewer:
        with pytest.raises(NoResponders, match="STEPS-a has no leader"):
            await bounds(viewer, "STEPS-a")
        with pytest.raises(ApiError, match="NONE not found"):
            await bounds(viewer, "NONE")
        waiting = asyncio.create_task(viewer.retry_unavailable(lambda: bounds(viewer, "STEPS-a")))
        await cluster.servers[holder].start()
        assert await asyncio.wait_for(waiting, PATIENCE_S) == (1, 0)
        assert not viewer.denials


async def test_a_viewer_waits_for_a_log_without_a_leader(cluster: Cluster) -> None:
    request = fresh()
    async with await cluster.connect("guard") as guard:
        log = JetStreamLog(guard)
        seq = await guard.retry_unavailable(lambda: log.append("a", request, b'{"n":0}', after=0))
    async with await cluster.connect("audit") as viewer:

        async def leaderless() -> bool:
            try:  # what else it raises fails the test: its callers would not try again
                await bounds(viewer, "LOG")
            except PASSING:
                return True
            return False

        await asyncio.gather(*(server.kill() for server in cluster.servers[1:]))
        await eventually(leaderless)
        reading = asyncio.create_task(last_of(viewer))
        await asyncio.gather(*(server.start() for server in cluster.servers[1:]))
        assert (await asyncio.wait_for(reading, PATIENCE_S)).seq == seq


async def last_of(viewer: Bus) -> StoredMessage:
    """Read the whole log, as the page and `mesh log` do."""
    found = [each async for each in JetStreamLog(viewer).follow(tail=False)]
    return found[-1]


async def reload(mesh: EmbeddedBus) -> None:
    """Let the server read its configuration again, and wait until it has."""
    done = b"Reloaded server configuration"
    before = mesh.server.log.read_bytes().count(done)
    os.kill(mesh.server.pid, signal.SIGHUP)
    await until(lambda: mesh.server.log.read_bytes().count(done) > before)


async def _stored(client: Bus, request: str) -> None:
    """Store a message in a queue, as soon as that has a leader: the test before may have killed it."""

    async def stored() -> bool:
        try:
            await client.publish_durable(prop("c1", request), b"{}")
        except NoResponders:  # so it was not stored
            return False
        return True

    await eventually(stored)


async def test_what_waits_for_guards_outlives_the_end_of_all_servers_at_once(cluster: Cluster) -> None:
    """They keep guards' consumers in memory. What one had delivered is forgotten, and comes again."""
    async with await cluster.connect("c1") as client, await cluster.connect() as admin:
        left = {fresh() for _ in range(20)}
        for request in left:
            await _stored(client, request)
        await _take(cluster, left)

        for end in (EmbeddedServer.kill, EmbeddedServer.stop):
            await asyncio.gather(*(end(each) for each in cluster.servers))
            await asyncio.gather(*(each.start() for each in cluster.servers))

            async def all_there() -> bool:
                try:
                    found = (await admin.api("CONSUMER.LIST.PROP-c1"))["consumers"]
                except BusError:
                    return False
                config = [each["config"] for each in found]
                return len(config) == FLEET.partitions and all(each["mem_storage"] for each in config)

            await eventually(all_there)
            await _take(cluster, left)
        assert not (await _config(admin, "LOG.in-a")).get("mem_storage")


async def test_a_mesh_that_goes_back_to_one_replica_keeps_what_waits(cluster: Cluster) -> None:
    async with await cluster.connect("c1") as client, await cluster.connect() as admin:
        left = {fresh() for _ in range(20)}
        for request in left:
            await _stored(client, request)
        for replicas in (1, 3):

            async def provisioned(replicas: int = replicas) -> bool:
                try:
                    return not await provision(admin, FLEET, Storage(replicas=replicas))
                except BusError:  # a stream is still moving
                    return False

            await eventually(provisioned)
            config = await _config(admin, "PROP-c1.g0")
            assert bool(config.get("mem_storage")) is (replicas == 3)
        await _take(cluster, left)


async def _config(admin: Bus, consumer: str) -> dict[str, Any]:
    """Return how a consumer is set up, once it has a leader that answers."""
    answers: list[dict[str, Any]] = []

    async def answered() -> bool:
        with contextlib.suppress(BusError):
            answers.append(await admin.api(f"CONSUMER.INFO.{consumer}"))
        return bool(answers)

    await eventually(answered)
    return dict(answers[0]["config"])


async def _take(cluster: Cluster, requests: Set[str]) -> None:
    """Take from all partitions of a client's queue until all of these came; acknowledge nothing."""
    taken: set[str] = set()

    async def take(message: Message) -> None:
        taken.add(message.subject.rpartition(".")[2])

    async with await cluster.connect("guard") as guard:
        pullers = [
            Puller(
                guard,
                proposals_of("c1"),
                consumer,
                take,
                slots=100,
                expires_s=2.0,
                group=GUARD_GROUP,
                priority=0,
            )
            for consumer in queue_consumers(FLEET.partitions)
        ]
        for each in pullers:
            await guard.retry_unavailable(each.start)
        await until(lambda: taken >= requests)
        for each in pullers:
            await each.close()


async def test_an_agent_joins_while_the_others_work(own_server: EmbeddedBus) -> None:
    mesh = own_server
    client, guard, agent = [await mesh.connect_as(name) for name in ("c1", "guard", "a")]
    got: asyncio.Queue[Message] = asyncio.Queue()

    async def take(message: Message) -> None:
        await message.ack_sync()
        got.put_nowait(message)

    puller = Puller(agent, "LOG", inbox_consumer("a"), take, slots=1, expires_s=3600.0)
    await puller.start()
    shown: list[str] = []
    await client.subscribe("mesh.live.c1.>", lambda message: shown.append(message.subject))

    wider = msgspec.structs.replace(FLEET, agents={**FLEET.agents, "new": AgentEntry(name=AgentName("new"))})
    mesh.keys["new"] = new_key()
    mesh.server._accounts = accounts_config(wider, {name: key.public for name, key in mesh.keys.items()})
    mesh.server._write_configuration()
    for _ in range(2):  # the first time the server does not yet connect what new accounts import
        await reload(mesh)

    async with mesh.connected_as("admin") as admin:
        await provision(admin, wider)
    async with mesh.connected_as("new") as joiner:
        await joiner.publish_durable(prop("new", fresh()), b"{}")
        await joiner.subscribe("$SRV.PING.new", lambda m: joiner.send(m.reply, b"{}") and None)
        assert await is_served(guard, "new")

    assert [bus.counters.disconnects for bus in (client, guard, agent)] == [0, 0, 0]
    request = fresh()
    await JetStreamLog(guard).append("a", request, b'{"n":0}', after=0)
    message = await asyncio.wait_for(got.get(), PATIENCE_S)  # by the pull that waited all along
    assert (message.delivered, message.subject) == (1, f"mesh.evt.a.{request}")
    await agent.publish(live("c1", request, "a", "t"), b"a token")
    await until(lambda: shown == [live("c1", request, "a", "t")])
    await puller.close()
    for bus in (client, guard, agent):
        await bus.close()
