"""The circuit breaker on a real bus: who counts, who is refused, who gets the trial, what is recorded."""

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest
import pytest_asyncio

from mesh.guard.availability import Breakers
from mesh.guard.service import Guard
from protocol.domain.breaker import CLOSED, Permit
from protocol.domain.ledger import fold
from protocol.wire import events, subjects
from protocol.wire.commands import Failure, ReportFailure, Resolve
from protocol.wire.config import BreakerEntry, BreakerRules, Fleet
from protocol.wire.handoff import Constraints, Rule
from protocol.wire.ids import AgentName, Cause, RequestId
from protocol.wire.moves import Complete, Transfer
from tests.certain import is_, known
from tests.guard.stage import FLEET, Stage, furnished_mesh, human_turn, staged
from tests.logs import captured_logs, said
from tests.servers import PATIENCE_S, eventually, until

OPEN_S, TRIAL_S = 300.0, 900.0
FURNISHED: Fleet = msgspec.structs.replace(
    FLEET, breaker=BreakerRules(failures=3, window_s=600.0, open_s=OPEN_S, trial_s=TRIAL_S)
)
B = AgentName("b")
DONE = Complete(answer="done")


class Clock:
    """The time, and what a test adds to it."""

    def __init__(self) -> None:
        self.ahead_s = 0.0

    def __call__(self) -> int:
        return time.time_ns() // 1000 + round(self.ahead_s * 1e6)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest_asyncio.fixture
async def guard(stage: Stage, clock: Clock) -> AsyncIterator[Guard]:
    admin = await stage.bus("admin")
    yield await stage.guard("one", now=clock)
    for name in FLEET.agents:
        await admin.api("STREAM.PURGE.CONF", {"filter": subjects.breaker(name)})


async def fail(stage: Stage, code: str = "boom", *, permanent: bool = False, policy: str = "strict") -> str:
    """Let a turn of `b` fail; return the request."""
    client, b = await stage.client(), await stage.actor("b")
    request = await client.submit("hello", to="b", policy=policy)
    work = await b.work(request)
    error = Failure(code=code, permanent=permanent)
    await b.say(request, ReportFailure(turn=work.turn, round=0, error=error))
    await stage.reaches(request, "turn.failed")
    return request


async def entry(stage: Stage) -> BreakerEntry:
    found = await (await stage.bus("admin")).request(f"$JS.API.DIRECT.GET.CONF.{subjects.breaker('b')}")
    return CLOSED if found.status else msgspec.json.decode(found.data, type=BreakerEntry)


async def becomes(stage: Stage, state: str) -> BreakerEntry:
    async def there() -> bool:
        return (await entry(stage)).state == state

    await eventually(there)
    return await entry(stage)


async def open_it(stage: Stage) -> BreakerEntry:
    for _ in range(3):
        await fail(stage)
    return await becomes(stage, "open")


async def first(stage: Stage, request: str) -> events.AnyEvent:
    """Return how a submit was decided."""

    async def there() -> bool:
        return bool(await stage.types(request))

    await eventually(there)
    decided = (event for event in await stage.log(request) if not isinstance(event, events.FactsWithheld))
    return next(decided)


async def submitted(stage: Stage) -> events.RequestOpened | events.RequestRefused:
    event = await first(stage, await (await stage.client()).submit("hello", to="b"))
    assert isinstance(event, events.RequestOpened | events.RequestRefused)
    return event


async def test_work_for_an_agent_that_fails_is_refused_and_goes_to_another(
    stage: Stage, guard: Guard
) -> None:
    client, a, c = await stage.client(), await stage.actor("a"), await stage.actor("c")
    with captured_logs() as lines:
        opened = await open_it(stage)
        await until(lambda: guard._context.breakers.state("b") == "open")
        await said(lines, "breaker_opened")
    assert [line["agent"] for line in lines if line["event"] == "breaker_opened"] == ["b"]
    request = await client.submit("hello")
    work = await a.work(request)
    await a.propose(request, work, Transfer(to_agent=B, summary="please"))
    refused = await stage.reached(request, events.MoveRefused)
    assert opened.opened_at is not None
    until_us = opened.opened_at + round(OPEN_S * 1e6)
    assert refused.refusal.rule == Rule.AGENT_AVAILABLE
    assert refused.refusal.numbers == {"target": "b", "since": opened.opened_at, "until": until_us}
    grounds = refused.grounds
    assert (grounds.breaker, grounds.breaker_since, grounds.breaker_until) == (
        "open",
        opened.opened_at,
        until_us,
    )
    again = await a.work(request, round_=1)
    await a.propose(request, again, Transfer(to_agent=AgentName("c"), summary="please"))
    await c.propose(request, await c.work(request), DONE)
    assert (await client.wait(request, timeout_s=PATIENCE_S)).status == "completed"


async def test_failures_that_are_about_the_request_do_not_count(stage: Stage, guard: Guard) -> None:
    for _ in range(4):
        await fail(stage, permanent=True)
    assert isinstance(await submitted(stage), events.RequestOpened)
    assert await entry(stage) == CLOSED


async def test_retries_go_on_and_people_are_not_refused_while_it_is_open(stage: Stage, guard: Guard) -> None:
    client, b = await stage.client(), await stage.actor("b")
    waiting = await client.submit("hello", to="b", policy="eager")
    work = await b.work(waiting)
    failed = await fail(stage)
    await fail(stage)
    await b.say(waiting, ReportFailure(turn=work.turn, round=0, error=Failure(code="boom")))
    await becomes(stage, "open")
    await b.propose(waiting, await b.work(waiting, round_=1), DONE)
    assert (await client.wait(waiting, timeout_s=PATIENCE_S)).status == "completed"
    human = human_turn(await stage.reaches(failed, "escalation.raised"))
    await stage.control(failed, Resolve(id="r1", by="kim", turn=human.work.turn))
    await stage.reaches(failed, "escalation.resolved")
    await b.propose(failed, await b.work(failed, nth=1), DONE)
    assert (await client.wait(RequestId(failed), timeout_s=PATIENCE_S)).status == "completed"
    assert (await entry(stage)).state == "open"


async def test_one_is_let_through_on_trial_and_its_success_closes(
    stage: Stage, guard: Guard, clock: Clock
) -> None:
    client, b = await stage.client(), await stage.actor("b")
    await open_it(stage)
    clock.ahead_s = OPEN_S + 1
    tried = is_(await submitted(stage), events.RequestOpened)
    assert tried.grounds.breaker == "half_open"
    other = is_(await submitted(stage), events.RequestRefused)
    grounds = fold(await stage.log(other.request)).grounds_of(other)
    assert known(grounds).breaker_until is not None
    with captured_logs() as lines:
        await b.propose(tried.request, await b.work(tried.request), DONE)
        assert (await client.wait(tried.request, timeout_s=PATIENCE_S)).status == "completed"
        assert await becomes(stage, "closed") == CLOSED
        await said(lines, "breaker_closed")
    third = is_(await submitted(stage), events.RequestOpened)
    assert third.grounds.breaker == "closed"


async def test_a_trial_that_fails_opens_it_anew(stage: Stage, guard: Guard, clock: Clock) -> None:
    before = await open_it(stage)
    clock.ahead_s = OPEN_S + 1
    await fail(stage)
    after = await becomes(stage, "open")
    assert known(after.opened_at) >= known(before.opened_at) + OPEN_S * 1e6
    assert isinstance(await submitted(stage), events.RequestRefused)


async def test_a_trial_that_another_rule_refuses_is_given_back(
    stage: Stage, guard: Guard, clock: Clock
) -> None:
    client, a = await stage.client(), await stage.actor("a")
    await open_it(stage)
    request = await client.submit("hello")
    work = await a.work(request)
    clock.ahead_s = OPEN_S + 1
    late = Constraints(deadline=2 * clock())
    await a.propose(request, work, Transfer(to_agent=B, summary="please", constraints=late))
    refused = await stage.reached(request, events.MoveRefused)
    assert (refused.refusal.rule, refused.grounds.breaker) == (Rule.CONSTRAINTS, "half_open")
    await stage.drained()
    assert (await entry(stage)).trial is None
    assert isinstance(await submitted(stage), events.RequestOpened)


async def test_a_trial_whose_request_is_called_off_is_given_back(
    stage: Stage, guard: Guard, clock: Clock
) -> None:
    await open_it(stage)
    clock.ahead_s = OPEN_S + 1
    tried = await submitted(stage)
    await (await stage.client()).cancel(tried.request)
    await stage.reaches(tried.request, "request.cancelled")
    await stage.drained()
    assert (await entry(stage)).trial is None


async def test_guards_that_race_for_it_agree_on_one(stage: Stage, guard: Guard, clock: Clock) -> None:
    """Each with a copy that was right before the others wrote."""
    await open_it(stage)
    clock.ahead_s = OPEN_S + 1
    racing = []
    for number in range(8):
        bus = await stage.bus("guard", f"racer{number}")
        racing.append(Breakers(bus, lambda _: FURNISHED.breaker, clock))
        await racing[-1].read("b")
    uses = await asyncio.gather(
        *(each.ask(B, Cause(f"cause-{number}")) for number, each in enumerate(racing))
    )
    assert sorted(use.state for use in uses) == ["half_open"] + 7 * ["open"]
    (winner,) = [number for number, use in enumerate(uses) if use.state == "half_open"]
    for each in racing:  # the same message heard again, by whomever, has the trial that it had
        await each.read("b")
        assert (await each.ask(B, Cause(f"cause-{winner}"))).state == "half_open"


async def test_failures_counted_at_the_same_time_are_all_counted(stage: Stage, guard: Guard) -> None:
    await stage.client(), await stage.actor("b")
    await asyncio.gather(*(fail(stage) for _ in range(3)))
    await becomes(stage, "open")


async def test_an_entry_that_cannot_be_written_stops_no_decision(tmp_path: Path, clock: Clock) -> None:
    async with furnished_mesh(tmp_path, FURNISHED) as mesh, staged(mesh) as own:
        admin = await own.bus("admin")
        await own.ready(await own.guard("one", now=clock))
        config = (await admin.api("STREAM.INFO.CONF"))["config"]
        state = (await admin.api("STREAM.INFO.CONF"))["state"]
        full = {**config, "max_bytes": state["bytes"], "discard": "new"}
        await admin.api("STREAM.UPDATE.CONF", full)
        with captured_logs() as lines:
            for _ in range(4):
                await fail(own)
        assert [line["event"] for line in lines].count("breaker_not_written") == 1
        assert isinstance(await submitted(own), events.RequestOpened)
        await admin.api("STREAM.UPDATE.CONF", config)
        for _ in range(3):
            await fail(own)
        await becomes(own, "open")


async def test_one_that_was_opened_by_hand_stays_open_until_it_is_closed_by_hand(
    stage: Stage, guard: Guard, clock: Clock
) -> None:
    admin = await stage.bus("admin")
    await admin.publish_durable(subjects.breaker("b"), b'{"state":"open"}')
    await until(lambda: guard._context.breakers.state("b") == "open")
    clock.ahead_s = 3000
    assert isinstance(await submitted(stage), events.RequestRefused)
    await admin.publish_durable(subjects.breaker("b"), b"{}")
    await until(lambda: guard._context.breakers.state("b") == "closed")
    assert isinstance(await submitted(stage), events.RequestOpened)


@pytest.mark.parametrize(
    "body", [b"?", b'{"state":"open","opened_at":-1}', b'{"state":"open","opened_at":9000000000000000000}']
)
async def test_an_entry_that_cannot_be_read_is_taken_for_open_until_a_trial_writes_it_anew(
    stage: Stage, guard: Guard, clock: Clock, body: bytes
) -> None:
    admin, b = await stage.bus("admin"), await stage.actor("b")
    await admin.publish_durable(subjects.breaker("b"), body)
    await until(lambda: guard._context.breakers.state("b") == "open")
    refused = is_(await submitted(stage), events.RequestRefused)
    assert refused.refusal.rule == "agent_available"
    clock.ahead_s = OPEN_S + 1
    tried = is_(await submitted(stage), events.RequestOpened)
    assert (await entry(stage)).state == "half_open"
    await b.propose(tried.request, await b.work(tried.request), DONE)
    await becomes(stage, "closed")


async def test_an_unknown_agent_has_no_breaker(stage: Stage, guard: Guard) -> None:
    assert await guard._context.breakers.ask(AgentName("nobody"), "c") == Permit("closed")
