"""The journal: recorded before it is used, replayed in order, reused by later rounds, one writer."""

from typing import Any

import pytest

from mesh.agent.journal import Call, Fenced, InDoubt, Journal, JournalMismatch, Recorded
from mesh.testing.memory_steps import MemorySteps
from protocol.events import Past


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
    store: MemorySteps, round_: int = 0, nonce: str = "n1", past: tuple[Past, ...] = (), fresh: bool = False
) -> Journal:
    return Journal(
        store, request="r", turn="t", round_=round_, nonce=nonce, version="1", fresh=fresh, past=past
    )


def call(name: str, digest: str = "d", kind: str = "call") -> Call:
    return (kind, name, digest)


async def test_a_step_is_recorded_and_replayed_without_being_run_again() -> None:
    store, world = MemorySteps(), World()
    assert await journal(store, fresh=True).step(call("a"), world.doing("a")) == "a"
    assert await journal(store, nonce="n2").step(call("a"), world.doing("a again")) == "a"
    assert world.done == ["a"]


async def test_the_rest_goes_on_where_the_journal_ends() -> None:
    store, world = MemorySteps(), World()
    await journal(store).step(call("a"), world.doing("a"))
    second = journal(store, nonce="n2")
    await second.step(call("a"), world.doing("a again"))
    assert await second.step(call("b"), world.doing("b")) == "b"
    assert world.done == ["a", "b"]


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


async def test_the_second_writer_of_a_step_is_fenced_and_its_value_is_not_used() -> None:
    store, world = MemorySteps(), World()
    late, other = journal(store, nonce="late"), journal(store, nonce="other")
    await late.load()
    await other.step(call("a"), world.doing("a"))
    with pytest.raises(Fenced):
        await late.step(call("a"), world.doing("a late"))


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
    ("outcome", "value", "done"),
    [("done", "receipt", ["half"]), ("not_done", "pay", ["half", "pay"])],
)
async def test_a_settled_doubt_is_believed(outcome: Any, value: str, done: list[str]) -> None:
    store, world = MemorySteps(), World()
    await crashed(store, world)
    past = (Past(round=0, how="settled", settled=outcome, step="0-0", reply="receipt"),)
    kind = call("pay", kind="effect")
    for nonce in ("n2", "n3"):
        settled = journal(store, 1, nonce=nonce, past=past)
        assert await settled.effect(kind, "k", world.doing("pay"), again=None) == value
    assert world.done == done


async def test_the_digest_tells_what_was_called_in_which_order() -> None:
    one, other = journal(MemorySteps()), journal(MemorySteps())
    world = World()
    assert one.digest == ""
    await one.step(call("a"), world.doing("a"))
    await one.step(call("b"), world.doing("b"))
    await other.step(call("b"), world.doing("b"))
    await other.step(call("a"), world.doing("a"))
    assert one.steps == 2
    assert one.digest != other.digest
