"""Floods and bursts: what a client notices of another that floods the mesh, and what a guard then holds.

One client sends its requests one after the other; the time is from before its submit to its answer in hand.
Another stores so many messages as fast as it can: bytes that are no message, submits for another agent, or
control messages for requests of its own that do not exist. Or it asks guards on the lane for such submits.
The loud one, the guard and the agents are processes of their own. The freeze counts until the last event that
a guard appends before it stops.

In a burst a client stores so many messages of nearly the largest size at once, and a guard decides them. What
it holds at most is the kernel's own high-water mark of its resident memory.
"""

import asyncio
import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from bench.crew import join, obey, run_member, serve_agent
from bench.figures import Figure, Target, percentile, ratio, spread
from bench.load import ANSWER, TEXT
from bench.machine import memory_mib
from bench.place import AGENTS, FLOODED, LOUD, OPERATOR, site
from mesh.agent.definition import Agent
from mesh.agent.turn import Turn
from mesh.bus.connection import Bus
from mesh.bus.lane import Lane
from mesh.bus.nats_protocol import Incoming
from mesh.bus.streams import controls_of, proposals_of
from mesh.client import Client
from mesh.errors import StreamFull
from protocol.wire import codec, subjects
from protocol.wire.commands import Cancel, Freeze, Submit, Thaw
from protocol.wire.handoff import Fact
from protocol.wire.ids import request_id
from protocol.wire.moves import Move

SLOWER = Target("at most", 3.0)
FREEZE_S = Target("at most", 1.0)
QUIET_AGENT, LOUD_AGENT = AGENTS[0], AGENTS[1]
KINDS = ("junk", "submits", "questions", "controls")
_AT_ONCE = 200
_LOOK_S = 0.01
_STOPS_S = 2.0
"""How long no event may come for a freeze to hold."""
_FEWEST = 20
"""Requests that a round times at least."""


class Flood(msgspec.Struct, frozen=True):
    """What the loud one is told."""

    kind: str
    messages: int


async def floods(
    directory: Path,
    *,
    messages: int,
    rounds: int,
    kinds: Sequence[str] = KINDS,
) -> list[Figure]:
    """Return how a client's requests took beside each kind of flood, and how soon a freeze held."""
    quiet: dict[str, list[float]] = {kind: [] for kind in kinds}
    beside: dict[str, list[float]] = {kind: [] for kind in kinds}
    froze: list[float] = []
    async with (
        site(directory, sync_always=True, fleet=FLOODED) as here,
        await here.at.connect_as(OPERATOR) as operator,
    ):
        admin, client = here.admin, here.client
        await here.start_guard()
        for agent in (QUIET_AGENT, LOUD_AGENT):
            await here.start("bench.flood", agent)
        loud = await here.start("bench.flood", LOUD)
        await _one(client)
        for _ in range(rounds):
            for kind in kinds:
                quiet[kind].append(percentile([await _one(client) for _ in range(2 * _FEWEST)], 0.5))
                flooding = asyncio.create_task(loud.ask(msgspec.to_builtins(Flood(kind, messages))))
                while not await _waits(admin):  # noqa: ASYNC110 - it lies with the server
                    await asyncio.sleep(_LOOK_S)
                took = [await _one(client) for _ in range(_FEWEST)]
                while not flooding.done() and len(took) < 20 * _FEWEST:
                    took.append(await _one(client))
                beside[kind].append(percentile(took, 0.5))
                if kind in ("submits", "questions"):
                    froze.append(await _freeze(admin, operator))
                await flooding
                while await _waits(admin):  # noqa: ASYNC110 - as above
                    await asyncio.sleep(_LOOK_S)
    return [
        *(
            Figure(
                f"a request beside {messages} {kind} of another client: p50",
                "ms",
                spread(beside[kind]),
                yardstick=spread(quiet[kind]),
                ratio=ratio(beside[kind], quiet[kind]),
                target=SLOWER,
            )
            for kind in kinds
        ),
        Figure(
            "a freeze beside such submits: until nothing is appended", "s", spread(froze), target=FREEZE_S
        ),
    ]


async def _one(client: Client) -> float:
    """Return the milliseconds of one request."""
    started = time.perf_counter()
    outcome = await client.wait(await client.submit(TEXT, to=QUIET_AGENT), timeout_s=60.0)
    if outcome.answer != ANSWER:
        raise RuntimeError(f"{outcome.request} {outcome.status}: {outcome.reason}")
    return (time.perf_counter() - started) * 1e3


async def _waits(admin: Bus) -> int:
    """Return how much of the flood waits for the guard."""
    infos = [await admin.api(f"STREAM.INFO.{name}") for name in (proposals_of(LOUD), controls_of(LOUD))]
    return sum(int(info["state"]["messages"]) for info in infos)


async def _freeze(admin: Bus, operator: Bus) -> float:
    """Freeze the mesh and thaw it; return the seconds from the order to the last event before it held."""
    if not await _waits(admin):
        raise RuntimeError("the flood was over before the freeze")
    seen = [time.perf_counter()]

    def look(message: Incoming) -> None:
        seen[0] = time.perf_counter()

    heard = await admin.subscribe("mesh.evt.*.*", look)
    everybody = subjects.ctl(OPERATOR, subjects.MESH_WIDE)
    ordered = time.perf_counter()
    await operator.publish_durable(everybody, codec.encode(Freeze(id=os.urandom(8).hex())))
    while time.perf_counter() - seen[0] < _STOPS_S:  # noqa: ASYNC110 - as above
        await asyncio.sleep(_LOOK_S)
    await heard.close()
    await operator.publish_durable(everybody, codec.encode(Thaw(id=os.urandom(8).hex())))
    return max(0.0, seen[0] - ordered)


# --- a burst ---------------------------------------------------------------------------------------

SIZE = 245_000
"""Bytes of a message: nearly the largest that the queue takes."""
PEAK_MIB = Target("at most", 300.0)
_KINDS: dict[str, Callable[[], object]] = {
    "text": lambda: "x" * SIZE,
    "numbers": lambda: [7] * (SIZE // 2),
    "lists": lambda: [[]] * (SIZE // 3),
}
"""What a message is made of. As Python objects, numbers take four times their bytes, empty lists twenty."""
_PATIENCE_S = 300.0


async def burst(directory: Path, *, messages: int, rounds: int) -> list[Figure]:
    """Return the peak of a guard's memory for each kind of message, and before the first of them."""
    peaks: dict[str, list[float]] = {kind: [] for kind in _KINDS}
    quiet: list[float] = []
    for number in range(rounds):
        for kind in _KINDS:
            before, peak = await _round(directory / f"{number}-{kind}", kind, messages)
            quiet.append(before)
            peaks[kind].append(peak)
    return [
        Figure("a guard's memory before a burst", "MiB", spread(quiet)),
        *(
            Figure(
                f"its peak: {messages} messages of {SIZE // 1000} KB, {kind}",
                "MiB",
                spread(found),
                target=PEAK_MIB,
            )
            for kind, found in peaks.items()
        ),
    ]


async def _round(directory: Path, kind: str, messages: int) -> tuple[float, float]:
    async with site(directory) as here:
        client, guard = here.client, await here.start_guard()
        before = memory_mib(guard.pid, "VmHWM")
        submit = Submit(text="burst", facts=(Fact(key="large", value=_KINDS[kind]()),))
        async with asyncio.timeout(_PATIENCE_S):
            requests = await asyncio.gather(*(client.submit_whole(submit) for _ in range(messages)))
            for request in requests:
                await client.wait(request)
        return before, memory_mib(guard.pid, "VmHWM")


# --- the members ----------------------------------------------------------------------------------


async def _answer(turn: Turn) -> Move:
    return turn.complete(ANSWER)


async def _flood(bus: Bus, told: Flood) -> dict[str, int]:
    """Store a flood, or ask it; return how much of it was stored, refused, and decided at once."""
    at_once, counts = asyncio.Semaphore(_AT_ONCE), {"stored": 0, "refused": 0, "decided": 0}
    submit = codec.encode(Submit(text=TEXT, to=LOUD_AGENT))  # type: ignore[arg-type]

    async def one() -> None:
        request = request_id(LOUD, time.time_ns() // 1_000_000, os.urandom(10))
        subject, body = subjects.prop(LOUD, request), b"{" if told.kind == "junk" else submit
        if told.kind == "controls":
            subject, body = subjects.ctl(LOUD, request), codec.encode(Cancel(id="x"))
        async with at_once:
            if told.kind == "questions" and await Lane(bus, LOUD).is_decided(request, submit):
                counts["decided"] += 1
                return
            try:
                await bus.publish_durable(subject, body, timeout_s=60.0)
                counts["stored"] += 1
            except StreamFull:
                counts["refused"] += 1

    await asyncio.gather(*(one() for _ in range(told.messages)))
    return counts


async def _member(role: str, url: str, keys: Path) -> None:
    if role != LOUD:
        await serve_agent(url, keys, Agent(name=role, handler=_answer, concurrency=16))
        return
    async with await join(url, keys, LOUD) as bus:

        async def flood(told: Any) -> Any:
            return await _flood(bus, msgspec.convert(told, Flood))

        await obey(flood)


if __name__ == "__main__":
    run_member(_member(sys.argv[1], sys.argv[2], Path(sys.argv[3])), level="error")
