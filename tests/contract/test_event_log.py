"""What the event log promises, to a reader of the leader and to one of any replica."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable

import msgspec
import pytest
import pytest_asyncio

from mesh.bus.event_log import JetStreamLog
from mesh.bus.reader import StoredMessage
from mesh.errors import LogUnreadable, Malformed, SequenceConflict
from mesh.testing import EmbeddedBus
from protocol.wire.ids import RequestId
from protocol.wire.subjects import evt
from tests.certain import known
from tests.servers import PATIENCE_S, fresh


class Bodies:
    """One log as its writer and its reader see it."""

    def __init__(self, writer: JetStreamLog, reader: JetStreamLog) -> None:
        self.writer = writer
        self.reader = reader


@pytest_asyncio.fixture(params=["leader", "any-replica"])
async def log(request: pytest.FixtureRequest, server: EmbeddedBus) -> AsyncIterator[Bodies]:
    async with server.connected_as("guard") as guard, server.connected_as("audit") as viewer:
        reader = JetStreamLog(viewer, leader=request.param == "leader")
        yield Bodies(JetStreamLog(guard), reader)


def body(n: int, text: str = "") -> bytes:
    return msgspec.json.encode({"n": n, "text": text})


def always_a(n: int) -> str:
    return "a"


async def write(
    log: Bodies, request: str, count: int, to: Callable[[int], str] = always_a
) -> list[StoredMessage]:
    """Append `count` events one after the other."""
    stored: list[StoredMessage] = []
    for n in range(count):
        after = stored[-1].seq if stored else 0
        seq = await log.writer.append(to(n), request, body(n), after=after)
        stored.append(StoredMessage(seq, evt(to(n), request), body(n)))
    return stored


def bare(stored: Iterable[StoredMessage]) -> list[StoredMessage]:
    """Return what is stored, without when."""
    return [each._replace(stamp="") for each in stored]


async def test_a_request_without_events_has_no_head_and_reads_as_empty(log: Bodies) -> None:
    assert await log.reader.head(fresh()) is None
    assert await log.reader.read(fresh()) == []


async def test_what_is_appended_is_read_in_order_whatever_inbox_it_lies_in(log: Bodies) -> None:
    request = fresh()
    stored = await write(log, request, 7, to=lambda n: ["a", "_", "c1"][n % 3])
    assert bare(await log.reader.read(request)) == stored
    assert bare([known(await log.reader.head(request))]) == stored[-1:]


async def test_a_single_event_is_read_too(log: Bodies) -> None:
    request = fresh()
    assert await write(log, request, 1) == bare(await log.reader.read(request))


async def test_positions_only_grow_over_all_requests(log: Bodies) -> None:
    first, second = await write(log, fresh(), 3), await write(log, fresh(), 3)
    positions = [stored.seq for stored in (*first, *second)]
    assert positions == sorted(set(positions))


@pytest.mark.parametrize("wrong", [0, 1, 10**9], ids=["as-if-new", "too-early", "from-the-future"])
async def test_an_append_after_another_head_is_a_conflict_and_stores_nothing(log: Bodies, wrong: int) -> None:
    request = fresh()
    stored = await write(log, request, 2)
    with pytest.raises(SequenceConflict):
        await log.writer.append("b", request, body(2), after=wrong)
    assert bare(await log.reader.read(request)) == stored


async def test_an_inbox_does_not_divide_a_request_the_head_is_common(log: Bodies) -> None:
    request = fresh()
    first = await log.writer.append("a", request, body(0), after=0)
    with pytest.raises(SequenceConflict):
        await log.writer.append("b", request, body(0), after=0)
    assert await log.writer.append("b", request, body(1), after=first) > first


async def test_of_many_appends_after_one_head_exactly_one_wins(log: Bodies) -> None:
    request = fresh()
    (opened,) = await write(log, request, 1)
    rivals = [log.writer.append(to, request, body(1, to), after=opened.seq) for to in "abcde" * 4]
    outcomes = await asyncio.gather(*rivals, return_exceptions=True)
    won = [outcome for outcome in outcomes if isinstance(outcome, int)]
    assert len(won) == 1
    assert {type(outcome) for outcome in outcomes} == {int, SequenceConflict}
    assert [stored.seq for stored in await log.reader.read(request)] == [opened.seq, won[0]]


async def test_requests_whose_names_begin_alike_are_apart(log: Bodies) -> None:
    request = fresh()
    longer = RequestId(request + "0")
    stored = await write(log, request, 2)
    await write(log, longer, 3)
    assert bare(await log.reader.read(request)) == stored


async def test_a_gap_in_the_numbers_is_unreadable_never_a_shorter_history(log: Bodies) -> None:
    request = fresh()
    (opened,) = await write(log, request, 1)
    await log.writer.append("a", request, body(2), after=opened.seq)
    with pytest.raises(LogUnreadable):
        await log.reader.read(request)


async def test_a_head_without_a_number_is_malformed(log: Bodies) -> None:
    request = fresh()
    await log.writer.append("a", request, b"not json", after=0)
    head = await log.reader.head(request)
    assert known(head).data == b"not json"
    with pytest.raises(Malformed):
        await log.reader.read(request)


async def test_a_name_that_would_widen_the_subject_is_a_value_error(log: Bodies) -> None:
    for to, request in (("a.b", fresh()), ("*", fresh()), ("a", "x.y"), ("a", ">"), ("", fresh())):
        with pytest.raises(ValueError, match="subject token"):
            await log.writer.append(to, request, body(0), after=0)


async def test_following_without_a_tail_gives_everything_once_and_ends(log: Bodies) -> None:
    request = fresh()
    stored = await write(log, request, 5)
    for _ in range(2):  # a second reading begins anew
        seen = bare([each async for each in log.reader.follow(tail=False)])
        assert [each for each in seen if each in stored] == stored
        positions = [each.seq for each in seen]
        assert positions == list(range(1, len(seen) + 1))


async def test_following_begins_at_the_position_asked_for(log: Bodies) -> None:
    stored = await write(log, fresh(), 5)
    seen = bare([each async for each in log.reader.follow(stored[2].seq, tail=False)])
    assert seen == stored[2:]
    assert [each async for each in log.reader.follow(seen[-1].seq + 1, tail=False)] == []


async def test_following_with_a_tail_waits_for_what_comes(log: Bodies) -> None:
    first = await write(log, fresh(), 1)
    seen: list[StoredMessage] = []

    async def follow() -> None:
        async for each in log.reader.follow(first[0].seq):
            seen.append(each)
            if len(seen) == 4:
                return

    async with asyncio.timeout(PATIENCE_S), asyncio.TaskGroup() as group:
        group.create_task(follow())
        later = await write(log, fresh(), 3)
    assert bare(seen) == [*first, *later]
