"""Effects happen once: intent before attempt, doubt where the outcome is unknown, a person's word last."""

import asyncio
import sys
import threading
import traceback
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

import mesh
from mesh.agent import tool
from mesh.agent._effects import run_effect
from mesh.agent.errors import EffectUnknown, InDoubt, JournalMismatch, NotBegun, ToolRefused
from mesh.agent.tools import NOT_DONE, Effect
from mesh.testing import MemorySteps, turn
from protocol.wire.commands import Failure
from protocol.wire.event_parts import RoundOutcome
from protocol.wire.handoff import Constraints
from tests.servers import until
from tests.unit.agent.journals import Held, World, call, given, journal

FAILED = RoundOutcome(round=0, how="failed", failure=Failure(code="effect_unknown"))


async def crashed(store: MemorySteps, world: World) -> None:
    """Leave an effect behind with its intent and without its result."""

    class Crash(BaseException):
        pass

    async def half() -> None:
        world.done.append("half")
        raise Crash

    with pytest.raises(Crash):
        await run_effect(journal(store), call("pay", kind="effect"), "k", half, again=None)


@pytest.mark.parametrize("round_", [0, 1])
async def test_an_effect_without_a_result_is_in_doubt(round_: int) -> None:
    store, world = MemorySteps(), World()
    await crashed(store, world)
    with pytest.raises(InDoubt) as caught:
        await run_effect(
            journal(store, round_, nonce="n2"),
            call("pay", kind="effect"),
            "k",
            world.doing("pay"),
            again=None,
        )
    assert (caught.value.step, caught.value.action) == ("0-0", "pay")
    assert world.done == ["half"]


@pytest.mark.parametrize("round_", [0, 1])
async def test_an_effect_that_knows_its_key_is_run_again_or_reconciled(round_: int) -> None:
    store, world = MemorySteps(), World()
    await crashed(store, world)
    again = world.doing("again")
    kind = call("pay", kind="effect")
    assert (
        await run_effect(journal(store, round_, nonce="n2"), kind, "k", world.doing("pay"), again=again)
        == "again"
    )
    assert (
        await run_effect(journal(store, round_, nonce="n3"), kind, "k", world.doing("pay"), again=again)
        == "again"
    )
    assert world.done == ["half", "again"]


@pytest.mark.parametrize(
    ("outcome", "value", "done"), [("done", "receipt", ["half"]), ("not_done", "pay", ["half", "pay"])]
)
async def test_a_settled_doubt_is_believed(outcome: Any, value: str, done: list[str]) -> None:
    store, world = MemorySteps(), World()
    await crashed(store, world)
    past = (RoundOutcome(round=0, how="settled", settled=outcome, step="0-0", reply="receipt"),)
    kind = call("pay", kind="effect")
    for nonce in ("n2", "n3"):
        settled = journal(store, 1, nonce=nonce, past=past)
        assert await run_effect(settled, kind, "k", world.doing("pay"), again=None) == value
    assert world.done == done


async def test_a_round_waits_for_its_effects_before_it_is_over() -> None:
    own, paying = journal(MemorySteps()), Held("paid")
    left_running = asyncio.create_task(run_effect(own, call("pay", kind="effect"), "k", paying, again=None))
    await paying.begun.wait()
    end = asyncio.create_task(own.finish())
    await asyncio.sleep(0)
    assert not end.done()
    paying.may_end.set()
    await end
    assert left_running.done()
    assert own.tally.steps == 1


async def test_code_that_no_longer_comes_to_its_effect_is_a_mismatch() -> None:
    store, world = MemorySteps(), World()
    first = journal(store)
    await first.step(call("a"), world.doing("a"))
    await run_effect(first, call("pay", kind="effect"), "k", world.doing("pay"), again=None)
    second = journal(store, nonce="n2")
    await second.step(call("a"), world.doing("a again"))
    with pytest.raises(
        JournalMismatch, match="step 0-1 was effect pay, the code now calls nothing more"
    ) as caught:
        await second.finish()
    assert caught.value.permanent


async def test_a_no_that_came_before_it_began_is_no_outcome_of_an_effect_that_was_tried() -> None:
    tried: list[str] = []

    @tool(effect="idempotent")
    async def refund(idempotency_key: str = "") -> str:
        """Refund."""
        tried.append(idempotency_key)
        if len(tried) == 2:
            raise NotBegun("the bank cannot be reached")
        if len(tried) == 1:
            raise ConnectionError("it broke off")
        return "refunded"

    steps = MemorySteps()
    with pytest.raises(EffectUnknown):
        await given(steps).call(refund)
    with pytest.raises(EffectUnknown, match="tried before, and now: the bank cannot be reached"):
        await given(steps, past=[FAILED]).call(refund)
    again = given(steps, past=[FAILED, replace(FAILED, round=1)])
    assert await again.call(refund) == "refunded"
    assert len(set(tried)) == 1


async def test_the_same_no_is_the_outcome_of_an_effect_that_was_never_tried() -> None:
    @tool(effect="idempotent")
    async def refund() -> str:
        """Refund."""
        raise NotBegun("the bank cannot be reached")

    with pytest.raises(ToolRefused, match="cannot be reached"):
        await given(MemorySteps()).call(refund)


async def test_what_became_of_an_effect_is_asked_again_in_the_next_round() -> None:
    asked, paid = list[str](), list[int]()

    def reconcile(key: str) -> Any:
        asked.append(key)
        return sys.exit(2) if len(asked) == 1 else NOT_DONE

    @tool(effect="reconcilable", reconcile=reconcile)
    async def pay() -> str:
        """Pay."""
        paid.append(1)
        if len(paid) == 1:
            raise ConnectionError("it broke off")
        return "paid"

    steps = MemorySteps()
    with pytest.raises(EffectUnknown):
        await given(steps).call(pay)
    with pytest.raises(EffectUnknown, match=r"^pay raised RuntimeError, at \S*test_effects\.py:\d+ in"):
        await given(steps, past=[FAILED]).call(pay)
    assert await given(steps, past=[FAILED, replace(FAILED, round=1)]).call(pay) == "paid"
    assert len(set(asked)) == 1


async def test_an_effect_that_was_tried_and_is_no_longer_allowed_is_in_doubt() -> None:
    @tool(effect="idempotent")
    async def refund() -> str:
        """Refund."""
        raise ConnectionError("it broke off")

    steps = MemorySteps()
    with pytest.raises(EffectUnknown):
        await given(steps).execution.call(refund, {}, for_model=True)
    narrowed = given(steps, past=[FAILED], constraints=Constraints(allowed_actions=()))
    with pytest.raises(InDoubt):
        await narrowed.execution.call(refund, {}, for_model=True)


async def test_nobody_is_asked_about_an_effect_whose_thread_is_still_at_it() -> None:
    may_end, done = threading.Event(), []

    @tool(effect="reconcilable", reconcile=lambda key: "sent" if done else NOT_DONE, timeout_s=0.05)
    def send() -> str:
        """Send."""
        may_end.wait()
        done.append(1)
        return "sent"

    steps = MemorySteps()
    with pytest.raises(EffectUnknown, match="no answer within"):
        await given(steps).call(send)
    with pytest.raises(EffectUnknown, match="send is still under way"):
        await given(steps, past=[FAILED]).call(send)
    may_end.set()
    await until(lambda: bool(done))
    later = given(steps, past=[FAILED, replace(FAILED, round=1)])
    assert await later.call(send) == "sent"
    assert done == [1]


async def test_an_idempotent_effect_is_not_begun_beside_its_own_thread() -> None:
    may_end, begun, ended = threading.Event(), list[str](), list[str]()

    @tool(effect="idempotent", timeout_s=0.05)
    def pay(cents: int, idempotency_key: str = "") -> str:
        """Pay: look for the key, and book under it; no other system knows it before."""
        begun.append(idempotency_key)
        may_end.wait(60)
        ended.append(idempotency_key)
        return "paid"

    steps, past = MemorySteps(), list[RoundOutcome]()
    try:
        with pytest.raises(EffectUnknown, match="no answer within"):
            await given(steps).call(pay, cents=5)
        for _ in range(2):
            past.append(replace(FAILED, round=len(past)))
            with pytest.raises(EffectUnknown, match="pay is still under way"):
                await given(steps, past=past).call(pay, cents=5)
        with pytest.raises(EffectUnknown, match="no answer within"):
            await given(MemorySteps()).call(pay, cents=6)  # another effect, under another key
        assert len(set(begun)) == len(begun) == 2
    finally:
        may_end.set()
    await until(lambda: len(ended) == 2 and not pay.is_under_way(begun[0]))
    past.append(replace(FAILED, round=len(past)))
    assert await given(steps, past=past).call(pay, cents=5) == "paid"
    assert begun[2] == begun[0]


async def test_what_a_person_settled_stays_settled_through_a_crash() -> None:
    class Dies(BaseException):
        pass

    tried: list[int] = []

    @tool(effect="once")
    async def mail() -> str:
        """Mail."""
        tried.append(1)
        raise Dies

    class DiesBehindTheIntent(MemorySteps):
        async def put(self, request: str, turn: str, name: str, body: bytes) -> None:
            await super().put(request, turn, name, body)
            if name == "1-0" and armed:
                armed.clear()
                raise Dies

    armed = [1]
    steps = DiesBehindTheIntent()
    with pytest.raises(Dies):
        await given(steps).call(mail)
    with pytest.raises(InDoubt):
        await given(steps).call(mail)
    settled = RoundOutcome(round=0, how="settled", settled="done", step="0-0", reply="sent", by="Ada")
    with pytest.raises(Dies):
        await given(steps, past=[settled]).call(mail)
    assert await given(steps, past=[settled]).call(mail) == "sent"
    assert tried == [1]


MOST_FRAMES = 6
OURS = str(Path(mesh.__path__[0]))


@pytest.mark.parametrize("effect", [None, "idempotent", "once"])
async def test_a_call_passes_few_frames_of_the_runtimes_own(effect: Effect | None) -> None:
    """Whoever debugs a tool steps through these."""
    passed: list[str] = []

    @tool(effect=effect)
    async def look() -> None:
        """Look who called."""
        frames = traceback.extract_stack()
        passed.extend(frame.name for frame in frames if frame.filename.startswith(OURS))

    await turn().call(look)
    assert 0 < len(passed) <= MOST_FRAMES, passed
