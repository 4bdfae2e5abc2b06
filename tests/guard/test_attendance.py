"""What a guard has seen of its agents: since when they are served, and how their queues move."""

from mesh.guard import attendance
from mesh.guard.attendance import Attendance, Queue
from mesh.testing import LocalMesh
from tests.guard.stage import Stage


class Clock:
    """UTC µs that the test moves."""

    def __init__(self) -> None:
        self.now = 1_000_000_000_000_000

    def __call__(self) -> int:
        return self.now

    def moves(self, seconds: float) -> int:
        self.now += round(seconds * 1e6)
        return self.now


async def seen_by(mesh: LocalMesh, stage: Stage, clock: Clock) -> Attendance:
    return Attendance(await stage.bus("guard", "looker"), lambda: ("a",), clock)


async def test_a_span_begins_at_the_first_look_that_finds_it_and_lasts_while_looks_find_the_same(
    furnished: LocalMesh, stage: Stage
) -> None:
    clock = Clock()
    looker = await seen_by(furnished, stage, clock)
    began = clock.now
    assert await looker.of("a", 1) == (False, began)
    clock.moves(attendance.LOOK_S)
    assert await looker.of("a", 1) == (False, began)
    await stage.actor("a", served=True)
    back = clock.moves(attendance.LOOK_S)
    assert await looker.of("a", 1) == (True, back)
    clock.moves(attendance.LOOK_S)
    assert await looker.of("a", 1) == (True, back)


async def test_a_gap_in_the_looks_begins_every_span_anew(furnished: LocalMesh, stage: Stage) -> None:
    clock = Clock()
    looker = await seen_by(furnished, stage, clock)
    assert await looker.of("a", 1) == (False, clock.now)
    later = clock.moves(attendance.GAP_S + 1)
    assert await looker.of("a", 1) == (False, later)


async def test_while_an_agent_is_served_a_round_counts_from_when_it_left_the_queue(
    furnished: LocalMesh, stage: Stage
) -> None:
    await stage.guard()
    client, clock = await stage.client(), Clock()
    looker = await seen_by(furnished, stage, clock)
    request = await client.submit("hello")
    await stage.reaches(request, "request.opened")
    seq = await stage.last_seq("LOG")
    await looker.of("a", seq)
    a = await stage.actor("a", served=True)
    await a.work(request)
    taken = clock.moves(1)
    assert await looker.of("a", seq) == (True, taken)
    clock.moves(1)
    assert await looker.of("a", seq) == (True, taken)
    await client.cancel(request)
    await client.wait(request, timeout_s=20)


async def test_an_agent_without_an_inbox_is_only_not_served(furnished: LocalMesh, stage: Stage) -> None:
    clock = Clock()
    looker = Attendance(await stage.bus("guard", "looker"), lambda: ("nobody",), clock)
    assert await looker.of("nobody", 1) == (False, clock.now)


def test_a_queue_says_when_an_event_was_first_seen_delivered_and_else_when_it_last_moved() -> None:
    queue = Queue()
    for delivered, at in ((10, 100), (10, 200), (14, 300), (20, 400), (20, 500)):
        queue.seen(delivered, at)
    assert [queue.moved(seq) for seq in (9, 10, 11, 14, 15, 20)] == [100, 100, 300, 300, 400, 400]
    assert queue.moved(21) == 400


def test_a_queue_whose_server_forgot_deliveries_begins_anew() -> None:
    queue = Queue()
    queue.seen(20, 100)
    queue.seen(18, 200)
    assert [queue.moved(seq) for seq in (10, 18, 19)] == [200, 200, 200]


def test_a_long_record_of_a_queue_grows_coarser_and_errs_to_later_times() -> None:
    queue = Queue()
    for n in range(5_000):
        queue.seen(n, n)
    assert all(queue.moved(seq) >= seq for seq in range(5_000))
    assert queue.moved(4_900) == 4_900
    assert queue.moved(0) < 2_500
