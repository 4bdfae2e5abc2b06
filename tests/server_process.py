"""A process that owns an embedded server and waits to be killed: `<store> <leash>`."""

import asyncio
import sys
from pathlib import Path

from mesh.local.server import EmbeddedServer


async def main() -> None:
    store, leash = sys.argv[1:]
    assert leash in ("signal", "pipe")
    server = EmbeddedServer("", Path(store), leash="pipe" if leash == "pipe" else "signal")
    await server.start()
    sys.stdout.write(f"server {server.pid}\n")
    sys.stdout.flush()
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main())
