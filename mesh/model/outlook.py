"""What a model's conversation began with, the same for the whole turn.

A round after a refusal goes on where the last one ended: the recorded replies are said again, and what was
refused is the result of the call that asked for it. That holds only while the prompt is the same to the
letter (a vendor binds a model's thoughts to it, too), so that what may change between rounds is written down
with the first reply: who is there, which tools there are, and what had happened before it all began.
"""

from collections.abc import Iterable
from typing import Any

import msgspec

from mesh.agent.tools import Tool
from mesh.agent.turn import Turn
from protocol.wire.config import AgentEntry


class Outlook(msgspec.Struct, frozen=True, kw_only=True):
    """All that a prompt is made from besides the handoff."""

    peers: tuple[AgentEntry, ...]
    """Whom the agent may hand to."""
    human: bool
    """Whether people can be asked."""
    tools: tuple[str, ...]
    """Names of the tools that are offered."""
    past: int = 0
    """How many rounds had ended when the conversation began."""


def outlook_now(turn: Turn, tools: Iterable[Tool] = ()) -> Outlook:
    """Return what a conversation would begin with that begins now."""
    allowed = turn.allowed_actions
    return Outlook(
        peers=tuple(turn.peers.values()),
        human=turn.has_human,
        tools=tuple(tool.name for tool in tools if allowed is None or tool.name in allowed),
        past=len(turn.past),
    )


async def outlooks(turn: Turn) -> list[tuple[Any, Outlook]]:
    """Return what this turn's conversations began with that were not taken up yet: as recorded, and read."""
    return [(began, msgspec.convert(began, Outlook)) for began in await turn.begun()]
