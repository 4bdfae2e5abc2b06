"""A checker that has never failed proves nothing: broken services, and a drill that finds them out.

Each scene brings about, by failpoints and stories and not by luck, the moment in which the fault does harm.
The same scenes played by sound services break no promise.
"""

import asyncio
import random
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest
import pytest_asyncio

from mesh.bus.connection import Bus
from mesh.bus.provision import stored_queues
from mesh.bus.roles import ADMIN, GUARD
from mesh.local.service import ServiceProcess
from protocol.wire import events
from protocol.wire.events import AnyEvent
from protocol.wire.handoff import Rule
from tests.drill.arena import Arena, Setting, hosted
from tests.drill.check import check
from tests.drill.fleet import drill_fleet
from tests.drill.log_checks import SLACK_S
from tests.drill.stories import Op, Story, story
from tests.drill.tests import broken_agent, broken_guard
from tests.drill.tests.broken_guard import GoneAway, replace
from tests.servers import PATIENCE_S

AGENT = "front"
IDENTITIES = {GUARD: f"{GUARD}-1", AGENT: AGENT}
LEASE_S = 1.0
"""The shortest that a fleet may have: what a killed process held comes again soon."""
UNBROKEN_S = 30.0
"""A lease that no busy machine lets end."""
BROKEN_ONES = {GUARD: broken_guard, AGENT: broken_agent}

MODEL: Op = ["model", "c1", 0.0]
PAY: Op = ["pay", "c2", 0.0]
POST: Op = ["post", "c3", 0.0]
REFUSED: Op = ["tempt", "itself"]
BROKEN: Op = ["broken"]
RETRIED: Op = ["retry"]
OVERDUE = frozenset({"nothing_lost", "consequences_follow"})
OVERDUE_S = SLACK_S + 2 * LEASE_S + 1
"""So long after it was due a consequence counts as forgotten, and a second more."""


@dataclass(frozen=True)
class Scene:
    """What is asked for, where a process is killed meanwhile, and what the drill has to find.

    Args:
        found: promises that must be found broken; others may be too.
        failpoint: none: the fault does harm by itself.
        held: whether the agent stands still until the guard has heard again what it was killed over.
        stops: whether a broken fleet never comes to an end.
        last: the event after which it does nothing more, if it appends any. No message may come again then:
            hearing it, a broken guard would do what it left undone.
        still_s: how long it is left alone then; some checks believe in nothing that is fresh.
    """

    script: tuple[Op, ...]
    found: frozenset[str]
    failpoint: str = ""
    held: bool = False
    stops: bool = False
    last: type[AnyEvent] | None = None
    still_s: float = 0.5

    @property
    def played_as(self) -> tuple[object, ...]:
        """What tells one scene from another to sound services."""
        return (self.script, self.failpoint, self.held)

    @property
    def lease_s(self) -> float:
        """After how long a message comes again that nobody acknowledged."""
        return LEASE_S if self.last is None else UNBROKEN_S


GUARDS = {
    "ack-before-append": Scene((PAY,), frozenset({"nothing_lost"}), "guard.heard", stops=True),
    "no-compare-and-set": Scene(
        (PAY,), frozenset({"sound_chain", "one_event_a_cause"}), "guard.decided", held=True
    ),
    "no-consequences": Scene((PAY, BROKEN), OVERDUE, stops=True, last=events.TurnFailed, still_s=OVERDUE_S),
    "no-timer": Scene((PAY, RETRIED), OVERDUE, stops=True, last=events.TurnFailed, still_s=OVERDUE_S),
    "stale-cache": Scene((PAY,), frozenset({"nothing_lost", "no_dead_letters"}), "guard.decided", held=True),
}
AGENTS = {
    "ack-before-propose": Scene((PAY,), frozenset({"nothing_lost"}), "turn.journaled", stops=True),
    "no-journal": Scene(
        (MODEL, POST),
        frozenset({"no_effect_twice", "intent_first", "journaled_before_used"}),
        "turn.journaled",
    ),
    "no-fence": Scene((PAY, REFUSED, POST), frozenset({"fenced"})),
    "effect-without-intent": Scene((POST,), frozenset({"intent_first", "no_effect_twice"}), "effect.ran"),
    "new-key-each-round": Scene((PAY, REFUSED), frozenset({"one_key_a_call"})),
    "lost-arguments": Scene((POST,), frozenset({"people_can_act", "nothing_lost"}), "effect.ran"),
    "lost-remark": Scene((POST,), frozenset({"remarked_first"})),
    "lost-result": Scene((PAY,), frozenset({"journaled_before_used"})),
    "stuck-step": Scene((POST,), frozenset({"nothing_lost"}), stops=True, last=events.RequestOpened),
}
TEMPTED = {
    "no-cycle-no-seal": {"refused": Rule.CYCLE, "tempted-past-the-seal": Rule.NO_RETURN},
    "no-news-no-depth": {"tempted-in-circles": Rule.CYCLE, "tempted-too-deep": Rule.DEPTH},
}
"""Guards without rules: the stories that tempt them, and the rule that each of them breaks."""
TREES = {
    "opens-twice": ("nested", "no_task_twice"),
    "no-calling-off": ("delivers-early", "no_task_lost"),
    "tells-nobody": ("tree-cancelled", "every_end_told"),
    "all-to-each": ("tree-within-budget", "no_tree_overspends"),
    "claims-twice": ("swarm-reads", "one_task_at_a_time"),
    "reading-time": ("replied-without-guards", "in_time_counts"),
    "frozen-offers": ("swarm-thawed-before-claim", "claims_count"),
}
"""Guards that lose count of tasks: the story that shows it, and the promise that each of them breaks."""
SHOWN = {"reading-time": events.TurnResumed}
"""What shows it at once, where such a guard comes to no end: the question expires and is asked again."""
TALKS = {"one-conversation": ("remembered", "ends_as_told")}
"""Guards that mix up conversations, likewise; the last request that follows the story shows it."""
LOOK_S = 0.05


class BrokenFleet:
    """The drill's fleet, whose guard and agent may be broken, each in one way at a time."""

    def __init__(self, directory: Path) -> None:
        self._faults = {name: directory / f"{name}.fault" for name in BROKEN_ONES}
        for fault in self._faults.values():
            fault.write_text("")
        self.setting = Setting(
            # These guards mistreat what lies in their queues; on the lane an agent would store it again.
            file=drill_fleet(LEASE_S, LEASE_S, lane=False),
            guards=1,
            instances=1,
            commands={
                name: (sys.executable, "-m", program.__name__, str(self._faults[name]))
                for name, program in BROKEN_ONES.items()
            },
        )
        self.arena: Arena
        self._lease_s = LEASE_S

    async def break_down(self, name: str, mode: str, lease_s: float = LEASE_S) -> None:
        """Break the guard or the agent, and mend the other; what a broken one left undone is gone."""
        async with await self.arena.fleet.connect_as(ADMIN) as admin:
            for queue in await stored_queues(admin):
                await admin.api(f"STREAM.PURGE.{queue}")
            if lease_s != self._lease_s:
                await self._redeliver_after(admin, lease_s)
        for each, fault in self._faults.items():
            wanted = mode if each == name else ""
            if fault.read_text() != wanted:
                fault.write_text(wanted)
                await self.arena.processes.kill(IDENTITIES[each])

    async def _redeliver_after(self, admin: Bus, lease_s: float) -> None:
        """Have the scene's proposals and turns come again after so long, whatever its services think."""
        for stream in ("PROP-app", f"PROP-{AGENT}", "LOG"):
            names = (await admin.api(f"CONSUMER.NAMES.{stream}"))["consumers"]
            for name in names:
                config = (await admin.api(f"CONSUMER.INFO.{stream}.{name}"))["config"]
                update = {"stream_name": stream, "config": {**config, "ack_wait": int(lease_s * 1e9)}}
                await admin.api(f"CONSUMER.CREATE.{stream}.{name}", {**update, "action": "update"})
        self._lease_s = lease_s

    async def promises_broken(self, request: str) -> Mapping[str, str]:
        """Return what is said against one request, by promise."""
        found = check(await self.arena.gather())
        return {breach.promise: breach.detail for breach in found.breaches if breach.request == request}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def broken(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[BrokenFleet]:
    directory = tmp_path_factory.mktemp("broken")
    fleet = BrokenFleet(directory)
    async with hosted(fleet.setting, directory / "drill") as fleet.arena:
        yield fleet
        await fleet.arena.processes.end(0.5)  # a broken one never ends by itself


async def play(arena: Arena, scene: Scene, *, stops: bool = False) -> str:
    """Play a scene until it rests; return its request."""
    deaths = arena.processes.deaths(scene.failpoint)
    agent, guard = (arena.fleet.services[IDENTITIES[name]] for name in (AGENT, GUARD))
    said = guard.log.stat().st_size
    if scene.failpoint:
        arena.processes.arm(scene.failpoint)
    if scene.held:
        agent.signal(signal.SIGSTOP)
    request = await arena.send(Story(name="scene", text="a scene", script=scene.script))
    if scene.failpoint:
        await arena.processes.died_in(scene.failpoint, deaths + 1)
    if scene.held:
        await either(nothing_proposed(arena), says(guard, "not_now", said))
        agent.signal(signal.SIGCONT)
    if stops:
        if scene.last is not None:
            await arena.watch.until(request, scene.last)
        await asyncio.sleep(scene.still_s)
        arena.silent.add(request)
    else:
        await either(arena.rest(request, PATIENCE_S), says(guard, "dead_letter", said))
    return request


async def nothing_proposed(arena: Arena) -> None:
    """Wait until every submit and proposal is acknowledged."""
    async with await arena.fleet.connect_as(ADMIN) as admin:
        while (await admin.api("STREAM.INFO.PROP-app"))["state"]["messages"]:  # noqa: ASYNC110 - at the bus
            await asyncio.sleep(LOOK_S)


async def says(service: ServiceProcess, what: str, after: int) -> None:
    """Wait until a service has logged an event of this name, behind so many bytes."""
    while f'"{what}"'.encode() not in service.log.read_bytes()[after:]:  # noqa: ASYNC110 - another process
        await asyncio.sleep(LOOK_S)


async def either(*awaited: Awaitable[object]) -> None:
    """Wait for whichever comes first, and forget the others."""
    tasks = [asyncio.ensure_future(each) for each in awaited]
    done, left = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task in left:
        task.cancel()
    await asyncio.gather(*left, return_exceptions=True)
    for task in done:
        task.result()


def test_every_fault_has_its_scene() -> None:
    assert {*GUARDS, *TEMPTED, *TREES, *TALKS} == set(broken_guard.MODES)
    assert set(AGENTS) == set(broken_agent.MODES)


def test_breaking_what_is_no_longer_there_is_an_error() -> None:
    with pytest.raises(GoneAway, match="no such_thing any more"):
        replace(broken_guard, "such_thing", None)


async def test_the_same_scenes_by_sound_services_break_nothing(tmp_path: Path) -> None:
    """Their leases are longer: on a busy machine one of a second ends while a turn runs."""
    setting = Setting(file=drill_fleet(3.0, LEASE_S), guards=1, instances=1)
    scenes: list[Scene] = []
    for scene in (*GUARDS.values(), *AGENTS.values()):
        if all(each.played_as != scene.played_as for each in scenes):
            scenes.append(scene)
    async with Arena(setting, tmp_path / "drill") as arena:
        for scene in scenes:
            await play(arena, scene)
        found = check(await arena.evidence())
    assert found.breaches == ()
    assert found.ended == {"completed": len(scenes)}


@pytest.mark.parametrize(
    ("name", "mode"), [*((GUARD, mode) for mode in GUARDS), *((AGENT, mode) for mode in AGENTS)]
)
@pytest.mark.asyncio(loop_scope="module")
async def test_a_broken_service_is_found_out(broken: BrokenFleet, name: str, mode: str) -> None:
    scene = (GUARDS if name == GUARD else AGENTS)[mode]
    await broken.break_down(name, mode, scene.lease_s)
    request = await play(broken.arena, scene, stops=scene.stops)
    found = await broken.promises_broken(request)
    assert scene.found <= found.keys(), found


@pytest.mark.parametrize("mode", TEMPTED)
@pytest.mark.asyncio(loop_scope="module")
async def test_a_guard_without_rules_is_found_out(broken: BrokenFleet, mode: str) -> None:
    await broken.break_down(GUARD, mode)
    sent = {name: await broken.arena.send(story(name, random.Random(1))) for name in TEMPTED[mode]}
    for name, rule in TEMPTED[mode].items():
        await broken.arena.rest(sent[name], PATIENCE_S)
        found = await broken.promises_broken(sent[name])
        assert f"though {rule} forbids it" in found["verdicts_right"]


@pytest.mark.parametrize("mode", [*TREES, *TALKS])
@pytest.mark.asyncio(loop_scope="module")
async def test_a_guard_that_mixes_up_tasks_or_conversations_is_found_out(
    broken: BrokenFleet, mode: str
) -> None:
    name, promise = {**TREES, **TALKS}[mode]
    await broken.break_down(GUARD, mode)
    told = story(name, random.Random(1))
    for each in (told, *told.then):
        request = await broken.arena.send(each)
        if mode in SHOWN:
            await broken.arena.watch.until(request, SHOWN[mode])
            broken.arena.silent.add(request)
        else:
            await broken.arena.rest(request, PATIENCE_S)
    found = await broken.promises_broken(request)
    assert promise in found, found
