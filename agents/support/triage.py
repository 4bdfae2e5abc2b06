"""triage: takes every request first, finds out who writes and what they want, and gives it on.

Accepts anything. Gives work to billing and technical, and keeps from technical who the customer is: what
identifies a person carries the label `pii`, whoever brought it and whatever the model says.
"""

from pathlib import Path

from agents.support.tools import find_customer, search_help, service_status
from mesh.agent import Agent, Move, Turn
from mesh.model.choose import model_for
from mesh.model.instructions import load_instructions
from mesh.model.loop import drive

HERE = Path(__file__).parent
INSTRUCTIONS = load_instructions(HERE / "prompts" / "triage.md")
TOOLS = (find_customer, search_help, service_status)
LABELS = {"text": ("pii",), "customer_name": ("pii",), "email": ("pii",), "phone": ("pii",)}
"""A customer's own words name whoever they please, so that they are personal data as a whole."""


async def handle(turn: Turn) -> Move:
    """Find out who writes and what they want; answer, or give the work on."""
    model = model_for(turn.agent, script=HERE / "rules.toml")
    return await drive(turn, model, instructions=INSTRUCTIONS.text, tools=TOOLS, labels=LABELS)


agent = Agent(
    name="triage",
    handler=handle,
    version="1",
    description="Finds out who the customer is and what they want; answers general questions.",
    prompt_version=INSTRUCTIONS.version,
    tools=TOOLS,
)
