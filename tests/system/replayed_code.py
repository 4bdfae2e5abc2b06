"""An agent, as it ran and as it was changed: what `mesh replay --agent` loads from this disk."""

from pydantic import BaseModel

from mesh.agent import Move, Turn, agent, tool
from mesh.model import ClaudeAgent, to


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


class Refund(BaseModel):
    cents: int


def words(turn: Turn) -> str:
    return f"You help {turn.facts['customer']}."


def other_words(turn: Turn) -> str:
    return f"You must help {turn.facts['customer']}."


def has_order(turn: Turn) -> bool:
    return "order" in turn.facts


def never(turn: Turn) -> bool:
    return False


edge = to("b", carries=Refund, name="refund", when=has_order)
with_edges = ClaudeAgent("a", instructions=words, handoffs=[edge])
other_instructions = ClaudeAgent("a", instructions=other_words, handoffs=[edge])
other_condition = ClaudeAgent("a", instructions=words, handoffs=[edge._replace(when=never)])
