"""`mesh doubt …`: effects that may or may not have happened, and what people found out about them."""

from typing import Annotated, Any

import typer

from mesh.cli.options import AsJson, By, Output, RequestArgument, Where, on_the_bus, person
from mesh.cli.output import Format, chosen, emit, report, table, when

app = typer.Typer(help="Effects in doubt: list, settle.", no_args_is_help=True)

_READERS = ("operator", "viewer", "admin")


@app.command("ls")
@on_the_bus
async def ls(where: Where, output: Output = Format.TABLE, as_json: AsJson = False) -> None:
    """List effects in doubt, the oldest first.

    The process died between the intent to do something and the proof that it was done. Look in the system
    that it was done to (by the key, if that system knows keys), then settle it.
    """
    from mesh.ops.queue import doubts

    async with await where.connect(*_READERS) as bus:
        found = await doubts(bus)
    if chosen(output, as_json) is Format.JSON:
        emit(found)
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
            for each in found
        ],
        whole=("request", "since"),
    )


@app.command("settle")
@on_the_bus
async def settle(
    where: Where,
    request: RequestArgument,
    done: Annotated[bool, typer.Option("--done", help="It happened; it is not done again.")] = False,
    not_done: Annotated[bool, typer.Option("--not-done", help="It did not; the agent does it now.")] = False,
    result: Annotated[
        str | None,
        typer.Option(
            "--result",
            help="With --done: what it returned. What reads as JSON is JSON, the rest text.",
            show_default=False,
        ),
    ] = None,
    by: By = "",
    as_json: AsJson = False,
) -> None:
    """Say what became of an effect in doubt, so that the turn goes on: done, or not done."""
    import secrets

    from mesh.ops.control import carry_out, obeyed
    from mesh.ops.errors import UsageWrong
    from mesh.ops.queue import doubt_in
    from mesh.ops.requests import decoded, request_bodies
    from protocol.ledger import fold
    from protocol.wire.commands import Settle

    if done is not_done:
        raise UsageWrong("one of --done and --not-done")
    if not_done and result is not None:
        raise UsageWrong("--result goes with --done: what was not done has none")
    async with await where.connect("operator") as bus:
        turn = doubt_in(fold(decoded(await request_bodies(bus, request))))
        order = Settle(
            id=secrets.token_hex(8),
            by=person(by),
            turn=turn.id,
            round=turn.round,
            outcome="done" if done else "not_done",
            result=_value(result),
        )
        event = await carry_out(bus, bus.name, request, order)
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
