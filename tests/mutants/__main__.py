"""Put every mutant into the domain, one at a time, and name those that no test notices.

    python -m tests.mutants            # all chapters
    python -m tests.mutants swarm budget

A mutant meets the tests of the protocol, and of replaying it, that run its lines. One that lives on needs a
reason in `reasons.toml`: under `[chapter]`, `"function: was => now" = "why"`. It exits 1 for a survivor
without a reason, and for a reason whose mutant dies.
"""

import argparse
import os
import sys
import time
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.mutants.trial import Outcome, Trial

ROOT = Path(__file__).parents[2]
REASONS = Path(__file__).with_name("reasons.toml")
CHAPTERS = ("swarm", "labels", "budget", "admission", "rules", "task_rules", "timers", "guardrails", "people")
"""The chapters of `protocol/domain` that are tried."""
TESTS = ("tests/unit/protocol", "tests/unit/replay/test_replay.py", "tests/unit/replay/test_whatif.py")
"""Those that play requests. What runs agents' code or exports a log starts processes."""


def say(line: str) -> None:
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()


def judge(chapter: str, outcomes: Iterator[Outcome]) -> int:
    """Say which mutants of a chapter live, and return how many are not as `reasons.toml` says."""
    known: dict[str, str] = tomllib.loads(REASONS.read_text()).get(chapter, {})
    lived: list[str] = []
    count = 0
    wrong: list[str] = []
    began = time.monotonic()
    for count, outcome in enumerate(outcomes, 1):  # noqa: B007  # told at the end
        mutant = outcome.mutant
        if outcome.noticed_by is not None:
            continue
        if mutant.name in known:
            lived.append(mutant.name)
            continue
        wrong.append(f"{chapter}.py:{mutant.line}: lives, of {outcome.tests} tests: {mutant.name}")
        say(wrong[-1])
    for name in known.keys() - set(lived):
        wrong.append(f"{chapter}: dies, and has a reason to live: {name}")
        say(wrong[-1])
    took = time.monotonic() - began
    say(
        f"{chapter}: {count} mutants in {took:.0f} s; {len(lived)} live with a reason, {len(wrong)} are wrong"
    )
    return len(wrong)


def main() -> int:
    """Try the named chapters, or all of them."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("chapters", nargs="*", default=list(CHAPTERS), metavar="CHAPTER")
    parser.add_argument("--quick", action="store_true", help="without arbitrary stories; the quickest tests")
    given = parser.parse_args()
    chapters: list[str] = given.chapters
    wrong = 0

    def tell(chapter: str, outcomes: Iterator[Outcome]) -> None:
        nonlocal wrong
        wrong += judge(chapter, outcomes)

    os.environ["MESH_TEST_COLD"] = "1"  # none of these tests starts a process
    os.chdir(ROOT)
    options = ["-q", "-n", "0", "-p", "no:cacheprovider", "--tb=native", "--capture=no"]
    options += ["--ignore-glob=*/test_any_*"] if given.quick else []
    ended = pytest.main([*options, *TESTS], plugins=[Trial(chapters, tell, quick=given.quick)])
    return 1 if wrong else int(ended)


if __name__ == "__main__":
    sys.exit(main())
