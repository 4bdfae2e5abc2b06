"""The card: what a running agent says of itself. Shown to models and people; no verdict rests on it."""

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from mesh.agent.definition import Agent
from mesh.agent.tools import Tool
from mesh.bus.connection import Bus
from protocol.subjects import card


class Card(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The last one published under an agent's name, by whichever instance started last."""

    v: int = 1
    name: str
    version: str
    description: str = ""
    prompt_version: str = ""
    tools: tuple[Mapping[str, Any], ...] = ()
    """{name, description, effect} of each."""
    instance: str = ""
    model: str = ""
    """What drives it: `scripted`, a model's id, or empty."""
    no_rules: bool = False
    """Of an agent with a model: that it has no rules which could stand in for it."""


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
