"""One request, any number of guards: every message is decided once, whoever hears it and however often."""

import asyncio

import msgspec
import pytest

from protocol.domain.admission import Late, Rejected
from protocol.domain.steps import Decided
from protocol.wire import codec, events
from protocol.wire.commands import (
    Doubt,
    Failure,
    MoveProposed,
    Proposal,
    ReplyToAsk,
    ReportFailure,
    ReportInDoubt,
    Settle,
    Submit,
)
from protocol.wire.event_parts import Assignment
from protocol.wire.events import type_of
from protocol.wire.handoff import Constraints, Fact
from protocol.wire.ids import TurnId, submitted_ms
from protocol.wire.moves import Ask, Complete, HandBack, Transfer
from tests.certain import is_
from tests.guard.actor import Actor
from tests.guard.stage import Stage, control_command, proposal_command, submit_command
from tests.logs import captured_logs
from tests.servers import PATIENCE_S

TO_B = Transfer(to_agent="b", summary="please")  # type: ignore[arg-type]
DONE = Complete(answer="done")


async def test_two_guards_that_hear_the_same_proposal_at_once_write_one_verdict(stage: Stage) -> None:
    guards = [await stage.processor(f"g{number}") for number in range(3)]
    requests = [(await stage.client()).new_id() for _ in range(20)]
    opened = [await guards[0].process(submit_command(request, Submit(text="hello"))) for request in requests]
    for request, outcome in zip(requests, opened, strict=True):
        assert isinstance(outcome, Decided)
        assert isinstance(outcome.event, events.RequestOpened)
        move = MoveProposed(turn=outcome.event.work.turn, round=0, move=TO_B)
        heard = proposal_command(request, "a", move)
        await asyncio.gather(*(guard.wake(request) for guard in guards))  # each has its own copy now
        await asyncio.gather(*(guard.process(heard) for guard in guards for _ in range(3)))
        assert await stage.types(request) == ["request.opened", "handoff.admitted"]
    assert sum(guard.conflicts for guard in guards) >= len(requests), "nobody was second: nothing was tried"


@pytest.mark.parametrize("guards", [2, 3])
async def test_many_requests_among_several_guards_each_get_one_successor_per_turn(
    stage: Stage, guards: int
) -> None:
    for number in range(guards):
        await stage.guard(f"g{number}")
    client, a, b = await stage.client(), await stage.actor("a"), await stage.actor("b")

    async def walk() -> str:
        request = await client.submit("hello")
        await a.propose(request, await a.work(request), TO_B, times=2)
        await b.propose(request, await b.work(request), HandBack(summary="here"), times=2)
        await a.propose(request, await a.work(request, nth=1), DONE, times=2)
        return (await client.wait(request, timeout_s=PATIENCE_S)).status

    assert set(await asyncio.gather(*(walk() for _ in range(60)))) == {"completed"}
    await stage.drained()


@pytest.mark.parametrize("what", ["handoff.admitted", "turn.resumed", "effect.settled"])
async def test_what_follows_another_guards_event_is_decided_by_one_with_an_older_copy(
    stage: Stage, what: str
) -> None:
    one, other = await stage.processor("one"), await stage.processor("other")
    request = (await stage.client()).new_id()
    opened = is_(await one.process(submit_command(request, Submit(text="hello"))), Decided)
    turn = TurnId(opened.event.id)
    before: Proposal
    match what:
        case "handoff.admitted":
            before = MoveProposed(turn=turn, round=0, move=TO_B)
        case "turn.resumed":
            before = MoveProposed(turn=turn, round=0, move=Ask(to_agent="c1", question="which?"))  # type: ignore[arg-type]
            then = control_command(
                request, "c1", ReplyToAsk(id="r", turn=turn, round=0, value="this"), "client"
            )
        case _:
            before = ReportInDoubt(turn=turn, round=0, effect=Doubt(step="0-0", action="pay"))
            then = control_command(request, "op", Settle(id="s", turn=turn, round=0, outcome="not_done"))
    first = is_(await other.process(proposal_command(request, "a", before)), Decided)
    if what == "handoff.admitted":
        back = MoveProposed(turn=TurnId(first.event.id), round=0, move=HandBack(summary="here"))
        then = proposal_command(request, "b", back)
    outcome = await one.process(then)
    assert isinstance(outcome, Decided), outcome
    assert type_of(outcome.event) == what


async def test_an_event_behind_a_guards_back_makes_it_read_again_and_decide_right(stage: Stage) -> None:
    one, other = await stage.processor("one"), await stage.processor("other")
    request = (await stage.client()).new_id()
    opened = is_(await one.process(submit_command(request, Submit(text="hello"))), Decided)
    turn = opened.event.id
    ask = MoveProposed(turn=turn, round=0, move=Ask(to_agent="c1", question="which?"))  # type: ignore[arg-type]
    assert isinstance(await other.process(proposal_command(request, "a", ask)), Decided)
    late = MoveProposed(turn=turn, round=0, move=TO_B)  # type: ignore[arg-type]
    await one.process(proposal_command(request, "a", late))
    assert one.conflicts == 1
    assert await stage.types(request) == ["request.opened", "turn.suspended"]


@pytest.mark.parametrize("whose", ["one", "other"])
async def test_a_submit_that_is_repeated_is_known_however_old_its_id_is(stage: Stage, whose: str) -> None:
    """By a guard that has it in its cache, and by one that has not."""
    client = await stage.client()
    request = client.new_id()
    clock = [submitted_ms(request) * 1000]
    rooms = {name: await stage.processor(name, now=lambda: clock[0]) for name in ("one", "other")}
    week = Constraints(max_resolution_time_s=12 * 86_400.0)
    command = submit_command(request, Submit(text="hello", constraints=week))
    assert isinstance(await rooms["one"].process(command), Decided)
    clock[0] += 8 * 86_400_000_000
    assert isinstance(await rooms[whose].process(command), Late)
    other = submit_command(request, Submit(text="good-bye"))
    found = is_(await rooms[whose].process(msgspec.structs.replace(other, digest="another")), Rejected)
    assert found.code == "request_exists"
    found = is_(await rooms[whose].process(submit_command(client.new_id(), Submit(text="hello"))), Rejected)
    assert found.code == "stale_id"


async def test_a_timer_is_looked_at_with_the_log_and_not_with_an_older_copy(stage: Stage) -> None:
    request = (await stage.client()).new_id()
    clock = [submitted_ms(request) * 1000]
    one = await stage.processor("one", now=lambda: clock[0])
    other = await stage.processor("other", now=lambda: clock[0])
    opened = is_(await one.process(submit_command(request, Submit(text="hello"))), Decided)
    ask = MoveProposed(
        turn=opened.event.id,  # type: ignore[arg-type]
        round=0,
        move=Ask(to_agent="c1", question="which?", expires_s=2.0),  # type: ignore[arg-type]
    )
    await other.process(proposal_command(request, "a", ask))
    clock[0] += 3_000_000
    await one.wake(request)
    assert (await stage.types(request))[-1] == "turn.resumed"


async def test_a_hop_takes_two_durable_publishes_and_a_request_one_timer(own_stage: Stage) -> None:
    """On a server of its own: timers that other tests left would be counted, too."""
    await own_stage.guard()
    client, a, b = await own_stage.client(), await own_stage.actor("a"), await own_stage.actor("b")
    streams = ("PROP", "LOG", "TIMER", "CTL", "STEPS", "ENDS", "DEAD", "CONF")
    before = {stream: await own_stage.last_seq(stream) for stream in streams}
    request = await client.submit("hello")
    await a.propose(request, await a.work(request), TO_B)
    await b.propose(request, await b.work(request), HandBack(summary="here"))
    await a.propose(request, await a.work(request, nth=1), DONE)
    await client.wait(request, timeout_s=PATIENCE_S)
    await own_stage.drained()
    stored = {stream: await own_stage.last_seq(stream) - before[stream] for stream in streams}
    # The end takes one event more: what its client is not told.
    assert stored == {**dict.fromkeys(streams, 0), "PROP": 4, "LOG": 5, "TIMER": 1}


async def test_a_timer_is_armed_once_and_moved_only_to_earlier(stage: Stage) -> None:
    await stage.guard()
    client, a = await stage.client(), await stage.actor("a")
    request = await client.submit("hello")
    work = await a.work(request)
    await stage.drained()
    first = await stage.schedule(request)
    await a.propose(request, work, Ask(to_agent="c1", question="now?", expires_s=30.0))  # type: ignore[arg-type]
    await stage.reaches(request, "turn.suspended")
    await stage.drained()
    second = await stage.schedule(request)
    assert first is not None
    assert second is not None
    assert second[1] < first[1], "the ask expires before the round's time is over"
    event = is_(await client.latest(request), events.TurnSuspended)
    await stage.control(request, codec.parse_control(_reply(event)), "c1")
    await a.work(request, round_=1)
    await stage.drained()
    assert await stage.schedule(request) == second, "a later due time is left to the look that comes anyway"


def _reply(event: events.TurnSuspended) -> bytes:
    return b'{"kind":"reply","id":"r1","turn":"%s","round":%d,"value":"yes"}' % (
        event.turn.encode(),
        event.round,
    )


PART = 205_000


async def heavy(stage: Stage) -> tuple[str, Actor, Assignment]:
    """Return a request whose handoff is about 820 kB, and whoever holds it."""
    client = await stage.client()
    request = await client.submit("x" * PART, policy="vast")
    for giver, taker in ("ab", "bc", "cd"):
        actor = await stage.actor(giver)
        move = Transfer(to_agent=taker, summary="please", facts=(Fact(key=taker, value="x" * PART),))  # type: ignore[arg-type]
        await actor.propose(request, await actor.work(request), move)
    d = await stage.actor("d")
    return request, d, await d.work(request)


def most(stage_bus: object) -> int:
    """Return the bytes of the largest event."""
    return int(stage_bus._wire.max_payload) - 2048  # type: ignore[attr-defined]


async def test_a_request_whose_next_round_no_message_can_hold_ends(stage: Stage) -> None:
    client, guard_bus = await stage.client(), await stage.bus("guard", "g1")
    await stage.guard()
    request, d, work = await heavy(stage)
    await d.propose(request, work, Ask(to_agent="c1", question="which?"))  # type: ignore[arg-type]
    await stage.reaches(request, "turn.suspended")
    before = max(map(len, await stage.bodies(request)))
    reply = ReplyToAsk(id="r1", turn=work.turn, round=0, value="y" * (most(guard_bus) - before - 1500))
    await stage.control(request, reply, sender="c1")
    work = await d.work(request, round_=1)
    await d.say(
        request, ReportFailure(turn=work.turn, round=1, error=Failure(code="boom", message="z" * 4000))
    )
    with captured_logs() as lines:
        log = await stage.reaches(request, "request.failed")
    end = is_(log[-1], events.RequestFailed)
    assert (end.code, end.to) == ("event_too_large", "c1")
    assert "turn.retried" in end.reason
    assert isinstance(log[-3], events.TurnFailed)
    (line,) = [line for line in lines if line["event"] == "event_too_large"]
    assert line["size"] > line["limit"] == most(guard_bus)
    assert (await client.wait(request, timeout_s=PATIENCE_S)).status == "failed"
    await stage.drained()
