"""Who spoke last in a conversation, on a real server: with late records, many guards, orders to forget."""

import asyncio
from typing import Any

import msgspec
import pytest

from mesh.bus import memory as store
from mesh.bus.memory import read_memory, write_record
from mesh.bus.reader import every
from mesh.bus.streams import memory_of
from mesh.guard import memory as guard_memory
from protocol.wire import subjects
from protocol.wire.commands import Cancel, Forget
from protocol.wire.config import Policy
from protocol.wire.errors import Malformed
from protocol.wire.event_parts import Continued
from protocol.wire.events import RequestOpened, RequestRefused, TurnSuspended
from protocol.wire.handoff import Fact, Rule
from protocol.wire.ids import AgentName, RequestId
from protocol.wire.moves import Ask, Complete, Transfer
from protocol.wire.records import MemorySpeaker
from tests.guard.stage import FLEET, HASTY, Stage, wall_clock_us
from tests.guard.test_memory import order
from tests.guard.test_removed import without, write
from tests.servers import PATIENCE_S, eventually, fresh

FURNISHED = HASTY


async def said(stage: Stage, talk: str, **submit: Any) -> RequestId:
    client = await stage.client("c1")
    request: RequestId = await client.submit(
        "hello", conversation=talk, **{"continue_with": "last", **submit}
    )
    return request


async def answered(stage: Stage, talk: str, by: str, *leaves: Fact, **submit: Any) -> RequestId:
    """Submit a message of a conversation, have it answered by `by`, and wait for that."""
    request = await said(stage, talk, **submit)
    opened = await stage.reached(request, RequestOpened)
    if opened.to != by:
        giver = await stage.actor(opened.to)
        move = Transfer(to_agent=AgentName(by), summary="yours")
        await giver.propose(request, await giver.work(request), move)
    actor = await stage.actor(by)
    await actor.propose(request, await actor.work(request), Complete(answer="done", remember=leaves))
    await (await stage.client("c1")).wait(request, timeout_s=PATIENCE_S)
    return request


async def went(stage: Stage, talk: str, **submit: Any) -> tuple[str, Continued | None]:
    opened = await stage.reached(await said(stage, talk, **submit), RequestOpened)
    return opened.to, opened.continued


def last(name: str, why: Rule | None = None) -> Continued:
    return Continued(last=AgentName(name), why=why)


@pytest.fixture
def nobody_folds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no guard of this process make records: they lag behind for ever."""

    async def never(*_: object) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(guard_memory.ConversationMemory, "keep", never)


@pytest.mark.usefixtures("nobody_folds")
@pytest.mark.parametrize("guards", [1, 3])
async def test_a_message_goes_to_whoever_answered_however_far_the_records_lag(
    stage: Stage, guards: int
) -> None:
    for number in range(guards):
        await stage.ready(await stage.guard(f"at-once-{number}"))
    talk = fresh()
    for by in ("b", "b", "a", "c", "a"):
        await answered(stage, talk, by)
        assert await went(stage, talk) == (by, last(by))
    assert await store.last_speaker(await stage.bus("admin"), "c1", talk) is None


async def test_the_record_says_so_once_the_log_behind_it_is_not_read_any_more(stage: Stage) -> None:
    guard = await stage.guard(stride=1)
    talk, admin = fresh(), await stage.bus("admin")
    request = await answered(stage, talk, "b")

    async def recorded() -> bool:
        return await store.last_speaker(admin, "c1", talk) is not None

    await eventually(recorded, PATIENCE_S)
    kept = await store.last_speaker(admin, "c1", talk)
    assert kept is not None
    assert (kept.agent, kept.request, kept.conversation) == ("b", request, talk)
    await stage.dismiss(guard)
    await stage.guard("another")
    assert await went(stage, talk) == ("b", last("b"))
    reading = every(await stage.bus("c1"), memory_of("c1"), subjects.speaker("c1", talk))
    (own,) = [msgspec.json.decode(each.data) async for each in reading]  # the client may read it
    assert own["agent"] == "b"
    everything = await read_memory(admin, "c1")
    assert everything.unreadable == ()
    assert (await read_memory(admin, "c1", talk)).entries == ()


async def test_a_record_of_an_earlier_answer_replaces_no_later_one(stage: Stage) -> None:
    bus, talk = await stage.bus("guard", "writer"), fresh()

    def spoke(name: str, seq: int) -> MemorySpeaker:
        now = wall_clock_us()
        return MemorySpeaker(conversation=talk, agent=AgentName(name), seq=seq, at=now, request="r")

    await asyncio.gather(*(write_record(bus, "c1", spoke(name, seq)) for name, seq in (("b", 9), ("a", 4))))
    kept = await store.last_speaker(bus, "c1", talk)
    assert kept is not None
    assert kept.agent == "b"
    before = await stage.last_seq(memory_of("c1"))
    await write_record(bus, "c1", spoke("a", 4))
    assert await stage.last_seq(memory_of("c1")) == before


@pytest.mark.usefixtures("nobody_folds")
async def test_whoever_asked_last_gets_it_after_the_question_was_cancelled(stage: Stage) -> None:
    await stage.guard()
    talk, b = fresh(), await stage.actor("b")
    await answered(stage, talk, "a")
    request = await said(stage, talk, to="b")
    ask = Ask(to_agent=AgentName("c1"), question="which one?")
    await b.propose(request, await b.work(request), ask)
    asked = await stage.reached(request, TurnSuspended)
    assert (asked.agent, asked.conversation) == ("b", talk)
    assert await went(stage, talk) == ("b", last("b"))  # the question is still open
    await stage.control(request, Cancel(id=fresh()), "c1")
    await stage.reaches(request, "request.cancelled")
    assert await went(stage, talk) == ("b", last("b"))


@pytest.mark.usefixtures("nobody_folds")
async def test_what_an_order_has_forgotten_begins_at_the_entry_agent(stage: Stage) -> None:
    await stage.guard()
    talk = fresh()
    await answered(stage, talk, "b", Fact(key="k", value=1))
    await order(stage, "c1", Forget(id=fresh(), conversation=talk, keys=("k",)))
    assert await went(stage, talk) == ("b", last("b"))
    await order(stage, "c1", Forget(id=fresh(), conversation=talk))
    assert await went(stage, talk) == ("a", None)
    memory = (await stage.processor("late"))._context.memory
    await memory._fold("c1")
    assert await went(stage, talk) == ("a", None)


async def test_a_record_that_cannot_be_read_counts_as_none(stage: Stage) -> None:
    await stage.guard()
    talk = fresh()
    await (await stage.bus("guard", "writer")).publish_durable(subjects.speaker("c1", talk), b"{")
    assert await went(stage, talk) == ("a", None)
    await answered(stage, talk, "b")
    assert await went(stage, talk) == ("b", last("b"))


async def test_a_restored_log_gets_the_last_speaker_from_the_next_answer(stage: Stage) -> None:
    """The record is ahead of the log: it is set back, and what is answered from then on is newer."""
    bus, talk = await stage.bus("guard", "writer"), fresh()
    far = await stage.last_seq("LOG") + 1_000_000
    spoke = MemorySpeaker(conversation=talk, agent=AgentName("b"), seq=far, at=wall_clock_us(), request="r")
    await write_record(bus, "c1", spoke)
    await store.write_reached(bus, "c1", far, await store.reached(bus, "c1"))
    await stage.guard()
    assert await went(stage, talk) == ("b", last("b"))
    await answered(stage, talk, "c")
    assert await went(stage, talk) == ("c", last("c"))


async def test_an_agent_that_left_is_passed_over_and_the_event_says_why(stage: Stage) -> None:
    await stage.guard()
    talk = fresh()
    await answered(stage, talk, "b")
    try:
        await write(stage, without("b"))
        assert await went(stage, talk) == ("a", last("b", Rule.KNOWN_AGENT))
    finally:
        await write(stage, FLEET)


async def test_a_submit_to_go_on_with_nobodys_conversation_is_a_dead_letter(stage: Stage) -> None:
    await stage.guard()
    client = await stage.client("c1")
    request = await client.submit("hello", continue_with="last")
    letter = await stage.buried(Malformed.code, request=request)
    assert letter.detail == "submit: `continue_with` is `last`, and there is no `conversation`"


async def test_a_conversation_costs_no_read_of_who_spoke_where_it_is_not_wanted(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def never(*_: object) -> None:
        raise AssertionError("nobody wants to know")

    monkeypatch.setattr(store, "last_speaker", never)
    await stage.guard()
    request = await (await stage.client("c1")).submit("hello", conversation=fresh())
    opened = await stage.reached(request, RequestOpened)
    assert (opened.to, opened.continued, opened.policy) == ("a", None, Policy())


async def test_without_a_policy_it_is_refused_whoever_spoke(stage: Stage) -> None:
    await stage.guard()
    talk = fresh()
    await answered(stage, talk, "b")
    refused = await stage.reached(await said(stage, talk, policy="nothing"), RequestRefused)
    assert refused.refusal.rule == Rule.KNOWN_POLICY
