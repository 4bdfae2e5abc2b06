"""Adding to a fleet file as text: comments and order stay as they are, since people wrote them."""

import json
import re
from collections.abc import Sequence
from pathlib import Path

from mesh.errors import UsageWrong
from mesh.fleet.file import FleetFileError, parse_fleet
from protocol.wire.ids import is_name

_AGENT_HEADER = re.compile(r"^\[agents\.[^\]]+\]")
_ANY_HEADER = re.compile(r"^\[")


def with_agent(
    file: Path,
    name: str,
    *,
    module: str | None,
    description: str,
    to: Sequence[str] | None,
    clearance: Sequence[str],
) -> str:
    """Return a fleet file's text with one more agent after the others. Raises UsageWrong, FleetFileError."""
    if not is_name(name):
        raise UsageWrong(f"not an agent's name: {name!r}; 1 to 24 of a-z 0-9 -, and not `human`")
    try:
        before = file.read_text()
    except OSError as missing:
        raise UsageWrong(f"{file}: {missing.strerror}") from missing
    fleet = parse_fleet(before, str(file))
    everybody = {*fleet.agents, *fleet.clients, *fleet.operators, *fleet.viewers, "admin", "guard"}
    if name in everybody:
        raise UsageWrong(f"{file} has somebody named {name!r} already")
    fields: list[tuple[str, object]] = []
    if module is not None:
        fields.append(("module", module))
    if description:
        fields.append(("description", description))
    if clearance:
        fields.append(("clearance", list(clearance)))
    if to is not None:
        fields.append(("to", list(to)))
    section = [f"[agents.{name}]", *(f"{key} = {json.dumps(value)}" for key, value in fields)]
    text = _inserted(before, section)
    try:
        parse_fleet(text, str(file))
    except FleetFileError as wrong:
        raise UsageWrong(f"{file} would not be right with it: {wrong}") from wrong
    return text


def _inserted(before: str, section: Sequence[str]) -> str:
    """Return the text with a section after the last agent's, or at the end where it has none."""
    lines = before.rstrip("\n").split("\n")
    agents = [at for at, line in enumerate(lines) if _AGENT_HEADER.match(line)]
    if not agents:
        return "\n".join((*lines, "", *section, ""))
    following = (at for at in range(agents[-1] + 1, len(lines)) if _ANY_HEADER.match(lines[at]))
    end = next(following, len(lines))
    while end > 0 and (not lines[end - 1].strip() or lines[end - 1].lstrip().startswith("#")):
        end -= 1  # a comment before the next section is that section's
    return "\n".join((*lines[:end], "", *section, *lines[end:], ""))
