"""What a lead may still spend, once its tasks have spent or reserved their part."""

from typing import Any

from mesh.agent import Budget, Turn, agent
from mesh.testing import FleetHarness, InMemoryGuard, fleet_of
from protocol.wire.config import Policy
from protocol.wire.moves import Delegate, Move

POLICY = Policy(topology="supervised", budget=Budget(tokens=1000), keep_back=0.2)


@agent(name="worker")
async def worker(turn: Turn) -> Move:
    turn.spend(tokens=int(turn.facts["cost"]))
    return turn.deliver("done")


async def seen_by(code: Any) -> tuple[list[int | None], FleetHarness]:
    """Return what the lead's budget was in each of its rounds."""
    left: list[int | None] = []

    @agent(name="lead")
    async def lead(turn: Turn) -> Move:
        left.append(turn.budget_left.tokens)
        return code(turn)  # type: ignore[no-any-return]

    guard = InMemoryGuard(fleet_of("lead", "worker"), {"default": POLICY})
    walk = FleetHarness(guard, {"lead": lead, "worker": worker})
    return left, await walk.go("Spend")


def plan(turn: Turn, *costs: int) -> Delegate:
    """Return a plan of one task for each cost."""
    tasks = [turn.task(f"t{cost}", summary="spend", to="worker", facts={"cost": cost}) for cost in costs]
    return turn.delegate(tasks)  # type: ignore[return-value]


async def test_a_lead_has_left_what_its_tasks_did_not_spend() -> None:
    left, walk = await seen_by(lambda turn: turn.complete("done") if turn.results else plan(turn, 400, 150))
    assert walk.answer == "done"
    assert left == [1000, 450]


async def test_a_lead_that_spends_all_it_has_left_keeps_the_tree_within_its_budget() -> None:
    def code(turn: Turn) -> Move:
        if not turn.results:
            return plan(turn, 400, 399)
        turn.spend(tokens=turn.budget_left.tokens or 0)
        return turn.complete("done")

    _, walk = await seen_by(code)
    assert walk.guard.ledger.spent.tokens == 1000
