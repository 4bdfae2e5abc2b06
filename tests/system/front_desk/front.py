from pathlib import Path

from mesh.agent import tool
from mesh.model import ROUTING, ClaudeAgent


@tool
async def find_customer(email: str) -> dict[str, str]:
    """Find a customer by e-mail address."""
    return {"name": "Ada", "tier": "gold"}


front = ClaudeAgent(
    "front",
    instructions=Path(__file__).with_name("front.md"),
    tools=[find_customer],
    handoffs=["greeter"],
    model=ROUTING,
    script=Path(__file__).with_name("rules.toml"),
)
