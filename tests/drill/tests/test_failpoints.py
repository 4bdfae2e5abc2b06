"""A process is killed in each failpoint: what it was at ends as it should, and is done once."""

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

import pytest
import pytest_asyncio

from protocol.wire import codec, events
from tests.drill import ledger
from tests.drill.arena import Arena, Setting, hosted
from tests.drill.check import check
from tests.drill.evidence import Deed, Fault
from tests.drill.failpoints import FAILPOINTS
from tests.drill.fleet import drill_fleet
from tests.drill.stories import SECRET, Op, Story
from tests.servers import PATIENCE_S

LEASE_S = 2.0
"""What a killed process held comes again soon. On a busy machine a shorter one ends while a turn runs."""

LOOK: Op = ["look", "c1", 0.0]
MODEL: Op = ["model", "c2", 0.0]
PAY: Op = ["pay", "c3", 0.0]
SHIP: Op = ["ship", "c4", 0.0]
POST: Op = ["post", "c5", 0.0]
EFFECTS = (PAY, SHIP, POST)
ALL = (LOOK, MODEL, *EFFECTS)


def told(*script: Op, **more: object) -> Story:
    return replace(Story(name="failpoint", text="a failpoint", script=script), **more)  # type: ignore[arg-type]


def task(name: str, *script: Op, **rest: object) -> dict[str, object]:
    return {"name": name, "script": list(script), **rest}


DEEP: Op = ["delegate", [task("deep", SHIP, MODEL, to="vault")]]
TREE = told(
    PAY, ["delegate", [task("left", DEEP, to="back"), task("right", LOOK, to="vault")]], POST, policy="tree"
)
OPEN_TREE = told(
    [
        "delegate",
        [task("left", PAY, ["slow", 8.0], SHIP, to="back"), task("right", ["slow", 8.0], to="vault")],
    ],
    order="cancel",
    expected=("cancelled",),
    policy="tree",
)
SWARM = told(["delegate", [task("one", LOOK, ["board", "seen"], MODEL, intent="read")]], PAY, policy="swarm")
CLAIMED = told(
    ["delegate", [task("one", ["unarmed", "offer.claimed"], LOOK, MODEL, intent="read")]], PAY, policy="swarm"
)
"""In the lane a claim's answer and the turn that it leads to come at once. The process may be at the turn's
first step when it dies of the claim; so the turn waits for that."""
CASES: Mapping[str, tuple[Story, ...]] = {
    "turn.taken": (told(*ALL), TREE),
    "turn.fenced": (told(*EFFECTS, ["tempt", "itself"], MODEL),),
    "step.ran": (told(MODEL, PAY), told(LOOK, PAY)),
    "effect.intended": tuple(told(LOOK, effect, MODEL) for effect in EFFECTS),
    "effect.ran": tuple(told(LOOK, effect, MODEL) for effect in EFFECTS),
    "step.recorded": (told(MODEL, *EFFECTS), told(PAY, MODEL)),
    "turn.journaled": (told(*ALL), told(*EFFECTS, ["ask", "client"], MODEL), TREE),
    "turn.proposed": (told(*ALL), told(PAY, ["to", "back"], SHIP), TREE),
    "post.stored": (SWARM,),
    "offer.claimed": (CLAIMED,),
    "lane.undecided": (told(*ALL), TREE),
    "guard.asked": (told(*ALL), TREE),
    "guard.answers": (told(PAY, ["to", "back"], SHIP), TREE),
    "guard.heard": (told(*ALL), TREE),
    "guard.withheld": (told(["to", "back"], ["blind", "ssn"], PAY, facts=(SECRET,)),),
    "guard.decided": (told(PAY, ["escalate", "answer"]), TREE),
    "guard.due": (told(PAY, ["broken"], SHIP), TREE),
    "guard.followed": (told(PAY, ["broken"], SHIP), TREE),
    "guard.ended": (told(PAY, ["slow", 1.0], SHIP, order="cancel", expected=("cancelled",)), OPEN_TREE),
    "guard.asks": (told(PAY, ["ask", "client"], SHIP),),
    "guard.remembers": (told(PAY, ["to", "back"], ["remember", "seen"], conversation="failpoint"),),
    "guard.armed": (told(PAY, ["retry"], SHIP), TREE),
    "guard.fired": (told(PAY, ["retry"], SHIP),),
}
"""By failpoint: stories that lead through it."""


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=[False, True], ids=["queue", "lane"])
async def arena(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Arena]:
    """One guard, one process of each agent, and people who do as asked; in the end all is checked."""
    setting = Setting(file=drill_fleet(LEASE_S, LEASE_S, lane=request.param), guards=1, instances=1)
    async with hosted(setting, tmp_path_factory.mktemp("failpoints") / "drill") as made:
        yield made
        found = check(await made.gather())
        told = {request: story.text for request, story in made.stories.items()}
        assert not [(told.get(each.request), each) for each in found.breaches]


REPEATABLE = ("look", "model", "pay")
"""Tools that read, ask a model, or take a key and may be called again under it."""
_OF_SUBMITS = ("guard.decided", "guard.armed", "guard.asked", "guard.answers")


def test_every_failpoint_has_its_case() -> None:
    assert set(CASES) == set(FAILPOINTS)


@pytest.mark.parametrize(
    ("failpoint", "story"),
    [
        pytest.param(failpoint, story, id=f"{failpoint}-{number}")
        for failpoint, stories in CASES.items()
        for number, story in enumerate(stories)
    ],
)
@pytest.mark.asyncio(loop_scope="module")
async def test_a_process_killed_in_a_failpoint_loses_and_repeats_nothing(
    arena: Arena, failpoint: str, story: Story
) -> None:
    if FAILPOINTS[failpoint].lane and not arena.setting.file.fleet.lane:
        pytest.skip("nobody comes by without a lane")
    if failpoint == "lane.undecided":  # nobody answers
        arena.processes.arm("guard.asked", passes=1)
    async with asyncio.timeout(PATIENCE_S):
        request = await _killed_in(arena, failpoint, replace(story, text=failpoint))
    last = await arena.rest(request, PATIENCE_S)
    assert isinstance(last, events.Ended), last
    assert events.type_of(last).partition(".")[2] in story.expected
    deeds = [deed for deed in ledger.deeds(arena.ledger) if deed.request == request]
    _each_effect_once(deeds, story, failpoint, ledger.stalls(arena.ledger))


async def _killed_in(arena: Arena, failpoint: str, story: Story) -> str:
    """Return a request during which a process died in a failpoint.

    On a busy machine all of one request may come by the queue, and pass no failpoint of the lane.
    """
    deaths = arena.processes.deaths(failpoint)
    # The submit goes through these as well; it is the next one to come through that has to do with it.
    arena.processes.arm(failpoint, passes=failpoint in _OF_SUBMITS)
    died = asyncio.create_task(arena.processes.died_in(failpoint, deaths + 1))
    try:
        while True:
            request = await arena.send(story)
            over = asyncio.create_task(arena.rest(request, PATIENCE_S))
            await asyncio.wait({died, over}, return_when=asyncio.FIRST_COMPLETED)
            over.cancel()
            if died.done():
                return request
    finally:
        died.cancel()


def _each_effect_once(
    deeds: Sequence[Deed], story: Story, failpoint: str, stalls: Sequence[Fault] = ()
) -> None:
    """Hold the ledger against the script, without the checker's help.

    A machine that lets an agent stand still takes its lease away, which is a second fault: only then a call
    that may run again under its key, or that changes nothing, may come again anywhere.
    """
    done = Counter(deed.call for deed in deeds)
    cancelled = story.order == "cancel"
    for tool, call, _ in calls(story.script):
        spans = [(deed.began or deed.at, deed.at) for deed in deeds if deed.call == call]
        begin, end = min(spans, default=(0, 0))[0] - int(LEASE_S * 1e6), max(spans, default=(0, 0))[1]
        stood_still = any(stall.at <= end and stall.until >= begin for stall in stalls)
        repeatable = tool in REPEATABLE and stood_still
        again = done[call] == 2 and (_may_come_again(tool, failpoint) or repeatable)
        assert done[call] == 1 or again or (cancelled and not done[call]), (call, done)
    keys = {(deed.call, deed.key) for deed in deeds}
    assert len(keys) == len({call for call, _ in keys})


@pytest.mark.parametrize("tool", ["look", "model", "pay", "ship", "post"])
def test_a_second_call_is_excused_by_a_stall_and_only_where_it_does_no_harm(tool: str) -> None:
    story = told([tool, "c1", 0.0])
    twice = [Deed(at, "read", tool, "k", "r", "c1") for at in (10_000_000, 11_000_000)]
    stall = Fault("stall", "a:1", "a", 10_200_000, 10_900_000)
    long_ago = replace(stall, at=1, until=2)
    for stalls in ((), (long_ago,)):
        with pytest.raises(AssertionError):
            _each_effect_once(twice, story, "offer.claimed", stalls)
    with contextlib.nullcontext() if tool in REPEATABLE else pytest.raises(AssertionError):
        _each_effect_once(twice, story, "offer.claimed", (stall,))


def calls(script: Iterable[Op]) -> Iterator[Op]:
    """Yield the calls of a script, and of the scripts of its tasks."""
    for op in script:
        if op[0] == "delegate":
            for each in op[1]:
                yield from calls(each["script"])
        elif len(op) == 3:
            yield op


def _may_come_again(tool: str, failpoint: str) -> bool:
    """Say whether a crash in a failpoint may rightly cost a second call."""
    return (tool in ("look", "model") and failpoint == "step.ran") or (
        tool == "pay" and failpoint == "effect.ran"
    )


@pytest.mark.asyncio(loop_scope="module")
async def test_an_effect_that_knows_no_key_was_put_to_a_person(arena: Arena) -> None:
    evidence = await arena.gather()
    settled = [
        event.outcome
        for bodies in evidence.bodies.values()
        for event in map(codec.decode_event, bodies)
        if isinstance(event, events.EffectSettled)
    ]
    assert set(settled) == {"done", "not_done"}  # after `effect.ran` and after `effect.intended`


@pytest.mark.asyncio(loop_scope="module")
async def test_what_the_tools_wrote_down_is_theirs(arena: Arena) -> None:
    evidence = await arena.gather()
    assert all(isinstance(deed, Deed) and deed.pid for deed in evidence.deeds)
    assert evidence.unasked == ()
