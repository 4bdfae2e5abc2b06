"""technical: measures, reboots and resets the devices at a customer's home.

Accepts the intents `diagnose` and `reset` with the facts `customer_id` and, mostly, `kind` and `problem`. It
has no clearance: it works on devices and never learns whose they are. Hands back where more is wanted.
"""

from pathlib import Path

from agents.support.tools import list_devices, reboot_device, reset_device, run_diagnostics, service_status
from mesh.model import WORK, ClaudeAgent

HERE = Path(__file__).parent
TOOLS = (list_devices, reboot_device, reset_device, run_diagnostics, service_status)

agent = ClaudeAgent(
    "technical",
    description="Measures, reboots and resets the devices at a customer's home. Knows customers by id only.",
    instructions=HERE / "prompts" / "technical.md",
    tools=TOOLS,
    model=WORK,
    script=HERE / "rules.toml",
)
