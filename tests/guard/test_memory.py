"""Conversations on a real server: left by an answer, found by the next request, forgotten by order.

The answer in the log is the write. So these tests take away, one by one, what memory must not rest on: the
guards' clocks, the records, the guard that decided the answer, and the time between two messages.
"""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest

from mesh.bus import memory as store
from mesh.bus.memory import read_memory, write_record
from mesh.bus.streams import memory_of
from mesh.guard import memory as guard_memory
from protocol.domain.memory import current_records
from protocol.wire import subjects
from protocol.wire.commands import Control, Forget
from protocol.wire.events import RequestCompleted
from protocol.wire.handoff import Fact
from protocol.wire.ids import RequestId
from protocol.wire.moves import Complete
from protocol.wire.records import MemoryForgotten, MemoryRecord
from protocol.wire.subjects import ctl
from tests.certain import is_
from tests.guard.stage import HASTY, Stage, wall_clock_us
from tests.servers import PATIENCE_S, eventually, fresh

LEAVES = (Fact(key="order", value=7), Fact(key="a customer's name", value="Ada", labels=("pii",)))
AGES_S = 10 * 365 * 86_400.0


FURNISHED = HASTY


async def remembered(stage: Stage, conversation: str, client: str = "c1") -> dict[str, Any]:
    """Return what the records of a conversation say."""
    entries = (await read_memory(await stage.bus("audit"), client, conversation)).entries
    return {record.key: record.fact.value for record in current_records(entries, wall_clock_us(), AGES_S)}


async def folded(stage: Stage, conversation: str, expected: dict[str, Any], client: str = "c1") -> None:
    """Wait until the records say it."""

    async def said() -> bool:
        return await remembered(stage, conversation, client) == expected

    await eventually(said, PATIENCE_S)


async def spoken(stage: Stage, conversation: str) -> bool:
    """Return True once the records say who spoke last in a conversation: that is written behind its facts."""
    return bool(await store.speakers(await stage.bus("audit"), "c1", conversation))


async def ended(
    stage: Stage, conversation: str, *leaves: Fact, keys: tuple[str, ...] = (), name: str = "c1"
) -> RequestId:
    """Submit a request of a conversation, and let it be answered."""
    client, a = await stage.client(name), await stage.actor("a")
    request = await client.submit("hello", conversation=conversation)
    move = Complete(answer="done", remember=leaves, remember_keys=keys)
    await a.propose(request, await a.work(request), move)
    await client.wait(request, timeout_s=PATIENCE_S)
    return request


async def handed(stage: Stage, conversation: str, name: str = "c1", to: str = "a") -> dict[str, Any]:
    """Return what a new request of a conversation begins with, but for its text."""
    client = await stage.client(name)
    request = await client.submit("hello", conversation=conversation, to=to)
    work = await (await stage.actor(to)).work(request)
    return {fact.key: fact.value for fact in work.handoff.facts if fact.key != "text"}


def said(key: str, value: Any, seq: int, conversation: str) -> MemoryRecord:
    fact = Fact(key=key, value=value)
    return MemoryRecord(
        conversation=conversation, key=key, fact=fact, seq=seq, at=wall_clock_us(), request="r"
    )


async def test_the_next_request_begins_with_what_the_last_one_left(stage: Stage) -> None:
    await stage.guard()
    await ended(stage, "one", *LEAVES)
    assert await handed(stage, "one") == {"order": 7, "a customer's name": "Ada"}
    assert await handed(stage, "one", to="b") == {"order": 7}
    assert await handed(stage, "one", name="c2") == {}
    assert await handed(stage, "another") == {}


@pytest.fixture
def nobody_folds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no guard of this process make records from answers: they lag behind for ever."""

    async def never(*_: object) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(guard_memory.ConversationMemory, "keep", never)


@pytest.mark.usefixtures("nobody_folds")
@pytest.mark.parametrize("guards", [1, 2, 3])
async def test_a_request_that_is_submitted_as_soon_as_the_answer_is_read_finds_it(
    stage: Stage, guards: int
) -> None:
    for number in range(guards):
        await stage.ready(await stage.guard(f"at-once-{number}"))
    for number in range(10):
        await ended(stage, f"at once {guards}", Fact(key="n", value=number), Fact(key=f"k{number}", value=1))
        keys = {f"k{each}": 1 for each in range(number + 1)}
        assert await handed(stage, f"at once {guards}") == {"n": number} | keys
    assert await remembered(stage, f"at once {guards}") == {}


async def test_answers_count_in_the_order_of_the_log_whatever_the_guards_clocks_say(stage: Stage) -> None:
    """The first answer is decided by a guard that is thirty seconds ahead, the next by one that is right."""
    for value, ahead_s in enumerate((30, 0, -30)):
        guard = await stage.guard(f"by {ahead_s}", now=lambda s=ahead_s: wall_clock_us() + s * 1_000_000)
        await stage.ready(guard)
        assert await handed(stage, "clocks") == ({"n": value - 1} if value else {})
        await ended(stage, "clocks", Fact(key="n", value=value))
        await folded(stage, "clocks", {"n": value})
        await stage.dismiss(guard)
    guard = await stage.guard("forgets")
    await order(stage, "op", Forget(id=fresh(), conversation="clocks", client="c1"))  # type: ignore[arg-type]
    assert await handed(stage, "clocks") == {}


@pytest.mark.parametrize("point", ["append:request.completed", "remembered"])
async def test_a_guard_that_dies_before_it_has_written_everything_leaves_that_to_another(
    stage: Stage, point: str
) -> None:
    async with stage.doomed_guard(point) as doomed:
        await ended(stage, point, *LEAVES)
        await doomed.ended()
    assert bool(await remembered(stage, point)) == (point == "remembered")
    await stage.guard()
    await folded(stage, point, {"order": 7, "a customer's name": "Ada"})  # nobody asked for it
    assert await handed(stage, point) == {"order": 7, "a customer's name": "Ada"}


async def test_what_is_written_late_does_not_undo_what_came_after_it(stage: Stage) -> None:
    bus = await stage.bus("guard", "writer")
    newer, older = said("k", 2, 20, "late"), said("k", 1, 10, "late")
    await asyncio.gather(*(write_record(bus, "c1", each) for each in (newer, older, newer, older)))
    assert await remembered(stage, "late") == {"k": 2}
    before = await stage.last_seq(memory_of("c1"))
    for each in (newer, older):
        await write_record(bus, "c1", each)
    assert await stage.last_seq(memory_of("c1")) == before


async def test_two_guards_that_fold_the_same_answers_write_each_record_once(stage: Stage) -> None:
    memories = [(await stage.processor(f"folder {each}"))._context.memory for each in range(2)]
    guard = await stage.guard()
    for value in range(5):
        await ended(stage, "twice", Fact(key=f"k{value}", value=value))
    await stage.dismiss(guard)
    await asyncio.gather(*(memory._fold("c1") for memory in memories))
    assert await remembered(stage, "twice") == {f"k{value}": value for value in range(5)}
    before = await stage.last_seq(memory_of("c1"))
    await asyncio.gather(*(memory._fold("c1") for memory in memories))
    assert await stage.last_seq(memory_of("c1")) == before


# --- how far the records reach ----------------------------------------------------------------------


async def test_a_recall_reads_only_what_came_after_the_place_that_the_records_reach(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    guard = await stage.guard(stride=1)
    await ended(stage, "bounded", *LEAVES)
    admin = await stage.bus("admin")

    async def reaches() -> bool:
        newest = await stage.last_seq("LOG")
        return (
            await store.reached(admin, "c1")
        ).seq >= newest - 2  # `request.completed` and what is before it

    await eventually(reaches, PATIENCE_S)
    await stage.dismiss(guard)
    read = list[int]()
    newer_than = store.newer_than

    async def counted(*about: Any) -> AsyncIterator[Any]:
        async for each in newer_than(*about):
            read.append(each.seq)
            yield each

    monkeypatch.setattr(store, "newer_than", counted)
    memory = (await stage.processor("fresh"))._context.memory
    recalled = await memory.recall("c1", "bounded")
    assert {fact.key for fact in recalled.facts} == {"order", "a customer's name"}
    assert read == []


async def test_records_of_an_older_backup_are_made_good_from_the_log(stage: Stage) -> None:
    """The stream of the memory is set back; the log is as it was."""
    guard = await stage.guard(stride=1)
    await ended(stage, "older", *LEAVES)
    await folded(stage, "older", {"order": 7, "a customer's name": "Ada"})
    await stage.dismiss(guard)
    admin, stream = await stage.bus("admin"), memory_of("c1")
    config = (await admin.api(f"STREAM.INFO.{stream}"))["config"]
    await admin.api(f"STREAM.DELETE.{stream}")
    await admin.api(f"STREAM.CREATE.{stream}", config)
    guard = await stage.guard("after", stride=1)
    assert await handed(stage, "older") == {"order": 7, "a customer's name": "Ada"}
    await folded(stage, "older", {"order": 7, "a customer's name": "Ada"})


async def test_records_that_are_ahead_of_a_restored_log_hide_no_new_answer(stage: Stage) -> None:
    """The log is set back to before the records: what is answered from then on counts as newer."""
    bus = await stage.bus("guard", "writer")
    far = await stage.last_seq("LOG") + 1_000_000
    await write_record(bus, "c2", said("order", 1, far, "restored"))
    await write_record(bus, "c2", said("name", "Ada", far, "restored"))
    gone = MemoryForgotten(conversation="restored", keys=("note",), seq=far, at=1, control="x")
    await store.write_forgotten(bus, "c2", "c2", gone)
    await store.write_reached(bus, "c2", far, await store.reached(bus, "c2"))
    await stage.guard()
    left = (Fact(key="order", value=2), Fact(key="note", value="new"))
    await ended(stage, "restored", *left, name="c2")
    assert await handed(stage, "restored", "c2") == {"order": 2, "name": "Ada", "note": "new"}


# --- what cannot be read ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "body",
    [b"{", b'{"conversation":"rubbish","key":"k","fact":{"key":"k","value":1},"at":1,"request":"r"}'],
    ids=["rubbish", "of-an-older-build"],
)
async def test_a_fact_that_cannot_be_read_is_left_out_and_named_and_written_anew(
    stage: Stage, body: bytes
) -> None:
    guard = await stage.guard()
    bus, talk = await stage.bus("guard", "writer"), str(fresh())
    await bus.publish_durable(subjects.memory("c1", talk, "k"), body)
    await write_record(bus, "c1", said("other", 1, 1, talk))
    assert await handed(stage, talk) == {"other": 1}
    assert guard._bus.conditions
    await ended(stage, talk, Fact(key="k", value=2))
    assert await handed(stage, talk) == {"other": 1, "k": 2}


async def test_an_order_to_forget_that_cannot_be_read_hides_all_until_a_new_one_settles_it(
    stage: Stage,
) -> None:
    await stage.guard()
    bus, talk = await stage.bus("guard", "writer"), fresh()
    await ended(stage, talk, *LEAVES)
    await bus.publish_durable(subjects.forgotten("c1", talk, "c1", "broken"), b"{")
    assert await handed(stage, talk) == {}
    await order(stage, "c1", Forget(id=fresh(), conversation=talk))
    await ended(stage, talk, Fact(key="order", value=8))
    assert await handed(stage, talk) == {"order": 8}


async def test_a_place_that_cannot_be_read_is_taken_for_none(stage: Stage) -> None:
    await stage.guard()
    talk = fresh()
    await ended(stage, talk, *LEAVES, name="c2")
    bus = await stage.bus("guard", "writer")
    written = await bus.publish_durable(subjects.folded("c2"), b"{")
    assert await store.reached(bus, "c2") == (0, written.seq)
    await stage.guard("another")
    assert await handed(stage, talk, "c2") == {"order": 7, "a customer's name": "Ada"}


async def test_an_answer_that_this_build_cannot_read_keeps_no_request_from_beginning(stage: Stage) -> None:
    """A newer guard beside this one may have written it. Then this one folds nothing behind it."""
    guard, talk = await stage.guard(), fresh()
    answered = is_((await stage.log(await ended(stage, talk, *LEAVES, name="op")))[-1], RequestCompleted)
    later = msgspec.json.decode(msgspec.json.encode(answered)) | {"v": 99, "conversation": talk}
    stage.spoiled.add(unknown := fresh())
    place = await stage.forge(msgspec.json.encode(later), "op", unknown, 0)
    await ended(stage, talk, Fact(key="order", value=8), name="op")
    assert await handed(stage, talk, "op") == {"order": 8, "a customer's name": "Ada"}
    await guard._context.memory._fold("op")
    assert guard._context.memory._reached["op"] < place
    assert (await remembered(stage, talk, "op"))["order"] == 7


# --- forgetting -------------------------------------------------------------------------------------


async def order(stage: Stage, sender: str, control: Control) -> None:
    await (await stage.bus(sender)).publish_durable(ctl(sender, "_"), msgspec.json.encode(control))
    await stage.drained()


@pytest.mark.usefixtures("nobody_folds")
@pytest.mark.parametrize(("sender", "client"), [("op", "c1"), ("c1", None)])
async def test_an_operator_and_the_client_have_it_forgotten(
    stage: Stage, sender: str, client: str | None
) -> None:
    """Also what is in no record yet."""
    await stage.guard()
    talk = f"forgotten by {sender}"
    await ended(stage, talk, *LEAVES)
    await order(stage, sender, Forget(id="f1", conversation=talk, client=client, keys=("order",)))  # type: ignore[arg-type]
    assert await handed(stage, talk) == {"a customer's name": "Ada"}
    await order(stage, sender, Forget(id="f2", conversation=talk, client=client))  # type: ignore[arg-type]
    assert await handed(stage, talk) == {}
    await ended(stage, talk, Fact(key="order", value=8))
    assert await handed(stage, talk) == {"order": 8}


@pytest.mark.usefixtures("nobody_folds")
async def test_what_was_forgotten_does_not_come_back_when_its_answer_is_folded_late(stage: Stage) -> None:
    await stage.guard()
    talk = fresh()
    await ended(stage, talk, *LEAVES)
    await order(stage, "c1", Forget(id=fresh(), conversation=talk))
    memory = (await stage.processor("late"))._context.memory
    await memory._fold("c1")
    assert await remembered(stage, talk) == {}
    assert (await memory.recall("c1", talk)).facts == ()


async def test_an_order_to_forget_that_comes_twice_forgets_no_later_answer(stage: Stage) -> None:
    """The guard that obeyed it died before it acknowledged."""
    talk = fresh()
    sent = Forget(id="once", conversation=talk)
    guard = await stage.guard()
    await ended(stage, talk, *LEAVES)
    await eventually(lambda: spoken(stage, talk), PATIENCE_S)  # so all of the answer is in the records
    await stage.dismiss(guard)
    async with stage.doomed_guard("remembered") as doomed:
        await (await stage.bus("c1")).publish_durable(ctl("c1", "_"), msgspec.json.encode(sent))
        await doomed.ended()
    assert await remembered(stage, talk) == {}, "it obeyed"
    before = await stage.waiting("CTL")
    await stage.guard("heir")
    await ended(stage, talk, Fact(key="order", value=8))
    assert before
    await stage.drained()
    await order(stage, "c1", sent)  # and a third time
    assert await handed(stage, talk) == {"order": 8}


@pytest.mark.parametrize(
    ("sender", "order_", "code"),
    [
        ("c2", Forget(id="f4", conversation="c", client="c1"), "not_allowed"),  # type: ignore[arg-type]
        ("op", Forget(id="f5", conversation="c", client="a"), "unknown_client"),  # type: ignore[arg-type]
        ("op", Forget(id="f6", conversation=""), "protocol.malformed"),
    ],
)
async def test_an_order_that_may_not_be_obeyed_is_a_dead_letter(
    stage: Stage, sender: str, order_: Forget, code: str
) -> None:
    await stage.guard()
    after = await stage.last_seq("DEAD")
    await order(stage, sender, order_)
    assert (await stage.buried(code, after=after)).sender == sender


async def test_a_conversation_that_is_too_large_for_the_store_loses_its_oldest_facts(stage: Stage) -> None:
    """One client's memory is bounded, and no answer waits for room in it."""
    bus = await stage.bus("guard", "writer")
    most = (await (await stage.bus("admin")).api(f"STREAM.INFO.{memory_of('c2')}"))["config"]["max_bytes"]
    large = "x" * 200_000
    for at in range(most // len(large) + 2):
        await write_record(bus, "c2", said(f"k{at}", large, at, f"talk {at}"))
    assert await remembered(stage, "talk 0", "c2") == {}

    async def bounded() -> bool:
        info = await (await stage.bus("admin")).api(f"STREAM.INFO.{memory_of('c2')}")
        return bool(info["state"]["bytes"] <= most)

    await eventually(bounded)
