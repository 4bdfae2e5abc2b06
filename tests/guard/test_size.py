"""Events that are more than the bus takes: nothing is tried for ever, and somebody is told."""

from protocol.wire import events
from protocol.wire.commands import Ask, Complete, Failure, Freeze, Reply, ReportFailure, Thaw, Transfer
from protocol.wire.events import Assignment
from protocol.wire.handoff import Fact
from tests.guard.actor import Actor
from tests.guard.stage import Stage
from tests.logs import captured_logs

DONE = Complete(answer="done")
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


async def test_a_move_whose_verdict_no_message_can_hold_is_a_dead_letter(stage: Stage) -> None:
    await stage.guard()
    request, d, work = await heavy(stage)
    large = "x" * 240_000
    await d.propose(request, work, Transfer(to_agent="nobody", summary=large))  # type: ignore[arg-type]
    letter = await stage.buried("event_too_large", request=request)
    assert letter.sender == "d"
    await stage.drained()
    await d.propose(request, work, DONE)
    await stage.reaches(request, "request.completed")


async def test_a_request_whose_next_round_no_message_can_hold_ends(stage: Stage) -> None:
    client, guard_bus = await stage.client(), await stage.bus("guard", "g1")
    await stage.guard()
    request, d, work = await heavy(stage)
    await d.propose(request, work, Ask(to_agent="c1", question="which?"))  # type: ignore[arg-type]
    await stage.reaches(request, "turn.suspended")
    before = max(map(len, await stage.bodies(request)))
    reply = Reply(id="r1", turn=work.turn, round=0, value="y" * (most(guard_bus) - before - 1500))
    await stage.control(request, reply, sender="c1")
    work = await d.work(request, round_=1)
    await d.say(
        request, ReportFailure(turn=work.turn, round=1, error=Failure(code="boom", message="z" * 4000))
    )
    with captured_logs() as lines:
        log = await stage.reaches(request, "request.failed")
    end = log[-1]
    assert isinstance(end, events.RequestFailed)
    assert (end.code, end.to) == ("event_too_large", "c1")
    assert end.reason == "the next event, turn.retried, is more than the bus takes"
    assert isinstance(log[-3], events.TurnFailed)
    (line,) = [line for line in lines if line["event"] == "event_too_large"]
    assert line["size"] > line["limit"] == most(guard_bus)
    assert (await client.wait(request, timeout_s=60)).status == "failed"  # type: ignore[arg-type]
    await stage.drained()


async def test_a_deferred_proposal_whose_verdict_no_message_can_hold_ends_the_request(stage: Stage) -> None:
    await stage.guard()
    request, d, work = await heavy(stage)
    await stage.control(request, Freeze(id="f1"))
    await stage.reaches(request, "request.frozen")
    await d.propose(request, work, Transfer(to_agent="nobody", summary="x" * 240_000))  # type: ignore[arg-type]
    await stage.reaches(request, "move.deferred")
    await stage.control(request, Thaw(id="t1"))
    end = (await stage.reaches(request, "request.failed"))[-1]
    assert isinstance(end, events.RequestFailed)
    assert (end.code, end.reason) == (
        "event_too_large",
        "the verdict on a deferred proposal is more than the bus takes",
    )
    await stage.drained()


async def test_failures_that_say_much_do_not_pile_up(stage: Stage) -> None:
    """Each is nearly as large as a message may be, and all of them are told to each next round."""
    client, a = await stage.client(), await stage.actor("a")
    await stage.guard()
    request = await client.submit("hello", policy="chatty")
    for round_ in range(6):
        work = await a.work(request, round_=round_)
        error = Failure(code="boom", message="x" * 240_000)
        await a.say(request, ReportFailure(turn=work.turn, round=round_, error=error))
    work = await a.work(request, round_=6)
    assert [past.failure.code for past in work.past if past.failure is not None] == 6 * ["boom"]
    await a.propose(request, work, DONE)
    await stage.reaches(request, "request.completed")
