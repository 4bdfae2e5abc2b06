"""A whole path in memory: agents' own code, journaled, with the guard's own verdicts."""

from mesh.agent import Agent, Retry, Turn, agent, tool
from mesh.fleet.file import parse_fleet
from mesh.fleet.setup import prices_of
from mesh.model.loop import drive
from mesh.model.port import Reply, ToolCall
from mesh.testing import FleetHarness, InMemoryGuard, StrictModel, fleet_of
from protocol.wire.commands import Move, Usage
from protocol.wire.prices import Tokens

done: list[str] = []


@tool(effect="idempotent")
async def book(what: str, idempotency_key: str) -> str:
    """Book something."""
    done.append(idempotency_key)
    return what


@agent(name="a", tools=[book])
async def a(turn: Turn):  # type: ignore[no-untyped-def]
    await turn.call(book, what="room")
    if not turn.refusals:
        return turn.transfer("nobody", summary="cannot be")
    return turn.transfer("b", summary="please")


@agent(name="b")
async def b(turn: Turn):  # type: ignore[no-untyped-def]
    if not turn.failures:
        raise Retry("later", after_s=5)
    if turn.reply is None:
        return turn.ask("which?")
    return turn.complete(turn.reply)


async def test_refusals_failures_and_replies_open_rounds_and_effects_happen_once() -> None:
    done.clear()
    walk = await FleetHarness(InMemoryGuard(fleet_of("a", "b")), {"a": a, "b": b}).go(
        "hello", replies=["the red one"]
    )
    assert (walk.path, walk.refused, walk.broke) == (["a", "b"], ["known_agent"], ["retry"])
    assert (walk.status, walk.answer) == ("completed", "the red one")
    assert len(done) == 1
    assert [turn.round for turn in walk.turns] == [0, 1, 0, 1, 2]


async def test_it_stops_where_somebody_says_nothing() -> None:
    walk = await FleetHarness(InMemoryGuard(fleet_of("b")), {"b": b}).go("hello")
    assert (walk.status, walk.answer) == ("open", None)


@agent(name="c")
async def c(turn: Turn):  # type: ignore[no-untyped-def]
    return turn.escalate("too hard")


async def test_what_people_have_is_escalated() -> None:
    walk = await FleetHarness(InMemoryGuard(fleet_of("c")), {"c": c}).go("hello")
    assert walk.status == "escalated"


FILE = """
name = "desk"
entry = "d"
[agents.d]
[clients.app]
[human]
[prices]
strict = {input = 2_000_000_000, output = 0}
[policies.default.budget]
nano_dollars = 3_000_000
"""


async def test_a_budget_in_dollars_ends_a_turn_in_memory_by_the_prices_of_the_fleet_file() -> None:
    file = parse_fleet(FILE)
    asks = Reply(
        calls=(ToolCall("1", "no_such_tool", {}),),
        usage=Usage(tokens=1_000, model_calls=1),
        tokens=Tokens(input=1_000),
    )
    with StrictModel(asks, asks) as model:

        async def work(turn: Turn) -> Move:
            return await drive(turn, model, instructions="Be brief.", tools=())

        court = InMemoryGuard(file.fleet, file.rules, prices=prices_of(file))
        walk = await FleetHarness(court, {"d": Agent("d", work)}).go("hello")
    assert (walk.broke, walk.status) == (["budget_exhausted"], "escalated")
    assert court.ledger.spent.nano_dollars == 4_000_000
