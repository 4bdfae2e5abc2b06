"""A checker that has never failed proves nothing: broken services, and a drill that finds them out.

Each scene brings about, by failpoints and stories and not by luck, the moment in which the fault does harm.
The same scenes played by sound services break no promise.
"""

import asyncio
import random
import signal
import sys
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from mesh.bus.roles import ADMIN, GUARD
from mesh.fleet.file import parse_fleet
from protocol.wire import events
from protocol.wire.events import AnyEvent
from protocol.wire.handoff import Rule
from tests.drill.arena import GRACE_S, Arena, Setting
from tests.drill.check import check
from tests.drill.findings import Findings
from tests.drill.fleet import drill_fleet
from tests.drill.log_checks import SLACK_S
from tests.drill.stories import Op, Story, story
from tests.drill.tests import broken_agent, broken_guard
from tests.drill.tests.broken_guard import GoneAway, replace
from tests.servers import PATIENCE_S

AGENT = "front"
LEASE_S = 1.0
"""The shortest that a fleet may have: what a killed process held comes again soon."""
FLEET = f"""
name = "broken"
entry = "{AGENT}"

[agents.{AGENT}]
module = "tests.drill.agents:{AGENT}"

[clients.app]
[operators.ops]
[viewers.audit]
[human]

[policies.default]
retry_backoff_s = 0.1

[lease]
agent_s = {LEASE_S}
guard_s = {LEASE_S}
"""

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
        last: the event after which it does nothing more, if it appends any.
        still_s: how long it is left alone then; some checks believe in nothing that is fresh.
    """

    script: tuple[Op, ...]
    found: frozenset[str]
    failpoint: str = ""
    held: bool = False
    stops: bool = False
    last: type[AnyEvent] | None = None
    still_s: float = 0.5


GUARDS = {
    "ack-before-append": Scene((PAY,), frozenset({"nothing_lost"}), "guard.heard", stops=True),
    "no-compare-and-set": Scene(
        (PAY,), frozenset({"sound_chain", "one_event_a_cause"}), "guard.decided", held=True
    ),
    "stale-cache": Scene((PAY,), frozenset({"nothing_lost", "no_dead_letters"}), "guard.decided", held=True),
    "no-consequences": Scene((PAY, BROKEN), OVERDUE, stops=True, last=events.TurnFailed, still_s=OVERDUE_S),
    "no-timer": Scene((PAY, RETRIED), OVERDUE, stops=True, last=events.TurnFailed, still_s=OVERDUE_S),
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
    "lost-remark": Scene((POST,), frozenset({"people_can_act", "nothing_lost"}), "effect.ran"),
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
}
"""Guards that lose count of tasks: the story that shows it, and the promise that each of them breaks."""
LOOK_S = 0.05


async def played(scene: Scene, commands: Mapping[str, Sequence[str]], directory: Path) -> Findings:
    """Play one scene in a fleet of its own, with broken services."""
    file = parse_fleet(FLEET, "the broken fleet")
    setting = Setting(file=file, guards=1, instances=1, commands=commands)
    async with Arena(setting, directory) as arena:
        await play(arena, scene, stops=scene.stops)
        return check(await arena.evidence(0.5 if scene.stops else GRACE_S))


async def play(arena: Arena, scene: Scene, *, stops: bool = False) -> None:
    deaths = arena.processes.deaths(scene.failpoint)
    agent = arena.fleet.services[AGENT]
    if scene.failpoint:
        arena.processes.arm(scene.failpoint)
    if scene.held:
        agent.signal(signal.SIGSTOP)
    request = await arena.send(Story(name="scene", text="a scene", script=scene.script))
    if scene.failpoint:
        await arena.processes.died_in(scene.failpoint, deaths + 1)
    if scene.held:
        await either(nothing_proposed(arena), guard_says(arena, "not_now"))
        agent.signal(signal.SIGCONT)
    if stops:
        if scene.last is not None:
            await arena.watch.until(request, scene.last)
        await asyncio.sleep(scene.still_s)
        arena.silent.add(request)
    else:
        await either(arena.rest(request, PATIENCE_S), guard_says(arena, "dead_letter"))


async def nothing_proposed(arena: Arena) -> None:
    """Wait until every submit and proposal is acknowledged."""
    async with await arena.fleet.connect_as(ADMIN) as admin:
        while (await admin.api("STREAM.INFO.PROP-app"))["state"]["messages"]:  # noqa: ASYNC110 - at the bus
            await asyncio.sleep(LOOK_S)


async def guard_says(arena: Arena, what: str) -> None:
    """Wait until a guard has logged an event of this name."""
    log = arena.fleet.services[f"{GUARD}-1"].log
    while f'"{what}"' not in log.read_text():  # noqa: ASYNC110 - another process
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
    assert {*GUARDS, *TEMPTED, *TREES} == set(broken_guard.MODES)
    assert set(AGENTS) == set(broken_agent.MODES)


def test_breaking_what_is_no_longer_there_is_an_error() -> None:
    with pytest.raises(GoneAway, match="no such_thing any more"):
        replace(broken_guard, "such_thing", None)


@pytest.mark.parametrize("mode", GUARDS)
async def test_a_broken_guard_is_found_out(mode: str, tmp_path: Path) -> None:
    commands = {GUARD: (sys.executable, "-m", broken_guard.__name__, mode)}
    found = await played(GUARDS[mode], commands, tmp_path / "drill")
    assert GUARDS[mode].found <= {breach.promise for breach in found.breaches}, found


@pytest.mark.parametrize("mode", AGENTS)
async def test_a_broken_agent_is_found_out(mode: str, tmp_path: Path) -> None:
    commands = {AGENT: (sys.executable, "-m", broken_agent.__name__, mode)}
    found = await played(AGENTS[mode], commands, tmp_path / "drill")
    assert AGENTS[mode].found <= {breach.promise for breach in found.breaches}, found


@pytest.mark.parametrize("mode", TEMPTED)
async def test_a_guard_without_rules_is_found_out(mode: str, tmp_path: Path) -> None:
    commands = {GUARD: (sys.executable, "-m", broken_guard.__name__, mode)}
    setting = Setting(file=drill_fleet(LEASE_S, LEASE_S), guards=1, instances=1, commands=commands)
    async with Arena(setting, tmp_path / "drill") as arena:
        sent = {name: await arena.send(story(name, random.Random(1))) for name in TEMPTED[mode]}
        for request in sent.values():
            await arena.rest(request, PATIENCE_S)
        found = check(await arena.evidence())
    wrong = {breach.request: breach.detail for breach in found.breaches if breach.promise == "verdicts_right"}
    for name, rule in TEMPTED[mode].items():
        assert f"though {rule} forbids it" in wrong[sent[name]]


@pytest.mark.parametrize("mode", TREES)
async def test_a_guard_that_loses_count_of_tasks_is_found_out(mode: str, tmp_path: Path) -> None:
    commands = {GUARD: (sys.executable, "-m", broken_guard.__name__, mode)}
    setting = Setting(file=drill_fleet(LEASE_S, LEASE_S), guards=1, instances=1, commands=commands)
    name, promise = TREES[mode]
    async with Arena(setting, tmp_path / "drill") as arena:
        request = await arena.send(story(name, random.Random(1)))
        await arena.rest(request, PATIENCE_S)
        found = check(await arena.evidence())
    assert promise in {breach.promise for breach in found.breaches if breach.request == request}, found


async def test_the_same_scenes_by_sound_services_break_nothing(tmp_path: Path) -> None:
    """Their leases are longer: on a busy machine one of a second ends while a turn runs."""
    unhurried = FLEET.replace(f"agent_s = {LEASE_S}", "agent_s = 3.0")
    file = parse_fleet(unhurried, "the same fleet, sound")
    async with Arena(Setting(file=file, guards=1, instances=1), tmp_path / "drill") as arena:
        for scene in (*GUARDS.values(), *AGENTS.values()):
            await play(arena, scene)
        found = check(await arena.evidence())
    assert found.breaches == ()
    assert found.ended == {"completed": len(GUARDS) + len(AGENTS)}
