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
from mesh.model import WORK, ClaudeAgent

HERE = Path(__file__).parent
TOOLS = (
    cancel_subscription,
    find_charge,
    find_duplicate_charges,
    list_charges,
    list_subscriptions,
    refund_charge,
)
LABELS = {"customer_name": ("pii",), "email": ("pii",), "phone": ("pii",)}

agent = ClaudeAgent(
    "billing",
    description="Charges, refunds, credits, returned devices, bills, subscriptions.",
    instructions=HERE / "prompts" / "billing.md",
    tools=TOOLS,
    model=WORK,
    script=HERE / "rules.toml",
    labels=LABELS,
)
