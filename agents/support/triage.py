"""triage: takes every request first, finds out who writes and what they want, and gives it on.

Accepts anything. Gives work to billing and technical, and keeps from technical who the customer is: what
identifies a person carries the label `pii`, whoever brought it and whatever the model says.
"""

from pathlib import Path

from agents.support.tools import find_customer, search_help, service_status
from mesh.model import ROUTING, ClaudeAgent

HERE = Path(__file__).parent
TOOLS = (find_customer, search_help, service_status)
LABELS = {"text": ("pii",), "customer_name": ("pii",), "email": ("pii",), "phone": ("pii",)}
"""A customer's own words name whoever they please, so that they are personal data as a whole."""

agent = ClaudeAgent(
    "triage",
    description="Finds out who the customer is and what they want; answers general questions.",
    instructions=HERE / "prompts" / "triage.md",
    tools=TOOLS,
    model=ROUTING,
    script=HERE / "rules.toml",
    labels=LABELS,
)
