"""The workers: searcher, fact-checker and summariser. None of them has a tool that changes anything."""

from pathlib import Path

from agents.research.tools import check_claim, read_document, search
from mesh.model import ROUTING, WORK, ClaudeAgent

HERE = Path(__file__).parent

searcher = ClaudeAgent(
    "searcher",
    description="Finds the documents that answer a question.",
    instructions=HERE / "prompts" / "searcher.md",
    tools=(read_document, search),
    model=ROUTING,
    script=HERE / "rules.toml",
)
"""Finds the documents that answer a question, all of them, whatever they say.

Accepts the intent `search` with the fact `question`. Delivers the fact `found`.
"""

fact_checker = ClaudeAgent(
    "fact-checker",
    description="Holds a claim against every source, and says where they disagree.",
    instructions=HERE / "prompts" / "fact-checker.md",
    tools=(check_claim, read_document),
    model=WORK,
    script=HERE / "rules.toml",
)
"""Holds what was found against every source, and says where they disagree.

Accepts the intent `check`, and uses the result of a search. Where sources disagree it is a lead itself: it
has the searcher look a second time, a level deeper. Delivers the facts `verdict`, `holds` and `values`.
"""

summariser = ClaudeAgent(
    "summariser",
    description="Condenses what was found into a sentence or two.",
    instructions=HERE / "prompts" / "summariser.md",
    tools=(read_document,),
    model=ROUTING,
    script=HERE / "rules.toml",
)
"""Condenses what a searcher found into a sentence or two, with its documents.

Accepts the intent `summarise`, and uses the result of a search. Delivers its summary.
"""
