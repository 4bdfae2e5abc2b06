"""front: reads what a customer writes, and gives it to the agent who can do it. A model decides."""

from pathlib import Path

from mesh.model import ROUTING, ClaudeAgent

HERE = Path(__file__).parent

front = ClaudeAgent(
    "front",
    description="Reads what a customer wants, and finds who can do it.",
    instructions=HERE / "prompts" / "front.md",
    handoffs=["orders"],
    model=ROUTING,
    script=HERE / "rules.toml",  # answers in the place of the model where there is no key
)
