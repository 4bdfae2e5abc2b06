"""`python -m tests.drill`: requests through a mesh whose processes are killed, then every promise checked."""

import itertools
import random
import secrets
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import click

from mesh.cli.exits import EPILOG, Exit, Leave, ReportingGroup, ended_by_signals
from mesh.cli.options import A_PATH, framed, run_quietly
from mesh.cli.output import emit, remark, say
from mesh.errors import UsageWrong
from mesh.local.project import data_environment, find_fleet
from mesh.ops.rehearsal import read_samples
from protocol.wire.config import GUARD_LEASE_S, LEASE_S, SHORTEST_LEASE_S
from tests.drill import results, run
from tests.drill.arena import Setting
from tests.drill.check import check
from tests.drill.clocks import guards_off_by
from tests.drill.cluster import SERVERS
from tests.drill.evidence import Evidence
from tests.drill.faults import OF_CLUSTERS, SORTS, Sort, usual_sorts
from tests.drill.fleet import drill_fleet
from tests.drill.keep import save
from tests.drill.report import lines
from tests.drill.run import Plan, usual_faults
from tests.drill.stories import Story, stories

COMMAND = "python -m tests.drill"


@click.group(
    COMMAND,
    cls=ReportingGroup,
    epilog=EPILOG,
    invoke_without_command=True,
    subcommand_metavar="",
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.option(
    "--requests",
    type=click.IntRange(min=1),
    default=200,
    show_default=True,
    help="How many requests are sent.",
)
@click.option("--faults", type=click.IntRange(min=0), help="How many faults; else 3 for 10 requests.")
@click.option("--seed", type=int, help="What is drawn; else another each time.")
@click.option("--fleet", type=A_PATH, help="A fleet file or its directory; else the drill's own.")
@click.option("--requests-file", type=A_PATH, help="What to send to it, one JSON object a line.")
@click.option("--guards", type=click.IntRange(min=1), default=2, show_default=True, help="Guard processes.")
@click.option(
    "--instances", type=click.IntRange(min=1), default=2, show_default=True, help="Processes of each agent."
)
@click.option(
    "--servers",
    type=click.Choice(["1", str(SERVERS)]),
    default="1",
    show_default=True,
    help="Servers, each of which keeps all that is stored.",
)
@click.option(
    "--lease",
    type=float,
    help="Seconds that a dead process keeps its work, in the drill's own fleet; guards half of it.",
)
@click.option(
    "--no-lane", is_flag=True, help="Store every message, and ask no guard first, in the drill's own fleet."
)
@click.option("--clock-off", type=float, help="Seconds that guards' clocks are wrong, one ahead, one behind.")
@click.option(
    "--concurrency", type=click.IntRange(min=1), default=32, show_default=True, help="Requests in flight."
)
@click.option("--kinds", help="Which faults, by commas: kill,pause,restart,failpoint,server-kill…")
@click.option("--keep", type=A_PATH, help="Leave logs and evidence in this new directory.")
@click.option("--record", type=A_PATH, help="Add a line of what came of it to this book of runs.")
@framed
def drill(
    *,
    requests: int,
    faults: int | None,
    seed: int | None,
    fleet: Path | None,
    requests_file: Path | None,
    guards: int,
    instances: int,
    servers: str,
    lease: float | None,
    no_lane: bool,
    clock_off: float | None,
    concurrency: int,
    kinds: str | None,
    keep: Path | None,
    record: Path | None,
    as_json: bool,
) -> None:
    """Break a scratch mesh on purpose, at random and in every failpoint; check what came of it."""
    if keep is not None and keep.exists() and any(keep.iterdir()):
        raise UsageWrong(f"--keep {keep}: there is something in it already")
    chosen = secrets.randbelow(1_000_000) if seed is None else seed
    remark(f"{COMMAND} --seed {chosen}")
    sent, sorts = _stories(requests, chosen, fleet, requests_file), _sorts(kinds, int(servers))
    setting = _setting(fleet, lease, guards, instances, lane=not no_lane)
    setting = replace(setting, commands={} if clock_off is None else guards_off_by(clock_off))
    planned = Plan(
        stories=sent,
        setting=_on_servers(setting, int(servers), sorts),
        faults=usual_faults(requests) if faults is None else faults,
        seed=chosen,
        sorts=sorts,
        concurrency=concurrency,
    )
    run_quietly(_drill(planned, keep, record, as_json))


def _setting(fleet: Path | None, lease: float | None, guards: int, instances: int, *, lane: bool) -> Setting:
    """Return what the requests run in. Nobody decides what a user's own fleet puts to people."""
    if fleet is None:
        agents_s = LEASE_S if lease is None else lease
        guards_s = GUARD_LEASE_S if lease is None else max(SHORTEST_LEASE_S, lease / 2)
        return Setting(file=drill_fleet(agents_s, guards_s, lane=lane), guards=guards, instances=instances)
    if lease is not None:
        raise UsageWrong("--lease is for the drill's own fleet; yours says it in its file, under [lease]")
    if not lane:
        raise UsageWrong("--no-lane is for the drill's own fleet; yours says it in its file, under [guard]")
    file, search = find_fleet([str(fleet)])
    unserved = sorted(name for name, section in file.agents.items() if section.module is None)
    if unserved:
        raise UsageWrong(f"no module is named for {', '.join(unserved)}: a drill runs every agent itself")
    return Setting(file=file, people=False, guards=guards, instances=instances, search=search)


def _on_servers(setting: Setting, servers: int, sorts: Sequence[Sort]) -> Setting:
    """Return the setting on so many servers; each of them keeps every stream."""
    if servers == 1:
        return setting
    log = setting.file.log.model_copy(update={"replicas": servers})
    file = setting.file.model_copy(update={"log": log})
    return replace(setting, file=file, servers=servers, partitions="partition" in sorts)


def _sorts(kinds: str | None, servers: int) -> tuple[Sort, ...]:
    if kinds is None:
        return usual_sorts(servers)
    named = {kind.strip() for kind in kinds.split(",") if kind.strip()}
    unknown = sorted(named - set(SORTS))
    if unknown or not named:
        raise UsageWrong(f"--kinds: {', '.join(unknown) or 'none'}; there are {', '.join(SORTS)}")
    if servers == 1 and (alone := sorted(named & OF_CLUSTERS)):
        raise UsageWrong(
            f"--kinds: {', '.join(alone)}: only a cluster survives that; add --servers {SERVERS}"
        )
    return tuple(sort for sort in SORTS if sort in named)


def _stories(requests: int, seed: int, fleet: Path | None, requests_file: Path | None) -> Sequence[Story]:
    """Return what is sent: the drill's own stories, or the lines of a file, again and again."""
    if (fleet is None) != (requests_file is None):
        raise UsageWrong("a fleet of your own and its requests go together: --fleet DIR --requests-file FILE")
    if requests_file is None:
        return stories(requests, random.Random(seed))
    samples = read_samples(requests_file)
    if not samples:
        raise UsageWrong(f"{requests_file} holds no request")
    return [
        Story(name=sample.id_hint, text=sample.text, facts=sample.facts, expected=())
        for sample in itertools.islice(itertools.cycle(samples), requests)
    ]


async def _drill(planned: Plan, keep: Path | None, record: Path | None, as_json: bool) -> None:
    with tempfile.TemporaryDirectory(prefix="mesh-drill-", ignore_cleanup_errors=True) as temporary:
        evidence = await _run(planned, Path(temporary) if keep is None else keep)
        if keep is not None:
            save(evidence, keep / "evidence")
            remark(f"logs and evidence: {keep}")
        findings = check(evidence)
    if record is not None:
        results.record(record, results.run_of(findings, seed=planned.seed, servers=planned.setting.servers))
    if as_json:
        emit(findings)
    else:
        for line in lines(findings):
            say(line)
    if findings.breaches:
        raise Leave(Exit.FAILED)


async def _run(planned: Plan, directory: Path) -> Evidence:
    setting = replace(planned.setting, environment=data_environment(directory))
    async with ended_by_signals():
        return await run.drill(replace(planned, setting=setting), directory, remark)


app = drill
