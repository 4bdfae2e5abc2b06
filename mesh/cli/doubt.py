"""`mesh doubt …`: effects that may or may not have happened, and what people found out about them."""

from typing import Any

import click

from mesh.cli.options import (
    Where,
    by_option,
    json_option,
    on_the_bus,
    output_options,
    person,
    remark_unreadable,
    request_argument,
)
from mesh.cli.output import emit, report, table
from mesh.errors import UsageWrong
from mesh.service.printable import when

app = click.Group(help="Effects in doubt: list, settle.")

_READERS = ("operator", "viewer", "admin")


@app.command("ls")
@output_options
@on_the_bus
async def ls(where: Where, *, as_json: bool) -> None:
    """List effects in doubt, the oldest first.

    The process died between the intent to do something and the proof that it was done. Look in the system
    that it was done to (by the key, if that system knows keys), then settle it.
    """
    from mesh.ops.queue import doubts

    async with await where.connect(*_READERS) as bus:
        found = await doubts(bus)
    remark_unreadable(found.unreadable)
    if as_json:
        emit(found.waiting)
        return
    table(
        ("request", "since", "agent", "action", "step", "key", "settle it with"),
        [
            (
                each.request,
                when(each.since),
                each.from_agent,
                each.action,
                each.step,
                each.key,
                f"mesh doubt settle {each.request} --done|--not-done",
            )
            for each in found.waiting
        ],
        whole=("request", "since"),
    )


@app.command("settle")
@request_argument
@click.option("--done", is_flag=True, help="It happened; it is not done again.")
@click.option("--not-done", is_flag=True, help="It did not; the agent does it now.")
@click.option("--result", help="With --done: what it returned. What reads as JSON is JSON, the rest text.")
@by_option
@json_option
@on_the_bus
async def settle(
    where: Where, *, request: str, done: bool, not_done: bool, result: str | None, by: str, as_json: bool
) -> None:
    """Say what became of an effect in doubt, so that the turn goes on: done, or not done."""
    from mesh.ops import queue
    from mesh.ops.control import obeyed

    if done is not_done:
        raise UsageWrong("one of --done and --not-done")
    if not_done and result is not None:
        raise UsageWrong("--result goes with --done: what was not done has none")
    async with await where.connect("operator") as bus:
        event = await queue.settle(bus, request, by=person(by), done=done, result=_value(result))
    what = "done" if done else "not done"
    text = f"{request}: settled as {what}; {event.to} goes on (event {event.n})"
    report(obeyed(event), text, as_json=as_json)


def _value(said: str | None) -> Any:
    """Return JSON as what it says, and everything else as text."""
    import msgspec

    try:
        return None if said is None else msgspec.json.decode(said)
    except msgspec.DecodeError:
        return said
