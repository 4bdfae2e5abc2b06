"""intake: reads what applicants write, finds or creates their record, and gives the work on.

Accepts anything. Gives applications to screening, new dates to scheduling and offers after an interview to
offer. Whoever applies is kept from screening and compliance: what identifies a person carries the label
`pii`, and what they ask for `salary`, whoever brought it and whatever the model says.
"""

from pathlib import Path

from agents.recruiting.candidates import (
    apply_for,
    find_candidate,
    find_vacancy,
    list_applications,
    list_vacancies,
    note_details,
    read_papers,
    register_candidate,
)
from agents.recruiting.common import LABELS
from mesh.model import ROUTING, ClaudeAgent

HERE = Path(__file__).parent
TOOLS = (
    apply_for,
    find_candidate,
    find_vacancy,
    list_applications,
    list_vacancies,
    note_details,
    read_papers,
    register_candidate,
)

agent = ClaudeAgent(
    "intake",
    description="Reads applications, keeps the candidates' records, answers questions about vacancies.",
    instructions=HERE / "prompts" / "intake.md",
    tools=TOOLS,
    model=ROUTING,
    script=HERE / "rules.toml",
    labels=LABELS,
)
