"""The code fleet's turns: what each reader proposes, and that none of them can change anything."""

from pathlib import Path
from typing import Any

import pytest

from agents.code.swarm import historian, mender, specifier, tracer
from agents.code.tools import check_out, edit_file, run_tests, undo_edit
from mesh.agent import Constraints, Tool
from mesh.agent.errors import ActionNotAllowed
from mesh.model.prompt import context_now
from mesh.testing import turn
from protocol.wire.moves import Deliver

READERS = (historian, tracer, specifier)
EFFECTS = (check_out, edit_file, undo_edit)


def failing(project: str, key: str = "key") -> dict[str, Any]:
    """Return the facts of a reader's task: a clone of a project, and how its tests fail."""
    there = check_out(project, idempotency_key=key)
    failure = run_tests(there["workspace"], there["commit"])
    return {"workspace": there["workspace"], "failure": failure}


async def delivered(reader: Any, facts: dict[str, Any]) -> Deliver:
    move = await reader(turn(agent=reader.name, topology="swarm", task=reader.name, facts=facts))
    assert isinstance(move, Deliver)
    return move


async def test_each_reader_proposes_what_it_can_know(scratch: Path) -> None:
    for project, by in (("prices", historian), ("slugs", tracer)):
        facts = failing(project)
        for reader in READERS:
            move = await delivered(reader, facts)
            edits = [fact.value for fact in move.facts if fact.key == "edits"]
            assert bool(edits) == (reader is by), (project, move)


def test_no_reader_has_a_tool_that_changes_anything() -> None:
    for reader in READERS:
        assert [tool.name for tool in reader.tools if isinstance(tool, Tool) and tool.effect] == []
    of_mender = {tool.name for tool in mender.tools if isinstance(tool, Tool) and tool.effect}
    assert of_mender == {tool.name for tool in EFFECTS}


async def test_a_turn_that_is_read_only_is_refused_every_effect_before_it_happens(scratch: Path) -> None:
    there = check_out("prices", idempotency_key="key")
    reading = turn(agent="mender", constraints=Constraints(read_only=True))
    edit = {"workspace": there["workspace"], "path": "prices/total.py", "old": "int(cents)", "new": "0"}
    for tool, given in (
        (edit_file, edit),
        (check_out, {"project": "slugs"}),
        (undo_edit, {"workspace": there["workspace"], "commit": there["commit"]}),
    ):
        with pytest.raises(ActionNotAllowed):
            await reading.call(tool, **given)
    assert [each.name for each in (scratch / "origins").iterdir()] == ["prices"]
    assert (
        "return int(cents)" in (scratch / "workspaces" / there["workspace"] / "prices/total.py").read_text()
    )
    offered = context_now(reading, [tool for tool in mender.tools if isinstance(tool, Tool)]).tools
    assert not {tool.name for tool in EFFECTS} & set(offered)
