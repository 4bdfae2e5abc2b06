"""`mesh guard …`: the guard, which decides every proposal."""

import os
import socket
from typing import TYPE_CHECKING

import click

from mesh.cli.options import Where, framed, grace_option, serve
from mesh.guard.observer import end_with_the_process
from mesh.guard.service import Guard

if TYPE_CHECKING:
    pass


app = click.Group(help="The guard, which decides every proposal.")


@app.command("run")
@click.option("--identity", help="The name of this guard; by default host and process.")
@grace_option(5.0)
@framed
def run(where: Where, *, identity: str | None, grace: float, health: str | None) -> None:
    """Decide proposals until a signal. SIGTERM finishes the work in hand.

    Any number of guards may run; they share the work and keep no state.
    """

    end_with_the_process()
    called = identity or f"{socket.gethostname()}-{os.getpid()}"
    serve(where.access("guard"), lambda bus: Guard(bus, identity=called), grace_s=grace, health=health)
