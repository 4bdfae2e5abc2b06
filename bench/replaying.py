"""Replay: recorded turns run by the code on this disk, and a recorded log under another policy.

The turns are of three agents. Two are hand-written: one looks something up and hands over, one charges and
completes. The third is driven by a model: it looks something up and answers, with two recorded replies. The
log under another policy is genuine to the last byte: its chains verify, and are verified. Each command is a
process of its own with as many jobs as there are cores. Its time counts from its start; its memory is what
all of its processes hold at most, without pages of files.
"""

import asyncio
import contextlib
import multiprocessing
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from bench.crew import ROOT
from bench.figures import Figure, Target, spread
from bench.load import ANSWER
from bench.machine import memory_mib
from bench.stories import FLEET, originals
from mesh.agent import Move, Turn, agent, tool
from mesh.model import ClaudeAgent, Instructions
from mesh.replay.export import StoredStep, step_line
from mesh.testing import FleetHarness, InMemoryGuard, StrictModel, calls, driven_by, fleet_of, says
from protocol.wire import subjects
from protocol.wire.config import Fleet

_WRITTEN_S = Target("at most", 10.0)
_MODEL_S = Target("at most", 60.0)
_WHATIF_S = Target("at most", 30.0)
_MEMORY_MIB = Target("at most", 300.0)
_POLICIES = {"a lower max_depth": "max_depth = 2\n", "a longer turn_timeout_s": "turn_timeout_s = 901.0\n"}
"""The first reaches the requests that are so deep, the second every turn."""
_PART = 500
_LOOK_S = 0.05


class Recorded(NamedTuple):
    """How much is replayed."""

    turns: int
    events: int
    rounds: int


# --- the agents ------------------------------------------------------------------------------------


@tool
async def find(order: str) -> dict[str, Any]:
    """Find an order."""
    return {"order": order, "cents": 4200, "status": "paid"}


@tool(effect="idempotent")
async def charge(cents: int, idempotency_key: str = "") -> str:
    """Charge a card."""
    return f"charged {cents}"


@agent(name="front", version="1", tools=[find])
async def front(turn: Turn) -> Move:
    found = await turn.call(find, order=turn.facts["order"])
    return turn.transfer("billing", summary="charge it", facts={"cents": found["cents"]})


@agent(name="billing", version="1", tools=[charge])
async def billing(turn: Turn) -> Move:
    return turn.complete(await turn.call(charge, cents=turn.facts["cents"]))


@agent(name="e", version="1")
async def last(turn: Turn) -> Move:
    """Do as the log's agent `e` did, which has every tenth turn of it."""
    turn.spend(nano_dollars=4_000_000, tokens=900, model_calls=1)
    return turn.complete(ANSWER)


writer = ClaudeAgent(
    "writer",
    instructions=Instructions("1", "Answer the customer. Look the order up before you do."),
    tools=[find],
)


# --- what was recorded -----------------------------------------------------------------------------


async def _played(file: Path, entry: str, requests: int) -> None:
    """Write so many requests that begin with an agent, with their steps."""
    agents = {each.name: each for each in (front, billing, writer)}
    fleet = msgspec.structs.replace(fleet_of("front", "billing", "writer"), revision=1)
    prompts: dict[str, bytes] = {}
    with await asyncio.to_thread(file.open, "wb") as export:
        for number in range(requests):
            walk = FleetHarness(InMemoryGuard(fleet, number=number), agents)
            with driven_by(StrictModel(*_replies(entry, number))):
                await walk.go("It broke", to=entry, facts={"order": f"O-{number}"})
            export.writelines(body + b"\n" for body in walk.guard.bodies)
            export.writelines(step_line(each) + b"\n" for each in walk.recording.steps)
            prompts |= walk.recording.prompts
        kept = (StoredStep(subjects.prompt("writer", digest), body) for digest, body in prompts.items())
        export.writelines(step_line(each) + b"\n" for each in kept)
        export.write(_fleet_line(fleet))


def _fleet_line(fleet: Fleet) -> bytes:
    return step_line(StoredStep(subjects.FLEET, msgspec.json.encode(fleet), fleet.revision, "bench")) + b"\n"


def _replies(entry: str, number: int) -> tuple[Any, ...]:
    if entry != "writer":
        return ()
    return calls(("find", {"order": f"O-{number}"})), says("Your money is on its way.")


def _write_log(share: tuple[Path, int, int]) -> None:
    """Write some of the requests of a log: `share` is the file, the first one and the one after the last."""
    file, first, end = share
    with file.open("wb") as export:
        for start in range(first, end, _PART):
            for lines in originals(min(_PART, end - start), first=start):
                export.writelines(line.body + b"\n" for line in lines)


def _log(file: Path, events: int) -> None:
    """Write a log of so many events at least, by all cores."""
    each = sum(map(len, originals(4))) / 4
    requests, cores = int(events / each) + 1, os.cpu_count() or 1
    bounds = [requests * number // cores for number in range(cores + 1)]
    shares = [(file.with_suffix(f".{n}"), bounds[n], bounds[n + 1]) for n in range(cores)]
    with multiprocessing.get_context("spawn").Pool(cores) as pool:
        pool.map(_write_log, shares)
    with file.open("wb") as export:
        for part, _, _ in shares:
            with part.open("rb") as source:
                while chunk := source.read(1 << 20):
                    export.write(chunk)
            part.unlink()
        export.write(_fleet_line(FLEET))


# --- measuring -------------------------------------------------------------------------------------


class Used(NamedTuple):
    wall_s: float
    cpu_s: float
    memory_mib: float


def _run(*options: str, allowed: Iterable[int]) -> Used:
    """Run `mesh replay` to its end."""
    command = [sys.executable, "-m", "mesh", "replay", *options]
    before, began, peak = os.times(), time.perf_counter(), 0.0
    with tempfile.TemporaryFile() as said:
        started = subprocess.Popen(command, cwd=ROOT, stdout=said, stderr=subprocess.STDOUT)
        while started.poll() is None:
            peak = max(peak, sum(memory_mib(pid, "RssAnon") for pid in _tree(started.pid)))
            time.sleep(_LOOK_S)
        took, after = time.perf_counter() - began, os.times()
        if started.returncode not in allowed:
            said.seek(0)
            raise RuntimeError(f"{command}: {started.returncode}: {said.read()[-2000:].decode()}")
    used = after.children_user - before.children_user + after.children_system - before.children_system
    return Used(took, used, peak)


def _tree(pid: int) -> Iterator[int]:
    """Yield a process and all below it."""
    yield pid
    with contextlib.suppress(OSError):
        for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
            yield from _tree(int(child))


async def replays(directory: Path, amount: Recorded) -> list[Figure]:
    """Return what replaying code and policies takes."""
    await asyncio.to_thread(directory.mkdir, parents=True, exist_ok=True)
    figures: list[Figure] = []
    for name, entry, each, target in (
        ("hand-written", "front", 2, _WRITTEN_S),
        ("model-driven", "writer", 1, _MODEL_S),
    ):
        file = directory / f"{entry}.jsonl"
        await _played(file, entry, amount.turns // each)
        code = [
            part for who in ("front", "billing", "writer") for part in ("--agent", f"{who}={_HERE}:{who}")
        ]
        took = [await asyncio.to_thread(_run, str(file), *code, allowed=(0,)) for _ in range(amount.rounds)]
        figures += _figures(f"{amount.turns:,} {name} turns by the code on disk", took, target)
    log = directory / "log.jsonl"
    await asyncio.to_thread(_log, log, amount.events)
    took = [
        await asyncio.to_thread(_run, str(log), "--agent", f"e={_HERE}:last", allowed=(0,))
        for _ in range(amount.rounds)
    ]
    figures += _figures(f"{amount.events:,} events, the turns of one agent", took, None, _MEMORY_MIB)
    for name, policy in _POLICIES.items():
        tried = directory / "tried.toml"
        await asyncio.to_thread(tried.write_text, policy)
        took = [
            await asyncio.to_thread(_run, str(log), "--policy", str(tried), allowed=(0, 1))
            for _ in range(amount.rounds)
        ]
        figures += _figures(f"{amount.events:,} events under {name}", took, _WHATIF_S, _MEMORY_MIB)
    return figures


_HERE = "bench.replaying"


def _figures(
    name: str, took: list[Used], target: Target | None, memory: Target | None = None
) -> list[Figure]:
    return [
        Figure(name, "s", spread([each.wall_s for each in took]), target=target),
        Figure(f"{name}: CPU", "s", spread([each.cpu_s for each in took])),
        Figure(f"{name}: memory", "MiB", spread([each.memory_mib for each in took]), target=memory),
    ]
