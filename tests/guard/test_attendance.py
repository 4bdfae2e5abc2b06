"""What a guard has seen of its agents: since when they are served, and how their queues move."""

from mesh.agent._instance import Presence
from mesh.agent.definition import Agent
from mesh.agent.turn import Turn
from mesh.bus.streams import inbox_consumer
from mesh.guard import availability
from mesh.guard.availability import AttendanceWatch, InboxProgress
from mesh.testing import EmbeddedBus
from protocol.wire import subjects
from protocol.wire.events import RequestOpened
from protocol.wire.moves import Complete, Move
from tests.certain import is_
from tests.guard.stage import Stage
from tests.servers import PATIENCE_S, eventually

STEP = "mesh.step.a.c1_none.t."


class Clock:
    """UTC µs that the test moves."""

    def __init__(self) -> None:
        self.now = 1_000_000_000_000_000

    def __call__(self) -> int:
        return self.now

    def moves(self, seconds: float) -> int:
        self.now += round(seconds * 1e6)
        return self.now


async def seen_by(mesh: EmbeddedBus, stage: Stage, clock: Clock) -> AttendanceWatch:
    return AttendanceWatch(await stage.bus("guard", "looker"), lambda: ("a",), clock)


async def seen(looker: AttendanceWatch, seq: int = 1) -> tuple[bool, int]:
    """Return whether `a` is served, and since when."""
    return (await looker.look_at("a", seq, f"{STEP}0-0"))[:2]


async def test_a_span_begins_at_the_first_look_that_finds_it_and_lasts_while_looks_find_the_same(
    furnished: EmbeddedBus, stage: Stage
) -> None:
    clock = Clock()
    looker = await seen_by(furnished, stage, clock)
    began = clock.now
    assert await seen(looker) == (False, began)
    clock.moves(availability.LOOK_S)
    assert await seen(looker) == (False, began)
    await stage.actor("a", served=True)
    back = clock.moves(availability.LOOK_S)
    assert await seen(looker) == (True, back)
    clock.moves(availability.LOOK_S)
    assert await seen(looker) == (True, back)


async def test_a_gap_in_the_looks_begins_every_span_anew(furnished: EmbeddedBus, stage: Stage) -> None:
    clock = Clock()
    looker = await seen_by(furnished, stage, clock)
    assert await seen(looker) == (False, clock.now)
    later = clock.moves(availability.GAP_S + 1)
    assert await seen(looker) == (False, later)


async def test_a_time_without_guards_ends_no_round(stage: Stage) -> None:
    first = await stage.guard("first")
    client, a = await stage.client(), await stage.actor("a", served=True)
    request = await client.submit("hello", policy="leisurely")
    work = await a.work(request)
    await stage.dismiss(first)

    async def fired() -> bool:
        return await stage.schedule(request) is None

    await eventually(fired)  # its time is up, and nobody looks
    looks = await stage.last_seq("TIMER")
    await stage.guard("second")

    async def looked() -> bool:
        return await stage.last_seq("TIMER") > looks  # in vain: the timer is armed again

    await eventually(looked)
    await a.propose(request, work, Complete(answer="done"))
    assert (await client.wait(request, timeout_s=PATIENCE_S)).answer == "done"
    assert await stage.types(request) == ["request.opened", "request.completed"]


async def test_while_an_agent_is_served_a_round_counts_from_when_it_left_the_queue(
    furnished: EmbeddedBus, stage: Stage
) -> None:
    await stage.guard()
    client, clock = await stage.client(), Clock()
    looker = await seen_by(furnished, stage, clock)
    request = await client.submit("hello")
    await stage.reaches(request, "request.opened")
    seq = await stage.last_seq("LOG")
    await seen(looker, seq)
    a = await stage.actor("a", served=True)
    await a.work(request)
    taken = clock.moves(1)
    assert await seen(looker, seq) == (True, taken)
    clock.moves(1)
    assert await seen(looker, seq) == (True, taken)
    await client.cancel(request)
    await client.wait(request, timeout_s=PATIENCE_S)


async def test_an_agent_without_an_inbox_is_only_not_served(furnished: EmbeddedBus, stage: Stage) -> None:
    clock = Clock()
    looker = await seen_by(furnished, stage, clock)
    admin = await stage.bus("admin")
    await admin.api(f"CONSUMER.DELETE.LOG.{inbox_consumer('e')}")
    assert await looker.look_at("e", 1, subjects.step("e", "c1_none", "t", "0-0")) == (False, clock.now, True)


async def test_a_round_is_unbegun_until_it_leaves_the_inbox_and_a_step_of_it_is_proof_too(
    furnished: EmbeddedBus, stage: Stage
) -> None:
    await stage.guard()
    client = await stage.client()
    looker = await seen_by(furnished, stage, Clock())
    request = await client.submit("hello")
    work = is_((await stage.reaches(request, "request.opened"))[0], RequestOpened)
    seq = await stage.last_seq("LOG")

    async def unbegun() -> bool:
        step = subjects.step("a", request, work.work.turn, "0-0")
        return (await looker.look_at("a", seq, step)).unbegun

    assert await unbegun()
    step = subjects.step("a", request, work.work.turn, "0-0")
    await (await stage.bus("a")).publish_durable(step, b"{}")
    assert not await unbegun()  # though by its deliveries the server has forgotten it
    await client.cancel(request)
    await client.wait(request, timeout_s=PATIENCE_S)
    other = await client.submit("hello")
    await stage.reaches(other, "request.opened")
    seq = await stage.last_seq("LOG")
    assert (await looker.look_at("a", seq, f"{STEP}0-0")).unbegun
    await (await stage.actor("a")).work(other)
    assert not (await looker.look_at("a", seq, f"{STEP}0-0")).unbegun
    await client.cancel(other)
    await client.wait(other, timeout_s=PATIENCE_S)


def test_a_queue_says_when_an_event_was_first_seen_delivered_and_else_when_it_last_moved() -> None:
    queue = InboxProgress()
    for delivered, at in ((10, 100), (10, 200), (14, 300), (20, 400), (20, 500)):
        queue.seen(delivered, at)
    assert [queue.moved(seq) for seq in (9, 10, 11, 14, 15, 20)] == [100, 100, 300, 300, 400, 400]
    assert queue.moved(21) == 400


def test_a_queue_whose_server_forgot_deliveries_begins_anew() -> None:
    queue = InboxProgress()
    queue.seen(20, 100)
    queue.seen(18, 200)
    assert [queue.moved(seq) for seq in (10, 18, 19)] == [200, 200, 200]


def test_a_long_record_of_a_queue_grows_coarser_and_errs_to_later_times() -> None:
    queue = InboxProgress()
    for n in range(5_000):
        queue.seen(n, n)
    assert all(queue.moved(seq) >= seq for seq in range(5_000))
    assert queue.moved(4_900) == 4_900
    assert queue.moved(0) < 2_500


async def test_who_is_served_is_what_the_last_look_found_and_nobody_is_looked_for_again(
    furnished: EmbeddedBus, stage: Stage
) -> None:
    clock = Clock()
    looker = await seen_by(furnished, stage, clock)
    assert await looker.served(["a", "b"]) == [False, False]
    async with stage.mesh.connected_as("b") as bus:
        await Presence(bus, Agent("b", _idle), "one").announce()
        assert await looker.served(["b", "a"]) == [True, False]
    assert await looker.served(["b"]) == [True]

    async def is_gone() -> bool:  # the server takes its time to see that a connection was closed
        clock.moves(availability.GAP_S + 1)
        return await looker.served(["b"]) == [False]

    await eventually(is_gone)


async def _idle(turn: Turn) -> Move:
    raise AssertionError("nothing is given to it")
