"""Trees of tasks: what the mesh adds to a plan, if many leads get in each other's way, and what a task costs.

*A plan*: a lead asks a model, delegates eight tasks of one model call each, and asks once more when all have
come back. The stand-in takes 0.2 s for each call. Times are the guard's, from the log: the whole request, and
each task from the event that opens it to its result. What the mesh adds is what the request takes over the
same ten calls without a mesh: one, eight at once, one, in one process, in the same round. *Levels*: a lead,
eight tasks, eight more below each: 73 turns without a model, before two guards; an append is retried where
the other guard was first. *Size*: requests of ever more tasks, without a model; the guard's processor time is
divided by the tasks.
"""

import asyncio
import os
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, NamedTuple

from bench.crew import Member, run_member, serve_agent, stand_in
from bench.figures import Figure, Target, percentile, spread
from bench.machine import usage
from bench.place import FLEET, Place, site
from mesh.agent import Agent, Move, Turn
from mesh.bus.event_log import JetStreamLog
from mesh.bus.roles import GUARD
from mesh.guard.service import Guard
from mesh.model.port import Prompt
from mesh.model.vendors.claude import ROUTING, ClaudeModel
from protocol.wire import codec, events
from protocol.wire.events import AnyEvent
from tests.vendors.stand_in import Answer, says

WALL = Target("at most", 1.25)
ADDED_MS = Target("at most", 8.0)
RETRIED = Target("at most", 5.0)
LINEAR = Target("at most", 1.2)
LEAD, MIDDLE, WORKER, STUB = "a", "b", "c", "stub"
EIGHT = 8
CALL_S = 0.2
_AT_ONCE = 50
"""Tasks that a request of many opens at once."""
_PATIENCE_S = 600.0
_LOOK_S = 0.01
_POLICY = {
    "topology": "supervised",
    "max_open_tasks": _AT_ONCE,
    "max_tasks": 1_000,
    "max_handoff_bytes": 1 << 17,
}


class Trees(NamedTuple):
    """How much of each."""

    plans: int
    """Requests of eight tasks in one round."""
    levels: int
    """Trees of three levels, one after the other."""
    tasks: tuple[int, ...]
    """Tasks of a request, the fewest first."""
    rounds: int
    below: int = EIGHT
    """Tasks below each lead of a tree of three levels; eight make 73 turns."""


async def trees(directory: Path, amount: Trees) -> list[Figure]:
    """Measure all of it."""
    fleet = FLEET.model_copy(update={"policies": {"default": _POLICY}})
    async with site(directory, fleet=fleet) as here:
        stub = await here.crew.start(STUB, "bench.tree", STUB)
        url = await stub.ask("url")
        for name in (LEAD, MIDDLE):
            await here.start("bench.tree", name, url)
        worker = await here.start("bench.tree", WORKER, url)
        guard = await here.start_guard()

        async def played(what: str) -> list[AnyEvent]:
            request = await here.client.submit(what, to=LEAD)
            await here.client.wait(request, timeout_s=_PATIENCE_S)
            return [codec.decode_event(each.data) for each in await JetStreamLog(here.admin).read(request)]

        await played(f"wide {EIGHT}")  # the first takes longer: everything is loaded with it
        figures = await _plans(played, worker, amount)
        figures += await _sizes(played, guard.pid, amount)
        await guard.end()
        return [*figures, await _levels(here.at, played, amount)]


Play = Callable[[str], Awaitable[list[AnyEvent]]]


async def _plans(played: Play, worker: Member, amount: Trees) -> list[Figure]:
    walls, relative, bare, added = [], [], [], []
    for _ in range(amount.rounds):
        found = [_plan(await played("plan")) for _ in range(amount.plans)]
        walls.append(percentile([wall for wall, _ in found], 0.5))
        relative.append(percentile([(wall - 2 * CALL_S * 1e3) / slowest for wall, slowest in found], 0.5))
        bare.append(percentile(await worker.ask(amount.plans), 0.5))
        added.append((walls[-1] - bare[-1]) / EIGHT)
    return [
        Figure(
            "a lead with 8 tasks of one model call each (of it, less two calls, in slowest tasks): p50",
            "ms",
            spread(walls),
            ratio=spread(relative),
            target=WALL,
        ),
        Figure("the same ten model calls without a mesh: p50", "ms", spread(bare)),
        Figure("what the mesh adds for each task: p50", "ms", spread(added), target=ADDED_MS),
    ]


def _plan(log: list[AnyEvent]) -> tuple[float, float]:
    """Return how long a request took, and its slowest task, in ms."""
    opened = {str(event.id): event.at for event in log if isinstance(event, events.TaskOpened)}
    done = [event.at - opened[str(event.turn)] for event in log if isinstance(event, events.TaskDelivered)]
    assert len(done) == EIGHT, [events.type_of(event) for event in log]
    return (log[-1].at - log[0].at) / 1e3, max(done) / 1e3


async def _sizes(played: Play, guard: int, amount: Trees) -> list[Figure]:
    costs: dict[int, list[float]] = {size: [] for size in amount.tasks}
    for _ in range(amount.rounds):
        for size, found in costs.items():
            times = max(1, amount.tasks[-1] // size // 4)
            before = usage(guard)
            for _ in range(times):
                await played(f"wide {size}")
            found.append(usage(guard).since(before).cpu_s * 1e6 / (size * times))
    least, *rest = amount.tasks
    return [
        Figure(
            f"CPU of a guard for a task, {size} tasks in a request (beside {least})",
            "µs",
            spread(costs[size]),
            spread(costs[least]),
            spread([one / other for one, other in zip(costs[size], costs[least], strict=True)]),
            LINEAR,
        )
        for size in rest
    ]


async def _levels(at: Place, played: Play, amount: Trees) -> Figure:
    """Return how many appends of a tree of three levels were retried, in percent, before two guards."""
    async with await at.connect_as(GUARD) as first, await at.connect_as(GUARD) as second:
        guards = [Guard(first, identity="g1"), Guard(second, identity="g2")]
        running = [asyncio.create_task(guard.run()) for guard in guards]
        try:
            while not all(guard.ready for guard in guards):  # noqa: ASYNC110 - they set no event
                await asyncio.sleep(_LOOK_S)
            shares = []
            for _ in range(amount.levels):
                before = sum(guard._processor.conflicts for guard in guards)
                log = await played(f"levels {amount.below}")
                turns = sum(event.opens_turn for event in log)
                assert turns == 1 + amount.below + amount.below**2, turns
                retried = sum(guard._processor.conflicts for guard in guards) - before
                shares.append(100 * retried / len(log))
        finally:
            await asyncio.gather(*(guard.drain(1.0) for guard in guards))
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)
    return Figure(
        f"appends retried in a tree of {turns} turns, two guards", "%", spread(shares), target=RETRIED
    )


# --- inside a member ------------------------------------------------------------------------------


def _answer(asked: Any) -> Answer:
    return says("It is done.", delay_s=CALL_S)


class _Player:
    """What every agent does: as the request's text says."""

    def __init__(self, model: ClaudeModel) -> None:
        self._model = model

    async def __call__(self, turn: Turn) -> Move:
        what, _, said = str(turn.facts["text"]).partition(" ")
        size = int(said or EIGHT)
        if turn.agent == LEAD:
            return await self._lead(turn, what, size)
        if turn.agent == MIDDLE and what == "levels" and not turn.results:
            return turn.delegate([_task(turn, number, WORKER) for number in range(size)])
        if what == "plan":
            await self._ask(turn, "a task")
        return turn.deliver("done", facts={"found": turn.round})

    async def _lead(self, turn: Turn, what: str, size: int) -> Move:
        if what == "plan":
            await self._ask(turn, "the plan")
        have = len(turn.results)
        if have < size:
            to = MIDDLE if what == "levels" else WORKER
            return turn.delegate([_task(turn, at, to) for at in range(have, min(size, have + _AT_ONCE))])
        if what == "plan":
            await self._ask(turn, "the answer")
        return turn.complete("done")

    async def _ask(self, turn: Turn, brief: str) -> None:
        async def produce() -> Any:
            return {"text": await self._reply(brief)}

        await turn.model("stand-in", brief, produce, dict)

    async def _reply(self, brief: str) -> str:
        return (await self._model.reply(Prompt(agent=WORKER, instructions="Do it.", brief=brief))).text

    async def bare(self, plans: int) -> list[float]:
        """Return how long the model calls of a plan take by themselves, in ms, so many times."""
        took = []
        for _ in range(plans):
            began = time.perf_counter()
            await self._reply("the plan")
            await asyncio.gather(*(self._reply("a task") for _ in range(EIGHT)))
            await self._reply("the answer")
            took.append((time.perf_counter() - began) * 1e3)
        return took


def _task(turn: Turn, number: int, to: str) -> Any:
    return turn.task(f"{turn.agent}-{number}", summary="do a part", to=to, facts={"part": number})


async def _agent(name: str, url: str, keys: Path, stub: str) -> None:
    player = _Player(ClaudeModel(ROUTING, base_url=stub, api_key="stub"))
    await serve_agent(url, keys, Agent(name=name, handler=player, concurrency=2 * EIGHT), player.bare)


if __name__ == "__main__":
    os.environ.pop("ANTHROPIC_API_KEY", None)
    told = sys.argv[1:]
    run_member(stand_in(_answer) if told[0] == STUB else _agent(told[0], told[1], Path(told[2]), told[3]))
