"""searcher: finds the documents that answer a question, all of them, whatever they say.

Accepts the intent `search` with the fact `question`. Delivers the fact `found`.
"""

from pathlib import Path

from agents.research.tools import read_document, search
from mesh.model import ROUTING, ClaudeAgent

HERE = Path(__file__).parent

agent = ClaudeAgent(
    "searcher",
    description="Finds the documents that answer a question.",
    instructions=HERE / "prompts" / "searcher.md",
    tools=(read_document, search),
    model=ROUTING,
    script=HERE / "rules.toml",
)
