"""The readers: historian, tracer and specifier. Each looks for the cause in a way of its own, all at once.

Each accepts one intent (`history`, `trace`, `specification`) with the facts `workspace` and `failure`,
and delivers the fact `edits`: what it would change. None of them has a tool that changes anything.
"""

from pathlib import Path

from agents.code.tools import find_misspelling, list_files, read_file, read_history, search_code
from mesh.agent import Tool
from mesh.model import WORK, ClaudeAgent

HERE = Path(__file__).parent


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
