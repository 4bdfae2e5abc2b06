"""A process that holds permits of a model until it is killed: URL SEED MODEL COUNT."""

import asyncio
import sys
from contextlib import AsyncExitStack

from mesh.bus import rate_limit
from mesh.bus.connection import connect
from protocol.wire.config import ModelLimits


async def main(url: str, seed: str, model: str, count: int) -> None:
    async with await connect(url, name="a", seed=seed) as bus, AsyncExitStack() as held:
        rate_limit.configure({model: ModelLimits(concurrency=count)}, bus)
        for _ in range(count):
            await held.enter_async_context(rate_limit.limiter_of(model).room(30))
        sys.stdout.write(f"holding {count}\n")
        sys.stdout.flush()
        await asyncio.Event().wait()


if __name__ == "__main__":
    url, seed, model, count = sys.argv[1:]
    asyncio.run(main(url, seed, model, int(count)))
