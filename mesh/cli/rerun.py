"""`mesh request rerun`: a new request from the handoff at which an old one failed."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from mesh.cli.options import AsJson, RequestArgument, Where, on_the_bus
from mesh.cli.output import one_line, remark, report, when

if TYPE_CHECKING:
    from mesh.ops.effects import Effect


@on_the_bus
async def rerun(
    where: Where,
    request: RequestArgument,
    to: Annotated[
        str | None, typer.Option("--to", help="Another agent than the one it failed at.", show_default=False)
    ] = None,
    text: Annotated[
        str | None,
        typer.Option("--text", help="What is wanted, instead of the old text.", show_default=False),
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    as_json: AsJson = False,
) -> None:
    """Do a request again, from the handoff at which it failed; prints the new request's id.

    The new request is yours, and linked to the old one. It begins at the agent whose turn was the last,
    with all that had been handed to it. Its effects get new keys: what the old request did to the world is
    done again, so that is listed first.
    """
    from mesh.client import Client
    from mesh.ops.effects import effects_of
    from mesh.ops.requests import decoded, request_bodies
    from mesh.ops.rerun import rerun_of

    async with await where.connect("operator") as bus:
        happened = decoded(await request_bodies(bus, request))
        again = rerun_of(happened, to=to, text=text)
        for line in again.remarks:
            remark(f"mesh: {line}")
        effects = await effects_of(bus, happened)
        _warn(request, effects)
        remark(
            f"mesh: the new request begins at {again.agent or 'the entry agent'}, under policy "
            f"{again.submit.policy}; its answer goes to {bus.name}"
        )
        if yes or await _agreed():
            new = await Client(bus, bus.name).submit_whole(again.submit)
            report({"request": new, "rerun_of": request, "effects": effects}, new, as_json=as_json)
        else:
            remark("mesh: nothing was submitted")
            raise typer.Exit(1)


def _warn(request: str, effects: "Sequence[Effect]") -> None:
    """Say what a rerun does to the world a second time."""
    remark("mesh: effects get new keys: no tool can tell that they belong to the same work")
    if not effects:
        remark(f"mesh: the journals of {request} have no effect")
        return
    count = "1 effect" if len(effects) == 1 else f"{len(effects)} effects"
    remark(f"mesh: {count} of {request} can happen again:")
    for effect in effects:
        state = "done" if effect.state == "done" else "begun, and nobody knows whether it was done"
        action, key = one_line(effect.action), one_line(effect.key)
        remark(f"  {when(effect.at)}  {effect.agent}  {action}  step {effect.step}  {state}  {key}")


async def _agreed() -> bool:
    """Ask whoever sits at the terminal. Raises UsageWrong where nobody does."""
    import asyncio
    import sys

    from mesh.ops.errors import UsageWrong

    if not sys.stdin.isatty():
        raise UsageWrong("nobody can be asked here: say --yes to submit it all the same")
    remark("submit it? [y/N] ", end="")
    said = await asyncio.to_thread(sys.stdin.readline)
    return said.strip().lower() in ("y", "yes")
