"""What a guard decides. One suite: each scenario is played by the guard in memory, then told to a real one.

The real guard runs on a real server, takes its messages off their queues, and has the clock of the guard in
memory. Its events have to be the same byte for byte, and so have the codes of what it rejects.
"""

import os
import time
from collections import Counter
from collections.abc import AsyncIterator

import msgspec
import pytest
import pytest_asyncio

from mesh.bus.lane import Lane
from mesh.bus.reader import get
from mesh.guard.service import Guard
from mesh.testing import EmbeddedBus, InMemoryGuard
from protocol.domain.steps import Outcome
from protocol.wire import events, subjects
from protocol.wire.commands import Command, Freeze, Thaw
from protocol.wire.config import BreakerEntry
from protocol.wire.events import type_of
from protocol.wire.ids import AgentName, request_id
from tests.certain import known
from tests.contract import scenarios, swarm_scenarios, tree_scenarios
from tests.contract.scenarios import FLEET, SCENARIOS, Scenario
from tests.contract.script import Deaf, Frozen, Message, Pause, Script
from tests.contract.swarm_scenarios import SWARMS
from tests.contract.tree_scenarios import TREES
from tests.guard.actor import Actor
from tests.guard.stage import Stage, staged
from tests.logs import plain_logs
from tests.servers import until

POLICIES = {**scenarios.POLICIES, **tree_scenarios.POLICIES, **swarm_scenarios.POLICIES}
AHEAD_US = 3_600_000_000
"""The clock of both guards stands so far in the future that no schedule of the server fires by itself."""
STEP_S = 10.0
"""A guard that looked at no agent for longer knows nothing of the time between."""


class Rehearsed:
    """A script told to a guard on a real server."""

    def __init__(self, stage: Stage, script: Script, begun_at: int, *, lane: bool) -> None:
        self.stage, self.script, self.request = stage, script, script.guard.request
        self.lane = lane
        self.asked: list[bool] = []
        """Of each message that was asked on the lane: whether it was decided there."""
        self.now = begun_at
        self.guard: Guard
        self.actors: list[Actor] = []

    async def begin(self, scenario: Scenario) -> None:
        admin = await self.stage.bus("admin")
        for name in FLEET.agents:
            entry = scenario.breakers.get(name, BreakerEntry())
            await admin.publish_durable(subjects.breaker(name), msgspec.json.encode(entry))
        if scenario.served:
            self.actors = [await self.stage.actor(name, served=True) for name in FLEET.agents]
        self.guard = await self.stage.guard(now=lambda: self.now, salt=self.salt)
        await self.stage.ready(self.guard)
        processor = self.guard._processor
        process = processor.process

        async def at_once(command: Command, *, queued: bool = True) -> Outcome:
            """Decide a command as one that was stored at the guard's own time, as in memory."""
            return await process(msgspec.structs.replace(command, stored=self.now), queued=queued)

        processor.process = at_once  # type: ignore[method-assign]

    def salt(self) -> str:
        """Return the number of the next event, as the guard in memory does."""
        known = self.guard._processor._cache.get(self.request)
        return f"{0 if known is None else len(known.placed):016x}"

    async def take(self, happened: Message | Pause | Frozen | Deaf) -> None:
        match happened:
            case Message(sender, body, control):
                bus = await self.stage.bus(sender)
                if self.lane and not control:
                    self.asked.append(await Lane(bus, sender).is_decided(self.request, body))
                if not (self.lane and not control and self.asked[-1]):
                    subject = (subjects.ctl if control else subjects.prop)(sender, self.request)
                    await bus.publish_durable(subject, body)
                await self.stage.drained()
            case Frozen(frozen):
                order = Freeze(id="all") if frozen else Thaw(id="all")
                await self.stage.control(subjects.MESH_WIDE, order)
                known = self.guard._context
                await (known.frozen if frozen else known.thawed).wait()
            case Deaf(agent):
                deaf = next(actor for actor in self.actors if actor.name == agent)
                self.actors.remove(deaf)
                await deaf.close()
            case Pause(seconds):
                await self.pause(round(seconds * 1e6))

    async def pause(self, us: int) -> None:
        """Let time pass for the guard, which looks at its agents meanwhile; then the timer fires."""
        lies_in = Counter(event.to for event in await self.stage.log(self.request))
        for actor in self.actors:  # nothing is left in its inbox
            await until(lambda actor=actor: len(actor.got.get(self.request, ())) >= lies_in[actor.name])  # type: ignore[misc]
        until_us = self.now + us
        await self.look()
        while self.now < until_us:
            self.now = min(until_us, self.now + round(STEP_S * 1e6))
            await self.look()
        await self.guard._processor.wake(self.request)

    async def look(self) -> None:
        for name in FLEET.agents:
            await self.guard._context.attendance._look(name)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def contract_bus(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[EmbeddedBus]:
    with plain_logs():
        async with EmbeddedBus(FLEET, tmp_path_factory.mktemp("mesh")) as bus:
            async with bus.connected_as("admin") as admin:
                for name, policy in POLICIES.items():
                    await admin.publish_durable(subjects.policy(name), msgspec.json.encode(policy))
            yield bus
            await bus.server.kill()


@pytest.mark.parametrize("lane", [False, True], ids=["queue", "lane"])
@pytest.mark.parametrize(
    "scenario", [*SCENARIOS, *TREES, *SWARMS], ids=lambda scenario: scenario.play.__name__
)
async def test_a_real_guard_writes_what_the_guard_in_memory_does(
    contract_bus: EmbeddedBus, scenario: Scenario, lane: bool
) -> None:
    now = time.time_ns() // 1000 + AHEAD_US
    async with contract_bus.connected_as("admin") as admin:
        found = await get(admin, "CONF", subjects.FLEET)
        revision = known(found).seq
    guard = InMemoryGuard(
        msgspec.structs.replace(FLEET, revision=revision),
        POLICIES,
        request=request_id(AgentName("c1"), now // 1000, os.urandom(10)),
        now=now,
        breakers=scenario.breakers,
        served=lambda agent: scenario.served,
    )
    guard.takers = set(FLEET.agents) if scenario.served else set()
    script = Script(guard)
    scenario.play(script)
    assert told(guard.events) == scenario.comes
    assert " ".join(script.rejected) == scenario.rejected
    async with staged(contract_bus) as stage:
        after = await stage.last_seq("DEAD")
        real = Rehearsed(stage, script, now, lane=lane)
        await real.begin(scenario)
        for happened in script.happened:
            await real.take(happened)
        assert await stage.bodies(guard.request) == guard.bodies
        letters = [each for each in await stage.dead_letters(after=after) if each.request == guard.request]
        assert [letter.code for letter in letters] == script.rejected
        assert any(real.asked) == (lane and bool(guard.events))


def told(happened: list[events.AnyEvent]) -> str:
    """Return the types of events but `facts.withheld`, with the rule or code of those that have one."""
    said = []
    for event in (each for each in happened if not isinstance(each, events.FactsWithheld)):
        match event:
            case events.MoveRefused(refusal=refusal) | events.RequestRefused(refusal=refusal):
                said.append(f"{type_of(event)}:{refusal.rule if refusal else None}")
            case events.TurnFailed(error=error) | events.TaskFailed(error=error):
                said.append(f"{type_of(event)}:{error.code}")
            case events.TaskFailed(error=task_error):
                said.append(f"{type_of(event)}:{task_error.code}")
            case events.RequestFailed(code=code):
                said.append(f"{type_of(event)}:{code}")
            case _:
                said.append(type_of(event))
    return " ".join(said)
