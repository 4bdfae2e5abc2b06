"""The arena: a whole scratch mesh whose processes may be killed, with people in it and a watch over the log.

What runs in it runs as it would anywhere: processes, credentials and permissions of a deployment, on a
nats-server that writes each message through to the disk before it acknowledges it.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import TracebackType
from typing import Self, cast

import msgspec

from mesh.bus.connection import Bus
from mesh.bus.event_log import JetStreamLog
from mesh.bus.provision import stored_queues
from mesh.bus.reader import every
from mesh.bus.roles import ADMIN
from mesh.bus.stores import stored_steps
from mesh.bus.streams import TIMERS
from mesh.client import Client
from mesh.errors import BusError, Denied
from mesh.fleet.file import FleetFile
from mesh.fleet.setup import apply
from mesh.local.fleet import LocalFleet, store_of
from mesh.local.server import EmbeddedServer
from mesh.service.failpoints import VARIABLE
from protocol.wire import subjects
from protocol.wire.commands import Submit
from protocol.wire.config import BreakerEntry
from protocol.wire.events import AnyEvent
from protocol.wire.ids import AgentName, RequestId
from tests.drill import claimant, ledger
from tests.drill.claimant import Claimant
from tests.drill.cluster import Cluster
from tests.drill.evidence import DrillImpossible, Evidence, Held, StepName, Submitted
from tests.drill.failpoints import FAILPOINTS
from tests.drill.fleet import SHUT
from tests.drill.log_checks import SLACK_S
from tests.drill.network import Network
from tests.drill.people import People
from tests.drill.processes import Processes, now_us
from tests.drill.replicas import NotLed, read_held
from tests.drill.stories import Story
from tests.drill.watch import Watch
from tests.servers import ROOT

_AGAIN_S = 0.1
GRACE_S = 30.0


@dataclass(frozen=True, kw_only=True)
class Setting:
    """How an arena is set up.

    Args:
        people: whether the drill's own people decide what is put to them; else it stays open.
        commands: by name, `guard` or an agent's, how their processes begin instead of with
            `mesh.local.service.COMMAND`.
        search: directories in which services look for agents' modules, besides the checkout.
        servers: how many servers keep the streams, each of them all: one, or a cluster.
        partitions: whether servers of the cluster can be cut off, for which this machine needs namespaces.
    """

    file: FleetFile
    people: bool = True
    guards: int = 2
    instances: int = 2
    commands: Mapping[str, Sequence[str]] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    search: Sequence[Path] = ()
    servers: int = 1
    partitions: bool = False


class Arena:
    """`async with Arena(setting, directory) as arena:` then `await arena.send(story)`.

    What breaks in its own tasks (a service that no longer starts, say) is raised from `async with`, whose
    body is cancelled then. Raises DrillImpossible.
    """

    def __init__(self, setting: Setting, directory: Path) -> None:
        file = setting.file
        self.setting = setting
        self.directory = directory
        self.ledger = directory / "ledger.jsonl"
        self._armed = directory / "failpoints"
        self._armed.mkdir(parents=True)
        self._viewer = _first(file.viewers, "viewer")
        self._names = [_first(file.clients, "client"), _first(file.operators, "operator"), self._viewer]
        self.fleet = LocalFleet(
            file,
            directory / "mesh",
            guards=setting.guards,
            instances=setting.instances,
            commands=setting.commands,
            environment={
                **setting.environment,
                VARIABLE: str(self._armed.absolute()),
                ledger.VARIABLE: str(self.ledger.absolute()),
            },
            search=(*setting.search, ROOT),
        )
        self.cluster = self._cluster() if setting.servers > 1 else None
        self.submitted: list[Submitted] = []
        self.stories: dict[str, Story] = {}
        """By request."""
        self._stack = contextlib.AsyncExitStack()
        self._claimant: Claimant | None = None
        self.silent: set[str] = set()
        """Requests that did not come to rest."""
        self.unfinished: list[str] = []
        """What else the drill waited for in vain."""
        self.unreached: list[str] = []
        """Failpoints that no request came through."""

    # --- life -------------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        async with contextlib.AsyncExitStack() as stack:
            await self._provision()
            await stack.enter_async_context(self.fleet)
            client, operator, viewer = [
                await stack.enter_async_context(await self.fleet.connect_as(name)) for name in self._names
            ]
            self._client = await Client.on(client, client.name)
            self.processes = Processes(self.fleet, self._armed, self.cluster)
            await self.processes.ready()
            self.watch = watch = Watch(JetStreamLog(viewer), self._hear, decided=self.setting.people)
            self._people = people = People(
                client, operator, self.ledger, self.processes, self.stories, watch.give_up
            )
            if claimant.NAME in self.setting.file.agents:
                bus = await stack.enter_async_context(await self.fleet.connect_as(claimant.NAME))
                self._claimant = Claimant(bus, self.processes, self.stories)
            tasks = await stack.enter_async_context(asyncio.TaskGroup())
            work = [self.processes.keep(), self.watch.run(), people.run()]
            work += [] if self._claimant is None else [self._claimant.run()]
            running = [tasks.create_task(each) for each in work]
            stack.callback(lambda: [task.cancel() for task in running])
            self._stack = stack.pop_all()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.processes.let_go()
        await self._stack.__aexit__(kind, error, trace)

    def _cluster(self) -> Cluster:
        """Give the fleet a cluster in the place of its server, which has not been started."""
        network = Network(self.setting.servers) if self.setting.partitions else None
        made = Cluster(self.fleet.prepared.accounts, store_of(self.fleet.directory), network)
        self.fleet.server = cast(EmbeddedServer, made)  # it has what a fleet asks of its server
        return made

    async def _provision(self) -> None:
        """Make the streams, and open the breaker of the agent that is given nothing, before any guard runs.

        A cluster goes on running: it takes a while until all of it is there.
        """
        server = self.fleet.server
        try:
            await server.start()
            async with await self.fleet.connect_as(ADMIN) as admin:
                await admin.retry_unavailable(lambda: self._apply(admin))
                if SHUT in self.setting.file.agents:
                    entry = msgspec.json.encode(BreakerEntry(state="open"))
                    await admin.publish_durable(subjects.breaker(SHUT), entry)
            if self.cluster is not None:
                self.unfinished += [f"at the beginning: {each}" for each in await self.cluster.current()]
        except BaseException:
            await server.stop()
            raise
        if self.cluster is None:
            await server.stop()

    async def _apply(self, admin: Bus) -> None:
        await apply(admin, self.setting.file)

    def _hear(self, event: AnyEvent) -> None:
        if self.setting.people:
            self._people.hear(event)
        if self._claimant is not None:
            self._claimant.hear(event)

    # --- requests ---------------------------------------------------------------------------------

    async def send(self, story: Story) -> RequestId:
        """Submit a story, for as long as it takes; return the request's id once it is acknowledged."""
        request = self._client.new_id()
        self.stories[request] = story
        submit = Submit(
            text=story.text,
            to=None if story.to is None else AgentName(story.to),
            facts=story.all_facts,
            constraints=story.constraints,
            policy=story.policy,
            conversation=story.conversation,
        )
        at, acknowledged = now_us(), False
        try:
            for _ in range(1 + story.twice):
                await self._submit(request, submit)
                acknowledged = True
        finally:  # one that was never acknowledged may be in the log all the same
            self.submitted.append(Submitted(request, at, acknowledged, story.name, story.expected, submit))
        return request

    async def _submit(self, request: RequestId, submit: Submit) -> None:
        while True:
            try:
                await self._client.submit_whole(submit, request=request)
            except Denied:
                raise
            except BusError:
                await asyncio.sleep(_AGAIN_S)  # the same id and bytes: it is the same request
            else:
                return

    async def rest(self, request: str, within_s: float | None = None) -> AnyEvent | None:
        """Wait until a request has come to rest and return its last event; None if it does not, in time."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                last = await self.watch.until(request)
                if self.watch.rests(request):
                    return last
        self.silent.add(request)
        return None

    # --- evidence ---------------------------------------------------------------------------------

    async def evidence(self, grace_s: float = GRACE_S) -> Evidence:
        """End every service, then read everything that there is. Nothing can be sent afterwards.

        Args:
            grace_s: how long services may take to finish; nothing may move while it is counted.
        """
        for failpoint in FAILPOINTS:
            self.processes.disarm(failpoint)
        ended_at = now_us()
        await self._settled()
        await self.processes.end(grace_s)
        if self.cluster is not None:
            self.unfinished += [f"in the end: {each}" for each in await self.cluster.current()]
        gathered = await self.gather(ended_at)
        return gathered if self.cluster is None else replace(gathered, held=await self._held(self.cluster))

    async def _held(self, cluster: Cluster) -> list[Held]:
        """Return what each server holds now that nothing moves any more."""
        async with await self.fleet.connect_as(ADMIN) as admin:
            try:
                return await read_held(cluster, admin)
            except NotLed as failed:
                self.unfinished.append(str(failed))
                return []

    async def _settled(self) -> None:
        """Wait until guards have acknowledged all that they heard; what a killed one held comes again."""
        with contextlib.suppress(TimeoutError):  # broken ones never do
            async with (
                asyncio.timeout(2 * self.setting.file.fleet.guard_lease_s + SLACK_S),
                await self.fleet.connect_as(ADMIN) as admin,
            ):
                while await _heard(admin):  # noqa: ASYNC110 - at the bus
                    await asyncio.sleep(_AGAIN_S)

    async def gather(self, ended_at: int | None = None) -> Evidence:
        """Read everything that there is so far. What still moves may be seen half."""
        if ended_at is None:
            await self._settled()
        async with await self.fleet.connect_as(self._viewer) as bus:
            deeds = ledger.deeds(self.ledger)
            return Evidence(
                submitted=tuple(self.submitted),
                bodies=await events_by_request(bus),
                steps=await all_steps(bus, self.setting.file.fleet.agents),
                deeds=deeds,
                faults=sorted(self.processes.faults, key=lambda fault: fault.at),
                stalls=tuple(ledger.stalls(self.ledger)),
                dead=await dead_letters(bus),
                ends=await all_ends(bus),
                lease_s=self.setting.file.fleet.lease_s,
                guard_lease_s=self.setting.file.fleet.guard_lease_s,
                ended_at=ended_at or now_us(),
                with_ledger=self.setting.people or bool(deeds),
                orders=tuple(self._people.orders),
                claims=() if self._claimant is None else tuple(self._claimant.claims),
                asked=tuple(ledger.moves(self.ledger)),
                fleet=self.setting.file.fleet,
                unasked=tuple(self.processes.unasked),
                silent=frozenset(self.silent),
                undone=tuple(self._people.undone),
                unfinished=(*self.unfinished, *self.processes.not_current),
                unreached=tuple(self.unreached),
            )


@contextlib.asynccontextmanager
async def hosted(setting: Setting, directory: Path) -> AsyncIterator[Arena]:
    """Give an arena that lives in a task of its own, for a fixture: its beginning and end are two tasks."""
    opened: asyncio.Queue[Arena] = asyncio.Queue()
    enough = asyncio.Event()

    async def host() -> None:
        async with Arena(setting, directory) as made:
            opened.put_nowait(made)
            await enough.wait()

    hosting = asyncio.create_task(host())
    opening = asyncio.create_task(opened.get())
    await asyncio.wait((hosting, opening), return_when=asyncio.FIRST_COMPLETED)
    if hosting.done():
        hosting.result()
    yield opening.result()
    enough.set()
    await hosting


async def _heard(bus: Bus) -> int:
    """Return how many messages wait for guards, or are in hand; schedules are none."""
    kept = 0
    for stream in await stored_queues(bus):
        fired = {"subjects_filter": "mesh.timer.fire.>"} if stream == TIMERS else None
        state = (await bus.api(f"STREAM.INFO.{stream}", fired))["state"]
        kept += sum((state.get("subjects") or {}).values()) if fired else state["messages"]
    return kept


def _first(names: Mapping[str, object], role: str) -> str:
    for name in names:
        return name
    raise DrillImpossible(f"the fleet has no {role}; add [{role}s.NAME] to its file")


class _Line(msgspec.Struct, frozen=True):
    request: str


_LINE = msgspec.json.Decoder(_Line)


async def events_by_request(bus: Bus) -> dict[str, list[bytes]]:
    """Return every stored event by request, each request's in the log's order."""
    found: dict[str, list[bytes]] = {}
    async for stored in JetStreamLog(bus).follow(tail=False):
        found.setdefault(_LINE.decode(stored.data).request, []).append(stored.data)
    return found


async def all_steps(bus: Bus, agents: Iterable[str]) -> dict[StepName, bytes]:
    """Return every step of these agents by its name."""
    found = {}
    async for kept in stored_steps(bus, None, agents):
        _, _, agent, request, turn, step = kept.subject.split(".")
        found[StepName(agent, request, turn, step)] = kept.data
    return found


async def all_ends(bus: Bus) -> frozenset[tuple[str, str, str]]:
    """Return agent, request and turn of each turn whose end a guard told."""
    found = [kept.subject.split(".") async for kept in every(bus, "ENDS", None)]
    return frozenset((agent, request, turn) for _, _, agent, request, turn in found)


async def dead_letters(bus: Bus) -> list[bytes]:
    """Return every dead letter, the oldest first."""
    return [kept.data async for kept in every(bus, "DEAD", None)]
