"""A bus that wants TLS: what is right gets on it, and what is not is told the cause at once."""

import asyncio
import contextlib
import os
import shutil
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from mesh.bus.connection import Bus, connect
from mesh.bus.credentials import NO_FILES, KeyPair, TlsFiles, keyring, seed_file
from mesh.bus.roles import accounts_config, names, quoted
from mesh.cli.exits import Exit
from mesh.errors import AuthenticationFailed, TlsFailed, TlsUnusable, Unreachable
from mesh.local.server import EmbeddedServer
from tests.certain import known
from tests.certificates import Authority
from tests.logs import captured_logs, said
from tests.servers import FLEET, PATIENCE_S, ROOT, until


def block(server: TlsFiles, *, verify: bool, more: str = "") -> str:
    """Return the part of a server's configuration that makes it want TLS."""
    lines = [
        f"cert_file: {quoted(str(server.cert))}",
        f"key_file: {quoted(str(server.key))}",
        f"ca_file: {quoted(str(server.ca))}",
        f"verify: {str(verify).lower()}",
    ]
    return "\n".join(("tls {", *lines, "}", more))


class Secured:
    """A server that wants TLS, and everybody's keys."""

    def __init__(self, server: EmbeddedServer, keys: dict[str, KeyPair], directory: Path) -> None:
        self.server = server
        self.keys = keys
        self.directory = directory

    def url(self, scheme: str = "nats") -> str:
        return self.server.url.replace("nats", scheme, 1)

    async def connect(self, tls: TlsFiles, *, scheme: str = "nats", wait: bool = False) -> Bus:
        seed = self.keys["admin"].seed
        return await connect(self.url(scheme), name="admin", seed=seed, tls=tls, wait=wait)


@contextlib.asynccontextmanager
async def secured(directory: Path, extra: str) -> AsyncIterator[Secured]:
    keys = keyring(directory / "keys", names(FLEET))
    accounts = accounts_config(FLEET, {name: key.public for name, key in keys.items()})
    server = EmbeddedServer(accounts, directory / "store", sync_always=False, extra=extra)
    async with server:
        yield Secured(server, keys, directory)
        await server.kill()


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def ours(authority: Authority) -> TlsFiles:
    return authority.sign("admin")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def strict(tmp_path_factory: pytest.TempPathFactory, authority: Authority) -> AsyncIterator[Secured]:
    """A server that verifies its clients' certificates."""
    extra = block(authority.sign("server"), verify=True)
    async with secured(tmp_path_factory.mktemp("strict"), extra) as bus:
        yield bus


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def plain(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Secured]:
    """A server without TLS."""
    async with secured(tmp_path_factory.mktemp("plain"), "") as bus:
        yield bus


@pytest.mark.parametrize("scheme", ["nats", "tls"])
async def test_who_has_the_right_files_gets_on_the_bus(strict: Secured, ours: TlsFiles, scheme: str) -> None:
    async with await strict.connect(ours, scheme=scheme) as bus:
        assert (await bus.api("INFO"))["memory"] == 0
        assert known(bus._wire._transport)._io_writer.get_extra_info("cipher")  # type: ignore[attr-defined]


async def test_a_secure_connection_that_has_just_been_lost_is_closed_without_an_error(
    strict: Secured, ours: TlsFiles
) -> None:
    """nats-py's reconnecting waits for the old socket. Cancelling it cancels what closing waits for, too."""
    for passes in range(3):
        async with await strict.connect(ours) as bus:
            await bus._wire._process_op_err(ConnectionResetError())
            for _ in range(passes):
                await asyncio.sleep(0)
            await bus.close()


async def test_a_secure_connection_comes_back_after_a_restart_as_a_secure_one(
    tmp_path: Path, authority: Authority, ours: TlsFiles
) -> None:
    async with (
        secured(tmp_path, block(authority.sign("again"), verify=True)) as mine,
        await mine.connect(ours) as bus,
    ):
        await mine.server.kill()
        await until(lambda: not bus.connected)
        await mine.server.start()
        await bus.retry_unavailable(lambda: bus.api("INFO"))
        assert bus._wire._transport._io_writer.get_extra_info("cipher")  # type: ignore[union-attr]


async def test_a_connection_that_can_no_longer_be_secured_says_so_and_is_made_once_it_can(
    tmp_path: Path, authority: Authority, ours: TlsFiles
) -> None:
    server = authority.sign("changing")
    assert server.cert is not None
    assert server.key is not None
    good = server.cert.read_bytes(), server.key.read_bytes()
    async with secured(tmp_path, block(server, verify=True)) as mine, await mine.connect(ours) as bus:
        with captured_logs() as lines:
            await mine.server.kill()
            Authority(tmp_path / "others").sign("x")
            authority.sign("changing", expired=True)
            await mine.server.start()
            await said(lines, "bus_not_secured")
        assert "bus_not_secured" in [reason.code for reason in bus.conditions.reasons()]
        await mine.server.kill()
        server.cert.write_bytes(good[0])
        server.key.write_bytes(good[1])
        await mine.server.start()
        await bus.retry_unavailable(lambda: bus.api("INFO"))
        assert bus.conditions.reasons() == []


@pytest.mark.parametrize("wait", [False, True], ids=["once", "waiting"])
@pytest.mark.parametrize(
    ("case", "cause"),
    [
        ("no files", "wants a client's certificate.*MESH_TLS_CERT"),
        ("no certificate", "wants a client's certificate"),
        ("unknown authority", "not accepted: .*certificate.*MESH_TLS_CA"),
        (
            "a certificate that the bus does not trust",
            "do not agree on TLS, with the certificate|does not accept the certificate",
        ),
        (
            "an expired certificate",
            "do not agree on TLS, with the certificate|does not accept the certificate",
        ),
    ],
)
async def test_what_is_wrong_is_told_at_once_however_patient_one_is(
    strict: Secured, authority: Authority, tmp_path: Path, case: str, cause: str, wait: bool
) -> None:
    other = Authority(tmp_path, "other").sign("admin")
    files = {
        "no files": NO_FILES,
        "no certificate": TlsFiles(ca=authority.certificate),
        "unknown authority": other,
        "a certificate that the bus does not trust": TlsFiles(authority.certificate, other.cert, other.key),
        "an expired certificate": authority.sign("late", expired=True),
    }
    with pytest.raises(TlsFailed, match=cause):
        await strict.connect(files[case], wait=wait)


async def test_a_bus_that_wants_tls_and_no_certificate_is_not_trusted_unless_its_authority_is(
    tmp_path: Path, authority: Authority
) -> None:
    async with secured(tmp_path, block(authority.sign("lenient"), verify=False)) as lenient:
        with pytest.raises(TlsFailed, match="trusted: the CAs of this machine"):
            await lenient.connect(NO_FILES)
        async with await lenient.connect(TlsFiles(ca=authority.certificate)) as bus:
            assert await bus.api("INFO")


async def test_a_bus_of_another_name_is_not_trusted(tmp_path: Path, authority: Authority) -> None:
    elsewhere = authority.sign("elsewhere", host="127.0.0.2")
    async with secured(tmp_path, block(elsewhere, verify=False)) as away:
        with pytest.raises(TlsFailed, match=r"not accepted: .*127\.0\.0\.1"):
            await away.connect(TlsFiles(ca=authority.certificate))


async def test_where_tls_is_asked_for_nothing_is_said_in_clear_text(plain: Secured, ours: TlsFiles) -> None:
    for files, scheme in ((NO_FILES, "tls"), (ours, "nats"), (TlsFiles(ca=ours.ca), "tls")):
        with pytest.raises(TlsFailed, match="the bus offers none"):
            await plain.connect(files, scheme=scheme, wait=True)
    async with await plain.connect(NO_FILES):
        pass


async def test_where_tls_is_offered_and_not_required_it_is_used_by_who_asks(
    tmp_path: Path, authority: Authority, ours: TlsFiles
) -> None:
    extra = block(authority.sign("both"), verify=False, more="allow_non_tls: true")
    async with secured(tmp_path, extra) as both:
        async with await both.connect(TlsFiles(ca=ours.ca), scheme="tls") as bus:
            assert bus._wire._transport._io_writer.get_extra_info("cipher")  # type: ignore[union-attr]
        async with await both.connect(NO_FILES) as bus:
            assert not bus._wire._transport._io_writer.get_extra_info("cipher")  # type: ignore[union-attr]


async def test_a_bus_that_does_not_greet_before_tls_is_told_from_one_that_is_away(
    tmp_path: Path, authority: Authority, ours: TlsFiles
) -> None:
    first = block(authority.sign("first"), verify=False).replace("verify:", "handshake_first: true, verify:")
    async with secured(tmp_path, first) as silent:
        with pytest.raises(Unreachable, match="does not greet: is `handshake_first` set"):
            await silent.connect(ours)
    with pytest.raises(Unreachable) as away:
        await silent.connect(ours)
    assert "greet" not in str(away.value)


async def test_credentials_are_looked_at_as_without_tls(strict: Secured, ours: TlsFiles) -> None:
    url, seed = strict.url(), keyring(strict.directory / "strangers", ["x"])["x"].seed
    with pytest.raises(AuthenticationFailed):
        await connect(url, name="admin", seed=seed, tls=ours, wait=True)


@pytest.mark.parametrize(
    ("case", "cause"),
    [
        ("no such authority", "TLS CA .*nowhere.*: No such file"),
        ("no certificate in it", "TLS CA .*: no certificate or crl found"),
        ("no such key", "TLS certificate and key .*: No such file"),
        ("another's key", "TLS certificate and key .*: key values mismatch"),
        ("a key alone", "a key without a certificate"),
        ("a locked key", "encrypted"),
    ],
)
async def test_files_that_cannot_be_used_are_named(
    plain: Secured, authority: Authority, ours: TlsFiles, tmp_path: Path, case: str, cause: str
) -> None:
    empty, nowhere, locked = tmp_path / "empty.pem", tmp_path / "nowhere.pem", tmp_path / "locked.pem"
    empty.write_text("nothing\n")
    locked.write_bytes(lock(ours))
    files = {
        "no such authority": TlsFiles(ca=nowhere),
        "no certificate in it": TlsFiles(ca=empty),
        "no such key": TlsFiles(ours.ca, ours.cert, nowhere),
        "another's key": TlsFiles(ours.ca, ours.cert, authority.sign("somebody").key),
        "a key alone": TlsFiles(key=ours.key),
        "a locked key": TlsFiles(ours.ca, ours.cert, locked),
    }
    with pytest.raises(TlsUnusable, match=cause):
        await plain.connect(files[case], wait=True)


def lock(files: TlsFiles) -> bytes:
    """Return a key under a password."""
    from cryptography.hazmat.primitives import serialization

    key = serialization.load_pem_private_key(known(files.key).read_bytes(), None)
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.BestAvailableEncryption(b"secret"),
    )


# --- commands and services ------------------------------------------------------------------------


async def mesh(*arguments: str, here: Path, **environment: str) -> tuple[int, str]:
    """Run `mesh` as a process; return its exit status and what it said."""
    import asyncio

    kept = {name: value for name, value in os.environ.items() if not name.startswith(("MESH_", "NATS_"))}
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "mesh", *arguments),
        cwd=here,
        env=kept | {"PYTHONPATH": str(ROOT)} | environment,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    try:
        async with asyncio.timeout(PATIENCE_S):
            said, _ = await process.communicate()
    except TimeoutError:
        process.kill()
        await process.wait()
        raise
    return known(process.returncode), said.decode()


AGENT = """
from mesh.agent import Turn, agent

@agent(name="a")
async def a(turn: Turn):
    return turn.complete("done")
"""


def who(strict: Secured, name: str) -> dict[str, str]:
    seed = seed_file(strict.directory / "keys", name)
    return {"NATS_URL": strict.url(), "MESH_NAME": name, "MESH_CREDENTIALS": str(seed)}


@pytest.mark.parametrize(
    "command",
    [
        pytest.param(("doctor",), id="doctor"),
        pytest.param(("send", "hello"), id="send"),
        pytest.param(("request", "ls"), id="request-ls"),
        pytest.param(("human", "watch"), id="human-watch"),
        pytest.param(("guard", "run"), id="guard"),
        pytest.param(("agent", "run", "only:a"), id="agent"),
    ],
)
async def test_every_command_and_service_ends_with_the_cause(
    strict: Secured, tmp_path: Path, command: tuple[str, ...]
) -> None:
    (tmp_path / "only.py").write_text(AGENT)
    by = {"send": "c1", "guard": "guard", "agent": "a"}.get(command[0], "op")
    status, said = await mesh(*command, here=tmp_path, **who(strict, by))
    assert status == Exit.UNREACHABLE
    assert "the bus wants a client's certificate" in said
    assert "[bus.tls]" in said


async def test_the_command_line_the_environment_and_the_fleet_file_name_the_files(
    strict: Secured, ours: TlsFiles, tmp_path: Path
) -> None:
    said = {"ca": str(ours.ca), "cert": str(ours.cert), "key": str(ours.key)}
    options = [text for name, path in said.items() for text in (f"--tls-{name}", path)]
    variables = {f"MESH_TLS_{name.upper()}": path for name, path in said.items()}
    asked = ("doctor", "--json")
    _, told = await mesh(*asked, *options, here=tmp_path, **who(strict, "admin"))
    assert '"connection"' in told
    _, told = await mesh(*asked, here=tmp_path, **who(strict, "admin"), **variables)
    assert '"connection"' in told
    for name, path in said.items():
        shutil.copy(path, tmp_path / f"{name}.pem")
    files = "".join(f'{name} = "{name}.pem"\n' for name in said)
    (tmp_path / "mesh.toml").write_text(
        f'name = "t"\nentry = "a"\nurl = "{strict.url()}"\n[bus.tls]\n{files}[agents.a]\n'
    )
    environment = who(strict, "admin")
    del environment["NATS_URL"]
    _, told = await mesh(*asked, here=tmp_path, **environment)
    assert '"connection"' in told
