"""The embedded server: alone on its store, ready when it says so, gone when its parent is."""

import asyncio
import os
import signal
import socket
import sys
from pathlib import Path

import pytest

from mesh.bus.connection import connect
from mesh.errors import ServerFailed, ServerMisconfigured, ServerMissing, StoreInUse, Unreachable
from mesh.local import server as embedded
from mesh.local.server import EmbeddedServer, Guard
from mesh.ops.servers import varz_of
from mesh.testing import EmbeddedBus
from tests.servers import FLEET, alive, child, until


async def test_it_answers_as_soon_as_it_is_started_and_not_after_it_is_stopped(tmp_path: Path) -> None:
    server = EmbeddedServer("", tmp_path)
    async with server:
        pid = server.pid
        async with await connect(server.url, name="a") as bus:
            assert (await bus.api("INFO"))["streams"] == 0
    assert not server.running
    assert not alive(pid)
    with pytest.raises(Unreachable):
        await connect(server.url, name="a")


async def test_a_second_server_on_the_store_is_refused_and_the_first_goes_on(tmp_path: Path) -> None:
    async with EmbeddedServer("", tmp_path) as first:
        with pytest.raises(StoreInUse):
            await EmbeddedServer("", tmp_path, lock_wait_s=0.1).start()
        async with await connect(first.url, name="a") as bus:
            await bus.api("INFO")


async def test_the_store_is_free_again_after_a_crash(tmp_path: Path) -> None:
    first = EmbeddedServer("", tmp_path)
    await first.start()
    await first.kill()
    async with EmbeddedServer("", tmp_path) as second:
        assert second.running


@pytest.mark.parametrize("sync_always", [True, False], ids=["synced", "not-synced"])
async def test_what_was_acknowledged_is_there_after_kill_nine_and_on_the_same_port(
    tmp_path: Path, sync_always: bool
) -> None:
    async with EmbeddedServer("", tmp_path, sync_always=sync_always) as server:
        async with await connect(server.url, name="a") as bus:
            await bus.api("STREAM.CREATE.S", {"name": "S", "subjects": ["s"], "storage": "file"})
            acks = await asyncio.gather(*(bus.publish_durable("s", b"x") for _ in range(50)))
        url, pid = server.url, server.pid
        await server.kill()
        assert not alive(pid)
        await server.start()
        assert server.url == url
        async with await connect(server.url, name="a") as bus:
            state = (await bus.api("STREAM.INFO.S"))["state"]
    assert state["messages"] == len(acks) == 50
    assert state["last_seq"] == max(ack.seq for ack in acks)


async def test_a_client_that_a_busy_machine_keeps_has_time_for_its_credentials(tmp_path: Path) -> None:
    async with EmbeddedServer("", tmp_path, sync_always=False) as server:
        [seen] = await varz_of(server.monitor_url)
        assert seen["auth_timeout"] == 30  # else two seconds


async def test_the_shipped_configuration_says_whether_it_syncs(tmp_path: Path) -> None:
    for sync_always in (True, False):
        async with EmbeddedServer("", tmp_path, sync_always=sync_always) as server:
            host, port = server.monitor_url.removeprefix("http://").split(":")
            reader, writer = await asyncio.open_connection(host, int(port))
            writer.write(b"GET /varz HTTP/1.0\r\n\r\n")
            page = await reader.read()
            writer.close()
            await writer.wait_closed()
            assert (b'"sync_always": true' in page) is sync_always


@pytest.mark.parametrize("guard", ["signal", "pipe"])
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM], ids=["killed", "terminated"])
async def test_it_goes_when_its_parent_does(tmp_path: Path, guard: Guard, number: signal.Signals) -> None:
    async with child("tests.server_process", str(tmp_path), guard) as parent:
        server_pid = int((await parent.line("server")).split()[1])
        assert alive(server_pid)
        parent.signal(number)
        await parent.ended()
        await until(lambda: not alive(server_pid))
    async with EmbeddedServer("", tmp_path) as next_one:  # the store is free too
        assert next_one.running


async def test_a_stopped_server_leaves_no_watcher_behind(tmp_path: Path) -> None:
    server = EmbeddedServer("", tmp_path, parent_death="pipe")
    async with server:
        watcher = server._parent_death._watcher
        assert watcher is not None
        assert alive(watcher.pid)
    assert not alive(watcher.pid)


async def test_a_configuration_it_does_not_accept_is_named_with_the_servers_words(tmp_path: Path) -> None:
    with pytest.raises(ServerMisconfigured, match="no_such_setting") as refused:
        await EmbeddedServer("no_such_setting: 1", tmp_path).start()
    assert refused.value.log


async def test_a_server_that_ends_while_starting_is_an_error_with_its_log(tmp_path: Path) -> None:
    (tmp_path / "jetstream").write_text("a file where the server wants a directory")
    with pytest.raises(ServerFailed) as failed:
        await EmbeddedServer("", tmp_path).start()
    assert any("jetstream" in line.lower() for line in failed.value.log)


async def test_a_missing_binary_names_the_extra_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "bin" / "python"))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ServerMissing, match=r"handoff-mesh\[server\]"):
        embedded.server_binary()


async def test_a_mesh_that_is_started_again_finds_its_keys_and_its_data(tmp_path: Path) -> None:
    seeds = []
    for _ in range(2):
        async with EmbeddedBus(FLEET, tmp_path) as mesh, mesh.connected_as("c1") as client:
            await client.publish_durable("mesh.prop.c1.c1_x", b"{}")
            seeds.append(mesh.keys["c1"].seed)
            async with mesh.connected_as("admin") as admin:
                stored = (await admin.api("STREAM.INFO.PROP-c1"))["state"]["messages"]
    assert stored == 2
    assert seeds[0] == seeds[1]
    for file in (tmp_path / "keys").iterdir():
        assert os.stat(file).st_mode & 0o077 == 0
    assert not any(seeds[0] in line for line in (tmp_path / "store" / "nats.conf").read_text().splitlines())


async def test_a_server_waits_for_its_port_where_somebody_has_it_meanwhile(tmp_path: Path) -> None:
    async with EmbeddedServer("", tmp_path) as server:
        url = server.url
        await server.kill()
        with socket.socket() as other:
            other.bind(("127.0.0.1", int(url.rpartition(":")[2])))
            other.listen()
            starting = asyncio.create_task(server.start())
            await until(lambda: b"address already in use" in server.log.read_bytes())
        await starting
        assert server.url == url
