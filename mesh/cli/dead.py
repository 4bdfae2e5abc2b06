"""`mesh dead …`: dead letters."""

import functools
from typing import Any

import click

from mesh import ops
from mesh.cli.bulk import Many, Words, choose_and_send, one_or_many
from mesh.cli.options import (
    READERS,
    Where,
    decided,
    framed,
)
from mesh.cli.output import (
    At,
    Id,
    emit,
    emit_raw,
    say,
    table,
)
from mesh.errors import UsageWrong
from mesh.service.printable import as_program_reads, counted, when
from protocol.wire.events import type_of
from protocol.wire.records import DeadLetter

app = click.Group(help="Dead letters: list, show, resend.")
SEQ = "The letter's number in the list."
seq_argument = click.argument("seq", type=click.IntRange(min=1), metavar="SEQ", help=SEQ)


@app.command("ls")
@framed
async def ls(where: Where, *, as_json: bool) -> None:
    """List dead letters, the oldest first."""
    async with await where.connect(*READERS) as bus:
        found = [each async for each in ops.dead_letters.letters(bus)]
    if as_json:
        emit([_as_program_reads(seq, letter) for seq, letter in found])
        return
    table(
        ("seq", "at", "by", "code", "from", "request", "why"),
        [
            (seq, At(letter.at), letter.by, letter.code, letter.sender, Id(letter.request), letter.detail)
            for seq, letter in found
        ],
        spare=("by", "from", "code"),
    )


@app.command("show")
@seq_argument
@click.option("--raw", is_flag=True, help="Print the original bytes, and nothing else.")
@framed
async def show(where: Where, *, seq: int, raw: bool, as_json: bool) -> None:
    """Show a dead letter: its reason and its bytes."""
    async with await where.connect(*READERS) as bus:
        letter = await ops.dead_letters.letter_at(bus, seq)
    if raw:
        emit_raw(letter.original)
        return
    if as_json:
        emit(_as_program_reads(seq, letter))
        return
    deliveries = counted(letter.delivered, "delivery", "deliveries")
    say(f"{letter.code}: {letter.detail}")
    say(f"at {when(letter.at)}, given up by {letter.by} after {deliveries}")
    origin = f"sender {letter.sender or 'unknown'}, request {letter.request or 'unknown'}"
    say(f"subject {letter.subject}, {origin}")
    for name, value in letter.headers.items():
        say(f"{name}: {value}")
    say("")
    say(letter.original.decode(errors="backslashreplace") + (" …" if letter.truncated else ""), lines=True)


@app.command("resend")
@click.argument("seq", type=click.IntRange(min=1), metavar="[SEQ]", required=False, help=SEQ)
@one_or_many("seq", batch=False)
@click.option("--code", help="With --where: only letters with this code.")
@framed
async def resend(where: Where, *, seq: int, many: Many | None, code: str | None, as_json: bool) -> None:
    """Put a message back into its queue, after fixing the cause; print the event that decides it.

    It needs the admin's credentials. Only messages that a guard kept can be put back. With --where it is for
    the letters about these requests whose messages were not decided since.
    """
    if many is not None:
        choose = functools.partial(ops.dead_letters.choose, wanted=many.wanted, code=code, limit=many.limit)
        words = Words("put back", "decided", "letter")
        await choose_and_send(where, words, many, choose, role="admin", as_json=as_json)
        return
    if code is not None:
        raise UsageWrong("--code goes with --where")
    async with await where.connect("admin") as bus:
        event = await ops.dead_letters.resend(bus, seq)
    decided(event, f"is decided: {type_of(event)}", as_json=as_json)


def _as_program_reads(seq: int, letter: DeadLetter) -> dict[str, Any]:
    fields: dict[str, Any] = as_program_reads(letter)
    return {"seq": seq, **fields, "original": letter.original.decode(errors="replace")}
