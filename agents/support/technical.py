"""technical: measures, reboots and resets the devices at a customer's home.

Accepts the intents `diagnose` and `reset` with the facts `customer_id` and, mostly, `kind` and `problem`. It
has no clearance: it works on devices and never learns whose they are. Hands back where more is wanted.
"""

import sqlite3
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from agents.records import once, the_row
from agents.support import CustomerId, connected, service_status
from mesh.agent import tool
from mesh.model import WORK, ClaudeAgent

DeviceId = Annotated[str, Field(pattern=r"^d-\d{4}$", description="Like d-4001.")]
Kind = Annotated[
    Literal["router", "mesh point", "set-top box"], BeforeValidator(lambda said: str(said).lower())
]

_DEVICE = """
    SELECT d.*, a.status AS area_status, a.message AS area_message
    FROM devices d JOIN customers c ON c.id = d.customer_id JOIN areas a ON a.area = c.area
    WHERE d.id = ?
"""

_ADVICE = {
    "outage": "The trouble is in the network, not in the device: wait.",
    "hardware": "The device is broken: it has to be replaced.",
    "cable": "It sees no line: plug the cable in firmly at both ends.",
    "hung": "It hangs: reboot it; if that does not help, reset it.",
    "overheating": "It is too hot: give it air, and nothing on top of it.",
    "weak_signal": "It is too far from the router: move it closer, out in the open.",
    "packet_loss": "It loses data on a sound line: reset it.",
    "healthy": "Nothing is wrong with it.",
}


def _verdict(row: sqlite3.Row) -> str:
    """Return a device's trouble by its readings; of several the gravest."""
    findings = (
        ("outage", row["area_status"] == "outage" and not row["link"]),
        ("hardware", row["self_test"] == "failed"),
        ("cable", not row["link"]),
        ("hung", not row["online"]),
        ("overheating", row["celsius"] >= 75),
        ("weak_signal", row["signal_dbm"] <= -75),
        ("packet_loss", row["loss_percent"] >= 5.0),
    )
    return next((name for name, found in findings if found), "healthy")


@tool
def list_devices(customer_id: CustomerId, kind: Kind | None = None) -> list[dict[str, Any]]:
    """List the devices at a customer's home; with `kind`, only those."""
    query = (
        "SELECT id AS device_id, kind, model, firmware, online FROM devices WHERE customer_id = ? ORDER BY id"
    )
    with connected() as db:
        rows = db.execute(query, (customer_id,)).fetchall()
    return [dict(row) | {"online": bool(row["online"])} for row in rows if kind in (None, row["kind"])]


@tool
def run_diagnostics(device_id: DeviceId) -> dict[str, Any]:
    """Measure a device and the line to it: a verdict, what helps, and the readings."""
    with connected() as db:
        row = the_row(db, f"There is no device {device_id}.", _DEVICE, device_id)
    verdict = _verdict(row)
    return {
        "device_id": device_id,
        "device": f"{row['kind']} {row['model']}",
        "verdict": verdict,
        "advice": _ADVICE[verdict],
        "area": row["area_message"],
        "online": bool(row["online"]),
        "signal_dbm": row["signal_dbm"],
        "loss_percent": row["loss_percent"],
        "celsius": row["celsius"],
        "uptime_hours": row["uptime_hours"],
    }


@tool(effect="idempotent")
def reboot_device(device_id: DeviceId, idempotency_key: str) -> dict[str, Any]:
    """Switch a device off and on again from here. Settings stay; says whether it is well afterwards."""
    return _restart(device_id, idempotency_key, "reboot_device", reset=False)


@tool(effect="idempotent")
def reset_device(device_id: DeviceId, idempotency_key: str) -> dict[str, Any]:
    """Put a device back to its first settings and unlink it from the account: its WiFi name and key go."""
    return _restart(device_id, idempotency_key, "reset_device", reset=True)


def _restart(device_id: str, key: str, name: str, *, reset: bool) -> dict[str, Any]:
    with connected() as db:

        def restart() -> dict[str, Any]:
            row = the_row(db, f"There is no device {device_id}.", _DEVICE, device_id)
            sound = reset or not row["bad_settings"]
            works = bool(sound and row["link"] and row["self_test"] == "ok")
            db.execute(
                "UPDATE devices SET online = ?, bad_settings = ?, uptime_hours = 0, "
                "loss_percent = CASE WHEN ? THEN 0.1 ELSE loss_percent END WHERE id = ?",
                (works, row["bad_settings"] and not reset, works, device_id),
            )
            after = db.execute(_DEVICE, (device_id,)).fetchone()
            return {
                "device_id": device_id,
                "device": f"{row['kind']} {row['model']}",
                "done": "reset" if reset else "rebooted",
                "verdict": _verdict(after),
            }

        return once(db, key, name, restart)


# --- the agent -------------------------------------------------------------------------------------

HERE = Path(__file__).parent

agent = ClaudeAgent(
    "technical",
    description="Measures, reboots and resets the devices at a customer's home. Knows customers by id only.",
    instructions=HERE / "prompts" / "technical.md",
    tools=(list_devices, reboot_device, reset_device, run_diagnostics, service_status),
    model=WORK,
    script=HERE / "rules.toml",
)
