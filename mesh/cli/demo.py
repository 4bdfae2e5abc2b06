"""`mesh demo`: a whole mesh and a reference fleet on sample requests."""

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from mesh import ops
from mesh.cli.dev import drivers, model_option
from mesh.cli.exits import Exit, Leave, ended_by_signals
from mesh.cli.options import A_PATH, framed, run_quietly
from mesh.cli.output import Line, emit, note, say, show_lines, table
from mesh.errors import UsageWrong
from mesh.service.printable import counted

if TYPE_CHECKING:
    from mesh.local.fleet import LocalFleet
    from mesh.model.agent import Mode

WITHIN_S = 60.0
"""How long a sample request may take; one that has not come to rest by then is unfinished."""


@click.command()
@click.option("--fleet", default="support", show_default=True, help="A fleet under agents/ of the checkout.")
@click.option("--requests", type=A_PATH, help="Sample requests, one JSON object a line.")
@model_option
@click.option("--keep", type=A_PATH, metavar="DIR", help="Keep log, data and keys in this new folder.")
@framed
def demo(*, fleet: str, requests: Path | None, model: "Mode", keep: Path | None, as_json: bool) -> None:
    """Run a server, a guard and a fleet's agents on sample requests; sum up, then stop everything."""
    if not as_json:
        say(f"starting a nats-server, a guard and the agents of {fleet}, each in its own process …")
    run_quietly(_demo(fleet, requests, model, keep, as_json))


async def _demo(fleet: str, requests: Path | None, model: "Mode", keep: Path | None, as_json: bool) -> None:
    from mesh.fleet.file import load_fleet
    from mesh.local.fleet import LocalFleet
    from mesh.local.lookup import data_environment, model_environment, reference_fleet

    home = reference_fleet(fleet)
    samples = ops.rehearsal.read_samples(requests or home / "requests.jsonl")
    file = load_fleet(home)
    models = model_environment(model)
    rules = next((f"rules in agents/{fleet}/{path.name}" for path in sorted(home.glob("rules*"))), "rules")
    played: list[ops.rehearsal.Played] = []
    with _folder(keep) as directory:
        mesh = LocalFleet(
            file,
            directory,
            sync_always=keep is not None,
            environment=data_environment(directory),
            agent_environment=models,
            search=(home.parents[1],),
            on_trouble=note,
        )
        async with ended_by_signals(), mesh:
            words = await drivers(mesh, model, rules)
            if not as_json:
                _introduce_demo(mesh, words, len(samples), keep)
            client, viewer = next(iter(file.clients)), next(iter(file.viewers))
            async with await mesh.connect_as(client) as sending, await mesh.connect_as(viewer) as reading:
                async for each in ops.rehearsal.play(
                    sending,
                    reading,
                    samples,
                    within_s=WITHIN_S,
                    broken=mesh.died,
                ):
                    played.append(each)
                    if not as_json:
                        _show(each)
    if as_json:
        told = [ops.rehearsal.as_program_reads(each) for each in played]
        emit({"mode": model, "requests": told, "summary": ops.rehearsal.summary(played)})
    else:
        _sum_up(played, words)
    if keep is not None:
        note(f"kept in {keep}; to look at it: mesh dev --fleet {fleet} --store {keep}")
        note("and beside that, in the same folder: mesh request ls, mesh request show ID, mesh cost")
    if not ops.rehearsal.is_sound(played):
        raise Leave(Exit.FAILED)


@contextlib.contextmanager
def _folder(keep: Path | None) -> Iterator[Path]:
    """Yield the folder for everything: the one to keep, or one that is thrown away. Raises UsageWrong."""
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


def _introduce_demo(mesh: "LocalFleet", words: str, count: int, keep: Path | None) -> None:
    processes = ", ".join(f"{service.identity} ({service.pid})" for service in mesh.services.values())
    say(f"nats-server ({mesh.server.pid}) at {mesh.url}; {processes}")
    say(words, lines=True)
    end = "thrown away at the end" if keep is None else f"kept in {keep}"
    say(f"{count} sample requests; their data and this log are {end}")
    say("")


def _show(played: "ops.rehearsal.Played") -> None:
    from mesh.client.story import story

    style = "green" if played.verdict == "right" else "bold red"
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


def _sum_up(all_played: "Sequence[ops.rehearsal.Played]", words: str) -> None:
    counts = ops.rehearsal.summary(all_played)
    states = ("requests", "right", "wrong", "unfinished")
    rows = [(kind, *(each[state] for state in states)) for kind, each in counts["by_kind"].items()]
    table(("kind", "requests", "right", "WRONG", "unfinished"), rows)
    table(("outcome", "requests"), sorted(counts["by_outcome"].items()))
    table(("refused by rule", "times"), sorted(counts["refusals"].items()))
    for played in all_played:
        if played.wrong:
            say(f"WRONG {played.sample.id_hint} ({played.sample.kind}): {'; '.join(played.wrong)}")
    total = f"{counted(counts['requests'], 'request')}, {counted(counts['handoffs'], 'handoff')}"
    say(f"{total}: {counts['right']} right, {counts['wrong']} WRONG, {counts['unfinished']} unfinished")
    say(words, lines=True)
