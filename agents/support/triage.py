"""triage: takes every request first, finds out who writes and what they want, and gives it on.

Accepts anything. Gives work to billing and technical, and hides the customer's identity from technical: what
identifies a person carries the label `pii`, from every giver, and no model can change that.
"""

from pathlib import Path
from typing import Any

from agents.records import the_row
from agents.support import CustomerId, connected, service_status
from mesh.agent import ToolError, tool
from mesh.model import ROUTING, ClaudeAgent


@tool
def find_customer(email: str | None = None, customer_id: CustomerId | None = None) -> dict[str, Any]:
    """Find a customer by e-mail address or by id. Name and address are personal data (`pii`)."""
    if (email is None) == (customer_id is None):
        raise ToolError("Give either an e-mail address or a customer's id.")
    with connected() as db:
        row = the_row(
            db,
            f"There is no customer {email or customer_id}.",
            "SELECT id AS customer_id, name, email, area, status FROM customers WHERE email = ? OR id = ?",
            email,
            customer_id,
        )
    return dict(row)


@tool
def search_help(question: str) -> dict[str, Any]:
    """Look a general question up in the help pages: opening hours, paying, passwords, moving, notice."""
    asked = {word.strip(".,;:!?'\"()").lower() for word in question.split()}
    with connected() as db:
        pages = db.execute("SELECT topic, words, answer FROM help ORDER BY topic").fetchall()
    best = max(pages, key=lambda page: len(asked & set(page["words"].split())))
    if not asked & set(best["words"].split()):
        raise ToolError("No help page is about that.")
    return {"topic": best["topic"], "answer": best["answer"]}


# --- the agent -------------------------------------------------------------------------------------

HERE = Path(__file__).parent
LABELS = {"text": ("pii",), "customer_name": ("pii",), "email": ("pii",), "phone": ("pii",)}
"""A customer's own words may name any person, so they are personal data as a whole."""

agent = ClaudeAgent(
    "triage",
    description="Finds out who the customer is and what they want; answers general questions.",
    instructions=HERE / "prompts" / "triage.md",
    tools=(find_customer, search_help, service_status),
    model=ROUTING,
    script=HERE / "rules.toml",
    labels=LABELS,
)
