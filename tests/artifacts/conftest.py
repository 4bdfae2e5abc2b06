"""A bucket on a real S3-compatible server, one for each module that asks for it."""

import asyncio
import os
import urllib.request
from collections.abc import AsyncIterator, Iterator

import pytest

from tests.servers import child

S3 = {
    "AWS_ACCESS_KEY_ID": "of-tests",
    "AWS_SECRET_ACCESS_KEY": "secret-of-tests",
    "AWS_REGION": "us-east-1",
    "AWS_ALLOW_HTTP": "true",
}


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    """Give the address of a server."""

    async def served() -> AsyncIterator[str]:
        async with child("tests.artifacts.s3_process") as server:
            yield f"http://127.0.0.1:{(await server.line('port')).split()[1]}"

    with asyncio.Runner() as runner:
        serving = served()
        yield runner.run(anext(serving))  # type: ignore[arg-type]  # it is a coroutine
        runner.run(serving.aclose())  # type: ignore[attr-defined]  # it is a generator


@pytest.fixture
def bucket(endpoint: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Give the URL of a fresh bucket that this process, and its children, may use."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    for name, value in (S3 | {"AWS_ENDPOINT_URL": endpoint}).items():
        monkeypatch.setenv(name, value)
    name = f"b-{abs(hash(request.node.nodeid)):x}"
    made = urllib.request.Request(f"{endpoint}/{name}", method="PUT")
    with urllib.request.urlopen(made) as answer:
        assert answer.status == 200
    return f"s3://{name}/pre/fix"


@pytest.fixture(params=["folder", "s3"])
def where(request: pytest.FixtureRequest) -> str:
    """Give a store of each kind."""
    if request.param == "s3":
        url: str = request.getfixturevalue("bucket")
        return url
    return str(request.getfixturevalue("tmp_path") / "store")
