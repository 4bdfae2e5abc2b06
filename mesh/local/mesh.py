"""A mesh on this machine for one program: a bus only, or server, guard and agents in one process.

async with LocalMesh([front, greeter], tmp_path) as mesh:
    outcome = await mesh.send("Say hello", facts={"name": "Ada"})
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import msgspec

from mesh.agent._runtime import Runtime
from mesh.agent.definition import Agent
from mesh.artifacts import ArtifactStore
from mesh.bus import provision, roles, streams
from mesh.bus.connection import Bus, connect
from mesh.bus.credentials import KeyPair, keyring
from mesh.bus.event_log import JetStreamLog
from mesh.bus.roles import ADMIN, GUARD
from mesh.client import Client, Outcome
from mesh.guard.service import Guard
from mesh.local.server import EmbeddedServer, Lifecycle
from protocol.domain.ledger import fold
from protocol.wire import codec, events, subjects
from protocol.wire.config import AgentEntry, Fleet, Policy
from protocol.wire.events import AnyEvent, type_of
from protocol.wire.ids import AgentName


def fleet_of(*agents: str | AgentEntry, human: bool = True) -> Fleet:
    """Return a fleet of these agents, with a client, an operator and a viewer.

    Args:
        agents: names, or whole entries; the first is the entry agent.
        human: True if people can be asked.
    """
    entries = [AgentEntry(name=AgentName(each)) if isinstance(each, str) else each for each in agents]
    return Fleet(
        name="test",
        entry=entries[0].name,
        agents={entry.name: entry for entry in entries},
        clients=(AgentName("client"),),
        operators=(AgentName("ops"),),
        viewers=(AgentName("audit"),),
        human=human,
    )


class EmbeddedBus(Lifecycle):
    """`async with EmbeddedBus(fleet, directory) as mesh:` then `await mesh.connect_as("billing")`.

    The server runs under exactly the configuration of a deployment.

    Args:
        directory: for keys and store; a second start finds them again.
        sync_always: fsync every message. Tests that are not about durability do without it.
        anonymous: the client that connections without credentials act as.
    """

    def __init__(
        self,
        fleet: Fleet,
        directory: Path,
        *,
        sync_always: bool = False,
        anonymous: str | None = None,
        storage: streams.Storage = streams.DEFAULT_STORAGE,
    ) -> None:
        self.fleet = fleet
        self.keys: dict[str, KeyPair] = keyring(directory / "keys", roles.names(fleet))
        self._storage = storage
        publics = {name: key.public for name, key in self.keys.items()}
        self.server = EmbeddedServer(
            roles.accounts_config(fleet, publics, anonymous=anonymous),
            directory / "store",
            sync_always=sync_always,
            probe_seed=self.keys[roles.ADMIN].credential,
        )

    @property
    def url(self) -> str:
        return self.server.url

    async def start(self) -> None:
        """Start the server and provision it."""
        await self.server.start()
        async with self.connected_as(roles.ADMIN) as admin:
            await provision.provision(admin, self.fleet, self._storage)

    async def stop(self) -> None:
        await self.server.stop()

    async def connect_as(self, name: str) -> Bus:
        """Return a connection with the credentials of `name`; the caller closes it."""
        return await connect(self.url, name=name, seed=self.keys[name].credential, timeout_s=_READY_S)

    @contextlib.asynccontextmanager
    async def connected_as(self, name: str) -> AsyncIterator[Bus]:
        """Yield a connection with the credentials of `name`, and close it."""
        async with await self.connect_as(name) as bus:
            yield bus


_POLL_S = 0.01
_READY_S = 60.0
_GRACE_S = 5.0


class LocalMesh:
    """A real nats-server, a real guard and the runtimes of these agents, each under its own credentials.

    Args:
        agents: their code. Other agents of the fleet are not served.
        directory: for keys and store; a new one for each test.
        fleet: the members and their permissions; by default a fleet of these agents, entered at the first.
        policies: by name, as in `InMemoryGuard`.
        prices: of models, by id, as in `InMemoryGuard`.
    """

    def __init__(
        self,
        agents: Iterable[Agent],
        directory: Path,
        *,
        fleet: Fleet | None = None,
        policies: Mapping[str, Policy] | None = None,
        prices: Mapping[str, Any] | None = None,
    ) -> None:
        self._agents = tuple(agents)
        self.fleet = fleet or fleet_of(*(agent.name for agent in self._agents))
        if not self.fleet.artifacts:
            self.fleet = msgspec.structs.replace(self.fleet, artifacts=str(directory / "artifacts"))
        self.store = ArtifactStore.at(self.fleet.artifacts)
        """Where the agents save artifacts."""
        self.bus = EmbeddedBus(self.fleet, directory)
        """The server, and the credentials of all members."""
        self._policies = dict(policies or {"default": Policy()})
        self._prices = dict(prices or {})
        self._stack = contextlib.AsyncExitStack()
        self._workers: dict[Guard | Runtime, asyncio.Task[None]] = {}
        self._clients: dict[str, Client] = {}

    async def client(self, name: str | None = None) -> Client:
        """Return a client of the fleet, by default its first."""
        chosen = name or self.fleet.clients[0]
        if chosen not in self._clients:
            self._clients[chosen] = await Client.on(await self._connection(chosen), chosen)
        return self._clients[chosen]

    async def send(self, text: str, *, within_s: float = 30.0, **submit: Any) -> Outcome:
        """Submit a request and return how it ended.

        Args:
            submit: further arguments of `Client.submit`.

        Raises TimeoutError, which names the last event and the holder, and the errors of `Client.wait`.
        """
        client = await self.client()
        request = await client.submit(text, **submit)
        try:
            return await client.wait(request, timeout_s=within_s)
        except TimeoutError as late:
            state = _summary(await self.events(request))
            raise TimeoutError(f"no end of {request} within {within_s:g} s: {state}") from late

    async def events(self, request: str) -> list[AnyEvent]:
        """Return a request's log."""
        async with await self.bus.connect_as(ADMIN) as reading:
            stored = await JetStreamLog(reading).read(request)
        return [codec.decode_event(each.data) for each in stored]

    # --- life -------------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        """Start everything and wait until it takes work. Raises the error that a service dies of."""
        try:
            await self._stack.enter_async_context(self.bus)
            self._stack.push_async_callback(self.bus.server.kill)  # this store is not read again
            await self._write_documents()
            self._begin(Guard(await self._connection(GUARD), identity=f"{GUARD}-1"))
            for agent in self._agents:
                self._begin(Runtime(await self._connection(agent.name), agent))
            async with asyncio.timeout(_READY_S):
                while not all(worker.ready for worker in self._workers):
                    self._raise_if_dead()
                    await asyncio.sleep(_POLL_S)
        except BaseException:
            await self._end()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop everything. Raises the error that a service died of, unless another error is being raised."""
        try:
            if error is None:
                self._raise_if_dead()
        finally:
            await self._end()

    async def _connection(self, name: str) -> Bus:
        return await self._stack.enter_async_context(self.bus.connected_as(name))

    async def _write_documents(self) -> None:
        documents: dict[str, Any] = {subjects.policy(name): each for name, each in self._policies.items()}
        if self._prices:
            documents[subjects.PRICES] = self._prices
        async with self.bus.connected_as(ADMIN) as admin:
            for subject, document in documents.items():
                await admin.publish_durable(subject, msgspec.json.encode(document))

    def _begin(self, worker: Guard | Runtime) -> None:
        self._workers[worker] = asyncio.create_task(worker.run())

    def _raise_if_dead(self) -> None:
        for task in self._workers.values():
            if task.done():
                task.result()

    async def _end(self) -> None:
        """End agents first, so that the guard can decide their last proposals."""
        for worker, task in reversed(self._workers.items()):
            await worker.drain(_GRACE_S)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        self._workers.clear()
        await self._stack.aclose()


def _summary(happened: Sequence[AnyEvent]) -> str:
    """Describe the last event, the codes of its turn, and the request's holder."""
    if not happened:
        return "no guard has decided it"
    last, holder = happened[-1], fold(happened).holder
    led = [event for event in reversed(happened) if event.turn and event.turn == last.turn]
    codes = ": ".join(dict.fromkeys(code for event in led if (code := _code(event))))
    owner = "no agent" if holder is None else holder.asked or holder.agent
    return f"the last event is {type_of(last)}{codes and f' ({codes})'}, and {owner} has it"


def _code(event: AnyEvent) -> str:
    match event:
        case events.TurnFailed(error=error):
            return error.code
        case events.MoveRefused(refusal=refusal):
            return str(refusal.rule)
        case events.EscalationRaised(reason=reason):
            return reason
    return ""
