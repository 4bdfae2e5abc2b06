"""An instance that was held up between an effect's intent and its beginning looks who has the turn."""

import asyncio
import math
import time
import types
from collections.abc import Awaitable, Callable
from typing import Any, cast

import pytest
from msgspec.structs import replace

from mesh.agent._ahead import NEXT_PROBE_S, PROBE_S, EndWatch
from mesh.agent._attempts import Attempts
from mesh.agent._effects import run_effect
from mesh.agent._executor import _timed, encode_or_fail, open_since
from mesh.agent._instance import LOST_S, ForeignRounds
from mesh.agent._journal import Journal
from mesh.agent._runtime import Runtime, Watchdog
from mesh.agent._steps import WINDOW, Call, RoundKey, key_of
from mesh.agent.definition import Agent
from mesh.agent.errors import Fenced, Superseded
from mesh.bus.consumer import Message
from mesh.testing import MemorySteps, turn
from protocol.wire.commands import MoveProposed, Report
from protocol.wire.moves import Complete
from protocol.wire.prices import LARGEST_AMOUNT
from tests.logs import captured_logs
from tests.servers import PATIENCE_S

PAY: Call = ("effect", "pay", "d")
ROUND = RoundKey("a", "r", "t", 0)


class SlowSteps(MemorySteps):
    """Steps whose writing takes a while, as on a broker that hangs."""

    async def put(self, request: str, turn: str, name: str, body: bytes) -> None:
        await super().put(request, turn, name, body)
        await asyncio.sleep(0.05)


def attempts(store: MemorySteps) -> Attempts:
    return Attempts(store, ROUND)


def journal(store: MemorySteps, is_overtaken: Callable[[], Awaitable[bool]], lease_s: float) -> Journal:
    return Journal(
        store,
        ROUND,
        nonce="n",
        version="1",
        fresh=True,
        lease_s=lease_s,
        is_overtaken=is_overtaken,
    )


async def pay(store: MemorySteps, own: Attempts, lease_s: float) -> list[str]:
    """Return what was done to the world."""
    done: list[str] = []

    async def produce() -> Any:
        done.append("paid")
        return "ok"

    await run_effect(journal(store, own.is_overtaken, lease_s), PAY, "key", produce, again=produce)
    return done


async def test_an_effect_whose_intent_took_long_does_not_begin_if_another_took_the_turn_over() -> None:
    store = SlowSteps()
    assert not await attempts(store).is_crash_loop()  # the other one says that it has it
    with pytest.raises(Fenced):
        await pay(store, attempts(store), lease_s=0.05)
    assert [name for _, _, name in store.steps] == ["0-a0", "0-0"]


async def test_an_effect_whose_intent_took_long_does_not_begin_if_a_guard_ended_the_turn_meanwhile() -> None:
    """The look before the intent found the turn open; the bus then hung for longer than half a lease."""
    looks, done = list[str](), list[str]()

    async def is_over() -> bool:
        looks.append("looked")
        return True

    async def produce() -> Any:
        done.append("paid")
        return "ok"

    held_up = Journal(
        SlowSteps(),
        ROUND,
        nonce="n",
        version="1",
        fresh=True,
        lease_s=0.05,
        is_over=is_over,
    )
    with pytest.raises(Superseded):
        await run_effect(held_up, PAY, "key", produce, again=produce)
    assert (looks, done) == (["looked"], [])
    with pytest.raises(Superseded):  # whatever the code caught
        await run_effect(held_up, PAY, "key", produce, again=produce)


async def test_it_begins_if_nobody_did() -> None:
    assert await pay(SlowSteps(), attempts(MemorySteps()), lease_s=0.05) == ["paid"]


async def test_nobody_is_asked_about_an_intent_that_was_quick() -> None:
    store = MemorySteps()
    assert not await attempts(store).is_crash_loop()
    assert await pay(store, attempts(store), lease_s=math.inf) == ["paid"]


async def test_an_attempt_is_overtaken_by_later_ones_alone() -> None:
    store = MemorySteps()
    first, second = attempts(store), attempts(store)
    assert not await first.is_crash_loop()
    assert not await first.is_overtaken()
    assert not await second.is_crash_loop()
    assert await first.is_overtaken()
    assert not await second.is_overtaken()


async def test_it_does_not_begin_either_if_a_later_round_has_closed_this_one() -> None:
    store = MemorySteps()
    done: list[str] = []
    own = attempts(store)

    async def later() -> bool:
        """A later round comes, and does it, just as this one looks."""
        other = Journal(store, ROUND._replace(round=1), nonce="m", version="1")

        async def produce() -> Any:
            done.append("later")
            return "ok"

        await run_effect(other, PAY, "key", produce, again=produce)
        return False

    held_up = journal(store, later, 0.0)

    async def produce() -> Any:
        done.append("held up")
        return "ok"

    with pytest.raises(Fenced):
        await run_effect(held_up, PAY, "key", produce, again=produce)
    assert done == ["later"]
    assert not await own.is_overtaken()


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def coming(rounds: ForeignRounds, clock: Clock, turn: str = "t") -> Callable[[float], bool]:
    """Return what says, at so many seconds, whether a round that comes then is left to its version."""
    began = clock.now

    def comes(at: float) -> bool:
        clock.now = began + at
        return rounds.leaves(RoundKey("a", "r", turn, 0))

    return comes


def test_a_round_is_left_to_its_version_for_the_grace_and_then_taken(clock: Clock) -> None:
    rounds = ForeignRounds(30.0, clock)
    comes = coming(rounds, clock)
    assert [comes(at) for at in (0, 10, 29, 31)] == [True, True, True, False]
    assert len(rounds) == 0


@pytest.mark.parametrize("grace_s", [5.0, 600.0])
def test_a_round_that_others_have_taken_is_forgotten_in_the_end(clock: Clock, grace_s: float) -> None:
    rounds = ForeignRounds(grace_s, clock)
    lost, other = coming(rounds, clock, "lost"), coming(rounds, clock, "other")
    kept_s = grace_s + LOST_S
    assert lost(0)
    assert other(kept_s - 1)
    assert len(rounds) == 2
    assert other(kept_s + 1)  # another one that comes is the occasion
    assert len(rounds) == 1


async def test_a_blocked_loop_is_named_with_its_line() -> None:
    with captured_logs() as logs, Watchdog(blocked_s=0.05) as watchdog:
        deadline = time.monotonic() + PATIENCE_S
        while not watchdog.found and time.monotonic() < deadline:
            pass  # blocks the loop, which is the point
    assert logs[0]["event"] == "loop_blocked"
    assert "test_executor.py" in logs[0]["stack"]


NOW = 1_000_000_000_000_000
"""UTC µs: long ago, so that no event counts as stored just now."""


async def begun(steps: MemorySteps) -> bool:
    bus: Any = types.SimpleNamespace(since_s=0.0, name="agent")
    runtime = Runtime(bus, Agent("agent", cast("Any", None)))
    runtime._executor._steps = cast("Any", steps)
    message = cast("Message", types.SimpleNamespace(delivered=1, stored_us=NOW))
    one = turn()
    return await runtime._executor._was_begun(message, key_of("agent", one.request, one.execution.work))


async def test_a_round_without_any_step_is_fresh() -> None:
    assert not await begun(MemorySteps())


@pytest.mark.parametrize("place", [0, 1, WINDOW - 1])
async def test_a_step_at_any_place_that_can_be_the_first_stored_shows_that_it_was_begun(place: int) -> None:
    steps, one = MemorySteps(), turn()
    await steps.put(one.request, one.id, f"0-{place}", b"{}")
    assert await begun(steps)


class Looks:
    """Answers each look if the turn was ended as it began, once it is let."""

    def __init__(self) -> None:
        self.began = 0
        self.ended = False
        self.may_answer = asyncio.Event()

    async def __call__(self) -> bool:
        self.began += 1
        ended = self.ended
        await self.may_answer.wait()
        return ended


@pytest.mark.parametrize(
    ("answered_s", "looks"),
    [
        pytest.param(0.0, 1, id="in time"),
        pytest.param(PROBE_S, 2, id="after the process stood still, or the bus hung"),
    ],
)
async def test_a_look_that_was_begun_ahead_serves_one_call_and_for_a_moment(
    answered_s: float, looks: int
) -> None:
    asked, now = Looks(), 0.0
    watch = EndWatch(asked, clock=lambda: now)
    watch.probe_ahead()
    asked.ended = True
    over = asyncio.ensure_future(watch.is_over())
    await asyncio.sleep(0)
    now += answered_s
    asked.may_answer.set()
    assert await over is (looks == 2)
    assert await watch.is_over(), "the next call looks anew"
    assert asked.began == looks + 1


async def test_a_look_serves_the_next_call_too_if_that_is_announced_in_time() -> None:
    asked, now = Looks(), 0.0
    asked.may_answer.set()
    watch = EndWatch(asked, clock=lambda: now)
    for _ in range(2):
        watch.probe_ahead()
        assert not await watch.is_over()
    assert asked.began == 1
    asked.ended = True
    watch.probe_ahead()
    now += PROBE_S
    assert await watch.is_over(), "it came too late"
    assert asked.began == 2


async def test_a_round_whose_event_was_just_stored_needs_no_look() -> None:
    asked, now = Looks(), 0.0
    asked.ended = True
    asked.may_answer.set()
    watch = EndWatch(asked, open_at=now, clock=lambda: now)
    watch.probe_ahead()
    assert not await watch.is_over()
    assert asked.began == 0
    now += PROBE_S
    assert await watch.is_over()
    assert asked.began == 1


async def test_a_look_is_begun_ahead_where_the_latest_may_be_too_old_for_the_call() -> None:
    asked = Looks()
    watch = EndWatch(asked, open_at=0.0, clock=lambda: NEXT_PROBE_S)
    watch.probe_ahead()
    assert asked.began == 1
    watch.close()


@pytest.mark.parametrize(
    ("age_s", "counts"), [pytest.param(0.2, True, id="past"), pytest.param(-0.2, False, id="future")]
)
def test_a_turn_was_open_when_its_event_was_stored_unless_the_clocks_disagree(
    age_s: float, counts: bool
) -> None:
    message = types.SimpleNamespace(stored_us=int((time.time() - age_s) * 1e6))
    since = open_since(cast(Message, message))
    assert (since <= time.monotonic() - age_s) if counts else (since == -math.inf)


async def test_a_look_that_found_the_end_counts_however_late_and_is_not_repeated() -> None:
    asked, now = Looks(), 0.0
    asked.ended = True
    asked.may_answer.set()
    watch = EndWatch(asked, clock=lambda: now)
    watch.probe_ahead()
    now += PROBE_S
    watch.probe_ahead()
    assert await watch.is_over()
    assert asked.began == 1


async def test_a_look_that_no_call_asks_for_is_given_up_and_its_error_is_nobodys() -> None:
    async def breaks() -> bool:
        raise Fenced("no")

    asked = Looks()
    for was_ended in (asked, breaks):
        watch = EndWatch(was_ended)
        watch.probe_ahead()
        watch.close()
        await asyncio.sleep(0)
    assert asked.began == 1
    assert len(asyncio.all_tasks()) == 1


def test_a_report_counts_no_more_than_the_wire_takes() -> None:
    work = replace(turn(agent="a").execution.work, reported=Report(worked_ms=LARGEST_AMOUNT))
    move = MoveProposed(turn=work.turn, round=0, move=Complete(answer="yes"))
    proposal, _ = encode_or_fail(_timed(move, work, 1.0))
    assert isinstance(proposal, MoveProposed)
    assert proposal.report.worked_ms == LARGEST_AMOUNT
