"""A process that makes a network, says of what, and waits to be killed."""

import asyncio

import click

from tests.drill.cluster import SERVERS
from tests.drill.network import Network


async def main() -> None:
    async with Network(SERVERS) as made:
        click.echo(" ".join([made.link, *map(str, made.holders)]))
        await asyncio.Event().wait()


asyncio.run(main())
