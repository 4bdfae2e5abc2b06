"""A queue of a test's own to pull from, and a handler that works until it is let go."""

import asyncio
import json
from collections.abc import Callable
from typing import Any

from mesh.bus.connection import Bus
from mesh.bus.consumer import Message, Puller
from mesh.errors import ApiError
from mesh.local.server import EmbeddedServer
from tests.servers import child, eventually

NS = 10**9
_STORE_FAILED = 10012  # JetStream: the consumer's store could not be made
LEASE_S = 1.0
EXPIRES_S = 0.5


class Queue:
    """A stream of a test's own with one consumer."""

    made = 0

    def __init__(self, bus: Bus, server: EmbeddedServer) -> None:
        Queue.made += 1
        self.stream = f"Q{Queue.made}"
        self.bus = bus
        self.server = server

    async def create(self, **consumer: object) -> None:
        config = {"name": self.stream, "subjects": [f"{self.stream}.*"], "retention": "workqueue"}
        await self.bus.api(f"STREAM.CREATE.{self.stream}", {**config, "storage": "file"})
        await self.consumer(**consumer)

    async def consumer(self, **more: object) -> None:
        config = {"name": "w", "durable_name": "w", "ack_policy": "explicit", "ack_wait": int(LEASE_S * NS)}
        body = {"stream_name": self.stream, "config": {**config, **more}, "action": ""}
        await self.bus.api(f"CONSUMER.CREATE.{self.stream}.w", body)

    async def recreated(self) -> bool:
        """Create the consumer again; False while the server still removes the folder of the old one."""
        try:
            await self.consumer()
        except ApiError as error:
            if error.err_code != _STORE_FAILED:
                raise
            return False
        return True

    async def put(self, count: int) -> None:
        await asyncio.gather(*(self.bus.publish_durable(f"{self.stream}.x", b"%d" % n) for n in range(count)))

    async def info(self) -> dict[str, Any]:
        return await self.bus.api(f"CONSUMER.INFO.{self.stream}.w")

    async def left(self) -> int:
        state = (await self.bus.api(f"STREAM.INFO.{self.stream}"))["state"]
        return int(state["messages"])

    async def empty(self) -> bool:
        return await self.left() == 0

    def puller(self, handler: Callable[[Message], Any], **options: Any) -> Puller:
        return Puller(self.bus, self.stream, "w", handler, **{"slots": 4, "expires_s": EXPIRES_S, **options})

    def process(self, **options: object) -> Any:
        encoded = json.dumps({"slots": 4, "expires_s": EXPIRES_S, **options})
        return child("tests.pull_process", self.server.url, self.stream, "w", encoded)


class Busy:
    """A handler that works until it is let go, and counts."""

    def __init__(self) -> None:
        self.messages: list[Message] = []
        self.at_once = 0
        self.most = 0
        self.go = asyncio.Event()

    async def __call__(self, message: Message) -> None:
        self.messages.append(message)
        self.at_once += 1
        self.most = max(self.most, self.at_once)
        await self.go.wait()
        self.at_once -= 1
        await message.ack_sync()


async def until_waiting(queue: Queue, pulls: int) -> None:
    async def waiting() -> bool:
        return bool((await queue.info())["num_waiting"] == pulls)

    await eventually(waiting)
