"""docs/python.md: its agent answers its scripts, on a real bus."""

import asyncio
import importlib
import sys
from pathlib import Path

import pytest

from mesh.testing import LocalMesh, MemorySteps, turn
from tests.docs.pages import blocks, read, written
from tests.servers import ran

PAGE = read("python.md")
BLOCKS = list(blocks(PAGE))
OURS_READ = """
[mypy]
follow_imports = skip
[mypy-orders,mesh.agent.*,protocol.*]
follow_imports = normal
"""
"""The page needs none of the vendors' 5,000 modules, and mypy takes many times as long to read them."""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The page's files, as modules that can be imported."""
    assert written(BLOCKS, tmp_path) == ["orders.py", "script.py", "service.py"]
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "orders", raising=False)
    return tmp_path


async def test_the_agent_answers_the_script_and_the_service(folder: Path, tmp_path: Path) -> None:
    refunds = importlib.import_module("orders").refunds
    async with LocalMesh([refunds], tmp_path / "mesh") as mesh:
        seed = tmp_path / "client.nk"
        seed.write_text(mesh.bus.keys["client"].seed)
        seed.chmod(0o600)
        found = {"NATS_URL": mesh.bus.url, "MESH_CREDENTIALS": str(seed)}
        for name in ("script.py", "service.py"):
            done = await asyncio.to_thread(ran, tmp_path / name, folder=tmp_path, **found)
            assert (done.stdout, done.returncode) == ("receipt for 1299\n", 0), done.stderr


def test_the_checks_of_the_page_hold(folder: Path) -> None:
    (shown,) = (block.text for block in BLOCKS if block.kind == "check")
    names = {"turn": turn, "MemorySteps": MemorySteps}
    exec(compile(shown, "python.md", "exec"), names)


def test_what_a_type_checker_says_is_as_the_page_has_it(folder: Path) -> None:
    (wrong,) = (block.text for block in BLOCKS if block.kind == "wrong")
    (said,) = (block.text for block in BLOCKS if block.kind == "mypy")
    (folder / "wrong.py").write_text(wrong)
    (folder / "mypy.ini").write_text(OURS_READ)
    done = ran("-m", "mypy", "--config-file=mypy.ini", "wrong.py", "--hide-error-context", folder=folder)
    assert said.strip() in done.stdout, done.stdout + done.stderr
