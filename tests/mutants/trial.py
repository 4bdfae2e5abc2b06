"""A trial: every mutant of a chapter meets the tests that run its lines, in a child of one warm process.

The tests are collected once. A child takes them over by fork, plants one mutant into the module that all
others have imported, and stops at the first test that fails. Before that, one child runs all tests without a
fault, over chapters that are watched, and learns which lines each test runs and how long it takes.
"""

import ast
import gc
import importlib
import inspect
import itertools
import os
import pickle
import resource
import signal
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import FunctionType, ModuleType
from typing import Any, NamedTuple, cast

import pytest
from _pytest.runner import runtestprotocol
from hypothesis import Phase, settings

from tests.mutants.mutations import Mutant, mutants
from tests.mutants.watched import RAN, watched

QUICK_CPU_S = 3.0
"""What the tests of one mutant may take where somebody is in a hurry."""
LEAST_CPU_S, TIMES_LONGER = 2.0, 10
"""Where a test takes so many times what it takes without a mutant, it goes on for ever: that is noticed."""
ROOM_BYTES = 6 << 30
HANGS = -1


class Seen(NamedTuple):
    """What a test did without a fault."""

    cpu_s: float
    lines: Mapping[str, frozenset[int]]
    """The first lines of the statements that it ran, by the chapter."""

    def runs(self, chapter: str, lines: range | None) -> bool:
        """Return True if the test ran one of these lines."""
        return lines is None or not self.lines[chapter].isdisjoint(lines)


class Outcome(NamedTuple):
    """What came of a mutant."""

    mutant: Mutant
    noticed_by: str | None
    """The test that failed; None if the mutant lives."""
    tests: int
    """How many tests ran."""


class Trial:
    """A plugin of pytest that tries mutants where the tests would run."""

    def __init__(
        self, chapters: Sequence[str], tell: Callable[[str, Iterator[Outcome]], None], *, quick: bool = False
    ) -> None:
        """Keep what is tried; `tell` gets each chapter's outcomes as they come.

        Args:
            quick: spend no more than `QUICK_CPU_S` on a mutant, on the tests that are quickest.
        """
        self._quick = quick
        self._modules = {name: importlib.import_module(f"protocol.domain.{name}") for name in chapters}
        self._tell = tell
        self._items: list[pytest.Item] = []
        self._seen: dict[str, Seen] = {}
        self._kills: Counter[str] = Counter()

    def pytest_configure(self) -> None:
        """Let property tests take the same examples each time, and shrink none: a failure is enough."""
        phases = [Phase.explicit, Phase.generate]
        settings.register_profile("mutants", settings(), phases=phases, derandomize=True, database=None)
        settings.load_profile("mutants")

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Try every mutant, in place of running the tests."""
        self._items = session.items
        gc.unfreeze()  # what is about to be walked
        seen = _in_a_child(self._baseline, says_why=True)
        gc.freeze()
        if seen == HANGS:
            raise pytest.UsageError("no mutant was tried: the tests themselves ended their process")
        self._seen = seen
        failed = [name for name, did in self._seen.items() if did is None]
        if failed:
            raise pytest.UsageError(f"fail without a mutant: {', '.join(failed)}")
        for name, module in self._modules.items():
            self._kills.clear()
            self._tell(name, self._outcomes(module))
        return True

    def _outcomes(self, module: ModuleType) -> Iterator[Outcome]:
        for mutant in mutants(inspect.getsource(module)):
            tests = self._tests(module, mutant)
            number = _in_a_child(lambda: self._first_failed(module, mutant, tests))  # noqa: B023
            if number is None:
                yield Outcome(mutant, None, len(tests))
                continue
            if number == HANGS:
                yield Outcome(mutant, "goes on for ever", len(tests))
                continue
            self._kills[tests[number].nodeid] += 1
            yield Outcome(mutant, tests[number].nodeid, number + 1)

    def _tests(self, module: ModuleType, mutant: Mutant) -> list[pytest.Item]:
        """Return the tests that run a mutant's lines; those first that are quick and noticed others."""
        chapter = module.__name__
        tests = [item for item in self._items if self._seen[item.nodeid].runs(chapter, mutant.lines)]
        tests.sort(key=lambda item: self._seen[item.nodeid].cpu_s / (1 + self._kills[item.nodeid]))
        if self._quick:
            spent = itertools.accumulate(self._seen[item.nodeid].cpu_s for item in tests)
            tests = [item for item, cpu_s in zip(tests, spent, strict=True) if cpu_s <= QUICK_CPU_S]
        return tests

    def _first_failed(self, module: ModuleType, mutant: Mutant, tests: Sequence[pytest.Item]) -> int | None:
        resource.setrlimit(resource.RLIMIT_AS, (ROOM_BYTES, ROOM_BYTES))
        plant(module, mutant.source)
        for number, item in enumerate(tests):
            following = tests[number + 1] if number + 1 < len(tests) else item
            most = LEAST_CPU_S + TIMES_LONGER * self._seen[item.nodeid].cpu_s
            signal.setitimer(signal.ITIMER_PROF, most)  # by default its signal ends the process
            if any(report.failed for report in runtestprotocol(item, log=False, nextitem=following)):
                return number
        return None

    def _baseline(self) -> dict[str, Seen | None]:
        """Run all tests over the watched chapters; None stands for one that fails."""
        ran: dict[str, set[int]] = {module.__name__: set() for module in self._modules.values()}
        for module in self._modules.values():
            setattr(module, RAN, ran[module.__name__])
            plant(module, watched(inspect.getsource(module)))
        seen: dict[str, Seen | None] = {}
        for item, following in zip(self._items, [*self._items[1:], self._items[-1]], strict=True):
            for lines in ran.values():
                lines.clear()
            began = time.process_time()
            reports = runtestprotocol(item, log=False, nextitem=following)
            took = time.process_time() - began
            lines_ran = {chapter: frozenset(lines) for chapter, lines in ran.items()}
            seen[item.nodeid] = None if any(report.failed for report in reports) else Seen(took, lines_ran)
        return seen


def _in_a_child(job: Callable[[], Any], *, says_why: bool = False) -> Any:
    """Return what a job returns in a child of this process; `HANGS` if the child dies.

    Args:
        says_why: print the error that the job ends with.
    """
    ours, theirs = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(ours)
        try:
            with os.fdopen(theirs, "wb") as out:
                pickle.dump(job(), out)
        except BaseException:
            if says_why:
                traceback.print_exc()
        finally:
            os._exit(0)
    os.close(theirs)
    with os.fdopen(ours, "rb") as answer:
        told = answer.read()
    os.waitpid(pid, 0)
    return pickle.loads(told) if told else HANGS


# --- planting ---------------------------------------------------------------------------------------


def plant(module: ModuleType, source: str | ast.Module) -> None:
    """Put a changed source into a module that others have imported.

    Its functions and methods get the new code. A constant is replaced in each module that holds it.
    """
    fresh: dict[str, Any] = {"__name__": module.__name__, "__file__": module.__file__}
    if isinstance(source, ast.Module):  # it notes what runs, from its import on
        fresh[RAN] = vars(module)[RAN]
    exec(compile(source, cast(str, module.__file__), "exec"), fresh)
    theirs = dict(_functions(vars(module), module.__name__))
    for name, function in _functions(fresh, module.__name__):
        theirs[name].__code__ = function.__code__
        theirs[name].__defaults__ = function.__defaults__
        theirs[name].__kwdefaults__ = function.__kwdefaults__
    changed = {name for name, value in fresh.items() if not callable(value) and not name.startswith("__")}
    # What a table of functions calls shall make and meet the classes that all others know.
    fresh |= {name: value for name, value in vars(module).items() if name not in changed}
    for name in changed:
        old, value = vars(module)[name], fresh[name]
        if value == old:
            continue
        for each in list(sys.modules.values()):
            if getattr(each, "__dict__", {}).get(name) is old:
                setattr(each, name, value)


def _functions(namespace: Mapping[str, Any], module: str) -> Iterator[tuple[str, FunctionType]]:
    """Yield the functions and methods that a module's namespace, or a class's, defines."""
    for value in list(namespace.values()):
        inner = value
        for name in ("__func__", "fget", "func", "__wrapped__"):
            inner = getattr(inner, name, inner) if not isinstance(inner, type) else inner
        if isinstance(inner, FunctionType) and inner.__module__ == module:
            yield inner.__qualname__, inner
        elif isinstance(value, type) and value.__module__ == module:
            yield from _functions(vars(value), module)
