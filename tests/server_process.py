"""A process that owns an embedded server and waits to be killed: `<store> <guard>`."""

import asyncio
import sys
from pathlib import Path

from mesh.local.server import EmbeddedServer


async def main() -> None:
    store, guard = sys.argv[1:]
    assert guard in ("signal", "pipe")
    server = EmbeddedServer("", Path(store), parent_death="pipe" if guard == "pipe" else "signal")
    await server.start()
    sys.stdout.write(f"server {server.pid}\n")
    sys.stdout.flush()
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main())
