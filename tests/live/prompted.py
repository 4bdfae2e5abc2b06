"""An agent as its model sees it, and the same one after somebody has changed it."""

from mesh.agent.tools import tool
from mesh.model import ROUTING, WORK, ClaudeAgent
from mesh.model.prompt import Instructions

ran: list[str] = []
"""What the tool was really called with."""


@tool
async def find(who: str) -> str:
    """Find somebody."""
    ran.append(who)
    return f"{who} is in the attic"


def made(text: str, prompt_version: str, version: str, model: str = ROUTING) -> ClaudeAgent:
    return ClaudeAgent(
        "a",
        instructions=Instructions(prompt_version, text),
        tools=[find],
        model=model,
        max_tokens=777,
        version=version,
    )


agent = made("You find people.\nBe brief.", "7", "1")
changed = made("You find everybody.", "8", "2")
repinned = made("You find people.\nBe brief.", "7", "1", WORK)
other = made("You find people.\nBe brief.", "7", "1")
object.__setattr__(other, "name", "b")
elsewhere = made("You find people.\nBe brief.", "7", "1", "openai:gpt-6-luna")
idle = made("You find people.\nBe brief.", "7", "1")
object.__setattr__(idle, "name", "c")
