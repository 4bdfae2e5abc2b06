"""A lead and a worker that are killed between any two writes: the same tasks, and none of them twice."""

import asyncio
import contextlib
import os
import sys
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest

from mesh.bus.event_log import JetStreamLog
from mesh.client import Client
from mesh.guard.service import Guard
from mesh.replay.rejudge import rejudge
from mesh.testing import EmbeddedBus, fleet_of
from protocol.wire import codec, events
from protocol.wire.config import AgentEntry, Policy
from protocol.wire.events import AnyEvent
from protocol.wire.ids import AgentName
from protocol.wire.subjects import policy
from tests.certain import is_
from tests.drill.failpoints import arm, claims
from tests.servers import PATIENCE_S

SCRIPT = Path(__file__).with_name("tree_process.py")
LEASE_S = 1.0

LEAD = (("turn.taken", "step.ran", "turn.journaled"), ("turn.fenced", "step.recorded", "turn.proposed"))
WORKER = (
    ("turn.taken", "effect.ran", "turn.journaled"),
    ("effect.intended", "step.recorded", "turn.proposed"),
)


class Trees:
    """A mesh with one guard, and a lead and a worker that are started anew whenever they die."""

    def __init__(self, mesh: EmbeddedBus, folder: Path, names: tuple[str, ...]) -> None:
        self.mesh, self.ledger = mesh, folder / "ledger"
        self.armed = {name: folder / name for name in names}
        for directory in self.armed.values():
            directory.mkdir()

    @property
    def world(self) -> list[list[str]]:
        return [line.split() for line in self.ledger.read_text().splitlines()]

    async def keep_alive(self, name: str) -> None:
        found = {"LEDGER": str(self.ledger), "MESH_FAILPOINTS": str(self.armed[name])}
        while True:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                str(SCRIPT),
                self.mesh.url,
                self.mesh.keys[name].seed,
                name,
                env={**os.environ, **found},
                cwd=SCRIPT.parents[2],
            )
            try:
                await process.wait()
            except asyncio.CancelledError:
                with contextlib.suppress(ProcessLookupError):
                    process.kill()
                await process.wait()
                raise

    async def answered(self) -> tuple[object, list[AnyEvent]]:
        """Return the answer of a new request, and its log, which has to stand a second judgement."""
        async with self.mesh.connected_as("client") as bus, self.mesh.connected_as("audit") as audit:
            client = await Client.on(bus, "client")
            request = await client.submit("go")
            with contextlib.suppress(TimeoutError):  # its log says why
                await client.wait(request, timeout_s=PATIENCE_S)
            stored = await JetStreamLog(audit).read(request)
        happened = [codec.decode_event(each.data) for each in stored]
        assert not [each for each in happened if isinstance(each, events.TurnFailed | events.TaskFailed)]
        ended = is_(happened[-1], events.RequestCompleted)
        assert rejudge([each.data for each in stored]).same
        return ended.answer, happened


@contextlib.asynccontextmanager
async def trees_of(
    folder: Path, topology: str, *agents: str, intents: tuple[str, ...] = ()
) -> AsyncIterator[Trees]:
    """Start a mesh of this topology, with these agents; all but the first list `intents`."""
    entries = [
        AgentEntry(name=AgentName(name), intents=intents if at and intents else None)
        for at, name in enumerate(agents)
    ]
    fleet = msgspec.structs.replace(fleet_of(*entries), lease_s=LEASE_S, swarms=topology == "swarm")
    async with EmbeddedBus(fleet, folder / "mesh") as mesh:
        async with mesh.connected_as("admin") as admin:
            ours = Policy(topology=topology, claim_within_s=PATIENCE_S)
            await admin.publish_durable(policy("default"), codec.encode(ours))
        made = Trees(mesh, folder, agents)
        async with mesh.connected_as("guard") as bus:
            running = [asyncio.create_task(Guard(bus, identity="g").run())]
            running += [asyncio.create_task(made.keep_alive(name)) for name in made.armed]
            yield made
            for task in reversed(running):
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)


@pytest.fixture
async def trees(tmp_path: Path) -> AsyncIterator[Trees]:
    async with trees_of(tmp_path, "supervised", "lead", "worker") as made:
        yield made


async def test_whatever_is_killed_the_tasks_are_the_same_and_none_is_done_twice(trees: Trees) -> None:
    for of_lead, of_worker in zip(LEAD, WORKER, strict=True):
        before = len(trees.world) if trees.ledger.exists() else 0
        for name, failpoints in (("lead", of_lead), ("worker", of_worker)):
            for failpoint in failpoints:
                arm(trees.armed[name], failpoint)
        answer, happened = await trees.answered()
        assert answer == "3 steps are done"
        tasks = Counter(event.name for event in happened if isinstance(event, events.TaskOpened))
        delivered = Counter(event.name for event in happened if isinstance(event, events.TaskDelivered))
        assert tasks == delivered == {"one": 1, "two": 1, "both": 1}
        paid = {(what, key) for kind, what, *key_ in trees.world[before:] if kind == "pay" for key in key_}
        assert sorted(what for what, _ in paid) == ["both", "one", "two"]  # again only under the same key
    for name, all_of_it in (("lead", LEAD), ("worker", WORKER)):
        killed = sorted(claim.failpoint for claim in claims(trees.armed[name]))
        assert killed == sorted(failpoint for some in all_of_it for failpoint in some)


async def test_of_a_killed_swarm_each_read_is_claimed_once_and_posted_once(tmp_path: Path) -> None:
    kills = {"mender": "turn.fenced", "reader-a": "offer.claimed", "reader-b": "post.stored"}
    async with trees_of(tmp_path, "swarm", *kills, intents=("read",)) as trees:
        for name, failpoint in kills.items():
            (trees.armed[name] / failpoint).write_text('{"passes": 0, "do": "kill"}')
        answer, happened = await trees.answered()
        killed = [path.name for name in kills for path in trees.armed[name].iterdir()]
        paid = [line for line in trees.world if line[0] == "pay"]
    assert answer == ["look-0", "look-1"]
    opened = [event.name for event in happened if isinstance(event, events.TaskOpened)]
    delivered = [event.name for event in happened if isinstance(event, events.TaskDelivered)]
    assert sorted(opened) == sorted(delivered) == ["look-0", "look-1"]
    assert len([event for event in happened if isinstance(event, events.FactsPosted)]) == 2
    assert len(paid) == 1
    assert sorted(name.rpartition(".")[0] for name in killed) == sorted(kills.values())
