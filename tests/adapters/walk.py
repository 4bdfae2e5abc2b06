"""A request on its way between an adapted agent and another one, in this process."""

from collections.abc import Iterable
from typing import Any

from mesh.agent import Agent, Move, Turn
from mesh.testing import FleetHarness, InMemoryGuard, fleet_of


async def _greet(turn: Turn) -> Move:
    return turn.complete(f"triage got {dict(turn.facts)}")


greeter = Agent("triage", _greet)


async def walked(made: Agent, *, replies: Iterable[Any] = (), **submit: Any) -> FleetHarness:
    """Give a request to `billing`, which may hand it to `triage`."""
    guard = InMemoryGuard(fleet_of("billing", "triage", human=True))
    return await FleetHarness(guard, {"billing": made, "triage": greeter}).go(
        "Refund 7", replies=replies, **submit
    )
