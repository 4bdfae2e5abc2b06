"""docs/durable-turns.md, effects.md, reference/journal.md: examples run, numbers and names are the code's."""

from pathlib import Path

import pytest

from mesh.agent import _attempts, _effects, _journal, _steps, definition
from mesh.agent._ahead import PROBE_S
from protocol.wire.config import LEASE_S, Fleet
from protocol.wire.ids import HUMAN
from tests.docs.pages import Block, blocks, read
from tests.servers import ran

PAGE = read("durable-turns.md") + read("effects.md") + read("reference/journal.md")
EXAMPLES = [block for block in blocks(PAGE) if block.language == "python"]


@pytest.mark.parametrize("block", EXAMPLES, ids=lambda block: f"line-{block.line}")
def test_an_example_runs(block: Block, tmp_path: Path) -> None:
    script = tmp_path / "example.py"
    script.write_text(block.text)
    done = ran(script)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr


def test_there_are_examples_and_each_checks_something() -> None:
    assert len(EXAMPLES) >= 5
    assert all("assert " in block.text for block in EXAMPLES)


def test_the_numbers_are_those_of_the_code() -> None:
    assert f"{_steps.MAX_STEPS:,} steps at most" in PAGE
    assert f"{_journal.MAX_STEP_BYTES // 1024} KiB" in PAGE
    assert f"more than {_steps.WINDOW} steps at once" in PAGE
    assert f"first {_effects.SHOWN_CHARS:,} characters" in PAGE
    assert f"`version_grace_s` ({definition.VERSION_GRACE_S:g} s)" in PAGE
    assert f"whole lease ({LEASE_S:g} s;" in PAGE
    assert _attempts.CRASHES == 5
    assert "Five more attempts" in PAGE


@pytest.mark.parametrize("reason", ["not_approved", "approval_expired"])
def test_the_reasons_are_those_of_the_code(reason: str) -> None:
    assert f"`{reason}`" in PAGE


def test_how_late_an_effect_may_begin_follows_from_leases_looks_and_heartbeats() -> None:
    """Shown to bound it by tests/unit/agent/test_executor.py and tests/runtime/test_stopping.py."""
    said, fleet = " ".join(PAGE.split()), Fleet(name="any", entry=HUMAN)
    assert f"half an agent's lease after the end: {fleet.lease_s / 2:g} s by default" in said
    assert f"The last look is {PROBE_S * 1e3:g} ms old at most" in said
    assert fleet.heartbeat_s == fleet.lease_s / 3
    assert f"a third of the lease later: {fleet.heartbeat_s:g} s" in said
    assert f"after a guard's lease: {fleet.guard_lease_s:g} s" in said
