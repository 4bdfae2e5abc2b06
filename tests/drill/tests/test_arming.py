"""Failpoints: armed in a directory, claimed by one process, passed by all that were told of none."""

import signal
from pathlib import Path

import pytest

from mesh.service.failpoints import VARIABLE
from tests.docs.pages import table
from tests.drill import failpoints
from tests.drill.failpoints import FAILPOINTS, UnknownFailpoint
from tests.servers import ROOT, child


async def test_an_armed_failpoint_ends_one_process_after_the_passes_that_it_grants(tmp_path: Path) -> None:
    failpoints.arm(tmp_path, "turn.taken", passes=2)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(VARIABLE, str(tmp_path))
        async with (
            child("tests.drill.tests.failpoint_process", "turn.taken", "3") as first,
            child("tests.drill.tests.failpoint_process", "turn.taken", "2") as second,
        ):
            assert [await second.line("passed") for _ in range(2)] == ["passed 0", "passed 1"]
            assert await second.ended() == 0
            assert [await first.line("passed") for _ in range(2)] == ["passed 0", "passed 1"]
            assert await first.ended() == -signal.SIGKILL
            pid = first.pid
    (claim,) = failpoints.claims(tmp_path)
    assert claim.failpoint == "turn.taken"
    assert claim.pid == pid
    assert not failpoints.disarm(tmp_path, "turn.taken")


async def test_a_process_that_was_told_of_no_directory_passes(tmp_path: Path) -> None:
    failpoints.arm(tmp_path, "turn.taken")
    async with child("tests.drill.tests.failpoint_process", "turn.taken", "1") as process:
        assert await process.ended() == 0
    assert failpoints.claims(tmp_path) == []
    assert failpoints.disarm(tmp_path, "turn.taken")


def test_a_failpoint_that_does_not_exist_cannot_be_armed(tmp_path: Path) -> None:
    with pytest.raises(UnknownFailpoint, match=r"no such failpoint: 'turn\.taking'"):
        failpoints.arm(tmp_path, "turn.taking")


def test_every_failpoint_is_reached_somewhere_in_the_code() -> None:
    files = (path for path in (ROOT / "mesh").rglob("*.py") if path.name != "failpoints.py")
    code = "".join(path.read_text() for path in files)
    assert [name for name in FAILPOINTS if f'"{name}"' not in code] == []


def test_the_page_about_the_drill_has_every_failpoint() -> None:
    rows = [f"| `{each.name}` | {each.written} | {each.unwritten} |" for each in FAILPOINTS.values()]
    assert table((ROOT / "tests" / "drill" / "README.md").read_text(), next(iter(FAILPOINTS))) == [
        [cell.strip() for cell in row.strip("| ").split(" | ")] for row in rows
    ]
