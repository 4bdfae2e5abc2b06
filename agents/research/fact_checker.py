"""fact-checker: holds what was found against every source, and says where they disagree.

Accepts the intent `check`, and uses the result of a search. Where sources disagree it is a lead itself: it
has the searcher look a second time, a level deeper. Delivers the facts `verdict`, `holds` and `values`.
"""

from pathlib import Path

from agents.research.tools import check_claim, read_document
from mesh.model import WORK, ClaudeAgent

HERE = Path(__file__).parent

agent = ClaudeAgent(
    "fact-checker",
    description="Holds a claim against every source, and says where they disagree.",
    instructions=HERE / "prompts" / "fact-checker.md",
    tools=(check_claim, read_document),
    model=WORK,
    script=HERE / "rules.toml",
)
