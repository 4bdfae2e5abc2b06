"""`turn.make`: code in one row over many rounds."""

import pytest

from mesh.agent import Turn, agent, tool
from mesh.agent._rounds import MovesChanged, Returned
from mesh.testing import FleetHarness, InMemoryGuard, fleet_of, replied, turn, unanswered

paid: list[int] = []


@tool(effect="idempotent")
async def pay(euros: int, idempotency_key: str = "") -> str:
    """Pay."""
    paid.append(euros)
    return "paid"


@agent(name="desk")
async def desk(turn: Turn):  # type: ignore[no-untyped-def]
    to = (await turn.make(turn.ask("Where to?"))).reply
    done = await turn.call(pay, 5)
    sure = await turn.make(turn.ask(f"{to}, {done}?", schema={"type": "boolean"}))
    given = await turn.make(turn.transfer("nobody", summary="book"))
    return turn.complete([to, done, sure.reply, given.how, str(given.refusal and given.refusal.rule)])


async def test_code_goes_on_behind_a_question_and_behind_a_refused_move() -> None:
    paid.clear()
    walk = FleetHarness(InMemoryGuard(fleet_of("desk")), {"desk": desk})
    await walk.go("A flight", replies=["Oslo", True])
    assert walk.answer == ["Oslo", "paid", True, "refused", "known_agent"]
    assert len(walk.turns) == 4
    assert paid == [5]


async def test_no_reply_in_time_is_an_outcome_too() -> None:
    asks = turn().ask("Which?")
    later = turn(past=[unanswered(asks)])
    assert (await later.make(asks)).how == "expired"


async def test_a_move_without_an_outcome_ends_the_round_whatever_the_code_catches() -> None:
    given = turn()

    async def code() -> None:
        try:
            await given.make(given.ask("Which?"))
        except Exception:
            raise AssertionError("it is no error") from None

    with pytest.raises(Returned) as ended:
        await code()
    assert ended.value.move == given.ask("Which?")


async def test_another_move_than_before_is_named() -> None:
    later = turn(past=[replied(turn().ask("Which?"), "x")])
    with pytest.raises(MovesChanged, match="round 0 ended replied, the code now asks to transfer"):
        await later.make(later.transfer("b", summary="s"))


async def test_a_tool_makes_no_move() -> None:
    @tool
    async def asks(at: Turn) -> None:
        """Ask."""
        await at.make(at.ask("Which?"))

    with pytest.raises(RuntimeError, match="a tool is a step itself"):
        await turn().call(asks)  # type: ignore[call-arg]
