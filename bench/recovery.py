"""Recovery: how long until the work of a process that was killed goes on in another.

An agent is killed in the middle of a turn, after a step that its journal has; the time ends when the other
instance has proposed and the guard has decided. A guard is killed idle, and with messages in hand that
nobody else can take before its lease ends; the time ends with the last partition's first decision. Leases
are the default ones. Killed is as by `kill -9`: the server sees the connection go, and holds the lease.
"""

import asyncio
import contextlib
import os
import signal
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path

from bench.crew import Member, run_member, say, serve_agent
from bench.figures import Figure, Target, spread
from bench.load import ANSWER, TEXT
from bench.place import CLIENT, FLEET, Site, site, without_lane
from mesh.agent.definition import Agent
from mesh.agent.tools import Tool, tool
from mesh.agent.turn import Turn
from mesh.bus.connection import Bus
from mesh.bus.nats_protocol import Incoming
from mesh.bus.streams import proposals_of, queue_consumers
from mesh.client import Client
from mesh.fleet.file import FleetFile
from protocol.wire.ids import RequestId
from protocol.wire.moves import Move
from protocol.wire.subjects import parse_evt, partition

AGENT_S, GUARD_S = Target("at most", 10.0), Target("at most", 5.0)
AGENT = "a"
HOLDS, FINISHES = "holds", "finishes"
_PATIENCE_S = 60.0
_LOOK_S = 0.01


async def recovery(directory: Path, *, rounds: int, file: FleetFile = FLEET) -> list[Figure]:
    """Measure all of it, so many times, with that fleet file."""
    # What a guard is asked is stored after 2 s; this is about what it holds of the queues.
    async with site(directory, sync_always=True, fleet=without_lane(file)) as here:
        turns = [await _agent_killed(here, number) for number in range(rounds)]
        idle = [await _guard_killed(here, number, False) for number in range(rounds)]
        holding = [await _guard_killed(here, number, True) for number in range(rounds)]
    return [
        Figure("agent killed in a turn: until it is decided elsewhere", "s", spread(turns), target=AGENT_S),
        Figure("idle guard killed: until all its partitions decide", "s", spread(idle), target=GUARD_S),
        Figure("guard killed with work in hand: until it is decided", "s", spread(holding), target=GUARD_S),
    ]


async def _agent_killed(here: Site, number: int) -> float:
    """Return the seconds from an agent's end to the end of the request that it worked on."""
    guard = await here.start_guard(f"guard-{number}")
    holder = await here.start("bench.recovery", HOLDS, name=f"holder-{number}")
    request = await here.client.submit(TEXT, to=AGENT)
    while await holder.line() != request:
        pass
    other = await here.start("bench.recovery", FINISHES, name=f"finisher-{number}")
    killed = _kill(holder)
    outcome = await here.client.wait(request, timeout_s=_PATIENCE_S)
    took = time.perf_counter() - killed
    if outcome.answer != ANSWER:
        raise RuntimeError(f"{request} {outcome.status}: {outcome.reason}")
    await asyncio.gather(guard.end(), other.end(), holder.end())
    return took


async def _guard_killed(here: Site, number: int, holding: bool) -> float:
    """Return the seconds from a guard's end to the last first decision of a partition."""
    admin, client = here.admin, here.client
    kind = "holding" if holding else "idle"
    doomed = await here.start_guard(f"doomed-{kind}-{number}")
    requests = [_of_partition(client, each) for each in range(FLEET.fleet.partitions)]
    async with _opened(admin) as opened:
        if holding:
            os.kill(doomed.pid, signal.SIGSTOP)  # what it asked for is delivered to it, and stays with it
            for request in requests:
                await client.submit(TEXT, to=AGENT, request=request)
            while await _in_hand(admin) < FLEET.fleet.partitions:  # noqa: ASYNC110 - it lies with the server
                await asyncio.sleep(_LOOK_S)
            killed = _kill(doomed)  # as its leases begin; the other one starts while they last
        other = await here.start_guard(f"other-{kind}-{number}")
        if not holding:
            killed = _kill(doomed)
            for request in requests:
                await client.submit(TEXT, to=AGENT, request=request)
        async with asyncio.timeout(_PATIENCE_S):
            while not opened.keys() >= set(requests):  # noqa: ASYNC110 - as above
                await asyncio.sleep(_LOOK_S)
    await asyncio.gather(doomed.end(), other.end())
    return max(opened[request] for request in requests) - killed


def _of_partition(client: Client, wanted: int) -> RequestId:
    while True:
        request = client.new_id()
        if partition(request, FLEET.fleet.partitions) == wanted:
            return request


def _kill(member: Member) -> float:
    os.kill(member.pid, signal.SIGKILL)
    return time.perf_counter()


@contextlib.asynccontextmanager
async def _opened(admin: Bus) -> AsyncIterator[dict[str, float]]:
    """Collect when each request's first event was seen."""
    seen: dict[str, float] = {}

    def look(message: Incoming) -> None:
        seen.setdefault(parse_evt(message.subject).request, time.perf_counter())

    heard = await admin.subscribe("mesh.evt.*.*", look)
    try:
        yield seen
    finally:
        await heard.close()


async def _in_hand(admin: Bus) -> int:
    consumers = queue_consumers(FLEET.fleet.partitions)
    infos = [await admin.api(f"CONSUMER.INFO.{proposals_of(CLIENT)}.{each}") for each in consumers]
    return sum(int(info["num_ack_pending"]) for info in infos)


# --- the members ----------------------------------------------------------------------------------


@tool
async def look_up() -> str:
    """A step that the journal has when the process dies."""
    return "found"


def _agent(role: str) -> Agent:
    async def work(turn: Turn) -> Move:
        await turn.call(look_up)
        if role == HOLDS:
            say(turn.request)
            await asyncio.Event().wait()
        return turn.complete(ANSWER)

    made: Tool = look_up
    return Agent(name=AGENT, handler=work, tools=(made,))


if __name__ == "__main__":
    run_member(serve_agent(sys.argv[2], Path(sys.argv[3]), _agent(sys.argv[1])))
