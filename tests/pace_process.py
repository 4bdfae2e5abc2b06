"""A process that holds permits of a model until it is killed: URL SEED MODEL COUNT."""

import asyncio
import sys
from contextlib import AsyncExitStack

from mesh import pace
from mesh.bus.connection import connect
from mesh.pace import pace_of, shared
from mesh.pace_shares import Shares
from protocol.fleet import ModelLimits


async def main(url: str, seed: str, model: str, count: int) -> None:
    pace.configure({model: ModelLimits(concurrency=count)})
    async with await connect(url, name="a", seed=seed) as bus, shared(Shares(bus)), AsyncExitStack() as held:
        for _ in range(count):
            await held.enter_async_context(pace_of(model).room(30))
        sys.stdout.write(f"holding {count}\n")
        sys.stdout.flush()
        await asyncio.Event().wait()


if __name__ == "__main__":
    url, seed, model, count = sys.argv[1:]
    asyncio.run(main(url, seed, model, int(count)))
