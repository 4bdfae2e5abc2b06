"""`[bus] auth = "jwt"`: a running server takes members and keys over the bus, and is never reloaded."""

import contextlib
import re
import stat
import subprocess
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import click.testing
import nats
import pytest

from mesh.bus.accounts import HANDOVER, UPDATE
from mesh.bus.claims import ClaimKind, issue, new_issuer, read_claim
from mesh.bus.connection import Bus, connect
from mesh.bus.credentials import (
    RenewableKey,
    TlsFiles,
    new_key,
    read_key,
    replace_private,
    seed_file,
)
from mesh.bus.roles import ADMIN, inbox_prefix, server_config
from mesh.cli import app
from mesh.errors import AuthenticationFailed, Denied, Impossible
from mesh.fleet.deployment import Deployment, DeploymentImpossible, Target, Tls
from mesh.fleet.file import FleetFileError, load_fleet, parse_fleet
from mesh.fleet.generated import files_of
from mesh.fleet.handover import HandoverFailed, hand_over, lacking_accounts
from mesh.fleet.operator import ACCOUNTS_FOLDER
from mesh.fleet.setup import ACCOUNTS, KEYS, apply, prepare
from mesh.local.server import EmbeddedServer, server_binary
from mesh.ops.servers import SignedAccounts, reloaded
from protocol.wire.subjects import note, prop
from tests.deploy.place import FLEET, Place
from tests.docs.pages import DOCS, blocks, codes, table
from tests.logs import kept_logging
from tests.servers import fresh, until

JWT = f'{FLEET}[bus]\nauth = "jwt"\n'
RELOADED = b"Reloaded"


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path, "jwt")


@contextlib.asynccontextmanager
async def running(place: Place) -> AsyncIterator[EmbeddedServer]:
    """Run a server with the streams of the fleet. It must not have been reloaded at the end."""
    async with place.served() as server:
        async with await connected(place, server, ADMIN) as admin:
            await apply(admin, load_fleet(place.file))
        yield server
        assert RELOADED not in server.log.read_bytes()


async def connected(place: Place, server: EmbeddedServer, name: str) -> Bus:
    return await connect(server.url, name=name, seed=place.seed(name), timeout_s=30)


def fleet(place: Place, text: str) -> None:
    """Give the place another fleet file, and sign what it needs."""
    place.file.write_text(text)
    prepare(load_fleet(place.file), place.out)


def tree(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


# --- keys -------------------------------------------------------------------------------------------


async def test_a_new_key_is_valid_at_once_and_a_retired_one_ends_at_the_hand_over(place: Place) -> None:
    async with running(place) as server:
        old = place.seed("echo")
        before = (place.out / ACCOUNTS).read_bytes()
        async with await connected(place, server, "echo") as first:
            assert "reload" not in place.mesh("rotate", "echo")
            assert (place.out / ACCOUNTS).read_bytes() == before
            assert place.seed("echo") != old
            async with await connected(place, server, "echo") as second:
                for bus in (first, second):
                    await bus.publish_durable(prop("echo", fresh("app")), b"{}")
                text = place.mesh("retire", "echo", "--url", server.url)
                assert f"the bus at {server.url} has the accounts" in text
                await until(lambda: not first.connected)
                await second.publish_durable(prop("echo", fresh("app")), b"{}")
                assert second.counters.disconnects == 0
        with pytest.raises(AuthenticationFailed):
            await connect(server.url, name="echo", seed=old)
        assert "had the accounts already" in place.mesh("retire", "echo", "--url", server.url)


async def test_a_retired_key_stays_retired_when_the_server_starts_with_older_accounts(place: Place) -> None:
    """It is started with the `accounts.conf` of the first day: what it was handed since is newer."""
    async with running(place) as server:
        old = place.seed("app")
        place.mesh("rotate", "app")
        place.mesh("retire", "app", "--url", server.url)
        await server.stop()
        await server.start()
        assert await lacking_accounts(server.url, place.out) == []
        with pytest.raises(AuthenticationFailed):
            await connect(server.url, name="app", seed=old)
        async with await connected(place, server, "app") as bus:
            await bus.publish_durable(prop("app", fresh("app")), b"{}")


async def test_a_key_that_was_made_anew_by_hand_ends_the_one_before(place: Place) -> None:
    async with running(place) as server:
        old = place.seed("eye")
        seed_file(place.out / KEYS, "eye").unlink()
        prepare(load_fleet(place.file), place.out)
        assert await hand_over(server.url, place.out) == ["eye"]
        with pytest.raises(AuthenticationFailed):
            await connect(server.url, name="eye", seed=old)
        async with await connected(place, server, "eye"):
            pass


async def test_a_connection_takes_the_new_key_at_once(place: Place) -> None:
    async with running(place) as server:
        key = RenewableKey(lambda: place.seed("app"))
        old = key.seed
        async with await connect(server.url, name="app", seed=key) as bus:
            place.mesh("rotate", "app")
            bus.renew()
            await until(lambda: bus.counters.disconnects == 1)
            await bus.retry_unavailable(lambda: bus.publish_durable(prop("app", fresh("app")), b"{}"))
            assert key.seed == place.seed("app") != old
            place.mesh("retire", "app", "--url", server.url)
            await bus.publish_durable(prop("app", fresh("app")), b"{}")
            assert bus.counters.disconnects == 1


async def test_any_client_of_nats_reads_the_file_of_a_member(place: Place) -> None:
    async with running(place) as server:
        path = seed_file(place.out / KEYS, "app")
        plain = await nats.connect(server.url, user_credentials=str(path), inbox_prefix=inbox_prefix("app"))
        answer = await plain.request(prop("app", fresh("app")), b"{}", timeout=30)
        assert b'"stream"' in answer.data
        await plain.close()


# --- members ----------------------------------------------------------------------------------------


async def test_an_agent_is_added_and_works_while_others_stay_connected(place: Place) -> None:
    async with running(place) as server, await connected(place, server, "echo") as echo:
        fleet(place, JWT + '[agents.new]\nmodule = "tests.deploy.echo:echo"\n')
        with pytest.raises(AuthenticationFailed):
            await connected(place, server, "new")
        assert await hand_over(server.url, place.out) == ["new", "CORE"]
        assert await hand_over(server.url, place.out) == []
        async with (
            await connected(place, server, ADMIN) as admin,
            await connected(place, server, "guard") as guard,
            await connected(place, server, "new") as new,
        ):
            await apply(admin, load_fleet(place.file))
            told: list[bytes] = []
            await new.subscribe("mesh.note.new.*", lambda message: told.append(message.data))
            await new.subscribe("$SRV.PING.new", lambda message: new.send(message.reply, b"here"))
            await new.publish_durable(prop("new", fresh("app")), b"{}")  # it calls CORE
            assert (await guard.request("$SRV.PING.new")).data == b"here"  # CORE calls it
            await guard.publish(note("new", fresh("app")), b"a note")  # it hears CORE
            await until(lambda: told == [b"a note"])
            with pytest.raises(Denied):
                await new.publish_durable(prop("echo", fresh("app")), b"{}")
        await echo.publish_durable(prop("echo", fresh("app")), b"{}")
        assert echo.counters.disconnects == 0


async def test_a_member_that_leaves_is_let_in_no_more_until_it_is_back(place: Place) -> None:
    async with running(place) as server:
        async with await connected(place, server, "eye") as eye:
            fleet(place, JWT.replace("[viewers.eye]", ""))
            assert await hand_over(server.url, place.out) == ["eye"]
            await until(lambda: not eye.connected)
        with pytest.raises(AuthenticationFailed):
            await connected(place, server, "eye")
        fleet(place, JWT)
        assert await hand_over(server.url, place.out) == ["eye"]
        async with await connected(place, server, "eye"):
            pass


async def test_new_permissions_hold_without_a_new_file_for_the_member(place: Place) -> None:
    """An agent that lists its first intent of a swarm may read the offers of it."""
    async with running(place) as server:
        key = place.seed("echo")
        swarm = JWT.replace(
            "[clients.app]", 'intents = ["review"]\n[policies.default]\ntopology = "swarm"\n[clients.app]'
        )
        fleet(place, swarm)
        assert place.seed("echo") == key
        assert "echo" in await hand_over(server.url, place.out)
        async with await connect(server.url, name=ADMIN, seed=place.seed(ADMIN)) as admin:
            await apply(admin, load_fleet(place.file))
        async with await connect(server.url, name="echo", seed=key) as echo:
            await echo.request("$JS.API.CONSUMER.MSG.NEXT.LOG.in-any-review", b'{"batch":1,"no_wait":true}')
            assert not echo.denials


def command(place: Place, server: EmbeddedServer, *words: str) -> str:
    """Run a command as the admin at the server; return what it prints."""
    where = ("--file", str(place.file), "--out", str(place.out), "--url", server.url)
    admin = {"MESH_NAME": ADMIN, "MESH_CREDENTIALS": str(seed_file(place.out / KEYS, ADMIN))}
    runner = click.testing.CliRunner(env=admin | {"MESH_LOG_LEVEL": "critical"})
    with kept_logging(), ThreadPoolExecutor(1) as beside:
        done = beside.submit(runner.invoke, app, [*words, *where]).result()
    assert done.exit_code == 0, (done.output, done.exception)
    return done.output


async def test_commands_hand_over_before_they_apply(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    async with place.served() as server:
        assert "update account" not in command(place, server, "setup")
        place.file.write_text(JWT + "[agents.new]\n")
        planned = command(place, server, "setup", "--dry-run")
        assert "write" in planned
        done = command(place, server, "setup")
        assert [line for line in done.splitlines() if "account " in line] == [
            "update account new",
            "update account CORE",
        ]
        assert "is up to date" in command(place, server, "setup")
        text = command(place, server, "agent", "add", "far", "--module", "tests.deploy.echo:echo", "--apply")
        assert "the servers have its account" in text
        assert "reload" not in text
        for name in ("new", "far"):
            async with await connected(place, server, name) as bus:
                await bus.publish_durable(prop(name, fresh("app")), b"{}")
        assert RELOADED not in server.log.read_bytes()


# --- who hands over -----------------------------------------------------------------------------------


async def test_the_key_that_hands_over_may_do_nothing_else(place: Place) -> None:
    async with running(place) as server, await connected(place, server, HANDOVER) as bus:
        for subject in ("$SYS.REQ.SERVER.PING", "$SYS.REQ.CLAIMS.DELETE", "$JS.API.INFO"):
            with pytest.raises(Denied):
                await bus.request(subject)
        with pytest.raises(Denied):
            await bus.subscribe("$SYS.ACCOUNT.>", lambda message: None)


async def test_a_claim_that_the_operator_did_not_sign_is_not_taken(place: Place, tmp_path: Path) -> None:
    """The server stores what it is handed, and lets in only users of accounts that its operator signed."""
    (tmp_path / "other").mkdir()
    other = Place(tmp_path / "other", "jwt")
    theirs = (other.out / ACCOUNTS_FOLDER / "app.jwt").read_text().strip()
    ours = read_claim((place.out / ACCOUNTS_FOLDER / "app.jwt").read_text())
    foreign, signer, key = new_issuer(ClaimKind.OPERATOR), new_issuer(ClaimKind.ACCOUNT), new_key()
    content = {**ours.content, "signing_keys": [signer.public]}
    forged = issue(foreign, ClaimKind.ACCOUNT, ours.subject, "app", content, now_s=ours.issued_at_s + 9)
    inside = {"issuer_account": ours.subject, "subs": -1, "data": -1, "payload": -1}
    user = key._replace(
        claim=issue(signer, ClaimKind.USER, key.public, "app", inside, now_s=ours.issued_at_s)
    )
    async with running(place) as server, await connected(place, server, HANDOVER) as bus:
        for claim in (theirs, forged):
            await bus.request(UPDATE, claim.encode())
        for seed in (other.seed("app"), user.credential):
            with pytest.raises(AuthenticationFailed):
                await connect(server.url, name="app", seed=seed)
        assert await hand_over(server.url, place.out) == ["app"]
        async with await connected(place, server, "app") as own:
            await own.publish_durable(prop("app", fresh("app")), b"{}")


async def test_an_old_copy_of_the_folder_is_not_handed_over(place: Place, tmp_path: Path) -> None:
    """A server would take the older claim, and a retired key would be valid again."""
    async with running(place) as server:
        kept = tree(place.out / ACCOUNTS_FOLDER)
        place.mesh("rotate", "app")
        place.mesh("retire", "app", "--url", server.url)
        for path, body in kept.items():
            path.write_bytes(body)
        with pytest.raises(HandoverFailed, match="newer claim of the account app"):
            await hand_over(server.url, place.out)
        found = [each async for each in reloaded((), SignedAccounts(server.url, place.out, TlsFiles()))]
        assert [state for state, _ in found] == ["found"]


async def test_doctor_names_the_accounts_that_the_servers_lack_and_asks_for_no_reload(place: Place) -> None:
    async with running(place) as server:
        signed = SignedAccounts(server.url, place.out, TlsFiles())
        assert [each async for each in reloaded((), signed)] == []
        place.mesh("rotate", "app")
        assert [each async for each in reloaded((), signed)] == []
        place.mesh("retire", "app")
        [(state, text)] = [each async for each in reloaded((), signed)]
        assert state == "found"
        assert "app" in text
        assert "reload" not in text
        await hand_over(server.url, place.out)
        assert [each async for each in reloaded((), signed)] == []
    [(state, _)] = [each async for each in reloaded((), signed)]
    assert state == "unknown"


# --- files ------------------------------------------------------------------------------------------


def test_nothing_changes_the_second_time_and_only_the_owner_reads_it(place: Place) -> None:
    before = tree(place.out)
    prepare(load_fleet(place.file), place.out)
    assert tree(place.out) == before
    for path in (place.out / KEYS).rglob("*"):
        assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600), path
    secrets = [
        re.search(rb"S[OAU][A-Z2-7]{56}", body) for path, body in before.items() if KEYS not in path.parts
    ]
    assert not any(secrets)


def test_the_way_can_be_changed_and_changed_back(place: Place) -> None:
    """Keys and their age stay as they are. A server that lists keys wants a seed alone in its file."""
    before = place.listed()
    fleet(place, FLEET)
    assert read_key(seed_file(place.out / KEYS, "app")).claim == ""
    assert place.listed() == before
    fleet(place, JWT)
    assert read_claim(read_key(seed_file(place.out / KEYS, "app")).claim).subject == before["app"]["key"]
    assert place.listed() == before


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (JWT.replace("[clients.app]", f'[clients.app]\nnkey = "{new_key().public}"'), "app.nkey"),
        (JWT.replace('"jwt"', '"tokens"'), "bus.auth"),
    ],
)
def test_what_does_not_go_together_is_refused_with_its_place(tmp_path: Path, text: str, reason: str) -> None:
    (tmp_path / "mesh.toml").write_text(text)
    with pytest.raises(FleetFileError, match=reason):
        load_fleet(tmp_path)


def test_nobody_gets_in_without_credentials(place: Place) -> None:
    with pytest.raises(Impossible, match="without credentials"):
        prepare(load_fleet(place.file), place.out, anonymous="app")


@pytest.mark.parametrize("target", Target)
def test_a_deployment_has_a_folder_for_what_is_handed_over(place: Place, target: Target) -> None:
    deployment = Deployment(load_fleet(place.file), place.file, target, 1, Tls.NONE)
    if target is Target.KUBERNETES:
        with pytest.raises(DeploymentImpossible, match="Kubernetes"):
            files_of(deployment, "")
        return
    files = files_of(deployment, "")
    config = place.out / "nats.conf"
    (text,) = (text for path, text in files.items() if path.endswith("nats.conf"))
    store = re.search(r'store_dir: "(.+)"', text)
    assert store is not None
    assert f'dir: "{store[1]}/{ACCOUNTS_FOLDER}"' in text
    assert all("reload it twice" not in each for each in files.values())
    config.write_text(text.replace(store[1], str(place.out / "store")))
    subprocess.run([server_binary(), "-t", "-c", config], check=True, capture_output=True)


def test_the_page_shows_settings_that_are_taken_and_files_that_are_written(place: Place) -> None:
    page = (DOCS / "keys.md").read_text()
    toml, text = (each.text for each in blocks(page) if each.language in ("toml", "text"))
    fleet(place, f"{FLEET}{toml}")
    assert load_fleet(place.file).bus.auth == "jwt"
    for file, *_ in table(page, "keys/NAME.nk"):
        (name,) = codes(file)
        assert (place.out / name.replace("NAME", "app")).exists(), name
    for name in ("_core.account.nk", "app.signer.nk", "operator.nk"):
        assert (place.out / KEYS / "issuers" / name).is_file()
    config, folder = place.out / "nats.conf", place.out / "store" / "accounts"
    extra = text.replace("store/accounts", str(folder))
    config.write_text(server_config("include ./accounts.conf", store=folder.parent, extra=extra))
    subprocess.run([server_binary(), "-t", "-c", config], check=True, capture_output=True)


def test_a_fleet_that_is_too_large_is_refused_by_name(place: Place) -> None:
    agents = "".join(f"[agents.a{n}]\n" for n in range(1_100))
    with pytest.raises(Impossible, match=r"account CORE has \d+ bytes.*too many members"):
        prepare(parse_fleet(JWT + agents), place.out)


def test_a_broken_seed_of_an_account_is_named(place: Place) -> None:
    path = place.out / KEYS / "issuers" / "app.account.nk"
    replace_private(path, new_key().seed.encode())
    with pytest.raises(Impossible, match=re.escape(str(path))):
        prepare(load_fleet(place.file), place.out)
