"""The command: which measurements, how much of each, and in what form they are told."""

import argparse
import asyncio
import sys
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import NamedTuple

import msgspec

from bench.backup import backups
from bench.bulk import bulk
from bench.figures import Figure, Report, as_svg, as_text
from bench.flood import burst, floods
from bench.growth import Sizes, growth
from bench.guards import Shared, guards
from bench.lane import lanes
from bench.limits import limits
from bench.live_text import live_text
from bench.machine import machine
from bench.members import members
from bench.model_turn import model_turns
from bench.page import pages
from bench.reading import cold_reads, first_decisions, whole_log
from bench.recovery import recovery
from bench.replaying import Recorded, replays
from bench.replicas import replicas
from bench.rounds import Goal, Plan, compare
from bench.shadow import shadows
from bench.tree import Trees, trees
from mesh.service.logs import configure_logging

PARTS = (
    *("chain", "lane", "fold", "cold", "recovery", "first-decision", "model-turn", "live-text", "limits"),
    *("burst", "members", "flood", "growth", "page", "tree", "guards", "shadow", "bulk", "replay", "backup"),
    "replicas",
)


class Amount(NamedTuple):
    """How much of everything."""

    unsynced: Plan
    synced: Plan
    fold_events: int
    fold_rounds: int
    log_sizes: list[int]
    reads: int
    read_rounds: int
    kills: int
    starts: int
    turns: int
    askers: int
    minutes: int
    large: int
    fleets: list[int]
    flood: int
    page_events: int
    growth: Sizes
    trees: Trees
    guards: Shared
    many: int
    recorded: Recorded
    replicated: list[int]
    """Agents of the fleets on three servers."""


FULL = Amount(
    unsynced=Plan(5, 300, 1500),
    synced=Plan(5, 200, 600),
    fold_events=200_000,
    fold_rounds=5,
    log_sizes=[10_000, 1_000_000],
    reads=200,
    read_rounds=5,
    kills=5,
    starts=7,
    turns=200,
    askers=20,
    minutes=4,
    large=500,
    fleets=[5, 500],
    flood=12_000,
    page_events=5_000,
    growth=Sizes(
        events=(50, 100, 250, 500, 1000),
        facts=(5, 20, 50, 100, 200),
        open=(1000, 10_000, 100_000),
        agents=(5, 50, 500),
        requests=300,
        rounds=3,
    ),
    trees=Trees(plans=20, levels=10, tasks=(8, 64, 500), rounds=5),
    guards=Shared(guards=(1, 2, 4, 8), partitions=(4, 16, 64), requests=600, rounds=3),
    many=1_000,
    recorded=Recorded(turns=10_000, events=1_000_000, rounds=3),
    replicated=[5, 100, 300, 1_000],
)
QUICK = Amount(
    unsynced=Plan(2, 50, 200),
    synced=Plan(2, 30, 100),
    fold_events=20_000,
    fold_rounds=2,
    log_sizes=[10_000, 50_000],
    reads=50,
    read_rounds=2,
    kills=1,
    starts=2,
    turns=20,
    askers=3,
    minutes=1,
    large=100,
    fleets=[5, 50],
    flood=2_000,
    page_events=500,
    growth=Sizes(
        events=(20, 60, 200), facts=(5, 20, 50), open=(100, 1000), agents=(5, 20), requests=48, rounds=1
    ),
    trees=Trees(plans=3, levels=1, tasks=(8, 64), rounds=1),
    guards=Shared(guards=(1, 2), partitions=(4,), requests=128, rounds=1),
    many=100,
    recorded=Recorded(turns=200, events=10_000, rounds=1),
    replicated=[5],
)
UNSYNCED = Goal(latency=1.4, rate=0.48)
SYNCED = Goal(latency=1.0, rate=0.95)


def main(argv: list[str]) -> int:
    """Measure, print, return 0: a missed target is a finding, no failure."""
    parser = argparse.ArgumentParser(prog="python -m bench", description="Measure the mesh on this machine.")
    parser.add_argument("--only", choices=PARTS, action="append", help="measure this; may be repeated")
    parser.add_argument("--quick", action="store_true", help="a smoke run: seconds, and rough figures")
    parser.add_argument("--rounds", type=int, help="rounds of `chain`, `growth` and `guards`")
    parser.add_argument(
        "-o", "--output", choices=("table", "json"), default="table", help="the form of the output"
    )
    parser.add_argument(
        "--json", dest="output", action="store_const", const="json", help="the same as -o json"
    )
    parser.add_argument("--out", type=Path, help="a file to write it to; else standard output")
    parser.add_argument("--dir", type=Path, help="measure on this directory's disk; it must be empty")
    parser.add_argument("--plot", type=Path, help="write the plot of `growth` to this file, as SVG")
    told = parser.parse_args(argv)
    for file in filter(None, (told.out, told.plot)):
        if not file.absolute().parent.is_dir():  # to be known before an hour of measuring
            parser.error(f"{file}: there is no such folder")
    configure_logging("json", "error")
    amount = QUICK if told.quick else FULL
    if told.rounds is not None:
        amount = amount._replace(
            unsynced=amount.unsynced._replace(rounds=told.rounds),
            synced=amount.synced._replace(rounds=told.rounds),
            growth=amount.growth._replace(rounds=told.rounds),
            guards=amount.guards._replace(rounds=told.rounds),
        )
    with tempfile.TemporaryDirectory(prefix="mesh-bench-", dir=told.dir) as made:
        report = asyncio.run(measure(Path(made), amount, tuple(told.only or PARTS)))
    as_json = told.output == "json"
    text = msgspec.json.format(msgspec.json.encode(report)).decode() if as_json else as_text(report)
    if told.out is None:
        sys.stdout.write(f"{text}\n")
    else:
        told.out.write_text(f"{text}\n")
    if told.plot is not None and report.curves:
        told.plot.write_text(as_svg(report.curves))
    return 0


async def measure(directory: Path, amount: Amount, parts: tuple[str, ...]) -> Report:
    """Return what the named parts came to."""
    report = Report(machine(directory), [], [], [], [])
    if "chain" in parts:
        for sync_always, plan, goal in (
            (False, amount.unsynced, UNSYNCED),
            (True, amount.synced, SYNCED),
        ):
            name = "synced" if sync_always else "unsynced"
            figures, use, note = await compare(directory / name, plan, goal, sync_always=sync_always)
            report.figures.extend(figures)
            report.notes.append(note)
            if not sync_always:
                report.use.extend(use)
    few = min(amount.kills, 3)
    measurements: dict[str, Callable[[Path], Awaitable[list[Figure]]]] = {
        "fold": lambda at: whole_log(at, events=amount.fold_events, rounds=amount.fold_rounds),
        "cold": lambda at: cold_reads(
            at, sizes=amount.log_sizes, rounds=amount.read_rounds, reads=amount.reads
        ),
        "recovery": lambda at: recovery(at, rounds=amount.kills),
        "first-decision": lambda at: first_decisions(at, sizes=amount.log_sizes, rounds=amount.starts),
        "model-turn": lambda at: model_turns(at, turns=amount.turns, rounds=amount.read_rounds),
        "live-text": lambda at: live_text(at, rounds=amount.read_rounds),
        "limits": lambda at: limits(at, processes=amount.askers, minutes=amount.minutes),
        "burst": lambda at: burst(at, messages=amount.large, rounds=few),
        "lane": lambda at: lanes(at, unsynced=amount.unsynced, synced=amount.synced),
        "members": lambda at: members(at, sizes=amount.fleets, rounds=few),
        "flood": lambda at: floods(at, messages=amount.flood, rounds=few),
        "page": lambda at: pages(at, events=amount.page_events, rounds=amount.read_rounds),
        "tree": lambda at: trees(at, amount.trees),
        "guards": lambda at: guards(at, amount.guards),
        "bulk": lambda at: bulk(at, requests=amount.many, rounds=few),
        "replay": lambda at: replays(at, amount.recorded),
        "backup": lambda at: backups(at, events=amount.fold_events, rounds=few),
        "replicas": lambda at: replicas(at, sizes=amount.replicated, rounds=1),
        "shadow": lambda at: shadows(at, unsynced=amount.unsynced, synced=amount.synced),
    }
    for part, run in measurements.items():
        if part in parts:
            report.figures.extend(await run(directory / part))
    if "growth" in parts:
        figures, curves = await growth(directory / "growth", amount.growth)
        report.figures.extend(figures)
        report.curves.extend(curves)
    return report
