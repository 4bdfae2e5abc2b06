"""The swarm: mender, its root, has a project read by three at once, and alone changes it.

A request names a shipped project (`project prices`). It is checked out and tested first, so that the readers
know how it fails. The writer finds the clone and the failure on the board, and the readers' findings in their
results. A person gets what no edit can fix.

Each reader looks for the cause in its own way. It accepts one intent (`history`, `trace`, `specification`)
with the facts `workspace` and `failure`, and delivers the fact `edits`: what it would change. No reader has a
tool that changes anything.
"""

import re
from collections.abc import Sequence
from pathlib import Path

from agents.code.tools import (
    check_out,
    edit_file,
    find_misspelling,
    list_files,
    read_file,
    read_history,
    run_tests,
    search_code,
    undo_edit,
)
from mesh.agent import Task, Tool, ToolRefused, Turn
from mesh.model import WORK, ClaudeAgent, Swarm

HERE = Path(__file__).parent
_PROJECT = re.compile(r"\bproject (?P<name>\w+)", re.IGNORECASE)
READS = {
    "history": "Which commit broke it?",
    "trace": "On which line does it break?",
    "specification": "What should it do?",
}
"""Tasks by intent, each with the question to answer."""


async def reads(turn: Turn) -> Sequence[Task]:
    """Return a task for each way to look; none if the project does not exist, or its tests pass."""
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
    await turn.post({**there, "failure": failure})  # for the writer, which begins when all readers are done
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
mender = Swarm(writer, reads=reads)


def _reader(name: str, description: str, *tools: Tool) -> ClaudeAgent:
    return ClaudeAgent(
        name,
        description=description,
        instructions=HERE / "prompts" / f"{name}.md",
        tools=(list_files, read_file, search_code, *tools),
        model=WORK,
        script=HERE / "rules.toml",
    )


historian = _reader("historian", "Looks for the commit that broke it.", read_history)
tracer = _reader("tracer", "Follows a failure to the line where it breaks.", find_misspelling)
specifier = _reader("specifier", "Finds out what the code should do.")
