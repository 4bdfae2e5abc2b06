"""`mesh dead …`: messages that nobody could read or act on, with their reasons and their bytes."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from mesh.cli.counts import counted
from mesh.cli.options import AsJson, Output, Where, on_the_bus
from mesh.cli.output import Format, chosen, emit, emit_raw, report, say, table, when

if TYPE_CHECKING:
    from protocol.wire.notices import DeadLetter

app = typer.Typer(help="Dead letters: list, show, resend.", no_args_is_help=True)

_READERS = ("viewer", "operator", "admin")


@app.command("ls")
@on_the_bus
async def ls(where: Where, output: Output = Format.TABLE, as_json: AsJson = False) -> None:
    """List dead letters, the oldest first."""
    from mesh.ops.letters import letters

    async with await where.connect(*_READERS) as bus:
        found = [each async for each in letters(bus)]
    if chosen(output, as_json) is Format.JSON:
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
@on_the_bus
async def show(
    where: Where,
    seq: Annotated[int, typer.Argument(metavar="SEQ", help="Its number in the list.", min=1)],
    raw: Annotated[bool, typer.Option("--raw", help="Print the original bytes, and nothing else.")] = False,
    output: Output = Format.TABLE,
    as_json: AsJson = False,
) -> None:
    """Show one: why it is here, and what it said."""
    from mesh.ops.letters import letter_at

    async with await where.connect(*_READERS) as bus:
        letter = await letter_at(bus, seq)
    if raw:
        emit_raw(letter.original)
        return
    if chosen(output, as_json) is Format.JSON:
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
@on_the_bus
async def resend(
    where: Where,
    seq: Annotated[int, typer.Argument(metavar="SEQ", help="Its number in the list.", min=1)],
    as_json: AsJson = False,
) -> None:
    """Put a message back into the queue that it came from, once what was in its way is mended.

    Needs the admin's credentials, and prints what came of it. Only what a guard kept can be put back.
    """
    from mesh.ops.control import obeyed
    from mesh.ops.letters import letter_at
    from mesh.ops.resend import parcel
    from mesh.ops.resend import resend as put_back
    from protocol.wire.events import type_of

    async with await where.connect("admin") as bus:
        sent = parcel(seq, await letter_at(bus, seq))
        # A control message for a request that is not there is kept trying for a while before it is given up.
        event = await put_back(bus, sent, within_s=20.0 if sent.kind == "prop" else 45.0)
    text = f"{sent.request}: decided: {type_of(event)} (event {event.n})"
    report(obeyed(event), text, as_json=as_json)


def _as_program_reads(seq: int, letter: "DeadLetter") -> dict[str, Any]:
    import msgspec

    fields: dict[str, Any] = msgspec.to_builtins(letter)
    return {"seq": seq, **fields, "original": letter.original.decode(errors="replace")}
