"""Commands for this machine: `mesh demo` and `mesh dev` run a whole mesh; `mesh schema` and `mesh bench`.

While `mesh dev` runs, `.mesh/dev.json` tells other commands in the same folder where bus and keys are.
"""

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from mesh import ops
from mesh.cli.exits import Exit, Leave, ended_by_signals
from mesh.cli.options import A_PATH, framed, run_quietly
from mesh.cli.output import Line, emit, note, report, say, show_lines, table
from mesh.errors import UsageWrong
from mesh.service.printable import counted

if TYPE_CHECKING:
    from mesh.local.fleet import LocalFleet
    from mesh.model.agent import Mode

WITHIN_S = 60.0
"""How long a sample request may take; one that has not come to rest by then is unfinished."""
USUAL_PORT = 4222

model_option = click.option(
    "--model",
    type=click.Choice(["scripted", "claude"]),
    default="scripted",
    show_default=True,
    envvar="MESH_MODEL",
    show_envvar=True,
    help="What drives the agents: rules, or the real models (ANTHROPIC_API_KEY; they cost money).",
)


async def _drivers(mesh: "LocalFleet", model: "Mode", rules: str) -> str:
    """Return in words what drives the agents, and which of them have nothing to go by.

    Args:
        rules: where the rules are, in words.
    """
    words = "model: claude (real models, paid for with your key)"
    if model == "scripted":
        words = (
            f"model: scripted ({rules}, not a language model); --model claude asks the real ones, for money"
        )
    served = [name for name in mesh.file.agents if name not in mesh.unserved]
    async with await mesh.connect_as("admin") as bus:
        without = await ops.health.without_rules(bus, served, human=mesh.file.human is not None)
    if without:
        words += f"\n  {without}"
    return words


# --- demo -----------------------------------------------------------------------------------------


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
    from mesh.local.fleet import LocalFleet, data_environment, model_environment, reference_fleet

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
            words = await _drivers(mesh, model, rules)
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
    from mesh.cli.story import story

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


# --- dev ------------------------------------------------------------------------------------------


@click.command()
@click.option(
    "--fleet",
    multiple=True,
    help="A fleet file, a reference fleet's name, or MODULE:NAME once or more; by default ./mesh.toml.",
)
@click.option(
    "--store",
    type=A_PATH,
    default=Path(".mesh"),
    show_default=True,
    help="The folder of keys, log and data.",
)
@click.option("--port", type=int, help="The bus's port on 127.0.0.1; by default 4222 if it is free.")
@model_option
@framed
async def dev(*, fleet: tuple[str, ...], store: Path, port: int | None, model: "Mode") -> None:
    """Run a server, a guard and the agents on this machine until Ctrl-C."""
    import asyncio

    from mesh.local.fleet import LocalFleet, data_environment, find_fleet, model_environment

    file, search = find_fleet(fleet)
    if not file.clients:
        raise UsageWrong("the fleet has no client; add [clients.app] to its file")
    models = model_environment(model)
    try:
        async with ended_by_signals():
            mesh = LocalFleet(
                file,
                store,
                sync_always=True,
                port=_usual_port() if port is None else port,
                anonymous=next(iter(file.clients)),
                restart=True,
                environment=data_environment(store),
                agent_environment=models,
                search=search,
                on_trouble=note,
            )
            async with mesh:
                words = await _drivers(mesh, model, "rules")
                with _announced(mesh):
                    _introduce_dev(mesh, words)
                    await asyncio.Event().wait()
    except (Leave, asyncio.CancelledError):  # a signal is how this ends when all is well
        say("stopped; the log is kept")
        raise Leave(Exit.DONE) from None


def _usual_port() -> int:
    """Return the port to ask for: the usual one if it is free, else 0, so that the system chooses."""
    import socket

    with socket.socket() as probe, contextlib.suppress(OSError):
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind(("127.0.0.1", USUAL_PORT))
        return USUAL_PORT
    return 0


@contextlib.contextmanager
def _announced(mesh: "LocalFleet") -> Iterator[None]:
    """Tell other commands in this folder of the mesh while it runs."""
    import os

    from mesh.settings import DEV_FILE, STATE, Dev

    path = Path.cwd() / STATE / DEV_FILE
    path.parent.mkdir(mode=0o700, exist_ok=True)
    said = Dev(
        pid=os.getpid(),
        url=mesh.url,
        monitor=mesh.server.monitor_url,
        keys=mesh.keys,
        clients=tuple(mesh.file.clients),
        viewers=tuple(mesh.file.viewers),
        operators=tuple(mesh.file.operators),
    )
    path.unlink(missing_ok=True)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as written:
        written.write(said.encode())
    try:
        yield
    finally:
        path.unlink(missing_ok=True)


_HOW_TO = """
in another terminal, in this folder:
  mesh send "…"                  submit a request and wait for its answer
  mesh request ls                and show ID, why ID, replay ID
  mesh human ls                  list the work that waits for people

or with anything that speaks NATS (no credentials needed here; the id is <client>_<a fresh ULID>):
  nats req --server {url} mesh.prop.{client}.{id} '{{"text": "…"}}'

Ctrl-C stops everything"""


def _introduce_dev(mesh: "LocalFleet", words: str) -> None:
    import os
    import time

    from protocol.wire.ids import request_id

    client = next(iter(mesh.file.clients))
    say(f"{mesh.file.name}: nats-server at {mesh.url}, each message on the disk before it is acknowledged")
    say(words, lines=True)
    for service in mesh.services.values():
        say(f"  {service.identity:<12} process {service.pid}, log {service.log}")
    for name in mesh.unserved:
        say(f"  {name:<12} has no module in the fleet file; run it yourself: mesh agent run MODULE:NAME")
    fresh = request_id(client, time.time_ns() // 1_000_000, os.urandom(10))
    say(_HOW_TO.format(url=mesh.url, client=client, id=fresh), lines=True)


# --- the wire contract as schemas, and measurements -----------------------------------------------

schema = click.Group(help="The schemas of the wire contract.")


@schema.command("export")
@click.option(
    "--out",
    type=A_PATH,
    default=Path("schema"),
    show_default=True,
    help="The directory to write them to.",
)
@framed
def export(*, out: Path, as_json: bool) -> None:
    """Write the JSON Schema and the AsyncAPI document, generated from the types that the code uses."""
    from protocol.wire.schema import documents

    out.mkdir(parents=True, exist_ok=True)
    written = []
    for name, text in sorted(documents().items()):
        (out / name).write_text(text)
        written.append(str(out / name))
    report({"written": written}, "\n".join(written), as_json=as_json, lines=True)


@click.command(
    add_help_option=False,
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
)
@click.pass_context
def bench(context: click.Context) -> None:
    """Measure this machine; `mesh bench --help` lists the measurements. Needs a checkout."""
    import importlib
    import sys

    root = Path(__file__).resolve().parents[2]
    if not (root / "bench" / "__init__.py").is_file():
        raise UsageWrong("the measurements are in a checkout (bench/), not in the installed package")
    sys.path.insert(0, str(root))
    raise Leave(importlib.import_module("bench").main(context.args))
