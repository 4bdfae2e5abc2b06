"""`mesh schedule …`: requests that begin by the calendar, or once at a time."""

import click

from mesh import ops
from mesh.cli.options import READERS, Where, framed
from mesh.cli.output import At, listing, report
from mesh.ops.schedules import StandingSchedule
from mesh.service.printable import when

app = click.Group(
    help="Requests that begin by the calendar or at a time: list, pause, resume, run now, cancel."
)
name_argument = click.argument("name", metavar="NAME", help="The schedule's name.")


@app.command("ls")
@framed
async def ls(where: Where, *, as_json: bool) -> None:
    """List the schedules: when each ticks next, and what came of its last tick."""
    async with await where.connect(*READERS) as bus:
        found = await ops.schedules.schedules(bus)
    listing(
        found,
        {
            "schedule": lambda each: each.name,
            "next": _next,
            "last": lambda each: "" if each.tick is None else At(each.tick.at),
            "outcome": lambda each: "" if each.tick is None else each.tick.outcome,
            "request": lambda each: "" if each.tick is None else each.tick.request,
            "detail": lambda each: each.unreadable or ("" if each.tick is None else each.tick.detail),
            "cron": _calendar,
            "client": lambda each: each.client,
            "to": lambda each: each.to,
            "overlap": lambda each: each.overlap,
        },
        as_json=as_json,
        spare=("overlap", "to", "client"),
    )


def _next(each: StandingSchedule) -> At | str:
    if each.due is not None:
        return At(each.due)
    return "paused" if each.paused else "unreadable" if each.unreadable else ""


def _calendar(each: StandingSchedule) -> str:
    if each.at is not None:
        return "once"
    return each.cron if each.zone in ("", "UTC") else f"{each.cron} {each.zone}"


@app.command("pause")
@name_argument
@framed
async def pause(where: Where, *, name: str, by: str, as_json: bool) -> None:
    """Stop a schedule until it is resumed, whatever `mesh setup` writes. It takes the admin's credentials.

    Its open request goes on.
    """
    async with await where.connect("admin") as bus:
        done = await ops.schedules.pause(bus, name, by=by)
    report(done, f"the schedule {name} is paused", as_json=as_json)


@app.command("resume")
@name_argument
@framed
async def resume(where: Where, *, name: str, by: str, as_json: bool) -> None:
    """Let a schedule tick again. It does not make up for ticks before. It takes the admin's credentials."""
    async with await where.connect("admin") as bus:
        done = await ops.schedules.resume(bus, name, by=by)
    next_tick = "" if done.due is None else f": it ticks at {when(done.due)}"
    report(done, f"the schedule {name} goes on{next_tick}", as_json=as_json)


@app.command("run-now")
@name_argument
@framed
async def run_now(where: Where, *, name: str, as_json: bool) -> None:
    """Submit a schedule's request at once, even if it is paused. It takes the admin's credentials.

    The calendar goes on as if nothing had happened: the next tick comes when it would, and does not wait for
    the end of this request.
    """
    async with await where.connect("admin") as bus:
        done = await ops.schedules.run_now(bus, name)
    report(done, done.request, as_json=as_json)


@app.command("cancel")
@name_argument
@framed
async def cancel(where: Where, *, name: str, by: str, as_json: bool) -> None:
    """Keep a request from being submitted at its time. It takes the admin's credentials.

    It fails if a guard has begun with it: then `mesh request cancel` ends the request.
    """
    async with await where.connect("admin") as bus:
        done = await ops.schedules.cancel(bus, name, by=by)
    report(done, f"{name} is cancelled", as_json=as_json)
