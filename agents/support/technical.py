"""technical: measures, reboots and resets the devices at a customer's home.

Accepts the intents `diagnose` and `reset` with the facts `customer_id` and, mostly, `kind` and `problem`. It
has no clearance: it works on devices and never learns whose they are. Hands back where more is wanted.
"""

from pathlib import Path

from agents.support.tools import list_devices, reboot_device, reset_device, run_diagnostics, service_status
from mesh.agent import Agent, Move, Turn
from mesh.model.choose import model_for
from mesh.model.instructions import load_instructions
from mesh.model.loop import drive

HERE = Path(__file__).parent
INSTRUCTIONS = load_instructions(HERE / "prompts" / "technical.md")
TOOLS = (list_devices, reboot_device, reset_device, run_diagnostics, service_status)


async def handle(turn: Turn) -> Move:
    """Find out what is wrong with a device, and mend what can be mended from here."""
    model = model_for(turn.agent, script=HERE / "rules.toml")
    return await drive(turn, model, instructions=INSTRUCTIONS.text, tools=TOOLS)


agent = Agent(
    name="technical",
    handler=handle,
    version="1",
    description="Measures, reboots and resets the devices at a customer's home. Knows customers by id only.",
    prompt_version=INSTRUCTIONS.version,
    tools=TOOLS,
)
