"""compliance: reviews offers and rejections, and hands back what it finds something against.

Accepts the intents `review_offer` (with the fact `offer_id`) and `review_rejection` (with `candidate_id`,
`vacancy_id` and `reasons`). It sees pay, and never who somebody is. What came to it with `no_return` it does
not hand back: it settles that, or gives it to a person.
"""

from pathlib import Path

from agents.recruiting.common import LABELS
from agents.recruiting.reviews import check_offer, check_rejection, seal_offer, send_rejection
from mesh.model import WORK, ClaudeAgent

HERE = Path(__file__).parent
TOOLS = (check_offer, check_rejection, seal_offer, send_rejection)

agent = ClaudeAgent(
    "compliance",
    description="Reviews offers and rejections for discrimination, unequal pay and missing reasons.",
    instructions=HERE / "prompts" / "compliance.md",
    tools=TOOLS,
    model=WORK,
    script=HERE / "rules.toml",
    labels=LABELS,
)
