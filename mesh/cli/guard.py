"""`mesh guard …`: the guard, which decides every proposal."""

import asyncio
import os
import socket

import click

from mesh import ops
from mesh.bus.connection import Bus
from mesh.cli.options import Where, framed, grace_option, serve
from mesh.guard.observer import end_with_the_process
from mesh.guard.service import Guard
from mesh.telemetry.export import is_measured

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
    serve(where.access("guard"), lambda bus: _GuardWithGauges(bus, called), grace_s=grace, health=health)


class _GuardWithGauges(Guard):
    """A guard that also shows the state of the mesh, while it has partition 0 and metrics are kept."""

    def __init__(self, bus: Bus, identity: str) -> None:
        super().__init__(bus, identity=identity)
        self._shown_on = bus

    async def run(self) -> None:
        if not is_measured():
            return await super().run()
        showing = ops.gauges.MeshGauges(self._shown_on, lambda: self.ready and 0 in self.assignment.mine)
        keeping = asyncio.create_task(showing.keep())
        try:
            await super().run()
        finally:
            keeping.cancel()
            await asyncio.gather(keeping, return_exceptions=True)
