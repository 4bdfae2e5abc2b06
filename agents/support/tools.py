"""What the support agents can do, over the provider's records.

Amounts are texts with a currency, days ISO 8601 dates. Unknown ids and addresses are a `ToolError`. What the
house rules forbid is a result that says so: it was asked for properly, and the answer is no.
"""

import sqlite3
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from agents.records import once, the_row
from agents.support.database import connected
from mesh.agent import ToolError, tool

APPROVAL_CENTS = 10_000
"""Refunds over this are decided by a person."""

CustomerId = Annotated[str, Field(pattern=r"^c-\d{4}$", description="Like c-1001.")]
SubscriptionId = Annotated[str, Field(pattern=r"^s-\d{4}$", description="Like s-2001.")]
ChargeId = Annotated[str, Field(pattern=r"^ch-[\d-]{4,12}$", description="Like ch-9001 or ch-2001-2611.")]
DeviceId = Annotated[str, Field(pattern=r"^d-\d{4}$", description="Like d-4001.")]
Kind = Annotated[
    Literal["router", "mesh point", "set-top box"], BeforeValidator(lambda said: str(said).lower())
]


def _money(cents: int) -> str:
    return f"{cents // 100}.{cents % 100:02} EUR"


# --- who, and what is known anyway ------------------------------------------------------------------


@tool
def find_customer(email: str | None = None, customer_id: CustomerId | None = None) -> dict[str, Any]:
    """Find a customer by e-mail address or by id. Name and address are personal data (`pii`)."""
    if (email is None) == (customer_id is None):
        raise ToolError("Give either an e-mail address or a customer's id.")
    with connected() as db:
        row = the_row(
            db,
            f"There is no customer {email or customer_id}.",
            "SELECT id, name, email, area, status FROM customers WHERE email = ? OR id = ?",
            email,
            customer_id,
        )
    return {
        "customer_id": row["id"],
        "name": row["name"],
        "email": row["email"],
        "area": row["area"],
        "status": row["status"],
    }


@tool
def service_status(area: str) -> dict[str, Any]:
    """Say whether the network works in an area (a town)."""
    with connected() as db:
        row = the_row(
            db, f"We have no network in {area}.", "SELECT * FROM areas WHERE area = ?", area.strip().lower()
        )
    return dict(row)


@tool
def search_help(question: str) -> dict[str, Any]:
    """Look a general question up in the help pages: opening hours, paying, passwords, moving, notice."""
    asked = {word.strip(".,;:!?'\"()").lower() for word in question.split()}
    with connected() as db:
        pages = db.execute("SELECT topic, words, answer FROM help ORDER BY topic").fetchall()
    best = max(pages, key=lambda page: len(asked & set(page["words"].split())))
    if not asked & set(best["words"].split()):
        raise ToolError("No help page is about that.")
    return {"topic": best["topic"], "answer": best["answer"]}


# --- money ------------------------------------------------------------------------------------------

_CHARGES = """
    SELECT c.id, c.what, c.cents, c.day, r.day AS refunded_on,
           CASE WHEN r.charge_id IS NULL THEN c.status ELSE 'refunded' END AS status
    FROM charges c LEFT JOIN refunds r ON r.charge_id = c.id
"""


def _charge(row: sqlite3.Row) -> dict[str, Any]:
    return {
        "charge_id": row["id"],
        "what": row["what"],
        "amount": _money(row["cents"]),
        "day": row["day"],
        "status": row["status"],
    }


@tool
def list_charges(customer_id: CustomerId) -> list[dict[str, Any]]:
    """List a customer's twelve newest charges, the newest first; status: paid, failed or refunded."""
    newest = "WHERE c.customer_id = ? ORDER BY c.day DESC, c.id LIMIT 12"
    with connected() as db:
        return [_charge(row) for row in db.execute(_CHARGES + newest, (customer_id,))]


@tool
def find_charge(customer_id: CustomerId, about: str) -> dict[str, Any]:
    """Find a customer's newest charge for something, by words of its description (`late fee`, `router`)."""
    newest = """
        WHERE c.customer_id = ? AND c.what LIKE '%' || ? || '%' AND c.status = 'paid'
        ORDER BY c.day DESC, c.id
    """
    with connected() as db:
        return _charge(
            the_row(db, f"No charge for {about!r}.", _CHARGES + newest, customer_id, about.strip())
        )


@tool
def find_duplicate_charges(customer_id: CustomerId) -> list[dict[str, Any]]:
    """List charges that repeat another one: the same thing, amount and day. Refunded ones are left out."""
    repeated = """
        WHERE c.customer_id = ? AND c.status = 'paid' AND r.charge_id IS NULL AND EXISTS (
            SELECT 1 FROM charges o
            WHERE o.customer_id = c.customer_id AND o.what = c.what AND o.cents = c.cents AND o.day = c.day
              AND o.status = 'paid' AND o.rowid < c.rowid)
        ORDER BY c.day DESC, c.id
    """
    with connected() as db:
        return [_charge(row) for row in db.execute(_CHARGES + repeated, (customer_id,))]


@tool(effect="idempotent")
def refund_charge(charge_id: ChargeId, reason: str, idempotency_key: str) -> dict[str, Any]:
    """Give a whole charge back. Says `refunded: false` and why where the house rules forbid it.

    `already_refunded`: nothing is given back twice. `not_paid`: it never was paid. `needs_approval`: a
    person decides about more than 100.00 EUR.
    """
    with connected() as db:

        def refund() -> dict[str, Any]:
            row = the_row(db, f"There is no charge {charge_id}.", _CHARGES + "WHERE c.id = ?", charge_id)
            about = {"charge_id": charge_id, "amount": _money(row["cents"]), "what": row["what"]}
            if row["status"] == "refunded":
                return about | {"refunded": False, "why": "already_refunded", "day": row["refunded_on"]}
            if row["status"] == "failed":
                return about | {"refunded": False, "why": "not_paid"}
            if row["cents"] > APPROVAL_CENTS:
                return about | {"refunded": False, "why": "needs_approval"}
            db.execute("INSERT INTO refunds VALUES (?, ?, ?, date('now'))", (charge_id, row["cents"], reason))
            return about | {"refunded": True}

        return once(db, idempotency_key, "refund_charge", refund)


@tool
def list_subscriptions(customer_id: CustomerId, plan: str | None = None) -> list[dict[str, Any]]:
    """List a customer's subscriptions, active ones first; with `plan`, those whose name has these words."""
    query = """
        SELECT id, plan, cents, status, paid_until, cancelled_on FROM subscriptions
        WHERE customer_id = ? AND plan LIKE '%' || ? || '%' ORDER BY status, id
    """
    with connected() as db:
        rows = db.execute(query, (customer_id, plan or "")).fetchall()
    return [
        {
            "subscription_id": row["id"],
            "plan": row["plan"],
            "monthly": _money(row["cents"]),
            "status": row["status"],
            "paid_until": row["paid_until"],
            "cancelled_on": row["cancelled_on"],
        }
        for row in rows
    ]


@tool(effect="idempotent")
def cancel_subscription(subscription_id: SubscriptionId, idempotency_key: str) -> dict[str, Any]:
    """End a subscription; it runs on until what is paid is used up. Says so if it was ended before."""
    with connected() as db:

        def cancel() -> dict[str, Any]:
            row = the_row(
                db,
                f"There is no subscription {subscription_id}.",
                "SELECT * FROM subscriptions WHERE id = ?",
                subscription_id,
            )
            about = {"subscription_id": subscription_id, "plan": row["plan"], "runs_until": row["paid_until"]}
            if row["status"] == "cancelled":
                return about | {"cancelled": False, "why": "already_cancelled", "day": row["cancelled_on"]}
            db.execute(
                "UPDATE subscriptions SET status = 'cancelled', cancelled_on = date('now') WHERE id = ?",
                (subscription_id,),
            )
            return about | {"cancelled": True}

        return once(db, idempotency_key, "cancel_subscription", cancel)


# --- devices ----------------------------------------------------------------------------------------

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
    """Return what is wrong with a device, as far as its readings tell; the gravest comes first."""
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
    query = "SELECT id, kind, model, firmware, online FROM devices WHERE customer_id = ? ORDER BY id"
    with connected() as db:
        rows = db.execute(query, (customer_id,)).fetchall()
    return [
        {
            "device_id": row["id"],
            "kind": row["kind"],
            "model": row["model"],
            "firmware": row["firmware"],
            "online": bool(row["online"]),
        }
        for row in rows
        if kind is None or row["kind"] == kind
    ]


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
