"""Secrets and strangers' data that a command could let others on the machine, or on the network, see."""

import base64
import contextlib
import os
import socket
import urllib.error
import urllib.request
from pathlib import Path
from typing import NoReturn

import pytest

from mesh.errors import UsageWrong
from mesh.ops.delivery import SECRET, State, Webhook
from mesh.ops.servers import varz_of
from tests.system.office import Office

SECRET_URL = "http://kim:hunter2@hooks.example:1/mesh"
BAD_URLS = (SECRET_URL, "http://token@hooks.example", "ftp://x", "http://", "http://[", "http://x:y", "x")


@pytest.fixture
def resolved(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return what the resolver is asked for; it knows nothing."""
    asked: list[str] = []

    def unknown(host: str, *rest: object, **more: object) -> NoReturn:
        asked.append(host)
        raise socket.gaierror(socket.EAI_NONAME, "unknown")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    return asked


def webhook(url: str, folder: Path) -> Webhook:
    return Webhook(url, b"k" * 24, State(folder / "state"), within_s=1, on_trouble=lambda text: None)


@pytest.mark.parametrize("url", BAD_URLS)
async def test_no_password_of_a_url_reaches_the_resolver(
    url: str, tmp_path: Path, resolved: list[str]
) -> None:
    with pytest.raises(UsageWrong) as refused:
        webhook(url, tmp_path)
    assert "hunter2" not in str(refused.value)
    with pytest.raises(UsageWrong, match="--monitor"):
        await varz_of(f"http://127.0.0.1:1,{url}")
    assert resolved == []


def test_the_standard_library_asks_the_resolver_for_a_password(resolved: list[str]) -> None:
    """Without the refusal."""
    with contextlib.suppress(urllib.error.URLError):
        urllib.request.urlopen(SECRET_URL, timeout=1)
    assert any("hunter2" in host for host in resolved)


async def test_the_command_refuses_it_too(office: Office, monkeypatch: pytest.MonkeyPatch) -> None:
    key = "whsec_" + base64.b64encode(b"k" * 32).decode()
    monkeypatch.setenv(SECRET, key)
    said = await office.mesh("human", "watch", "--once", "--post", SECRET_URL)
    assert said.status == 2
    assert "without a user or password" in said.err
    assert "hunter2" not in said.err + said.out


async def test_a_token_file_that_others_could_read_is_closed(office: Office, tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text("a token that is long enough\n")
    path.chmod(0o644)
    told = await office.process("ui", "--host", "203.0.113.7", "--port", "0", "--token-file", path)
    assert path.stat().st_mode & 0o777 == 0o600
    assert f"others could read {path} (644); it has mode 600 now" in told.err
    quiet = await office.process("ui", "--host", "203.0.113.7", "--port", "0", "--token-file", path)
    assert "others could read" not in quiet.err


async def test_an_exported_log_is_its_owners_alone(office: Office, tmp_path: Path) -> None:
    request, _ = await office.begun()
    before = os.umask(0o022)
    try:
        out = tmp_path / "log.jsonl"
        out.write_text("an old one, which others could read")
        out.chmod(0o644)
        told = await office.process("log", "export", request, "--out", out)
    finally:
        os.umask(before)
    assert out.stat().st_mode & 0o777 == 0o600
    assert "mode 600" in told.err
