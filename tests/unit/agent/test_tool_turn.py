"""Tools that take the turn: it is hidden from the model, and what they read of facts counts in their key."""

import gc
import weakref
from typing import Any

import pytest

from mesh.agent import ApprovalNeeded, Turn, tool
from mesh.agent.errors import InDoubt
from mesh.model.loop import drive
from mesh.testing import MemorySteps, StrictModel, calls, replied, says, turn
from tests.servers import until

booked: list[tuple[str, str]] = []
looked: list[str] = []


@pytest.fixture(autouse=True)
def _nothing_yet() -> None:
    booked.clear()
    looked.clear()


@tool(effect="idempotent")
async def refund(euros: int, at: Turn, idempotency_key: str = "") -> str:
    """Pay money back."""
    booked.append((idempotency_key, at.facts["customer_id"]))
    return f"{euros} to {at.facts['customer_id']}"


@tool
def orders(most: int, at: Turn | None = None) -> str:
    """List the customer's orders."""
    assert at is not None
    looked.append(at.facts["customer_id"])
    return f"{most} of {at.fact('customer_id', str)}, {at.client}"


async def test_a_model_neither_sees_the_turn_nor_says_it() -> None:
    once, twice = ("orders", {"most": 2}), ("orders", {"most": 2, "at": "another"})
    with StrictModel(calls(once), calls(twice), says("done")) as model:
        await drive(turn(facts={"customer_id": "c-7"}), model, instructions="", tools=[orders])
    (spec,) = (each for each in model.prompts[0].tools if each.name == "orders")
    assert set(spec.schema["properties"]) == {"most"}
    assert looked == ["c-7"]
    assert "at: not an argument of yours" in str(model.prompts[-1].transcript[-1])


async def test_code_may_say_the_turn_or_leave_it_out() -> None:
    mine = turn(facts={"customer_id": "c-7"})
    assert await mine.call(orders, 2) == await mine.call(orders, 2, mine) == "2 of c-7, client"


async def _refunds(journal: MemorySteps, *, round_: int = 0, **facts: Any) -> str:
    past = [replied(turn().ask("?"), "yes", round_=n) for n in range(round_)]
    given = turn(facts=facts, steps=journal, past=past)
    done: str = await given.call(refund, 5)  # type: ignore[call-arg]
    return done


async def test_another_fact_that_it_read_makes_another_effect_and_one_that_it_did_not_read_does_not() -> None:
    journal = MemorySteps()
    assert await _refunds(journal, customer_id="c-7") == "5 to c-7"
    assert await _refunds(journal, round_=1, customer_id="c-7", weather="rain") == "5 to c-7"
    assert [customer for _, customer in booked] == ["c-7"]
    assert await _refunds(journal, round_=2, customer_id="c-8", weather="rain") == "5 to c-8"
    assert await _refunds(journal, round_=3, customer_id="c-8") == "5 to c-8"
    assert await _refunds(journal, round_=4, customer_id="c-7") == "5 to c-7"
    assert [customer for _, customer in booked] == ["c-7", "c-8"]
    assert len({key for key, _ in booked}) == 2


async def test_the_first_time_every_fact_counts_in_the_key() -> None:
    for customer in ("c-7", "c-7", "c-8"):
        await _refunds(MemorySteps(), customer_id=customer)
    first, again, other = (key for key, _ in booked)
    assert first == again != other


async def test_what_may_have_happened_is_the_same_effect_whatever_has_become_of_the_facts() -> None:
    class PowerCut(BaseException):
        pass

    @tool(effect="idempotent")
    async def pay(at: Turn, idempotency_key: str = "") -> str:
        """Pay."""
        booked.append((idempotency_key, at.facts["customer_id"]))
        if len(booked) == 1:
            raise PowerCut
        return "paid"

    journal = MemorySteps()
    with pytest.raises(PowerCut):
        await turn(facts={"customer_id": "c-7"}, steps=journal).call(pay)  # type: ignore[call-arg]
    later = turn(facts={"customer_id": "c-7", "note": "x"}, steps=journal, past=[replied(turn().ask("?"), 1)])
    assert await later.call(pay) == "paid"  # type: ignore[call-arg]
    assert len({key for key, _ in booked}) == 1


async def test_who_reads_the_handoff_or_all_facts_reads_every_fact() -> None:
    ran: list[str] = []

    @tool(effect="idempotent")
    async def send(how: str, at: Turn) -> str:
        """Send."""
        ran.append(how)
        return str(at.handoff.facts if how == "handoff" else dict(at.facts))

    for how in ("handoff", "all"):
        journal = MemorySteps()
        await turn(facts={"a": 1}, steps=journal).call(send, how)  # type: ignore[call-arg]
        more = turn(facts={"a": 1, "b": 2}, steps=journal, past=[replied(turn().ask("?"), 1)])
        await more.call(send, how)  # type: ignore[call-arg]
    assert ran == ["handoff", "handoff", "all", "all"]


async def test_a_fact_that_was_not_there_was_read_too() -> None:
    @tool(effect="idempotent")
    async def greet(at: Turn) -> str:
        """Greet."""
        return str(at.facts.get("name", "stranger"))

    journal = MemorySteps()
    assert await turn(steps=journal).call(greet) == "stranger"  # type: ignore[call-arg]
    known = turn(facts={"name": "Ada"}, steps=journal, past=[replied(turn().ask("?"), 1)])
    assert await known.call(greet) == "Ada"  # type: ignore[call-arg]


async def test_a_reading_tool_reads_again_when_a_fact_has_changed() -> None:
    journal = MemorySteps()
    for customer, round_ in (("c-7", 0), ("c-7", 1), ("c-8", 2)):
        past = [replied(turn().ask("?"), 1, round_=n) for n in range(round_)]
        await turn(facts={"customer_id": customer}, steps=journal, past=past).call(orders, 2)
    assert looked == ["c-7", "c-8"]


async def test_a_yes_is_for_the_facts_that_there_were() -> None:
    @tool(effect="idempotent", approve="human")
    async def pay(euros: int, at: Turn, idempotency_key: str = "") -> str:
        """Pay."""
        return str(at.facts["customer_id"])

    async def asked(**more: Any) -> Any:
        with pytest.raises(ApprovalNeeded) as needed:
            await turn(**more).call(pay, 5)  # type: ignore[call-arg]
        return needed.value.ask

    journal = MemorySteps()
    ask = await asked(facts={"customer_id": "c-7"}, steps=journal)
    yes = replied(ask, True)
    await asked(facts={"customer_id": "c-8"}, steps=journal, past=[yes])
    mine = turn(
        facts={"customer_id": "c-7"}, steps=journal, past=[yes, replied(turn().ask("?"), 1, round_=1)]
    )
    assert await mine.call(pay, 5) == "c-7"  # type: ignore[call-arg]


async def test_a_tool_takes_no_step_of_its_own() -> None:
    @tool
    async def nested(at: Turn) -> str:
        """Call another tool."""
        found: str = await at.call(orders, 2)
        return found

    @tool(effect="once")
    async def spends(at: Turn) -> None:
        """Spend."""
        at.spend(tokens=1)

    with pytest.raises(RuntimeError, match="a tool is a step itself"):
        await turn(facts={"customer_id": "c"}).call(nested)  # type: ignore[call-arg]
    with pytest.raises(InDoubt) as broken:
        await turn().call(spends)  # type: ignore[call-arg]
    assert "RuntimeError" in broken.value.why


async def test_a_round_whose_tool_took_the_turn_is_freed_at_once() -> None:
    given = turn(facts={"customer_id": "c-7"})
    await given.call(orders, 2)
    execution = weakref.ref(given.execution)
    gc.disable()  # no circle keeps it
    try:
        del given
        await until(lambda: execution() is None)  # a tool's thread may hold it for a moment
    finally:
        gc.enable()


async def test_two_parameters_for_the_turn_are_refused_by_name() -> None:
    @tool
    async def torn(one: Turn, other: Turn) -> None:
        """Be torn."""

    with pytest.raises(TypeError, match="torn: one parameter gets the turn, not one and other"):
        _ = torn.schema
