"""A turn whose process dies goes on where its journal ends: nothing is lost, nothing done twice."""

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TypeVar

import msgspec
import pytest
import pytest_asyncio

from mesh.bus.event_log import JetStreamLog
from mesh.bus.roles import GET
from mesh.client import Client, Outcome
from mesh.guard.service import Guard
from mesh.replay.rejudge import rejudge
from mesh.service.failpoints import VARIABLE
from mesh.testing import EmbeddedBus
from protocol.domain.ledger import fold
from protocol.wire import codec, events
from protocol.wire.commands import ReplyToAsk, Settle, Usage
from protocol.wire.config import Policy
from protocol.wire.event import Event
from protocol.wire.events import AnyEvent
from protocol.wire.subjects import end, policy, step
from tests.certain import is_, known
from tests.drill.failpoints import arm, claims
from tests.servers import FLEET, PATIENCE_S, eventually, until

SCRIPT = Path(__file__).with_name("agent_process.py")
LEASE_S = 3.0
"""Shorter than by default: these tests kill often. On a busy machine a shorter one ends while a turn runs."""
E = TypeVar("E", bound=Event)
pytestmark = pytest.mark.asyncio(loop_scope="module")


class Stage:
    """A mesh with one guard and one agent that is started anew whenever it dies."""

    def __init__(self, mesh: EmbeddedBus, ledger: Path) -> None:
        self.mesh, self.ledger = mesh, ledger
        self.version = "1"
        self.started = 0
        """Processes so far, the one with which the test began among them."""
        self.failpoints = ledger.with_suffix(".failpoints")
        self.failpoints.mkdir()
        self.environment = {**os.environ, "LEDGER": str(ledger), VARIABLE: str(self.failpoints)}
        self.process: asyncio.subprocess.Process | None = None

    @property
    def world(self) -> list[str]:
        return self.ledger.read_text().splitlines() if self.ledger.exists() else []

    def forget(self) -> None:
        """Begin anew with the process that runs, and with nobody who has died."""
        self.started = 1
        for file in (self.ledger, self.ledger.with_suffix(".died"), *self.failpoints.iterdir()):
            file.unlink(missing_ok=True)

    async def keep_alive(self) -> None:
        while True:
            self.started += 1
            self.process = process = await asyncio.create_subprocess_exec(
                sys.executable,
                str(SCRIPT),
                self.mesh.url,
                self.mesh.keys["a"].seed,
                self.version,
                env=self.environment,
                cwd=SCRIPT.parents[2],
            )
            try:
                await process.wait()
            except asyncio.CancelledError:  # `self.process` may be another one, which somebody else keeps
                with contextlib.suppress(ProcessLookupError):
                    process.kill()
                await process.wait()
                raise

    async def last(self, request: str, kind: type[E]) -> E:
        """Return the request's last event, once it is of this kind."""
        async with asyncio.timeout(PATIENCE_S):
            while True:
                happened = await self.events(request)
                if happened and isinstance(happened[-1], kind):
                    return happened[-1]
                await asyncio.sleep(0.05)

    async def happens(self, request: str, kind: type[E]) -> E:
        """Return the request's first event of this kind, once there is one."""
        async with asyncio.timeout(PATIENCE_S):
            while True:
                for event in await self.events(request):
                    if isinstance(event, kind):
                        return event
                await asyncio.sleep(0.05)

    async def journaled(self, request: str, turn: str, name: str) -> None:
        """Return once a step is in the journal."""
        async with self.mesh.connected_as("audit") as bus:

            async def stored() -> bool:
                return not (await bus.request(f"{GET}STEPS-a.{step('a', request, turn, name)}")).status

            await eventually(stored, PATIENCE_S)

    async def events(self, request: str) -> list[AnyEvent]:
        async with self.mesh.connected_as("audit") as bus:
            stored = await JetStreamLog(bus).read(request)
        if stored:  # else nobody has decided the submit yet
            found = rejudge([each.data for each in stored])
            assert found.same, found
        return [codec.decode_event(each.data) for each in stored]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def played(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stage]:
    directory = tmp_path_factory.mktemp("durable")
    async with EmbeddedBus(msgspec.structs.replace(FLEET, lease_s=LEASE_S), directory) as mesh:
        async with mesh.connected_as("admin") as admin:
            await admin.publish_durable(policy("default"), codec.encode(Policy()))
        made = Stage(mesh, directory / "ledger")
        async with mesh.connected_as("guard") as bus:
            guard = asyncio.create_task(Guard(bus, identity="g").run())
            agent = asyncio.create_task(made.keep_alive())
            await until(lambda: made.started == 1)
            yield made
            for task in (agent, guard):
                task.cancel()
            await asyncio.gather(agent, guard, return_exceptions=True)
        await mesh.server.kill()


@pytest.fixture
def stage(played: Stage) -> Stage:
    """Give the module's mesh, with a world in which nothing has happened."""
    played.forget()
    return played


async def run(stage: Stage, *script: str) -> tuple[Outcome, list[AnyEvent]]:
    async with stage.mesh.connected_as("c1") as bus:
        client = await Client.on(bus, "c1")
        request = await client.submit("go", to="a", facts={"script": list(script)})
        outcome = await client.wait(request, timeout_s=PATIENCE_S)
        return outcome, await stage.events(request)


async def test_what_was_journaled_before_the_process_died_is_not_done_again(stage: Stage) -> None:
    outcome, _ = await run(stage, "look one", "pay two", "die here", "look three")
    assert stage.started == 2
    assert [line.split()[0] for line in stage.world] == ["look", "pay", "look"]
    assert outcome.answer[0] == "one"
    assert outcome.answer[2] == "three"


async def test_an_idempotent_effect_is_run_again_under_the_same_key(stage: Stage) -> None:
    outcome, _ = await run(stage, "pay one!", "look two")
    assert stage.started == 2
    assert len(stage.world) == 3
    assert stage.world[0] == stage.world[1] == f"pay {outcome.answer[0]}"


async def test_a_reconcilable_effect_that_happened_is_found_and_not_run_again(stage: Stage) -> None:
    outcome, _ = await run(stage, "ship one!", "look two")
    assert stage.started == 2
    assert stage.world == [f"ship {outcome.answer[0]}", "look two"]


async def test_an_effect_that_knows_no_key_is_in_doubt_until_a_person_settles_it(stage: Stage) -> None:
    async with stage.mesh.connected_as("c1") as bus, stage.mesh.connected_as("op") as operator:
        client = await Client.on(bus, "c1")
        request = await client.submit("go", to="a", facts={"script": ["look one", "call two!", "look three"]})
        doubt = await stage.last(request, events.EffectDoubted)
        assert doubt.effect.action == "call"
        settle = Settle(id="s", turn=doubt.turn, round=doubt.round, outcome="done", result="by hand")
        await (await Client.on(operator, "op")).control(request, settle)
        outcome = await client.wait(request, timeout_s=PATIENCE_S)
    assert outcome.answer == ["one", "by hand", "three"]
    assert stage.world == ["look one", "call two!", "look three"]


async def test_a_round_after_a_refusal_takes_over_what_was_done(stage: Stage) -> None:
    outcome, happened = await run(stage, "look one", "pay two", "refused", "look three")
    assert any(isinstance(event, events.MoveRefused) for event in happened)
    assert [line.split()[0] for line in stage.world] == ["look", "pay", "look"]
    assert outcome.status == "completed"


async def test_a_turn_that_kills_its_process_again_and_again_is_given_to_a_person_with_its_bill(
    stage: Stage,
) -> None:
    async with stage.mesh.connected_as("c1") as bus:
        client = await Client.on(bus, "c1")
        request = await client.submit("go", to="a", facts={"script": ["model one", "crash"]})
        raised = await stage.last(request, events.EscalationRaised)
    assert raised.reason == "crash_loop"
    assert stage.world == ["model one", *["crash"] * 6]
    failed = next(event for event in await stage.events(request) if isinstance(event, events.TurnFailed))
    assert failed.error.code == "crash_loop"
    assert failed.report.usage == Usage(tokens=10, model_calls=1)


async def test_a_frozen_process_that_wakes_up_is_fenced_before_it_does_anything(stage: Stage) -> None:
    async with stage.mesh.connected_as("c1") as bus:
        client = await Client.on(bus, "c1")
        request = await client.submit("go", to="a", facts={"script": ["look one", "slow 2", "pay two"]})
        opened = await stage.last(request, events.RequestOpened)
        await stage.journaled(request, opened.work.turn, "0-0")
        frozen = known(stage.process)
        frozen.send_signal(signal.SIGSTOP)
        other = asyncio.create_task(stage.keep_alive())
        try:
            outcome = await client.wait(request, timeout_s=PATIENCE_S)
            frozen.send_signal(signal.SIGCONT)
            again = await client.submit("go", to="a", facts={"script": ["look last"]})
            await client.wait(again, timeout_s=PATIENCE_S)
        finally:
            other.cancel()
            await asyncio.gather(other, return_exceptions=True)
    assert outcome.status == "completed"
    assert [line.split()[0] for line in stage.world].count("pay") == 1
    assert stage.world.count("look one") == 1
    await stage.events(request)


@pytest.mark.parametrize("steps", [1, 2])
async def test_a_frozen_process_that_wakes_up_does_nothing_for_a_turn_that_ended_meanwhile(
    stage: Stage, steps: int
) -> None:
    """It froze when a step was stored, and had found just then that the turn goes on."""
    arm(stage.failpoints, "step.recorded", passes=steps - 1, do="stop")
    async with stage.mesh.connected_as("c1") as bus, stage.mesh.connected_as("audit") as audit:
        client = await Client.on(bus, "c1")
        request = await client.submit("go", to="a", facts={"script": ["drive"]})
        await until(lambda: bool(claims(stage.failpoints)))
        opened = (await stage.events(request))[0]
        await client.cancel(request)
        ended = f"{GET}ENDS.{end('a', request, known(opened.work).turn)}"

        async def is_told() -> bool:
            return not (await audit.request(ended)).status

        await eventually(is_told)
        os.kill(claims(stage.failpoints)[0].pid, signal.SIGCONT)
        again = await client.submit("go", to="a", facts={"script": ["look last"]})
        await client.wait(again, timeout_s=PATIENCE_S)
    assert stage.world == [*["model", "look up"][:steps], "look last"]


async def test_what_code_made_of_a_round_outlives_the_process_that_made_it(stage: Stage) -> None:
    """Though each process would make another text, the model is told the first one."""
    outcome, _ = await run(stage, "made")
    assert (outcome.answer, stage.started) == ("done", 2)
    first, looked, died, again = stage.world
    assert looked == "look up"
    assert first.startswith("model of ")
    assert first == died == again


# --- approvals ------------------------------------------------------------------------------------


async def approved(stage: Stage, *script: str) -> Outcome:
    """Run a request, say yes to its approval, which is asked for once, and return what came of it."""
    async with stage.mesh.connected_as("c1") as bus, stage.mesh.connected_as("op") as operator:
        client, people = await Client.on(bus, "c1"), await Client.on(operator, "op")
        request = await client.submit("go", to="a", facts={"script": list(script)})
        asked = await stage.happens(request, events.TurnSuspended)
        reply = ReplyToAsk(id="yes", by="Ada", turn=asked.turn, round=asked.round, value=True)
        await people.control(request, reply)
        if any(step.startswith("post") and step.endswith("!") for step in script):
            doubt = await stage.last(request, events.EffectDoubted)
            settle = Settle(id="s", turn=doubt.turn, round=doubt.round, outcome="not_done")
            await people.control(request, settle)
        outcome = await client.wait(request, timeout_s=PATIENCE_S)
    happened = await stage.events(request)
    assert [type(event) for event in happened].count(events.TurnSuspended) == 1
    return outcome


async def test_a_yes_outlives_the_process_that_was_to_act_on_it(stage: Stage) -> None:
    outcome = await approved(stage, "look one", "die-approved here", "wire two", "look three")
    assert stage.started == 2
    assert stage.world == ["look one", f"wire {outcome.answer[1]}", "look three"]


async def test_an_approved_effect_that_died_half_way_keeps_its_yes_and_its_key(stage: Stage) -> None:
    outcome = await approved(stage, "wire two!", "look three")
    assert stage.started == 2
    assert stage.world == [f"wire {outcome.answer[0]}"] * 2 + ["look three"]


async def test_an_approved_effect_in_doubt_is_settled_and_not_approved_again(stage: Stage) -> None:
    outcome = await approved(stage, "post two!", "look three")
    assert outcome.answer == ["posted", "three"]
    assert stage.world == ["post two!", "post two!", "look three"]  # a person said that it had not happened


# --- code that changes its mind -------------------------------------------------------------------


async def test_code_that_differs_from_its_journal_begins_a_fresh_round_if_nothing_was_changed(
    stage: Stage,
) -> None:
    outcome, happened = await run(stage, "look one", "flip", "die here", "look three")
    failed = next(event for event in happened if isinstance(event, events.TurnFailed))
    assert (failed.error.code, failed.error.permanent) == ("journal_mismatch", False)
    assert failed.error.message == (
        "step 0-1 was call look, the code now calls call look with other arguments"
    )
    assert outcome.answer == ["one", "second", "three"]
    assert stage.world == ["look one", "look first", "look second", "look three"]


async def test_code_that_differs_from_its_journal_goes_to_people_if_something_was_changed(
    stage: Stage,
) -> None:
    async with stage.mesh.connected_as("c1") as bus:
        client = await Client.on(bus, "c1")
        request = await client.submit("go", to="a", facts={"script": ["pay one", "flip", "die here"]})
        raised = await stage.last(request, events.EscalationRaised)
    happened = await stage.events(request)
    assert [type(event).__name__ for event in happened] == ["RequestOpened", "TurnFailed", "EscalationRaised"]
    assert raised.reason == "journal_mismatch"
    failed = is_(happened[1], events.TurnFailed)
    assert (failed.error.permanent, failed.retry_at) == (True, None)
    assert failed.error.message.startswith("step 0-1 was call look, the code now calls ")
    assert [line.split()[0] for line in stage.world] == ["pay", "look"]


# --- the bill -------------------------------------------------------------------------------------


async def test_a_model_call_is_paid_once_and_stays_on_the_bill(stage: Stage) -> None:
    outcome, happened = await run(stage, "model one", "die here", "model two")
    assert outcome.answer == ["re: one", "re: two"]
    assert stage.world == ["model one", "model two"]
    assert isinstance(happened[-1], events.RequestCompleted)
    assert fold(happened).report_of(happened[-1]).usage == Usage(tokens=20, model_calls=2)
