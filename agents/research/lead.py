"""lead: the root. A planner says which steps answer a question, a synthesizer writes the answer.

Accepts a question about the Corran Isles in the request's text. `uncited` judges what the summariser
condensed: it cites documents, and just those that were found.
"""

import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from mesh.agent import Result, Turn
from mesh.model import Flaw, Supervisor

HERE = Path(__file__).parent
_CITED = re.compile(r"\bd-\d{4}\b")


def uncited(turn: Turn, results: Mapping[str, Result]) -> Iterable[Flaw]:
    """Return each summary's mistakes in citing: no document at all, or documents that nobody found."""
    for name, result in results.items():
        find = results.get(name.replace("sum-up", "find"))
        if not name.startswith("sum-up") or not result.delivered or find is None or not find.delivered:
            continue
        cited = set(_CITED.findall(result.summary))
        if not cited:
            yield Flaw(name, "no sentence without a document: cite those that it rests on", "summary")
        if unknown := sorted(cited - set(_CITED.findall(str(find.facts.get("found"))))):
            yield Flaw(name, f"cites {', '.join(unknown)}, which the search did not find", "summary")


agent = Supervisor(
    "lead",
    description="Plans the research, and answers with citations and contradictions.",
    planner=HERE / "prompts" / "planner.md",
    synthesizer=HERE / "prompts" / "synthesizer.md",
    check=uncited,
    script=HERE / "rules.toml",
)
