"""billing: charges, refunds, credits, returned devices, bills and subscriptions.

Accepts the intents `refund`, `credit`, `return`, `cancel` and `invoice` with the fact `customer_id`. Asks
technical to reset a device before its price is given back. What is over the limit is decided by a person.
"""

import sqlite3
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from agents.records import once, the_row
from agents.support import CustomerId, connected
from mesh.agent import tool
from mesh.model import WORK, ClaudeAgent

APPROVAL_CENTS = 10_000
"""Refunds over this are decided by a person."""

SubscriptionId = Annotated[str, Field(pattern=r"^s-\d{4}$", description="Like s-2001.")]
ChargeId = Annotated[str, Field(pattern=r"^ch-[\d-]{4,12}$", description="Like ch-9001 or ch-2001-2611.")]
_CHARGES = """
    SELECT c.id, c.what, c.cents, c.day, r.day AS refunded_on,
           CASE WHEN r.charge_id IS NULL THEN c.status ELSE 'refunded' END AS status
    FROM charges c LEFT JOIN refunds r ON r.charge_id = c.id
"""


def _money(cents: int) -> str:
    return f"{cents // 100}.{cents % 100:02} EUR"


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


# --- the agent -------------------------------------------------------------------------------------

HERE = Path(__file__).parent
LABELS = {"customer_name": ("pii",), "email": ("pii",), "phone": ("pii",)}

agent = ClaudeAgent(
    "billing",
    description="Charges, refunds, credits, returned devices, bills, subscriptions.",
    instructions=HERE / "prompts" / "billing.md",
    tools=(
        cancel_subscription,
        find_charge,
        find_duplicate_charges,
        list_charges,
        list_subscriptions,
        refund_charge,
    ),
    model=WORK,
    script=HERE / "rules.toml",
    labels=LABELS,
)
