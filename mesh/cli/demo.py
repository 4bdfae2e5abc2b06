"""`mesh demo`: server, guard and a reference fleet's agents on sample requests; then everything stops."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from mesh.cli.exits import Exit, Leave, ended_by_signals
from mesh.cli.models import Kind, model_option
from mesh.cli.options import A_PATH, json_option, run_quietly
from mesh.cli.output import Line, emit, remark, say, show_lines, table
from mesh.errors import UsageWrong
from mesh.service.printable import counted

if TYPE_CHECKING:
    from mesh.ops.rehearsal import Played

WITHIN_S = 60.0
"""What has not come to rest by then is unfinished."""


@click.command()
@click.option("--fleet", default="support", show_default=True, help="A fleet under agents/ of the checkout.")
@click.option("--requests", type=A_PATH, help="Sample requests, one JSON object a line.")
@model_option
@click.option("--keep", type=A_PATH, metavar="DIR", help="Keep log, data and keys: a new folder.")
@json_option
def demo(*, fleet: str, requests: Path | None, model: str, keep: Path | None, as_json: bool) -> None:
    """Run everything here on sample requests, sum up, stop."""
    run_quietly(_demo(fleet, requests, Kind(model), keep, as_json))


async def _demo(fleet: str, requests: Path | None, kind: Kind, keep: Path | None, as_json: bool) -> None:
    if not as_json:
        say(f"starting a nats-server, a guard and the agents of {fleet}, each in its own process …")
    from mesh.cli.checkout import data_environment, reference_fleet
    from mesh.cli.models import in_words, model_environment
    from mesh.fleet.file import load_fleet
    from mesh.local.fleet import LocalFleet
    from mesh.ops.fleet_health import rules_wanted, without_rules
    from mesh.ops.rehearsal import is_sound, play, read_samples

    home = reference_fleet(fleet)
    samples = read_samples(requests or home / "requests.jsonl")
    file = load_fleet(home)
    client, viewer = next(iter(file.clients)), next(iter(file.viewers))
    models = model_environment(kind)
    played: list[Played] = []
    search = (home.parents[1],)
    with _folder(keep) as directory:
        async with ended_by_signals():
            mesh = LocalFleet(
                file,
                directory,
                sync_always=keep is not None,
                environment=data_environment(directory),
                agent_environment=models,
                search=search,
                on_trouble=_complain,
            )
            async with mesh:
                words = in_words(kind, await _models(mesh, file.agents), _rules(home))
                async with await mesh.connect_as(viewer) as reading:
                    without = await without_rules(reading, file.agents)
                if without:
                    words += f"\n  {rules_wanted(without, human=file.human is not None)}"
                if not as_json:
                    _introduce(mesh, words, len(samples), keep)
                async with await mesh.connect_as(client) as sending, await mesh.connect_as(viewer) as reading:
                    async for each in play(
                        sending,
                        reading,
                        samples,
                        client=client,
                        viewer=viewer,
                        within_s=WITHIN_S,
                        broken=mesh.died,
                    ):
                        played.append(each)
                        if not as_json:
                            _show(each)
    if as_json:
        _emit(kind, played)
    else:
        _sum_up(played, words)
    if keep is not None:
        remark(f"mesh: kept in {keep}; to look at it: mesh dev --fleet {fleet} --store {keep}")
        remark("mesh: and beside that, in the same folder: mesh request ls, mesh request show ID, mesh cost")
    if not is_sound(played):
        raise Leave(Exit.FAILED)


@contextlib.contextmanager
def _folder(keep: Path | None) -> Iterator[Path]:
    """Give the folder for everything: the one to keep, or one that is thrown away. Raises UsageWrong."""
    import tempfile

    if keep is None:
        with tempfile.TemporaryDirectory(prefix="mesh-demo-", ignore_cleanup_errors=True) as temporary:
            yield Path(temporary)
        return
    try:
        if keep.exists() and (not keep.is_dir() or any(keep.iterdir())):
            raise UsageWrong(f"--keep takes a new folder, or an empty one: {keep}")
        keep.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as wrong:
        raise UsageWrong(f"--keep takes a folder that can be made: {keep}: {wrong.strerror}") from wrong
    yield keep


def _complain(line: str) -> None:
    remark(f"mesh: {line}")


async def _models(mesh: Any, agents: Any) -> list[str]:
    """Return what drives the agents, by their own cards."""
    from mesh.bus.reader import get
    from protocol.wire import codec
    from protocol.wire.notices import Card
    from protocol.wire.subjects import card

    models = set()
    async with await mesh.connect_as(next(iter(mesh.file.viewers))) as bus:
        for name in agents:
            kept = await get(bus, "CARDS", card(name))
            if kept is not None and (said := codec.readable(kept.data, Card)) is not None:
                models.add(said.model)
    return sorted(models - {""})


def _rules(home: Path) -> str:
    """Return where a fleet's rules are, in words."""
    rules = next((path.name for path in sorted(home.glob("rules*"))), "rules")
    return f"rules in agents/{home.name}/{rules}"


def _introduce(mesh: Any, words: str, count: int, keep: Path | None) -> None:
    processes = ", ".join(f"{service.identity} ({service.pid})" for service in mesh.services.values())
    say(f"nats-server ({mesh.server.pid}) at {mesh.url}; {processes}")
    say(words, lines=True)
    end = "thrown away at the end" if keep is None else f"kept in {keep}"
    say(f"{count} sample requests; their data and this log are {end}")
    say("")


def _show(played: "Played") -> None:
    from mesh.cli.story import story

    style = {"right": "green", "wrong": "bold red", "unfinished": "bold red"}[played.verdict]
    sample = played.sample
    title = Line(
        (f"■ {sample.id_hint} ", "bold"), (f"({sample.kind}) ", "dim"), (played.verdict.upper(), style)
    )
    title.append(f"  {played.outcome}")
    show_lines(title, Line((f"  {sample.text}", "italic")))
    if played.told is not None:
        show_lines(*story(played.told))
    for line in played.wrong:
        show_lines(Line((f"WRONG: {line}", "bold red")))
    if played.wrong and sample.about:
        show_lines(Line((f"       it should come to: {sample.about}", "red")))
    say("")


def _sum_up(all_played: "list[Played]", words: str) -> None:
    from mesh.ops.rehearsal import summary

    counts = summary(all_played)
    table(
        ("kind", "requests", "right", "WRONG", "unfinished"),
        [
            (kind, each["requests"], each["right"], each["wrong"], each["unfinished"])
            for kind, each in counts["by_kind"].items()
        ],
    )
    table(("outcome", "requests"), sorted(counts["by_outcome"].items()))
    table(("refused by rule", "times"), sorted(counts["refusals"].items()))
    for played in all_played:
        if played.wrong:
            say(f"WRONG {played.sample.id_hint} ({played.sample.kind}): {'; '.join(played.wrong)}")
    total = f"{counted(counts['requests'], 'request')}, {counted(counts['handoffs'], 'handoff')}"
    say(f"{total}: {counts['right']} right, {counts['wrong']} WRONG, {counts['unfinished']} unfinished")
    say(words, lines=True)


def _emit(kind: Kind, all_played: "list[Played]") -> None:
    from mesh.ops.rehearsal import as_program_reads, summary

    emit(
        {
            "mode": kind.value,
            "requests": [as_program_reads(played) for played in all_played],
            "summary": summary(all_played),
        }
    )
