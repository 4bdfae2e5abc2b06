"""summariser: condenses what a searcher found into a sentence or two, with its documents.

Accepts the intent `summarise`, and uses the result of a search. Delivers its summary.
"""

from pathlib import Path

from agents.research.tools import read_document
from mesh.model import ROUTING, ClaudeAgent

HERE = Path(__file__).parent

agent = ClaudeAgent(
    "summariser",
    description="Condenses what was found into a sentence or two.",
    instructions=HERE / "prompts" / "summariser.md",
    tools=(read_document,),
    model=ROUTING,
    script=HERE / "rules.toml",
)
