"""An agent, as it ran and as it was changed: what `mesh replay --agent` loads from this disk."""

from mesh.agent import Move, Turn, agent, tool


@tool
async def find(order: str) -> dict[str, int]:
    """Find an order."""
    return {"cents": 4200}


@agent(name="a", version="1", tools=[find])
async def as_it_ran(turn: Turn) -> Move:
    found = await turn.call(find, order="O-1")
    return turn.complete(found["cents"])


@agent(name="a", version="2", tools=[find])
async def changed(turn: Turn) -> Move:
    found = await turn.call(find, order="O-1")
    return turn.complete(found["cents"] // 100)
