"""orders: knows where an order is. Plain Python decides, and no model is asked."""

from mesh.agent import Move, ToolError, ToolRefused, Turn, agent, tool

SHELF = {"1042": "left the warehouse this morning", "1043": "waits for its payment"}


@tool
async def find_order(number: str) -> str:
    """Return the state of an order."""
    if number not in SHELF:
        raise ToolError(f"there is no order {number}")
    return SHELF[number]


@agent(name="orders", description="Knows where an order is.", tools=[find_order])
async def orders(turn: Turn) -> Move:
    if "order" not in turn.facts:
        return turn.hand_back("which order is it?")
    number = turn.facts["order"]
    try:
        state = await turn.call(find_order, number=number)
    except ToolRefused:  # the tool's own no, recorded like a result
        return turn.escalate(f"nobody here knows order {number}")
    return turn.complete(f"Order {number} {state}.")
