"""The book of runs: its head has the sum of its lines, and a run adds one."""

from pathlib import Path

import pytest
from msgspec.structs import replace

from tests.drill import results
from tests.drill.check import check
from tests.drill.results import RESULTS, Run, book, read_rows, record, run_of, summed
from tests.drill.tests.scene import changed, clean


def a_run(**other: object) -> Run:
    found = run_of(check(clean()), seed=7, servers=3)
    return Run(**{**{name: getattr(found, name) for name in Run.__dataclass_fields__}, **other})


def test_the_book_of_this_repository_has_the_sum_of_its_lines_in_its_head() -> None:
    text = RESULTS.read_text()
    assert text == book(read_rows(text))


def test_a_step_is_an_event_a_deed_or_a_fault() -> None:
    evidence = clean()
    events = sum(map(len, evidence.bodies.values()))
    assert check(evidence).steps == events + len(evidence.deeds) + len(evidence.faults)
    without = check(changed(evidence, deeds=(), faults=()))
    assert without.steps == events > 0


def test_a_run_says_what_was_broken_and_what_came_of_it() -> None:
    findings = check(clean())
    run = run_of(findings, seed=7, servers=3)
    assert (run.seed, run.servers, run.requests, run.steps) == (7, 3, findings.requests, findings.steps)
    assert run.faults == {"failpoint": 1, "kill": 1}  # it died in `effect.ran`
    assert (run.lost, run.duplicated, run.in_doubt, run.breaches) == (0, 0, 0, 0)
    broken = run_of(
        replace(findings, lost=2, duplicated=3, in_doubt=4, breaches=(None,) * 5), seed=1, servers=1
    )
    assert (broken.lost, broken.duplicated, broken.in_doubt, broken.breaches) == (2, 3, 4, 5)


def test_each_run_is_a_line_and_adds_to_the_sum(tmp_path: Path) -> None:
    path = tmp_path / "book.md"
    runs = [
        a_run(steps=1_200),
        a_run(faults={}, lost=1, breaches=2),
        a_run(steps=3, in_doubt=1, duplicated=4),
    ]
    for run in runs:
        record(path, run)
    text = path.read_text()
    assert read_rows(text) == runs
    assert text == book(runs)
    whole = summed(runs)
    assert whole.steps == sum(run.steps for run in runs)
    assert (whole.runs, whole.lost, whole.duplicated, whole.in_doubt, whole.breaches) == (3, 1, 4, 1, 2)
    assert f"**{whole.steps:,} steps in 3 runs: 1 lost, 4 duplicated, 1 in doubt, 2 breaches.**" in text
    assert sum(line.startswith("| 20") for line in text.splitlines()) == 3


def test_a_line_that_is_none_is_an_error() -> None:
    with pytest.raises(ValueError, match="unpack"):
        read_rows(book([]) + "| 2026-01-01 | abc |\n")


def test_the_commit_is_named(tmp_path: Path) -> None:
    assert results.commit() not in ("", "unknown")
    assert results.commit(tmp_path) == "unknown"
