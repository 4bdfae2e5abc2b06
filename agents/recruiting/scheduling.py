"""scheduling: books interviews and writes to candidates about them.

Accepts the intents `interview` and `reschedule` with the facts `candidate_id` and `vacancy_id`. It may see
who a candidate is, but not what they ask for. Gives the work on to offer where a vacancy is urgent.
"""

from pathlib import Path

from agents.recruiting.candidates import find_vacancy
from agents.recruiting.common import LABELS
from agents.recruiting.interviews import book_slot, list_slots
from mesh.model import ROUTING, ClaudeAgent

HERE = Path(__file__).parent
TOOLS = (book_slot, find_vacancy, list_slots)

agent = ClaudeAgent(
    "scheduling",
    description="Books interview slots, moves them, and writes to the candidate.",
    instructions=HERE / "prompts" / "scheduling.md",
    tools=TOOLS,
    model=ROUTING,
    script=HERE / "rules.toml",
    labels=LABELS,
)
