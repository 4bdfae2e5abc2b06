"""lead: the root, and its workers searcher, fact-checker and summariser.

The lead accepts a question about the Corran Isles in the request's text. A planner decides which steps answer
it, a synthesizer writes the answer. `uncited` checks that the summariser's text cites documents, and only
documents that were found. None of the workers has a tool that changes anything.
"""

import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from agents.research.tools import check_claim, read_document, search
from mesh.agent import Result, Turn
from mesh.model import ROUTING, WORK, ClaudeAgent, Flaw, Supervisor

HERE = Path(__file__).parent
_CITED = re.compile(r"\bd-\d{4}\b")


def uncited(turn: Turn, results: Mapping[str, Result]) -> Iterable[Flaw]:
    """Return each summary's mistakes in citing: no document at all, or documents that were not found."""
    for name, result in results.items():
        find = results.get(name.replace("sum-up", "find"))
        if not name.startswith("sum-up") or not result.delivered or find is None or not find.delivered:
            continue
        cited = set(_CITED.findall(result.summary))
        if not cited:
            yield Flaw(name, "no sentence without a document: cite those that it rests on", "summary")
        if unknown := sorted(cited - set(_CITED.findall(str(find.facts.get("found"))))):
            yield Flaw(name, f"cites {', '.join(unknown)}, which the search did not find", "summary")


lead = Supervisor(
    "lead",
    description="Plans the research, and answers with citations and contradictions.",
    planner=HERE / "prompts" / "planner.md",
    synthesizer=HERE / "prompts" / "synthesizer.md",
    check=uncited,
    script=HERE / "rules.toml",
)


# --- the workers -----------------------------------------------------------------------------------

searcher = ClaudeAgent(
    "searcher",
    description="Finds the documents that answer a question.",
    instructions=HERE / "prompts" / "searcher.md",
    tools=(read_document, search),
    model=ROUTING,
    script=HERE / "rules.toml",
)
"""Finds all documents that answer a question, whatever they say.

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
"""Compares what was found with every source, and reports where they disagree.

Accepts the intent `check`, and uses the result of a search. Where sources disagree it leads tasks itself: it
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
