"""Thousands of requests that are not as they should be: each gets a problem, and the gateway goes on."""

import asyncio
import json
import random
import socket
from typing import Any

import httpx

from tests.gateway.conftest import Open, is_problem
from tests.guard.stage import Stage
from tests.servers import PATIENCE_S

MANY = 2_000
SEED = 27
GOOD: dict[str, Any] = {
    "text": "hello",
    "to": "a",
    "intent": "review",
    "facts": {"order": 1042},
    "artifacts": [{"name": "n", "uri": "s3://b/k"}],
    "constraints": {"max_resolution_time_s": 60, "budget": {"tokens": 10}},
    "policy": "default",
    "conversation": "k1",
    "continue_with": "entry",
}
VALUES: tuple[Any, ...] = (
    *(
        None,
        True,
        -1,
        0,
        1e400,
        2**63,
        2**70,
        1.5,
        "",
        "x",
        " ",
        "x" * 5_000,
        "\x00",
        "\ud83d\ude00",
        "ü\u202e",
    ),
    *(
        [],
        {},
        [[]],
        [{}],
        {"": {}},
        {"a": None},
        ["a", "a"],
        [{"key": "a", "value": 1}] * 2,
        "c1",
        "a.b",
        ">",
        "*",
    ),
    *(
        {"key": 1},
        [{"key": "", "value": 1}],
        [{"name": "x"}],
        {"text": 1},
        {"deadline": -1},
        {"budget": {"tokens": -1}},
    ),
)
BODIES: tuple[bytes, ...] = (
    *(
        b"",
        b" ",
        b"{",
        b"[]",
        b"null",
        b'"x"',
        b"\xff\xfe",
        b'{"text": "\xff"}',
        b'{"text": "x"}}',
        b"NaN",
        b"\x00",
    ),
    *(b'{"text": "x", "text": 1}', b'{"text": "\\ud800"}', b'{"facts": ' + b"[" * 5_000, b'{"a":' * 3_000),
    b'{"text": "x", "facts": {"a": ' + b"[" * 200 + b"]" * 200 + b"}}",
    b'{"text": "x", "facts": {"a": 1e999}}',
)
IDS = (
    "x",
    "c1_",
    "c2_01JAZ00000000000000000000",
    "c1_01jaz0000000000000000000000",
    "..",
    "%2e%2e",
    "c1_%00",
    "%ff",
)


def spoiled(chance: random.Random) -> tuple[str, str, dict[str, str], bytes]:
    """Return a request that is wrong somewhere, mostly: method, path, headers, body."""
    method, headers = "POST", {"content-type": "application/json"}
    kind = chance.randrange(6)
    path = chance.choice(("/requests", "/requests", f"/requests/{chance.choice(IDS)}/reply"))
    if kind == 0:
        return method, path, headers, chance.choice(BODIES)
    document = dict(GOOD)
    for _ in range(chance.randrange(1, 3)):
        name = chance.choice((*GOOD, "unknown", "value", "n", "rerun_of"))
        document[name] = chance.choice(VALUES)
    body = json.dumps(document).encode()
    if kind == 1:
        at = chance.randrange(len(body))
        body = body[:at] + bytes([chance.randrange(256)]) + body[at + chance.randrange(3) :]
    if kind == 2:
        headers["content-type"] = chance.choice(("", "text/plain", "application/json; charset=\xff", "a/b/c"))
    if kind == 3:
        headers["idempotency-key"] = chance.choice(("", "x" * 256, "\xfc", "k k", "k\tk", "k"))
    if kind == 4:
        method, path = chance.choice(
            (("GET", "/requests"), ("PUT", "/requests"), ("GET", "/requests//events"))
        )
    if kind == 5:
        method, path = "GET", f"/requests/{chance.choice(IDS)}/events"
        headers["last-event-id"] = chance.choice(("-1", "x", "9" * 400, "1", "\xb2"))
    return method, path, headers, body


async def test_whatever_is_sent_gets_a_typed_answer_and_the_gateway_goes_on(
    stage: Stage, caller: Open
) -> None:
    chance, seen = random.Random(SEED), dict[int, int]()
    async with caller() as http:

        async def send(method: str, path: str, headers: dict[str, str], body: bytes) -> None:
            raw = {name.encode(): value.encode("latin-1") for name, value in headers.items()}
            answer = await http.request(method, path, headers=raw, content=body)
            seen[answer.status_code] = seen.get(answer.status_code, 0) + 1
            if answer.status_code != 202:
                problem = is_problem(answer, answer.status_code)
                assert answer.status_code < 500, (method, path, headers, body[:200], problem)

        for _ in range(MANY // 50):
            await asyncio.gather(*(send(*spoiled(chance)) for _ in range(50)))
        assert {202, 400, 404, 405, 415, 422} <= seen.keys(), seen
        last = await http.post("/requests", json={"text": "as it should be"})
        assert last.status_code == 202
        await stage.reaches(last.json()["request"], "request.opened")


async def test_what_is_no_http_at_all_harms_nobody(stage: Stage, caller: Open) -> None:
    chance = random.Random(SEED)
    async with caller() as http:
        host, port = http.base_url.host, http.base_url.port
        for _ in range(200):
            lines = b"POST /requests HTTP/1.1\r\nhost: x\r\ncontent-length: 9\r\n\r\n{}"
            at = chance.randrange(len(lines))
            noise = lines[:at] + chance.randbytes(chance.randrange(1, 40)) + lines[at:]
            reader, writer = await asyncio.open_connection(host, port, family=socket.AF_INET)
            writer.write(noise)
            writer.write_eof()
            async with asyncio.timeout(PATIENCE_S):
                answer = await reader.read(4_096)
            writer.close()
            assert not answer or answer.startswith(b"HTTP/1.1 4"), answer
        assert (await http.post("/requests", json={"text": "x"})).status_code == 202


async def test_a_place_is_named(caller: Open) -> None:
    wrong: tuple[tuple[dict[str, Any], str], ...] = (
        ({}, "text"),
        ({"text": 1}, "$.text"),
        ({"text": "x", "txt": "y"}, "txt"),
        ({"text": "x", "facts": [{"key": 1, "value": 2}]}, "$.facts[0].key"),
        ({"text": "x", "facts": {"text": "y"}}, "text"),
        ({"text": " "}, "text"),
        ({"text": "x", "constraints": {"budget": {"tokens": -1}}}, "budget"),
        ({"text": "x", "continue_with": "last"}, "conversation"),
    )
    async with caller() as http:
        for body, place in wrong:
            answer: httpx.Response = await http.post("/requests", json=body)
            assert place in is_problem(answer, 422, "protocol.malformed")["detail"], body
