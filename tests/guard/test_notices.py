"""Whatever comes to nothing says so: a dead letter with its reason and bytes, and a notice to its sender."""

import asyncio
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
import pytest_asyncio

from mesh.bus.streams import stream_table
from mesh.guard.messages import DeadLetters
from protocol.domain.submit import AHEAD_S
from protocol.wire import codec, subjects
from protocol.wire.commands import MoveProposed, Submit
from protocol.wire.ids import request_id, submitted_ms, ulid
from protocol.wire.moves import Complete, Transfer
from protocol.wire.records import MAX_DETAIL_CHARS, Notice
from tests.certain import known
from tests.guard.stage import FLEET, Stage
from tests.servers import PATIENCE_S, eventually, until

TO_B = Transfer(to_agent="b", summary="please")  # type: ignore[arg-type]
DONE = Complete(answer="done")
ENTROPY = bytes(range(10))


@pytest_asyncio.fixture(autouse=True)
async def _guard(stage: Stage) -> None:
    await stage.guard()


async def heard(notices: list[Notice], request: str) -> Notice:
    await until(lambda: any(notice.request == request for notice in notices))
    return next(notice for notice in notices if notice.request == request)


async def test_a_second_proposal_for_a_round_is_late_and_says_that_it_was_decided(stage: Stage) -> None:
    client, a, b = await stage.client(), await stage.actor("a"), await stage.actor("b")
    told = await stage.notices("a")
    request = await client.submit("hello")
    work = await a.work(request)
    await a.propose(request, work, TO_B)
    await b.work(request)
    await a.propose(request, work, DONE)
    notice = await heard(told, request)
    assert notice.ended is not None
    assert (notice.ended.why, notice.ended.turn, notice.ended.round) == ("ended", work.turn, 0)
    assert await stage.types(request) == ["request.opened", "handoff.admitted"]


async def test_a_proposal_for_a_request_that_is_over_is_late_and_says_how_it_ended(stage: Stage) -> None:
    client, a = await stage.client(), await stage.actor("a")
    request = await client.submit("hello")
    work = await a.work(request)
    await client.cancel(request)
    await client.wait(request, timeout_s=PATIENCE_S)
    await stage.drained("CTL")
    told = await stage.notices("a")
    await a.propose(request, work, DONE)
    notice = await heard(told, request)
    assert known(notice.ended).why == "cancelled"
    assert await stage.types(request) == ["request.opened", "request.cancelled"]


async def test_a_submit_that_was_taken_up_is_told_so_when_it_is_said_again(stage: Stage) -> None:
    told = await stage.notices("c1")
    request, body = (await stage.client()).new_id(), b'{"text":"hello"}'
    for _ in range(2):
        await (await stage.bus("c1")).publish_durable(subjects.prop("c1", request), body)
    notice = await heard(told, request)
    assert notice.ended is not None
    assert (notice.ended.why, notice.ended.turn, notice.digest) == ("decided", "", codec.body_digest(body))


async def test_nobody_speaks_for_a_turn_that_is_not_theirs(stage: Stage) -> None:
    client, a, b = await stage.client(), await stage.actor("a"), await stage.actor("b")
    told = await stage.notices("b")
    request = await client.submit("hello")
    await b.propose(request, await a.work(request), DONE)
    letter = await stage.buried("not_the_holder", request=request)
    assert (letter.sender, letter.by) == ("b", "guard")
    notice = await heard(told, request)
    assert known(notice.error).code == "not_the_holder"
    assert await stage.types(request) == ["request.opened"]


async def test_a_proposal_for_no_request_is_a_dead_letter_at_once(stage: Stage) -> None:
    a = await stage.actor("a")
    request = request_id("c1", 1_800_000_000_000, ENTROPY)
    await a.say(request, MoveProposed(turn="t", round=0, move=DONE))  # type: ignore[arg-type]
    letter = await stage.buried("unknown_request", request=request)
    assert letter.delivered == 1


async def _now_ms(stage: Stage) -> int:
    return submitted_ms((await stage.client()).new_id())


async def test_an_id_that_is_none_is_told_of_under_the_name_alone(stage: Stage) -> None:
    told = await stage.notices("c1")
    body = codec.encode(Submit(text="hello"))
    await (await stage.bus("c1")).publish_durable("mesh.prop.c1.what!ever", body)
    letter = await stage.buried("unusable_id", request="what!ever")
    assert letter.original == body
    notice = await heard(told, "what!ever")
    assert notice.error is not None
    assert notice.digest == codec.body_digest(body)


@pytest.mark.parametrize(
    "ahead_ms",
    [pytest.param(-20 * 86_400_000, id="old"), pytest.param((AHEAD_S + 60) * 1000, id="from-the-future")],
)
async def test_an_id_that_is_too_old_or_too_far_ahead_is_stale(stage: Stage, ahead_ms: int) -> None:
    client = await stage.client()
    request = f"c1_{ulid(await _now_ms(stage) + ahead_ms, ENTROPY)}"
    await client.submit("hello", request=request)
    await stage.buried("stale_id", request=request)
    assert await stage.types(request) == []


async def test_what_cannot_be_read_is_kept_whole_and_the_reason_is_short(stage: Stage) -> None:
    request = (await stage.client()).new_id()
    told = await stage.notices("c1")
    body = msgspec.json.encode({"kind": "k" * 200_000, "turn": "t", "round": 0})
    await (await stage.bus("c1")).publish_durable(subjects.prop("c1", request), body)
    letter = await stage.buried("protocol.malformed", request=request)
    assert letter.original == body
    assert len(letter.detail) <= MAX_DETAIL_CHARS
    notice = await heard(told, request)
    assert len(known(notice.error).detail) <= MAX_DETAIL_CHARS


WRONG: list[dict[str, Any]] = [
    {"kind": "move", "move": {"move": "transfer", "to_agent": 7, "summary": "please"}},
    {"kind": "move", "move": {"move": "transfer", "to_agent": "b"}},
    {"kind": "move"},
    {"kind": "delegate"},
    {"move": {"move": "complete", "answer": "no kind, so that it seems to be a submit"}},
    {"kind": "move", "move": {"move": "complete", "answer": 1}, "v": 2},
    {"kind": "turn_failed", "error": "no object"},
]


@pytest.mark.parametrize("wrong", WRONG)
async def test_a_proposal_that_cannot_be_read_fails_its_round_and_is_kept(
    stage: Stage, wrong: dict[str, Any]
) -> None:
    client, a = await stage.client(), await stage.actor("a")
    told = await stage.notices("a")
    request = await client.submit("hello", policy="eager")
    work = await a.work(request)
    report = {"usage": {"tokens": 7}}
    body = msgspec.json.encode({**wrong, "turn": work.turn, "round": work.round, "report": report})
    await a.bus.publish_durable(subjects.prop("a", request), body)
    letter = await stage.buried("protocol.malformed", request=request)
    assert letter.original == body
    notice = await heard(told, request)
    assert notice.error is not None
    again = await a.work(request, round_=1)
    failure = again.past[-1].failure
    assert failure is not None
    assert failure.code == "malformed"
    assert failure.message == letter.detail
    assert again.reported.usage.tokens == 7
    await a.propose(request, again, DONE)
    await client.wait(request, timeout_s=PATIENCE_S)
    assert await stage.types(request) == [
        "request.opened",
        "turn.failed",
        "turn.retried",
        "request.completed",
    ]


@pytest.mark.parametrize(
    ("sender", "named"),
    [
        pytest.param("b", {}, id="another-agent"),
        pytest.param("c1", {}, id="the-client"),
        pytest.param("a", {"turn": "never"}, id="no-such-turn"),
        pytest.param("a", {"round": 1}, id="a-round-that-was-not-opened"),
        pytest.param("a", {"round": True}, id="no-round"),
        pytest.param("a", {"turn": ["x"]}, id="no-turn"),
    ],
)
async def test_an_unreadable_message_fails_no_round_but_its_senders_open_one(
    stage: Stage, sender: str, named: dict[str, Any]
) -> None:
    client, a = await stage.client(), await stage.actor("a")
    request = await client.submit("hello")
    work = await a.work(request)
    body = msgspec.json.encode({"kind": "move", "turn": work.turn, "round": work.round, **named})
    await (await stage.bus(sender)).publish_durable(subjects.prop(sender, request), body)
    await stage.buried("protocol.malformed", request=request)
    assert await stage.types(request) == ["request.opened"]


async def test_a_second_unreadable_proposal_for_a_round_fails_nothing_more(stage: Stage) -> None:
    client, a = await stage.client(), await stage.actor("a")
    request = await client.submit("hello", policy="eager")
    work = await a.work(request)
    body = msgspec.json.encode({"kind": "move", "turn": work.turn, "round": work.round})
    await a.bus.publish_durable(subjects.prop("a", request), body)
    await a.bus.publish_durable(subjects.prop("a", request), body + b" ")
    await a.work(request, round_=1)
    await stage.drained()
    assert await stage.types(request) == ["request.opened", "turn.failed", "turn.retried"]


async def test_headers_that_are_too_much_to_keep_do_not_keep_a_message_alive(stage: Stage) -> None:
    request = (await stage.client()).new_id()
    body = b"{" * 190_000  # with every header and as JSON, more than a dead letter may be
    headers = {"first": "kept", "second": "\x01" * 60_000}
    await (await stage.bus("c1")).publish_durable(subjects.prop("c1", request), body, headers)
    letter = await stage.buried("protocol.malformed", request=request)
    assert (letter.headers, letter.truncated, letter.original) == ({"first": "kept"}, True, body)
    await stage.drained()


async def test_only_a_trace_that_is_one_goes_on_into_the_log(stage: Stage) -> None:
    client, a = await stage.client(), await stage.actor("a")
    good = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    for trace in (good, "x" * 60_000):
        request = client.new_id()
        await (await stage.bus("c1")).publish_durable(
            subjects.prop("c1", request), codec.encode(Submit(text="hello")), {"traceparent": trace}
        )
        await a.work(request)
        got = await (await stage.bus("admin")).request(f"$JS.API.DIRECT.GET.LOG.mesh.evt.a.{request}")
        assert got.headers.get("traceparent") == (good if trace == good else None)


async def test_nobody_puts_anothers_dead_letter_out(stage: Stage) -> None:
    quiet, loud = await stage.client("c1"), await stage.bus("c2")
    request = quiet.new_id()
    await (await stage.bus("c1")).publish_durable(subjects.prop("c1", request), b"{")
    await stage.buried("protocol.malformed", request=request)
    before = await stage.last_seq("DEAD")
    kept = stream_table(FLEET)["DEAD"]["max_msgs_per_subject"]
    ids = [request_id("c2", 1_800_000_000_000 + n, ENTROPY) for n in range(kept + 10)]
    await asyncio.gather(*(loud.publish_durable(subjects.prop("c2", each), b"{") for each in ids))

    async def all_buried() -> bool:
        return await stage.last_seq("DEAD") >= before + len(ids)

    await eventually(all_buried, PATIENCE_S)
    letters = await stage.dead_letters()
    assert [letter.request for letter in letters if letter.sender == "c1"].count(request) == 1
    assert len([letter for letter in letters if letter.sender == "c2"]) <= kept


async def test_guards_that_keep_the_same_message_at_the_same_time_store_one_letter(stage: Stage) -> None:
    """As when one of them was frozen with the message in hand, and both know the list up to now."""
    guards = [DeadLetters(await stage.bus("guard", name)) for name in ("frozen", "heir")]
    after = await stage.last_seq("DEAD")

    def message(seq: int) -> Any:
        return SimpleNamespace(
            subject="mesh.prop.0.c2.r", data=b"{", headers={}, delivered=1, stream_seq=seq, stored_us=seq
        )

    async def keep(guard: DeadLetters, seq: int) -> bool:
        return await guard.keep("c2", message(seq), at=1, code="x", detail="y", request="r")

    for round_ in range(3):
        for number, guard in enumerate(guards):
            assert await keep(guard, 100 * round_ + number)
        kept = await asyncio.gather(
            *(keep(guard, 100 * round_ + n) for n in range(2, 20) for guard in guards)
        )
        assert all(kept)
    stored = [letter.stream_seq for letter in await stage.dead_letters(after=after)]
    assert sorted(stored) == [100 * round_ + n for round_ in range(3) for n in range(20)]
    late = DeadLetters(await stage.bus("guard", "late"))
    assert await keep(late, 119)
    assert len(await stage.dead_letters(after=after)) == len(stored)
