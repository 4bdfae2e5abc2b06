"""`mesh dead …`: messages that nobody could read or act on, with their reasons and their bytes."""

from typing import TYPE_CHECKING, Any

import click

from mesh.cli.options import READERS, Where, json_option, on_the_bus, output_options
from mesh.cli.output import emit, emit_raw, report, say, table
from mesh.service.printable import counted, when

if TYPE_CHECKING:
    from protocol.wire.notices import DeadLetter

app = click.Group(help="Dead letters: list, show, resend.")


@app.command("ls")
@output_options
@on_the_bus
async def ls(where: Where, *, as_json: bool) -> None:
    """List dead letters, the oldest first."""
    from mesh.ops.dead_letters import letters

    async with await where.connect(*READERS) as bus:
        found = [each async for each in letters(bus)]
    if as_json:
        emit([_as_program_reads(seq, letter) for seq, letter in found])
        return
    table(
        ("seq", "at", "by", "code", "from", "request", "why"),
        [
            (seq, when(letter.at), letter.by, letter.code, letter.sender, letter.request, letter.detail)
            for seq, letter in found
        ],
        whole=("seq", "at", "request"),
    )


@app.command("show")
@click.argument("seq", type=click.IntRange(min=1), metavar="SEQ", help="Its number in the list.")
@click.option("--raw", is_flag=True, help="Print the original bytes, and nothing else.")
@output_options
@on_the_bus
async def show(where: Where, *, seq: int, raw: bool, as_json: bool) -> None:
    """Show one: why it is here, and what it said."""
    from mesh.ops.dead_letters import letter_at

    async with await where.connect(*READERS) as bus:
        letter = await letter_at(bus, seq)
    if raw:
        emit_raw(letter.original)
        return
    if as_json:
        emit(_as_program_reads(seq, letter))
        return
    deliveries = counted(letter.delivered, "delivery", "deliveries")
    say(f"{letter.code}: {letter.detail}")
    say(f"at {when(letter.at)}, given up by {letter.by} after {deliveries}")
    said = f"sender {letter.sender or 'unknown'}, request {letter.request or 'unknown'}"
    say(f"subject {letter.subject}, {said}")
    for name, value in letter.headers.items():
        say(f"{name}: {value}")
    say("")
    say(letter.original.decode(errors="backslashreplace") + (" …" if letter.truncated else ""), lines=True)


@app.command("resend")
@click.argument("seq", type=click.IntRange(min=1), metavar="SEQ", help="Its number in the list.")
@json_option
@on_the_bus
async def resend(where: Where, *, seq: int, as_json: bool) -> None:
    """Put a message back into the queue that it came from, once what was in its way is mended.

    Needs the admin's credentials, and prints what came of it. Only what a guard kept can be put back.
    """
    from mesh.ops import dead_letters
    from mesh.ops.control import obeyed
    from protocol.wire.events import type_of

    async with await where.connect("admin") as bus:
        sent = dead_letters.parcel(seq, await dead_letters.letter_at(bus, seq))
        # A control message for a request that is not there is kept trying for a while before it is given up.
        event = await dead_letters.resend(bus, sent, within_s=20.0 if sent.kind == "prop" else 45.0)
    text = f"{sent.request}: decided: {type_of(event)} (event {event.n})"
    report(obeyed(event), text, as_json=as_json)


def _as_program_reads(seq: int, letter: "DeadLetter") -> dict[str, Any]:
    import msgspec

    fields: dict[str, Any] = msgspec.to_builtins(letter)
    return {"seq": seq, **fields, "original": letter.original.decode(errors="replace")}
