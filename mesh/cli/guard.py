"""`mesh guard run`, a guard's process; `mesh freeze` and `mesh thaw`, what all guards are told.

Any number of guards may run; they share the work and keep no state.
"""

import click

from mesh.cli.options import (
    Where,
    by_option,
    health_option,
    json_option,
    on_the_bus,
    person,
    reason_option,
    serve,
    with_where,
)
from mesh.cli.output import emit, remark, report

app = click.Group(help="The guard, which decides.")


@app.command("run")
@click.option("--identity", help="What this guard is called; by default host and process.")
@click.option(
    "--grace",
    type=click.FloatRange(min=0),
    default=5.0,
    show_default=True,
    help="Seconds to finish what is in hand.",
)
@health_option
@with_where
def run(where: Where, *, identity: str | None, grace: float, health: str | None) -> None:
    """Decide proposals until told to end; SIGTERM finishes what is in hand."""
    import os
    import socket

    from mesh.guard.service import Guard

    called = identity or f"{socket.gethostname()}-{os.getpid()}"
    serve(where.access("guard"), lambda bus: Guard(bus, identity=called), grace_s=grace, health=health)


@click.command()
@reason_option
@by_option
@json_option
@on_the_bus
async def freeze(where: Where, *, reason: str, by: str, as_json: bool) -> None:
    """Freeze the whole mesh: guards decide nothing more until the thaw.

    What runs finishes, and what it asks for waits in its queue, as do new requests and timers. Control
    messages (cancel, resolve, reply …) are obeyed meanwhile.
    """
    from mesh.ops.control import order_id, set_mesh_freeze
    from mesh.ops.roster import mesh_freeze
    from protocol.wire.commands import Freeze

    async with await where.connect("operator") as bus:
        stands = await mesh_freeze(bus)
        if stands.frozen:
            remark(f"mesh: nothing to do: it is frozen already, {stands.in_words}")
            if as_json:
                emit(stands)
            return
        stands = await set_mesh_freeze(bus, Freeze(id=order_id(), by=person(by), reason=reason))
    report(stands, f"the mesh is frozen {stands.in_words}", as_json=as_json)


@click.command()
@reason_option
@by_option
@json_option
@on_the_bus
async def thaw(where: Where, *, reason: str, by: str, as_json: bool) -> None:
    """Let the whole mesh go on: what waited is decided, in the order in which it came."""
    from mesh.ops.control import order_id, set_mesh_freeze
    from mesh.ops.roster import mesh_freeze
    from protocol.wire.commands import Thaw

    async with await where.connect("operator") as bus:
        before = await mesh_freeze(bus)
        if not before.frozen:
            remark("mesh: nothing to do: it is not frozen")
            if as_json:
                emit(before)
            return
        stands = await set_mesh_freeze(bus, Thaw(id=order_id(), by=person(by), reason=reason))
    report(stands, f"the mesh goes on; it was frozen {before.in_words}", as_json=as_json)
