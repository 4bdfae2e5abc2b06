"""till: charges a card at a bank that takes its time, and that nobody can ask about a charge."""

import time
from pathlib import Path

from mesh.agent import Move, Turn, agent, tool

BANK = Path("bank.log")


@tool(effect="once")
def charge_card(order: str, euros: int) -> str:
    """Charge the card of an order; the bank knows no idempotency keys."""
    with BANK.open("a") as book:
        book.write(f"order {order}: {euros} EUR charged\n")
    time.sleep(60)  # the bank's answer is on its way; the process is killed before it comes
    return "charged"


@agent(tools=[charge_card])
async def till(turn: Turn) -> Move:
    """Takes money."""
    state = await turn.call(charge_card, order="1042", euros=49)
    return turn.complete(f"Order 1042 is paid: 49 EUR {state}.")
