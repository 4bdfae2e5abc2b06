"""A turn is done when its proposal is stored: until then it comes again, and it never counts twice."""

import asyncio
import contextlib
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from mesh.agent import _executor as executor_module
from mesh.agent import _runtime as runtime_module
from mesh.agent.definition import Agent
from mesh.agent.turn import Turn
from mesh.bus.consumer import Message, Puller
from mesh.bus.streams import inbox_consumer
from mesh.errors import Disconnected
from mesh.ops import dead_letters
from protocol.wire import subjects
from protocol.wire.commands import Cancel
from protocol.wire.events import RequestCompleted
from protocol.wire.moves import Move
from tests.guard.stage import Stage, seed_directory
from tests.servers import PATIENCE_S, Child, child, eventually, until


@contextlib.asynccontextmanager
async def process(stage: Stage, behaviour: str) -> AsyncIterator[Child]:
    """Run an instance of `a` as a process of its own."""
    arguments = (stage.mesh.url, str(seed_directory(stage.mesh)), "a", behaviour, "10")
    async with child("tests.runtime.agent_process", *arguments) as other:
        yield other


class Gate:
    """A handler that says when it began, and ends when it is told."""

    def __init__(self) -> None:
        self.began: list[str] = []
        self.running = 0
        self.most = 0
        self.open = asyncio.Event()

    async def __call__(self, turn: Turn) -> Move:
        self.began.append(turn.request)
        self.running += 1
        self.most = max(self.most, self.running)
        try:
            await self.open.wait()
        finally:
            self.running -= 1
        return turn.complete("done")


@pytest.mark.parametrize("point", ["die-before-propose", "die-after-propose"])
async def test_a_killed_agents_turn_comes_again_and_has_one_successor(stage: Stage, point: str) -> None:
    client = await stage.client()
    async with process(stage, point) as doomed:
        request = await client.submit("hello")
        await doomed.line("began")
        assert await doomed.ended() == -signal.SIGKILL
    ran = Gate()
    ran.open.set()
    await stage.runtime(Agent("a", ran))
    outcome = await client.wait(request, timeout_s=PATIENCE_S)
    await until(lambda: ran.began == [request])
    await stage.drained("PROP")
    assert (outcome.answer == "done") == (point == "die-before-propose")
    assert await stage.types(request) == ["request.opened", "request.completed"]


async def test_heartbeats_keep_a_long_turn_from_being_delivered_again(stage: Stage) -> None:
    gate = Gate()
    await stage.runtime(Agent("a", gate))
    client = await stage.client()
    deliveries: list[int] = []

    async def forget(message: Message) -> None:
        deliveries.append(message.delivered)

    bus = await stage.bus("b")
    clock = Puller(bus, "LOG", inbox_consumer("b"), forget, slots=8, expires_s=0.5)
    await clock.start()
    kept = await client.submit("hello")
    await client.submit("hello", to="b")
    await until(lambda: max(deliveries, default=0) >= 5)  # four leases have gone by
    assert gate.began == [kept]
    gate.open.set()
    assert (await client.wait(kept, timeout_s=PATIENCE_S)).answer == "done"
    await clock.close()


async def test_no_more_turns_run_at_once_than_the_agent_says(stage: Stage) -> None:
    gate = Gate()
    await stage.runtime(Agent("a", gate, concurrency=3))
    client = await stage.client()
    requests = [await client.submit(f"hello {number}") for number in range(8)]
    await until(lambda: gate.running == 3)
    await eventually(lambda: _waiting(stage, 5))
    gate.open.set()
    assert {(await client.wait(request, timeout_s=PATIENCE_S)).status for request in requests} == {
        "completed"
    }
    assert gate.most == 3
    assert len(gate.began) == 8


async def _waiting(stage: Stage, count: int) -> bool:
    info = await (await stage.bus("admin")).api(f"CONSUMER.INFO.LOG.{inbox_consumer('a')}")
    return int(info["num_pending"]) == count


async def test_two_instances_share_the_work_and_each_turn_is_run_once(stage: Stage) -> None:
    gates = [Gate(), Gate()]
    for number, gate in enumerate(gates):
        await stage.runtime(Agent("a", gate, concurrency=4), use=str(number))
    client = await stage.client()
    requests = [await client.submit(f"hello {number}") for number in range(8)]
    await until(lambda: gates[0].running + gates[1].running == 8)
    for gate in gates:
        gate.open.set()
    for request in requests:
        await client.wait(request, timeout_s=PATIENCE_S)
    assert sorted(gates[0].began + gates[1].began) == sorted(requests)


async def test_an_event_of_anothers_inbox_is_put_aside_and_its_code_does_not_run(stage: Stage) -> None:
    """Even if its own consumer brings it: an agent works on what is addressed to it, and on nothing else.

    A process that dies before it gives the event up leaves a second letter to the next one.
    """
    admin, name, after = await stage.bus("admin"), inbox_consumer("a"), await stage.last_seq("DEAD")
    config = (await admin.api(f"CONSUMER.INFO.LOG.{name}"))["config"]
    wider = {"stream_name": "LOG", "config": config | {"filter_subject": "mesh.evt.*.*"}}
    await admin.api(f"CONSUMER.CREATE.LOG.{name}", wider)
    client = await stage.client()
    async with process(stage, "die-after-burying") as doomed:
        request = await client.submit("hello", to="b")
        await doomed.ended()
    gate = Gate()
    gate.open.set()
    await stage.runtime(Agent("a", gate))
    await stage.inbox_drained("a")
    letters = await stage.dead_letters("a", after=after)
    assert [(each.code, each.delivered) for each in letters] == [("protocol.malformed", n) for n in (1, 2)]
    assert letters[0].subject == subjects.evt("b", request)
    assert [each async for _, each in dead_letters.letters(admin, after + 1)] == letters[:1]
    assert gate.began == []
    await admin.api(f"CONSUMER.CREATE.LOG.{name}", {"stream_name": "LOG", "config": config})


# --- ends -----------------------------------------------------------------------------------------


async def test_a_turn_that_a_guard_ended_stops_while_it_runs(stage: Stage) -> None:
    gate = Gate()
    await stage.runtime(Agent("a", gate))
    client = await stage.client()
    request = await client.submit("hello")
    await until(lambda: gate.running == 1)
    await client.cancel(request)
    await until(lambda: gate.running == 0)
    await stage.inbox_drained("a")
    assert await stage.types(request) == ["request.opened", "request.cancelled"]


async def test_a_note_that_says_a_turn_is_over_is_not_believed_without_the_guards_own_step(
    stage: Stage,
) -> None:
    gate = Gate()
    runtime = await stage.runtime(Agent("a", gate))
    client = await stage.client()
    request = await client.submit("hello")
    await until(lambda: gate.running == 1)
    turn = next(iter(runtime._executor.running.rounds)).turn
    forged = b'{"request":"%s","ended":{"why":"x","turn":"%s","round":9}}'
    guard = await stage.bus("guard", "forger")
    await guard.publish(subjects.note("a", request), forged % (request.encode(), turn.encode()))
    heard = await stage.notices("a")
    await guard.publish(subjects.note("a", request), b'{"request":"last"}')
    await until(lambda: bool(heard))
    await until(lambda: not any(each.probes for each in runtime._executor.running.rounds.values()))
    assert gate.running == 1
    gate.open.set()
    assert (await client.wait(request, timeout_s=PATIENCE_S)).answer == "done"


async def test_a_turn_that_was_ended_while_nobody_ran_it_is_not_begun(stage: Stage) -> None:
    client = await stage.client()
    async with process(stage, "wait:/nowhere") as first:
        request = await client.submit("hello")
        await first.line(f"began {request}")
        first.signal(signal.SIGKILL)
        await first.ended()
    await stage.control(request, Cancel(id="x"))
    await client.wait(request, timeout_s=PATIENCE_S)
    await stage.drained("CTL")
    gate = Gate()
    await stage.runtime(Agent("a", gate))
    await stage.inbox_drained("a")
    assert gate.began == []


async def test_a_turn_that_was_ended_while_its_agent_was_busy_is_not_begun_however_young_it_is(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(executor_module, "FRESH_S", 3600.0)
    gate = Gate()
    runtime = await stage.runtime(Agent("a", gate, concurrency=1))
    client = await stage.client()
    first = await client.submit("hello")
    await until(lambda: gate.running == 1)
    second = await client.submit("hello")
    await client.cancel(second)
    opened, _ = await stage.reaches(second, "request.cancelled")
    await until(lambda: opened.id in runtime._executor.running.noted_ends)
    gate.open.set()
    await stage.inbox_drained("a")
    assert gate.began == [first]


# --- leaving --------------------------------------------------------------------------------------


async def test_sigterm_finishes_what_runs_and_exits_with_0(stage: Stage, tmp_path: Path) -> None:
    client, go = await stage.client(), tmp_path / "go"
    async with process(stage, f"wait:{go}") as first:
        request = await client.submit("hello")
        await first.line(f"began {request}")
        first.signal(signal.SIGTERM)
        await first.line("leaving")
        gate = Gate()
        await stage.runtime(Agent("a", gate))
        later = await client.submit("hello")
        await until(lambda: later in gate.began)  # the one that leaves takes no more
        go.touch()
        assert (await client.wait(request, timeout_s=PATIENCE_S)).answer == f"from process {first.pid}"
        assert await first.ended() == 0
    assert gate.began == [later]
    gate.open.set()
    await client.wait(later, timeout_s=PATIENCE_S)


async def test_what_takes_longer_than_the_grace_is_given_back_at_once(stage: Stage) -> None:
    gate, heir = Gate(), Gate()
    runtime = await stage.runtime(Agent("a", gate), use="leaving")
    client = await stage.client()
    request = await client.submit("hello")
    await until(lambda: gate.running == 1)
    admin = await stage.bus("admin")
    acked: list[bytes] = []
    await admin.subscribe("$JS.ACK.LOG.in-a.>", lambda message: acked.append(message.data))
    await stage.stop(runtime, grace_s=0.05)
    assert b"-NAK" in acked
    assert gate.running == 0
    heir.open.set()
    await stage.runtime(Agent("a", heir), use="heir")
    assert (await client.wait(request, timeout_s=PATIENCE_S)).answer == "done"


async def test_an_agent_that_is_told_to_end_while_it_starts_takes_no_turn(stage: Stage) -> None:
    gate = Gate()
    runtime = runtime_module.Runtime(await stage.bus("a", "early"), Agent("a", gate))
    task = asyncio.create_task(runtime.run())
    await runtime.drain(0.1)
    await asyncio.wait_for(task, PATIENCE_S)
    request = await (await stage.client()).submit("hello")
    await stage.reaches(request, "request.opened")
    assert gate.began == []


# --- trouble --------------------------------------------------------------------------------------


async def test_a_blocked_loop_loses_its_lease_and_harms_nothing(stage: Stage, tmp_path: Path) -> None:
    client, go = await stage.client(), tmp_path / "go"
    async with process(stage, f"block:{go}") as blocked:
        request = await client.submit("hello")
        await blocked.line(f"began {request}")
        gate = Gate()
        await stage.runtime(Agent("a", gate))
        await until(lambda: gate.began == [request])  # its lease has ended
        gate.open.set()
        outcome = await client.wait(request, timeout_s=PATIENCE_S)
        late = await stage.notices("a")
        go.touch()
        await until(lambda: any(notice.ended and notice.request == request for notice in late))
    assert outcome.answer == "done"
    assert await stage.types(request) == ["request.opened", "request.completed"]


async def test_a_broker_that_restarts_in_mid_turn_is_waited_for(stage: Stage) -> None:
    gate = Gate()
    await stage.runtime(Agent("a", gate))
    client = await stage.client()
    request = await client.submit("hello")
    await until(lambda: gate.running >= 1)
    await stage.mesh.server.kill()
    gate.open.set()
    await until(lambda: gate.running == 0)  # its move is there, and there is nobody to store it
    await stage.mesh.server.start()
    await stage.back()
    outcome = await client.wait(request, timeout_s=PATIENCE_S)
    assert isinstance(outcome.event, RequestCompleted)
    await stage.drained("PROP")


async def test_a_proposal_whose_fate_nobody_knows_is_stored_again(stage: Stage) -> None:
    gate = Gate()
    gate.open.set()
    bus = await stage.bus("a", "runtime")
    inner, tries = bus.publish_durable, list[str]()

    async def publish(subject: str, *rest: object, **more: object) -> object:
        ack = await inner(subject, *rest, **more)  # type: ignore[arg-type]
        if subject.startswith("mesh.prop.") and len(tries) < 2:
            tries.append(subject)
            raise Disconnected("stored, and nobody heard of it")
        return ack

    bus.publish_durable = publish  # type: ignore[method-assign, assignment]
    runtime = await stage.runtime(Agent("a", gate))
    runtime._executor._lane._close(PATIENCE_S)  # what a guard is asked has an answer, or is stored like this
    client = await stage.client()
    request = await client.submit("hello")
    assert (await client.wait(request, timeout_s=PATIENCE_S)).answer == "done"
    await until(lambda: len(tries) == 2)
    await stage.drained("PROP")
    assert await stage.types(request) == ["request.opened", "request.completed"]
