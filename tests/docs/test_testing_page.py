"""docs/testing.md: its examples run, from top to bottom, in one process."""

import asyncio
import subprocess
import sys
from pathlib import Path

from mesh.testing import LocalMesh, fleet_of
from tests.docs.pages import DOCS, blocks
from tests.servers import ROOT

BLOCKS = [block for block in blocks((DOCS / "testing.md").read_text()) if block.language == "python"]


def test_every_example_does_what_the_page_says(tmp_path: Path) -> None:
    (desk,) = [block for block in BLOCKS if block.kind == 'title="desk.py"']
    (tmp_path / "desk.py").write_text(desk.text)
    told = [block.text for block in BLOCKS if not block.kind]
    assert len(told) >= 6
    assert all("assert " in text or "= turn(" in text or "court.wait" in text for text in told)
    script = tmp_path / "page.py"
    script.write_text("\n".join(told))
    done = subprocess.run(
        [sys.executable, script],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={"PYTHONPATH": str(ROOT)},
    )
    assert done.returncode == 0, done.stderr


def test_the_bus_of_the_last_example_is_there(tmp_path: Path) -> None:
    (block,) = [block for block in BLOCKS if block.kind == 'title="bus"']
    names = {"LocalMesh": LocalMesh, "fleet": fleet_of("front", "greeter")}
    exec(compile(block.text, "testing.md", "exec"), names)
    assert asyncio.run(names["on_a_bus"](tmp_path))  # type: ignore[operator]
