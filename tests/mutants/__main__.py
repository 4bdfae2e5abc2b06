"""Put every mutant into a copy of the tree, one at a time, and name those that no test notices.

    python -m tests.mutants            # all chapters: hours
    python -m tests.mutants swarm budget

A mutant that its chapter's own tests let live meets all tests of the protocol and of replay. One that lives
on needs a reason in `reasons.toml`, where `chapter` holds `"was => now" = "why"`. It exits 1 for a survivor
without a reason, and for a reason whose mutant dies.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.mutants.mutations import Mutant, mutants

ROOT = Path(__file__).parents[2]
REASONS = Path(__file__).with_name("reasons.toml")
UNIT = "tests/unit/protocol/"
CHAPTERS = {
    "swarm": ("test_swarm", "test_offered_again", "test_board"),
    "labels": ("test_carried", "test_withheld_keys", "test_withheld_tasks"),
    "budget": ("test_budget", "test_sums", "test_spending"),
    "admission": ("test_admission", "test_control"),
    "rules": ("test_rules", "test_rules_path", "test_rules_limits"),
    "task_rules": ("test_task_rules", "test_task_limits", "test_task_names"),
    "timers": ("test_timers", "test_timers_clock", "test_task_ends"),
}
"""The chapters of `protocol/domain` that are tried, and the tests that each meets first."""
EVERYTHING = ("tests/unit/protocol", "tests/unit/replay")
LEAST_TIMEOUT_S, TIMES_LONGER = 60.0, 10
"""A mutant that takes so many times what the tests take without it hangs: it is noticed."""


def say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


class Trial:
    """A copy of the tree, in which one file at a time is changed."""

    def __init__(self, tree: Path) -> None:
        self.tree = tree
        for room in ("protocol", "mesh", "agents", "tests"):
            shutil.copytree(ROOT / room, tree / room, ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copy(ROOT / "pyproject.toml", tree)

    def lives(self, tests: Sequence[str], timeout_s: float | None = None) -> bool:
        """Return True if these tests pass on the tree as it is."""
        command = [sys.executable, "-m", "pytest", "-q", "-x", "-n", "0", "-p", "no:cacheprovider", *tests]
        environment = {**os.environ, "PYTHONPATH": str(self.tree), "PYTHONDONTWRITEBYTECODE": "1"}
        try:
            done = subprocess.run(
                command, cwd=self.tree, env=environment, capture_output=True, timeout=timeout_s, check=False
            )
        except subprocess.TimeoutExpired:
            return False
        return done.returncode == 0

    def survivors(self, chapter: str, *, quick: bool = False) -> Iterator[Mutant]:
        """Yield the mutants of a chapter that no test notices; if `quick`, none of the chapter's own."""
        file = self.tree / "protocol" / "domain" / f"{chapter}.py"
        source = file.read_text()
        own = [f"{UNIT}{name}.py" for name in CHAPTERS[chapter]]
        began = time.monotonic()
        if not self.lives(own):
            raise SystemExit(f"{chapter}: its tests fail without a mutant")
        timeout_s = max(LEAST_TIMEOUT_S, TIMES_LONGER * (time.monotonic() - began))
        count = 0
        for count, mutant in enumerate(mutants(source), 1):  # noqa: B007  # told at the end
            file.write_text(mutant.source)
            if self.lives(own, timeout_s) and (quick or self.lives(EVERYTHING)):
                yield mutant
        file.write_text(source)
        say(f"{chapter}: {count} mutants tried")


def main() -> int:
    """Try the named chapters, or all of them."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("chapters", nargs="*", default=list(CHAPTERS), metavar="CHAPTER")
    parser.add_argument("--quick", action="store_true", help="run the chapter's own tests alone")
    given = parser.parse_args()
    chapters: list[str] = given.chapters
    reasons = tomllib.loads(REASONS.read_text())
    wrong = 0
    with tempfile.TemporaryDirectory() as directory:
        trial = Trial(Path(directory) / "tree")
        for chapter in chapters:
            known = dict(reasons.get(chapter, {}))
            for mutant in trial.survivors(chapter, quick=given.quick):
                reason = known.pop(mutant.name, None)
                if reason is None:
                    wrong += 1
                    say(f"{chapter}.py:{mutant.line}: lives: {mutant.name}")
            for name in known:
                wrong += 1
                say(f"{chapter}: dies, and has a reason to live: {name}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
