"""The book of bounded drill runs, `RESULTS.md`: a line for each run, and the sum of all in its head.

A *step* is one thing that the checks look at: an event in the log, a deed in the ledger, or a fault. Steps of
an agent's journal are not counted: each of them stands beside a deed or an event.
"""

import re
import subprocess
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import NamedTuple

from tests.drill.failpoints import FAILPOINTS
from tests.drill.findings import Findings
from tests.servers import ROOT

RESULTS = Path(__file__).with_name("RESULTS.md")
_PLACE = "tests/drill/RESULTS.md"
ASKED_STEPS = 1_000_000
"""How many steps are asked for in the end, with nothing lost, doubled or in doubt."""
_COLUMNS = (
    *("date", "commit", "seed", "servers", "requests", "faults", "steps"),
    *("lost", "duplicated", "in doubt", "breaches"),
)
_TABLE = f"| {' | '.join(_COLUMNS)} |\n|{'---|' * len(_COLUMNS)}\n"
_HEAD = """\
# Runs of the drill

Each line is one bounded run of [the drill](README.md). `--record tests/drill/RESULTS.md` has added it. A
*step* is one thing that the checks look at: an event in the log, a deed in the ledger (a tool's effect, a
model call), or a fault that was done. *In doubt* is what is in doubt still when the run ends. A fault
`server-lost` is a cut of `tests.drill.lost_time`, which does not count what is in doubt: its 0 says nothing.

The goal is {asked:,} steps with nothing lost, duplicated or in doubt.

{sum}

"""


@dataclass(frozen=True, kw_only=True)
class Run:
    """One line: what was run, and what came of it."""

    date: str
    commit: str
    """Abbreviated; `-dirty` at its end if files were changed."""
    seed: int
    servers: int
    requests: int
    faults: Mapping[str, int]
    """By kind; deaths in failpoints are one kind."""
    steps: int
    lost: int
    duplicated: int
    in_doubt: int
    breaches: int

    @property
    def row(self) -> str:
        faults = ", ".join(f"{count} {kind}" for kind, count in sorted(self.faults.items())) or "none"
        cells = [*astuple(self)]
        cells[_COLUMNS.index("faults")] = faults
        return f"| {' | '.join(map(str, cells))} |"


class Sum(NamedTuple):
    """The sum of several runs."""

    runs: int
    steps: int
    lost: int
    duplicated: int
    in_doubt: int
    breaches: int

    def __str__(self) -> str:
        return (
            f"**{self.steps:,} steps in {self.runs} runs: {self.lost} lost, {self.duplicated} duplicated, "
            f"{self.in_doubt} in doubt, {self.breaches} breaches.**"
        )


def run_of(findings: Findings, *, seed: int, servers: int) -> Run:
    """Return the line of a run that has just ended, of the commit that is checked out."""
    faults = Counter[str]()
    for kind, count in findings.faults.items():
        faults["failpoint" if kind in FAILPOINTS else kind] += count
    return Run(
        date=today(),
        commit=commit(),
        seed=seed,
        servers=servers,
        requests=findings.requests,
        faults=faults,
        steps=findings.steps,
        lost=findings.lost,
        duplicated=findings.duplicated,
        in_doubt=findings.in_doubt,
        breaches=len(findings.breaches),
    )


def today() -> str:
    return time.strftime("%Y-%m-%d", time.gmtime())


def commit(root: Path = ROOT) -> str:
    """Return what is checked out, whatever is in the book; `unknown` outside of a repository."""
    try:
        head = _git(root, "rev-parse", "--short=10", "HEAD")
        changed = _git(root, "status", "--porcelain", "--untracked-files=no", "--", ".", f":!{_PLACE}")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return f"{head}-dirty" if changed else head


def _git(root: Path, *words: str) -> str:
    done = subprocess.run(["git", *words], cwd=root, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def record(path: Path, run: Run) -> None:
    """Add a run to a book, which is begun if it is not there."""
    rows = [*read_rows(path.read_text()), run] if path.exists() else [run]
    path.write_text(book(rows))


def book(runs: Sequence[Run]) -> str:
    """Return the whole text of a book."""
    return (
        _HEAD.format(asked=ASKED_STEPS, sum=summed(runs)) + _TABLE + "".join(f"{run.row}\n" for run in runs)
    )


def summed(runs: Iterable[Run]) -> Sum:
    every = list(runs)
    figures = ("steps", "lost", "duplicated", "in_doubt", "breaches")
    return Sum(len(every), *(sum(getattr(run, name) for run in every) for name in figures))


def read_rows(text: str) -> list[Run]:
    """Return the runs of a book. Raises ValueError for a line that is none."""
    table = [line for line in text.splitlines() if line.startswith("|")]
    return [_read(line) for line in table[2:]]


def _read(line: str) -> Run:
    date, at_commit, seed, servers, requests, faults, *figures = (
        cell.strip() for cell in line.strip().strip("|").split("|")
    )
    counted = {kind: int(count) for count, kind in re.findall(r"(\d+) ([\w-]+)", faults)}
    steps, lost, duplicated, in_doubt, breaches = map(int, figures)
    return Run(
        date=date,
        commit=at_commit,
        seed=int(seed),
        servers=int(servers),
        requests=int(requests),
        faults=counted,
        steps=steps,
        lost=lost,
        duplicated=duplicated,
        in_doubt=in_doubt,
        breaches=breaches,
    )
