"""Events that are more than the bus takes: nothing is tried for ever, and somebody is told."""

from protocol.wire import events
from protocol.wire.commands import Ask, Failure, Reply, ReportFailure, Transfer
from protocol.wire.events import Assignment
from protocol.wire.handoff import Fact
from tests.guard.actor import Actor
from tests.guard.stage import Stage
from tests.logs import captured_logs

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
