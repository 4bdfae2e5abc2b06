"""Guards and agents in this process, each at the end of a wire of its own that a test can cut."""

import asyncio
import contextlib
from collections import Counter
from typing import TypeVar

from mesh.agent import Turn, agent, tool
from mesh.agent._runtime import Runtime
from mesh.agent.tools import NOT_DONE, Tool
from mesh.bus.connection import Bus, connect
from mesh.bus.event_log import JetStreamLog
from mesh.client import Client, Outcome
from mesh.guard.service import Guard
from mesh.testing import EmbeddedBus
from protocol.wire.moves import Move
from tests.guard.stage import check
from tests.servers import PATIENCE_S, until
from tests.trouble.proxy import Proxy

S = TypeVar("S", Guard, Runtime)


class Wired:
    """Services of one mesh. Agent `a` pays and hands to `b`, which ships and completes."""

    def __init__(self, mesh: EmbeddedBus) -> None:
        self.mesh = mesh
        self.wires: dict[str, Proxy] = {}
        self.deeds: list[tuple[str, str]] = []
        """What the tools did: name and idempotency key."""
        self.began: list[str] = []
        """The versions of `a` that began a turn, one for each time."""
        self.go = asyncio.Event()
        """While it is not set, `a` waits after it has paid."""
        self.go.set()
        self._stack = contextlib.AsyncExitStack()
        self._services: dict[Guard | Runtime, asyncio.Task[None]] = {}

    async def wire(self, name: str, identity: str) -> Bus:
        proxy = Proxy(int(self.mesh.url.rpartition(":")[2]))
        self.wires[identity] = await self._stack.enter_async_context(proxy)
        bus = await connect(proxy.url, name=name, seed=self.mesh.keys[name].seed)
        return await self._stack.enter_async_context(bus)

    async def guard(self, identity: str) -> Guard:
        return self._run(Guard(await self.wire("guard", identity), identity=identity))

    async def agent(self, name: str, version: str = "1", *, version_grace_s: float = 30.0) -> Runtime:
        async def a(turn: Turn) -> Move:
            self.began.append(version)
            await turn.call(self._tool("pay"), request=turn.request)
            await self.go.wait()
            return turn.transfer("b", summary="ship it")

        async def b(turn: Turn) -> Move:
            await turn.call(self._tool("ship"), request=turn.request)
            return turn.complete("shipped")

        make = agent(name=name, version=version, version_grace_s=version_grace_s)
        identity = name if name not in self.wires else f"{name}-{len(self.wires)}"
        return self._run(Runtime(await self.wire(name, identity), make(a if name == "a" else b)))

    async def dismiss(self, service: Guard | Runtime) -> None:
        """Let a service go without a grace: what it has in hand is given back."""
        task = self._services.pop(service)
        await service.drain(0.0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    def _run(self, service: S) -> S:
        self._services[service] = asyncio.create_task(service.run())
        return service

    async def ready(self) -> None:
        """Wait until everybody takes work; raise what somebody ended with instead."""

        def settled() -> bool:
            for task in self._services.values():
                if task.done():
                    task.result()
            return all(service.ready for service in self._services)

        await until(settled)

    def _tool(self, name: str) -> Tool:
        def find(key: str) -> object:
            return "done" if (name, key) in self.deeds else NOT_DONE

        @tool(effect="reconcilable", reconcile=find, name=name)
        async def act(request: str, idempotency_key: str) -> str:
            self.deeds.append((name, idempotency_key))
            return "done"

        return act

    async def client(self) -> Client:
        return await Client.on(await self._stack.enter_async_context(self.mesh.connected_as("c1")), "c1")

    async def audit(self, outcomes: list[Outcome]) -> None:
        """Assert that every request completed with each effect once, and that every log holds."""
        assert Counter(each.status for each in outcomes) == {"completed": len(outcomes)}
        assert set(Counter(self.deeds).values()) == {1}
        assert Counter(name for name, _ in self.deeds) == {"pay": len(outcomes), "ship": len(outcomes)}
        async with self.mesh.connected_as("admin") as admin:
            for each in outcomes:
                check(each.request, [stored.data for stored in await JetStreamLog(admin).read(each.request)])

    async def close(self) -> None:
        for wire in self.wires.values():
            wire.flow()
        for service in self._services:
            await service.drain(1.0)
        for task in self._services.values():
            task.cancel()
        await asyncio.gather(*self._services.values(), return_exceptions=True)
        await self._stack.aclose()


async def finish(client: Client, count: int) -> list[Outcome]:
    """Submit so many requests at once and wait for all of them."""
    requests = [await client.submit("please") for _ in range(count)]
    return await asyncio.gather(*(client.wait(each, timeout_s=PATIENCE_S) for each in requests))
