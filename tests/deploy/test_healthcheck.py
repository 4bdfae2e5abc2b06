"""The image's health check, against real sockets. Like the image, it needs Linux."""

import os
import socket
import subprocess
import sys
from collections.abc import Iterator

import pytest

from tests.deploy.validator import DEPLOY


def healthy(urls: str) -> bool:
    """Return what the check says where NATS_URL is `urls`."""
    environment = {**os.environ, "NATS_URL": urls}
    script = [sys.executable, str(DEPLOY / "healthcheck.py")]
    return subprocess.run(script, env=environment, timeout=30, check=False).returncode == 0


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
