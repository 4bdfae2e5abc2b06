"""The faults themselves: each is one, can be compiled, and leaves words for people alone."""

import ast
import tomllib
from pathlib import Path

import pytest

from tests.mutants.__main__ import CHAPTERS, REASONS, ROOT, UNIT
from tests.mutants.mutations import mutants


def test_each_kind_of_place_is_changed_and_no_words_are() -> None:
    source = '''
def rule(case, *, most=2):
    """Say 1 thing."""
    if case.n > most and case.open:
        return refuse(detail="more than 2", labels=case.labels)
    case.count += 1
'''
    assert [mutant.name for mutant in mutants(source)] == [
        "2 => 3",
        "case.n > most and case.open => (not (case.n > most and case.open))",
        "case.n > most and case.open => ((case.n > most) or (case.open))",
        "case.n > most => (case.n >= most)",
        "refuse(detail=\"more than 2\", labels=case.labels) => refuse(detail='more than 2')",
        "case.count += 1 => pass",
        "1 => 2",
    ]


@pytest.mark.parametrize("chapter", ["budget", "labels"])
def test_every_mutant_of_a_chapter_can_be_parsed_and_means_something_else(chapter: str) -> None:
    source = (ROOT / "protocol" / "domain" / f"{chapter}.py").read_text()
    found = list(mutants(source))
    assert len(found) > 20
    meant = ast.dump(ast.parse(source))
    assert [mutant.name for mutant in found if ast.dump(ast.parse(mutant.source)) == meant] == []


def test_every_reason_is_of_a_mutant_that_there_is() -> None:
    for chapter, reasons in tomllib.loads(REASONS.read_text()).items():
        source = (ROOT / "protocol" / "domain" / f"{chapter}.py").read_text()
        assert reasons.keys() <= {mutant.name for mutant in mutants(source)}


@pytest.mark.parametrize("name", sorted({name for names in CHAPTERS.values() for name in names}))
def test_the_tests_of_a_chapter_exist(name: str) -> None:
    assert Path(ROOT / UNIT / f"{name}.py").is_file()
