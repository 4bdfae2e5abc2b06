"""A process that pulls, says what it gets and keeps it: `<url> <stream> <consumer> <options as JSON>`.

Options: `slots`, `expires_s`, and `hold`: whether to keep the lease alive.
"""

import asyncio
import json
import sys

from mesh.bus.connection import connect
from mesh.bus.consumer import Message, Puller


def say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


async def main() -> None:
    url, stream, consumer, encoded = sys.argv[1:]
    options = json.loads(encoded)

    async def keep(message: Message) -> None:
        say(f"got {message.stream_seq} {message.delivered}")
        while True:
            await asyncio.sleep(0.2)
            if options.get("hold"):
                message.in_progress()

    async with await connect(url, name="puller") as bus:
        puller = Puller(bus, stream, consumer, keep, slots=options["slots"], expires_s=options["expires_s"])
        await puller.start()
        await bus.flush()
        say("ready")
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main())
