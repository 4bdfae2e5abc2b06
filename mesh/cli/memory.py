"""`mesh memory …`: what conversations remember."""

from typing import TYPE_CHECKING

import click

from mesh import ops
from mesh.cli.options import (
    Where,
    framed,
)
from mesh.cli.output import (
    At,
    Id,
    listing,
    report,
)
from mesh.service.printable import as_text, counted

if TYPE_CHECKING:
    pass


app = click.Group(help="What conversations remember: list, show, forget.")
client_option = click.option("--client", help="Whose conversations; a client sees only its own.")
conversation_argument = click.argument(
    "conversation", metavar="CONVERSATION", help="The conversation's name."
)
_MAY_LOOK = ("operator", "viewer", "client")
"""Roles that may look, the one that sees and does most first."""


@app.command("ls")
@client_option
@framed
async def ls(where: Where, *, client: str | None, as_json: bool) -> None:
    """List the conversations that remember anything, the newest first."""
    async with await where.connect(*_MAY_LOOK) as bus:
        found = await ops.memory.conversations(bus, client)
    listing(
        found,
        {
            "client": lambda each: each.client,
            "conversation": lambda each: each.conversation,
            "remembers": lambda each: ", ".join(each.keys),
            "spoke last": lambda each: each.last,
            "at": lambda each: At(each.at),
        },
        as_json=as_json,
    )


@app.command("show")
@conversation_argument
@client_option
@framed
async def show(where: Where, *, conversation: str, client: str | None, as_json: bool) -> None:
    """Show the facts that a conversation remembers, and the requests that ended with them."""
    async with await where.connect(*_MAY_LOOK) as bus:
        found = await ops.memory.facts(bus, conversation, client)
    listing(
        found,
        {
            "key": lambda each: each.key,
            "value": lambda each: as_text(each.value),
            "labels": lambda each: ", ".join(each.labels),
            "at": lambda each: At(each.at),
            "request": lambda each: Id(each.request),
        },
        as_json=as_json,
    )


@app.command("forget")
@conversation_argument
@click.argument("keys", nargs=-1, metavar="[KEY…]", help="Facts to forget; all of them if left out.")
@client_option
@framed
async def forget(
    where: Where, *, conversation: str, keys: tuple[str, ...], client: str | None, by: str, as_json: bool
) -> None:
    """Have a conversation forget facts. The log keeps them: requests that had them stay as they are."""
    async with await where.connect("operator", "client") as bus:
        done = await ops.memory.forget(bus, conversation, keys, client, by=by)
    what = counted(len(done.keys), "fact") + (" and who spoke last" if done.last else "")
    words = f"{done.client}'s conversation {done.conversation} has forgotten {what}"
    report(done, words, as_json=as_json)
