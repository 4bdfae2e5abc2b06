"""`mesh freeze` and `mesh thaw`: stop admitting moves in every request, and go on."""

from typing import Annotated

import typer

from mesh.cli.options import AsJson, By, Where, on_the_bus, person
from mesh.cli.output import emit, remark, report

Reason = Annotated[str, typer.Option("--reason", help="Why, for the record.")]


@on_the_bus
async def freeze(where: Where, reason: Reason = "", by: By = "", as_json: AsJson = False) -> None:
    """Freeze the whole mesh: guards decide nothing more until the thaw.

    What runs finishes, and what it asks for waits in its queue, as do new requests and timers. Control
    messages (cancel, resolve, reply …) are obeyed meanwhile.
    """
    import secrets

    from mesh.ops.freezing import bring_about, mesh_freeze
    from protocol.wire.commands import Freeze

    async with await where.connect("operator") as bus:
        stands = await mesh_freeze(bus)
        if stands.frozen:
            remark(f"mesh: nothing to do: it is frozen already, {stands.in_words}")
            if as_json:
                emit(stands)
            return
        order = Freeze(id=secrets.token_hex(8), by=person(by), reason=reason)
        stands = await bring_about(bus, order)
    report(stands, f"the mesh is frozen {stands.in_words}", as_json=as_json)


@on_the_bus
async def thaw(where: Where, reason: Reason = "", by: By = "", as_json: AsJson = False) -> None:
    """Let the whole mesh go on: what waited is decided, in the order in which it came."""
    import secrets

    from mesh.ops.freezing import bring_about, mesh_freeze
    from protocol.wire.commands import Thaw

    async with await where.connect("operator") as bus:
        before = await mesh_freeze(bus)
        if not before.frozen:
            remark("mesh: nothing to do: it is not frozen")
            if as_json:
                emit(before)
            return
        stands = await bring_about(bus, Thaw(id=secrets.token_hex(8), by=person(by), reason=reason))
    report(stands, f"the mesh goes on; it was frozen {before.in_words}", as_json=as_json)
