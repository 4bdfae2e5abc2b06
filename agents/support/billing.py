"""billing: charges, refunds, credits, returned devices, bills and subscriptions.

Accepts the intents `refund`, `credit`, `return`, `cancel` and `invoice` with the fact `customer_id`. Asks
technical to reset a device before its price is given back. What is over the limit is decided by a person.
"""

from pathlib import Path

from agents.support.tools import (
    cancel_subscription,
    find_charge,
    find_duplicate_charges,
    list_charges,
    list_subscriptions,
    refund_charge,
)
from mesh.agent import Agent, Move, Turn
from mesh.model.choose import model_for
from mesh.model.instructions import load_instructions
from mesh.model.loop import drive

HERE = Path(__file__).parent
INSTRUCTIONS = load_instructions(HERE / "prompts" / "billing.md")
TOOLS = (
    cancel_subscription,
    find_charge,
    find_duplicate_charges,
    list_charges,
    list_subscriptions,
    refund_charge,
)
LABELS = {"customer_name": ("pii",), "email": ("pii",), "phone": ("pii",)}


async def handle(turn: Turn) -> Move:
    """Settle what is about money, and say what was done."""
    model = model_for(turn.agent, script=HERE / "rules.toml")
    return await drive(turn, model, instructions=INSTRUCTIONS.text, tools=TOOLS, labels=LABELS)


agent = Agent(
    name="billing",
    handler=handle,
    version="1",
    description="Charges, refunds, credits, returned devices, bills, subscriptions.",
    prompt_version=INSTRUCTIONS.version,
    tools=TOOLS,
)
