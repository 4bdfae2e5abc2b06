"""Growth: what an event costs guard and server as a mesh and its requests grow. It should stay flat.

Each axis grows one thing alone: the events of one request, the facts that a handoff carries, the requests
that are open, the agents of the fleet. Client and agents are played, 16 requests at a time, long ones three.
Beside each sample the same small one is taken on a small mesh; costs are compared after division by it, since
the machine itself may be slower an hour later.
"""

import asyncio
import itertools
import os
import statistics
import time
import tracemalloc
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import msgspec

from bench.figures import Curve, Figure, Point, Target, spread
from bench.load import ANSWER, FACTS, SUMMARY, TEXT
from bench.machine import usage
from bench.place import AGENTS, CLIENT, FLEET, site
from bench.stories import originals
from mesh.bus.connection import Bus
from mesh.bus.nats_protocol import Incoming
from mesh.fleet.file import FleetFile
from mesh.fleet.members import AgentLimitsSection, AgentSection
from mesh.guard.cache import Cache, CachedRequest
from mesh.testing import InMemoryGuard
from protocol.wire import codec
from protocol.wire.commands import MoveProposed, Report, Submit
from protocol.wire.handoff import Fact
from protocol.wire.ids import NOBODY, AgentName, RequestId, TurnId, request_id
from protocol.wire.moves import Complete, HandBack, Move, Transfer
from protocol.wire.subjects import parse_evt, prop

FLAT = Target("at most", 1.2)
_AT_ONCE = 16
_LONG = "long"
_KEYS = 10
"""Keys of the facts that a long request brings again and again, each time with another value."""
_MEMBERS = ("guard", "server")
_CACHED = 400


class Sizes(NamedTuple):
    """How far each axis goes, its smallest size first."""

    events: tuple[int, ...]
    facts: tuple[int, ...]
    open: tuple[int, ...]
    agents: tuple[int, ...]
    """Its smallest size is the five of the other measurements."""
    requests: int
    """Requests of seven events each in one sample."""
    rounds: int


class Cost(NamedTuple):
    """CPU an event, µs."""

    guard: float
    server: float


def fleet_of(agents: int) -> FleetFile:
    """Return the fleet of the other measurements with so many agents, and a policy for long requests.

    The server sets a stream's limit aside on its disk. 500 agents with the usual limits would take 160 GB.
    """
    named = [*AGENTS, *(f"agent-{number}" for number in range(len(AGENTS), agents))]
    return FLEET.model_copy(
        update={
            "agents": {name: AgentSection() for name in named},
            "limits": AgentLimitsSection(mib=16, steps_mib=1),
            "policies": {_LONG: {"max_depth": 1_000}},
        }
    )


def submit(facts: int = 0, *, policy: str = "default") -> Submit:
    """Return a submit with the facts of the other measurements and so many small ones."""
    small = (Fact(key=f"finding-{number:04}", value=f"seen on shelf {number}") for number in range(facts))
    return Submit(text=TEXT, facts=(*FACTS, *small), to=AgentName(AGENTS[0]), policy=policy)


CHAIN: tuple[Move, ...] = (
    *(Transfer(to_agent=AgentName(name), summary=SUMMARY) for name in AGENTS[1:]),
    Complete(answer=ANSWER),
)


def long_story() -> Iterator[Move]:
    """Yield moves without end: to and fro between two agents, each with something new."""
    for number in itertools.count():
        facts = (Fact(key=f"finding-{number % _KEYS}", value=f"seen on shelf {number:06}"),)
        if number % 2:
            yield HandBack(summary=SUMMARY, facts=facts)
        else:
            yield Transfer(to_agent=AgentName(AGENTS[1]), summary=SUMMARY, facts=facts)


# --- the player -----------------------------------------------------------------------------------

_PATIENCE_S = 120.0


class _Work(msgspec.Struct):
    turn: TurnId
    round: int = 0


class _Heard(msgspec.Struct):
    """What the player looks at in an event."""

    type: str
    work: _Work | None = None
    to: str = ""


_HEARD = msgspec.json.Decoder(_Heard)


class Player:
    """Client and agents of many requests in one process, so that guard and server alone are measured.

    It speaks over the admin's connection, which may publish in every name, and hears each event as it is
    stored.
    """

    def __init__(self, admin: Bus) -> None:
        self._admin = admin
        self._inboxes: dict[str, asyncio.Queue[_Heard]] = {}
        self.events = 0
        """Events that were heard, those addressed to nobody among them."""

    def hear(self, message: Incoming) -> None:
        self.events += 1
        told = parse_evt(message.subject)
        if told.to != NOBODY and told.request in self._inboxes:
            self._inboxes[told.request].put_nowait(_HEARD.decode(message.data))

    async def open(self, submit: Submit) -> "Played":
        """Submit a request; return it once its first turn is open."""
        request = request_id(CLIENT, time.time_ns() // 1_000_000, os.urandom(10))
        self._inboxes[request] = asyncio.Queue()
        played = Played(self, request)
        await self._admin.publish_durable(prop(CLIENT, request), codec.encode(submit))
        await played.next()
        return played

    async def publish(self, sender: str, request: str, proposal: MoveProposed) -> None:
        await self._admin.publish_durable(prop(sender, request), codec.encode(proposal))

    async def heard(self, request: str) -> _Heard:
        async with asyncio.timeout(_PATIENCE_S):
            return await self._inboxes[request].get()

    def forget(self, request: str) -> None:
        del self._inboxes[request]

    async def play(self, submit: Submit, moves: Iterable[Move]) -> None:
        """Play one request to its end."""
        played = await self.open(submit)
        for move in moves:
            await played.move(move)
        self.forget(played.request)


class Played:
    """One request under way."""

    def __init__(self, player: Player, request: RequestId) -> None:
        self._player = player
        self.request = request
        self._turn: _Work | None = None
        self._holder = ""

    async def next(self) -> None:
        """Take the next event. Raises RuntimeError for one that no request here should bring."""
        event = await self._player.heard(self.request)
        if event.type not in ("request.opened", "handoff.admitted", "request.completed"):
            raise RuntimeError(f"{self.request}: {event.type}")
        self._turn, self._holder = event.work, event.to

    async def move(self, move: Move) -> None:
        """Let the holder propose a move; return once it is admitted."""
        turn = self._turn
        if turn is None:
            raise RuntimeError(f"{self.request} has ended")
        proposal = MoveProposed(turn=turn.turn, round=turn.round, move=move, report=Report())
        await self._player.publish(self._holder, self.request, proposal)
        await self.next()


@asynccontextmanager
async def player(admin: Bus) -> AsyncIterator[Player]:
    """Return a player that hears every event."""
    made = Player(admin)
    heard = await admin.subscribe("mesh.evt.*.*", made.hear)
    try:
        yield made
    finally:
        await heard.close()


# --- along each axis ------------------------------------------------------------------------------


@dataclass
class Stage:
    """One mesh with its guard, and who plays on it."""

    player: Player
    pids: tuple[int, int]
    """Guard and server."""

    async def cost(self, work: Awaitable[object]) -> Cost:
        """Return what each event of `work` cost."""
        used, events = [usage(pid) for pid in self.pids], self.player.events
        await work
        events = self.player.events - events
        return Cost(
            *(usage(pid).since(was).cpu_s * 1e6 / events for pid, was in zip(self.pids, used, strict=True))
        )

    async def chains(self, requests: int, facts: int = 0) -> None:
        """Play so many requests through all five agents."""
        await at_once(requests, lambda: self.player.play(submit(facts), CHAIN))


async def at_once(times: int, one: Callable[[], Awaitable[object]]) -> None:
    """Do `one` so many times, `_AT_ONCE` of them at a time."""
    left = iter(range(times))

    async def caller() -> None:
        for _ in left:
            await one()

    async with asyncio.TaskGroup() as callers:
        for _ in range(_AT_ONCE):
            callers.create_task(caller())


@asynccontextmanager
async def stage(directory: Path, agents: int = len(AGENTS)) -> AsyncIterator[Stage]:
    """Start a mesh of so many agents, of which none runs."""
    fleet = fleet_of(agents)
    async with site(directory, fleet=fleet) as here:
        guard = await here.start_guard()
        async with player(here.admin) as plays:
            made = Stage(plays, (guard.pid, here.at.server.pid))
            await made.chains(4 * _AT_ONCE)
            yield made


@dataclass
class Axis:
    """Samples along one axis, each beside one of the small mesh."""

    name: str
    base: Callable[[], Awaitable[Cost]]
    costs: dict[int, list[Cost]] = field(default_factory=dict)
    relative: dict[int, list[Cost]] = field(default_factory=dict)
    """The same, in costs of the small mesh beside it."""

    async def sample(self, size: int, cost: Awaitable[Cost]) -> None:
        base = await self.base()
        found = await cost
        self.costs.setdefault(size, []).append(found)
        self.relative.setdefault(size, []).append(
            Cost(*(one / by for one, by in zip(found, base, strict=True)))
        )

    def curves(self) -> list[Curve]:
        """Return by member how the cost grows, the smallest size as 1."""
        return [
            Curve(self.name, member, [Point(size, spread(self._grown(size, at))) for size in self.costs])
            for at, member in enumerate(_MEMBERS)
        ]

    def figures(self) -> list[Figure]:
        """Return what an event costs at the largest size, beside the smallest."""
        least, most = min(self.costs), max(self.costs)
        return [
            Figure(
                f"CPU of an event, {most:,} {self.name} (beside {least:,}): {member}",
                "µs",
                spread([cost[at] for cost in self.costs[most]]),
                spread([cost[at] for cost in self.costs[least]]),
                spread(self._grown(most, at)),
                FLAT,
            )
            for at, member in enumerate(_MEMBERS)
        ]

    def _grown(self, size: int, at: int) -> list[float]:
        first = statistics.median(cost[at] for cost in self.relative[min(self.costs)])
        return [cost[at] / first for cost in self.relative[size]]


async def growth(directory: Path, sizes: Sizes) -> tuple[list[Figure], list[Curve]]:
    """Measure along all axes."""
    async with AsyncExitStack() as stack:
        small = await stack.enter_async_context(stage(directory / "small"))

        def base() -> Awaitable[Cost]:
            return small.cost(small.chains(sizes.requests))

        axes = [
            await _events(small, base, sizes),
            await _facts(small, base, sizes),
            await _agents(small, directory, base, sizes),
            await _open(directory / "open", base, sizes),
        ]
    figures = [figure for axis in axes for figure in axis.figures()]
    return [*figures, *await asyncio.to_thread(memory, sizes.events[-1])], [
        curve for axis in axes for curve in axis.curves()
    ]


async def _events(on: Stage, base: Callable[[], Awaitable[Cost]], sizes: Sizes) -> Axis:
    """Grow some requests event by event; a sample is the tenth of their events before each size."""
    axis = Axis("events of a request", base)
    for _ in range(sizes.rounds):
        played = [await on.player.open(submit(policy=_LONG)) for _ in range(_AT_ONCE)]
        stories = [long_story() for _ in played]
        have = 1
        for size in sizes.events:
            window = max(1, sizes.events[0] // 2)
            await _grow(played, stories, size - window - have)
            await axis.sample(size, on.cost(_grow(played, stories, window)))
            have = size
        for one in played:
            await one.move(Complete(answer=ANSWER))
            on.player.forget(one.request)
    return axis


async def _grow(played: Sequence[Played], stories: Sequence[Iterator[Move]], moves: int) -> None:
    async def grow(one: Played, story: Iterator[Move]) -> None:
        for move in itertools.islice(story, moves):
            await one.move(move)

    await asyncio.gather(*(grow(one, story) for one, story in zip(played, stories, strict=True)))


async def _facts(on: Stage, base: Callable[[], Awaitable[Cost]], sizes: Sizes) -> Axis:
    axis = Axis("facts in a handoff", base)
    for _ in range(sizes.rounds):
        for size in sizes.facts:
            await axis.sample(size, on.cost(on.chains(sizes.requests, size - len(FACTS))))
    return axis


async def _agents(small: Stage, directory: Path, base: Callable[[], Awaitable[Cost]], sizes: Sizes) -> Axis:
    axis = Axis("agents", base)
    async with AsyncExitStack() as stack:
        stages = {len(AGENTS): small}
        for size in sizes.agents[1:]:
            stages[size] = await stack.enter_async_context(stage(directory / f"agents-{size}", size))
        for _ in range(sizes.rounds):
            for size, on in stages.items():
                await axis.sample(size, on.cost(on.chains(sizes.requests)))
    return axis


async def _open(directory: Path, base: Callable[[], Awaitable[Cost]], sizes: Sizes) -> Axis:
    """Leave more and more requests open; each has a turn that nobody works on, and a timer."""
    axis, have = Axis("open requests", base), 0
    async with stage(directory) as on:

        async def leave_open() -> None:
            on.player.forget((await on.player.open(submit())).request)

        for size in sizes.open:
            await at_once(size - have, leave_open)
            have = size
            for _ in range(sizes.rounds):
                await axis.sample(size, on.cost(on.chains(sizes.requests)))
    return axis


# --- memory ---------------------------------------------------------------------------------------


def memory(events: int, requests: int = _CACHED) -> list[Figure]:
    """Return what a cached request takes, a usual one and one of so many events.

    Beside it stands what the cache counts for it, by which its bound is kept.
    """
    few = [[line.body for line in lines] for lines in originals(requests)]
    mean = sum(map(len, few)) / len(few)
    name = "a guard's memory for a cached request of {} events (beside what is counted)"
    return [
        _memory(name.format(f"{mean:.1f}"), few),
        _memory(name.format(f"{events:,}"), [_long_request(events)]),
    ]


def _long_request(events: int) -> list[bytes]:
    fleet = fleet_of(len(AGENTS))
    guard = InMemoryGuard(fleet.fleet, fleet.rules)
    guard.submit(TEXT, facts=FACTS, to=AgentName(AGENTS[0]), policy=_LONG)
    for move in itertools.islice(long_story(), events - 1):
        guard.move(move)
    return guard.bodies


def _memory(name: str, requests: list[list[bytes]]) -> Figure:
    """Fold `requests` from their stored bytes into a cache, as a guard reads them."""
    cache = Cache()
    tracemalloc.start()
    for number, bodies in enumerate(requests):
        cached = CachedRequest()
        for at, body in enumerate(bodies):
            own = bytes(bytearray(body))  # each guard has bytes of its own, read off the wire
            event = codec.decode_event(own)
            cached.ledger.apply(event, own)
            cached.stored(event, own, at + 1)
        cache.put(str(number), cached)
    taken, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    each, counted = taken / len(requests), cache.held / len(requests)
    return Figure(name, "bytes", spread([each]), spread([counted]), spread([each / counted]))
