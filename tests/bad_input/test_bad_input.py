"""Nothing that comes in ends a service, comes again for ever, or vanishes: thousands of messages prove it.

Each message comes to exactly one thing: an event, a notice that it was late, or a dead letter with its
reason and its bytes and a notice to its sender. Afterwards the queues are empty, and the same guard and
the same agent still work.
"""

import itertools
import time
from functools import cache

import msgspec
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from protocol.wire import events, subjects
from protocol.wire.ids import request_id
from tests.bad_input.rubbish import SUBMIT, Known, almost, bodies, controls, proposals, tokens
from tests.bad_input.scene import FLEET, Scene, Sent
from tests.servers import PATIENCE_S, eventually, until

BATCH = 40
_numbers = itertools.count()


def every(examples: int) -> settings:
    """Return settings that always try the same examples: a failure here is one everywhere."""
    return settings(
        max_examples=examples,
        deadline=None,
        derandomize=True,
        database=None,
        phases=(Phase.generate,),
        suppress_health_check=list(HealthCheck),
    )


def fresh(sender: str) -> str:
    entropy = next(_numbers).to_bytes(10)
    return request_id(sender, time.time_ns() // 1_000_000, entropy)


def proposed(known: Known) -> st.SearchStrategy[Sent]:
    """Return what could well be a proposal or a submit: the sender's own turn, or a fresh id of its own."""

    @cache  # to make a strategy takes longer than to draw from it
    def move(one: tuple[str, str]) -> st.SearchStrategy[Sent]:
        return st.builds(Sent, st.just("prop"), st.just("b"), st.just(one[0]), almost(*proposals(one[1])))

    @cache
    def submit(sender: str) -> st.SearchStrategy[Sent]:
        own = st.builds(lambda: fresh(sender))
        return st.builds(Sent, st.just("prop"), st.just(sender), own, almost(SUBMIT))

    return _turns(known).flatmap(move) | st.sampled_from(("c1", "op")).flatmap(submit)


def controlled(known: Known) -> st.SearchStrategy[Sent]:
    """Return what could well be a control message: to an open request, about the turn that is open in it."""

    @cache
    def control(one: tuple[str, str]) -> st.SearchStrategy[Sent]:
        senders = st.sampled_from(("c1", "op", "op"))
        return st.builds(Sent, st.just("ctl"), senders, st.just(one[0]), almost(*controls(one[1])))

    return _turns(known).flatmap(control)


def anything(kind: str, senders: tuple[str, ...], known: Known) -> st.SearchStrategy[Sent]:
    """Return whatever these senders may publish."""
    sound = [
        message
        for turn in (*known.turns, "elsewhere")
        for message in (controls(turn) if kind == "ctl" else [*proposals(turn), SUBMIT])
    ]

    @cache
    def of(sender: str) -> st.SearchStrategy[Sent]:
        return st.builds(
            Sent, st.just(kind), st.just(sender), tokens(sender, known, lambda: fresh(sender)), bodies(sound)
        ).filter(lambda message: not (message.token == "_" and b"freeze" in message.body))

    return st.sampled_from(senders).flatmap(of)


def _turns(known: Known) -> st.SearchStrategy[tuple[str, str]]:
    """Return one of the open requests, with the turn that is open in it."""
    return st.sampled_from(list(zip(known.requests, known.turns, strict=True)))


def batches(*of: st.SearchStrategy[Sent]) -> st.SearchStrategy[list[Sent]]:
    return st.lists(st.one_of(*of), min_size=BATCH, max_size=BATCH)


@every(22)
@given(st.data())
async def test_whatever_comes_as_a_proposal(scene: Scene, data: st.DataObject) -> None:
    known = await scene.begin()
    everybody = anything("prop", ("a", "b", "c1", "op"), known)
    await scene.account_for(data.draw(batches(proposed(known), everybody)))
    await scene.still_works()


@every(16)
@given(st.data())
async def test_whatever_comes_as_a_control_message(scene: Scene, data: st.DataObject) -> None:
    known = await scene.begin_waiting()
    everybody = anything("ctl", ("c1", "c2", "op"), known)
    await scene.account_for(data.draw(batches(controlled(known), everybody)))
    await scene.still_works()


@every(8)
@given(st.data())
async def test_whatever_fires_as_a_timer(scene: Scene, data: st.DataObject) -> None:
    known = await scene.begin(1)
    admin = await scene.bus("admin")
    fired = data.draw(
        st.lists(
            st.tuples(
                st.integers(0, FLEET.partitions - 1),
                tokens("c1", known, lambda: fresh("c1")),
                bodies([{"at": 1}]),
            ),
            min_size=BATCH,
            max_size=BATCH,
        )
    )
    for partition, token, body in fired:
        await admin.publish_durable(f"mesh.timer.fire.{partition}.{token}", body)

    async def none_left() -> bool:
        body = {"subjects_filter": "mesh.timer.fire.>"}
        info = await admin.api("STREAM.INFO.TIMER", body)
        return not info["state"].get("subjects")

    await eventually(none_left)
    await scene.still_works()


async def test_a_schedule_that_says_no_time_is_replaced(scene: Scene) -> None:
    client, admin = await scene.client(), await scene.bus("admin")
    for body in (b"?", b"\xff", b"[" * 5_000, b"{}"):
        request = client.new_id()
        await admin.publish_durable(subjects.timer_at(request), body)
        await client.submit("hello", to="b", policy="short", request=request)
        assert (await client.wait(request, timeout_s=PATIENCE_S)).status == "expired", body


@every(10)
@given(st.data())
async def test_whatever_a_note_says(scene: Scene, data: st.DataObject) -> None:
    known = await scene.begin()
    guard, client = await scene.bus("guard", "forger"), await scene.client()
    waiting = known.requests[0]
    sound = [
        {"v": 1, "request": waiting, "error": {"code": "x", "detail": "y"}},
        {"v": 1, "request": waiting, "ended": {"why": "x", "turn": known.turns[0], "round": 0}},
    ]
    notes = data.draw(
        st.lists(
            st.tuples(st.sampled_from(["c1", "a"]), tokens("c1", known, lambda: fresh("c1")), bodies(sound)),
            min_size=BATCH,
            max_size=BATCH,
        )
    )
    heard: list[str] = []
    for name, use in (("c1", ""), ("a", "runtime")):
        await (await scene.bus(name, use)).subscribe(
            f"mesh.note.{name}.last", lambda message: heard.append(message.subject)
        )
    for to, token, body in notes:
        await guard.publish(f"mesh.note.{to}.{token}", body)
    for name in ("c1", "a"):
        await guard.publish(f"mesh.note.{name}.last")
    await until(lambda: len(set(heard)) == 2)
    await client.cancel(waiting)
    outcome = await client.wait(waiting, timeout_s=PATIENCE_S)
    assert isinstance(outcome.event, events.RequestCancelled)
    await scene.still_works()


@every(12)
@given(st.data())
async def test_whatever_lies_in_an_inbox(scene: Scene, data: st.DataObject) -> None:
    client = await scene.client()
    model = await client.submit("hello", to="a")
    await client.wait(model, timeout_s=PATIENCE_S)
    opened = msgspec.json.decode((await scene.bodies(model))[0])
    strange = st.lists(bodies([opened]) | almost(opened), min_size=BATCH, max_size=BATCH)
    after, proposed_before = await scene.last_seq("DEAD"), await scene.last_seq("PROP")
    written: dict[str, bytes] = {}
    for drawn in data.draw(strange):
        request = fresh("c1")
        scene.spoiled.add(request)
        written[request] = drawn.replace(model.encode(), request.encode())
        await scene.forge(written[request], "a", request, after=0)

    await scene.inbox_drained("a")
    letters = await scene.dead_letters("a", after=after)
    assert {letter.request: letter.original for letter in letters}.items() <= written.items()
    proposed = await scene.last_seq("PROP") - proposed_before
    assert proposed + len(letters) == len(written), "put aside, or worked on"
    await scene.still_works()
    await scene.drained_but(scene.spoiled)


async def test_work_for_a_turn_that_was_never_opened_is_no_event(scene: Scene) -> None:
    """A sound event in a log that does not fold: the agent works, and the guard decides nothing."""
    client, request = await scene.client(), fresh("c1")
    model = await client.submit("hello", to="a")
    await client.wait(model, timeout_s=PATIENCE_S)
    opened = msgspec.json.decode((await scene.bodies(model))[0])
    scene.spoiled.add(request)
    await scene.forge(msgspec.json.encode({**opened, "request": request, "n": 4}), "a", request, after=0)

    async def taken() -> bool:
        return await scene.inbox_left("a") == 0 and await scene.waiting("PROP") == 1

    await eventually(taken)
    assert len(await _raw(scene, request)) == 1
    await scene.still_works()


async def _raw(scene: Scene, request: str) -> list[bytes]:
    got = await (await scene.bus("admin")).api(
        "STREAM.INFO.LOG", {"subjects_filter": subjects.evt_of(request)}
    )
    return [name.encode() for name, count in got["state"]["subjects"].items() for _ in range(count)]


TOKENS = {
    "no-utf-8": b"\xff\xfe",
    "half-a-character": b"\xed\xa0\x80",
    "vertical-tab": b"x\x0by",
    "form-feed": b"x\x0cy",
    "a-number-after-a-tab": b"x\x0b1",
    "two-numbers": b"x\x0b1\x0b2",
    "separators": b"a\x1cb\x1db\x1e\x1f",
    "nul": b"a\x00b",
    "no-break-space": "a\u00a0b\u2028c".encode(),
    "long": b"L" * 3_900,
}


@pytest.mark.parametrize("kind", ["prop", "ctl"])
async def test_whatever_bytes_a_subject_holds(scene: Scene, kind: str) -> None:
    client = await scene.bus("c1")
    answers: list[bytes] = []
    inbox = await client.subscribe(client.new_inbox(), lambda message: answers.append(message.data))
    for name, token in TOKENS.items():
        answers.clear()
        before = await scene.last_seq("DEAD")
        head = b"PUB mesh.%s.c1.%s %s 2\r\n" % (kind.encode(), token, inbox.subject.encode())
        client._wire.write(head + b"{}\r\n")
        await until(lambda: bool(answers))
        assert b'"seq"' in answers[0], (name, "the server stored it")
        await scene.drained()
        (letter,) = await scene.dead_letters(after=before)
        assert (letter.original, letter.sender) == (b"{}", "c1"), name
        await scene.still_works()


async def test_a_subject_that_the_server_itself_loses_harms_nobody(scene: Scene) -> None:
    """nats-server 2.15 stores a subject with 0x7f in it, and never delivers it to a consumer."""
    client = await scene.bus("c1")
    before = await scene.last_seq("PROP")
    client._wire.write(b"PUB mesh.prop.c1.\x7f 2\r\n{}\r\n")
    await client.flush()
    await scene.still_works()
    assert await scene.last_seq("PROP") > before
