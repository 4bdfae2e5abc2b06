"""docs/gateway.md: what it types can be typed, and is answered as it says."""

import asyncio
import json
import os
from pathlib import Path
from typing import Any

import httpx

from tests.docs.pages import blocks, read
from tests.gateway.a2a import FLEET_FILE
from tests.gateway.conftest import bearer
from tests.gateway.test_dies import gateway_process
from tests.guard.stage import Stage
from tests.servers import PATIENCE_S, until
from tests.system.terminal import in_process
from tests.system.test_cli_webhook import receiving

CONSOLE, SH, JSON, HOOK, VERIFY, A2A = (block.text for block in blocks(read("gateway.md")))
ADDRESS = "http://127.0.0.1:8430"


async def typed(command: str, address: str, **variables: str) -> str:
    process = await asyncio.create_subprocess_exec(
        *("bash", "-c", command.replace(ADDRESS, address)),
        stdout=asyncio.subprocess.PIPE,
        env={**os.environ, **variables},
    )
    said, _ = await asyncio.wait_for(process.communicate(), PATIENCE_S)
    return said.decode()


async def test_the_page_does_what_it_says(echoing: Stage, tmp_path: Path, tokens: Path) -> None:
    install, make, run = (line.removeprefix("$ ") for line in CONSOLE.splitlines())
    assert install == "pip install 'handoff-mesh[ui]'"
    assert make.startswith("mesh gateway token app --note ")
    assert run == "mesh gateway run"  # as `gateway_process` does
    made = await asyncio.to_thread(in_process, "gateway", "token", "c1", "--tokens", tokens)
    token = made.stdout.strip()
    submit, follow = SH.replace("\\\n", " ").splitlines()
    async with gateway_process(echoing, tmp_path, tokens) as (address, _):
        request = json.loads(await typed(submit, address, TOKEN=token))["request"]
        told = await typed(follow, address, TOKEN=token, ID=request)
        assert '"answer":"Where is my parcel?"' in told.partition("event: ended")[2]
        async with httpx.AsyncClient(base_url=address, headers=bearer(token), timeout=PATIENCE_S) as http:
            wrong = await http.post("/requests", json={"text": 1})
        assert wrong.json() == json.loads(JSON)


async def test_an_agent_is_found_as_the_page_says(stage: Stage, tmp_path: Path, tokens: Path) -> None:
    install, run = (line.removeprefix("$ ") for line in A2A.splitlines())
    assert install == "pip install 'handoff-mesh[a2a]'"
    (tmp_path / "mesh.toml").write_text(FLEET_FILE)
    typed_in = (*run.removeprefix("mesh gateway run ").split(), "--fleet", str(tmp_path))
    async with (
        gateway_process(stage, tmp_path, tokens, *typed_in) as (address, _),
        httpx.AsyncClient() as http,
    ):
        card = (await http.get(f"{address}/.well-known/agent-card.json", timeout=PATIENCE_S)).json()
    assert card["supportedInterfaces"][0]["url"] == "https://agents.shop.example/a2a"


async def test_a_post_is_verified_as_the_page_does(echoing: Stage, tmp_path: Path, tokens: Path) -> None:
    with receiving() as receiver:
        typed_in = HOOK.strip().removeprefix("$ mesh ").replace(" app ", " c1 ").split()
        typed_in[typed_in.index("--post") + 1] = receiver.url
        made = await asyncio.to_thread(in_process, *typed_in, "--tokens", tokens)
        token, secret = made.stdout.split()
        async with gateway_process(echoing, tmp_path, tokens) as (address, _):
            async with httpx.AsyncClient(base_url=address, headers=bearer(token)) as http:
                await http.post("/requests", json={"text": "hello"}, timeout=PATIENCE_S)
            await until(lambda: bool(receiver.got))
        headers, body = receiver.got[0]
        said: dict[str, Any] = {"secret": secret, "body": body, "headers": headers}
        exec(VERIFY, said)
        assert (said["news"]["type"], said["news"]["data"]["answer"]) == ("request.completed", "hello")
