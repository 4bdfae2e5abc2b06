"""The journal: recorded before it is used, replayed in order, reused by later rounds, one writer."""

import asyncio
import sys
import threading
from typing import Any

import pytest
from msgspec.structs import replace

from mesh.agent import Turn, tool
from mesh.agent._journal import Journal
from mesh.agent._step_store import WINDOW, Call, Recorded
from mesh.agent.errors import (
    EffectUnknown,
    Fenced,
    InDoubt,
    JournalFull,
    JournalMismatch,
    NotBegun,
    RoundOver,
    ToolRefused,
)
from mesh.agent.tools import NOT_DONE
from mesh.testing import MemorySteps, turn
from mesh.testing.harness import turn_of
from protocol.wire.commands import Failure
from protocol.wire.events import RoundOutcome
from protocol.wire.handoff import Constraints
from tests.servers import until


class World:
    """Something with effects: what was done stays done."""

    def __init__(self) -> None:
        self.done: list[str] = []

    def doing(self, what: str, value: Any = None) -> Any:
        async def do() -> Any:
            self.done.append(what)
            return what if value is None else value

        return do


def journal(
    store: MemorySteps,
    round_: int = 0,
    nonce: str = "n1",
    past: tuple[RoundOutcome, ...] = (),
    fresh: bool = False,
) -> Journal:
    return Journal(
        store, request="r", turn="t", round_=round_, nonce=nonce, version="1", fresh=fresh, past=past
    )


def call(name: str, digest: str = "d", kind: str = "call") -> Call:
    return (kind, name, digest)


async def test_another_order_within_a_round_is_a_mismatch_that_names_the_step() -> None:
    store, world = MemorySteps(), World()
    first = journal(store)
    await first.step(call("a"), world.doing("a"))
    await first.step(call("b"), world.doing("b"))
    second = journal(store, nonce="n2")
    with pytest.raises(JournalMismatch, match="step 0-0 was call a, the code now calls call b") as caught:
        await second.step(call("b"), world.doing("b again"))
    assert not caught.value.permanent
    assert world.done == ["a", "b"]


async def test_an_effect_is_not_tried_once_fenced() -> None:
    store, world = MemorySteps(), World()
    late, other = journal(store, nonce="late"), journal(store, nonce="other")
    await late.load()
    await other.effect(call("pay", kind="effect"), "k", world.doing("pay"), again=None)
    with pytest.raises(Fenced):
        await late.effect(call("pay", kind="effect"), "k", world.doing("pay late"), again=None)
    assert world.done == ["pay"]


async def test_a_later_round_reuses_successful_steps_in_any_order_and_runs_the_rest() -> None:
    store, world = MemorySteps(), World()
    first = journal(store)
    await first.step(call("a"), world.doing("a"))
    await first.step(call("b"), world.doing("b"))
    second = journal(store, round_=1, nonce="n2")
    assert await second.step(call("b"), world.doing("b again")) == "b"
    assert await second.step(call("c"), world.doing("c")) == "c"
    assert await second.step(call("a"), world.doing("a again")) == "a"
    assert await second.step(call("a"), world.doing("a anew")) == "a anew"
    assert world.done == ["a", "b", "c", "a anew"]


async def test_a_round_delivered_again_replays_reused_and_own_steps_alike() -> None:
    store, world = MemorySteps(), World()
    await journal(store).step(call("a"), world.doing("a"))
    for nonce in ("n2", "n3"):
        again = journal(store, round_=1, nonce=nonce)
        assert await again.step(call("a"), world.doing("never")) == "a"
        assert await again.step(call("b"), world.doing("b")) == "b"
    assert world.done == ["a", "b"]


async def test_a_later_rounds_first_step_fences_whoever_still_runs_the_earlier_one() -> None:
    store, world = MemorySteps(), World()
    earlier = journal(store)
    await earlier.step(call("a"), world.doing("a"))
    await journal(store, round_=1, nonce="n2").step(call("x"), world.doing("x"))
    with pytest.raises(Fenced):
        await earlier.effect(call("pay", kind="effect"), "k", world.doing("pay"), again=None)
    assert world.done == ["a", "x"]


async def test_a_tools_no_is_an_outcome_that_is_said_again() -> None:
    store = MemorySteps()

    async def no() -> None:
        raise Recorded("tool.error", "not today")

    with pytest.raises(Recorded, match="not today"):
        await journal(store).step(call("a"), no)

    async def never() -> None:
        raise AssertionError("was run again")

    with pytest.raises(Recorded, match="not today"):
        await journal(store, nonce="n2").step(call("a"), never)


async def test_what_broke_is_not_recorded_and_is_run_anew() -> None:
    store, world = MemorySteps(), World()

    async def broken() -> None:
        raise OSError("the network")

    with pytest.raises(OSError, match="the network"):
        await journal(store).step(call("a"), broken)
    assert await journal(store, round_=1, nonce="n2").step(call("a"), world.doing("a")) == "a"


async def crashed(store: MemorySteps, world: World) -> None:
    """Leave an effect behind with its intent and without its result."""

    class Crash(BaseException):
        pass

    async def half() -> None:
        world.done.append("half")
        raise Crash

    with pytest.raises(Crash):
        await journal(store).effect(call("pay", kind="effect"), "k", half, again=None)


@pytest.mark.parametrize("round_", [0, 1])
async def test_an_effect_without_a_result_is_in_doubt(round_: int) -> None:
    store, world = MemorySteps(), World()
    await crashed(store, world)
    with pytest.raises(InDoubt) as caught:
        await journal(store, round_, nonce="n2").effect(
            call("pay", kind="effect"), "k", world.doing("pay"), again=None
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
        await journal(store, round_, nonce="n2").effect(kind, "k", world.doing("pay"), again=again) == "again"
    )
    assert (
        await journal(store, round_, nonce="n3").effect(kind, "k", world.doing("pay"), again=again) == "again"
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
        assert await settled.effect(kind, "k", world.doing("pay"), again=None) == value
    assert world.done == done


async def test_the_digest_tells_what_was_called_in_which_order() -> None:
    one, other = journal(MemorySteps()), journal(MemorySteps())
    world = World()
    assert one.tally.steps == 0
    await one.step(call("a"), world.doing("a"))
    await one.step(call("b"), world.doing("b"))
    await other.step(call("b"), world.doing("b"))
    await other.step(call("a"), world.doing("a"))
    assert one.tally.steps == 2
    assert one.tally.digest != other.tally.digest


async def test_a_mismatch_in_the_arguments_alone_says_so() -> None:
    store, world = MemorySteps(), World()
    await journal(store).step(call("a", "d1"), world.doing("a"))
    with pytest.raises(
        JournalMismatch, match="step 0-0 was call a, the code now calls call a with other arguments"
    ):
        await journal(store, nonce="n2").step(call("a", "d2"), world.doing("a again"))


class Held:
    """Something that a test lets go on when it likes."""

    def __init__(self, value: Any = None) -> None:
        self.value = value
        self.begun, self.may_end = asyncio.Event(), asyncio.Event()

    async def __call__(self) -> Any:
        self.begun.set()
        await self.may_end.wait()
        return self.value


async def test_an_effect_that_begins_while_a_later_round_thinks_is_not_done_twice() -> None:
    store, world = MemorySteps(), World()
    effect = call("pay", kind="effect")
    earlier, later = journal(store), journal(store, round_=1, nonce="n2")
    await earlier.step(call("a"), world.doing("a"))
    thinking = Held("thought")
    first = asyncio.create_task(later.step(call("think", kind="model"), thinking))
    await thinking.begun.wait()
    with pytest.raises(Fenced):  # its time ran out, and it does not know
        await earlier.effect(effect, "k", world.doing("pay"), again=None)
    thinking.may_end.set()
    await first
    await later.effect(effect, "k", world.doing("pay"), again=None)
    assert world.done.count("pay") == 1


async def test_a_step_that_is_overtaken_by_another_one_of_its_round_is_fenced_too() -> None:
    store, world = MemorySteps(), World()
    earlier, later = journal(store), journal(store, round_=1, nonce="n2")
    reading = Held("read")
    read = asyncio.create_task(earlier.step(call("slow"), reading))
    await reading.begun.wait()
    await earlier.step(call("a"), world.doing("a"))
    assert await later.step(call("a"), world.doing("a again")) == "a"
    reading.may_end.set()
    with pytest.raises(Fenced):
        await read
    assert world.done == ["a"]


class Overtaken(MemorySteps):
    """Between a later round's reading and its fence, the earlier round writes one thing more."""

    def __init__(self) -> None:
        super().__init__()
        self.between: Any = None

    async def put(self, request: str, turn: str, name: str, body: bytes) -> None:
        if b'"fence"' in body and self.between is not None:
            between, self.between = self.between, None
            await between()
        await super().put(request, turn, name, body)


async def test_an_effect_that_slips_in_before_the_fence_is_known_behind_it() -> None:
    store, world = Overtaken(), World()
    effect = call("pay", kind="effect")
    earlier, later = journal(store), journal(store, round_=1, nonce="n2")
    await earlier.step(call("a"), world.doing("a"))
    store.between = lambda: earlier.effect(effect, "k", world.doing("pay"), again=None)
    assert await later.effect(effect, "k", world.doing("pay again"), again=None) == "pay"
    assert world.done == ["a", "pay"]


async def test_an_effect_beside_other_steps_is_fenced_by_the_places_that_they_left_free() -> None:
    store, world = MemorySteps(), World()
    effect = call("pay", kind="effect")
    earlier = journal(store)
    reading = Held()
    read = asyncio.create_task(earlier.step(call("slow"), reading))
    await reading.begun.wait()
    await journal(store, round_=1, nonce="n2").step(call("x"), world.doing("x"))
    with pytest.raises(Fenced):  # its own place is free, but not the one that the slow step is to have
        await earlier.effect(effect, "k", world.doing("pay"), again=None)
    reading.may_end.set()
    with pytest.raises(Fenced):
        await read
    assert world.done == ["x"]


async def test_more_steps_at_once_than_a_reader_looks_ahead_are_all_found_again() -> None:
    store, world = MemorySteps(), World()
    names = [f"s{n}" for n in range(3 * WINDOW)]

    def slow(name: str) -> Any:
        async def do() -> str:
            for _ in range(len(names) - int(name[1:])):  # the last are the first to be done
                await asyncio.sleep(0)
            world.done.append(name)
            return name

        return do

    first = journal(store)
    await asyncio.gather(*(first.step(call(name), slow(name)) for name in names))
    again = journal(store, nonce="n2")
    assert await asyncio.gather(*(again.step(call(name), slow(name)) for name in names)) == names
    assert len(world.done) == len(names)


async def test_steps_that_break_in_a_row_end_the_round_before_a_reader_would_miss_the_rest() -> None:
    store, world = MemorySteps(), World()

    async def broken() -> None:
        raise KeyError

    own = journal(store)
    for _ in range(WINDOW):
        with pytest.raises(KeyError):
            await own.step(call("a"), broken)
    with pytest.raises(JournalFull):
        await own.step(call("a"), world.doing("a"))


async def test_a_round_waits_for_its_effects_before_it_is_over() -> None:
    own, paying = journal(MemorySteps()), Held("paid")
    left_running = asyncio.create_task(own.effect(call("pay", kind="effect"), "k", paying, again=None))
    await paying.begun.wait()
    end = asyncio.create_task(own.finish())
    await asyncio.sleep(0)
    assert not end.done()
    paying.may_end.set()
    await end
    assert left_running.done()
    assert own.tally.steps == 1


async def test_nothing_begins_after_the_move() -> None:
    own, world = journal(MemorySteps()), World()
    await own.finish()
    with pytest.raises(RoundOver):
        await own.effect(call("pay", kind="effect"), "k", world.doing("pay"), again=None)
    assert world.done == []


async def test_code_that_no_longer_comes_to_its_effect_is_a_mismatch() -> None:
    store, world = MemorySteps(), World()
    first = journal(store)
    await first.step(call("a"), world.doing("a"))
    await first.effect(call("pay", kind="effect"), "k", world.doing("pay"), again=None)
    second = journal(store, nonce="n2")
    await second.step(call("a"), world.doing("a again"))
    with pytest.raises(
        JournalMismatch, match="step 0-1 was effect pay, the code now calls nothing more"
    ) as caught:
        await second.finish()
    assert caught.value.permanent


async def test_reading_that_is_left_out_is_no_mismatch() -> None:
    store, world = MemorySteps(), World()
    await journal(store).step(call("a"), world.doing("a"))
    second = journal(store, nonce="n2")
    await second.load()
    await second.finish()


FAILED = RoundOutcome(round=0, how="failed", failure=Failure(code="effect_unknown"))


def given(steps: MemorySteps, **about: Any) -> Turn:
    made = turn(steps=steps, **about)
    return turn_of(made.request, made.execution.work, replace(made.execution.fleet, lease_s=0.0), steps)


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
    with pytest.raises(EffectUnknown, match="pay broke: RuntimeError"):
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
