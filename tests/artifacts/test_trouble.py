"""A store that refuses, is away or is not there: a typed error that says what to do, and no secret in it."""

import os
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from mesh.agent.errors import failure_of
from mesh.artifacts import (
    ArtifactDenied,
    ArtifactError,
    ArtifactStore,
    StoreExtraMissing,
    StoreUnreachable,
    StoreUnusable,
)
from protocol.wire.handoff import Artifact
from tests.artifacts.conftest import S3
from tests.certain import is_

SOME = Artifact(name="letter", uri=f"mesh-artifact:sha256/{'0' * 64}")
NOBODY = 65_534


class Refuses(BaseHTTPRequestHandler):
    """Says no to everything, as S3 does: with the name of the key that it was asked with."""

    def _no(self) -> None:
        key = f"<AWSAccessKeyId>{S3['AWS_ACCESS_KEY_ID']}</AWSAccessKeyId>"
        said = f"<Error><Code>AccessDenied</Code>{key}</Error>"
        self.send_response(403)
        self.send_header("Content-Length", str(len(said)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(said.encode())

    do_GET = do_HEAD = do_PUT = do_POST = _no

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    for name, value in S3.items():
        monkeypatch.setenv(name, value)
    return monkeypatch


@pytest.fixture
def refusing(environment: pytest.MonkeyPatch) -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Refuses) as server:
        serving = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        serving.start()
        environment.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{server.server_port}")
        yield "s3://bucket/pre"
        server.shutdown()
        serving.join()


async def error_of(store: ArtifactStore, verb: str) -> ArtifactError:
    with pytest.raises(ArtifactError) as raised:
        await (store.save("letter", b"hello") if verb == "save" else store.load(SOME))
    assert not any(
        secret in str(raised.value) for secret in (S3["AWS_ACCESS_KEY_ID"], S3["AWS_SECRET_ACCESS_KEY"])
    )
    assert raised.value.__cause__ is None  # a traceback would show what the store answered
    assert raised.value.__suppress_context__
    return raised.value


@pytest.mark.parametrize(("verb", "may_not"), [("save", "may not write"), ("load", "may not read")])
async def test_a_bucket_that_refuses(refusing: str, verb: str, may_not: str) -> None:
    error = is_(await error_of(ArtifactStore.at(refusing), verb), ArtifactDenied)
    assert str(error).startswith(
        f"the store s3://bucket/pre: the credentials of this process {may_not} (AccessDenied)"
    )
    assert failure_of(error).permanent


@pytest.mark.parametrize("verb", ["save", "load"])
async def test_a_store_that_is_away_is_worth_another_try(environment: pytest.MonkeyPatch, verb: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        environment.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{taken.getsockname()[1]}")
    error = is_(await error_of(ArtifactStore.at("s3://bucket"), verb), StoreUnreachable)
    assert str(error) == "the store s3://bucket could not be reached: no answer"
    failure = failure_of(error)
    assert (failure.code, failure.permanent) == ("artifact.store_unreachable", False)
    assert failure.message == str(error)


@pytest.mark.parametrize("verb", ["save", "load"])
async def test_a_bucket_that_is_not_there(bucket: str, verb: str) -> None:
    error = is_(await error_of(ArtifactStore.at("s3://no-such-bucket"), verb), StoreUnusable)
    assert "does not exist (NoSuchBucket): make it, or change [artifacts]" in str(error)
    await ArtifactStore.at(bucket).objects.probe()
    with pytest.raises(StoreUnusable):
        await ArtifactStore.at("s3://no-such-bucket").objects.probe()


@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("ftp://host/x", "a store is a folder, or a bucket at s3://…, gs://…, az://…"),
        ("s3://", "cannot be opened with this environment"),
        ("az://container", "Account must be specified"),
    ],
)
def test_what_names_no_store(url: str, told: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AZURE_STORAGE_ACCOUNT_NAME", raising=False)
    with pytest.raises(StoreUnusable, match=told):
        ArtifactStore.at(url)


def test_a_bucket_without_the_extra_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "obstore", None)
    with pytest.raises(StoreExtraMissing, match=r"install handoff-mesh\[artifacts\]"):
        ArtifactStore.at("s3://bucket")


# --- folders --------------------------------------------------------------------------------------


@contextmanager
def as_somebody_else(folder: Path) -> Iterator[None]:
    """Be a user who may not look into `folder`: root may everything, and becomes another one."""
    folder.chmod(0o000)
    if os.geteuid() != 0:
        yield
    else:
        os.seteuid(NOBODY)
        try:
            yield
        finally:
            os.seteuid(0)
    folder.chmod(0o700)


@pytest.mark.parametrize("verb", ["save", "load"])
async def test_a_folder_of_somebody_else(tmp_path: Path, verb: str) -> None:
    folder = tmp_path / "store"
    folder.mkdir()
    with as_somebody_else(folder):
        error = await error_of(ArtifactStore.at(str(folder)), verb)
        with pytest.raises(ArtifactDenied):
            await ArtifactStore.at(str(folder)).objects.probe()
    assert isinstance(error, ArtifactDenied)
    assert "give its user the right" in str(error)


async def test_a_folder_that_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "store").write_text("I am a file")
    store = ArtifactStore.at(str(tmp_path / "store"))
    assert isinstance(await error_of(store, "save"), StoreUnusable)
    with pytest.raises(StoreUnusable, match="cannot be used: "):
        await store.objects.probe()


async def test_a_folder_that_is_not_there_yet_can_be_made(tmp_path: Path) -> None:
    store = ArtifactStore.at(str(tmp_path / "a" / "b"))
    await store.objects.probe()
    assert not (tmp_path / "a").exists()
    saved = await store.save("letter", b"hello")
    assert await store.load(saved) == b"hello"
    assert (tmp_path / "a" / "b").stat().st_mode & 0o777 == 0o700
