"""The gateway as a process of its own, killed with -9 in the middle: readers come back, and miss nothing."""

import asyncio
import contextlib
import os
import re
import signal
import socket
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import msgspec

from mesh.bus.roles import accounts_config
from mesh.gateway.tokens import add_token
from protocol.wire.ids import AgentName
from protocol.wire.moves import Ask, Complete
from tests.gateway.conftest import Heard, bearer, heard_in
from tests.guard.stage import Stage, seed_directory
from tests.servers import PATIENCE_S, ROOT, eventually


@contextlib.asynccontextmanager
async def gateway_process(
    stage: Stage, folder: Path, tokens: Path, *more: str, port: str = "0"
) -> AsyncIterator[tuple[str, asyncio.subprocess.Process]]:
    """Run `mesh gateway run`; give its address and its process. It is killed in the end."""
    where = ("--store", folder, "--tokens", tokens, "--keys", seed_directory(stage.mesh))
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "mesh", "gateway", "run", "--port", port, *map(str, where)),
        *("--url", stage.mesh.url, *more),
        cwd=ROOT,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
        env={**os.environ, "MESH_LOG_LEVEL": "critical"},
    )
    try:
        assert process.stdout is not None
        async with asyncio.timeout(PATIENCE_S):
            while line := await process.stdout.readline():
                if found := re.search(rb"is at (http://\S+)", line):
                    break
            else:
                raise AssertionError("the gateway ended before it was up")
        yield found[1].decode(), process
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()


async def test_a_reader_whose_gateway_is_killed_comes_back_and_misses_nothing(
    stage: Stage, tmp_path: Path, tokens: Path
) -> None:
    token, _ = add_token(tokens, "c1")
    agent, heard, port = await stage.actor("a"), list[Heard](), "0"
    request, seen, keyed = "", "", {"idempotency-key": os.urandom(8).hex()}
    for round_ in range(3):
        async with (
            gateway_process(stage, tmp_path, tokens, port=port) as (address, process),
            httpx.AsyncClient(base_url=address, headers=bearer(token), timeout=PATIENCE_S) as http,
        ):
            port = str(http.base_url.port)  # the next one takes its place
            posted = await http.post("/requests", json={"text": "x"}, headers=keyed)
            assert posted.status_code == 202, posted.text
            assert request in ("", posted.json()["request"])
            request = posted.json()["request"]
            last = {"last-event-id": seen} if seen else {}
            with contextlib.suppress(httpx.RemoteProtocolError, httpx.ReadError):
                async with http.stream("GET", f"/requests/{request}/events", headers=last) as answer:
                    work = await agent.work(request, round_=round_)
                    if round_ < 2:
                        question = Ask(to_agent=work.handoff.from_agent, question=f"{round_}?")
                        await agent.propose(request, work, question)
                    else:
                        await agent.propose(request, work, Complete(answer="done"))
                    async for each in heard_in(answer):
                        heard.append(each)
                        seen = each.id
                        if each.name == "question":
                            reply = await http.post(
                                f"/requests/{request}/reply", json={"value": round_, "n": each.data["n"]}
                            )
                            assert reply.status_code == 202, reply.text
                            process.send_signal(signal.SIGKILL)
                    assert round_ == 2
    assert [each.name for each in heard] == ["question", "question", "ended"]
    assert [each.data.get("question") for each in heard[:2]] == ["0?", "1?"]
    assert heard[-1].data["answer"] == "done"
    assert (await stage.types(request)).count("request.opened") == 1


async def test_it_answers_probes_and_drains_on_sigterm(stage: Stage, tmp_path: Path, tokens: Path) -> None:
    token, _ = add_token(tokens, "c1")
    with contextlib.closing(socket.create_server(("127.0.0.1", 0))) as free:
        probed = f"127.0.0.1:{free.getsockname()[1]}"
    async with (
        gateway_process(stage, tmp_path, tokens, "--health", probed) as (address, process),
        httpx.AsyncClient(headers=bearer(token), timeout=PATIENCE_S) as http,
    ):
        assert (await http.get(f"http://{probed}/readyz")).status_code == 200
        made = (await http.post(f"{address}/requests", json={"text": "x"})).json()["request"]
        async with http.stream("GET", f"{address}/requests/{made}/events") as answer:
            process.terminate()
            assert [each async for each in heard_in(answer)] == []  # it ends, and the reader comes back
        assert await process.wait() == 0


async def test_a_client_that_leaves_the_fleet_does_not_make_the_gateway_unready(
    own_stage: Stage, tmp_path: Path, tokens: Path
) -> None:
    stays, leaves = [bearer(add_token(tokens, name)[0]) for name in ("c1", "c2")]
    mesh, fewer = own_stage.mesh, msgspec.structs.replace(own_stage.mesh.fleet, clients=(AgentName("c1"),))
    publics = {name: key.public for name, key in mesh.keys.items()}
    with contextlib.closing(socket.create_server(("127.0.0.1", 0))) as free:
        probed = f"127.0.0.1:{free.getsockname()[1]}"
    async with (
        gateway_process(own_stage, tmp_path, tokens, "--health", probed) as (address, _),
        httpx.AsyncClient(base_url=address, timeout=PATIENCE_S) as http,
    ):

        async def submits(who: dict[str, str]) -> int:
            return (await http.post("/requests", json={"text": "x"}, headers=who)).status_code

        async def is_ready() -> bool:
            return (await http.get(f"http://{probed}/readyz")).status_code == 200

        async def is_refused(who: dict[str, str]) -> bool:
            answer = await http.post("/requests", json={"text": "x"}, headers=who)
            return bool(answer.json().get("code") == "gateway.client_unusable")

        assert (await submits(stays), await submits(leaves)) == (202, 202)
        assert await is_ready()
        await mesh.server.reload(accounts_config(fewer, publics))
        await eventually(lambda: is_refused(leaves))
        await eventually(is_ready)
        assert await submits(stays) == 202
        nobody = msgspec.structs.replace(fewer, clients=())
        await mesh.server.reload(accounts_config(nobody, publics))
        await eventually(lambda: is_refused(stays))
        assert not await is_ready(), "there is no other"
        await mesh.server.reload(accounts_config(mesh.fleet, publics))

        async def is_back() -> bool:
            return await submits(leaves) == 202

        await eventually(is_back)
