"""`mesh guard run`: a guard's process. Any number may run; they share the work and keep no state."""

from typing import Annotated

import typer

from mesh.cli.options import Health, Where, serve, with_where

app = typer.Typer(help="The guard, which decides.", no_args_is_help=True)


@app.command("run")
@with_where
def run(
    where: Where,
    identity: Annotated[
        str | None, typer.Option("--identity", help="What this guard is called; by default host and process.")
    ] = None,
    grace: Annotated[float, typer.Option("--grace", help="Seconds to finish what is in hand.", min=0)] = 5.0,
    health: Health = None,
) -> None:
    """Decide proposals until told to end; SIGTERM finishes what is in hand."""
    import os
    import socket

    from mesh.guard.service import Guard

    called = identity or f"{socket.gethostname()}-{os.getpid()}"
    serve(where.access("guard"), lambda bus: Guard(bus, identity=called), grace_s=grace, health=health)
