"""The agents of the upgrade: a handoff, an effect, a person, a hand-back. Both versions import it."""

import os
from pathlib import Path

import mesh
from mesh.agent import Move, Turn, agent, tool

LEDGER = Path(os.environ["LEDGER"])
"""What was booked, and by which code: the world outside, which remembers what really happened."""
CODE = Path(mesh.__file__).parents[1]


@tool(effect="idempotent")
def book(order: str) -> str:
    """Book an order in the world outside."""
    with LEDGER.open("a") as ledger:
        ledger.write(f"{order} {CODE}\n")
    return f"booked {order}"


@agent(name="front", description="Takes what comes")
async def front(turn: Turn) -> Move:
    if turn.handoff.move == "hand_back":
        return turn.complete(turn.facts["booked"])
    if turn.facts["kind"] == "person" and turn.handoff.move == "submit":
        return turn.escalate("a person has to see this")
    return turn.transfer("back", summary="book it")


@agent(name="back", description="Books", tools=[book])
async def back(turn: Turn) -> Move:
    booked = await turn.call(book, order=turn.facts["order"])
    return turn.hand_back("it is booked", facts={"booked": booked})
