"""The faults: each is one, can be compiled, and leaves words for people alone; and how one is planted."""

import ast
import sys
import tomllib
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest

from tests.mutants.__main__ import CHAPTERS, REASONS, ROOT
from tests.mutants.mutations import mutants
from tests.mutants.trial import Seen, plant
from tests.mutants.watched import RAN, watched

RULE = """
MOST = 2
class Case:
    def open(self):
        return True
def rule(case, n, *, more=0):
    if n + more > MOST:
        return "refused"
    return case.open()
"""


def test_each_kind_of_place_is_changed_and_no_words_are() -> None:
    source = '''
def rule(case, *, most=2):
    """Say 1 thing."""
    if case.n > most and case.open:
        return refuse(detail="more than 2", labels=case.labels)
    case.count += 1
'''
    assert [f"{mutant.was} => {mutant.now}" for mutant in mutants(source)] == [
        "2 => 3",
        "case.n > most and case.open => (not (case.n > most and case.open))",
        "case.n > most and case.open => ((case.n > most) or (case.open))",
        "case.n > most => (case.n >= most)",
        "refuse(detail=\"more than 2\", labels=case.labels) => refuse(detail='more than 2')",
        "case.count += 1 => pass",
        "1 => 2",
    ]


@pytest.mark.parametrize("chapter", CHAPTERS)
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


@pytest.fixture
def planted() -> Iterator[tuple[ModuleType, ModuleType]]:
    """Return a module with a rule, and another that has imported from it."""
    rules, user = ModuleType("planted_rules"), ModuleType("planted_user")
    rules.__file__ = user.__file__ = "<planted>"
    sys.modules |= {each.__name__: each for each in (rules, user)}
    exec(compile(RULE, "<planted>", "exec"), vars(rules))
    exec("from planted_rules import MOST, Case, rule", vars(user))
    yield rules, user
    for each in (rules, user):
        del sys.modules[each.__name__]


@pytest.mark.parametrize(
    ("was", "now", "seen"),
    [
        ("MOST = 2", "MOST = 3", [3, True, True, "refused"]),
        ("return True", "return False", [2, False, "refused", "refused"]),
        ("more=0", "more=1", [2, "refused", "refused", "refused"]),
        ("+ more > MOST", "+ more >= MOST", [2, "refused", "refused", "refused"]),
        ("n + more > MOST", "False", [2, True, True, True]),
    ],
    ids=["constant", "method", "default", "function", "rule"],
)
def test_whoever_has_imported_a_name_runs_what_is_planted(
    planted: tuple[ModuleType, ModuleType], was: str, now: str, seen: list[object]
) -> None:
    rules, user = planted
    case = user.Case()
    assert [user.MOST, *(user.rule(case, n) for n in (2, 3, 4))] == [2, True, "refused", "refused"]
    plant(rules, RULE.replace(was, now))
    assert [user.MOST, *(user.rule(case, n) for n in (2, 3, 4))] == seen


WATCHED = """
def rule(n):
    '''Say it.'''
    if n == 1:
        found = lambda: (
            n + 1)
        return found
    elif n == 2:
        n += 1
    match n:
        case 3 if n:
            return n
        case _:
            return None
"""


@pytest.mark.parametrize(
    ("n", "lines"),
    [(1, {3, 4, 5, 7}), (2, {3, 4, 8, 9, 10, 11, 12, 13}), (4, {3, 4, 8, 10, 11, 13, 14})],
    ids=["lambda is returned", "elif", "last case"],
)
def test_a_watched_chapter_notes_each_statement_that_runs(n: int, lines: set[int]) -> None:
    ran = set[int]()
    chapter: dict[str, Any] = {RAN: ran}
    exec(compile(watched(WATCHED), "<watched>", "exec"), chapter)
    assert ran == set()
    found = chapter["rule"](n)
    assert ran == lines
    if callable(found):
        assert found() == 2
        assert ran == lines | {6}


def test_a_test_meets_the_mutants_of_the_statements_that_it_runs() -> None:
    found = {mutant.name: mutant.lines for mutant in mutants(RULE)}
    assert found["2 => 3"] is None
    assert found["0 => 1"] is None
    assert found["rule: n + more > MOST => (n + more >= MOST)"] == range(7, 8)
    runs_the_end = Seen(0.1, {"rules": frozenset({6, 7, 9})})
    assert runs_the_end.runs("rules", range(7, 8))
    assert not runs_the_end.runs("rules", range(8, 9))
    assert runs_the_end.runs("rules", None)
