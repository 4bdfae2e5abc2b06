"""`mesh doubt …`: effects that may or may not have happened."""

import contextlib
from typing import Any

import click

from mesh import ops
from mesh.cli.arguments import read_json
from mesh.cli.bulk import Many, Words, do_to_many, one_or_many
from mesh.cli.human import show
from mesh.cli.options import PEOPLE, Where, decided, framed, maybe_request_argument, remark_unreadable
from mesh.cli.output import At, Id, listing
from mesh.errors import MeshError, UsageWrong
from mesh.service.printable import short

app = click.Group(help="Effects in doubt: list, show, settle.")


@app.command("ls")
@framed
async def ls(where: Where, *, as_json: bool) -> None:
    """List effects in doubt, the most urgent first.

    A process died, or the tool raised, after the intent was recorded and before the result. Look in the
    other system (by the key, if it has keys), then settle it.
    """
    async with await where.connect(*PEOPLE) as bus:
        found = await ops.queue.queue(bus, "doubt")
    remark_unreadable(found.unreadable)
    listing(
        found.waiting,
        {
            "request": lambda each: Id(each.request),
            "since": lambda each: At(each.since),
            "agent": lambda each: each.from_agent,
            "action": lambda each: short(each.called, 100),
            "step": lambda each: each.step,
            "key": lambda each: each.key,
            "why": lambda each: short(each.error, 200),
            "settle it with": lambda each: f"mesh doubt settle {each.request} --done|--not-done",
        },
        as_json=as_json,
        spare=("settle it with", "step", "agent", "why"),
    )


app.add_command(show)


@app.command("settle")
@maybe_request_argument
@click.option("--done", is_flag=True, help="It happened; do not repeat it.")
@click.option("--not-done", is_flag=True, help="It did not happen; the agent does it now.")
@click.option("--result", help="With --done: its result. JSON is read as JSON, other text as text.")
@click.option("--action", metavar="TOOL", help="With --where: only effects of this tool.")
@one_or_many("request")
@framed
async def settle(
    where: Where,
    *,
    request: str,
    many: Many | None,
    done: bool,
    action: str | None,
    not_done: bool,
    result: str | None,
    at_event: int | None,
    by: str,
    as_json: bool,
) -> None:
    """Settle an effect in doubt, so that the turn goes on: it was done, or it was not."""
    if done is not_done:
        raise UsageWrong("one of --done and --not-done")
    if not_done and result is not None:
        raise UsageWrong("--result goes with --done: what was not done has none")
    if many is not None:
        if at_event is not None or result is not None:
            raise UsageWrong("--event and --result go with an ID: --where is for every doubt of each request")
        deed = ops.bulk.settling(by=by, done=done, action=action)
        await do_to_many(where, Words("settle", "settled"), many, deed, as_json=as_json)
        return
    if action is not None:
        raise UsageWrong("--action goes with --where")
    value: Any = result
    if result is not None:
        with contextlib.suppress(UsageWrong):
            value = read_json(result)
    async with await where.connect("operator") as bus:
        called = ""
        with contextlib.suppress(MeshError):  # settling reports what is wrong
            waits = (await ops.queue.waiting_at(bus, request, at_event)).waiting
            called = f": {short(waits.called, 200)}" if waits.what == "doubt" else ""
        event = await ops.decisions.settle(bus, request, by=by, done=done, result=value, n=at_event)
    words = f"is settled as {'done' if done else 'not done'}{called}; {event.to} goes on"
    decided(event, words, as_json=as_json)
