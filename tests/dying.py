"""Ends of a process, as with `kill -9`."""

import os
import signal
from typing import Any

from mesh.bus.connection import Bus
from mesh.bus.request_mux import PubAck


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def die_after_storing(bus: Bus, fatal: str) -> None:
    """Die once a message is stored whose subject begins with `fatal`."""
    inner = bus.publish_durable

    async def publish(subject: str, data: bytes, *rest: Any, **more: Any) -> PubAck:
        ack = await inner(subject, data, *rest, **more)
        if subject.startswith(fatal):
            die()
        return ack

    bus.publish_durable = publish  # type: ignore[method-assign]
