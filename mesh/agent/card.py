"""The card: what a running agent says of itself. Shown to models and people; no verdict rests on it."""

from collections.abc import Iterable

import msgspec

from mesh.agent.definition import Agent
from mesh.agent.tools import Tool
from mesh.bus.connection import Bus
from protocol.wire.notices import Card
from protocol.wire.subjects import card


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
