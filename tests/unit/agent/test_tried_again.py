"""An effect that is tried again: what is known of this attempt says nothing of the one before."""

import asyncio
import threading
from typing import Any

import pytest
from msgspec.structs import replace

from mesh.agent import Turn, tool
from mesh.agent.errors import EffectUnknown, InDoubt, NotBegun, ToolRefused
from mesh.agent.tools import NOT_DONE
from mesh.testing import MemorySteps, turn
from mesh.testing.harness import turn_of
from protocol.wire.commands import Failure
from protocol.wire.events import RoundOutcome
from protocol.wire.handoff import Constraints
from tests.servers import until

FAILED = RoundOutcome(round=0, how="failed", failure=Failure(code="effect_unknown"))


def given(steps: MemorySteps, **about: Any) -> Turn:
    made = turn(steps=steps, **about)
    return turn_of(made.request, made.execution.work, replace(made.execution.fleet, lease_s=0.0), steps)


async def test_a_no_that_came_before_it_began_is_no_outcome_of_an_effect_that_was_tried() -> None:
    tried: list[str] = []

    @tool(effect="idempotent")
    async def refund(idempotency_key: str) -> str:
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
    def pay(cents: int, idempotency_key: str) -> str:
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


async def test_a_report_has_the_same_digest_whichever_read_ends_first() -> None:
    async def read_both(slow: int, steps: MemorySteps) -> str:
        gate = asyncio.Event()

        @tool
        async def read(n: int) -> int:
            """Read."""
            if n == slow:
                await gate.wait()
            gate.set()
            return n

        made = given(steps)
        await asyncio.gather(
            made.execution.call(read, {"n": 1}, for_model=True),
            made.execution.call(read, {"n": 2}, for_model=True),
        )
        return made.execution.report.digest

    steps = MemorySteps()
    first = await read_both(1, steps)
    assert first == await read_both(1, steps)
    assert first == await read_both(2, MemorySteps())
