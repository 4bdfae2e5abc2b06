"""A trial: every mutant of a chapter meets the tests that run its lines, in a child of one warm process.

The tests are collected once. A child takes them over by fork, plants one mutant into the module that all
others have imported, and stops at the first test that fails. Before that, one child runs all tests without a
fault and learns which lines each of them runs, and how long it takes.
"""

import gc
import importlib
import inspect
import os
import pickle
import resource
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import FrameType, FunctionType, ModuleType
from typing import Any, NamedTuple, cast

import pytest
from _pytest.runner import runtestprotocol
from hypothesis import Phase, settings

from tests.mutants.mutations import Mutant, mutants

TRACED_S = 0.3
"""Watching takes time: a longer test is not watched to its end, and counts as running every line."""
LEAST_CPU_S, TIMES_LONGER = 2.0, 10
"""Where a test takes so many times what it takes without a mutant, it goes on for ever: that is noticed."""
ROOM_BYTES = 6 << 30
HANGS = -1


class Seen(NamedTuple):
    """What a test did without a fault."""

    cpu_s: float
    lines: Mapping[str, frozenset[int]] | None
    """The lines that it ran, by the file; None for a long test, which may run any."""

    def runs(self, path: str, lines: range | None) -> bool:
        """Return True if the test may have run one of these lines."""
        return lines is None or self.lines is None or not self.lines[path].isdisjoint(lines)


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
            quick: run no test that takes longer than `TRACED_S`.
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
        self._seen = _in_a_child(self._baseline)
        gc.freeze()
        failed = [name for name, seen in self._seen.items() if seen is None]
        if failed:
            raise pytest.UsageError(f"fail without a mutant: {', '.join(failed)}")
        if self._quick:
            self._items = [item for item in session.items if self._seen[item.nodeid].lines is not None]
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
        path = cast(str, module.__file__)
        tests = [item for item in self._items if self._seen[item.nodeid].runs(path, mutant.lines)]
        return sorted(tests, key=lambda item: self._seen[item.nodeid].cpu_s / (1 + self._kills[item.nodeid]))

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
        """Run all tests with each chapter's own source planted; None stands for one that fails."""
        for module in self._modules.values():
            plant(module, inspect.getsource(module))
        paths = [cast(str, module.__file__) for module in self._modules.values()]
        seen: dict[str, Seen | None] = {}
        for item, following in zip(self._items, [*self._items[1:], self._items[-1]], strict=True):
            lines: dict[str, set[int]] = {path: set() for path in paths}
            began = time.process_time()
            sys.settrace(_tracer(lines, began + TRACED_S))
            reports = runtestprotocol(item, log=False, nextitem=following)
            sys.settrace(None)
            took = time.process_time() - began
            fine = not any(report.failed for report in reports)
            ran = {path: frozenset(numbers) for path, numbers in lines.items()} if took <= TRACED_S else None
            seen[item.nodeid] = Seen(took, ran) if fine else None
        return seen


def _tracer(lines: Mapping[str, set[int]], until: float) -> Callable[[FrameType, str, Any], Any]:
    """Return what `sys.settrace` takes to note the lines that run, by the file; no more after `until`."""

    def enter(frame: FrameType, event: str, argument: Any) -> Any:
        numbers = lines.get(frame.f_code.co_filename)
        if numbers is None:
            return None
        if time.process_time() > until:
            sys.settrace(None)
            return None
        add = numbers.add
        add(frame.f_lineno)

        def trace(frame: FrameType, event: str, argument: Any) -> Any:
            add(frame.f_lineno)
            return trace

        return trace

    return enter


def _in_a_child(job: Callable[[], Any]) -> Any:
    """Return what a job returns in a child of this process; `HANGS` if the child dies."""
    ours, theirs = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(ours)
        try:
            with os.fdopen(theirs, "wb") as out:
                pickle.dump(job(), out)
        finally:
            os._exit(0)
    os.close(theirs)
    with os.fdopen(ours, "rb") as answer:
        told = answer.read()
    os.waitpid(pid, 0)
    return pickle.loads(told) if told else HANGS


# --- planting ---------------------------------------------------------------------------------------


def plant(module: ModuleType, source: str) -> None:
    """Put a changed source into a module that others have imported.

    Its functions and methods get the new code. A constant is replaced in each module that holds it.
    """
    fresh: dict[str, Any] = {"__name__": module.__name__, "__file__": module.__file__}
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
