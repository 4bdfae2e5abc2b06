"""The image's health check, against real sockets. Like the image, it needs Linux."""

import asyncio
import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterator

import pytest

from mesh.service.conditions import Probes, Reason
from tests.deploy.validator import DEPLOY
from tests.servers import PATIENCE_S


def healthy(urls: str) -> bool:
    """Return what the check says where NATS_URL is `urls`."""
    return checked(NATS_URL=urls).returncode == 0


def checked(**environment: str) -> subprocess.CompletedProcess[str]:
    """Return the finished check in this environment."""
    kept = {key: value for key, value in os.environ.items() if key != "MESH_HEALTH"}
    return subprocess.run(
        [sys.executable, str(DEPLOY / "healthcheck.py")],
        env=kept | environment,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )


@pytest.fixture(params=[socket.AF_INET, socket.AF_INET6], ids=["ipv4", "ipv6"])
def listener(request: pytest.FixtureRequest) -> Iterator[socket.socket]:
    """A bus that accepts whoever comes."""
    loopback = "127.0.0.1" if request.param == socket.AF_INET else "::1"
    with socket.socket(request.param) as server:
        server.bind((loopback, 0))
        server.listen()
        yield server


def test_a_service_is_healthy_while_its_connection_stands(listener: socket.socket) -> None:
    host, port = listener.getsockname()[:2]
    url = f"nats://elsewhere:{port}"
    assert not healthy(url)
    with socket.create_connection((host, port)):
        accepted, _ = listener.accept()
        with accepted:
            assert healthy(url)
            assert healthy(f"nats://nats-0:1, {url}/")
            assert not healthy("nats://elsewhere:1")
        assert not healthy(url), "the server has closed; the service has not noticed yet"


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0", "[::1]", "[::]"])
async def test_where_the_service_answers_it_is_asked_itself(host: str) -> None:
    reasons: list[Reason] = []
    async with Probes(f"{host}:0", lambda: reasons) as probes:
        address = f"{host}:{probes.url.rpartition(':')[2]}"
        assert (await asyncio.to_thread(checked, MESH_HEALTH=address)).returncode == 0
        reasons.append(Reason("stream_full", "LOG is full"))
        finished = await asyncio.to_thread(checked, MESH_HEALTH=address)
    assert finished.returncode == 1
    assert "LOG is full" in finished.stdout
    gone = await asyncio.to_thread(checked, MESH_HEALTH=address)
    assert gone.returncode == 1
    assert "no answer" in gone.stdout


def test_the_image_answers_where_its_own_check_asks() -> None:
    """And nothing else in the image says where: the command line would win over the environment."""
    dockerfile = (DEPLOY / "Dockerfile").read_text()
    assert re.search(r"^    MESH_HEALTH=0\.0\.0\.0:\d+$", dockerfile, re.MULTILINE)
    assert 'CMD ["python", "/app/healthcheck.py"]' in dockerfile
    assert "--health" not in (DEPLOY / "compose.yaml").read_text()
