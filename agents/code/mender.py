"""mender: the root of a swarm. It has a project read by three at once, and is the only one that changes it.

A request names a project that ships (`project prices`). It is checked out and tested first, so that the
readers know how it fails. The writer finds the clone and the failure on the board, and what the readers found
in their results. A person gets what no edit mends.
"""

import re
from collections.abc import Sequence
from pathlib import Path

from agents.code.tools import check_out, edit_file, list_files, read_file, run_tests, search_code, undo_edit
from mesh.agent import Task, ToolRefused, Turn
from mesh.model import WORK, ClaudeAgent, Swarm

HERE = Path(__file__).parent
_PROJECT = re.compile(r"\bproject (?P<name>\w+)", re.IGNORECASE)
READS = {
    "history": "Which commit broke it?",
    "trace": "On which line does it break?",
    "specification": "What should it do?",
}
"""Tasks by intent, each with what it is to find out."""


async def reads(turn: Turn) -> Sequence[Task]:
    """Return a task for each way to look; none for a project that is not there, or whose tests pass."""
    named = _PROJECT.search(str(turn.facts.get("text", turn.handoff.summary)))
    if named is None:
        return ()
    try:
        there = await turn.call(check_out, project=named["name"])
    except ToolRefused:
        return ()  # the writer reads why
    failure = await turn.call(run_tests, workspace=there["workspace"], commit=there["commit"])
    if failure["passed"]:
        return ()
    await turn.post({**there, "failure": failure})  # for the writer, which begins when all is read
    facts = {"workspace": there["workspace"], "failure": failure}
    return [
        turn.task(intent, intent=intent, summary=why, facts=facts, carry=()) for intent, why in READS.items()
    ]


writer = ClaudeAgent(
    "mender",
    description="Mends a project whose tests fail, by what the readers find.",
    instructions=HERE / "prompts" / "mender.md",
    tools=(check_out, edit_file, list_files, read_file, run_tests, search_code, undo_edit),
    model=WORK,
    script=HERE / "rules.toml",
    max_calls=24,
)
agent = Swarm(writer, reads=reads)
