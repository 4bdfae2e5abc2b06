"""screening: judges applications by skills and years alone.

Accepts the intent `screen` with the facts `candidate_id` and `vacancy_id`. It has no clearance: it works on
ids and never learns who applies. Hands back where something is missing; every rejection goes to compliance.
"""

from pathlib import Path

from agents.recruiting.common import LABELS
from agents.recruiting.matching import match_profile
from mesh.model import WORK, ClaudeAgent

HERE = Path(__file__).parent
TOOLS = (match_profile,)

agent = ClaudeAgent(
    "screening",
    description="Judges by skills and years whether a candidate fits. Knows candidates by id only.",
    instructions=HERE / "prompts" / "screening.md",
    tools=TOOLS,
    model=WORK,
    script=HERE / "rules.toml",
    labels=LABELS,
)
