"""`mesh human watch`: tells somebody of what waits for people."""

from typing import TYPE_CHECKING, Annotated

import typer

from mesh.cli.options import AsJson, Tier, Where, on_the_bus
from mesh.cli.output import emit, remark, say, short, when

if TYPE_CHECKING:
    from mesh.ops.watch import Alarm

_READERS = ("operator", "viewer")


@on_the_bus
async def watch(
    where: Where,
    command: Annotated[
        str | None,
        typer.Option("--exec", metavar="CMD", help="Run this in the shell for each.", show_default=False),
    ] = None,
    once: Annotated[bool, typer.Option("--once", help="Tell what there is now, and end.")] = False,
    since: Annotated[
        str | None,
        typer.Option(
            "--since",
            help="Begin with all that was raised since: a time (ISO-8601), or 90s, 10m, 2h, 1d ago.",
            show_default=False,
        ),
    ] = None,
    new: Annotated[bool, typer.Option("--new", help="Leave out what waits already.")] = False,
    exec_timeout: Annotated[
        float, typer.Option("--exec-timeout", help="Seconds that CMD may take.", min=0.1)
    ] = 60.0,
    tier: Tier = None,
    as_json: AsJson = False,
) -> None:
    """Tell of escalations, questions to people, effects in doubt and dead letters, until Ctrl-C.

    It begins with what waits already, dead letters excepted. CMD has the facts in its environment:
    MESH_WHAT (escalation, ask, doubt or dead_letter), MESH_REQUEST, MESH_AGENT, MESH_SUMMARY, MESH_REASON,
    MESH_AT (UTC µs), MESH_TIER, MESH_TIER_NAME, MESH_SEQ, MESH_URL; and all of them as JSON on its standard
    input. A CMD that fails is named on standard error, and the watch goes on.
    """
    from mesh.cli.hooks import Hooks
    from mesh.cli.interrupts import ended_by_signals
    from mesh.cli.times import server_time
    from mesh.ops.errors import UsageWrong
    from mesh.ops.queue import people_of, require_tier
    from mesh.ops.watch import Watch

    if new and (once or since is not None):
        raise UsageWrong("--new tells only what comes: it goes with neither --once nor --since")
    begin = None if since is None else server_time(since)
    access = where.access(*_READERS)
    hooks = Hooks(command, within_s=exec_timeout)
    async with (
        ended_by_signals(),
        await access.connect() as bus,
    ):
        if tier is not None:
            require_tier(tier, await people_of(bus))
        if not once:
            remark("mesh: watching; Ctrl-C ends it")
        try:
            watching = Watch(bus, access.url)
            async for alarm in watching.alarms(since=begin, waiting=not new, goes_on=not once):
                if tier in (None, alarm.tier_name):
                    _tell(alarm, as_json)
                    hooks.add(alarm)
            await hooks.finish()
        finally:
            await hooks.close()


def _tell(alarm: "Alarm", as_json: bool) -> None:
    if as_json:
        emit(alarm)
        return
    about = alarm.request or "-"
    number = "" if alarm.seq is None else f" {alarm.seq}"
    said = f"{alarm.reason}: {short(alarm.summary, 160)}"
    say(f"{when(alarm.at)}  {alarm.what}{number}  {about}  {alarm.agent or '-'}  {said}")
