"""offer: drafts offers and, after compliance's review and a person's approval, sends them.

Accepts the intent `offer` with the facts `candidate_id` and `vacancy_id`. What is over the limit, or above
what a vacancy may be paid, is decided by a person.
"""

from pathlib import Path

from agents.recruiting.common import LABELS
from agents.recruiting.offers import draft_offer, interview_result, send_offer, suggest_pay
from mesh.model import WORK, ClaudeAgent

HERE = Path(__file__).parent
TOOLS = (draft_offer, interview_result, send_offer, suggest_pay)

agent = ClaudeAgent(
    "offer",
    description="Drafts offers, has them reviewed, and sends them once a person has approved.",
    instructions=HERE / "prompts" / "offer.md",
    tools=TOOLS,
    model=WORK,
    script=HERE / "rules.toml",
    labels=LABELS,
)
