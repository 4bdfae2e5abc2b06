"""docs/testing.md: its examples run, from top to bottom, in one process."""

import asyncio
import sys
from pathlib import Path

import pytest

import mesh.testing
from mesh.model import ClaudeAgent
from mesh.model.prompt import Instructions
from mesh.testing import EmbeddedBus, StrictModel, driven_by, fleet_of, says, turn
from tests.docs.pages import blocks, codes, read, section, table, tables

PAGE = read("testing.md")
BLOCKS = [block for block in blocks(PAGE) if block.language == "python"]


def test_every_example_does_what_the_page_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (desk,) = [block for block in BLOCKS if block.kind == 'title="desk.py"']
    (tmp_path / "desk.py").write_text(desk.text)
    told = [block.text for block in BLOCKS if not block.kind]
    assert len(told) >= 6
    assert all("assert " in text or "= turn(" in text or "court.wait" in text for text in told)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "desk", raising=False)
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-of-a-developer")
    exec(compile("\n".join(told), "testing.md", "exec"), {"__name__": "page"})


def test_the_bus_of_the_last_example_is_there(tmp_path: Path) -> None:
    (block,) = [block for block in BLOCKS if block.kind == 'title="bus"']
    names = {"EmbeddedBus": EmbeddedBus, "fleet": fleet_of("front", "greeter")}
    exec(compile(block.text, "testing.md", "exec"), names)
    assert asyncio.run(names["on_a_bus"](tmp_path))  # type: ignore[operator]


async def test_the_arguments_of_the_moves_are_those_that_a_model_is_offered() -> None:
    clerk = ClaudeAgent("clerk", instructions=Instructions("1", "Be brief."))
    with driven_by(StrictModel(says("done"))) as model:
        assert isinstance(model, StrictModel)
        await clerk(turn(agent="clerk", path=["front", "clerk"], peers=["front", "other"]))
    offered = {tool.name.replace("other", "…"): tool.schema for tool in model.prompts[0].tools}
    told = table(section(PAGE, "A model that says what you wrote"), "transfer_to_…")
    for name, must, may in ((codes(row[0])[0], codes(row[1]), codes(row[2])) for row in told):
        schema = offered.pop(name)
        assert sorted(schema["required"]) == sorted(must), name
        assert sorted(schema["properties"]) == sorted([*must, *may]), name
    assert {name for name in offered if not name.startswith("transfer_to_")} == set()


def test_what_the_page_takes_is_what_there_is() -> None:
    (taken,) = (rows for rows in tables(PAGE) if codes(rows[0][1]) == ["turn"])
    named = {name for row in taken for name in codes(row[1]) if name.isidentifier()}
    assert named <= set(mesh.testing.__all__)
