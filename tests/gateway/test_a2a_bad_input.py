"""A thousand calls that are not as they should be: each gets an error of its kind, and the agent goes on."""

import asyncio
import copy
import json
import os
import random
from pathlib import Path
from typing import Any

import httpx

from tests.gateway.a2a import agent_up, says, sdk_client, task_of
from tests.gateway.conftest import bearer
from tests.gateway.test_bad_input import BODIES, IDS, VALUES
from tests.guard.stage import Stage
from tests.servers import PATIENCE_S

MANY = int(os.environ.get("MESH_TEST_A2A", "1000"))
SEED = 31
METHODS = (
    "SendMessage",
    "GetTask",
    "ListTasks",
    "CancelTask",
    "SubscribeToTask",
    "GetExtendedAgentCard",
    "CreateTaskPushNotificationConfig",
    "SendStreamingMessage",
    "message/send",
    "",
)
MESSAGE: dict[str, Any] = {
    "messageId": "m",
    "role": "ROLE_USER",
    "parts": [{"text": "x"}],
    "contextId": "k",
    "taskId": "c1_01JAZ00000000000000000000V",
    "metadata": {"to": "a"},
}
PARAMS: dict[str, Any] = {
    "message": MESSAGE,
    "configuration": {"returnImmediately": True, "historyLength": 1},
    "id": "c1_01JAZ00000000000000000000V",
    "pageSize": 5,
    "pageToken": "1.c1_x",
    "status": "TASK_STATE_WORKING",
    "statusTimestampAfter": "2026-01-01T00:00:00Z",
}
KNOWN = {-32700, -32600, -32601, -32602, *range(-32009, -32000)}


def spoiled(chance: random.Random) -> tuple[dict[str, str], bytes]:
    """Return a call that is wrong somewhere, mostly: headers, body."""
    headers = {"content-type": "application/json", "a2a-version": "1.0"}
    kind = chance.randrange(6)
    if kind == 0:
        return headers, chance.choice((*BODIES, b'{"jsonrpc":"2.0","id":' + b"9" * 5_000 + b"}"))
    params = {**PARAMS, "message": dict(MESSAGE)}
    for _ in range(chance.randrange(1, 4)):
        inside = params["message"] if chance.randrange(2) and isinstance(params["message"], dict) else params
        inside[chance.choice((*inside, "unknown"))] = copy.deepcopy(chance.choice((*VALUES, *IDS)))
    if isinstance(params["message"], dict) and chance.randrange(2):
        params["message"].pop("taskId", None)
    call: dict[str, Any] = {"jsonrpc": "2.0", "id": 1, "method": chance.choice(METHODS), "params": params}
    if kind == 1:
        call[chance.choice(("jsonrpc", "id", "method", "params"))] = chance.choice(VALUES)
    if kind == 2:
        headers["a2a-version"] = chance.choice(("", "0.3", "2.0", "x", "1", "9" * 99, "\xff"))
    body = json.dumps([call] if kind == 3 else call).encode()
    if kind == 4:
        at = chance.randrange(len(body))
        body = body[:at] + bytes([chance.randrange(256)]) + body[at + chance.randrange(3) :]
    return headers, body


async def test_whatever_is_sent_gets_an_error_of_its_kind_and_the_agent_goes_on(
    echoing: Stage, tmp_path: Path, tokens: Path
) -> None:
    chance, seen = random.Random(SEED), dict[int, int]()
    async with (
        agent_up(echoing, tmp_path, tokens) as (address, token),
        httpx.AsyncClient(timeout=PATIENCE_S) as http,
    ):

        async def send(headers: dict[str, str], body: bytes) -> None:
            named = headers | bearer(token)
            raw = {name.encode(): value.encode("latin-1") for name, value in named.items()}
            async with http.stream("POST", f"{address}/a2a", headers=raw, content=body) as answer:
                if answer.headers["content-type"].startswith("text/event-stream"):
                    seen[0] = seen.get(0, 0) + 1  # it was right
                    return
                told = json.loads(await answer.aread())
            assert answer.status_code in (200, 400, 413), (body[:200], told)
            code = told["error"]["code"] if "error" in told else 0
            seen[code] = seen.get(code, 0) + 1
            assert code == 0 or code in KNOWN, (body[:300], told)

        for _ in range(MANY // 20):
            await asyncio.gather(*(send(*spoiled(chance)) for _ in range(20)))
        assert {0, -32700, -32600, -32601, -32602, -32001, -32003, -32009} <= seen.keys(), seen
        async with sdk_client(address, token) as client:
            last = await task_of(client, says("as it should be"))
            await echoing.reaches(last.id, "request.opened")
