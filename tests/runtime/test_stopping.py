"""A turn that is to stop does so before its next effect or model call; an instance leaves in good order."""

import asyncio
import contextlib
from typing import Any

import msgspec
import pytest

from mesh.agent import Budget, Constraints, Tool, Turn, tool
from mesh.agent._attempts import Attempts
from mesh.agent._instance import RunningRounds
from mesh.agent._runtime import Runtime
from mesh.agent._steps import RoundKey
from mesh.agent.definition import Agent
from mesh.bus import consumer
from mesh.bus.stores import JetStreamSteps
from protocol.domain.ledger import fold
from protocol.wire import events
from protocol.wire.commands import Usage
from protocol.wire.moves import Move
from protocol.wire.records import Record
from tests.certain import is_, known
from tests.guard.stage import Stage
from tests.servers import PATIENCE_S, until


class Costly:
    """A model call and an effect, and how often they happened."""

    def __init__(self) -> None:
        self.asked = 0
        self.paid = 0

        @tool(effect="idempotent")
        async def pay(idempotency_key: str = "") -> None:
            """Pay."""
            self.paid += 1

        self.pay = pay

    async def ask(self, turn: Turn, prompt: str = "what now?") -> str:
        async def reply() -> str:
            self.asked += 1
            return "this"

        said, _ = await turn.model("m", prompt, reply, str, cost=lambda _: Usage(tokens=10, model_calls=1))
        return said


@pytest.mark.parametrize("heard", [True, False], ids=["told", "notice-lost"])
async def test_a_cancel_stops_a_turn_that_sleeps_between_its_steps(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, heard: bool
) -> None:
    if not heard:
        monkeypatch.setattr(RunningRounds, "on_note", lambda rounds, message: None)
    costly, asleep = Costly(), asyncio.Event()
    ended: list[str] = []

    async def sleepy(turn: Turn) -> Move:
        await costly.ask(turn)
        asleep.set()
        try:
            await asyncio.Event().wait()  # until somebody stops it
        except asyncio.CancelledError:
            ended.append("woken")
            raise
        return turn.complete(await costly.ask(turn, "and now?"))

    await stage.runtime(Agent("a", sleepy))
    client = await stage.client()
    request = await client.submit("hello")
    await asleep.wait()
    await client.cancel(request)
    await until(lambda: ended == ["woken"])
    await stage.inbox_drained("a")
    assert costly.asked == 1
    assert await stage.types(request) == ["request.opened", "request.cancelled"]


async def test_a_cancel_frees_a_turn_that_waits_for_an_effect_which_hangs(stage: Stage) -> None:
    hangs, left = asyncio.Event(), []

    @tool(effect="idempotent")
    async def hang() -> None:
        """Take for ever."""
        hangs.set()
        await asyncio.Event().wait()

    async def careless(turn: Turn) -> Move:
        left.append(asyncio.create_task(turn.call(hang)))
        await hangs.wait()
        return turn.complete("done, but for the effect")

    runtime = await stage.runtime(Agent("a", careless))
    client = await stage.client()
    request = await client.submit("hello")
    await hangs.wait()
    await client.cancel(request)
    await stage.inbox_drained("a")
    await until(lambda: runtime._executor.presence.handled == 1)
    assert await stage.types(request) == ["request.opened", "request.cancelled"]
    left[0].cancel()


@pytest.mark.parametrize("next_", ["model", "effect", "read"])
@pytest.mark.parametrize("brazen", [False, True], ids=["as-it-comes", "swallowed"])
async def test_a_cancel_whose_notice_was_lost_stops_the_turn_before_its_next_step(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, next_: str, brazen: bool
) -> None:
    monkeypatch.setattr(RunningRounds, "on_note", lambda rounds, message: None)
    costly, waits, go = Costly(), asyncio.Event(), asyncio.Event()
    read: list[str] = []

    @tool
    async def look() -> None:
        """Look at something."""
        read.append("looked")

    tools: dict[str, Tool] = {"effect": costly.pay, "read": look}

    async def deaf(turn: Turn) -> Move:
        await turn.remark("before")
        waits.set()
        await go.wait()
        for _ in range(2 if brazen else 1):
            try:
                await (costly.ask(turn) if next_ == "model" else turn.call(tools[next_]))
            except Exception:
                if not brazen:
                    raise
        return turn.complete("as if nothing had happened")

    await stage.runtime(Agent("a", deaf))
    client = await stage.client()
    request = await client.submit("hello")
    await waits.wait()
    await client.cancel(request)
    await stage.reaches(request, "request.cancelled")
    await stage.drained("CTL")
    proposed = await stage.last_seq("PROP")
    go.set()
    await stage.inbox_drained("a")
    assert (costly.asked, costly.paid, read) == (0, 0, [])
    assert await stage.types(request) == ["request.opened", "request.cancelled"]
    assert await stage.last_seq("PROP") == proposed


async def test_a_turn_without_budget_is_stopped_before_its_next_model_call(stage: Stage) -> None:
    costly = Costly()

    async def spends(turn: Turn) -> Move:
        for number in range(10):
            await costly.ask(turn, f"prompt {number}")
        return turn.complete("done")

    await stage.runtime(Agent("a", spends))
    constraints = Constraints(budget=Budget(tokens=30))
    request = await (await stage.client()).submit("hello", constraints=constraints)
    failed = is_((await stage.reaches(request, "turn.failed"))[1], events.TurnFailed)
    assert (failed.error.code, failed.error.permanent) == ("budget_exhausted", True)
    assert failed.error.message == "spent 30 of 30 tokens"
    assert failed.report.usage == Usage(tokens=30, model_calls=3)
    assert costly.asked == 3


async def test_what_a_round_cost_that_ran_out_of_time_is_reported_by_the_next(stage: Stage) -> None:
    costly = Costly()

    async def slow(turn: Turn) -> Move:
        if turn.round == 0:
            await costly.ask(turn)
            await asyncio.Event().wait()  # until somebody stops it
        return turn.complete(turn.execution.report.usage.tokens)

    await stage.runtime(Agent("a", slow))
    client = await stage.client()
    request = await client.submit("hello", policy="brisk")
    event: Any = (await client.wait(request, timeout_s=PATIENCE_S)).event
    assert isinstance(event, events.RequestCompleted)
    assert fold(await stage.log(request)).report_of(event).usage == Usage(tokens=10, model_calls=1)
    assert (event.answer, costly.asked) == (10, 1)


async def test_code_that_wraps_what_stops_it_proposes_nothing(stage: Stage) -> None:
    """An instance that lost its turn must not end it, whatever its code makes of the news."""
    began: list[int] = []

    async def wraps(turn: Turn) -> Move:
        began.append(turn.round)
        if len(began) == 1:
            store = turn.execution.journal.steps._store
            other = Record(kind="remark", version="0", nonce="other", at=0)
            await store.put(turn.request, turn.id, "0-0", msgspec.json.encode(other))
            try:
                await turn.remark("one")
            except Exception as error:
                raise ValueError("something else") from error
        return turn.complete("by the other one")

    await stage.runtime(Agent("a", wraps))
    client = await stage.client()
    request = await client.submit("hello")
    outcome = await client.wait(request, timeout_s=PATIENCE_S)  # it comes again when its lease has ended
    assert outcome.answer == "by the other one"
    assert await stage.types(request) == ["request.opened", "request.completed"]


async def test_a_turn_that_came_again_does_not_keep_an_instance_from_leaving_while_the_bus_is_away(
    stage: Stage,
) -> None:
    began: list[int] = []

    async def endless(turn: Turn) -> Move:
        began.append(turn.round)
        await asyncio.Event().wait()
        raise AssertionError("nobody sets it")

    await stage.guard()
    client = await stage.client()
    async with stage.mesh.connected_as("a") as bus:
        first = Runtime(bus, Agent("a", endless))
        running = asyncio.create_task(first.run())
        await client.submit("hello")
        await until(lambda: len(began) == 1)
        await first.drain(0.0)  # given back, so that the next delivery is not the first
        running.cancel()
        second = Runtime(bus, Agent("a", endless))
        again = asyncio.create_task(second.run())
        await until(lambda: len(began) == 2)
        await stage.mesh.server.kill()
        async with asyncio.timeout(PATIENCE_S):
            await second.drain(0.1)
        again.cancel()
        await asyncio.gather(running, again, return_exceptions=True)
        await stage.mesh.server.start()
        await until(lambda: bus.connected)  # another test closes a connection that is about to come back
    await stage.back()


async def test_code_that_swallows_its_cancellation_does_not_keep_an_instance_from_leaving(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(consumer, "_CLEANUP_S", 0.05)
    swallowed: list[int] = []

    async def deaf(turn: Turn) -> Move:
        swallowed.append(turn.round)
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.Event().wait()
        await asyncio.Event().wait()
        raise AssertionError("nobody sets it")

    await stage.guard()
    client = await stage.client()
    async with stage.mesh.connected_as("a") as bus:
        runtime = Runtime(bus, Agent("a", deaf))
        running = asyncio.create_task(runtime.run())
        request = await client.submit("hello")
        await until(lambda: len(swallowed) == 1)
        async with asyncio.timeout(PATIENCE_S):
            await runtime.drain(0.0)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

    async def quick(turn: Turn) -> Move:
        return turn.complete("by another")

    await stage.runtime(Agent("a", quick))
    assert (await client.wait(request, timeout_s=PATIENCE_S)).answer == "by another"
    assert await stage.types(request) == ["request.opened", "request.completed"]


async def test_a_turn_that_was_stopped_leaves_its_task_as_it_was(stage: Stage) -> None:
    """Its code runs in the task of its delivery, whose next steps nobody has cancelled."""
    started, left = asyncio.Event(), []

    async def sleepy(turn: Turn) -> Move:
        task = asyncio.current_task()
        left.append(known(task))
        started.set()
        await asyncio.Event().wait()
        raise AssertionError("nobody sets it")

    await stage.runtime(Agent("a", sleepy))
    client = await stage.client()
    request = await client.submit("hello")
    await started.wait()
    await client.cancel(request)
    await stage.inbox_drained("a")
    await until(left[0].done)
    assert not left[0].cancelled()
    assert left[0].cancelling() == 0


async def test_a_round_that_was_given_back_is_no_crash(stage: Stage) -> None:
    async with stage.mesh.connected_as("a") as bus:
        for _ in range(8):
            request = "c1_01ARZ3NDEKTSV4RRFFQ69G5FAV"
            attempt = Attempts(JetStreamSteps(bus, "a"), RoundKey("a", request, "t", 0))
            assert not await attempt.is_crash_loop()
            await attempt.given_back()
