"""`mesh dev`: a whole mesh on this machine until Ctrl-C, keeping its store.

While it runs, `.mesh/dev.json` tells other commands in the same folder where the bus is and which keys
there are.
"""

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING

import click

from mesh.cli.exits import Leave, ended_by_signals
from mesh.cli.models import Kind, model_option
from mesh.cli.options import A_PATH, run_quietly
from mesh.cli.output import remark, say
from mesh.errors import UsageWrong

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mesh.local.fleet import LocalFleet

USUAL_PORT = 4222
_MODELS = {
    Kind.SCRIPTED: (
        "model: scripted (rules, not a language model); --model claude asks the real ones, for money"
    ),
    Kind.CLAUDE: "model: claude (real models, paid for with your key)",
}


@click.command()
@click.option(
    "--fleet",
    multiple=True,
    help="A fleet file, a reference fleet's name, or MODULE:NAME once or more; else ./mesh.toml.",
)
@click.option(
    "--store",
    type=A_PATH,
    default=Path(".mesh"),
    show_default=True,
    help="Where keys, log and data are kept.",
)
@click.option("--port", type=int, help="Of the bus, on 127.0.0.1; else 4222 if it is free.")
@model_option
def dev(*, fleet: tuple[str, ...], store: Path, port: int | None, model: str) -> None:
    """Run server, guard and agents on this machine until Ctrl-C."""
    run_quietly(_dev(list(fleet), store, port, Kind(model)))


async def _dev(named: list[str], store: Path, port: int | None, kind: Kind) -> None:
    import asyncio

    from mesh.cli.checkout import data_environment, find_fleet
    from mesh.cli.models import model_environment
    from mesh.local.fleet import LocalFleet

    file, search = find_fleet(named)
    if not file.clients:
        raise UsageWrong("the fleet has no client; add [clients.app] to its file")
    models = model_environment(kind)
    try:
        async with ended_by_signals():
            mesh = LocalFleet(
                file,
                store,
                sync_always=True,
                port=_free(port),
                anonymous=next(iter(file.clients)),
                restart=True,
                environment=data_environment(store),
                agent_environment=models,
                search=search,
                on_trouble=_complain,
            )
            async with mesh:
                without = await _without_rules(mesh)
                with _announced(mesh):
                    _introduce(mesh, kind, without)
                    await asyncio.Event().wait()
    except Leave:
        say("stopped; the log is kept")  # a signal is how this ends when all is well
    except asyncio.CancelledError:
        say("stopped; the log is kept")
        raise Leave(0) from None


def _complain(line: str) -> None:
    remark(f"mesh: {line}")


@contextlib.contextmanager
def _announced(mesh: "LocalFleet") -> "Iterator[None]":
    """Tell other commands in this folder of it, for as long as it runs."""
    import os

    from mesh.settings import DEV_FILE, STATE, Dev

    path = Path.cwd() / STATE / DEV_FILE
    path.parent.mkdir(mode=0o700, exist_ok=True)
    file = mesh.file
    said = Dev(
        pid=os.getpid(),
        url=mesh.url,
        monitor=mesh.server.monitor_url,
        keys=mesh.keys,
        clients=tuple(file.clients),
        viewers=tuple(file.viewers),
        operators=tuple(file.operators),
    )
    path.unlink(missing_ok=True)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as written:
        written.write(said.encode())
    try:
        yield
    finally:
        path.unlink(missing_ok=True)


def _free(port: int | None) -> int:
    """Return the port to ask for: the usual one if nobody has it, else whichever the system gives."""
    import socket

    if port is not None:
        return port
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", USUAL_PORT))
        except OSError:
            return 0
    return USUAL_PORT


async def _without_rules(mesh: "LocalFleet") -> str:
    """Return which agents that run here have nothing to go by, in words; empty if none."""
    from mesh.bus.roles import ADMIN
    from mesh.ops.fleet_health import rules_wanted, without_rules

    served = [name for name in mesh.file.agents if name not in mesh.unserved]
    async with await mesh.connect_as(ADMIN) as bus:
        without = await without_rules(bus, served)
    return rules_wanted(without, human=mesh.file.human is not None) if without else ""


def _introduce(mesh: "LocalFleet", kind: Kind, without: str) -> None:
    client = next(iter(mesh.file.clients))
    say(f"{mesh.file.name}: nats-server at {mesh.url}, each message on the disk before it is acknowledged")
    say(_MODELS[kind])
    if without:
        say(f"  {without}")
    for service in mesh.services.values():
        say(f"  {service.identity:<12} process {service.pid}, log {service.log}")
    for name in mesh.unserved:
        say(f"  {name:<12} has no module in the fleet file; run it yourself: mesh agent run MODULE:NAME")
    say("")
    say("in another terminal, in this folder:")
    say('  mesh send "…"                  submit a request and wait for its answer')
    say("  mesh request ls                and show ID, why ID, replay ID")
    say("  mesh human ls                  what waits for people")
    say("")
    say("or with anything that speaks NATS (no credentials needed here; the id is <client>_<a fresh ULID>):")
    say(f'  nats req --server {mesh.url} mesh.prop.{client}.{_fresh_id(client)} \'{{"text": "…"}}\'')
    say("")
    say("Ctrl-C stops everything")


def _fresh_id(client: str) -> str:
    import os
    import time

    from protocol.wire.ids import request_id

    return request_id(client, time.time_ns() // 1_000_000, os.urandom(10))
