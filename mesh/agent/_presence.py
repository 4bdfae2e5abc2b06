"""Presence: an agent shows its card and answers NATS micro (`$SRV.PING|INFO|STATS`).

The card is what a running agent says of itself; no verdict rests on it. The answers have the shapes of NATS's
service API (ADR-32, `io.nats.micro.v1.*`), so that `nats micro ls` shows the agent. Guards ask the same way
whether anybody serves it: where no instance listens, the server says so at once.
"""

import datetime as dt
from collections.abc import Iterable
from typing import Any

import msgspec

from mesh.agent.definition import Agent
from mesh.agent.tools import Tool
from mesh.bus.connection import Bus
from mesh.bus.nats_protocol import Incoming
from protocol.wire.notices import Card
from protocol.wire.subjects import card, inbox


def card_of(agent: Agent, tools: Iterable[Tool], instance: str, model: str = "") -> Card:
    """Return the card of an agent with these tools: its own, unpacked."""
    return Card(
        name=agent.name,
        version=agent.version,
        description=agent.description,
        prompt_version=agent.prompt_version,
        tools=tuple(
            {"name": tool.name, "description": tool.description, "effect": tool.effect or "none"}
            for tool in tools
        ),
        instance=instance,
        model=model,
        no_rules=bool(agent.model) and agent.script is None,
    )


async def publish_card(bus: Bus, shown: Card) -> None:
    """Store an agent's card. Raises BusError."""
    await bus.publish_durable(card(shown.name), msgspec.json.encode(shown))


_PREFIX = "io.nats.micro.v1."


class Presence:
    """One instance's answers. `handled` and `failed` are counted by the runtime."""

    def __init__(self, bus: Bus, agent: Agent, instance: str) -> None:
        self._bus = bus
        self._agent = agent
        self._started = dt.datetime.now(dt.UTC)
        self._instance = instance
        self.handled = 0
        self.failed = 0
        self.last_error = ""
        self.busy_s = 0.0

    async def announce(self) -> None:
        """Begin to answer. Raises Denied."""
        for verb in ("PING", "INFO", "STATS"):
            for tail in ("", f".{self._agent.name}", f".{self._agent.name}.{self._instance}"):
                subject = f"$SRV.{verb}{tail}"
                await self._bus.retry_unavailable(lambda on=subject: self._bus.subscribe(on, self._answer))  # type: ignore[misc]

    def _answer(self, message: Incoming) -> None:
        verb = message.subject.split(".")[1]
        if message.reply:
            self._bus.send(message.reply, msgspec.json.encode(getattr(self, f"_{verb.lower()}")()))

    def _identity(self, type_: str) -> dict[str, Any]:
        return {
            "type": f"{_PREFIX}{type_}",
            "name": self._agent.name,
            "id": self._instance,
            "version": semantic(self._agent.version),
            "metadata": {"role": "agent", "agent-version": self._agent.version},
        }

    def _ping(self) -> dict[str, Any]:
        return self._identity("ping_response")

    def _info(self) -> dict[str, Any]:
        endpoint = {"name": "inbox", "subject": inbox(self._agent.name), "queue_group": "", "metadata": {}}
        return self._identity("info_response") | {
            "description": self._agent.description,
            "endpoints": [endpoint],
        }

    def _stats(self) -> dict[str, Any]:
        endpoint = {
            "name": "inbox",
            "subject": inbox(self._agent.name),
            "queue_group": "",
            "num_requests": self.handled,
            "num_errors": self.failed,
            "last_error": self.last_error,
            "processing_time": int(self.busy_s * 1e9),
            "average_processing_time": int(self.busy_s * 1e9 / self.handled) if self.handled else 0,
        }
        started = self._started.isoformat(timespec="milliseconds").replace("+00:00", "Z")
        return self._identity("stats_response") | {"started": started, "endpoints": [endpoint]}


def semantic(version: str) -> str:
    """Return `version` as the service API demands it, MAJOR.MINOR.PATCH: missing parts are 0."""
    parts = version.split(".")
    if len(parts) <= 3 and all(part.isdigit() for part in parts):
        return ".".join([*parts, "0", "0"][:3])
    return "0.0.0"
