"""`mesh key`: a key is replaced while requests go on, and the retired one is refused with the remedy."""

import contextlib
import json
import shlex
import signal
import stat
from pathlib import Path

import click.testing
import pytest

from mesh.bus.connection import Bus, connect
from mesh.bus.credentials import RenewableKey, new_key, read_key, seed_file
from mesh.bus.roles import ADMIN
from mesh.cli import app
from mesh.client import Client
from mesh.errors import AuthenticationFailed
from mesh.fleet.file import load_fleet
from mesh.fleet.keys import retire, rotate
from mesh.fleet.setup import ACCOUNTS, KEYS, apply, prepare
from mesh.local.server import EmbeddedServer
from mesh.ops.servers import key_file, reloaded, varz_of
from mesh.settings import Access
from tests.certificates import Authority
from tests.deploy.place import FLEET, Place, has, load, more, service
from tests.docs.pages import commands, read
from tests.integration.test_tls import block
from tests.logs import captured_logs, said
from tests.servers import eventually, until
from tests.system.terminal import in_process


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


# --- the commands ---------------------------------------------------------------------------------


def test_a_rotated_member_has_two_keys_until_the_old_one_is_retired(place: Place) -> None:
    before = place.listed()
    text = place.mesh("rotate", "echo")
    now = place.listed()
    assert now["echo"]["old"] == before["echo"]["key"] != now["echo"]["key"]
    assert {name: each for name, each in now.items() if name != "echo"} == {
        name: each for name, each in before.items() if name != "echo"
    }
    accounts = (place.out / ACCOUNTS).read_text()
    assert accounts.count(now["echo"]["key"]) == accounts.count(now["echo"]["old"]) == 1
    assert "reload" in text
    assert "mesh key retire echo" in text
    place.mesh("retire", "echo")
    assert place.listed()["echo"]["old"] is None
    assert before["echo"]["key"] not in (place.out / ACCOUNTS).read_text()


@pytest.mark.parametrize("auth", ["nkeys", "jwt"])
def test_each_command_changes_nothing_the_second_time(tmp_path: Path, auth: str) -> None:
    place = Place(tmp_path, auth)
    for command in ("rotate", "retire"):
        place.mesh(command, "guard")
        files = {path: path.read_bytes() for path in place.out.rglob("*") if path.is_file()}
        # A retirement that the servers may not have is still to be handed over.
        wanted = "hands the accounts" if (auth, command) == ("jwt", "retire") else "nothing to do"
        assert wanted in place.mesh(command, "guard")
        assert {path: path.read_bytes() for path in place.out.rglob("*") if path.is_file()} == files


async def test_doctor_names_the_server_that_has_not_read_the_keys_that_hold_now(place: Place) -> None:
    accounts, own = place.out / ACCOUNTS, read_key(seed_file(place.out / KEYS, ADMIN)).public

    async def found(server: EmbeddedServer) -> list[tuple[str, str]]:
        seen = await varz_of(server.monitor_url)
        return [each async for each in reloaded(seen, key_file(accounts, own))]

    async with place.served() as server:
        assert await found(server) == []
        prepare(load_fleet(place.file), place.out)  # nothing new
        assert await found(server) == []
        place.mesh("rotate", "echo")
        [(state, text)] = await found(server)
        assert state == "found"
        assert f" has not read {accounts} of 2" in text
        await place.reload(server)
        assert await found(server) == []
    [(state, text)] = [each async for each in reloaded((), key_file(accounts, own))]
    assert (state, "--monitor" in text) == ("unknown", True)
    silent = [each async for each in reloaded(({"server_name": "n1"},), key_file(accounts, own))]
    assert silent == [("unknown", "n1 does not say when it read its configuration")]
    assert key_file(place.out / "elsewhere", own) is None
    assert key_file(accounts, new_key().public) is None  # another mesh's
    assert [each async for each in reloaded((), None)] == []


def test_a_rotation_that_was_cut_short_is_finished(place: Place) -> None:
    """It died after it had noted the old key: the accounts would list one key twice."""
    before = place.listed()["app"]["key"]
    (place.out / KEYS / "app.old.pub").write_text(f"{before}\n")
    prepare(load_fleet(place.file), place.out)
    assert (place.out / ACCOUNTS).read_text().count(before) == 1
    place.mesh("rotate", "app")
    assert place.listed()["app"]["old"] == before


def test_only_the_owner_can_read_what_is_written(place: Place) -> None:
    place.mesh("rotate", "echo")
    for path in (place.out / KEYS).iterdir():
        assert stat.S_IMODE(path.stat().st_mode) == 0o600, path


def test_the_list_tells_role_age_and_number_of_valid_keys(place: Place) -> None:
    place.mesh("rotate", "ops")
    head, *rows = (line.split("\t") for line in place.mesh("ls").splitlines())
    assert head == ["name", "role", "key", "written", "valid", "old key"]
    assert {row[0]: (row[1], row[4]) for row in rows} == {
        **{"admin": ("admin", "1"), "guard": ("guard", "1"), "echo": ("agent", "1")},
        **{"app": ("client", "1"), "ops": ("operator", "2"), "eye": ("viewer", "1")},
    }


@pytest.mark.parametrize(
    ("name", "remedy"), [("nobody", "no member"), ("app", "as `nkey`"), ("eye", "mesh setup --out")]
)
def test_a_member_whose_key_is_not_here_is_told_what_to_do(place: Place, name: str, remedy: str) -> None:
    place.file.write_text(FLEET.replace("[clients.app]", f'[clients.app]\nnkey = "{new_key().public}"'))
    seed_file(place.out / KEYS, "eye").unlink()
    done = click.testing.CliRunner().invoke(
        app, ["key", "rotate", name, "--file", str(place.file), "--out", str(place.out)]
    )
    assert done.exit_code != 0
    assert remedy in str(done.exception) + done.output


@pytest.mark.parametrize(
    ("target", "words"),
    [
        ("compose", "docker compose restart echo"),
        ("systemd", "systemctl restart mesh-agent@echo"),
        ("kubernetes", "kubectl apply -k"),
    ],
)
def test_the_next_steps_are_those_of_the_deployment(place: Place, target: str, words: str) -> None:
    (place.out / ".generated.json").write_text(json.dumps({"targets": {target: {}}}))
    assert words in place.mesh("rotate", "echo")


def test_the_page_does_what_it_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mesh.toml").write_text(FLEET.replace("echo", "triage"))
    prepare(load_fleet(tmp_path), tmp_path / "deployed")
    printed = {}
    typed = commands(read("keys.md"))
    for command, _ in typed:
        program, *words = shlex.split(command)
        done = in_process(*words)
        assert (program, done.exit_code) == ("mesh", 0), done.output
        assert "nothing to do" not in done.output
        printed[command] = done.output
    (head, *rows), *rest = [lines for _, lines in typed]
    assert not any(rest)
    shown = [line.split() for line in printed[typed[0][0]].splitlines()]
    assert shown[0] == head.split()
    assert [row.split()[:2] for row in rows] == [row[:2] for row in shown[1:4]]


# --- a connection -----------------------------------------------------------------------------------


async def test_a_connection_takes_the_new_key_and_falls_back_to_the_old_one(place: Place) -> None:
    """Signalled before the server is reloaded it goes on with the old key; retired, it takes the new one."""
    async with place.served() as server:
        key = RenewableKey(lambda: place.seed(ADMIN))
        old = key.seed
        async with await connect(server.url, name=ADMIN, seed=key) as bus:
            rotate(load_fleet(place.file), place.out, ADMIN)
            bus.renew()
            await until(lambda: bus.counters.disconnects == 1)
            await bus.retry_unavailable(lambda: bus.api("INFO"))
            assert key.seed == old
            await place.reload(server)
            bus.renew()
            await until(lambda: bus.counters.disconnects == 2)
            await bus.retry_unavailable(lambda: bus.api("INFO"))
            assert key.seed == place.seed(ADMIN) != old
            bus.renew()
            assert bus.connected


@pytest.mark.parametrize("auth", ["nkeys", "jwt"])
async def test_a_refused_connection_waits_with_a_reason_and_goes_on_with_a_valid_key(
    tmp_path: Path, auth: str, caplog: pytest.LogCaptureFixture
) -> None:
    place = Place(tmp_path, auth)
    authority = Authority(tmp_path)
    extra = block(authority.sign("server"), verify=True)
    tls = place.tls = authority.sign("member")
    async with place.served(extra) as server:
        held = place.seed(ADMIN)
        key = RenewableKey(lambda: held)
        async with await connect(server.url, name=ADMIN, seed=key, tls=tls) as bus:
            with captured_logs() as lines:
                rotate(load_fleet(place.file), place.out, ADMIN)
                retire(load_fleet(place.file), place.out, ADMIN)
                await place.reload(server)
                await said(lines, "bus.authentication")
            reason = next(each for each in bus.conditions.reasons() if each.code == "bus.authentication")
            assert "mesh key ls" in reason.text
            refused = server.log.read_bytes().count(b"authentication error")
            await until(lambda: server.log.read_bytes().count(b"authentication error") > refused)
            held = place.seed(ADMIN)
            await bus.retry_unavailable(lambda: bus.api("INFO"))
            assert not bus.conditions.reasons()
        path = tmp_path / "retired.nk"
        path.write_text(new_key().seed)
        with pytest.raises(AuthenticationFailed, match="mesh key ls"):
            await Access(server.url, ADMIN, path, tls).connect(wait=True, lasts=True)
    assert "eof_received" not in caplog.text


# --- services ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("auth", ["nkeys", "jwt"])
async def test_no_request_is_lost_while_keys_of_an_agent_and_the_guard_are_replaced(
    auth: str, tmp_path: Path
) -> None:
    place = Place(tmp_path, auth)
    authority = Authority(tmp_path)
    tls = place.tls = authority.sign("member")
    async with contextlib.AsyncExitStack() as stack:
        server = await stack.enter_async_context(place.served(block(authority.sign("server"), verify=True)))
        admin: Bus = await connect(server.url, name=ADMIN, seed=place.seed(ADMIN), tls=tls)
        async with admin:
            await apply(admin, load_fleet(place.file))
        running = {
            name: await stack.enter_async_context(service(place, server.url, name, *arguments, tls=tls))
            for name, arguments in {
                "guard": ("guard", "run"),
                "echo": ("agent", "run", "tests.deploy.echo:echo"),
            }.items()
        }
        for each in running.values():
            await eventually(each.is_ready)
        client = await stack.enter_async_context(
            await Client.connect(server.url, name="app", seed=place.seed("app"), tls=tls)
        )
        async with load(client) as served:
            for name, each in running.items():
                place.mesh("rotate", name)
                await place.reload(server)
                await more(served)
                each.signal(signal.SIGHUP)
                await until(lambda each=each: each.logged("bus_key_replaced") > 0)  # type: ignore[misc]
                await more(served)
                place.mesh("retire", name)
                await place.reload(server)
                await more(served)
            assert all(each.logged("bus.authentication") == 0 for each in running.values())
        agent = running["echo"]
        key = seed_file(place.out / KEYS, "echo")
        stale = key.read_bytes()
        place.mesh("rotate", "echo")
        place.mesh("retire", "echo")
        valid = key.read_bytes()
        key.write_bytes(stale)
        await place.reload(server)
        await eventually(lambda: has(agent, "bus.authentication"))
        key.write_bytes(valid)
        await eventually(agent.is_ready)
        assert not any("eof_received" in path.read_text() for path in place.out.glob("*.log"))
