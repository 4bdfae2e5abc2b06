"""The lane: guards are asked directly, and whatever comes of it, a message is decided once."""

import asyncio
import contextlib
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import cast

import msgspec
import pytest

from mesh.agent import Turn, agent
from mesh.bus import lane as asking
from mesh.bus import roles
from mesh.bus.connection import Bus
from mesh.bus.lane import Lane
from mesh.bus.nats_protocol import Incoming
from mesh.bus.reader import get
from mesh.client import Client
from mesh.guard.lane import PLACES
from mesh.guard.queues import MOST
from mesh.guard.service import Guard
from mesh.ops import health
from mesh.ops.health import Look
from mesh.testing import EmbeddedBus
from protocol.domain.steps import Outcome
from protocol.wire import codec, subjects
from protocol.wire.commands import Command, Failure, Freeze, MoveProposed, ReportFailure, Submit, Thaw
from protocol.wire.ids import AgentName, RequestId
from protocol.wire.moves import Complete, Delegate, Move, Task, Transfer
from protocol.wire.records import LaneAnswer
from tests.guard.actor import Actor
from tests.guard.stage import HASTY, Stage, furnish, staged
from tests.servers import PATIENCE_S, until

FURNISHED = HASTY
TO_B = Transfer(to_agent=AgentName("b"), summary="please")
HELLO = codec.encode(Submit(text="hello"))


async def guarded(stage: Stage, identity: str = "g1") -> Guard:
    """Start a guard and wait until its places are open at the server."""
    guard = await stage.guard(identity)
    await stage.ready(guard)
    await until(lambda: guard._lane.open)
    return guard


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait for a guard's answer as long as for anything else: a busy machine may keep it for seconds."""
    monkeypatch.setattr(asking, "ASK_S", PATIENCE_S)


def may_ask(client: Client) -> Lane:
    """Let a client ask at once, whatever it met, and forget how soon answers came so far."""
    client._lane._closed_until, client._lane._usual_s = 0.0, None
    return client._lane


async def ask(actor: Actor, request: str, move: Transfer | Complete | Delegate) -> bool:
    """Ask for a move in the round that an actor has; return True if it was decided."""
    work = await actor.work(request)
    proposal = MoveProposed(turn=work.turn, round=work.round, move=move)
    return await Lane(actor.bus, actor.name).is_decided(request, codec.encode(proposal))


async def queued(stage: Stage) -> int:
    """Return how many messages the queues of proposals ever had."""
    return await stage.last_seq("PROP")


async def test_what_is_asked_is_in_the_log_and_in_no_queue(stage: Stage) -> None:
    await guarded(stage)
    client, a, b = await stage.client(), await stage.actor("a"), await stage.actor("b")
    before = await queued(stage)
    request = await client.submit("hello")
    assert await stage.types(request) == ["request.opened"]  # without waiting for it
    assert await ask(a, request, TO_B)
    assert await stage.types(request) == ["request.opened", "handoff.admitted"]
    assert await ask(b, request, Complete(answer="done"))
    assert (await client.wait(request, timeout_s=PATIENCE_S)).answer == "done"
    assert await queued(stage) == before


async def test_a_running_agent_asks(stage: Stage) -> None:
    @agent(name="a")
    async def a(turn: Turn) -> Move:
        return turn.complete("done")

    await guarded(stage)
    await stage.runtime(a)
    before = await queued(stage)
    client = await stage.client()
    request = await client.submit("hello")
    assert (await client.wait(request, timeout_s=PATIENCE_S)).answer == "done"
    await stage.inbox_drained("a")
    assert await queued(stage) == before


async def test_without_a_guard_a_submit_is_stored(stage: Stage) -> None:
    client = await stage.client()
    request = await client.submit("hello")
    assert await stage.waiting("PROP") == 1
    await guarded(stage)
    await stage.reaches(request, "request.opened")
    await stage.drained()


async def test_a_question_said_again_is_decided_once(stage: Stage) -> None:
    await guarded(stage)
    client, a = await stage.client(), await stage.actor("a")
    request = await client.submit("hello")
    assert await ask(a, request, TO_B)
    told = await stage.notices("a")
    assert await ask(a, request, TO_B)
    await until(lambda: [each.ended.why for each in told if each.ended] == ["ended"])
    assert await stage.types(request) == ["request.opened", "handoff.admitted"]


async def test_both_ways_at_once_are_decided_once(stage: Stage) -> None:
    await guarded(stage)
    client, a = await stage.client(), await stage.actor("a")
    request = await client.submit("hello")
    work = await a.work(request)
    await asyncio.gather(ask(a, request, TO_B), a.propose(request, work, TO_B), ask(a, request, TO_B))
    await stage.drained()
    assert await stage.types(request) == ["request.opened", "handoff.admitted"]


@pytest.mark.parametrize("point", ["guard.asked", "guard.heard", "guard.decided", "guard.answers"])
async def test_a_guard_that_dies_with_a_question_in_hand(stage: Stage, point: str) -> None:
    client, a, b = await stage.client(), await stage.actor("a"), await stage.actor("b")
    async with stage.doomed_guard(f"{point}#2") as doomed:
        request = await client.submit("hello")  # the first time
        work = await a.work(request)
        decided = await ask(a, request, TO_B)
        await doomed.ended()
    assert not decided
    await a.propose(request, work, TO_B)
    await guarded(stage, "heir")
    await stage.drained()
    assert await stage.types(request) == ["request.opened", "handoff.admitted"]
    assert await ask(b, request, Complete(answer="done"))
    assert (await client.wait(request, timeout_s=PATIENCE_S)).answer == "done"


async def test_what_follows_comes_though_guard_and_asker_die_and_the_turn_is_over(stage: Stage) -> None:
    """The asker's next instance finds its turn over, acknowledges its event and asks nothing more."""
    client, a, b = await stage.client(), await stage.actor("a"), await stage.actor("b")
    plan = Delegate(tasks=(Task(name="one", summary="one", to_agent=AgentName("b"), carry=()),))
    async with stage.doomed_guard("guard.followed#2") as doomed:  # the first is task.opened
        request = await client.submit("hello", policy="strict-tree")
        assert await ask(a, request, plan)
        work = await b.work(request)
        failed = ReportFailure(turn=work.turn, round=0, error=Failure(code="broken", message="broken"))
        assert not await Lane(b.bus, "b").is_decided(request, codec.encode(failed))
        await doomed.ended()
    assert (await stage.types(request))[-1] == "task.failed"
    assert await get(await stage.bus("admin"), "ENDS", subjects.end("b", request, work.turn)) is not None
    await guarded(stage, "heir")
    await stage.reaches(request, "turn.resumed")


async def test_a_request_has_its_timer_though_guard_and_client_die_as_it_is_opened(stage: Stage) -> None:
    """Nobody submits it again, and its agent is never there: only its timer can end it."""
    submit = codec.encode(Submit(text="hello", policy="short"))
    client = await stage.client()
    async with stage.doomed_guard("guard.decided#1") as doomed:
        request = client.new_id()
        assert not await Lane(await stage.bus("c1"), "c1").is_decided(request, submit)
        await doomed.ended()
    assert await stage.types(request) == ["request.opened"]
    await guarded(stage, "heir")
    await stage.reaches(request, "request.expired")


async def test_a_frozen_guard_costs_its_asker_a_wait_and_decides_nothing_twice(stage: Stage) -> None:
    client, a = await stage.client(), await stage.actor("a")
    async with stage.doomed_guard("never") as frozen:
        request = await client.submit("hello")
        await a.work(request)
        frozen.signal(signal.SIGSTOP)
        before = await queued(stage)
        other = await client.submit("hello")  # it had no answer
        assert await queued(stage) == before + 1
        frozen.signal(signal.SIGCONT)  # now it decides the question, late, and then what is stored
        await stage.drained()
    assert await stage.types(other) == ["request.opened"]


def test_an_asker_waits_as_long_as_answers_take_and_a_little_more() -> None:
    """A request passes many senders. Each may ask a guard that is frozen, and their waits add up."""
    lane = Lane(cast(Bus, None), "a")
    assert lane.patience_s == asking.ASK_S
    for _ in range(50):
        lane._measure(0.004)
    assert lane.patience_s == asking._LEAST_ASK_S
    for _ in range(50):
        lane._measure(0.5)
    assert 0.5 < lane.patience_s < asking.ASK_S
    lane._measure(60.0)
    assert lane.patience_s == asking.ASK_S


# --- what is not decided on the lane ----------------------------------------------------------------


async def test_while_the_mesh_is_frozen_everything_is_stored(stage: Stage) -> None:
    guard = await guarded(stage)
    client = await stage.client()
    await stage.control(subjects.MESH_WIDE, Freeze(id="f1"))
    await guard._context.frozen.wait()
    await until(lambda: not guard._lane.open)
    request = await client.submit("hello")
    assert await stage.waiting("PROP") == 1
    await stage.control(subjects.MESH_WIDE, Thaw(id="t1"))
    await stage.reaches(request, "request.opened")
    await until(lambda: guard._lane.open)


async def test_what_cannot_be_taken_up_becomes_one_dead_letter(stage: Stage) -> None:
    await guarded(stage)
    client, after = await stage.client(), await stage.last_seq("DEAD")
    request = await client.submit("hello")
    await client._lane.is_decided(request, b"{")
    other = codec.encode(Submit(text="another"))
    assert not await client._lane.is_decided(request, other)
    assert await stage.dead_letters(after=after) == []
    with pytest.raises(Exception, match="request_exists"):
        await client.wait(await client.submit_whole(Submit(text="another"), request=request))
    assert [each.code for each in await stage.dead_letters(after=after)] == ["request_exists"]


async def says_so(stage: Stage, state: str, text: str) -> None:
    """Check what the doctor finds of the lane."""
    [finding] = await health.run("lane", Look(await stage.bus("op")))
    assert (finding.state, text in finding.text) == (state, True), finding.text


async def test_a_guard_that_ends_leaves_the_lane_to_the_other(own_stage: Stage) -> None:
    ends, stays = [await own_stage.guard(name) for name in ("g1", "g2")]
    for guard in (ends, stays):
        await own_stage.ready(guard)
    ends._lane._leaving = True
    found = await health.run("lane", Look(await own_stage.bus("op")))
    assert [(each.state, each.text[:33]) for each in found] == [
        ("ok", "guard g1 takes no questions: it e"),
        ("ok", "taken by g2"),
    ]
    stays._lane._leaving = True
    found = await health.run("lane", Look(await own_stage.bus("op")))
    assert [each.state for each in found] == ["found", "found"]


async def test_a_fleet_without_a_lane_has_none(own_stage: Stage) -> None:
    await _with_fleet(own_stage, lane=False)
    guard, client = await own_stage.guard(), await own_stage.client()
    await own_stage.ready(guard)
    assert not guard._lane.open
    await says_so(own_stage, "ok", "off in the fleet file")
    before = await queued(own_stage)
    request = await client.submit("hello")
    await own_stage.reaches(request, "request.opened")
    assert await queued(own_stage) == before + 1
    await _with_fleet(own_stage, lane=True)
    await until(lambda: guard._lane.open)  # without a restart
    await says_so(own_stage, "ok", "taken by g1")
    assert guard._lane._bus is not None
    await guard._lane._bus.flush()
    await asyncio.sleep(asking._ABSENT_S)
    assert await Lane(await own_stage.bus("c2"), "c2").is_decided(
        (await own_stage.client("c2")).new_id(), HELLO
    )


async def _with_fleet(stage: Stage, *, lane: bool) -> None:
    fleet = msgspec.structs.replace(stage.mesh.fleet, lane=lane)
    await (await stage.bus("admin")).publish_durable(subjects.FLEET, msgspec.json.encode(fleet))


async def test_by_older_accounts_everything_is_stored_until_the_server_has_newer_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as older:
        for role, services in roles.CALLS.items():
            kept = tuple(each for each in services if each is not roles._LANE)
            older.setitem(roles.CALLS, role, kept)
        older.setattr(roles, "GUARD_HEARS", tuple(each for each in roles.GUARD_HEARS if "lane" not in each))
        mesh = EmbeddedBus(FURNISHED, tmp_path)

    @agent(name="a")
    async def a(turn: Turn) -> Move:
        return turn.complete("done")

    async with mesh, staged(mesh) as stage:
        await furnish(mesh)
        guard = await stage.guard()
        await until(lambda: guard._lane.state == "denied")
        await stage.ready(guard)
        await says_so(stage, "found", "g1 may take no questions: the server's accounts are older")
        await stage.runtime(a)
        client = await stage.client()
        request = await client.submit("hello")
        assert (await client.wait(request, timeout_s=PATIENCE_S)).answer == "done"
        assert await queued(stage) == 2
        publics = {name: key.public for name, key in mesh.keys.items()}
        await mesh.server.reload(roles.accounts_config(mesh.fleet, publics))
        await _with_fleet(stage, lane=True)  # as `mesh setup` does
        while not await client._lane.is_decided(client.new_id(), HELLO):
            client._lane._closed_until = 0.0
            await asyncio.sleep(0.01)
        await says_so(stage, "ok", "taken by g1")


# --- answers that are none -------------------------------------------------------------------------


@contextlib.asynccontextmanager
async def answering(stage: Stage, answer: Callable[[Incoming], bytes | None]) -> AsyncIterator[None]:
    """Stand in for a guard that answers something else."""
    bus = await stage.bus("guard", "stranger")

    def respond(asked: Incoming) -> None:
        said = answer(asked)
        if said is not None:
            bus.send(asked.reply, said)

    listening = await bus.subscribe("mesh.lane.>", respond)
    yield
    await listening.close()


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(lambda m: msgspec.json.encode(LaneAnswer(digest="0" * 64, decided=True)), id="another"),
        pytest.param(lambda m: b"", id="empty"),
        pytest.param(lambda m: b'{"decided":true}', id="without-a-digest"),
        pytest.param(lambda m: b"{" * 100_000, id="nested"),
        pytest.param(
            lambda m: msgspec.json.encode(LaneAnswer(digest=codec.body_digest(m.data))), id="undecided"
        ),
        pytest.param(lambda m: None, id="none"),
    ],
)
async def test_any_other_answer_is_none(
    stage: Stage, answer: Callable[[Incoming], bytes | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(asking, "ASK_S", 0.2)
    client = await stage.client()
    async with answering(stage, answer):
        request = await client.submit("hello")
    assert await stage.waiting("PROP") == 1
    await guarded(stage)
    await stage.drained()
    assert await stage.types(request) == ["request.opened"]


async def test_a_late_answer_is_dropped(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asking, "ASK_S", 0.2)
    asked: list[Incoming] = []

    def keep(message: Incoming) -> None:
        asked.append(message)

    client, bus = await stage.client(), await stage.bus("c1")
    async with answering(stage, keep):
        first = await client.submit("hello")
        client._lane._closed_until = 0.0
        monkeypatch.setattr(asking, "ASK_S", PATIENCE_S)
        second = asyncio.create_task(client.submit("hello"))
        await until(lambda: len(asked) == 2)
        late = await stage.bus("guard", "stranger")
        said = LaneAnswer(digest=codec.body_digest(asked[0].data), decided=True)
        late.send(asked[0].reply, msgspec.json.encode(said))
        await late.flush()
        await bus.flush()
        assert not second.done()  # it is the answer to another question
        late.send(asked[1].reply, b"{}")
        await second
    await guarded(stage)
    await stage.drained()
    assert await stage.types(first) == await stage.types(second.result()) == ["request.opened"]


# --- places ----------------------------------------------------------------------------------------


@pytest.mark.usefixtures("patient")
async def test_beyond_its_places_a_sender_finds_nobody_and_others_do(stage: Stage) -> None:
    guard = await guarded(stage)
    client, other, held = await stage.client(), await stage.client("c2"), asyncio.Event()
    guard._lane._decide, decide = _held(guard, held), guard._lane._decide
    ids = _of_one_partition(client.new_id, PLACES + 3)
    lanes = [Lane(await stage.bus("c1"), "c1") for _ in ids]  # each asks, whatever the others met
    asked = [asyncio.create_task(each.is_decided(of, HELLO)) for each, of in zip(lanes, ids, strict=True)]
    await until(lambda: sum(each.done() for each in asked) == 3)  # at once: nobody is there for them
    guard._lane._decide = decide
    assert await other._lane.is_decided(other.new_id(), HELLO)
    held.set()
    assert sum([await each for each in asked]) == PLACES
    for each in ids:
        await client.submit("hello", request=each)
    await stage.drained()
    for each in ids:
        assert await stage.types(each) == ["request.opened"]
    assert await client._lane.is_decided(_of_one_partition(client.new_id, 1)[0], HELLO)  # free again


@pytest.mark.usefixtures("patient")
async def test_who_has_older_messages_in_its_queue_has_no_more_places_until_they_are_taken(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    guard = await guarded(stage)
    bus, client, other = await stage.bus("c1"), await stage.client(), await stage.client("c2")
    process, allowed = guard._processor.process, asyncio.Semaphore(0)

    async def hold(command: Command) -> Outcome:
        await allowed.acquire()
        return await process(command)

    async def at_once(asked: Incoming) -> bool:
        return True

    async def is_decided(asking: Client) -> bool:
        return await may_ask(asking).is_decided(_of_one_partition(asking.new_id, 1)[0], HELLO)

    monkeypatch.setattr(guard._processor, "process", hold)
    monkeypatch.setattr(guard._lane, "_decide", at_once)
    stored = _of_one_partition(client.new_id, 4 * MOST)
    await asyncio.gather(*(bus.publish_durable(subjects.prop("c1", each), HELLO) for each in stored))
    # A message that is taken says how many wait behind it: one more is taken now that all are stored.
    allowed.release()
    await until(lambda: guard._queues.waits("c1", 0))
    assert [await is_decided(client) for _ in range(PLACES + 1)] == [True] * PLACES + [False]
    assert all([await is_decided(other) for _ in range(2 * PLACES)])
    assert not await is_decided(client)
    for _ in range(10 * len(stored)):  # one whose lease ran out meanwhile comes more than once
        allowed.release()
    await stage.drained()
    assert not guard._queues.waits("c1", 0)
    while not await is_decided(client):  # noqa: ASYNC110 - it offers places again by itself
        await asyncio.sleep(0.01)


def _of_one_partition(new_id: Callable[[], RequestId], count: int) -> list[RequestId]:
    found: list[RequestId] = []
    while len(found) < count:
        if subjects.partition(each := new_id(), FURNISHED.partitions) == 0:
            found.append(each)
    return found


def _held(guard: Guard, held: asyncio.Event) -> Callable[[Incoming], Awaitable[bool]]:
    decide = guard._lane._decide

    async def hold(asked: Incoming) -> bool:
        await held.wait()
        return await decide(asked)

    return hold


@pytest.mark.usefixtures("patient")
async def test_the_lane_is_open_again_after_its_connection_broke(own_stage: Stage) -> None:
    stage = own_stage
    guard = await guarded(stage)
    client = await stage.client()
    await client.submit("hello")
    await stage.mesh.server.kill()
    await stage.mesh.server.start()
    await stage.back()
    await until(lambda: guard._lane.open)
    assert guard._lane._bus is not None
    await guard._lane._bus.flush()
    assert await may_ask(client).is_decided(client.new_id(), HELLO)


@pytest.mark.usefixtures("patient")
async def test_two_guards_share_the_lane(stage: Stage) -> None:
    guards = [await guarded(stage, "g1"), await guarded(stage, "g2")]
    client = await stage.client()
    for _ in range(40):
        assert await may_ask(client).is_decided(client.new_id(), HELLO)
    assert sum(guard.decided for guard in guards) == 40
    await stage.dismiss(guards[0])
    for _ in range(4):
        assert await may_ask(client).is_decided(client.new_id(), HELLO)
