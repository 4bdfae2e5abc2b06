"""Restate beside the mesh: a journaling server, and five services as processes of their own.

A request enters at the service `front`, which hands it to `a` and waits for an awakeable; `a` to `e` hand on
by one-way sends, which is Restate's fastest form, and `e` resolves the awakeable. The server syncs its log
before it acknowledges, as it ships. Nothing is judged: there is no guard, no limit, no permission between
services, and no log of a request that could be replayed.

A member is `python -m bench.peers.restate driver INGRESS_URL`, or `… NAME PORT` for a service.
"""

import asyncio
import contextlib
import itertools
import json
import os
import socket
import sys
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from bench.crew import Crew, obey
from bench.load import ANSWER, FACTS, SUMMARY, TEXT, Task, run
from bench.peers.place import NODE_MODULES, Fetched
from bench.place import AGENTS
from bench.rounds import Side

if TYPE_CHECKING:  # only a member has the SDK
    import restate

_MACHINE = "arm64" if os.uname().machine == "aarch64" else "x64"
SERVER = NODE_MODULES / "@restatedev" / f"restate-server-linux-{_MACHINE}" / "bin" / "restate-server"
DRIVER = "driver"
_NEXT = dict(itertools.pairwise(AGENTS))
_LOOK_S = 0.1
_READY_S = 60.0
_FRONT = "front"


@contextlib.asynccontextmanager
async def restate_side(directory: Path, fetched: Fetched) -> AsyncIterator[Side]:
    """Start the server, five services and a driver. Raises TimeoutError."""
    await asyncio.to_thread(directory.mkdir, parents=True, exist_ok=True)
    ingress, admin, node, *ports = _free_ports(3 + len(AGENTS))
    config = directory / "restate.toml"
    config.write_text(_CONFIG.format(base=directory / "store", ingress=ingress, admin=admin, node=node))
    async with Crew(directory, fetched.environment) as crew:
        with (directory / "server.log").open("wb") as log:
            server = await asyncio.create_subprocess_exec(
                fetched.directory / SERVER, "-c", config, "--no-logo", stdout=log, stderr=log, cwd=directory
            )
        try:
            await _answers(f"http://127.0.0.1:{admin}/health")
            async with asyncio.TaskGroup() as starting:
                for name, port in zip(AGENTS, ports, strict=True):
                    starting.create_task(crew.start(name, __name__, name, str(port)))
            for port in ports:
                await _post(f"http://127.0.0.1:{admin}/deployments", {"uri": f"http://127.0.0.1:{port}"})
            driver = await crew.start(DRIVER, __name__, DRIVER, f"http://127.0.0.1:{ingress}/{_FRONT}/ask")
            pids = {"restate-server": server.pid, **{name: each.pid for name, each in crew.members.items()}}
            yield Side("restate", pids, [driver])
        finally:
            server.terminate()
            await server.wait()


_CONFIG = """
base-dir = "{base}"
bind-address = "127.0.0.1:{node}"
advertised-address = "http://127.0.0.1:{node}/"
listen-mode = "tcp"
disable-telemetry = true
log-filter = "error"
[ingress]
bind-address = "127.0.0.1:{ingress}"
[admin]
bind-address = "127.0.0.1:{admin}"
"""


def _free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        held = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in held:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in held]


async def _answers(url: str) -> None:
    async with asyncio.timeout(_READY_S):
        while True:
            with contextlib.suppress(OSError, urllib.error.URLError):
                await asyncio.to_thread(lambda: urllib.request.urlopen(url, timeout=1).read())
                return
            await asyncio.sleep(_LOOK_S)


async def _post(url: str, body: dict[str, Any]) -> None:
    request = urllib.request.Request(url, json.dumps(body).encode(), {"content-type": "application/json"})
    await asyncio.to_thread(lambda: urllib.request.urlopen(request, timeout=30).read())


# --- inside a member ------------------------------------------------------------------------------


def _handoff(giver: str, taker: str, path: list[str], wake: str = "") -> dict[str, Any]:
    """Return what a hop carries: as much as a handoff of the mesh's side."""
    facts = [msgspec.to_builtins(fact) for fact in FACTS]
    return {
        "from": giver,
        "to": taker,
        "path": path,
        "text": TEXT,
        "facts": facts,
        "summary": SUMMARY,
        "wake": wake,
    }


def _services(name: str) -> "list[restate.Service]":
    """Return what the process of an agent serves; the first one's also takes requests in."""
    import restate

    service = restate.Service(name)

    @service.handler("turn")
    async def turn(ctx: restate.Context, work: dict[str, Any]) -> None:
        following, path = _NEXT.get(name), [*work["path"], name]
        if following is None:
            ctx.resolve_awakeable(work["wake"], {"answer": ANSWER, "path": path})
        else:
            on = _handoff(name, following, path, work["wake"])
            ctx.generic_send(following, "turn", json.dumps(on).encode())

    if name != AGENTS[0]:
        return [service]
    front = restate.Service(_FRONT)

    @front.handler("ask")
    async def ask(ctx: restate.Context, work: dict[str, Any]) -> dict[str, Any]:
        wake, answered = ctx.awakeable()
        ctx.generic_send(name, "turn", json.dumps({**work, "wake": wake}).encode())
        answer: dict[str, Any] = await answered
        return answer

    return [service, front]


async def _serve(name: str, port: str) -> None:
    import restate
    from hypercorn.asyncio import serve
    from hypercorn.config import Config

    config = Config()
    config.bind, config.accesslog, config.loglevel = [f"127.0.0.1:{port}"], None, "ERROR"
    config.h2_max_concurrent_streams = config.keep_alive_max_requests = (
        2**31 - 1
    )  # as many as the server asks
    ended = asyncio.Event()
    serving = asyncio.create_task(serve(restate.app(_services(name)), config, shutdown_trigger=ended.wait))
    await obey()
    ended.set()
    await serving


async def _drive(url: str) -> None:
    import aiohttp

    body = _handoff("app", AGENTS[0], [])
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:

        async def one() -> None:
            async with session.post(url, json=body) as answered:
                said = await answered.json()
                if said.get("path") != list(AGENTS):
                    raise RuntimeError(f"{answered.status}: {said}")

        async def task(told: Any) -> Any:
            return await run(one, msgspec.convert(told, Task))

        await _first(one)
        await obey(task)


async def _first(one: Callable[[], Awaitable[None]]) -> None:
    """Wait until the server has found all services."""
    async with asyncio.timeout(_READY_S):
        while True:
            try:
                await one()
            except RuntimeError:
                await asyncio.sleep(_LOOK_S)
            else:
                return


if __name__ == "__main__":
    asyncio.run(_drive(sys.argv[2]) if sys.argv[1] == DRIVER else _serve(sys.argv[1], sys.argv[2]))
