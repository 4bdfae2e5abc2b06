"""The harness of a check: a scratch mesh, the agent's process, and all that it publishes on the bus."""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import msgspec

from mesh.agent import Move, Turn, agent
from mesh.bus.connection import Bus
from mesh.bus.event_log import JetStreamLog
from mesh.bus.lane import ping
from mesh.bus.nats_protocol import Incoming
from mesh.bus.roles import ADMIN
from mesh.bus.streams import consumer_table, inbox_consumer
from mesh.client import Client, Question
from mesh.errors import BusError
from mesh.local.mesh import LocalMesh
from mesh.local.server import ParentDeath
from protocol.wire import codec, subjects
from protocol.wire.commands import Proposal
from protocol.wire.config import AgentEntry, Fleet, Policy
from protocol.wire.event import Event
from protocol.wire.events import AnyEvent, RequestCompleted, TurnFailed, type_of
from protocol.wire.handoff import Fact
from protocol.wire.ids import AgentName, RequestId
from protocol.wire.records import Ended

COUNTERPART = "counterpart"
SECRET = "check-secret"
"""A label that the agent under test may not see."""
FOUND = "found by the counterpart"
READY_S = 60.0
"""The shortest time that an agent is given to start (s)."""
COMES_S = 10.0
"""How long an agent may take for what it should do at once (s), unless the caller allows more."""
_ENDS_S = 5.0
"""How much longer an agent may take to end (s)."""
_PROBE_S = 0.05
E = TypeVar("E", bound=Event)
T = TypeVar("T")
_POLICY = Policy(retry_backoff_s=0.1, retry_backoff_max_s=0.2)


class Wrong(Exception):
    """What the agent did wrong, in one sentence."""


class Published(NamedTuple):
    """A message of the agent's."""

    at: float
    """Monotonic seconds."""
    subject: str
    data: bytes


class Pull(NamedTuple):
    """A pull of the agent's."""

    reply: str
    """Where its messages go."""
    expires_s: float
    """How long it lasts (s); 0 if it names no time."""


class Ack(NamedTuple):
    """The agent's answer to one delivery: `+ACK`, `+WPI`, `-NAK`, `+TERM`."""

    at: float
    deliveries: int
    """Which delivery of the event this is, counted from 1."""
    seq: int
    """Place of the event in the log."""
    payload: str


_ONCE_WATCHED = 'read -r _ || exit; exec /bin/sh -c "$1" </dev/null'
"""Runs a command once a line confirms that its group is watched; never, if this process dies first."""


class Process:
    """Runs a shell command in its own process group, as often as it is started.

    The shell may end before its children, so the group counts: it is signalled, waited for and killed as a
    whole. It does not outlive this process, however this process ends.

    Args:
        kill: a shell command that ends what a signal to the group does not reach.
    """

    def __init__(self, command: str, environment: Mapping[str, str], *, kill: str | None = None) -> None:
        self._command, self._kill = command, kill
        self._environment = {**os.environ, **environment}
        self._shell: subprocess.Popen[bytes] | None = None
        self._parent_death = ParentDeath(guard="pipe")  # the kernel's signal would reach only the shell

    @property
    def running(self) -> bool:
        """True while any process of the group runs."""
        if self._shell is not None and self._shell.poll() is not None and not _runs(self._shell.pid):
            self._shell = None  # its number may soon be another group's
            self._parent_death.release()
        return self._shell is not None

    def start(self) -> None:
        """Start the command, which must not be running."""
        self._shell = subprocess.Popen(
            ["/bin/sh", "-c", _ONCE_WATCHED, "start", self._command],
            env=self._environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            start_new_session=True,
        )
        self._parent_death.watch(-self._shell.pid)
        assert self._shell.stdin is not None
        with contextlib.suppress(BrokenPipeError), self._shell.stdin as gate:
            gate.write(b"\n")

    async def kill(self) -> None:
        """End it as a crash would."""
        if self._kill is not None:
            await asyncio.to_thread(subprocess.run, self._kill, shell=True, check=False)
        await self._end(signal.SIGKILL)

    async def stop(self, within_s: float) -> bool:
        """Ask it to end. Return False if it had to be killed."""
        try:
            await self._end(signal.SIGTERM, within_s)
        except TimeoutError:
            await self.kill()
            return False
        return True

    async def _end(self, number: signal.Signals, within_s: float | None = None) -> None:
        """Send the group a signal and wait for its end. Raises TimeoutError."""
        if self._shell is not None and self.running:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._shell.pid, number)
        async with asyncio.timeout(within_s):
            while self.running:  # noqa: ASYNC110 - other processes
                await asyncio.sleep(_PROBE_S)


def _runs(group: int) -> bool:
    """Return True while a process of a group runs, apart from zombies that an init fails to reap."""
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # macOS raises this for a group of zombies
        return sys.platform != "darwin"
    return sys.platform != "linux" or any(map(partial(_runs_in, group), Path("/proc").glob("[0-9]*/stat")))


def _runs_in(group: int, stat: Path) -> bool:
    with contextlib.suppress(OSError):  # it ended meanwhile
        state, _, its_group = stat.read_text().rpartition(")")[2].split()[:3]
        return int(its_group) == group and state != "Z"
    return False


class Traffic:
    """What the agent `name` publishes, in order, as seen from the account of the streams."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.proposals: list[Published] = []
        self.letters: list[Published] = []
        self.pulls: list[Pull] = []
        self.acks: list[Ack] = []

    async def listen(self, bus: Bus) -> None:
        """Record everything from now on; `bus` is the admin's."""
        await bus.subscribe(
            f"mesh.prop.{self.name}.*", lambda message: self.proposals.append(_published(message))
        )
        await bus.subscribe(
            f"mesh.dead.{self.name}", lambda message: self.letters.append(_published(message))
        )
        await bus.subscribe(f"$JS.ACK.LOG.in-{self.name}.>", self._acknowledged)
        await bus.subscribe(f"$JS.API.CONSUMER.MSG.NEXT.LOG.in-{self.name}", self._pulled)

    def proposed(self, request: str) -> list[Published]:
        """Return the proposals for a request."""
        return [each for each in self.proposals if each.subject.endswith(f".{request}")]

    def acks_of(self, seq: int) -> list[Ack]:
        """Return the answers to the event at a place of the log."""
        return [ack for ack in self.acks if ack.seq == seq]

    def _pulled(self, message: Incoming) -> None:
        asked = codec.readable(bytes(message.data), _AskedPull) or _AskedPull()
        self.pulls.append(Pull(message.reply, asked.expires / 1e9))

    def _acknowledged(self, message: Incoming) -> None:
        deliveries, seq = message.subject.split(".")[4:6]
        payload = bytes(message.data).decode(errors="replace") or "+ACK"  # the server reads an empty one so
        self.acks.append(Ack(time.monotonic(), int(deliveries), int(seq), payload))


def _published(message: Incoming) -> Published:
    return Published(time.monotonic(), message.subject, bytes(message.data))


def _failure(event: TurnFailed) -> str:
    by = event.sender or "the guard"
    return f"turn.failed by {by}: {event.error.code} {event.error.message}".rstrip()


class _AskedPull(msgspec.Struct, frozen=True):
    """The part of a pull that is checked."""

    expires: int = 0
    """In nanoseconds."""


class _Pong(msgspec.Struct, frozen=True):
    """The part of an answer to `$SRV.PING` that is checked."""

    name: str


@agent(name=COUNTERPART, description="Hands everything back")
async def counterpart(turn: Turn) -> Move:
    return turn.hand_back("here it is", facts={"found": FOUND})


@asynccontextmanager
async def running_harness(
    name: str, command: str, directory: Path, *, kill: str | None = None, patience_s: float = COMES_S
) -> "AsyncIterator[Harness]":
    """Run a scratch mesh, and on it the agent under test, until it takes work. Raises Wrong."""
    agents = {each: AgentEntry(name=AgentName(each)) for each in (name, COUNTERPART)}
    members: dict[str, Any] = {"clients": (AgentName("app"),), "operators": (AgentName("ops"),)}
    # The checks read what an agent stores. On the lane nothing would be stored.
    fleet = Fleet(name="check", entry=AgentName(name), agents=agents, lane=False, **members)
    local = LocalMesh([counterpart], directory, fleet=fleet, policies={"default": _POLICY})
    async with local as mesh, mesh.bus.connected_as(ADMIN) as admin, mesh.bus.connected_as("ops") as operator:
        environment = {
            "NATS_URL": mesh.bus.url,
            "MESH_NAME": name,
            "MESH_CREDENTIALS": str(directory / "keys" / f"{name}.nk"),
        }
        process = Process(command, environment, kill=kill)
        stage = Harness(name, mesh, process, admin, await mesh.client(), Client(operator, "ops"), patience_s)
        await stage.traffic.listen(admin)
        try:
            process.start()
            await stage.takes_work()
            yield stage
        finally:
            await process.kill()


class Harness:
    """What a check works with."""

    def __init__(
        self,
        name: str,
        mesh: LocalMesh,
        process: Process,
        admin: Bus,
        client: Client,
        operator: Client,
        patience_s: float,
    ) -> None:
        self.name, self.mesh, self.process, self.admin = name, mesh, process, admin
        self.client, self.operator = client, operator
        self.patience_s = patience_s
        """How long anything may take that the agent should do at once (s)."""
        self.lease_s = mesh.fleet.lease_s
        self.log = JetStreamLog(admin)
        self.traffic = Traffic(name)
        self.submitted: list[RequestId] = []

    # --- asking -----------------------------------------------------------------------------------

    async def submit(self, do: str, *facts: Fact, **more: Any) -> RequestId:
        """Submit a request whose fact `do` names what the agent's code does."""
        given = [Fact(key=key, value=value) for key, value in {"do": do, **more}.items()]
        request = await self.client.submit(f"check {do}", facts=[*given, *facts])
        self.submitted.append(request)
        return request

    async def end(self, request: RequestId, after_s: float = 0.0, reply: Any = None) -> AnyEvent:
        """Return how a request ended, within patience plus `after_s`. Raises Wrong."""
        within_s = after_s + self.patience_s

        async def answer(question: Question) -> Any:
            return reply

        try:
            outcome = await self.client.wait(request, timeout_s=within_s, on_question=answer)
        except TimeoutError:
            types = ", ".join(type_of(event) for event in await self.events(request))
            raise Wrong(f"no end within {within_s:g} s; the events are {types}") from None
        return outcome.event

    async def completed(self, request: RequestId, answer: Any, after_s: float = 0.0, **how: Any) -> None:
        """Wait for the end of a request, which has to be this answer."""
        end = await self.end(request, after_s, **how)
        given = end.answer if isinstance(end, RequestCompleted) else None
        if given != answer:
            raise Wrong(f"expected the answer {answer!r}, got {type_of(end)} with {given!r}")

    async def events(self, request: str) -> list[AnyEvent]:
        return [codec.decode_event(each.data) for each in await self.log.read(request)]

    async def failed_turns(self, requests: Iterable[str]) -> str:
        """Describe each `turn.failed` of these requests, equal ones once; empty if there is none."""
        found = [event for request in requests for event in await self.events(request)]
        failures = (_failure(event) for event in found if isinstance(event, TurnFailed))
        return "; ".join(dict.fromkeys(failures))

    async def inject(self, request: str, body: bytes) -> int:
        """Put bytes into the agent's inbox, as only a fault or a newer guard would; return their place."""
        ack = await self.admin.publish_durable(subjects.evt(self.name, request), body)
        return ack.seq

    async def end_without_notice(self, request: str) -> None:
        """Store the end of a request's first turn where agents look it up, and send no notice."""
        (opened, *_) = await self.events(request)
        assert opened.work is not None
        turn = opened.work.turn
        ended = msgspec.json.encode(Ended(why="request.cancelled", turn=turn))
        await self.admin.publish_durable(subjects.end(self.name, request, turn), ended)

    # --- waiting ----------------------------------------------------------------------------------

    async def eventually(
        self, ask: Callable[[], Awaitable[T | None]], missed: str, after_s: float = 0.0
    ) -> T:
        """Ask until the answer is true, and return it. Raises Wrong with `missed`, what was expected."""
        within_s = after_s + self.patience_s
        give_up_at = time.monotonic() + within_s
        while not (found := await ask()):
            if time.monotonic() > give_up_at:
                raise Wrong(f"{missed} within {within_s:g} s")
            await asyncio.sleep(_PROBE_S)
        return found

    async def until(self, probe: Callable[[], T | None], missed: str, after_s: float = 0.0) -> T:
        """Probe until there is a result, and return it. Raises as `eventually`."""

        async def ask() -> T | None:
            return probe()

        return await self.eventually(ask, missed, after_s)

    async def event(self, request: str, kind: type[E]) -> E:
        """Wait for an event of a kind."""

        async def ask() -> E | None:
            return next((event for event in await self.events(request) if isinstance(event, kind)), None)

        return await self.eventually(ask, f"expected {type_of(kind)}")

    async def pulled(self, request: str) -> int:
        """Wait until the agent has a request's first event in hand; return its place in the log."""

        async def ask() -> int | None:
            stored = await self.log.read(request)
            delivered = (await self.inbox())["delivered"]["stream_seq"]
            return stored[0].seq if stored and stored[0].seq <= delivered else None

        return await self.eventually(ask, "expected it to pull its event")

    async def acked(self, seq: int) -> Ack:
        """Wait until the agent is done with an event; return its last answer to it."""

        def done() -> Ack | None:
            return next(
                (ack for ack in self.traffic.acks_of(seq) if ack.payload[:4] in ("+ACK", "+TER")), None
            )

        return await self.until(done, "expected the event to be acknowledged")

    async def ends_in_good_order(self) -> None:
        """Ask the agent to end. Raises Wrong if it had to be killed."""
        within_s = self.patience_s + _ENDS_S
        if not await self.process.stop(within_s):
            raise Wrong(f"it did not end within {within_s:g} s of SIGTERM")

    async def takes_work(self) -> None:
        """Wait until the agent pulls. Raises Wrong."""

        async def ask() -> bool:
            if not self.process.running:
                raise Wrong("the command ended before the agent took any work")
            return bool((await self.inbox())["num_waiting"])

        missed = f"expected it to pull from the consumer {inbox_consumer(self.name)}"
        await self.eventually(ask, missed, max(0.0, READY_S - self.patience_s))

    async def inbox(self) -> dict[str, Any]:
        """Return what the server reports of the agent's consumer."""
        info: dict[str, Any] = await self.admin.api(f"CONSUMER.INFO.LOG.{inbox_consumer(self.name)}")
        return info

    async def answers_ping(self) -> bool:
        try:
            pong = codec.readable(await ping(self.admin, self.name) or b"", _Pong)
        except BusError:
            return False
        return pong is not None and pong.name == self.name

    async def propose_as_agent(self, request: str, proposal: Proposal) -> None:
        """Store a proposal under the agent's own credentials, as an earlier process of it would have."""
        async with self.mesh.bus.connected_as(self.name) as own:
            await own.publish_durable(subjects.prop(self.name, request), codec.encode(proposal))

    async def smuggle(self, request: str, body: bytes) -> None:
        """Send bytes to where the agent's pulls are answered, as no consumer would."""
        for reply in (f"mesh.smuggled.{request}", f"$JS.ACK.LOG.{inbox_consumer(self.name)}.1.1.1.1.0"):
            (*_, newest) = await self.until(lambda: self.traffic.pulls, "expected it to pull")
            await self.admin.publish(newest.reply, body, reply=reply)

    @asynccontextmanager
    async def storing_no_proposal(self) -> AsyncIterator[None]:
        """Let no proposal of the agent be stored while the block runs: nothing answers."""
        stream = f"PROP-{self.name}"
        config = (await self.admin.api(f"STREAM.INFO.{stream}"))["config"]
        away = {**config, "subjects": [f"mesh.away.{self.name}.*"], "subject_transform": None}
        await self.admin.api(f"STREAM.UPDATE.{stream}", away)
        try:
            yield
        finally:
            await self.admin.api(f"STREAM.UPDATE.{stream}", config)

    async def forget_deliveries(self) -> None:
        """Make the server forget its deliveries, as a killed server may."""
        inbox = inbox_consumer(self.name)
        (config,) = [dict(each.config) for each in consumer_table(self.mesh.fleet) if each.name == inbox]
        await self.admin.api(f"CONSUMER.DELETE.LOG.{inbox}")
        await self.admin.api(f"CONSUMER.CREATE.LOG.{inbox}", {"stream_name": "LOG", "config": config})
