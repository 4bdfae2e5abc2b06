"""`mesh dev`, a whole mesh on this machine, and `mesh ui`, the page in a browser; each until Ctrl-C.

While `mesh dev` runs, `.mesh/dev.json` shows other commands in the same folder where the bus and keys are.
"""

import asyncio
import contextlib
import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import click

from mesh import ops
from mesh.bus.credentials import replace_private
from mesh.cli.exits import Exit, Leave, ended_by_signals
from mesh.cli.options import framed, store_option
from mesh.cli.output import Line, note, say, show_lines
from mesh.cli.ui import page_of
from mesh.errors import UsageWrong
from mesh.fleet.file import FleetFile, FleetFileError
from mesh.local.fleet import LocalFleet, store_of
from mesh.local.project import data_environment, find_fleet, model_environment, port_of, with_client
from mesh.local.reload import Reload, mistakes_under
from mesh.local.server import EmbeddedServer, if_free, in_use
from mesh.local.service import RESTART_S, Output, ServiceProcess, near
from mesh.model.choice import MODES
from mesh.service.logs import VALUES
from mesh.settings import DEV_FILE, STATE, Dev, running_dev
from protocol.wire.ids import request_id


def _modes(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    return [mode for mode in MODES if mode.startswith(incomplete)]


model_option = click.option(
    "--model",
    default="scripted",
    show_default=True,
    envvar="MESH_MODEL",
    show_envvar=True,
    shell_complete=_modes,
    help="What drives the agents: rules, or models that cost money: each agent's own, or one vendor's.",
)


async def drivers(mesh: LocalFleet, model: str, rules: str) -> str:
    """Describe what drives the agents, and which of them have nothing to go by.

    Args:
        rules: where the rules are, in words.
    """
    words = f"model: {model} (real models, paid for with your key)"
    if model == "scripted":
        words = (
            f"model: scripted ({rules}, not a language model); --model pinned asks the real ones, for money"
        )
    served = [name for name in mesh.file.agents if name not in mesh.unserved]
    async with await mesh.connect_as("admin") as bus:
        without = await ops.fleet_checks.without_rules(bus, served, human=mesh.file.human is not None)
    if without:
        words += f"\n  {without}"
    return words


# --- dev ------------------------------------------------------------------------------------------


@click.command()
@click.option(
    "--fleet",
    multiple=True,
    help="A fleet file, a reference fleet's name, or MODULE:NAME once or more; by default ./mesh.toml.",
)
@store_option("The folder of keys, log and data.")
@click.option("--port", type=int, help="The bus's port on 127.0.0.1; by default this folder's own.")
@model_option
@framed
async def dev(*, fleet: tuple[str, ...], store: Path, port: int | None, model: str) -> None:
    """Run a server, a guard and the agents on this machine until Ctrl-C.

    Errors in an agent are shown here, with file and line. Saved code, prompts, rules and fleet file take
    effect at once.
    """

    _refuse_a_second()
    try:
        named, search = find_fleet(fleet)
    except FleetFileError:
        for mistake in mistakes_under(Path.cwd()):  # mistakes in the fleet file hide no others
            note(mistake)
        raise
    file = with_client(named)
    if file is not named:
        note(f"the fleet file names no client: {next(iter(file.clients))} is one while this runs")
    models = model_environment(model)
    try:
        async with ended_by_signals():
            mesh = LocalFleet(
                file,
                store,
                sync_always=True,
                port=_own_port(store) if port is None else _free_port(port),
                anonymous=next(iter(file.clients)),
                restart_s=RESTART_S,
                environment={VALUES: "1"} | data_environment(store),
                agent_environment=models,
                search=search,
                on_trouble=note,
                on_ready=_print_ready,
            )
            say(f"{file.name}: each message is on the disk before it is acknowledged")
            terminal = ServiceTerminal(mesh, Path.cwd())
            started = asyncio.Event()
            announcement = _Announcement(mesh)
            async with asyncio.TaskGroup() as tasks:
                watching = _reload(mesh, fleet, search, announcement, started)
                tasks.create_task(watching)  # before reading anything, so that no save is missed
                async with mesh, page_of(mesh) as page:
                    words = await drivers(mesh, model, "rules")
                    with announcement.made(page):
                        _introduce_dev(mesh, words, page)
                        started.set()
                        await terminal.run()
    except (Leave, asyncio.CancelledError):  # a signal is the normal end
        say("stopped; the log is kept")
        raise Leave(Exit.DONE) from None


def _refuse_a_second() -> None:
    """Raise UsageWrong if a `mesh dev` runs in this very folder. A dead one holds no lock on its store."""

    here = Path.cwd()
    dev = running_dev(here)
    if dev is not None and dev.folder == here and in_use(store_of(dev.keys.parent)):
        page = f", its page is at {dev.page}" if dev.page else ""
        raise UsageWrong(f"`mesh dev` already runs here: it is process {dev.pid}{page}")


def _free_port(port: int) -> int:
    """Return a port that was asked for. Raises UsageWrong if it is taken."""
    if port and not if_free(port):
        raise UsageWrong(f"port {port} is taken: choose another with --port, or leave it out")
    return port


def _own_port(store: Path) -> int:
    """Return the folder's own port if it is free, else 0, so that the system chooses."""

    port = port_of(store)
    if if_free(port):
        return port
    note(f"port {port} of this folder is taken; using another one this time")
    return 0


async def _reload(
    mesh: LocalFleet,
    fleet: tuple[str, ...],
    search: Sequence[Path],
    announcement: "_Announcement",
    started: asyncio.Event,
) -> None:
    """Apply changed files of the project, once the mesh has started."""

    def tell(line: str) -> None:
        note(line)
        announcement.write()

    def read() -> FleetFile:
        return with_client(find_fleet(fleet)[0], runs=mesh.file.clients)

    try:
        await Reload(mesh, search, read, tell, started).run()
    except UsageWrong as missing:
        note(str(missing))


class _Announcement:
    """Announces the mesh to other commands in this folder while it runs."""

    def __init__(self, mesh: LocalFleet) -> None:
        self._mesh, self._page = mesh, ""
        self._path = Path.cwd() / STATE / DEV_FILE

    @contextlib.contextmanager
    def made(self, page: str) -> Iterator[None]:
        """Keep the file while the block runs."""
        self._page = page
        self.write()
        try:
            yield
        finally:
            self._path.unlink(missing_ok=True)

    def write(self) -> None:
        """Write what other commands need to know, as it is now."""

        mesh = self._mesh
        self._path.parent.mkdir(mode=0o700, exist_ok=True)
        described = Dev(
            fleet=mesh.file.name,
            folder=Path.cwd(),
            page=self._page,
            pid=os.getpid(),
            url=mesh.url,
            monitor=mesh.server.monitor_url,
            keys=mesh.keys,
            clients=tuple(mesh.file.clients),
            viewers=tuple(mesh.file.viewers),
            operators=tuple(mesh.file.operators),
            artifacts=mesh.artifacts,
        )
        replace_private(self._path, described.encode())


_HOW_TO = """
in another terminal, in this folder:
  mesh send "…"                  submit a request and wait for its answer
  mesh request ls                and show ID, why ID, replay ID
  mesh human ls                  list the work that waits for people

or with anything that speaks NATS (no credentials needed here; the id is <client>_<a fresh ULID>):
  nats req --server {url} mesh.prop.{client}.{id} '{{"text": "…"}}'

Ctrl-C stops everything"""


def _print_ready(service: ServiceProcess | EmbeddedServer) -> None:
    say(f"  {service.identity:<12} process {service.pid}, log {near(service.log)}")


def _introduce_dev(mesh: LocalFleet, words: str, page: str) -> None:

    client = next(iter(mesh.file.clients))
    say(f"nats-server at {mesh.url}")
    say(f"the page is at {page}" if page else "for the web UI: pip install 'handoff-mesh[ui]'")
    say(words, lines=True)
    for name in mesh.unserved:
        say(f"  {name:<12} has no module in the fleet file; run it yourself: mesh agent run MODULE:NAME")
    if unlimited := ops.fleet_checks.unlimited_in_words(mesh.file.fleet):
        say(f"note: {unlimited}", lines=True)
    fresh = request_id(client, time.time_ns() // 1_000_000, os.urandom(10))
    say(_HOW_TO.format(url=mesh.url, client=client, id=fresh), lines=True)


# --- what its services write -------------------------------------------------------------------------

_POLL_S = 0.1
_COLOURS = ("cyan", "magenta", "green", "blue", "bright_cyan", "bright_magenta")
_STYLES = {"warning": "yellow", "error": "red", "critical": "bold red", "place": "bold", "frame": "dim"}


class ServiceTerminal:
    """Shows what services write from their start on, each under its name and in its colour.

    Args:
        home: the reader's own project, whose files come first in a traceback.
    """

    def __init__(self, mesh: LocalFleet, home: Path) -> None:
        self._mesh, self._home = mesh, home
        self._outputs: dict[str, Output] = {}
        log = mesh.server.log
        self._server_began = log.stat().st_size if log.exists() else 0

    async def run(self) -> None:
        """Show everything as it comes, until cancelled."""
        while True:
            self._show_new()
            await asyncio.sleep(_POLL_S)

    def _show_new(self) -> None:
        server = self._mesh.server
        if server.identity not in self._outputs:
            self._outputs[server.identity] = Output(server.log, self._home, self._server_began)
        for name, service in list(self._mesh.services.items()):
            if name not in self._outputs:
                self._outputs[name] = Output(service.log, self._home, service.began)
        width = max(map(len, self._outputs), default=0)
        for number, (name, output) in enumerate(self._outputs.items()):
            colour = _COLOURS[number % len(_COLOURS)]
            for line in output.more():
                style = _STYLES.get(line.kind, "")
                show_lines(Line((f"{name:<{width}} │ ", colour), (line.text, style)))


# --- the page --------------------------------------------------------------------------------------
