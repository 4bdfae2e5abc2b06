"""A stage: one test's guards, scripted agents and clients on a real server, and the audit that ends it.

The audit judges every log again that the test left behind: it must come out the same to the letter, its
chain must hold, and no turn may have two successors. A test that spoils a log on purpose says so.
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from mesh.agent._runtime import Runtime
from mesh.agent.definition import Agent
from mesh.bus.connection import Bus
from mesh.bus.event_log import JetStreamLog
from mesh.bus.nats_protocol import Incoming
from mesh.bus.reader import every
from mesh.bus.streams import inbox_consumer
from mesh.client import Client
from mesh.errors import ApiError
from mesh.guard.anchors import Anchors
from mesh.guard.context import DecisionContext, Waits
from mesh.guard.observer import VERDICT_S
from mesh.guard.processor import MOST_EVENTS, RequestProcessor
from mesh.guard.service import Guard
from mesh.replay.rejudge import rejudge
from mesh.testing import EmbeddedBus
from protocol.wire import codec, events, subjects
from protocol.wire.commands import Command, Control, Proposal, Submit, id_of, submit_id
from protocol.wire.config import AgentEntry, BreakerRules, Fleet, Policy
from protocol.wire.events import AnyEvent, type_of
from protocol.wire.ids import HUMAN, AgentName, Cause, RequestId, control_cause
from protocol.wire.records import DeadLetter, Notice
from tests.guard.actor import Actor
from tests.servers import PATIENCE_S, Child, child, eventually, until

E = TypeVar("E", bound=AnyEvent)

FLEET = Fleet(
    name="stage",
    entry=AgentName("a"),
    agents={
        name: AgentEntry(
            name=AgentName(name),
            clearance=("pii",) if name in "ac" else (),
            actions=("look",) if name == "e" else None,
        )
        for name in "abcde"
    },
    clients=(AgentName("c1"), AgentName("c2")),
    operators=(AgentName("op"),),
    viewers=(AgentName("audit"),),
    human=True,
    tiers=("desk", "lead"),
    breaker=BreakerRules(failures=0),  # where many turns fail on purpose, none is to be kept from work
)

POLICIES: Mapping[str, Policy] = {
    policy.name: policy
    for policy in (
        Policy(),
        Policy(name="eager", retry_backoff_s=0.02),
        Policy(name="brisk", turn_timeout_s=0.25, retry_backoff_s=0.02, max_retries=1),
        Policy(name="alone", turn_timeout_s=30.0, unattended_after_s=0.25),
        Policy(name="leisurely", turn_timeout_s=4.0, retry_backoff_s=0.02),
        Policy(name="lenient", turn_timeout_s=0.25, unattended_after_s=None),
        Policy(name="queued", turn_timeout_s=2.0, unattended_after_s=None),
        Policy(name="short", deadline_s=0.4),
        Policy(name="swarm", topology="swarm"),
        Policy(name="claimed-soon", topology="swarm", claim_within_s=5.0),
        Policy(name="tiered", escalation_sla_s=0.25, max_retries=0),
        Policy(name="attended", human_deadline_s=2.0),
        Policy(name="weekend", deadline_s=600.0, human_deadline_s=3_600.0),
        Policy(name="strict", max_refusals=0, max_retries=0),
        Policy(name="unescalated", max_escalations=0),
        Policy(name="roomy", max_refusals=4, max_handoff_bytes=262_144),
        Policy(name="chatty", max_retries=9, retry_backoff_s=0.02, retry_backoff_max_s=0.02),
        Policy(name="tree", topology="supervised", retry_backoff_s=0.02),
        Policy(name="strict-tree", topology="supervised", max_retries=0),
        Policy(name="vast", max_handoff_bytes=1 << 20, retry_backoff_s=0.02),
    )
}

PATIENT = Waits(answer_s=PATIENCE_S)
"""A guard that waits for a busy machine."""
CLOSERS = (
    events.HandoffAdmitted,
    events.EscalationRaised,
    events.EscalationResolved,
    events.RequestCompleted,
    events.RequestFailed,
    events.TaskDelivered,
    events.TaskFailed,
    events.TaskCancelled,
)
"""What ends the turn that it names."""


def wall_clock_us() -> int:
    """Return this machine's time: UTC µs."""
    return time.time_ns() // 1000


async def furnish(mesh: EmbeddedBus) -> None:
    """Write the policies, as `mesh setup` does."""
    async with mesh.connected_as("admin") as admin:
        for name, policy in POLICIES.items():
            await admin.publish_durable(subjects.policy(name), msgspec.json.encode(policy))


class Stage:
    """Everything that one test starts; `close` ends it all and judges what it left behind."""

    def __init__(self, mesh: EmbeddedBus, waits: Waits = PATIENT) -> None:
        self.mesh = mesh
        self._waits = waits
        self.spoiled: set[str] = set()
        """Requests whose logs the test itself made unreadable."""
        self._buses: dict[str, Bus] = {}
        self._stack = contextlib.AsyncExitStack()
        self._guards: dict[Guard, asyncio.Task[None]] = {}
        self._actors: dict[str, Actor] = {}
        self._clients: dict[str, Client] = {}
        self._runtimes: dict[Runtime, asyncio.Task[None]] = {}
        self._first = 1
        self._began_ms = time.time_ns() // 1_000_000

    def at_end(self, end: Callable[[], Awaitable[object]]) -> None:
        """Call `end` before the connections are closed."""
        self._stack.push_async_callback(end)

    async def open(self) -> None:
        self._first = await self.last_seq("LOG") + 1

    # --- who is there -----------------------------------------------------------------------------

    async def bus(self, name: str, use: str = "") -> Bus:
        """Return a connection of `name`, one for each use."""
        if name + use not in self._buses:
            self._buses[name + use] = await self._stack.enter_async_context(self.mesh.connected_as(name))
        return self._buses[name + use]

    async def guard(
        self,
        identity: str = "g1",
        verdict_s: float = VERDICT_S,
        most_events: int = MOST_EVENTS,
        **around: Any,
    ) -> Guard:
        """Start a guard in this process; `around` is for its `DecisionContext`."""
        bus = await self.bus("guard", identity)
        context = DecisionContext(bus, **{"waits": self._waits, **around})
        guard = Guard(bus, identity=identity, context=context, verdict_s=verdict_s, most_events=most_events)
        self._guards[guard] = asyncio.create_task(guard.run())
        return guard

    async def ready(self, guard: Guard) -> None:
        """Wait until a guard takes work from every queue."""
        await until(lambda: guard._starting is not None and guard._starting.is_set())

    async def dismiss(self, guard: Guard) -> None:
        """Let a guard go as a stopped process does."""
        task = self._guards.pop(guard)
        await guard.drain(5.0)
        await _cancelled(task)

    async def judges_by(self, fleet: str) -> None:
        """Wait until every guard has read the fleet of that name."""
        await until(lambda: all(guard._context.fleet.name == fleet for guard in self._guards))

    def alive(self, guard: Guard) -> bool:
        return not self._guards[guard].done()

    async def processor(self, identity: str = "processor", **around: Any) -> RequestProcessor:
        """Return the judging part of a guard alone, which hears what the test tells it and nothing else."""
        bus = await self.bus("guard", identity)
        context = DecisionContext(bus, **{"waits": self._waits, **around})
        await context.start()
        anchors = Anchors(bus, "alone", lambda: (), context.now)
        return RequestProcessor(bus, JetStreamLog(bus), context, anchors)

    @contextlib.asynccontextmanager
    async def doomed_guard(self, point: str, identity: str = "doomed") -> AsyncIterator[Child]:
        """Start a guard as a process of its own that kills itself, as with -9, when it reaches `point`."""
        keys = str(seed_directory(self.mesh))
        async with child("tests.guard.guard_process", self.mesh.url, keys, identity, point) as process:
            await process.line("guard_ready")
            yield process

    async def actor(self, name: str, *, served: bool = False) -> Actor:
        """Return the scripted agent `name`; `served` makes it answer who asks whether it is there."""
        if name not in self._actors:
            self._actors[name] = Actor(await self.bus(name), name, self._began_ms)
            await self._actors[name].start()
            if served:
                await self._actors[name].announce()
        return self._actors[name]

    async def client(self, name: str = "c1") -> Client:
        """Return a client; an operator may be one too."""
        if name not in self._clients:
            self._clients[name] = await Client.on(await self.bus(name), name)
        return self._clients[name]

    async def runtime(self, agent: Agent, use: str = "") -> Runtime:
        """Start an instance of an agent in this process, and wait until it is there."""
        runtime = Runtime(await self.bus(agent.name, f"runtime{use}"), agent)
        task = self._runtimes[runtime] = asyncio.create_task(runtime.run())
        await until(lambda: task.done() or (runtime._puller is not None and runtime._puller.requested > 0))
        if task.done():
            task.result()
        return runtime

    def runs(self, runtime: Runtime) -> bool:
        return not self._runtimes[runtime].done()

    async def stop(self, runtime: Runtime, grace_s: float = 1.0) -> None:
        await runtime.drain(grace_s)
        await _cancelled(self._runtimes.pop(runtime))

    async def control(self, request: str, message: Control, sender: str = "op") -> None:
        await (await self.bus(sender)).publish_durable(subjects.ctl(sender, request), codec.encode(message))

    async def back(self) -> None:
        """Wait until every connection is back after a restart of the server."""
        for bus in self._buses.values():
            await until(lambda bus=bus: bus.connected)  # type: ignore[misc]

    # --- what is stored ---------------------------------------------------------------------------

    async def log(self, request: str) -> list[AnyEvent]:
        return [codec.decode_event(body) for body in await self.bodies(request)]

    async def bodies(self, request: str) -> list[bytes]:
        bus = await self.bus("admin")
        return [
            stored.data for stored in await bus.retry_unavailable(lambda: JetStreamLog(bus).read(request))
        ]

    async def types(self, request: str) -> list[str]:
        """Return what happened, without what was withheld for it."""
        return [type_ for type_ in await self.all_types(request) if type_ != "facts.withheld"]

    async def all_types(self, request: str) -> list[str]:
        return [type_of(event) for event in await self.log(request)]

    async def reaches(self, request: str, type_: str, count: int = 1) -> list[AnyEvent]:
        """Wait until a request's log holds `count` events of a type; return the whole log."""

        async def there() -> bool:
            return (await self.types(request)).count(type_) >= count

        await eventually(there, PATIENCE_S)
        return await self.log(request)

    async def reached(self, request: str, kind: type[E]) -> E:
        """Wait until a request's log holds an event of a kind; return the newest."""
        log = await self.reaches(request, type_of(kind))
        return [event for event in log if isinstance(event, kind)][-1]

    async def forge(self, event: AnyEvent | bytes, to: str, request: str, after: int) -> int:
        """Append to a log behind every guard's back."""
        body = event if isinstance(event, bytes) else codec.encode(event)
        return await JetStreamLog(await self.bus("guard", "forger")).append(to, request, body, after=after)

    async def state(self, *streams: str) -> dict[str, int]:
        """Return how many messages streams have and had; PROP, CTL and STEPS are all senders' together."""
        listed = (await (await self.bus("admin")).api("STREAM.LIST"))["streams"]
        states = [
            each["state"]
            for each in listed
            if {(name := each["config"]["name"]), name.partition("-")[0]} & set(streams)
        ]
        assert states, streams
        return {field: sum(int(each[field]) for each in states) for field in ("messages", "last_seq")}

    async def last_seq(self, stream: str) -> int:
        return int((await self.state(stream))["last_seq"])

    async def waiting(self, *streams: str) -> int:
        """Return how many messages of queues nobody has acknowledged."""
        return int((await self.state(*streams))["messages"])

    async def drained(self, *streams: str, to: int = 0, within_s: float = PATIENCE_S) -> None:
        """Wait until nothing is left in these queues, or as much as `to`."""

        async def drained() -> bool:
            return await self.waiting(*(streams or ("PROP", "CTL"))) == to

        await eventually(drained, within_s)

    async def inbox_left(self, agent: str) -> int:
        """Return how many inbox events of an agent are waiting or in somebody's hands."""
        info = await (await self.bus("admin")).api(f"CONSUMER.INFO.LOG.{inbox_consumer(agent)}")
        return int(info["num_pending"]) + int(info["num_ack_pending"])

    async def inbox_drained(self, agent: str) -> None:
        """Wait until an agent has acknowledged everything: that comes after what it did is seen."""

        async def drained() -> bool:
            return await self.inbox_left(agent) == 0

        await eventually(drained)

    async def schedule(self, request: str) -> tuple[int, int] | None:
        """Return sequence and due time of a request's timer."""
        try:
            got = await (await self.bus("admin")).api(
                "STREAM.MSG.GET.TIMER", {"last_by_subj": subjects.timer_at(request)}
            )
        except ApiError:
            return None
        message = msgspec.convert(got["message"], _Scheduled)
        return message.seq, msgspec.json.decode(message.data)["at"]

    async def dead_letters(self, by: str = "guard", *, after: int = 0) -> list[DeadLetter]:
        """Return the dead letters of one list, those stored later than `after`."""
        admin = await self.bus("admin")
        listed = f"{subjects.dead(by)}.*" if by == subjects.GUARDS else subjects.dead(by)
        kept = every(admin, "DEAD", listed, after + 1)
        return [msgspec.json.decode(each.data, type=DeadLetter) async for each in kept]

    async def buried(self, code: str, *, request: str = "", by: str = "guard", after: int = 0) -> DeadLetter:
        """Wait for a dead letter and return it."""
        found: list[DeadLetter] = []

        async def there() -> bool:
            letters = await self.dead_letters(by, after=after)
            found[:] = [
                letter for letter in letters if letter.code == code and request in ("", letter.request)
            ]
            return bool(found)

        await eventually(there, PATIENCE_S)
        return found[-1]

    async def notices(self, name: str) -> list[Notice]:
        """Collect every notice that `name` gets from now on into the returned list."""
        heard: list[Notice] = []

        def listen(message: Incoming) -> None:
            if message.data:
                heard.append(msgspec.json.decode(message.data, type=Notice))

        await (await self.bus(name)).subscribe(f"mesh.note.{name}.*", listen)
        return heard

    # --- the end ----------------------------------------------------------------------------------

    async def close(self) -> None:
        """Stop everything, then judge every log again. Raises what a service died of."""
        try:
            for task in (*self._guards.values(), *self._runtimes.values()):
                if task.done():
                    task.result()
            await self._audit()
        finally:
            for actor in self._actors.values():
                await actor.close()
            for runtime in tuple(self._runtimes):
                await self.stop(runtime)
            for guard, task in tuple(self._guards.items()):
                await guard.drain(PATIENCE_S)
                await _cancelled(task)
            await self._stack.aclose()

    async def _audit(self) -> None:
        logs: dict[str, list[bytes]] = {}
        async for kept in every(await self.bus("admin"), "LOG", None, self._first):
            logs.setdefault(subjects.parse_evt(kept.subject).request, []).append(kept.data)
        for request, bodies in logs.items():
            if request in self.spoiled:
                continue
            if codec.decode_event(bodies[0]).n == 0:
                check(request, bodies)
            else:  # an earlier stage's: a timer of it fired as it was put away
                check(request, await self.bodies(request))


def check(request: str, bodies: Sequence[bytes]) -> None:
    """Assert what must hold of every log."""
    again = rejudge(bodies)
    assert again.same, (request, again)
    happened = [codec.decode_event(body) for body in bodies]
    assert [event.n for event in happened] == list(range(len(happened)))
    ids = [event.id for event in happened]
    assert len(set(ids)) == len(ids), (request, "an event twice")
    ended = [event.turn for event in happened if isinstance(event, CLOSERS)]
    assert len(set(ended)) == len(ended), (request, "a turn with two successors")


class _Scheduled(msgspec.Struct):
    seq: int
    data: bytes


def seed_directory(mesh: EmbeddedBus) -> Path:
    """Return where the seeds of a mesh lie: in `keys`, beside the store."""
    return mesh.server.store.parent / "keys"


HASTY = msgspec.structs.replace(FLEET, guard_lease_s=0.5)
"""A fleet whose leases end soon, so that what a killed guard held comes again at once."""


@contextlib.asynccontextmanager
async def furnished_mesh(directory: Path, fleet: Fleet = FLEET) -> AsyncIterator[EmbeddedBus]:
    """Give a server with streams, fleet and policies, and kill it: nobody looks at its store again."""
    async with EmbeddedBus(fleet, directory) as mesh:
        await furnish(mesh)
        yield mesh
        await mesh.server.kill()


@contextlib.asynccontextmanager
async def staged(mesh: EmbeddedBus, *, guards: int = 0, waits: Waits = PATIENT) -> AsyncIterator[Stage]:
    """Give a stage with so many guards; every log that is left behind is judged again when it ends."""
    own = Stage(mesh, waits)
    await own.open()
    for _ in range(guards):
        await own.ready(await own.guard())
    yield own
    await own.close()


def submit_command(request: RequestId, submit: Submit, sender: str = "c1") -> Command:
    """Return a submit as a guard takes it up."""
    body = codec.encode(submit)
    return Command(
        request, AgentName(sender), submit, Cause(submit_id(request)), "client", codec.body_digest(body)
    )


def proposal_command(request: str, sender: str, proposal: Proposal) -> Command:
    """Return a proposal as a guard takes it up."""
    return Command(request, AgentName(sender), proposal, Cause(id_of(request, proposal, sender)), "agent")


def human_turn(log: Sequence[AnyEvent]) -> events.EscalationRaised:
    """Return the newest escalation of a log."""
    raised = [event for event in log if isinstance(event, events.EscalationRaised)]
    assert raised
    assert raised[-1].to == HUMAN
    return raised[-1]


async def _cancelled(task: asyncio.Task[None]) -> None:
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task


def control_command(request: str, sender: str, control: Control, role: str = "operator") -> Command:
    """Return a control message as a guard takes it up."""
    cause = control_cause(request, sender, control.id)
    return Command(request, AgentName(sender), control, cause, role)  # type: ignore[arg-type]
