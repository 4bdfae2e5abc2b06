"""Fixtures: a gateway in this process, over a stage's mesh, and callers with a token."""

import asyncio
import contextlib
import json
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest
import pytest_asyncio

from mesh.agent.definition import Agent
from mesh.agent.turn import Turn
from mesh.bus.credentials import seed_file
from mesh.gateway import GatewayLimits, GatewayOptions
from mesh.gateway.clients import ClientPool
from mesh.gateway.server import Gateway
from mesh.gateway.tokens import TokenBook, TokenLimits, add_token
from mesh.settings import Access, NoCredentials
from mesh.testing import EmbeddedBus
from protocol.wire.moves import Move
from tests.guard.stage import Stage, furnished_mesh, seed_directory, staged
from tests.logs import plain_logs
from tests.servers import PATIENCE_S

Open = Callable[..., AbstractAsyncContextManager[httpx.AsyncClient]]


@pytest_asyncio.fixture
async def stage(furnished: EmbeddedBus) -> AsyncIterator[Stage]:
    """A stage with one guard; every log that the test leaves behind is judged again when it ends."""
    with plain_logs(logging.CRITICAL):
        async with staged(furnished, guards=1) as own:
            yield own


@pytest_asyncio.fixture
async def own_stage(tmp_path: Path) -> AsyncIterator[Stage]:
    """A stage on a server of its own, which may be killed."""
    with plain_logs(logging.CRITICAL):
        async with furnished_mesh(tmp_path / "mesh") as mesh, staged(mesh, guards=1) as own:
            yield own


@pytest.fixture
async def echoing(stage: Stage) -> Stage:
    """A stage whose agent answers with the text."""

    async def echo(turn: Turn) -> Move:
        return turn.complete(turn.facts["text"])

    await stage.runtime(Agent("a", echo, concurrency=16))
    return stage


@pytest.fixture
def tokens(tmp_path: Path) -> Path:
    return tmp_path / "tokens.json"


@contextlib.asynccontextmanager
async def gateway_up(
    mesh: EmbeddedBus, folder: Path, tokens: Path, **options: Any
) -> AsyncIterator[tuple[Gateway, str]]:
    """Run a gateway in this process; give it, and its address."""

    def access(name: str) -> Access:
        seed = seed_file(seed_directory(mesh), name)
        if not seed.exists():
            raise NoCredentials(f"no key of {name!r}")
        return Access(mesh.url, name, seed)

    up: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    wanted = GatewayOptions(store=folder, tokens=tokens, **options)
    pool = ClientPool(access)
    gateway = Gateway(pool, wanted, TokenBook(tokens), up.set_result)
    running = asyncio.create_task(gateway.run())
    try:
        both: set[asyncio.Future[Any]] = {up, running}
        await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        if running.done():
            running.result()
        yield gateway, up.result()
    finally:
        await gateway.drain(1.0)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await pool.close()


@pytest.fixture
def caller(stage: Stage, tmp_path: Path, tokens: Path) -> Open:
    """Call a gateway: `async with caller() as http:`, as `c1` unless another client is named."""

    @contextlib.asynccontextmanager
    async def calling(
        client: str = "c1", limits: TokenLimits | None = None, shared: GatewayLimits | None = None
    ) -> AsyncIterator[httpx.AsyncClient]:
        token, _ = add_token(tokens, client, limits=limits or TokenLimits(per_second=10_000))
        async with (
            gateway_up(stage.mesh, tmp_path, tokens, limits=shared or GatewayLimits()) as (_, address),
            httpx.AsyncClient(base_url=address, headers=bearer(token), timeout=PATIENCE_S) as http,
        ):
            yield http

    return calling


def bearer(token: str) -> dict[str, str]:
    return {"authorization": f"Bearer {token}"}


class Heard(NamedTuple):
    """One event of a stream, as the standard of server-sent events reads it."""

    name: str
    data: Any
    id: str


async def heard_in(answer: httpx.Response) -> AsyncIterator[Heard]:
    """Read a stream as a browser does (WHATWG HTML, 9.2.6): fields, an empty line dispatches, ids stay."""
    assert answer.headers["content-type"].startswith("text/event-stream"), answer.status_code
    name, data, last = "", list[str](), ""
    async for line in answer.aiter_lines():
        if not line:
            if data:
                yield Heard(name or "message", json.loads("\n".join(data)), last)
            name, data = "", []
            continue
        field, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if field == "event":
            name = value
        elif field == "data":
            data.append(value)
        elif field == "id":
            last = value


def is_problem(answer: httpx.Response, status: int, code: str = "") -> dict[str, Any]:
    """Assert that an answer is a problem of a status, with everything that one has; return it."""
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    problem: dict[str, Any] = answer.json()
    assert problem["status"] == status
    assert problem["type"].endswith(problem["code"])
    assert all(problem[name] for name in ("title", "detail", "code", "remedy")), problem
    assert code in ("", problem["code"]), problem
    return problem
