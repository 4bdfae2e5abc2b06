"""Probes over HTTP: what is answered, and that no request harms the service."""

import asyncio
import json

import pytest

from mesh.service.conditions import _MOST, ProbeAnswer, Probes, ProbesUnusable, Reason, parse_address
from tests.servers import PATIENCE_S


async def ask(probes: Probes, raw: bytes) -> bytes:
    """Return all that comes back for some bytes."""
    host, port = probes.url.removeprefix("http://").rsplit(":", 1)
    reader, writer = await asyncio.open_connection(host.strip("[]"), int(port))
    writer.write(raw)
    writer.write_eof()
    try:
        async with asyncio.timeout(PATIENCE_S):
            return await reader.read()
    finally:
        writer.close()


def get(path: str, verb: str = "GET") -> bytes:
    return f"{verb} {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode()


def status(answer: bytes) -> int:
    return int(answer.split(b" ", 2)[1])


async def test_a_service_that_works_is_alive_and_ready() -> None:
    async with Probes("127.0.0.1:0", list) as probes:
        for path in ("/healthz", "/readyz", "/readyz?verbose"):
            assert status(await ask(probes, get(path))) == 200
        answer = await ask(probes, get("/readyz"))
    assert json.loads(answer.partition(b"\r\n\r\n")[2]) == {"ready": True, "reasons": []}


async def test_one_that_does_not_says_why_and_lives_all_the_same() -> None:
    reasons = [Reason("stream_full", "LOG is full", 1.5)]
    async with Probes("127.0.0.1:0", lambda: reasons) as probes:
        answer = await ask(probes, get("/readyz"))
        assert status(await ask(probes, get("/healthz"))) == 200
        reasons.clear()
        assert status(await ask(probes, get("/readyz"))) == 200
    assert status(answer) == 503
    body = json.loads(answer.partition(b"\r\n\r\n")[2])
    assert body == {
        "ready": False,
        "reasons": [{"code": "stream_full", "text": "LOG is full", "since_s": 1.5}],
    }


async def test_head_gets_no_body_and_its_length() -> None:
    async with Probes("127.0.0.1:0", list) as probes:
        head, _, body = (await ask(probes, get("/healthz", "HEAD"))).partition(b"\r\n\r\n")
    assert body == b""
    assert b"Content-Length: 16" in head


BAD = {
    "another-page": (get("/"), 404),
    "another-verb": (get("/healthz", "POST"), 405),
    "no-http": (b"hello\r\n\r\n", 400),
    "half-a-request": (b"GET /healthz HTTP/1.1\r\nHost", 400),
    "nothing": (b"", 400),
    "no-text": (b"\xff\xfe \x00 HTTP/1.1\r\n\r\n", 405),
    "a-path-that-is-no-text": (b"GET /\xff HTTP/1.1\r\n\r\n", 404),
    "a-header-without-end": (b"GET /healthz HTTP/1.1\r\nA: " + b"a" * 100_000, 431),
    "another-protocol": (b"GET /healthz SPDY/3\r\n\r\n", 400),
}


@pytest.mark.parametrize("name", BAD)
async def test_a_bad_request_is_told_so_and_the_next_is_answered(name: str) -> None:
    raw, expected = BAD[name]
    async with Probes("127.0.0.1:0", list) as probes:
        try:
            answer = await ask(probes, raw)
        except ConnectionError:  # it hung up while we were still sending
            answer = b"HTTP/1.1 431 "
        assert status(answer) == expected
        assert status(await ask(probes, get("/healthz"))) == 200


async def test_those_who_connect_and_say_nothing_do_not_keep_others_out() -> None:
    async with Probes("127.0.0.1:0", list) as probes:
        host, port = probes.url.removeprefix("http://").rsplit(":", 1)
        idle = [await asyncio.open_connection(host, int(port)) for _ in range(200)]
        for _ in range(3):
            assert status(await ask(probes, get("/healthz"))) == 200
        assert len(probes._open) <= _MOST, "and are no more than a probe's share of the service"
        for _, writer in idle:
            writer.close()


async def test_a_page_can_be_added_and_one_that_breaks_is_a_500() -> None:
    async with Probes("127.0.0.1:0", list) as probes:
        probes.add("/metrics", lambda: ProbeAnswer(200, b"up 1\n", "text/plain; version=0.0.4"))
        probes.add("/broken", lambda: ProbeAnswer(1 // 0, b""))
        answer = await ask(probes, get("/metrics"))
        assert status(await ask(probes, get("/broken"))) == 500
    assert b"Content-Type: text/plain; version=0.0.4\r\n" in answer
    assert answer.endswith(b"\r\n\r\nup 1\n")


@pytest.mark.parametrize(
    ("text", "address"),
    [("127.0.0.1:80", ("127.0.0.1", 80)), ("[::1]:0", ("::1", 0)), ("localhost:8081", ("localhost", 8081))],
)
def test_an_address_is_a_host_and_a_port(text: str, address: tuple[str, int]) -> None:
    assert parse_address(text) == address


@pytest.mark.parametrize("text", ["", "8081", ":8081", "127.0.0.1", "127.0.0.1:x", "h:70000", "::1:80"])
def test_anything_else_is_an_error_that_names_it(text: str) -> None:
    with pytest.raises(ProbesUnusable, match="HOST:PORT"):
        parse_address(text)


async def test_a_port_that_is_taken_is_an_error() -> None:
    async with Probes("127.0.0.1:0", list) as probes:
        with pytest.raises(ProbesUnusable, match="cannot listen"):
            async with Probes(probes.url.removeprefix("http://"), list):
                pass
