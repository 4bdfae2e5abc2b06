"""A word that was stored in time counts, however long no guard was there to read it."""

from typing import Any

import msgspec
import pytest

from protocol.wire import events, subjects
from protocol.wire.commands import OfferClaimed, ReplyToAsk
from protocol.wire.config import Policy
from protocol.wire.ids import AgentName
from protocol.wire.moves import Ask, Complete, Delegate, Task
from tests.certain import is_, known
from tests.guard.stage import Stage, wall_clock_us
from tests.guard.test_swarm import FURNISHED  # noqa: F401  # the server is furnished with it
from tests.servers import PATIENCE_S, eventually, until

SOON = Policy(name="soon", deadline_s=3.0)
CLAIMED = Policy(name="claimed", topology="swarm", claim_within_s=2.0)


async def write(stage: Stage, policy: Policy) -> None:
    admin = await stage.bus("admin")
    await admin.publish_durable(subjects.policy(policy.name), msgspec.json.encode(policy))


async def over(stage: Stage, request: str) -> None:
    """Wait until the request's timer has fired, with no guard to hear it."""

    async def fired() -> bool:
        return await stage.schedule(request) is None

    await eventually(fired)


async def asked(
    stage: Stage, expires_s: float, *, of: str = "c1", **effect: Any
) -> tuple[str, events.TurnSuspended]:
    """Return a request whose client, or a person, is asked, and then no guard runs any more."""
    guard = await stage.guard("first")
    client, a = await stage.client(), await stage.actor("a", served=True)
    request = await client.submit("hello")
    question = Ask(to_agent=AgentName(of), question="which one?", expires_s=expires_s, **effect)
    await a.propose(request, await a.work(request), question)
    suspended = await stage.reached(request, events.TurnSuspended)
    await stage.dismiss(guard)
    return request, suspended


def reply(to: events.TurnSuspended, value: object = "the red one") -> ReplyToAsk:
    return ReplyToAsk(id="in-time", turn=to.turn, round=to.round, value=value)


async def test_a_reply_in_time_counts_when_the_first_guard_comes_back_after_its_time(stage: Stage) -> None:
    request, suspended = await asked(stage, 4.0)
    await stage.control(request, reply(suspended), "c1")
    await over(stage, request)
    await stage.guard("second")
    resumed = is_((await stage.reaches(request, "turn.resumed"))[-1], events.TurnResumed)
    assert resumed.work.past[-1].reply == "the red one"


@pytest.mark.parametrize("of", ["human", "c1"])
async def test_an_approval_in_time_counts_when_the_first_guard_comes_back_after_its_time(
    stage: Stage, of: str
) -> None:
    request, suspended = await asked(stage, 4.0, of=of, action="pay", digest="0" * 64)
    await stage.control(request, reply(suspended, value=True), "op" if of == "human" else of)
    await over(stage, request)
    await stage.guard("second")
    resumed = is_((await stage.reaches(request, "turn.resumed"))[-1], events.TurnResumed)
    assert (resumed.work.past[-1].how, resumed.work.past[-1].reply) == ("replied", True)


async def test_a_timer_that_comes_first_leaves_the_end_to_what_was_said_before_it(stage: Stage) -> None:
    request, suspended = await asked(stage, 3600.0)
    await stage.control(request, reply(suspended), "c1")
    await (await stage.processor(now=lambda: suspended.expires_at + 1)).wake(request)
    assert (await stage.types(request))[-1] == "turn.suspended"
    assert await stage.schedule(request) is not None  # it is looked at again
    await stage.guard("second")
    resumed = is_((await stage.reaches(request, "turn.resumed"))[-1], events.TurnResumed)
    assert resumed.work.past[-1].reply == "the red one"


async def test_a_reply_that_came_too_late_postpones_nothing(stage: Stage) -> None:
    request, suspended = await asked(stage, 0.5)
    await until(lambda: wall_clock_us() > suspended.expires_at)
    await stage.control(request, reply(suspended), "c1")
    await (await stage.processor()).wake(request)
    resumed = is_((await stage.log(request))[-1], events.TurnResumed)
    assert resumed.work.past[-1].how == "expired"
    await stage.guard("second")
    await stage.drained("CTL")
    assert (await stage.types(request))[-1] == "turn.resumed"


async def test_an_answer_before_the_deadline_completes_the_request_after_it(stage: Stage) -> None:
    await write(stage, SOON)
    guard = await stage.guard("first")
    client, a = await stage.client(), await stage.actor("a", served=True)
    answered, silent = [await client.submit(text, policy="soon") for text in ("answered", "silent")]
    work = await a.work(answered)
    await stage.reaches(silent, "request.opened")
    await stage.dismiss(guard)
    await a.propose(answered, work, Complete(answer="done"))
    for request in (answered, silent):
        await over(stage, request)
    await stage.guard("second")
    assert (await client.wait(answered, timeout_s=PATIENCE_S)).answer == "done"
    assert (await client.wait(silent, timeout_s=PATIENCE_S)).status == "expired"
    log = await stage.log(answered)
    assert log[-1].at > is_(log[0], events.RequestOpened).deadline


async def test_an_offer_claimed_in_time_is_given_out_after_it(stage: Stage) -> None:
    await write(stage, CLAIMED)
    guard = await stage.guard("first")
    client, a = await stage.client(), await stage.actor("a", served=True)
    b = await stage.actor("b", served=True)
    request = await client.submit("hello", policy="claimed")
    plan = Delegate(tasks=(Task(name="one", summary="one", intent="read"),))
    await a.propose(request, await a.work(request), plan)
    offered = await stage.reached(request, events.TaskOffered)
    await stage.dismiss(guard)
    await b.say(request, OfferClaimed(turn=offered.offer.turn, round=0))
    await over(stage, request)
    await stage.guard("second")
    assert (await stage.reached(request, events.TaskOpened)).to == "b"
    assert "task.failed" not in await stage.types(request)


async def test_the_time_to_claim_stands_while_guards_and_readers_are_away(stage: Stage) -> None:
    await write(stage, CLAIMED)
    guard = await stage.guard("first")
    client, a = await stage.client(), await stage.actor("a", served=True)
    request = await client.submit("hello", policy="claimed")
    plan = Delegate(tasks=(Task(name="one", summary="one", intent="read"),))
    await a.propose(request, await a.work(request), plan)
    offered = await stage.reached(request, events.TaskOffered)
    await stage.dismiss(guard)
    await over(stage, request)
    await (await stage.processor()).wake(request)
    assert (await stage.types(request))[-1] == "task.offered"
    assert await stage.schedule(request) is not None  # it is looked at again
    b = await stage.actor("b", served=True)
    await stage.guard("second")
    await b.say(request, OfferClaimed(turn=offered.offer.turn, round=0))
    assert (await stage.reached(request, events.TaskOpened)).to == "b"


async def test_an_offer_that_served_readers_leave_alone_is_unclaimed(stage: Stage) -> None:
    await write(stage, CLAIMED)
    await stage.guard()
    client, a = await stage.client(), await stage.actor("a", served=True)
    await stage.actor("b", served=True)
    request = await client.submit("hello", policy="claimed")
    plan = Delegate(tasks=(Task(name="one", summary="one", intent="read"),))
    await a.propose(request, await a.work(request), plan)
    failed = await stage.reached(request, events.TaskFailed)
    assert failed.error.code == "unclaimed"
    seen = known(failed.grounds)
    assert seen.served
    assert failed.at >= known(seen.served_since) + 2_000_000
