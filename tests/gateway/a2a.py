"""Another agent: the A2A SDK's own client, which finds the gateway by its card."""

import contextlib
import uuid
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
from a2a.client import A2ACardResolver, Client, ClientConfig, ClientFactory
from a2a.types import a2a_pb2 as wire
from google.protobuf.json_format import MessageToDict, ParseDict

from mesh.gateway import A2AOptions, GatewayLimits
from mesh.gateway.tokens import TokenLimits, add_token
from tests.gateway.conftest import bearer, gateway_up
from tests.guard.stage import FLEET, Stage
from tests.servers import PATIENCE_S

FLEET_FILE = f'name = "{FLEET.name}"\nentry = "a"\n[agents.a]\n[clients.c1]\n'
UNLIMITED = TokenLimits(per_second=10_000)


@contextlib.asynccontextmanager
async def sdk_client(address: str, token: str, *, streaming: bool = True) -> AsyncIterator[Client]:
    """Give the SDK's client of the agent at an address."""
    async with httpx.AsyncClient(headers=bearer(token), timeout=PATIENCE_S) as http:
        card = await A2ACardResolver(http, address).get_agent_card()
        yield ClientFactory(ClientConfig(httpx_client=http, streaming=streaming)).create(card)


@contextlib.asynccontextmanager
async def agent_up(
    stage: Stage,
    folder: Path,
    tokens: Path,
    client: str = "c1",
    limits: TokenLimits = UNLIMITED,
    **shared: Any,
) -> AsyncIterator[tuple[str, str]]:
    """Run a gateway that is an agent; give its address, and a token of a client."""
    token, _ = add_token(tokens, client, limits=limits)
    wanted = {"a2a": A2AOptions(FLEET), "limits": GatewayLimits(**shared)}
    async with gateway_up(stage.mesh, folder, tokens, **wanted) as (_, address):
        yield address, token


def says(*parts: Any, **fields: Any) -> wire.SendMessageRequest:
    """Return a message of these parts: text as text, anything else as data."""
    shown = [{"text": part} if isinstance(part, str) else {"data": part} for part in parts]
    message = {"messageId": uuid.uuid4().hex, "role": "ROLE_USER", "parts": shown, **fields}
    made: wire.SendMessageRequest = ParseDict({"message": message}, wire.SendMessageRequest())
    return made


async def told(client: Client, request: wire.SendMessageRequest) -> list[wire.StreamResponse]:
    """Send a message; return everything that came of it."""
    return [each async for each in client.send_message(request)]


async def task_of(client: Client, request: wire.SendMessageRequest) -> wire.Task:
    """Send a message; return the task that came of it first."""
    async for each in client.send_message(request):
        return each.task
    raise AssertionError("nothing came of it")


def state(task: wire.Task | wire.TaskStatusUpdateEvent) -> str:
    """Return the state without its prefix, in small letters."""
    return str(wire.TaskState.Name(task.status.state)).removeprefix("TASK_STATE_").lower()


def plain(message: Any) -> Any:
    """Return what a message of the protocol holds as JSON."""
    return MessageToDict(message)
