"""`mesh demo`: runs a whole mesh and a reference fleet on sample requests."""

import asyncio
import contextlib
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import click

from mesh import ops
from mesh.bus.connection import Bus
from mesh.cli.dev import drivers, model_option
from mesh.cli.exits import Exit, Leave, ended_by_signals
from mesh.cli.options import A_PATH, framed, run_quietly
from mesh.cli.output import Line, emit_built, note, say, show_lines
from mesh.cli.ui import page_of
from mesh.errors import UsageWrong
from mesh.fleet.file import load_fleet
from mesh.local.fleet import LocalFleet
from mesh.local.project import data_environment, model_environment, reference_fleet
from mesh.ops.words import Teller, ending, story
from mesh.service.printable import counted

WITHIN_S = 60.0
"""How long a sample request may take (s); one that has not come to rest by then is unfinished."""
NOT_COVERED = "not covered by the rules (needs a model)"


@click.command()
@click.option(
    "--fleet", default="support", show_default=True, help="The fleet: support, recruiting, research or code."
)
@click.option("--requests", type=A_PATH, help="Sample requests, one JSON object a line.")
@click.option("--all", "whole", is_flag=True, help="Show every request event by event.")
@model_option
@click.option("--keep", type=A_PATH, metavar="DIR", help="Keep log, data and keys in this new folder.")
@framed
def demo(
    *, fleet: str, requests: Path | None, whole: bool, model: str, keep: Path | None, as_json: bool
) -> None:
    """Run a fleet on sample requests, with a server and a guard; show what happens, and sum up.

    With --keep the store stays. At a terminal the web UI is then served, if the extra `ui` is installed.
    """
    if not as_json:
        say(f"starting a nats-server, a guard and the agents of {fleet}, each in its own process …")
    run_quietly(_demo(fleet, requests, whole, model, keep, as_json))


async def _demo(
    fleet: str, requests: Path | None, whole: bool, model: str, keep: Path | None, as_json: bool
) -> None:

    home = reference_fleet(fleet)
    samples = ops.rehearsal.read_samples(requests or home / "requests.jsonl")
    file = load_fleet(home)
    models = model_environment(model)
    rules = next((f"rules in agents/{fleet}/{path.name}" for path in sorted(home.glob("rules*"))), "rules")
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
            stage = _Stage(mesh, model, quiet=as_json)
            if as_json or whole:
                await stage.play(samples, stage.show)
            else:
                for sample in (each for each in samples if each.story):
                    await stage.tell(sample)
                rest = [each for each in samples if not each.story]
                if rest:
                    say(f"{counted(len(rest), 'more request')}, a line each:")
                await stage.play(rest, stage.line)
            if as_json:
                results = [ops.rehearsal.as_program_reads(each) for each in stage.played]
                emit_built(
                    {"mode": model, "requests": results, "summary": ops.rehearsal.summary(stage.played)}
                )
            else:
                _sum_up(stage.played, model, words)
            await _what_next(mesh, stage.played, fleet, keep)
    if not ops.rehearsal.is_sound(stage.played):
        raise Leave(Exit.FAILED)


async def _what_next(
    mesh: LocalFleet, played: "Sequence[ops.rehearsal.Played]", fleet: str, keep: Path | None
) -> None:
    """Name commands for a store that is kept; at a terminal, serve its page until Ctrl-C."""
    if keep is None:
        note("mesh demo --keep DIR keeps all of it")
        return
    loop = next((each for each in played if each.refused and each.told), played[0] if played else None)
    request = "ID" if loop is None or loop.told is None else loop.told.request
    why = "why the guard refused a move of it" if loop and loop.refused else "its newest verdict, and why"
    note(f"kept in {keep}; to look at it, in this folder:")
    note(f"  mesh dev --fleet {fleet} --store {keep}     and in another terminal")
    note(f"  mesh why {request}     {why}")
    note(f"  mesh request show {request}     its whole story")
    if sys.stdout.isatty():
        async with page_of(mesh) as address:
            if address:
                say(f"its page is at {address}; Ctrl-C ends it")
                await asyncio.Event().wait()


@contextlib.contextmanager
def _folder(keep: Path | None) -> Iterator[Path]:
    """Yield the folder for everything: the one to keep, or a temporary one. Raises UsageWrong."""
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


def _introduce_demo(mesh: LocalFleet, words: str, count: int, keep: Path | None) -> None:
    processes = ", ".join(f"{service.identity} ({service.pid})" for service in mesh.services.values())
    say(f"nats-server ({mesh.server.pid}) at {mesh.url}; {processes}")
    say(words, lines=True)
    end = "thrown away at the end" if keep is None else f"kept in {keep}"
    say(f"{count} sample requests; their data and this log are {end}")
    say("")


class _Stage:
    """Plays samples on a running mesh, and shows the results."""

    def __init__(self, mesh: LocalFleet, model: str, *, quiet: bool) -> None:
        self._mesh, self._model, self._quiet = mesh, model, quiet
        self.played: list[ops.rehearsal.Played] = []

    async def _first(self, members: Iterable[str]) -> Bus:
        return await self._mesh.connect_as(next(iter(members)))

    async def play(
        self,
        samples: "Sequence[ops.rehearsal.Sample]",
        show: "Callable[[ops.rehearsal.Played], None]",
        on_more: "ops.rehearsal.OnMore" = lambda bodies: None,
    ) -> None:
        """Play samples, a few at a time, and show each result in their order."""
        file = self._mesh.file
        async with await self._first(file.clients) as sending, await self._first(file.viewers) as reading:
            playing = ops.rehearsal.play(
                sending, reading, samples, within_s=WITHIN_S, broken=self._mesh.died, on_more=on_more
            )
            async for each in playing:
                self.played.append(each)
                if not self._quiet:
                    show(each)

    async def tell(self, sample: "ops.rehearsal.Sample") -> None:
        """Play one sample and show its story as it happens, with a person's decision at its end."""
        show_lines(Line((f"■ {sample.story}", "bold")), Line((f"  {sample.text}", "italic")))
        teller, view = Teller(), None

        def on_more(bodies: Sequence[bytes]) -> None:
            nonlocal view
            view, lines = teller.more(ops.log.decoded(bodies))
            show_lines(*lines)

        await self.play([sample], lambda played: None, on_more)
        last = self.played[-1]
        decision = sample.decision
        if decision is not None and last.told is not None and last.outcome == "escalated":
            show_lines(Line((f"  {decision.by} decides, as `mesh human resolve` does:", "dim")))
            file = self._mesh.file
            async with (
                await self._first(file.operators) as deciding,
                await self._first(file.viewers) as reading,
            ):
                await ops.rehearsal.decide(deciding, reading, last.told.request, decision, on_more)
        if view is not None:
            show_lines(*ending(view))
        _complain(last, self._model)
        say("")

    def show(self, played: "ops.rehearsal.Played") -> None:
        """Show a whole request, after it has come to rest."""
        words, style = _verdict(played, self._model)
        sample = played.sample
        title = Line((f"■ {sample.id_hint} ", "bold"), (f"({sample.kind}) ", "dim"), (words, style))
        title.append(f"  {played.outcome}")
        show_lines(title, Line((f"  {sample.text}", "italic")))
        if played.told is not None:
            show_lines(*story(played.told))
        _complain(played, self._model)
        say("")

    def line(self, played: "ops.rehearsal.Played") -> None:
        """Show a request in one line."""
        words, style = _verdict(played, self._model)
        refused = f", refused by {', '.join(played.refused)}" if played.refused else ""
        came = f"{played.outcome}: {' → '.join(played.path)}{refused}" if words == AS_EXPECTED else words
        mark = "✓" if words == AS_EXPECTED else "·" if words == NOT_COVERED else "✗"
        show_lines(Line((f"  {mark} ", style), (f"{played.sample.id_hint:<22} ", ""), (came, "")))
        _complain(played, self._model)


AS_EXPECTED = "as expected"


def _verdict(played: "ops.rehearsal.Played", model: str) -> tuple[str, str]:
    """Describe the result of a request, with its style."""
    if played.verdict == "right":
        return AS_EXPECTED, "green"
    if played.verdict == "wrong" and played.sample.kind != ops.rehearsal.RULED and model == "scripted":
        return NOT_COVERED, "dim"
    return played.verdict.upper(), "bold red"


def _complain(played: "ops.rehearsal.Played", model: str) -> None:
    if played.wrong and _verdict(played, model)[0] != NOT_COVERED:
        for line in played.wrong:
            show_lines(Line((f"  WRONG: {line}", "bold red")))
        if played.sample.about:
            show_lines(Line((f"         expected: {played.sample.about}", "red")))


def _sum_up(all_played: "Sequence[ops.rehearsal.Played]", model: str, words: str) -> None:
    counts = ops.rehearsal.summary(all_played)
    say("")
    for played in all_played:
        if played.wrong and _verdict(played, model)[0] != NOT_COVERED:
            say(f"WRONG {played.sample.id_hint} ({played.sample.kind}): {'; '.join(played.wrong)}")
    verdicts = Counter(_verdict(each, model)[0] for each in all_played)
    work = counted(counts["tasks"], "task") if counts["tasks"] else counted(counts["handoffs"], "handoff")
    total = f"{counted(counts['requests'], 'request')}, {work}"
    say(f"{total}: {', '.join(f'{number} {verdict}' for verdict, number in verdicts.items())}")
    outcomes = ", ".join(f"{number} {name}" for name, number in sorted(counts["by_outcome"].items()))
    by_rule = counts["refusals"]
    rules = ", ".join(f"{number} by {rule}" for rule, number in sorted(by_rule.items()))
    refused = counted(sum(by_rule.values()), "move")
    say(f"they came out {outcomes}; the guard refused {refused}{rules and f': {rules}'}")
    say(words, lines=True)
